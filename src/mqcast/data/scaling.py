"""Causal, invertible transforms of the target.

The target is scaled by a location, a scale and a unit for each creation time t; f is the identity or log1p:

    input at t    x_t = (f(y_t / unit_t) − loc_t) / scale_t
    forecast at t y_{t+h} = unit_t · f⁻¹(loc_t + scale_t · output)

With `by="series"` or `"global"`, loc and scale of a series seen in training are constants, fitted only on training
data. A series not seen in training is scaled by its own past: by its observations up to t, so that no later sale
changes an earlier forecast. `by="past"` scales every series this way, `by="past_mean"` by the mean of |z| up to t, and
`by="recent"` by an exponentially weighted mean and the spread of the surprises z_t − loc_{t−1}: inputs are then the
news of each step, and forecasts are changes from a recent level, even if it drifts. With `spread_half_life` the spread
is recent too: a series that has become calm is no longer measured by its wild years.

Zeros. With `zeros="told_apart"`, a zero before the first sale of a series means that it was not on sale yet: it is
masked like a missing value. A later zero of a series with large sales means that it was closed or not in the
assortment: it is used in training, but changes neither level nor scale. Logarithms are taken in a unit of a tenth of
the level, so that a closed week is not extremely far from other weeks. Zeros of slow movers are demand.

Beyond the past. With zeros told apart, a logarithm continues as a straight line above the largest value so far, its
knee: if a network predicts ten times the usual spread, the forecast is a multiple of that value, not a power of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mqcast.data.covariates import CHUNK_ROWS, positive
from mqcast.data.frequency import show_time
from mqcast.data.on_sale import TargetReader
from mqcast.data.panel import Panel
from mqcast.data.recent import NO_KNEE, decayed_sum, recent_level, shifted
from mqcast.errors import DataError
from mqcast.settings import ScalingConfig

PRIOR_COUNT = {"past": 4, "recent": 26}  # weight, in observations, of the typical spread of all series
MOST_SERIES = 20_000  # sampled for typical values
VALUES_AT_A_TIME = 2**18
MOST_KEPT = 2**22  # rows of a panel whose scales are kept in memory


@dataclass(frozen=True)
class TargetScaler:
    """A fitted transform. `loc` and `scale` are NaN for series without observations in training."""

    config: ScalingConfig
    ids: pa.LargeStringArray
    loc: np.ndarray
    scale: np.ndarray
    default_loc: float
    default_scale: float
    typical_spread: float = 1.0  # median over series of the spread of z; relative to the mean, unless z is a logarithm
    typical_largest: float = 1.0  # median over series of the largest absolute y

    @classmethod
    def fit(cls, panel: Panel, config: ScalingConfig, until: int | None = None) -> "TargetScaler":
        """Fit on observations up to the time `until` (None: all)."""
        ends = panel.row_ends(until)
        if config.log1p:
            _refuse_log_of_negative(panel)
        count, mean, std, mean_size = _moments(panel, ends, config)
        total = max(count.sum(), 1)
        pooled_mean = float((count * mean).sum() / total)
        pooled_std = float(np.sqrt((count * (std**2 + (mean - pooled_mean) ** 2)).sum() / total))
        seen = count > 0
        loc, scale = np.where(seen, mean, np.nan), np.where(seen, positive(std, mean), np.nan)
        default_loc, default_scale, typical = pooled_mean, float(positive(pooled_std, pooled_mean)), 1.0
        if config.by == "global":
            loc, scale = np.full_like(loc, default_loc), np.full_like(scale, default_scale)
        elif config.by == "past_mean":
            default_loc, default_scale = 0.0, float(positive((count * mean_size).sum() / total, 0.0))
            loc, scale = np.full_like(loc, np.nan), np.full_like(scale, np.nan)
        elif config.by == "past":
            spread = scale[seen] if config.log1p else scale[seen] / _size(mean[seen], default_scale)
            typical = float(np.median(spread)) if seen.any() else 1.0
            loc, scale = np.full_like(loc, np.nan), np.full_like(scale, np.nan)
        elif config.by == "recent":
            typical = _typical_surprise(panel, ends, config, default_scale)
            loc, scale = np.full_like(loc, np.nan), np.full_like(scale, np.nan)
        elif config.by == "none":
            loc, scale, default_loc, default_scale = np.zeros_like(loc), np.ones_like(scale), 0.0, 1.0
        largest = _typical_largest(panel, ends)
        return cls(config, panel.ids, loc, scale, default_loc, default_scale, typical, largest)

    def forward(self, y: np.ndarray) -> np.ndarray:
        """f(y) in float64."""
        y = np.asarray(y, np.float64)
        return np.log1p(y) if self.config.log1p else y

    def on(self, panel: Panel) -> "BoundScaler":
        return BoundScaler(self, panel)


@dataclass(frozen=True)
class Scales:
    """(B, T) each: f(y / unit) differs from loc by about scale; above the knee f continues as a straight line."""

    loc: np.ndarray
    scale: np.ndarray
    unit: np.ndarray
    knee: np.ndarray

    def parts(self) -> tuple[np.ndarray, ...]:
        return self.loc, self.scale, self.unit, self.knee

    def between(self, first: int, stop: int) -> "Scales":
        """Those of some of the steps."""
        return Scales(*(part[:, first:stop] for part in self.parts()))


@dataclass(frozen=True)
class BoundScaler:
    """A fitted transform applied to the series of one panel, matched by id."""

    scaler: TargetScaler
    panel: Panel

    @cached_property
    def target(self) -> TargetReader:
        return TargetReader(self.panel, self.scaler.config)

    @cached_property
    def _constants(self) -> tuple[np.ndarray, np.ndarray]:
        """Location and scale of each series of the panel; NaN if they come from its own past."""
        scaler, shape = self.scaler, self.panel.num_series
        if scaler.config.by in ("global", "none"):
            return np.full(shape, scaler.default_loc), np.full(shape, scaler.default_scale)
        if np.isnan(scaler.scale).all():
            return np.full(shape, np.nan), np.full(shape, np.nan)
        index = pc.call_function("index_in", [self.panel.ids], pc.SetLookupOptions(scaler.ids)).fill_null(-1).to_numpy()
        at = np.append(np.arange(len(scaler.loc)), -1)[index]
        return np.append(scaler.loc, np.nan)[at], np.append(scaler.scale, np.nan)[at]

    def at(self, series: np.ndarray, start: np.ndarray, width: int, last: np.ndarray | None = None) -> Scales:
        """(B, width) scales for creation times start … start+width−1, which ignore steps after `last`."""
        loc, scale = (np.repeat(values[series][:, None], width, axis=1) for values in self._constants)
        unit, knee = np.ones(loc.shape), np.full(loc.shape, NO_KNEE)
        steps = start[:, None] + np.arange(width)
        steps = steps if last is None else np.minimum(steps, last[:, None])
        for of in self._at_a_time(series, np.flatnonzero(np.isnan(scale[:, 0]))):
            loc[of], scale[of], unit[of], knee[of] = self._from_own_past(series[of], steps[of])
        return Scales(loc, scale, unit, knee)

    def _at_a_time(self, series: np.ndarray, places: np.ndarray) -> Iterator[np.ndarray]:
        """Some of the places at a time, so that long series do not need much memory."""
        longest = int(np.diff(self.panel.offsets)[series[places]].max(initial=1))
        size = max(1, VALUES_AT_A_TIME // longest)
        for i in range(0, places.size, size):
            yield places[i : i + size]

    def _from_own_past(self, series: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, ...]:
        """Moments of the observations up to each step; those of series that are asked for again are kept."""
        past, kept = self.panel.rows_until(series, steps), self._kept
        if kept is None or not kept.was_asked[series].all():
            if kept is not None:
                kept.was_asked[series] = True
            return self._after_rows(series, past)
        new = np.unique(series[~kept.is_there[series]])
        for of in self._at_a_time(new, np.arange(new.size)):
            kept.add(new[of], self._after_rows(new[of], kept.rows_of(new[of])))
        return kept.at(series, past)

    @cached_property
    def _kept(self) -> "_Kept | None":
        return _Kept(self.panel.offsets) if self.panel.num_rows <= MOST_KEPT else None

    def _after_rows(self, series: np.ndarray, past: np.ndarray) -> tuple[np.ndarray, ...]:
        """Moments of the first rows of each series, by running sums: later values cannot change them.

        past: (B, width) numbers of rows, of which the last is the largest
        """
        scaler, config, shape = self.scaler, self.scaler.config, past.shape
        y, is_row, rows = self.target.until(series, past[:, -1])
        z = scaler.forward(y)
        observed = ~np.isnan(z)

        def sum_of(values: np.ndarray) -> np.ndarray:
            return _at(_running(np.where(observed, values, 0)), past)

        count = sum_of(observed)
        divisor, unit, knee = np.maximum(count, 1), np.ones(shape), np.full(shape, NO_KNEE)
        if config.by == "recent":
            level = recent_level(y, config)
            is_one = ~np.isnan(level.surprise)
            squared = np.where(is_one, level.surprise, 0.0) ** 2
            surprises, number = (_at(_fading(part, config.spread_half_life), past) for part in (squared, is_one))
            size = np.ones(shape) if config.log1p else sum_of(np.abs(z)) / divisor
            scale = self._spread(surprises, number, size)
            loc, unit = _at(shifted(level.loc, np.nan), past), _at(shifted(level.unit, 1.0), past)
            knee = _at(shifted(level.knee, NO_KNEE), past)
        elif config.by == "past_mean":
            loc, size = np.zeros(shape), sum_of(np.abs(z)) / divisor
            return loc, np.where(size > 0, size, scaler.default_scale), unit, knee
        else:
            first = np.take_along_axis(z, observed.argmax(axis=1)[:, None], axis=1) if y.size else np.zeros((len(y), 1))
            centre = np.where(observed.any(axis=1, keepdims=True), first, 0.0)
            total, squares = sum_of(z - centre), sum_of((z - centre) ** 2)
            loc = centre + total / divisor
            if config.by == "past":
                scale = self._spread(np.maximum(squares - total**2 / divisor, 0), count, loc)
            else:
                scale = positive(np.sqrt(np.maximum(squares / divisor - (total / divisor) ** 2, 0)), loc)
        is_known = count > 0
        never_sold = ~is_known & (_at(_running(is_row & ~np.isnan(self.panel.target[rows])), past) > 0)
        loc = np.where(is_known, loc, np.where(never_sold, 0.0, scaler.default_loc))
        return loc, np.where(is_known | never_sold, scale, scaler.default_scale), unit, knee

    def _spread(self, squares: np.ndarray, count: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Root mean square, with PRIOR_COUNT additional observations of the typical spread of a series of this size."""
        scaler = self.scaler
        prior = scaler.typical_spread * (1.0 if scaler.config.log1p else _size(size, scaler.default_scale))
        weight = PRIOR_COUNT[scaler.config.by]
        return np.sqrt((squares + weight * prior**2) / (count + weight))


