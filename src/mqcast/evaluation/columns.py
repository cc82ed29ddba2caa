"""Columns of a user's frame as checked arrays: ids, dates by one clock, numbers; and the grid that dates lie on."""

import contextlib
from collections.abc import Iterable
from typing import Any, get_args

import numpy as np
import polars as pl
import pyarrow as pa

from mqcast.data.axis import TimeAxis, wall_times
from mqcast.data.frequency import DAY, HOUR, Frequency, show_time
from mqcast.data.schema import is_numeric, is_text, plain_type, words_for
from mqcast.data.source import Source, open_source, places_of
from mqcast.data.values import as_codes, as_microseconds, as_text
from mqcast.errors import (
    ColumnTypeError,
    ConfigError,
    DuplicateRowsError,
    EmptyFrameError,
    MissingColumnError,
    MissingKeyError,
    TimeZoneError,
    quoted,
)
from mqcast.settings import nearest

ISO_DATE = r"^\s*\d{4}-\d{2}-\d{2}(?:[ T].*)?$"
ROLES_OF_DEFAULTS = {"unique_id": "id", "ds": "time", "y": "target"}
FULLEST_GAPS = 0.25  # a grid with fewer of its steps among the dates is not the dates' own


def columns_of(
    frame: Any, wanted: Iterable[str], what: str, *optional: str, text: str | None = None
) -> dict[str, pa.Array]:
    """Named columns of any frame or file; with `text`, no other column of a CSV file may be text."""
    source: Source = frame if hasattr(frame, "index_names") else open_source(frame, what)
    names = list(dict.fromkeys(wanted))
    for name in names:
        if name not in source.names:
            near = nearest(name, source.names)
            listed = ", ".join(map(repr, source.names))
            hint = "reset_index() makes it a column" if name in source.index_names else f"there are {listed}"
            if role := ROLES_OF_DEFAULTS.get(name):
                hint += f"; say which is yours: {role}=…, or schema=… with all names"
            raise MissingColumnError(f"{what}: no column {name!r}{near}; {hint}")
    if source.num_rows == 0:
        raise EmptyFrameError(f"{what}: no row", "give at least one")
    if odd := {name: odd for name in names if text not in (None, name) and (odd := source.oddity(name))}:
        name, odd = next(iter(odd.items()))
        raise ColumnTypeError(f"{what}, column {name!r}: holds text ({odd}); write numbers as 1.5, dates as 2024-01-31")
    return {name: source.column(name) for name in (*names, *(name for name in optional if name in source.names))}


