"""Exponential smoothing of many series at once: the state after every step, and what follows from it for later steps.

A target is its level and two effects: that of its place in the short cycle (weekday, hour of the week) and that of the
time of year. Effects are ratios to the level, or differences from it if demand may be negative. No state depends on a
later step, or on another series.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mqcast.data.calendar import Calendar
from mqcast.data.panel import Panel
from mqcast.models.histories import Histories, totals, window_mean
from mqcast.models.target_scale import Origins

PACES = (0.1, 0.2, 0.4, 0.7)  # weights of the last step in the levels
YEARLY = ((0.0, 0.0), (0.5, 0.0), (0.9, 0.0), (0.0, 0.9), (0.5, 0.4))  # shares of a series' own effect and of the usual
NUM_CANDIDATES = len(PACES) * len(YEARLY)
NUM_YEARS = 3  # whose own effects are averaged
SLOWEST, CYCLE_PACE = 0.4, 0.1  # of the level that cycles are relative to, in cycles; of their effects, at least
CLOSED = 0.1  # places in the cycle with a smaller effect tell nothing about the level
LARGEST = 20.0  # ratio to the level
MISS_PACE, DRAWN, MOST_UNUSUAL = 0.05, 8, 10.0  # drawn to the typical miss as by so many observations
NUM_SEASONS, MOST_OF_A_YEAR, LARGEST_OF_YEAR = 54, 0.9, 4.0


@dataclass(frozen=True)
class Arithmetic:
    """How effects are taken from targets and put back: as ratios to a level, or as differences from it."""

    ratios: bool

    @property
    def nothing(self) -> float:
        return 1.0 if self.ratios else 0.0

    def effect(self, y: np.ndarray, level: np.ndarray) -> np.ndarray:
        if not self.ratios:
            return y - level
        return np.minimum(np.divide(y, level, out=np.full(np.shape(y), np.nan), where=level > 0), LARGEST)

    def without(self, y: np.ndarray, effect: np.ndarray) -> np.ndarray:
        return y / np.maximum(effect, CLOSED) if self.ratios else y - effect

    def put(self, level: np.ndarray, effect: np.ndarray) -> np.ndarray:
        return level * effect if self.ratios else level + effect

    def part(self, effect: np.ndarray, share: float) -> np.ndarray:
        return effect**share if self.ratios else share * effect


class States:
    """Levels (paces, series, columns), effects of the cycle and usual misses of some series, after each step."""

    def __init__(self, histories: Histories, of_year: np.ndarray | None):
        self.histories, self.arithmetic = histories, Arithmetic(histories.facts.never_negative)
        self.of_year = of_year
        self.cycle = max(histories.spans.cycles, default=1)
        self.year = histories.spans.year
        self._run()

    def _run(self) -> None:
        """Go through the steps once; every array is filled column by column."""
        y, of = self.histories.y, self.arithmetic
        num, width, cycle = *y.shape, self.cycle
        paces = np.array([*PACES, SLOWEST / cycle])[:, None]
        self.levels = np.full((len(PACES), num, width), np.nan)
        self.effects, self.plain = np.full((num, width), of.nothing), np.full((num, width), np.nan)
        self.misses = np.zeros((num, width))
        sums, weights = np.zeros((len(paces), num)), np.zeros((len(paces), num))
        missed, sized, seen_of_place = np.zeros(num), np.zeros(num), np.zeros((num, cycle))
        for t in range(width):
            now, usual = y[:, t], self.effects[:, t - cycle] if t >= cycle else np.full(num, of.nothing)
            level = np.divide(sums, weights, out=np.full(sums.shape, np.nan), where=weights > 0)
            effect, place = of.effect(now, level[-1]), t % cycle
            tells = ~np.isnan(effect) if cycle > 1 else np.zeros(num, bool)
            seen_of_place[:, place] += tells
            gain = np.maximum(CYCLE_PACE, 1 / (seen_of_place[:, place] + 1))
            self.effects[:, t] = np.where(tells, usual + gain * (np.nan_to_num(effect) - usual), usual)
            is_open = ~np.isnan(now) & ((usual >= CLOSED) | (not of.ratios))
            plain = np.where(is_open, of.without(now, usual), np.nan)
            miss, size = np.abs(plain - level[1]), level[1] if of.ratios else 1.0
            known = ~np.isnan(miss)
            missed = np.where(known, (1 - MISS_PACE) * missed + MISS_PACE * miss, missed)
            sized = np.where(known, (1 - MISS_PACE) * sized + MISS_PACE * size, sized)
            sums[:-1] += np.where(is_open, paces[:-1] * (np.nan_to_num(plain) - sums[:-1]), 0.0)
            weights[:-1] += np.where(is_open, paces[:-1] * (1 - weights[:-1]), 0.0)
            sums[-1] += np.where(~np.isnan(now), paces[-1] * (np.nan_to_num(now) - sums[-1]), 0.0)
            weights[-1] += np.where(~np.isnan(now), paces[-1] * (1 - weights[-1]), 0.0)
            self.plain[:, t] = plain
            self.levels[:, :, t] = np.divide(sums, weights, out=np.full(sums.shape, np.nan), where=weights > 0)[:-1]
            self.misses[:, t] = np.divide(missed, sized, out=np.full(num, np.nan), where=sized > 0)

    @cached_property
    def plain_totals(self) -> tuple[np.ndarray, np.ndarray]:
        return totals(np.nan_to_num(self.plain)), totals(~np.isnan(self.plain))

    @cached_property
    def season(self) -> np.ndarray:
        """(series, columns): the month or week of each step."""
        histories = self.histories
        series = np.arange(histories.first, histories.first + histories.shape[0])
        return season_of_year(histories.panel, histories.panel.times_at(series, histories.begin, histories.width))

    @cached_property
    def usual_of_year(self) -> np.ndarray | None:
        """(series, columns): the usual effect of the time of year, learnt from all series."""
        return None if self.of_year is None else self.of_year[self.season]

    @cached_property
    def usual_totals(self) -> tuple[np.ndarray, np.ndarray] | None:
        usual = self.usual_of_year
        return None if usual is None else (totals(usual), totals(np.ones_like(usual)))

    def candidates(self, origins: Origins) -> np.ndarray:
        """(candidates, origins, horizon): forecasts by every pace and every share of the yearly effects."""
        of, (i, t) = self.arithmetic, self.histories.places(origins)
        ahead = np.arange(1, self.histories.facts.horizon + 1)
        back = self.cycle * -(-ahead // self.cycle)
        place = t[:, None] + ahead - back
        cycle = np.where(place >= 0, self.effects[i[:, None], np.maximum(place, 0)], of.nothing)
        found: list[np.ndarray] = []
        for number, pace in enumerate(PACES):
            level = self.levels[number][i, t]
            level = np.where(np.isnan(level), 0.0, level)[:, None]
            own, usual = self._own_year(number, i, t, ahead), self._usual_year(pace, i, t, ahead)
            for own_share, usual_share in YEARLY:
                yearly = of.put(of.part(own, own_share), of.part(usual, usual_share))
                found.append(of.put(of.put(level, yearly), cycle))
        return np.stack(found)

    def usual(self, origins: Origins) -> "Usual":
        i, t = self.histories.places(origins)
        mean = np.nan_to_num(self.histories.mean(i, t, self.histories.spans.level))
        return Usual(self.misses[i, t], self.histories.counts[i, t + 1], mean, self.arithmetic.ratios)

    def _own_year(self, number: int, i: np.ndarray, t: np.ndarray, ahead: np.ndarray) -> np.ndarray:
        """How demand went on from here in earlier years, on average; no effect where none is known."""
        if self.year == 1:
            return np.full((len(t), len(ahead)), self.arithmetic.nothing)
        around, effects = self.year // 52, np.full((NUM_YEARS, len(t), len(ahead)), np.nan)
        for years in range(1, NUM_YEARS + 1):
            then = t - years * self.year
            target = then[:, None] + (ahead - 1) % self.year + 1
            last = np.minimum(target + around, t[:, None])
            rows = np.broadcast_to(i[:, None], last.shape)
            near, _ = window_mean(*self.plain_totals, rows.reshape(-1), last.reshape(-1), 2 * around + 1)
            level = np.where(then >= 0, self.levels[number][i, np.maximum(then, 0)], np.nan)[:, None]
            near, same = near.reshape(last.shape), self.histories.at(self.plain, rows, target)
            near = np.where(np.isnan(same), near, (near + same) / 2)
            effects[years - 1] = self.arithmetic.effect(near, np.broadcast_to(level, near.shape))
        known = ~np.isnan(effects)
        mean = np.nan_to_num(effects).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        return np.where(known.any(axis=0), mean, self.arithmetic.nothing)

    def _usual_year(self, pace: float, i: np.ndarray, t: np.ndarray, ahead: np.ndarray) -> np.ndarray:
        """The usual effect at a target beside that of the steps that the level is a mean of."""
        usual, running = self.usual_of_year, self.usual_totals
        if usual is None or running is None:
            return np.full((len(t), len(ahead)), self.arithmetic.nothing)
        before, _ = window_mean(*running, i, t, max(1, round(2 / pace - 1)))
        return self.arithmetic.effect(usual[i[:, None], t[:, None] + ahead], before[:, None])

    def effects_of_year(self) -> tuple[np.ndarray, np.ndarray]:
        """By the season of the year, the total of the effects relative to the year around each step; their number."""
        season, half, columns = self.season, self.year // 2, np.arange(self.histories.width)
        first, last = np.maximum(columns - half, 0), np.minimum(columns + half, columns[-1])
        sums, counts = self.plain_totals
        count = counts[:, last + 1] - counts[:, first]
        mean = np.divide(sums[:, last + 1] - sums[:, first], count, out=np.zeros(count.shape), where=count > 0)
        effect = self.arithmetic.effect(self.plain, mean)
        kept = ~np.isnan(effect) & (count >= MOST_OF_A_YEAR * self.year)
        effects = np.minimum(effect[kept], LARGEST_OF_YEAR)
        return np.bincount(season[kept], effects, NUM_SEASONS), np.bincount(season[kept], minlength=NUM_SEASONS)


@dataclass(frozen=True)
class Usual:
    """Of each origin: the usual miss, the observations that it is known from, and the recent mean."""

    miss: np.ndarray
    count: np.ndarray
    mean: np.ndarray
    ratios: bool  # misses are shares of the level

    def scale(self, typical: float, forecast: np.ndarray) -> np.ndarray:
        """(origins, horizon): how far targets usually are from forecasts; few misses are drawn to the typical one."""
        miss = np.where(np.isnan(self.miss), typical, self.miss)
        logs = np.log(np.clip(miss, typical / MOST_UNUSUAL, typical * MOST_UNUSUAL))
        miss = np.exp((self.count * logs + DRAWN * np.log(typical)) / (self.count + DRAWN))[:, None]
        if not self.ratios:
            return np.broadcast_to(miss, forecast.shape)
        return miss * np.maximum(np.maximum(forecast, self.mean[:, None] / MOST_UNUSUAL), 1e-9)


def season_of_year(panel: Panel, times: np.ndarray) -> np.ndarray:
    """The month, or else the week, of times."""
    distinct, place = np.unique(times, return_inverse=True)
    name = "month" if panel.axis.frequency.unit == "month" else "week_of_year"
    codes = Calendar(panel.schema.replace(calendar=(name,)), panel.axis, ()).categories(distinct)[..., 0]
    return codes[place].reshape(times.shape)
