"""Histories on a grid, with the level of every series at every step. No cell depends on a later one."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from mqcast.data.panel import Panel
from mqcast.data.values import UNKNOWN
from mqcast.models.likenesses import Likeness, likenesses_of
from mqcast.models.target_scale import Facts, Origins, Scale, Spans

CELLS_AT_A_TIME = 2**20  # series × steps that are in memory
UNIT_SHARE = 0.5  # of the level: below this unit, the logarithm of 1 + y / unit is nearly a straight line


def history_chunks(panel: Panel, origins: Origins, facts: Facts) -> "Iterator[tuple[slice, Histories]]":
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
        y = self.grid(np.asarray(panel.target[a:b]))
        if facts.never_negative:
            is_early = ~np.logical_or.accumulate(np.nan_to_num(y) > 0, axis=1)
            self.num_early = totals((is_early & (y == 0)).astype(np.float64))
            y = np.where(is_early, np.nan, np.maximum(y, 0.0))
        self.y, self.seen = y, ~np.isnan(y)
        self.counts, self.sums = totals(self.seen), totals(np.nan_to_num(y))
        self.scale = self._scales()
        self.ratio = self._ratios()
        ratio = np.nan_to_num(self.ratio)
        self.ratio_sums, self.ratio_squares = totals(ratio), totals(ratio**2)

    # -- the grid ------------------------------------------------------------------------------------------------------

    def grid(self, values: np.ndarray) -> np.ndarray:
        """Values of rows on the grid; NaN where there is no row."""
        grid = np.full((*self.shape, *values.shape[1:]), np.nan)
        grid[self.row, self.column] = values
        return grid

    def _scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Level and unit of every cell; no cell depends on later ones.

        The level is that of steps with sales: promotions, closed days and long closings hardly change it.
        """
        span = self.spans.level
        if not self.facts.never_negative:
            offset = self.y - first_seen(self.y)[:, None]
            sums, squares = totals(np.nan_to_num(offset)), totals(np.nan_to_num(offset) ** 2)
            level, _ = self._window_means(sums, self.counts, span)
            mean, count = self._window_means(sums, self.counts, 8 * span)
            square, _ = self._window_means(squares, self.counts, 8 * span)
            spread = np.sqrt(np.maximum(square - mean**2, 0.0))
            level = np.where(np.isnan(level), np.nan_to_num(mean), level) + np.nan_to_num(first_seen(self.y))[:, None]
            level = np.where(count > 0, level, self.facts.typical)
            return level, np.where(spread > 0, spread, np.maximum(np.abs(level), 1e-9))
        is_sale = np.nan_to_num(self.y) > 0
        self.sale_counts, roots = totals(is_sale), totals(np.sqrt(np.where(is_sale, self.y, 0.0)))
        level, _ = self._window_means(roots, self.sale_counts, span)
        for longer in (4 * span, self.width):
            level = np.where(np.isnan(level), self._window_means(roots, self.sale_counts, longer)[0], level)
        unsold = self.facts.typical / (1 + self.num_early[:, 1:])
        level = np.where(np.isnan(level), unsold, level**2)
        level = np.maximum(level, 1e-9 * max(self.facts.typical, 1e-9))
        return level, UNIT_SHARE * level

    def _ratios(self) -> np.ndarray:
        """Every target on the scale of the step before it; 0 if the series had no level yet."""
        level, unit = (np.concatenate((part[:, :1], part[:, :-1]), axis=1).reshape(-1) for part in self.scale)
        ratio = Scale(level, unit, self.facts.never_negative).forward(self.y.reshape(-1)).reshape(self.shape)
        had_level = (self.sale_counts if self.facts.never_negative else self.counts)[:, :-1] > 0
        return np.where(had_level | ~self.seen, ratio, 0.0)

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
        """(series, steps, known numbers)."""
        return self.grid(self.panel.arrays["known_number"][slice(*self.bounds)].astype(np.float64))

    @cached_property
    def planned_codes(self) -> np.ndarray:
        return self._code_grid("known")

    @cached_property
    def planned_totals(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Running totals of each known number, and of its observations."""
        return [_both_totals(self.planned[..., k]) for k in range(self.planned.shape[-1])]

    @cached_property
    def past_totals(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        grid = self.grid(self.panel.arrays["past_number"][slice(*self.bounds)].astype(np.float64))
        return {name: _both_totals(grid[..., k]) for k, name in enumerate(self.panel.schema.numbers("past"))}

    @cached_property
    def past_codes(self) -> dict[str, np.ndarray]:
        grid = self._code_grid("past")
        return {name: grid[..., k] for k, name in enumerate(self.panel.schema.categories("past"))}

    @cached_property
    def likenesses(self) -> "list[Likeness]":
        return list(likenesses_of(self))

    def _code_grid(self, block: str) -> np.ndarray:
        codes = np.asarray(self.panel.arrays[f"{block}_category"][slice(*self.bounds)])
        grid = np.full((*self.shape, codes.shape[1]), UNKNOWN, np.int32)
        grid[self.row, self.column] = codes
        return grid

    # -- scales and targets of rows ------------------------------------------------------------------------------------

    def scale_at(self, origins: Origins) -> Scale:
        i, t = self.places(origins)
        return Scale(self.scale[0][i, t], self.scale[1][i, t], self.facts.never_negative)

    def targets(self, origins: Origins, ahead: np.ndarray) -> np.ndarray:
        """The target on the scale of its cutoff; NaN if it was not observed, or the series was not yet on sale."""
        i, t = self.places(origins)
        return self.scale_at(origins).forward(self.at(self.y, i, t + ahead))

    def places(self, origins: Origins) -> tuple[np.ndarray, np.ndarray]:
        i = origins.series - self.first
        return i, origins.cutoff - self.begin[i]

    def at(self, grid: np.ndarray, i: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Values of the grid, NaN outside."""
        inside = (column >= 0) & (column < self.width)
        return np.where(inside, grid[i, np.clip(column, 0, self.width - 1)], np.nan)

    def mean(self, i: np.ndarray, last: np.ndarray, length: int) -> np.ndarray:
        """The mean target of so many steps up to the column `last`; NaN before the first."""
        return window_mean(self.sums, self.counts, i, last, length)[0]


def window_mean(
    sums: np.ndarray, counts: np.ndarray, i: np.ndarray, last: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of rows i, the mean of the observations in so many steps up to the columns `last`, and their number."""
    stop, start = np.maximum(last + 1, 0), np.maximum(last + 1 - length, 0)
    count = counts[i, stop] - counts[i, start]
    total = sums[i, stop] - sums[i, start]
    return np.divide(total, count, out=np.full(len(i), np.nan), where=count > 0), count


def totals(values: np.ndarray) -> np.ndarray:
    """Running totals along the steps, from 0: [:, c] is the total before column c."""
    totals = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, dtype=np.float64, out=totals[:, 1:])
    return totals


def _both_totals(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return totals(np.nan_to_num(grid)), totals(~np.isnan(grid))


def first_seen(y: np.ndarray) -> np.ndarray:
    """The first observation of each series; NaN if there is none."""
    return y[np.arange(len(y)), np.argmax(~np.isnan(y), axis=1)]
