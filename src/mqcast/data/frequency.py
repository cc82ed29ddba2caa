"""Frequencies: dates ↔ whole steps on a grid.

Times are int64 microseconds since 1970; a step is an int64 that counts periods on the grid. A frequency without
a phase (`"W"`: which weekday?) gets the phase of most rows.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from mqcast.errors import ConfigError, DataError

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND
WEEK = 7 * DAY
WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday

_FIXED = {"us": 1, "s": SECOND, "min": MINUTE, "h": HOUR, "D": DAY, "W": WEEK}
_MONTHLY = {"M": 1, "Q": 3, "Y": 12}
_ALIASES = {
    "S": "s",
    "T": "min",
    "m": "min",
    "H": "h",
    "d": "D",
    "w": "W",
    "b": "B",
    "mo": "M",
    "q": "Q",
    "y": "Y",
    "A": "Y",
    "AS": "YS",
    "AE": "YE",
}
_PATTERN = re.compile(r"^(\d*)([A-Za-z]+)(?:-([A-Z]{3}))?$")


@dataclass(frozen=True)
class Frequency:
    """A regular grid of dates.

    `unit` "fixed": every `size` microseconds. "business": Monday to Friday. "month": every `size` months, on the
    `day` "first" or "last" of the month. `phase` shifts the grid: microseconds, or months; None: not yet known.
    """

    unit: Literal["fixed", "business", "month"]
    size: int
    phase: int | None = None
    day: Literal["first", "last"] | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _PATTERN.match(text.strip())
        if match is None:
            raise _unknown(text)
        count, name, anchor = int(match[1] or 1), _ALIASES.get(match[2], match[2]), match[3]
        if count < 1:
            raise _unknown(text)
        if name == "B" and count == 1 and anchor is None:
            return cls("business", DAY)
        if name in _FIXED and (anchor is None or (name == "W" and count == 1 and anchor in WEEKDAYS)):
            phase = None if anchor is None else (WEEKDAYS.index(anchor) - EPOCH_WEEKDAY) % 7 * DAY
            return cls("fixed", count * _FIXED[name], phase)
        if name[0] in _MONTHLY and name[1:] in ("", "S", "E"):
            months, day = count * _MONTHLY[name[0]], {"": None, "S": "first", "E": "last"}[name[1:]]
            if anchor is None:
                return cls("month", months, 0 if months == 1 else None, day)
            if anchor in MONTHS and name[0] in "QY" and count == 1:
                return cls("month", months, MONTHS.index(anchor) % months, day)
        raise _unknown(text)

    @classmethod
    def infer(cls, times: np.ndarray) -> Self:
        """The frequency of sorted, distinct times."""
        gaps = np.diff(times)
        if gaps.size == 0:
            raise DataError("one date does not show the frequency", "give Schema(freq='D'), 'W', 'h', 'MS' …")
        sizes, counts = np.unique(gaps, return_counts=True)
        common = sizes[counts >= 0.05 * gaps.size]
        if common.size == 0:  # no difference is common: irregular
            common = sizes[counts == counts.max()][:1]
        size = int(np.gcd.reduce(common))
        if size % DAY == 0 and common.min() >= 28 * DAY:
            for day in ("first", "last"):
                steps, on_grid = cls("month", 1, 0, day).steps(times)
                if on_grid.mean() > 0.9:
                    return cls("month", int(np.gcd.reduce(np.diff(steps[on_grid]))), None, day)
        if size == DAY and times.size >= 10 and np.all(weekday(times) < 5):
            return cls("business", DAY)
        return cls("fixed", size)

    def anchored(self, times: np.ndarray, counts: np.ndarray | None = None) -> Self:
        """The same frequency with the phase (and day of the month) of most rows."""
        counts = np.ones(times.size, int) if counts is None else counts
        if self.unit == "month":
            months, first, last = _month_parts(times)
            day = self.day or ("last" if counts[last].sum() > counts[first].sum() else "first")
            phase = _most_common(months % self.size, counts) if self.phase is None else self.phase
            return replace(self, phase=phase, day=day)
        return self if self.phase is not None else replace(self, phase=_most_common(times % self.size, counts))

    def steps(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The step of each time, and whether it is on the grid (if not, the step is a nearby one)."""
        assert self.phase is not None, "anchor the frequency first"
        if self.unit == "fixed":
            return _fixed_steps(times - self.phase, self.size)
        if self.unit == "business":
            days, rest = np.divmod(times, DAY)
            weeks, dow = np.divmod(days + EPOCH_WEEKDAY, 7)
            return weeks * 5 + np.minimum(dow, 4), (dow < 5) & (rest == self.phase)
        months, first, last = _month_parts(times)
        steps, rest = np.divmod(months - self.phase, self.size)
        return steps, (rest == 0) & (first if self.day == "first" else last)

    def floor(self, times: np.ndarray) -> np.ndarray:
        """The last step that is not after each time."""
        steps, _ = self.steps(times)
        return steps - (self.times(steps) > times)

    def times(self, steps: np.ndarray) -> np.ndarray:
        """The time of each step: the inverse of `steps` on the grid."""
        assert self.phase is not None, "anchor the frequency first"
        steps = np.asarray(steps, dtype=np.int64)
        if self.unit == "fixed":
            return steps * self.size + self.phase
        if self.unit == "business":
            weeks, dow = np.divmod(steps, 5)
            return (weeks * 7 + dow - EPOCH_WEEKDAY) * DAY + self.phase
        months = (steps * self.size + self.phase).astype("M8[M]")
        days = months.astype("M8[D]") if self.day == "first" else (months + 1).astype("M8[D]") - 1
        return days.astype("M8[us]").astype(np.int64)

    @property
    def sub_daily(self) -> bool:
        return self.unit == "fixed" and self.size < DAY

    @property
    def stamp(self) -> Literal["start", "end"]:
        """Which end of its period a date stands for, by convention: the last day for weeks and month ends."""
        weekly = self.unit == "fixed" and self.size >= WEEK and self.size % WEEK == 0
        return "end" if weekly or self.day == "last" else "start"

    def __str__(self) -> str:
        """The text that `parse` reads back: 'W-SUN', '15min', 'QS-JAN'."""
        if self.unit == "business":
            return "B"
        if self.unit == "month":
            name, size = next((n, s) for n, s in (("Y", 12), ("Q", 3), ("M", 1)) if self.size % s == 0)
            anchor = f"-{MONTHS[self.phase]}" if self.phase is not None and name != "M" and self.size == size else ""
            return f"{_count(self.size // size)}{name}{ {'first': 'S', 'last': 'E', None: ''}[self.day] }{anchor}"
        name, size = next((n, s) for n, s in reversed(_FIXED.items()) if self.size % s == 0)
        anchor = ""
        if self.size == WEEK and self.phase is not None:
            anchor = f"-{WEEKDAYS[(self.phase // DAY + EPOCH_WEEKDAY) % 7]}"
        return f"{_count(self.size // size)}{name}{anchor}"


