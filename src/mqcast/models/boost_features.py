"""Features of boosted trees: what was known at a cutoff about a step after it, relative to the level of the series.

A row is (series, cutoff, horizon). Every feature is a function of the history up to the cutoff, the plan up to the last
step of the horizon, the calendar and the attributes; no row depends on other rows, or on other series.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mqcast.data.calendar import Calendar
from mqcast.data.frequency import DAY, Frequency
from mqcast.data.panel import Panel
from mqcast.data.values import UNKNOWN

CELLS_AT_A_TIME = 2**21  # series × steps that are in memory
UNIT_SHARE = 0.5  # of the level: below this unit, the logarithm of 1 + y / unit is nearly a straight line
FEW, MANY = 4, 16  # of the latest rows like the target's, whose mean is a feature
NEIGHBOURS = (-1, 1, -2, 2)  # steps from the target at which the plan is a feature
MOST_PLANNED = 12  # number columns whose neighbours are features
MOST_SWITCHES = 6  # columns of the plan whose values are compared with the past one by one
MOST_VALUES = 256  # of a category that is a feature
HOLIDAY_REACH = 10  # days from a holiday that are told apart


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


def feature_chunks(panel: Panel, origins: Origins, facts: Facts) -> "Iterator[tuple[slice, Histories]]":
    """The histories of some series at a time, with the origins of those series."""
    for first, stop in _chunks(panel, facts.horizon):
        part = slice(*np.searchsorted(origins.series, (first, stop)))
        if part.start < part.stop:
            yield part, Histories(panel, first, stop, facts)


def _chunks(panel: Panel, horizon: int) -> Iterator[tuple[int, int]]:
    """Ranges of neighbouring series that have about CELLS_AT_A_TIME cells, if they are as long as the longest."""
    lengths, first = panel.last_step - panel.first_step + 2 + horizon, 0
    while first < panel.num_series:
        longest = np.maximum.accumulate(lengths[first : first + CELLS_AT_A_TIME])
        cells = longest * np.arange(1, longest.size + 1)
        stop = first + max(1, int(np.searchsorted(cells, CELLS_AT_A_TIME, side="right")))
        yield first, stop
        first = stop


class Histories:
    """Some neighbouring series on a grid: a row per series, a column per step from the one before its first."""

    def __init__(self, panel: Panel, first: int, stop: int, facts: Facts):
        self.panel, self.first, self.facts = panel, first, facts
        self.spans = Spans.of(panel.axis.frequency)
        a, b = int(panel.offsets[first]), int(panel.offsets[stop])
        lengths = np.diff(panel.offsets[first : stop + 1])
        self.begin = panel.first_step[first:stop] - 1
        self.row = np.repeat(np.arange(stop - first), lengths)
        stored = panel.arrays.get("steps")
        relative = np.arange(b - a) - np.repeat(panel.offsets[first:stop] - a, lengths)
        self.column = 1 + (relative if stored is None else stored[a:b].astype(np.int64))
        self.bounds = a, b
        self.width = int((panel.last_step[first:stop] - self.begin).max()) + 1 + facts.horizon
        self.shape = (stop - first, self.width)
        y = self._grid(np.asarray(panel.target[a:b]))
        if facts.never_negative:
            is_early = ~np.logical_or.accumulate(np.nan_to_num(y) > 0, axis=1)
            self.num_early = _totals((is_early & (y == 0)).astype(np.float64))
            y = np.where(is_early, np.nan, np.maximum(y, 0.0))
        self.y, self.seen = y, ~np.isnan(y)
        self.counts, self.sums = _totals(self.seen), _totals(np.nan_to_num(y))
        self.scale = self._scales()
        before = Scale(*(np.pad(x, ((0, 0), (1, 0)), mode="edge")[:, :-1] for x in self.scale), facts.never_negative)
        ratio = Scale(before.level.reshape(-1), before.unit.reshape(-1), before.in_logs).forward(y.reshape(-1))
        had_level = (self.sale_counts if facts.never_negative else self.counts)[:, :-1] > 0
        self.ratio = np.where(had_level, ratio.reshape(self.shape), np.where(self.seen, 0.0, np.nan))
        ratio = np.nan_to_num(self.ratio)
        self.ratio_sums, self.ratio_squares = _totals(ratio), _totals(ratio**2)

    # -- the grid ------------------------------------------------------------------------------------------------------

    def _grid(self, values: np.ndarray) -> np.ndarray:
        grid = np.full(self.shape, np.nan)
        grid[self.row, self.column] = values
        return grid

    def _scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Level and unit of every cell; no cell depends on later ones.

        The level is that of steps with sales: promotions, closed days and long closings hardly change it.
        """
        span = self.spans.level
        if not self.facts.never_negative:
            offset = self.y - _first_seen(self.y)[:, None]
            sums, squares = _totals(np.nan_to_num(offset)), _totals(np.nan_to_num(offset) ** 2)
            level, _ = self._window_means(sums, self.counts, span)
            mean, count = self._window_means(sums, self.counts, 8 * span)
            square, _ = self._window_means(squares, self.counts, 8 * span)
            spread = np.sqrt(np.maximum(square - mean**2, 0.0))
            level = np.where(np.isnan(level), np.nan_to_num(mean), level) + np.nan_to_num(_first_seen(self.y))[:, None]
            level = np.where(count > 0, level, self.facts.typical)
            return level, np.where(spread > 0, spread, np.maximum(np.abs(level), 1e-9))
        is_sale = np.nan_to_num(self.y) > 0
        self.sale_counts, roots = _totals(is_sale), _totals(np.sqrt(np.where(is_sale, self.y, 0.0)))
        level, _ = self._window_means(roots, self.sale_counts, span)
        for longer in (4 * span, self.width):
            level = np.where(np.isnan(level), self._window_means(roots, self.sale_counts, longer)[0], level)
        unsold = self.facts.typical / (1 + self.num_early[:, 1:])
        level = np.where(np.isnan(level), unsold, level**2)
        level = np.maximum(level, 1e-9 * max(self.facts.typical, 1e-9))
        return level, UNIT_SHARE * level

    def _window_means(self, totals: np.ndarray, counts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """For every cell, the mean of the observations in the last steps up to it, and their number."""
        columns = np.arange(self.width)
        first = np.maximum(columns + 1 - length, 0)
        count = counts[:, 1:] - counts[:, first]
        total = totals[:, 1:] - totals[:, first]
        return np.divide(total, count, out=np.full(self.shape, np.nan), where=count > 0), count

    @cached_property
    def last_sale(self) -> np.ndarray:
        """The column of the last step with a sale up to each cell; -1 if there is none."""
        sold = np.nan_to_num(self.y) != 0
        return np.maximum.accumulate(np.where(sold, np.arange(self.width), -1), axis=1)

    @cached_property
    def planned(self) -> np.ndarray:
        """(series, steps, columns): numbers of the plan, those of the known columns and those of events."""
        known = self.panel.arrays["known_number"]
        grid = np.full((*self.shape, known.shape[1]), np.nan, np.float32)
        grid[self.row, self.column] = known[self.bounds[0] : self.bounds[1]]
        return grid

    @cached_property
    def planned_codes(self) -> np.ndarray:
        known = self.panel.arrays["known_category"]
        grid = np.full((*self.shape, known.shape[1]), UNKNOWN, np.int32)
        grid[self.row, self.column] = known[self.bounds[0] : self.bounds[1]]
        return grid

    # -- scales and targets of rows ------------------------------------------------------------------------------------

    def scale_at(self, origins: Origins) -> Scale:
        i, t = self._places(origins)
        return Scale(self.scale[0][i, t], self.scale[1][i, t], self.facts.never_negative)

    def targets(self, origins: Origins, ahead: np.ndarray) -> np.ndarray:
        """The target on the scale of its cutoff; NaN if it was not observed, or the series was not yet on sale."""
        i, t = self._places(origins)
        return self.scale_at(origins).forward(self._at(self.y, i, t + ahead))

    def _places(self, origins: Origins) -> tuple[np.ndarray, np.ndarray]:
        i = origins.series - self.first
        return i, origins.cutoff - self.begin[i]

    def _at(self, grid: np.ndarray, i: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Values of the grid, NaN outside."""
        inside = (column >= 0) & (column < self.width)
        return np.where(inside, grid[i, np.clip(column, 0, self.width - 1)], np.nan)

    # -- features ------------------------------------------------------------------------------------------------------

    def features(self, origins: Origins, ahead: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of the rows; names of categories begin with `code:`."""
        i, t = self._places(origins)
        u = t + ahead
        scale = self.scale_at(origins)
        times = self.panel.times_at(origins.series, origins.cutoff + ahead, 1)[:, 0]
        columns = {"ahead": ahead.astype(np.float32)}
        columns |= self._recent(i, t, scale)
        columns |= self._same_season(i, t, u, ahead, scale)
        columns |= self._calendar(times)
        columns |= self._plan(i, t, u, times)
        columns |= self._alike(i, t, u, times)
        columns |= self._covariates(i, t, origins)
        return columns

    def _mean(self, i: np.ndarray, last: np.ndarray, length: int) -> np.ndarray:
        """The mean target of the steps up to column `last`."""
        stop, start = last + 1, np.maximum(last + 1 - length, 0)
        count = self.counts[i, stop] - self.counts[i, start]
        total = self.sums[i, stop] - self.sums[i, start]
        return np.divide(total, count, out=np.full(len(i), np.nan), where=count > 0)

    def _recent(self, i: np.ndarray, t: np.ndarray, scale: Scale) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        for back in range(4):
            columns[f"lag {back}"] = scale.forward(self._at(self.y, i, t - back))
        means = {length: scale.forward(self._mean(i, t, length)) for length in self.spans.windows}
        columns |= {f"mean {length}": value for length, value in means.items()}
        for short, long in zip(self.spans.windows[1:], self.spans.windows[3:], strict=False):
            columns[f"trend {short} {long}"] = means[short] - means[long]
        for length in (self.spans.windows[1], self.spans.windows[3], self.spans.level):
            start = np.maximum(t + 1 - length, 0)
            count = self.counts[i, t + 1] - self.counts[i, start]
            some = np.maximum(count, 1)
            mean = (self.ratio_sums[i, t + 1] - self.ratio_sums[i, start]) / some
            square = (self.ratio_squares[i, t + 1] - self.ratio_squares[i, start]) / some
            columns[f"spread {length}"] = np.where(count > 1, np.sqrt(np.maximum(square - mean**2, 0)), np.nan)
            if self.facts.never_negative:
                sales = self.sale_counts[i, t + 1] - self.sale_counts[i, start]
                columns[f"zeros {length}"] = np.where(count > 0, 1 - sales / some, np.nan)
        columns["seen"] = self.counts[i, t + 1]
        last = self.last_sale[i, t]
        columns["since sale"] = np.where(last >= 0, t - last, np.nan)
        columns["level"] = np.log(scale.level) if scale.in_logs else scale.level
        columns["unit"] = np.log(scale.unit)
        return columns

    def _same_season(
        self, i: np.ndarray, t: np.ndarray, u: np.ndarray, ahead: np.ndarray, scale: Scale
    ) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        for cycle in self.spans.cycles:
            same = u - -(-ahead // cycle) * cycle
            values = [scale.forward(self._at(self.y, i, same - cycle * back)) for back in range(4)]
            columns |= {f"cycle {cycle} {back}": value for back, value in enumerate(values)}
            columns[f"median {cycle}"] = _median(np.stack(values, axis=1))
        year = self.spans.year
        if year < 2:
            return columns
        half = max(1, year // 104)
        for years in (1, 2):
            back = -(-ahead // year) * year + (years - 1) * year
            same, then = u - back, t - back
            for shift in (-1, 0, 1):
                at = same + shift
                columns[f"year {years} {shift:+}"] = scale.forward(self._at(self.y, i, np.where(at <= t, at, -1)))
            around = self._mean(i, np.clip(np.minimum(same + half, t), -1, self.width - 1), 2 * half + 1)
            length = self.spans.windows[3]
            before = self._mean(i, np.clip(then, -1, self.width - 1), length)
            enough = then >= 0
            then_scale = Scale(*(part[i, np.clip(then, 0, self.width - 1)] for part in self.scale), scale.in_logs)
            shape = then_scale.forward(around) - then_scale.forward(before)
            columns[f"season {years}"] = np.where(enough, shape, np.nan)
            columns[f"season day {years}"] = np.where(
                enough, then_scale.forward(self._at(self.y, i, same)) - then_scale.forward(before), np.nan
            )
            growth = scale.forward(self._mean(i, t, length)) - scale.forward(before)
            columns[f"growth {years}"] = np.where(enough, growth, np.nan)
        return columns

    def _calendar(self, times: np.ndarray) -> dict[str, np.ndarray]:
        distinct, place = np.unique(times, return_inverse=True)
        return {name: value[place] for name, value in calendar_columns(self.panel, self.spans, distinct).items()}

    def _plan(self, i: np.ndarray, t: np.ndarray, u: np.ndarray, times: np.ndarray) -> dict[str, np.ndarray]:
        """The plan at the target and around it, never beyond the horizon, beside its own past in the series."""
        columns: dict[str, np.ndarray] = {}
        schema, last = self.panel.schema, t + self.facts.horizon
        names = schema.numbers("known")
        for k, name in enumerate(names):
            grid = self.planned[..., k]
            is_known = ~np.isnan(grid)
            sums, counts = _totals(np.nan_to_num(grid).astype(np.float64)), _totals(is_known)
            start = np.maximum(t + 1 - 2 * self.spans.level, 0)
            count = counts[i, t + 1] - counts[i, start]
            mean = np.divide(sums[i, t + 1] - sums[i, start], count, out=np.full(len(i), np.nan), where=count > 0)
            value = self._at(grid, i, u)
            columns[f"plan {name}"] = value
            if k not in self.facts.switches:
                columns[f"plan {name} usual"] = value - mean
                with np.errstate(all="ignore"):
                    columns[f"plan {name} ratio"] = np.where((value > 0) & (mean > 0), np.log(value / mean), np.nan)
            else:
                columns[f"plan {name} usual"] = mean
            if len(names) <= MOST_PLANNED:
                for shift in NEIGHBOURS:
                    at = np.where(u + shift <= last, u + shift, -1)
                    near = self._at(grid, i, at)
                    columns[f"plan {name} {shift:+}"] = near - (0 if k in self.facts.switches else mean)
        for k, name in enumerate(schema.categories("known")):
            inside = (u >= 0) & (u < self.width)
            codes = np.where(inside, self.planned_codes[i, np.clip(u, 0, self.width - 1), k], UNKNOWN)
            columns |= self._code(f"plan {name}", codes, name)
        return columns | self._events(i, u, last, times)

    def _events(self, i: np.ndarray, u: np.ndarray, last: np.ndarray, times: np.ndarray) -> dict[str, np.ndarray]:
        schema, columns = self.panel.schema, {}
        if not schema.events:
            return columns
        for shift in (0, *NEIGHBOURS):
            at = times
            if shift:
                steps = self.begin[i] + u + shift
                at = self.panel.times_at(i + self.first, steps, 1)[:, 0]
            number, category = self.panel.events_at(at)
            is_known = u + shift <= last
            for k, name in enumerate(schema.numbers("events")):
                columns[f"event {name} {shift:+}"] = np.where(is_known, number[:, k], np.nan)
            for k, name in enumerate(schema.categories("events")):
                codes = np.where(is_known, category[:, k], UNKNOWN)
                columns |= self._code(f"event {name} {shift:+}", codes, name)
        return columns

    def _code(self, text: str, codes: np.ndarray, column: str) -> dict[str, np.ndarray]:
        if len(self.panel.vocabularies[column]) > MOST_VALUES:
            return {}
        return {f"code:{text}": np.where(codes == UNKNOWN, np.nan, codes)}

    # -- the past of steps like the target -----------------------------------------------------------------------------

    def _alike(self, i: np.ndarray, t: np.ndarray, u: np.ndarray, times: np.ndarray) -> dict[str, np.ndarray]:
        """Mean ratios to the level on past steps that are like the target: the same plan, weekday, holiday."""
        columns: dict[str, np.ndarray] = {}
        for name, cells, wanted in self._likenesses(i, u, times):
            keys, ratios = self._sorted(cells)
            group = i * (int(cells.max(initial=0)) + 1) + wanted
            start = np.searchsorted(keys, group * (self.width + 1))
            stop = np.searchsorted(keys, group * (self.width + 1) + t, side="right")
            stop = np.maximum(stop, start)
            known, latest = wanted >= 0, stop[:, None] - np.arange(1, MANY + 1)
            is_one = (latest >= start[:, None]) & known[:, None]
            values = np.where(is_one, np.append(ratios, 0.0)[np.where(is_one, latest, -1)], 0.0)
            for number in (FEW, MANY):
                count = is_one[:, :number].sum(axis=1)
                total = np.add.accumulate(values[:, :number], axis=1)[:, -1]
                columns[f"alike {name} {number}"] = np.divide(
                    total, count, out=np.full(len(i), np.nan), where=count > 0
                )
            columns[f"alike {name} count"] = np.where(known, count, np.nan)
        return columns

    def _sorted(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observed cells by series, code and step: keys that rise, and ratios to the level."""
        used = self.seen & (cells >= 0)
        places = np.flatnonzero(used)
        row, column = np.divmod(places, self.width)
        keys = (row * (int(cells.max(initial=0)) + 1) + cells.reshape(-1)[places]) * (self.width + 1) + column
        order = np.argsort(keys, kind="stable")
        return keys[order], self.ratio.reshape(-1)[places[order]]

    def _likenesses(
        self, i: np.ndarray, u: np.ndarray, times: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Name, code of every cell, and code of every target; -1: like nothing."""
        at, inside = np.clip(u, 0, self.width - 1), (u >= 0) & (u < self.width)
        own_times = self.panel.times_at(np.arange(self.first, self.first + self.shape[0]), self.begin, self.width)
        season = self.cell_seasons(own_times), self.cell_seasons(times)
        yield "season", *season
        plans = self._plan_codes()
        joint = None
        for name, cells in plans.items():
            wanted = np.where(inside, cells[i, at], -1)
            if len(plans) > 1:
                yield name, cells, wanted
            joint = cells if joint is None else _joined(joint, cells)
        if joint is not None:
            wanted = np.where(inside, joint[i, at], -1)
            yield "plan", joint, wanted
            size = int(season[0].max()) + 1
            yield "plan and season", joint * size + season[0], np.where(wanted >= 0, wanted * size + season[1], -1)
        for name, of in (("holiday", self._holiday_codes), ("event", self._event_codes)):
            if self.panel.holidays if name == "holiday" else self.panel.schema.events:
                distinct, place = np.unique(np.concatenate((own_times.reshape(-1), times)), return_inverse=True)
                codes = of(distinct)[place]
                yield name, codes[: own_times.size].reshape(own_times.shape), codes[own_times.size :]

    def cell_seasons(self, times: np.ndarray) -> np.ndarray:
        """The place of times in their week, or else in their year."""
        wall = self.panel.axis.wall(times)
        frequency = self.panel.axis.frequency
        if frequency.sub_daily or (frequency.unit != "month" and frequency.size == DAY):
            day = DAY if not frequency.sub_daily else max(frequency.size, DAY // 24)
            return (wall // day + (3 * (DAY // day))) % (7 * (DAY // day))
        names = ("month",) if frequency.unit == "month" else ("week_of_year",)
        return Calendar(self.panel.schema.replace(calendar=names), self.panel.axis, ()).categories(times)[..., 0]

    def _plan_codes(self) -> dict[str, np.ndarray]:
        schema, codes = self.panel.schema, {}
        numbers = schema.numbers("known")
        for k in self.facts.switches:
            if k < len(numbers):
                codes[numbers[k]] = np.where(np.isnan(self.planned[..., k]), 0, 1 + (self.planned[..., k] > 0))
        for k, name in enumerate(schema.categories("known")[: MOST_SWITCHES - len(codes)]):
            codes[name] = self.planned_codes[..., k].astype(np.int64)
        return codes

    def _holiday_codes(self, times: np.ndarray) -> np.ndarray:
        flags = self.panel.calendar.flags(times)
        return np.where(flags.any(axis=1), np.argmax(flags, axis=1), -1)

    def _event_codes(self, times: np.ndarray) -> np.ndarray:
        number, category = self.panel.events_at(times)
        codes = np.concatenate((number > 0, category), axis=1)
        _, place = np.unique(codes, axis=0, return_inverse=True)
        return np.where(codes.any(axis=1), place.reshape(-1), -1)

    # -- covariates ----------------------------------------------------------------------------------------------------

    def _covariates(self, i: np.ndarray, t: np.ndarray, origins: Origins) -> dict[str, np.ndarray]:
        schema, arrays, columns = self.panel.schema, self.panel.arrays, {}
        rows = slice(*self.bounds)
        for k, name in enumerate(schema.numbers("past")):
            grid = self._grid(arrays["past_number"][rows][:, k])
            sums, counts = _totals(np.nan_to_num(grid)), _totals(~np.isnan(grid))
            for length in (1, self.spans.windows[1], self.spans.level):
                start = np.maximum(t + 1 - length, 0)
                count = counts[i, t + 1] - counts[i, start]
                total = sums[i, t + 1] - sums[i, start]
                columns[f"past {name} {length}"] = np.divide(total, count, out=np.full(len(i), np.nan), where=count > 0)
            for length in (1, self.spans.windows[1]):
                columns[f"past {name} change {length}"] = (
                    columns[f"past {name} {length}"] - columns[f"past {name} {self.spans.level}"]
                )
        for k, name in enumerate(schema.categories("past")):
            grid = self._grid(arrays["past_category"][rows][:, k])
            columns |= self._code(f"past {name}", np.nan_to_num(grid[i, t], nan=UNKNOWN), name)
        for k, name in enumerate(schema.numbers("static")):
            columns[f"static {name}"] = arrays["static_number"][origins.series, k]
        for k, name in enumerate(schema.categories("static")):
            columns |= self._code(f"static {name}", arrays["static_category"][origins.series, k], name)
        return columns


def calendar_columns(panel: Panel, spans: Spans, times: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers of the calendar at distinct times, and the days from the nearest date of each holiday."""
    calendar = Calendar(panel.schema.replace(calendar=spans.calendar), panel.axis, panel.holidays)
    codes = calendar.categories(times)
    columns = {f"calendar {name}": codes[:, k] for k, name in enumerate(calendar.features)}
    first, last = calendar.period_days(times)
    if panel.axis.frequency.unit == "month":
        columns["days"] = last - first + 1
        columns["weekends"] = sum(((last + 4 - d) // 7 - (first + 3 - d) // 7) for d in (5, 6))
    if not panel.axis.frequency.sub_daily and panel.axis.frequency.unit != "month":
        stamps = first.astype("M8[D]")
        columns["days to month's end"] = ((stamps.astype("M8[M]") + 1).astype("M8[D]") - stamps).astype(np.int64)
    nearest: list[np.ndarray] = []
    start, stop = int(first.min()) - HOLIDAY_REACH, int(last.max()) + HOLIDAY_REACH + 1
    for (region, name), days in zip(panel.holidays, calendar.holiday_days(start, stop), strict=True):
        columns[f"holiday {region} {name}"] = _from_nearest(days, first, last)
        nearest.append(days)
    if nearest:
        days = np.unique(np.concatenate(nearest))
        columns["next holiday"] = _distance(days, last, 1)
        columns["last holiday"] = _distance(days, first, -1)
        columns["holidays"] = np.searchsorted(days, last, side="right") - np.searchsorted(days, first)
    return columns


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


def _totals(values: np.ndarray) -> np.ndarray:
    """Running totals along the steps, from 0: [:, c] is the total before column c."""
    totals = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, dtype=np.float64, out=totals[:, 1:])
    return totals


def _first_seen(y: np.ndarray) -> np.ndarray:
    """The first observation of each series; NaN if there is none."""
    return y[np.arange(len(y)), np.argmax(~np.isnan(y), axis=1)]


def _median(values: np.ndarray) -> np.ndarray:
    """The (lower) median of each row's numbers; NaN if there are none."""
    ordered, count = np.sort(values, axis=1), (~np.isnan(values)).sum(axis=1)
    return ordered[np.arange(len(values)), np.maximum(count - 1, 0) // 2]


def _joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """One code for pairs of codes."""
    return one * (int(other.max(initial=0)) + 1) + other
