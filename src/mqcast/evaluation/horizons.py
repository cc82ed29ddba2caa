"""Rows of forecasts → forecast frames: cutoffs where they are not said, horizons, order.

The horizon is counted on the grid of dates, as in a panel: a date without a row counts too. `freq` says the grid (as in
`Schema`); left out, the series with most dates shows it, and days of which none is a weekend are business days. Dates
that lie on no grid (the 15th of each month) are counted as they come: the horizon is how many of the series' own dates,
cutoffs too, follow the cutoff up to the date. A frame that was thinned out (one lead of each forecast, few cutoffs)
does not show its grid: say `freq`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import pyarrow as pa

from mqcast.data.axis import TimeAxis
from mqcast.data.frequency import DAY, Frequency, show_time, weekday
from mqcast.data.values import as_codes, as_microseconds, as_text
from mqcast.data.windows import as_time
from mqcast.errors import (
    ColumnTypeError,
    DataError,
    DuplicateRowsError,
    EmptyFrameError,
    MissingKeyError,
    OffGridError,
    TimeZoneError,
)

KEYS = ("unique_id", "cutoff", "ds")


def forecast_frame(rows: nw.DataFrame[Any], freq: str | None, dates: Sequence[Any] | None) -> Any:
    """Rows of `unique_id`, `ds` and quantiles, and `cutoff` if they say it, as a forecast frame of the same library.

    Left out, the cutoffs are `dates`, one for each number in the column `window`, or one for all; without `dates`, each
    series' cutoff is one step before its first date in the window.
    """
    check_keys(rows)
    codes, ids = as_codes(_arrow(rows["unique_id"]))
    kind = _arrow(rows["ds"]).type
    raw = [as_microseconds(_arrow(rows[name])) for name in ("ds", "cutoff") if name in rows.columns]
    axis, is_regular = _axis_of(np.tile(codes, len(raw)), np.concatenate(raw), getattr(kind, "tz", None), freq)
    times, *given = (axis.count(values, kind, "ds") for values in raw)
    if given:
        cutoff = given[0]
    else:
        window = rows["window"].to_numpy() if "window" in rows.columns else np.zeros(len(rows), int)
        if dates is None:
            cutoff = _step_before_first(window * len(ids) + codes, times, axis.frequency, is_regular, freq is not None)
        else:
            cutoff = np.array([as_time(date, axis) for date in dates])[window]
        rows = rows.with_columns(_as_dates("cutoff", axis.dates(cutoff), rows["ds"]))
    frequency = axis.frequency if freq is not None else _without_weekends(axis.frequency, times, cutoff)
    horizon, is_whole = _steps_ahead(cutoff, times, frequency)
    if not is_regular or (given and freq is None and not is_whole.all()):
        horizon, is_whole = _ranks_ahead(codes, cutoff, times), np.ones(len(rows), bool)
    for bad, error, problem, remedy in (
        (~is_whole, OffGridError, f"no whole number of steps ({frequency}) after", "correct the dates or freq="),
        (horizon < 1, DataError, "not after", "leave such rows out, or correct the cutoff"),
    ):
        if bad.any():
            row = int(bad.argmax())
            problem = f"the date is {problem} its cutoff {show_time(cutoff[row])}"
            raise error(problem, remedy, series=as_text(ids)[codes[row]], time=show_time(times[row]))
    steps = nw.new_series("horizon", horizon.astype(np.int32), nw.Int32, backend=rows.implementation)
    return in_order(rows.with_columns(steps))


def check_keys(rows: nw.DataFrame[Any]) -> None:
    """Refuse no rows, missing keys, and dates that are none or not of one time zone."""
    if len(rows) == 0:
        raise EmptyFrameError("there is no forecast", "give one or more")
    for name in (name for name in KEYS if name in rows.columns):
        if rows[name].is_null().any():
            raise MissingKeyError("some rows have no value", "fill it, or drop the rows", column=name)
        if name != "unique_id" and not isinstance(rows[name].dtype, nw.Datetime | nw.Date):
            kind = rows[name].dtype
            raise ColumnTypeError(f"column {name!r} holds {kind}, not dates; convert it, e.g. with pd.to_datetime")
    zones = {getattr(rows[name].dtype, "time_zone", None) for name in KEYS[1:] if name in rows.columns}
    if len(zones) > 1:
        raise TimeZoneError("dates and cutoffs have different time zones", "convert them to one", column="cutoff")


def _axis_of(codes: np.ndarray, times: np.ndarray, zone: str | None, freq: str | None) -> tuple[TimeAxis, bool]:
    """The grid of dates, and whether the dates are regular on it: most of them one step apart."""
    all_dates, place = np.unique(times, return_inverse=True)
    pairs = np.unique(codes.astype(np.int64) * all_dates.size + place)
    longest = np.bincount(pairs // all_dates.size).argmax()
    dates = all_dates[pairs[pairs // all_dates.size == longest] % all_dates.size]
    counts = np.ones(dates.size, int)
    if freq is not None:
        return TimeAxis.of(freq, zone, dates, counts), True
    if dates.size < 2:
        raise DataError("one date a series does not tell the step", "say freq='D', 'W', 'h', 'MS' …", column="ds")
    axis = TimeAxis.of(None, zone, dates, counts)
    steps, _ = axis.frequency.steps(axis.count(dates, pa.timestamp("us", zone), "ds"))
    return axis, float(np.mean(np.diff(steps) == 1)) >= 0.5


def _without_weekends(frequency: Frequency, *times: np.ndarray) -> Frequency:
    """Business days for days of which none is a weekend."""
    is_daily = frequency.unit == "fixed" and frequency.size == DAY
    return replace(frequency, unit="business") if is_daily and all(_on_weekdays(each) for each in times) else frequency


def _on_weekdays(times: np.ndarray) -> bool:
    return bool(np.all(weekday(times) < 5))


def _steps_ahead(cutoff: np.ndarray, times: np.ndarray, frequency: Frequency) -> tuple[np.ndarray, np.ndarray]:
    """Steps from the cutoff, and whether they are whole; each series may have a phase of its own (its weekday, say)."""
    if frequency.unit == "fixed":
        return replace(frequency, phase=0).steps(times - cutoff)
    (start, is_start_on), (end, is_end_on) = frequency.steps(cutoff), frequency.steps(times)
    return end - start, is_start_on & is_end_on


def _ranks_ahead(codes: np.ndarray, cutoff: np.ndarray, times: np.ndarray) -> np.ndarray:
    """How many of the series' own dates, cutoffs included, each date lies after its cutoff."""
    all_dates, place = np.unique(np.concatenate([cutoff, times]), return_inverse=True)
    pairs = np.tile(codes.astype(np.int64), 2) * all_dates.size + place
    ranks = np.searchsorted(np.unique(pairs), pairs)
    return ranks[codes.size :] - ranks[: codes.size]


