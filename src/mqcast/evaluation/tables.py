"""Frames of forecasts and of actual demand as checked, sorted arrays; and tables back in the caller's own library.

A forecast frame is long: `unique_id, cutoff, ds, horizon, q0.5, q0.9, …`, one row a series, cutoff and target date; any
forecaster's frame will do. Rows are held by series, target date and cutoff, so that the forecasts of one target, its
*trajectory*, stand together, oldest first.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import narwhals as nw
import numpy as np
import polars as pl
import pyarrow as pa

from mqcast.config import nearest
from mqcast.data.axis import wall_times
from mqcast.data.frequency import Frequency, show_time
from mqcast.data.schema import Schema, is_numeric, is_text, words_for
from mqcast.data.source import open_source
from mqcast.data.values import as_codes, as_microseconds, as_text
from mqcast.errors import (
    ColumnTypeError,
    ConfigError,
    DataError,
    DuplicateRowsError,
    EmptyFrameError,
    MissingColumnError,
    MissingKeyError,
    NonFiniteError,
)

FULLEST_GAPS = 0.25  # a grid with fewer of its steps among the dates is not the dates' own
LEVEL_COLUMN = re.compile(r"q(0?\.\d+)")


@dataclass(frozen=True)
class Names:
    """What the columns are called."""

    id: str = "unique_id"
    time: str = "ds"
    target: str = "y"
    cutoff: str = "cutoff"
    horizon: str = "horizon"

    @classmethod
    def of(cls, schema: Schema | None = None, **said: str | None) -> "Names":
        """The names that a schema gives; those said one by one go before it."""
        names = {} if schema is None else {"id": schema.id, "time": schema.time, "target": schema.target}
        return cls(**names | {name: value for name, value in said.items() if value is not None})


@dataclass(frozen=True, eq=False)
class Keyed:
    """Rows known by series and date, sorted by both, each pair once."""

    ids: list[str]  # sorted
    item: np.ndarray  # index into ids
    time: np.ndarray  # microseconds

    @cached_property
    def dates(self) -> np.ndarray:
        """The distinct dates, sorted."""
        return distinct(self.time)

    @cached_property
    def keys(self) -> np.ndarray:
        """Rising with the rows: series times the number of dates, plus the place of the date."""
        return self.item.astype(np.int64) * len(self.dates) + places(self.time, self.dates)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each series begins, and the end of the last."""
        return np.searchsorted(self.item, np.arange(len(self.ids) + 1))

    def find(self, ids: Sequence[str], item: np.ndarray, time: np.ndarray) -> np.ndarray:
        """The rows of these series and dates; -1 where there is none."""
        if not len(self.item):
            return np.full(len(item), -1)
        item = self.items_of(ids)[item]
        date = np.searchsorted(self.dates, time)
        near = np.minimum(date, len(self.dates) - 1)
        known = (item >= 0) & (self.dates[near] == time)
        keys = item.astype(np.int64) * len(self.dates) + near
        row = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(known & (self.keys[row] == keys), row, -1)

    def items_of(self, ids: Sequence[str]) -> np.ndarray:
        """The index of each id; -1 where it does not occur."""
        index = {name: i for i, name in enumerate(self.ids)}
        return np.array([index.get(name, -1) for name in ids], np.int64)


@dataclass(frozen=True, eq=False)
class Actuals(Keyed):
    """What was observed, with NaN where it was not."""

    value: np.ndarray
    names: Names = field(default_factory=Names)

    def known_mean(self, ids: Sequence[str], until: np.ndarray) -> np.ndarray:
        """Each series' mean of what was observed up to its own date; NaN where nothing was."""
        item = self.items_of(ids)
        seen = np.concatenate([[0.0], np.nancumsum(self.value)])
        counts = np.concatenate([[0], np.cumsum(~np.isnan(self.value))])
        found = np.full(len(ids), np.nan)
        for i in np.flatnonzero(item >= 0):
            begin, end = self.offsets[item[i]], self.offsets[item[i] + 1]
            end = begin + np.searchsorted(self.time[begin:end], until[i], side="right")
            if counts[end] > counts[begin]:
                found[i] = (seen[end] - seen[begin]) / (counts[end] - counts[begin])
        return found


