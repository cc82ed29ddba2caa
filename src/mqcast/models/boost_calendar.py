"""Numbers of the calendar for boosted trees: they find thresholds in these by themselves."""

import numpy as np

from mqcast.data.axis import TimeAxis
from mqcast.data.calendar import Calendar
from mqcast.data.frequency import EPOCH_WEEKDAY
from mqcast.data.schema import Schema
from mqcast.models.target_scale import Spans

HOLIDAY_REACH = 10  # days from a holiday that are told apart


def calendar_columns(
    schema: Schema, axis: TimeAxis, holidays: tuple[tuple[str, str], ...], spans: Spans, times: np.ndarray
) -> dict[str, np.ndarray]:
    """Numbers of the calendar at distinct times, and the days from the nearest date of each holiday."""
    calendar = Calendar(schema.replace(calendar=spans.calendar), axis, holidays)
    codes, frequency = calendar.categories(times), axis.frequency
    columns = {f"calendar {name}": codes[:, k] for k, name in enumerate(calendar.features)}
    first, last = calendar.period_days(times)
    if frequency.unit == "month":
        columns["days"] = last - first + 1
        columns["weekends"] = _num_weekdays(first, last, 5) + _num_weekdays(first, last, 6)
    if not frequency.sub_daily and frequency.unit != "month":
        stamps = first.astype("M8[D]")
        columns["days to month's end"] = ((stamps.astype("M8[M]") + 1).astype("M8[D]") - stamps).astype(np.int64)
    nearest: list[np.ndarray] = []
    start, stop = int(first.min()) - HOLIDAY_REACH, int(last.max()) + HOLIDAY_REACH + 1
    for (region, name), days in zip(holidays, calendar.holiday_days(start, stop), strict=True):
        columns[f"holiday {region} {name}"] = _from_nearest(days, first, last)
        nearest.append(days)
    if nearest:
        days = np.unique(np.concatenate(nearest))
        columns["next holiday"] = _distance(days, last, 1)
        columns["last holiday"] = _distance(days, first, -1)
        columns["holidays"] = np.searchsorted(days, last, side="right") - np.searchsorted(days, first)
    return columns


def _num_weekdays(first: np.ndarray, last: np.ndarray, weekday: int) -> np.ndarray:
    """How many of the days from `first` to `last` are this weekday; 0 is Monday, and the day 0 was a Thursday."""
    return (last + EPOCH_WEEKDAY - weekday) // 7 - (first - 1 + EPOCH_WEEKDAY - weekday) // 7


def _from_nearest(days: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Days from the begin of each period to the nearest of some days; NaN if that is far."""
    if not days.size:
        return np.full(len(first), np.nan)
    after = days[np.minimum(np.searchsorted(days, first), len(days) - 1)]
    before = days[np.maximum(np.searchsorted(days, first) - 1, 0)]
    near = np.where(np.abs(after - first) <= np.abs(first - before), after, before) - first
    return np.where((near >= -HOLIDAY_REACH) & (near <= HOLIDAY_REACH + last - first), near, np.nan)


def _distance(days: np.ndarray, from_day: np.ndarray, sign: int) -> np.ndarray:
    """Days to the next (or since the last) of some days, NaN if that is far."""
    if not days.size:
        return np.full(len(from_day), np.nan)
    if sign > 0:
        far = days[np.minimum(np.searchsorted(days, from_day), len(days) - 1)] - from_day
    else:
        far = from_day - days[np.maximum(np.searchsorted(days, from_day, side="right") - 1, 0)]
    return np.where((far >= 0) & (far <= HOLIDAY_REACH), far, np.nan)