def _step_before_first(
    groups: np.ndarray, times: np.ndarray, frequency: Frequency, is_regular: bool, is_said: bool
) -> np.ndarray:
    """One step before the first date of each group; an error where the dates do not tell the step."""
    ids, place = np.unique(groups, return_inverse=True)
    first, last = np.full(ids.size, np.iinfo(np.int64).max), np.full(ids.size, np.iinfo(np.int64).min)
    np.minimum.at(first, place, times)
    np.maximum.at(last, place, times)
    frequency = frequency if is_said else _without_weekends(frequency, times)
    within_a_week = frequency.unit == "business" and bool(
        np.all(last - first < 5 * DAY) and np.any(weekday(first) == 0)
    )
    if not is_regular or (within_a_week and not is_said):
        why = "may be days or business days" if is_regular else "lie on no regular grid"
        raise DataError(f"the dates {why}, which leaves the cutoff open", "give cutoff= or freq=", column="ds")
    before = first - frequency.size if frequency.unit == "fixed" else frequency.times(frequency.steps(first)[0] - 1)
    return before[place]


def _arrow(column: nw.Series[Any]) -> pa.Array:
    array = column.to_arrow()
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _as_dates(name: str, dates: pl.Series, like: nw.Series[Any]) -> nw.Series[Any]:
    """Dates of a time axis, of the type of a column of the user's."""
    utc = nw.new_series(name, dates.cast(pl.Int64).to_numpy().astype("M8[us]"), backend=like.implementation)
    if (zone := getattr(like.dtype, "time_zone", None)) is not None:
        utc = utc.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    return utc.cast(like.dtype)


def in_order(rows: nw.DataFrame[Any]) -> Any:
    """The forecast frame's columns in their order, its rows in theirs, as the user's own kind of frame."""
    keys = list(KEYS)
    repeated = rows.select(keys).is_duplicated()
    if repeated.any():
        first = rows.filter(repeated).row(0)
        where = dict(zip(rows.columns, map(str, first), strict=True))
        raise DuplicateRowsError(
            f"two forecasts of one date from the cutoff {where['cutoff']}",
            "keep one, or give the series different names",
            series=where["unique_id"],
            time=where["ds"],
        )
    rows = rows.with_columns(nw.col("cutoff").cast(rows["ds"].dtype)).sort(keys)
    quantiles = [name for name in rows.columns if name.startswith("q")]
    return nw.maybe_reset_index(rows.select(*keys, "horizon", *quantiles)).to_native()