class _Kept:
    """Location, scale, unit and knee of series after each number of rows, from none to all."""

    def __init__(self, offsets: np.ndarray):
        self.num_rows = np.diff(offsets)
        self.begin = offsets[:-1] + np.arange(len(offsets) - 1)
        self.values = np.empty((4, int(offsets[-1]) + len(offsets) - 1))
        self.was_asked, self.is_there = np.zeros((2, len(offsets) - 1), bool)

    def rows_of(self, series: np.ndarray) -> np.ndarray:
        """(B, width) numbers of rows: 0, 1, 2 … and then all again."""
        rows = self.num_rows[series]
        return np.minimum(np.arange(int(rows.max()) + 1), rows[:, None])

    def add(self, series: np.ndarray, moments: tuple[np.ndarray, ...]) -> None:
        self.values[:, self.begin[series, None] + self.rows_of(series)] = moments
        self.is_there[series] = True

    def at(self, series: np.ndarray, past: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(self.values[:, self.begin[series, None] + past])


def _running(values: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, 2 … values."""
    return shifted(np.cumsum(values, axis=-1, dtype=np.float64), 0.0)


def _at(values: np.ndarray, past: np.ndarray) -> np.ndarray:
    """For each series, what its first 0, 1, 2 … rows give, at some numbers of rows."""
    return values[np.arange(len(values))[:, None], past]


def _fading(values: np.ndarray, half_life: float | None) -> np.ndarray:
    """Sums of the first 0, 1, 2 … values, of which one that is `half_life` rows older counts half; None: all alike."""
    if half_life is None:
        return _running(values)
    return shifted(decayed_sum(values.astype(np.float64), 0.5 ** (1 / half_life)), 0.0)


def _size(mean: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(mean == 0, otherwise, np.abs(mean))


def _typical_surprise(panel: Panel, ends: np.ndarray, config: ScalingConfig, default_scale: float) -> float:
    """The median over series of the root mean square of their surprises, relative to the mean size of z unless z is a
    logarithm."""
    spreads, target = [], TargetReader(panel, config)
    sampled = np.arange(0, panel.num_series, -(-panel.num_series // MOST_SERIES))
    counts = (ends - panel.offsets[:-1])[sampled]
    size = max(1, VALUES_AT_A_TIME // int(counts.max(initial=1)))
    for part in (slice(i, i + size) for i in range(0, len(sampled), size)):
        of_part, _, _ = target.until(sampled[part], counts[part])
        surprises = recent_level(of_part, config).surprise
        for y, surprise, count in zip(of_part, surprises, counts[part].tolist(), strict=True):
            spreads += _of_surprises(y[:count], surprise[:count], config, default_scale)
    return float(np.median(spreads)) if spreads else 1.0


def _of_surprises(y: np.ndarray, surprise: np.ndarray, config: ScalingConfig, default_scale: float) -> list[float]:
    """The root mean square of one series' surprises; none if it has none."""
    if np.isnan(surprise).all():
        return []
    size = np.array(np.nanmean(np.abs(np.log1p(y) if config.log1p else y)))
    spread = positive(np.sqrt(np.nanmean(surprise**2)), size)
    return [float(spread if config.log1p else spread / _size(size, default_scale))]


def _typical_largest(panel: Panel, ends: np.ndarray) -> float:
    """The median over series of the largest absolute y."""
    largest = []
    for first, stop in panel.series_chunks():
        a, b = panel.offsets[first], panel.offsets[stop]
        used = np.arange(a, b) < np.repeat(ends[first:stop], np.diff(panel.offsets[first : stop + 1]))
        size = np.where(used, np.nan_to_num(np.abs(panel.target[a:b]), nan=0.0), 0.0)
        largest.append(np.maximum.reduceat(size, panel.offsets[first:stop] - a))
    sizes = np.concatenate(largest).astype(np.float64)
    return float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else 1.0


def _moments(panel: Panel, ends: np.ndarray, config: ScalingConfig) -> tuple[np.ndarray, ...]:
    """Count, mean, standard deviation and mean absolute value of the observations in the first rows of each series."""
    count, mean, std, size = (np.zeros(panel.num_series) for _ in range(4))
    target = TargetReader(panel, config)
    for first, stop in panel.series_chunks():
        a, b = panel.offsets[first], panel.offsets[stop]
        starts, lengths = panel.offsets[first:stop] - a, np.diff(panel.offsets[first : stop + 1])
        z = target.rows(np.arange(a, b), np.repeat(np.arange(first, stop), lengths))
        z = np.log1p(z) if config.log1p else z
        used = ~np.isnan(z) & (np.arange(a, b) < np.repeat(ends[first:stop], lengths))
        z[~used] = 0
        part = slice(first, stop)
        count[part] = np.add.reduceat(used, starts, dtype=np.float64)
        divisor = np.maximum(count[part], 1)
        mean[part] = np.add.reduceat(z, starts) / divisor
        size[part] = np.add.reduceat(np.abs(z), starts) / divisor
        deviation = np.where(used, z - np.repeat(mean[part], lengths), 0)
        std[part] = np.sqrt(np.add.reduceat(deviation**2, starts) / divisor)
    return count, mean, std, size


def _refuse_log_of_negative(panel: Panel) -> None:
    for start in range(0, panel.num_rows, CHUNK_ROWS):
        bad = np.flatnonzero(panel.target[start : start + CHUNK_ROWS] <= -1)
        if bad.size:
            series, step = panel.place_of(start + int(bad[0]))
            time = int(panel.times_at(np.array([series]), np.array([step]), 1)[0, 0])
            raise DataError(
                "log1p needs values above −1",
                "use scaling without log1p, or correct the value",
                column=panel.schema.target,
                series=panel.ids[series].as_py(),
                time=show_time(time),
            )