def text_ids(column: pa.Array, name: str, what: str) -> tuple[list[str | None], np.ndarray]:
    kind = plain_type(column.type)
    if not (is_text(kind) or is_numeric(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise ColumnTypeError(f"{what}, column {name!r}: holds {words_for(kind)}; convert it to text")
    codes, values = as_codes(column)
    return as_text(values), codes


def ids_of(column: pa.Array, name: str, what: str) -> tuple[list[str], np.ndarray]:
    """The distinct ids as sorted text, and the index of each row's."""
    texts, codes = text_ids(column, name, what)
    if codes.min() < 0 or None in texts:
        raise MissingKeyError(f"{what} have a row without an id", "fill it, or drop the row", column=name)
    ids = sorted({text for text in texts if text is not None})
    place = {text: i for i, text in enumerate(ids)}
    lookup = np.array([place[text] for text in texts if text is not None], np.int32)
    used = np.bincount(lookup[codes], minlength=len(ids)) > 0
    if not used.all():  # categories that no row has
        ids = [text for text, is_used in zip(ids, used, strict=True) if is_used]
        lookup = (np.cumsum(used) - 1)[lookup].astype(np.int32)
    return ids, lookup[codes]


def times_of(columns: dict[str, pa.Array], what: str) -> tuple[dict[str, np.ndarray], TimeAxis]:
    """Columns of dates of one table as microseconds, and by which clock they count.

    Dates with a zone are moments, in UTC, unless all are midnights of their zone: then they are that zone's days.
    """
    parsed = {name: _dates(column, name, what) for name, column in columns.items()}
    zones = [getattr(column.type, "tz", None) for column in parsed.values()]
    times = {name: as_microseconds(column) for name, column in parsed.items()}
    if zones.count(None) not in (0, len(zones)):
        raise TimeZoneError(f"{what}: some dates have a time zone and some have none", "convert all to one")
    if zones[0] is None:
        return times, _clock(None, in_utc=False)
    walls = {name: wall_times(times[name], str(zone)) for name, zone in zip(parsed, zones, strict=True)}
    by_day = all(not (distinct(wall) % DAY).any() for wall in walls.values())
    if by_day and len(set(zones)) > 1:
        raise TimeZoneError(f"{what}: dates in {' and '.join(map(str, zones))}", "convert all to one time zone")
    return (walls if by_day else times), _clock(str(zones[-1]), in_utc=not by_day)


def _clock(zone: str | None, *, in_utc: bool) -> TimeAxis:
    return TimeAxis(Frequency("fixed", HOUR if in_utc else DAY, 0), zone)


def _dates(column: pa.Array, name: str, what: str) -> pa.Array:
    if is_text(column.type):
        series = pl.Series(column).cast(pl.String)
        if series.null_count() == 0 and series.str.contains(ISO_DATE).all():
            with contextlib.suppress(pl.exceptions.PolarsError):
                return series.str.strip_chars().str.to_datetime(time_unit="us").to_arrow()
        if series.null_count() == 0:
            raise ColumnTypeError(f"{what}, column {name!r}: text that is no date as 2024-01-31; convert it to dates")
    elif not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        raise ColumnTypeError(f"{what}, column {name!r}: holds {words_for(column.type)}, not dates; convert it")
    if column.null_count:
        raise MissingKeyError(f"{what} have a row without a date", "fill it, or drop the row", column=name)
    return column


def numbers_of(column: pa.Array, name: str, what: str) -> np.ndarray:
    if not is_numeric(column.type):
        raise ColumnTypeError(f"{what}, column {name!r}: holds {words_for(column.type)}, not numbers; convert it")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def same_clock(one: TimeAxis, other: TimeAxis, what: str, others: str) -> None:
    """Dates without a zone go with such, days with days of the same zone, hours with any hours."""
    if (one.zone is None) != (other.zone is None):
        zoned, plain = (what, others) if one.zone else (others, what)
        raise TimeZoneError(f"the dates of {zoned} have a time zone, those of {plain} have none", "give both one")
    if one.zone != other.zone and not (one.in_utc and other.in_utc):
        raise TimeZoneError(f"{what} are in {one.zone}, {others} in {other.zone}", "convert both to one time zone")


def one_of(name: str, value: Any, options: Any) -> None:
    if not isinstance(value, str) or value not in get_args(options):
        raise ConfigError(f"{name} is {quoted(value)}; give {' or '.join(map(repr, get_args(options)))}")


def frequency_of(item: np.ndarray, time: np.ndarray) -> Frequency | None:
    """The grid on which each series' dates lie, as the one with most shows it; None if there is none.

    Of a grid of days, weeks or shorter steps each series may have a phase of its own, such as its weekday.
    """
    order = order_of(item, time)
    if order is not None:
        item, time = item[order], time[order]
    longest = int(np.bincount(item).argmax())
    dates = distinct(time[item == longest])
    if len(dates) < 2:
        return None
    frequency = Frequency.infer(dates).anchored(dates)
    if not frequency.steps(dates)[1].all() or share_of_grid(dates, frequency) < FULLEST_GAPS:
        return None
    if frequency.unit == "fixed":
        same = np.diff(item) == 0
        return frequency if not (np.diff(time)[same] % frequency.size).any() else None
    return frequency if frequency.steps(distinct(time))[1].all() else None


def share_of_grid(dates: np.ndarray, frequency: Frequency) -> float:
    """How many of the steps between the first and the last date are there."""
    steps, _ = frequency.steps(dates)
    return len(dates) / (steps[-1] - steps[0] + 1)


def sorting(ids: list[str], item: np.ndarray, time: np.ndarray, what: str, source: Source | None = None) -> np.ndarray:
    """The order by series and date, each pair of which there may be once."""
    order = order_of(item, time)
    order = np.arange(len(item)) if order is None else order
    item, time = item[order], time[order]
    twice = np.flatnonzero((np.diff(item) == 0) & (np.diff(time) == 0))
    if twice.size:
        at = "" if source is None else f", {places_of(source, order[twice[0] : twice[0] + 2].tolist())}"
        raise DuplicateRowsError(
            f"{what} have two rows for one date{at} (and {twice.size - 1} more)",
            "keep one of each; of a cross-validation, drop_duplicates over id and date",
            series=ids[item[twice[0]]],
            time=show_time(int(time[twice[0]])),
        )
    return order


def order_of(*keys: np.ndarray) -> np.ndarray | None:
    """The order by these keys, the first above all; None if the rows have it already."""
    key = keys[0].astype(np.int64)
    for times in keys[1:]:
        dates = distinct(times)
        key = key * len(dates) + places(times, dates)
    if (key[1:] >= key[:-1]).all():
        return None
    return pl.Series(key).arg_sort().to_numpy()


def places(times: np.ndarray, dates: np.ndarray) -> np.ndarray:
    """The place of each time among sorted dates that hold it."""
    gaps = np.diff(dates)
    if gaps.size and (gaps == gaps[0]).all():
        return (times - dates[0]) // gaps[0]
    return np.searchsorted(dates, times)


def distinct(times: np.ndarray) -> np.ndarray:
    return pl.Series(times).unique().sort().to_numpy()


def steps_between(first: np.ndarray, last: np.ndarray, dates: np.ndarray) -> np.ndarray:
    """How many of the sorted dates lie after `first`, up to `last`."""
    return np.searchsorted(dates, last, side="right") - np.searchsorted(dates, first, side="right")