@dataclass(frozen=True, eq=False)
class Forecasts:
    """The rows of a forecast frame, by series, target date and cutoff."""

    ids: list[str]  # sorted
    item: np.ndarray  # index into ids
    cutoff: np.ndarray  # microseconds
    time: np.ndarray  # of the target
    lead: np.ndarray  # whole steps from cutoff to target
    levels: tuple[float, ...]  # rising
    columns: tuple[str, ...]  # of the levels
    quantiles: np.ndarray  # (rows, levels)
    order: np.ndarray | None  # the rows of the frame in this order; None: as they stand
    size: int  # rows of the frame
    names: Names

    @property
    def num_rows(self) -> int:
        return len(self.item)

    @cached_property
    def begins(self) -> np.ndarray:
        """The first row of each trajectory: of each pair of series and target date."""
        changes = (np.diff(self.item) != 0) | (np.diff(self.time) != 0)
        return np.concatenate([[0], np.flatnonzero(changes) + 1])

    @cached_property
    def trajectory(self) -> np.ndarray:
        """Which trajectory each row belongs to."""
        return np.repeat(np.arange(len(self.begins), dtype=np.int32), np.diff(self.begins, append=self.num_rows))

    def first_cutoffs(self) -> np.ndarray:
        """The earliest cutoff of each series of `ids`."""
        first = np.full(len(self.ids), np.iinfo(np.int64).max)
        np.minimum.at(first, self.item[self.begins], self.cutoff[self.begins])
        return first

    def level(self, level: float) -> np.ndarray:
        """The quantiles of one level."""
        near = [i for i, mine in enumerate(self.levels) if abs(mine - level) < 1e-9]
        if not near:
            there = ", ".join(f"q{mine:g}" for mine in self.levels)
            raise ConfigError(f"level {level:g} is asked for, but the forecasts have {there}; ask for those")
        return self.quantiles[:, near[0]]

    def where(self, rows: np.ndarray) -> "Forecasts":
        """Some of the rows, in their order, by a mask; every series keeps its place in `ids`."""
        order = np.flatnonzero(rows) if self.order is None else self.order[rows]
        parts = {name: getattr(self, name)[rows] for name in ("item", "cutoff", "time", "lead", "quantiles")}
        return replace(self, order=order, **parts)

    def to_frame(self, values: np.ndarray) -> np.ndarray:
        """Values of these rows in the order of the frame that they came from; NaN for its other rows."""
        if self.order is None:
            return values
        found = np.full((self.size, *values.shape[1:]), np.nan)
        found[self.order] = values
        return found

    def from_frame(self, values: np.ndarray) -> np.ndarray:
        return values if self.order is None else values[self.order]

    def at(self, row: int) -> dict[str, Any]:
        """Where a row stands, for an error."""
        return {"series": self.ids[self.item[row]], "time": show_time(self.time[row])}


def read_forecasts(frame: Any, names: Names, *, crossing: Literal["allow", "raise"] = "allow") -> Forecasts:
    """Check a forecast frame and sort it."""
    what = "the forecasts"
    source = open_source(frame, what)
    levels = _levels(source.names)
    key_names = [names.id, names.cutoff, names.time]
    columns = _columns(source, [*key_names, *levels.values()], names.horizon)
    ids, item = ids_of(columns[names.id], names.id, what)
    cutoff, time = (times_of(columns[name], name, what) for name in (names.cutoff, names.time))
    order = _order(item, time, cutoff)
    if order is not None:
        item, time, cutoff = item[order], time[order], cutoff[order]
    values = np.empty((len(item), len(levels)))
    for i, name in enumerate(levels.values()):
        column = numbers_of(columns[name], name, what)
        values[:, i] = column if order is None else column[order]
    lead = _leads(columns.get(names.horizon), order, cutoff, time, names)
    found = Forecasts(
        ids, item, cutoff, time, lead, tuple(levels), tuple(levels.values()), values, order, len(item), names
    )
    _check_rows(found, crossing)
    return found


def read_actuals(frame: Any, names: Names, what: str = "the actuals") -> Actuals:
    """Check a frame of demand and sort it; missing values are NaN."""
    source = open_source(frame, what)
    columns = _columns(source, [names.id, names.time, names.target])
    ids, item = ids_of(columns[names.id], names.id, what)
    time = times_of(columns[names.time], names.time, what)
    order = sorting(ids, item, time, what)
    value = numbers_of(columns[names.target], names.target, what)
    if (bad := np.flatnonzero(np.isinf(value))).size:
        where = {"series": ids[item[bad[0]]], "time": show_time(int(time[bad[0]]))}
        raise NonFiniteError(f"an infinite value among {what}", "correct it", column=names.target, **where)
    return Actuals(ids, item[order], time[order], value[order], names)


