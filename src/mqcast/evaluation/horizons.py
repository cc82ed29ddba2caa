"""Rows of forecasts → forecast frames: fill in missing cutoffs, count horizons, sort rows.

The horizon is counted on the grid of dates, as in a panel: a date without a row counts too. `freq` is the grid (as in
`Schema`). By default it is inferred from the series with the most dates, and days without any weekend are business
days. If the dates are on no grid (the 15th of each month), the horizon is the number of the series' own dates,
including cutoffs, from the cutoff to the date. The grid cannot be inferred from a thinned frame (one lead of each
forecast, few cutoffs): give `freq`.
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
    """Rows with `unique_id`, `ds`, quantiles and perhaps `cutoff`, as a forecast frame of the same library.

    Without a column of cutoffs, they are `dates`: one for each number in the column `window`, or one for all. Without
    `dates`, the cutoff of a series is one step before its first date in the window.
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
        (~is_whole, OffGridError, f"not a whole number of steps ({frequency}) after", "correct the dates or freq="),
        (horizon < 1, DataError, "not after", "drop these rows, or correct the cutoff"),
    ):
        if bad.any():
            row = int(bad.argmax())
            problem = f"the date is {problem} its cutoff {show_time(cutoff[row])}"
            raise error(problem, remedy, series=as_text(ids)[codes[row]], time=show_time(times[row]))
    steps = nw.new_series("horizon", horizon.astype(np.int32), nw.Int32, backend=rows.implementation)
    return in_order(rows.with_columns(steps))


def check_keys(rows: nw.DataFrame[Any]) -> None:
    """Raise if there are no rows, if keys are missing, or if dates are of another type or of several time zones."""
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
    """The grid of dates, and whether the dates are regular: at least half of them are one step apart."""
    all_dates, place = np.unique(times, return_inverse=True)
    pairs = np.unique(codes.astype(np.int64) * all_dates.size + place)
    longest = np.bincount(pairs // all_dates.size).argmax()
    dates = all_dates[pairs[pairs // all_dates.size == longest] % all_dates.size]
    counts = np.ones(dates.size, int)
    if freq is not None:
        return TimeAxis.of(freq, zone, dates, counts), True
    if dates.size < 2:
        raise DataError(
            "one date per series does not show the frequency", "give freq='D', 'W', 'h', 'MS' …", column="ds"
        )
    axis = TimeAxis.of(None, zone, dates, counts)
    steps, _ = axis.frequency.steps(axis.count(dates, pa.timestamp("us", zone), "ds"))
    return axis, float(np.mean(np.diff(steps) == 1)) >= 0.5


def _without_weekends(frequency: Frequency, *times: np.ndarray) -> Frequency:
    """Business days instead of days, if no date is on a weekend."""
    is_daily = frequency.unit == "fixed" and frequency.size == DAY
    return replace(frequency, unit="business") if is_daily and all(_on_weekdays(each) for each in times) else frequency


def _on_weekdays(times: np.ndarray) -> bool:
    return bool(np.all(weekday(times) < 5))


def _steps_ahead(cutoff: np.ndarray, times: np.ndarray, frequency: Frequency) -> tuple[np.ndarray, np.ndarray]:
    """Steps from the cutoff, and whether they are whole; each series may have its own phase (such as its weekday)."""
    if frequency.unit == "fixed":
        return replace(frequency, phase=0).steps(times - cutoff)
    (start, is_start_on), (end, is_end_on) = frequency.steps(cutoff), frequency.steps(times)
    return end - start, is_start_on & is_end_on


def _ranks_ahead(codes: np.ndarray, cutoff: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The number of the series' own dates, cutoffs included, from each cutoff to its date."""
    all_dates, place = np.unique(np.concatenate([cutoff, times]), return_inverse=True)
    pairs = np.tile(codes.astype(np.int64), 2) * all_dates.size + place
    ranks = np.searchsorted(np.unique(pairs), pairs)
    return ranks[codes.size :] - ranks[: codes.size]


def _step_before_first(
    groups: np.ndarray, times: np.ndarray, frequency: Frequency, is_regular: bool, is_given: bool
) -> np.ndarray:
    """One step before the first date of each group; raises if the dates do not show the frequency."""
    ids, place = np.unique(groups, return_inverse=True)
    first, last = np.full(ids.size, np.iinfo(np.int64).max), np.full(ids.size, np.iinfo(np.int64).min)
    np.minimum.at(first, place, times)
    np.maximum.at(last, place, times)
    frequency = frequency if is_given else _without_weekends(frequency, times)
    within_a_week = frequency.unit == "business" and bool(
        np.all(last - first < 5 * DAY) and np.any(weekday(first) == 0)
    )
    if not is_regular or (within_a_week and not is_given):
        why = "may be days or business days" if is_regular else "are on no regular grid"
        raise DataError(f"the dates {why}, so the cutoff is unknown", "give cutoff= or freq=", column="ds")
    before = first - frequency.size if frequency.unit == "fixed" else frequency.times(frequency.steps(first)[0] - 1)
    return before[place]


def _arrow(column: nw.Series[Any]) -> pa.Array:
    array = column.to_arrow()
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _as_dates(name: str, dates: pl.Series, like: nw.Series[Any]) -> nw.Series[Any]:
    """Dates of a time axis, converted to the type of the user's column."""
    utc = nw.new_series(name, dates.cast(pl.Int64).to_numpy().astype("M8[us]"), backend=like.implementation)
    if (zone := getattr(like.dtype, "time_zone", None)) is not None:
        utc = utc.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    return utc.cast(like.dtype)


def in_order(rows: nw.DataFrame[Any]) -> Any:
    """The forecast frame with columns and rows in order, as a frame of the user's library."""
    keys = list(KEYS)
    repeated = rows.select(keys).is_duplicated()
    if repeated.any():
        first = rows.filter(repeated).row(0)
        where = dict(zip(rows.columns, map(str, first), strict=True))
        raise DuplicateRowsError(
            f"two forecasts of the same date from the cutoff {where['cutoff']}",
            "keep one, or give the series different names",
            series=where["unique_id"],
            time=where["ds"],
        )
    rows = rows.with_columns(nw.col("cutoff").cast(rows["ds"].dtype)).sort(keys)
    quantiles = [name for name in rows.columns if name.startswith("q")]
    return nw.maybe_reset_index(rows.select(*keys, "horizon", *quantiles)).to_native()