def _fixed_steps(times: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """times // size, and whether there is no remainder; runs of consecutive steps are counted, not divided."""
    flat = times.reshape(-1)
    is_jump = np.ones(flat.size, bool)
    np.not_equal(flat[1:] - flat[:-1], size, out=is_jump[1:])
    jumps = np.flatnonzero(is_jump)
    steps = flat[jumps] // size
    lengths = np.diff(jumps, append=flat.size)
    counted = np.repeat(steps - jumps, lengths) + np.arange(flat.size)
    on_grid = np.repeat(steps * size == flat[jumps], lengths)
    return counted.reshape(times.shape), on_grid.reshape(times.shape)


def season_of(frequency: Frequency) -> int:
    """Steps per season, by convention: a day of hours, a week of days, a year of weeks, months or quarters."""
    if frequency.unit == "business":
        return 5
    if frequency.unit == "month":
        return max(1, 12 // frequency.size)
    if frequency.sub_daily:
        return DAY // frequency.size
    return {DAY: 7, WEEK: 52}.get(frequency.size, 1)


def year_of(frequency: Frequency) -> int:
    """Steps after which demand is alike again: those of a year, or of a week if steps are shorter than a day."""
    if frequency.sub_daily:
        return 7 * season_of(frequency)
    if frequency.size == DAY:
        return 52 * season_of(frequency)  # the same day of the week
    return season_of(frequency)


def weekday(times: np.ndarray) -> np.ndarray:
    """0 for Monday."""
    return (times // DAY + EPOCH_WEEKDAY) % 7


def show_time(time: int) -> str:
    """2024-01-07, or 2024-01-07 13:00 when there is a time of day."""
    text = str(np.datetime64(int(time), "us").astype("M8[s]")).replace("T", " ")
    return text.removesuffix(" 00:00:00").removesuffix(":00") if int(time) % DAY else text[:10]


def _count(number: int) -> str:
    return "" if number == 1 else str(number)


def _most_common(values: np.ndarray, counts: np.ndarray) -> int:
    distinct, index = np.unique(values, return_inverse=True)
    return int(distinct[np.bincount(index, counts).argmax()])


def _month_parts(times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Months since 1970-01, and whether each time is midnight of the first, or last, day of its month."""
    stamps = times.astype("M8[us]")
    months = stamps.astype("M8[M]")
    first = stamps == months.astype("M8[us]")
    last = stamps == ((months + 1).astype("M8[D]") - 1).astype("M8[us]")
    return months.astype(np.int64), first, last


def _unknown(text: str) -> ConfigError:
    return ConfigError(
        f"frequency {text!r} is not known; use s, min, h, D, B, W, M, Q or Y, with a count ('15min'), "
        "start or end ('MS', 'ME'), a weekday ('W-WED') or a month ('QS-FEB'); with a count the dates show the weekday"
    )