def sorting(ids: list[str], item: np.ndarray, time: np.ndarray, what: str) -> np.ndarray:
    """The order by series and date, each pair of which there may be once."""
    order = _order(item, time)
    order = np.arange(len(item)) if order is None else order
    item, time = item[order], time[order]
    twice = np.flatnonzero((np.diff(item) == 0) & (np.diff(time) == 0))
    if twice.size:
        raise DuplicateRowsError(
            f"{what} have two rows for one date (and {twice.size - 1} more times)",
            "keep one of them, or add them up",
            series=ids[item[twice[0]]],
            time=show_time(int(time[twice[0]])),
        )
    return order


def actuals_of(forecasts: Forecasts, actuals: Actuals, missing: Literal["raise", "drop"]) -> np.ndarray:
    """The demand of each trajectory's target; NaN, if that is allowed, where it was not observed."""
    item, time = forecasts.item[forecasts.begins], forecasts.time[forecasts.begins]
    row = actuals.find(forecasts.ids, item, time)
    found = np.where(row >= 0, actuals.value[row], np.nan)
    bad = np.flatnonzero(np.isnan(found))
    if bad.size and missing == "raise":
        raise DataError(
            f"a forecast has no actual (nor have {bad.size - 1} more of {len(found)} pairs of series and date)",
            "give actuals up to the last target date, or missing='drop' to leave such forecasts out",
            column=actuals.names.target,
            series=forecasts.ids[item[bad[0]]],
            time=show_time(int(time[bad[0]])),
        )
    if bad.size == len(found):
        raise DataError("no forecast has an actual", "see that both tables have the same series and dates")
    return found


def distinct(times: np.ndarray) -> np.ndarray:
    return pl.Series(times).unique().sort().to_numpy()


def steps_between(first: np.ndarray, last: np.ndarray, dates: np.ndarray) -> np.ndarray:
    """How many of the sorted dates lie after `first`, up to `last`."""
    return np.searchsorted(dates, last, side="right") - np.searchsorted(dates, first, side="right")


def text_ids(column: pa.Array) -> tuple[list[str | None], np.ndarray]:
    codes, found = as_codes(column)
    return as_text(found), codes


def columns_of(frame: Any, columns: Iterable[str], what: str) -> dict[str, pa.Array]:
    """Named columns of any frame or file."""
    return _columns(open_source(frame, what), list(columns))


def native(table: pl.DataFrame, like: Any) -> Any:
    """The table in the library of the caller's own frame; polars for files."""
    try:
        kind = nw.from_native(like).implementation
    except TypeError:
        return table
    if kind.is_pandas_like():
        return table.to_pandas()
    return table.to_arrow() if kind.is_pyarrow() else table


def _levels(columns: Sequence[str]) -> dict[float, str]:
    """The quantile columns by level, rising."""
    found = {float(match[1]): name for name in columns if (match := LEVEL_COLUMN.fullmatch(name))}
    if not found:
        raise MissingColumnError(
            f"the forecasts have no column of quantiles, such as q0.5 or q0.9, but {', '.join(columns)}; rename "
            "yours, or use a converter of mqcast.evaluation.converters"
        )
    return dict(sorted(found.items()))


def _columns(source: Any, wanted: Sequence[str], *optional: str) -> dict[str, pa.Array]:
    for name in wanted:
        if name not in source.names:
            near = nearest(name, source.names)
            hint = "; reset_index() makes it a column" if name in source.index_names else f"; there are {source.names}"
            raise MissingColumnError(f"{source.what} have no column {name!r}{near}{hint}")
    if source.num_rows == 0:
        raise EmptyFrameError(f"{source.what} have no row", "give at least one")
    names = [*dict.fromkeys(wanted), *(name for name in optional if name in source.names)]
    return {name: source.column(name) for name in names}


def ids_of(column: pa.Array, name: str, what: str) -> tuple[list[str], np.ndarray]:
    """The distinct ids as sorted text, and the index of each row's."""
    texts, codes = text_ids(column)
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


