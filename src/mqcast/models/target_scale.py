"""Units of histories: spans of time by frequency, what the fit decides, and targets relative to a level."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mqcast.data.frequency import DAY, Frequency
from mqcast.data.panel import Panel

MOST_SWITCHES = 6  # columns of the plan whose values are compared with the past


@dataclass(frozen=True)
class Spans:
    """Lengths in steps: short cycles, a year, the windows of means, and the window of the level."""

    cycles: tuple[int, ...]
    year: int
    windows: tuple[int, ...]
    level: int
    calendar: tuple[str, ...]

    @classmethod
    def of(cls, frequency: Frequency) -> "Spans":
        if frequency.sub_daily:
            day = DAY // frequency.size
            windows = (2, max(3, day // 4), day, 3 * day, 7 * day, 28 * day, 364 * day)
            minutes = ("minute_of_hour",) if frequency.size % (DAY // 24) else ()
            calendar = (*minutes, "hour_of_day", "day_of_week", "month", "week_of_year")
            return cls((day, 7 * day), 364 * day, tuple(sorted(set(windows))), 14 * day, calendar)
        if frequency.unit != "month" and frequency.size == DAY:
            week = 5 if frequency.unit == "business" else 7
            windows = (3, *(week * n for n in (1, 2, 4, 8, 16, 52)))
            return cls((week,), 52 * week, windows, 8 * week, ("day_of_week", "day_of_month", "week_of_year", "month"))
        year = 12 // frequency.size if frequency.unit == "month" else round(364 * DAY / frequency.size)
        if year >= 26:
            return cls((), year, (2, 4, 8, 13, 26, 52), 26, ("week_of_year", "day_of_month", "month"))
        return cls((), year, (2, 3, 6, 12, 24), 12, ("month",))


@dataclass(frozen=True)
class Facts:
    """What the features depend on besides the panel; decided by the data of the fit.

    switches    known number columns that are sometimes 0 and sometimes more
    typical     the level of a series without any sale
    """

    horizon: int
    never_negative: bool
    typical: float
    switches: tuple[int, ...]

    @classmethod
    def of(cls, panel: Panel, horizon: int) -> "Facts":
        target = panel.target[_sampled(panel.num_rows)]
        seen = target[~np.isnan(target)]
        chunks = (panel.target[panel.offsets[a] : panel.offsets[b]] for a, b in panel.series_chunks())
        never_negative = not any((values < 0).any() for values in chunks)
        sold = seen[seen > 0] if never_negative else seen
        typical = float(np.median(sold.astype(np.float64))) if sold.size else 0.0
        known = panel.arrays["known_number"][_sampled(panel.num_rows)]
        is_switch = (known >= 0).all(axis=0) & (known == 0).any(axis=0) & (known > 0).any(axis=0)
        return cls(horizon, never_negative, typical, tuple(np.flatnonzero(is_switch)[:MOST_SWITCHES].tolist()))


def _sampled(num_rows: int) -> np.ndarray:
    """Up to a million rows, evenly spaced."""
    return np.arange(0, num_rows, -(-num_rows // 2**20))


@dataclass(frozen=True)
class Origins:
    """Cutoffs of series, as indices in the panel and steps, sorted by series."""

    series: np.ndarray
    cutoff: np.ndarray

    def __len__(self) -> int:
        return len(self.series)

    def take(self, index: Any) -> "Origins":
        return Origins(self.series[index], self.cutoff[index])


@dataclass(frozen=True)
class Scale:
    """How the target is counted at each origin: f(y) − f(level), in logarithms unless demand may be negative."""

    level: np.ndarray
    unit: np.ndarray
    in_logs: bool

    def forward(self, y: np.ndarray) -> np.ndarray:
        level, unit = (x.reshape(-1, *(1,) * (y.ndim - 1)) for x in (self.level, self.unit))
        if not self.in_logs:
            return (y - level) / unit
        return np.log1p(np.maximum(y, 0.0) / unit) - np.log1p(level / unit)

    def backward(self, z: np.ndarray) -> np.ndarray:
        level, unit = self.level[:, None], self.unit[:, None]
        if not self.in_logs:
            return z * unit + level
        return unit * np.expm1(z + np.log1p(level / unit))

    def take(self, index: Any) -> "Scale":
        return Scale(self.level[index], self.unit[index], self.in_logs)