def times_of(column: pa.Array, name: str, what: str) -> np.ndarray:
    """Microseconds, by the clock of the column's zone if it has one."""
    if is_text(column.type):
        column = _parsed(column, name, what)
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        raise ColumnTypeError(f"{what}, column {name!r}: holds {words_for(column.type)}, not dates; convert it")
    if column.null_count:
        raise MissingKeyError(f"{what} have a row without a date", "fill it, or drop the row", column=name)
    times = as_microseconds(column)
    zone = getattr(column.type, "tz", None)
    return wall_times(times, zone) if zone else times


def _parsed(column: pa.Array, name: str, what: str) -> pa.Array:
    try:
        return pl.Series(column).str.to_datetime(time_unit="us").to_arrow()
    except pl.exceptions.PolarsError:
        raise ColumnTypeError(f"{what}, column {name!r}: holds text that is no date; convert it to dates") from None


def numbers_of(column: pa.Array, name: str, what: str) -> np.ndarray:
    if not is_numeric(column.type):
        raise ColumnTypeError(f"{what}, column {name!r}: holds {words_for(column.type)}, not numbers; convert it")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _order(*keys: np.ndarray) -> np.ndarray | None:
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


def _leads(
    column: pa.Array | None, order: np.ndarray | None, cutoff: np.ndarray, time: np.ndarray, names: Names
) -> np.ndarray:
    """Whole steps from cutoff to target: the frame's own, or by the grid of its dates."""
    if column is not None:
        lead = numbers_of(column, names.horizon, "the forecasts")
        lead = lead if order is None else lead[order]
        return np.where(np.isfinite(lead), lead, -1).astype(np.int32)
    dates = distinct(np.concatenate([distinct(cutoff), distinct(time)]))
    frequency = Frequency.infer(dates).anchored(dates)
    steps, on_grid = frequency.steps(dates)
    if not on_grid.all() or len(dates) < FULLEST_GAPS * (steps[-1] - steps[0] + 1):
        off = f"{show_time(int(dates[~on_grid][0]))} is off" if not on_grid.all() else "most dates are missing on"
        raise DataError(
            f"leads cannot be counted: {off} the grid of the dates, {frequency}",
            f"add a column {names.horizon!r}: 1 for the first step after the cutoff",
        )
    return (steps[places(time, dates)] - steps[places(cutoff, dates)]).astype(np.int32)


def _check_rows(rows: Forecasts, crossing: str) -> None:
    late = np.flatnonzero(rows.time <= rows.cutoff)
    if late.size:
        cutoff = show_time(int(rows.cutoff[late[0]]))
        raise DataError(
            f"the target date is not after the cutoff, {cutoff} (and in {late.size - 1} more rows)",
            "a forecast is made before its target; correct the dates",
            column=rows.names.time,
            **rows.at(late[0]),
        )
    same = np.diff(rows.trajectory) == 0
    twice = np.flatnonzero(same & (np.diff(rows.cutoff) == 0))
    if twice.size:
        raise DuplicateRowsError(
            f"two forecasts from cutoff {show_time(int(rows.cutoff[twice[0]]))} (and {twice.size - 1} more times)",
            "keep one; several models go in one by one",
            **rows.at(twice[0]),
        )
    bad = np.flatnonzero((rows.lead < 1) | np.append(same & (np.diff(rows.lead) >= 0), False))
    if bad.size:
        raise DataError(
            f"lead {rows.lead[bad[0]]} from cutoff {show_time(int(rows.cutoff[bad[0]]))} (and {bad.size - 1} more)",
            "leads count from 1 and shrink as the cutoff nears the target; correct or leave out the column",
            column=rows.names.horizon,
            **rows.at(bad[0]),
        )
    not_finite = ~np.isfinite(rows.quantiles)
    if not_finite.any():
        row, column = np.argwhere(not_finite)[0]
        raise NonFiniteError(
            f"a quantile is missing or infinite (as are {not_finite.sum() - 1} more)",
            "fill it, or drop the rows",
            column=rows.columns[column],
            **rows.at(row),
        )
    if crossing == "raise" and (crossed := np.flatnonzero(crossings(rows.quantiles))).size:
        row = crossed[0]
        shown = ", ".join(f"{name} {value:g}" for name, value in zip(rows.columns, rows.quantiles[row], strict=True))
        raise DataError(
            f"quantiles cross: {shown} (and in {crossed.size - 1} more rows)",
            "sort them within the row, or allow it: crossing='allow'",
            **rows.at(row),
        )


def crossings(quantiles: np.ndarray) -> np.ndarray:
    """Rows in which a higher level has a lower value."""
    return np.any(np.diff(quantiles, axis=-1) < 0, axis=-1)
