"""Causal, invertible transforms of the target; covariates as training may know them.

The target z = f(y), f the identity or log1p, is brought to scale by a location and a scale for each creation time t:

    input at t    x_t = (z_t − loc_t) / scale_t
    forecast at t y_{t+h} = f⁻¹(loc_t + scale_t · output)

For a series seen in training loc and scale are constants (`by="series"` or `"global"`), fitted only on what training
may see. A series unseen in training has those of its own past: of its observations up to t, so that no later sale
changes an earlier forecast. `by="past"` scales every series this way, `by="past_mean"` by the mean of |z| up to t, and
`by="recent"` by an exponentially weighted mean and the spread of the surprises z_t − loc_{t−1}: inputs are then what
was new in each step, and forecasts are changes from a recent level, wherever it has wandered.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.signal import lfilter

from mqcast.config import ScalingConfig
from mqcast.data.frequency import show_time
from mqcast.data.panel import Panel
from mqcast.data.schema import Role
from mqcast.data.values import UNKNOWN
from mqcast.errors import DataError

RELATIVE_FLOOR = 1e-6  # a spread below this share of the mean is rounding, not variation
CHUNK_ROWS = 2**20
PRIOR_COUNT = {"past": 4, "recent": 26}  # observations of its own past that outweigh the spread typical of all series


@dataclass(frozen=True)
class TargetScaler:
    """A fitted transform. `loc` and `scale` are NaN for series of which training saw nothing."""

    config: ScalingConfig
    ids: pa.LargeStringArray
    loc: np.ndarray
    scale: np.ndarray
    default_loc: float
    default_scale: float
    typical_spread: float = 1.0  # median over series of the spread of z; relative to the mean, unless z is a logarithm

    @classmethod
    def fit(cls, panel: Panel, config: ScalingConfig, until: int | None = None) -> "TargetScaler":
        """Fit on observations not after the time `until` (None: all)."""
        ends = panel.row_ends(until)
        if config.log1p:
            _refuse_log_of_negative(panel)
        count, mean, std, mean_size = _moments(panel, ends, config.log1p)
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
        return cls(config, panel.ids, loc, scale, default_loc, default_scale, typical)

    def forward(self, y: np.ndarray) -> np.ndarray:
        """z = f(y) in float64."""
        y = np.asarray(y, np.float64)
        return np.log1p(y) if self.config.log1p else y

    def inverse(self, z: np.ndarray) -> np.ndarray:
        """y = f⁻¹(z)."""
        return np.expm1(z) if self.config.log1p else np.asarray(z, np.float64)

    def on(self, panel: Panel) -> "BoundScaler":
        return BoundScaler(self, panel)


@dataclass(frozen=True)
class BoundScaler:
    """A fitted transform applied to the series of one panel, matched by id."""

    scaler: TargetScaler
    panel: Panel

    @cached_property
    def _constants(self) -> tuple[np.ndarray, np.ndarray]:
        """Location and scale of each of the panel's series; NaN where they come from its own past."""
        scaler = self.scaler
        if scaler.config.by in ("global", "none"):
            shape = self.panel.num_series
            return np.full(shape, scaler.default_loc), np.full(shape, scaler.default_scale)
        found = pc.call_function("index_in", [self.panel.ids], pc.SetLookupOptions(scaler.ids)).fill_null(-1).to_numpy()
        at = np.append(np.arange(len(scaler.loc)), -1)[found]
        return np.append(scaler.loc, np.nan)[at], np.append(scaler.scale, np.nan)[at]

    def at(
        self, series: np.ndarray, start: np.ndarray, width: int, last: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(B, width) location and scale for creation times start … start+width−1, blind to steps after `last`."""
        loc, scale = (np.repeat(values[series][:, None], width, axis=1) for values in self._constants)
        for i in np.flatnonzero(np.isnan(scale[:, 0])):
            steps = np.arange(start[i], start[i] + width)
            loc[i], scale[i] = self._from_own_past(
                int(series[i]), steps if last is None else np.minimum(steps, last[i])
            )
        return loc, scale

    def _from_own_past(self, series: int, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Moments of the observations up to each step, by running sums: what comes later cannot change them."""
        scaler, panel = self.scaler, self.panel
        first, past = panel.offsets[series], panel.rows_until(series, steps)
        z = scaler.forward(panel.target[first : first + int(past[-1])])
        observed = ~np.isnan(z)
        centre = z[observed][0] if observed.any() else 0.0
        sums = [observed, np.where(observed, z - centre, 0), np.where(observed, (z - centre) ** 2, 0)]
        sums.append(np.where(observed, np.abs(z), 0))
        running = [np.concatenate(([0.0], np.cumsum(part, dtype=np.float64))) for part in sums]
        count, total, squares, sizes = (part[past] for part in running)
        known = count > 0
        divisor = np.maximum(count, 1)
        if scaler.config.by == "past_mean":
            size = sizes / divisor
            return np.zeros(steps.size), np.where(size > 0, size, scaler.default_scale)
        mean = centre + total / divisor
        if scaler.config.by == "past":
            scale = self._spread(np.maximum(squares - total**2 / divisor, 0), count, mean)
            return np.where(known, mean, scaler.default_loc), np.where(known, scale, scaler.default_scale)
        if scaler.config.by == "recent":
            level = recent_level(z, scaler.config.half_life)
            surprise = z[1:] - level[:-1]
            is_one = ~np.isnan(surprise)
            sums = (is_one, np.where(is_one, surprise, 0) ** 2)
            number, surprises = (np.concatenate(([0.0, 0.0], np.cumsum(part, dtype=np.float64)))[past] for part in sums)
            scale = self._spread(surprises, number, sizes / divisor)
            level = np.append(np.nan, level)[past]
            return np.where(known, level, scaler.default_loc), np.where(known, scale, scaler.default_scale)
        std = np.sqrt(np.maximum(squares / divisor - (total / divisor) ** 2, 0))
        loc = np.where(known, mean, scaler.default_loc)
        return loc, np.where(known, positive(std, mean), scaler.default_scale)

    def _spread(self, squares: np.ndarray, count: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Root mean square, as if PRIOR_COUNT observations more had the typical spread of a series of this size."""
        scaler = self.scaler
        prior = scaler.typical_spread * (1.0 if scaler.config.log1p else _size(size, scaler.default_scale))
        weight = PRIOR_COUNT[scaler.config.by]
        return np.sqrt((squares + weight * prior**2) / (count + weight))


@dataclass(frozen=True)
class NumberScaler:
    """Standard scaling of numeric covariates, by block; flags stay 0 and 1, missing values become 0, the mean."""

    loc: dict[str, np.ndarray]
    scale: dict[str, np.ndarray]

    @classmethod
    def fit(cls, panel: Panel, until: int | None = None) -> "NumberScaler":
        loc, scale = {}, {}
        for role, (block, is_used) in _training_parts(panel, until).items():
            mean, std = _column_moments(panel.arrays[f"{block}_number"], is_used)
            is_flag = np.array([panel.schema.kinds[name] == "flag" for name in panel.schema.numbers(role)], bool)
            loc[block], scale[block] = np.where(is_flag, 0.0, mean), np.where(is_flag, 1.0, positive(std, mean))
        return cls(loc, scale)

    def forward(self, block: str, values: np.ndarray) -> np.ndarray:
        """float32, with 0 where there is no value."""
        scaled = (values - self.loc[block]) / self.scale[block]
        return np.nan_to_num(scaled, nan=0.0, posinf=0.0, neginf=0.0).astype(np.float32)


@dataclass(frozen=True)
class CategoryFilter:
    """Codes of categories that training never saw become `UNKNOWN`, by block: a code without training is noise."""

    lookup: dict[str, list[np.ndarray]]

    @classmethod
    def fit(cls, panel: Panel, until: int | None = None) -> "CategoryFilter":
        lookup = {}
        for role, (block, is_used) in _training_parts(panel, until).items():
            sizes = [len(panel.vocabularies[name]) + 1 for name in panel.schema.categories(role)]
            seen = [np.full(size, until is None) for size in sizes]
            if until is not None:
                for rows, used in _chunks(panel.arrays[f"{block}_category"], is_used):
                    for column, is_seen in enumerate(seen):
                        is_seen[rows[used, column]] = True
            lookup[block] = [np.where(is_seen, np.arange(is_seen.size), UNKNOWN) for is_seen in seen]
        return cls(lookup)

    def forward(self, block: str, codes: np.ndarray) -> np.ndarray:
        columns = [lookup[codes[..., i]] for i, lookup in enumerate(self.lookup[block])]
        return np.stack(columns, axis=-1) if columns else codes.astype(np.int64)


def positive(spread, centre) -> np.ndarray:
    """`spread` where it is one; else the size of the centre; else 1."""
    size = np.abs(centre)
    return np.where(spread > RELATIVE_FLOOR * size, spread, np.where(size > 0, size, 1.0))


def _size(mean: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(mean == 0, otherwise, np.abs(mean))


def recent_level(z: np.ndarray, half_life: float) -> np.ndarray:
    """The mean of the observations up to each row, those `half_life` rows older weighing half; NaN before any."""
    keep = 0.5 ** (1 / half_life)
    observed = ~np.isnan(z)
    total, weight = (
        lfilter([1.0], [1.0, -keep], part) for part in (np.where(observed, z, 0.0), observed.astype(float))
    )
    return np.divide(total, weight, out=np.full(len(z), np.nan), where=np.cumsum(observed) > 0)


def _typical_surprise(panel: Panel, ends: np.ndarray, config: ScalingConfig, default_scale: float) -> float:
    """The median over series of the root mean square of z_t − loc_{t−1}; relative to the size of z, unless it is a
    logarithm."""
    found = []
    for first, end in zip(panel.offsets[:-1], ends, strict=True):
        z = panel.target[first:end].astype(np.float64)
        z = np.log1p(z) if config.log1p else z
        surprise = z[1:] - recent_level(z, config.half_life)[:-1]
        if not np.isnan(surprise).all():
            size = np.array(np.nanmean(np.abs(z)))
            spread = positive(np.sqrt(np.nanmean(surprise**2)), size)
            found.append(float(spread if config.log1p else spread / _size(size, default_scale)))
    return float(np.median(found)) if found else 1.0


def _moments(panel: Panel, ends: np.ndarray, log1p: bool) -> tuple[np.ndarray, ...]:
    """Count, mean, standard deviation and mean size of each series' observations in its first rows."""
    count, mean, std, size = (np.zeros(panel.num_series) for _ in range(4))
    for first, stop in panel.series_chunks():
        a, b = panel.offsets[first], panel.offsets[stop]
        starts, lengths = panel.offsets[first:stop] - a, np.diff(panel.offsets[first : stop + 1])
        z = panel.target[a:b].astype(np.float64)
        z = np.log1p(z) if log1p else z
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


def _training_parts(panel: Panel, until: int | None) -> dict[Role, tuple[str, Callable[[int, int], np.ndarray]]]:
    """For each role the block of arrays, and which of its rows a … b training may see."""
    ends, times = panel.row_ends(until), panel.arrays["event_times"]
    begun = ends > panel.offsets[:-1]
    known_events = np.ones(len(times), bool) if until is None else times <= until

    def early(a: int, b: int) -> np.ndarray:
        if until is None:
            return np.ones(b - a, bool)
        rows = np.arange(a, b)
        return rows < ends[np.searchsorted(panel.offsets, rows, side="right") - 1]

    return {
        "static": ("static", lambda a, b: begun[a:b]),
        "past": ("past", early),
        "known": ("known", early),
        "events": ("event", lambda a, b: known_events[a:b]),
    }


def _chunks(values: np.ndarray, is_used: Callable[[int, int], np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of a block, a few at a time, and which of them are used."""
    size = max(1, CHUNK_ROWS * 4 // max(values.shape[1], 1))
    for start in range(0, len(values) if values.shape[1] else 0, size):
        rows = values[start : start + size]
        yield rows, is_used(start, start + len(rows))


def _column_moments(values: np.ndarray, is_used: Callable[[int, int], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column over the used rows, without overflow."""
    count, total, squares = (np.zeros(values.shape[1]) for _ in range(3))
    for rows, used in _chunks(values, is_used):
        part = rows[used].astype(np.float64)
        count += (~np.isnan(part)).sum(axis=0)
        total += np.nansum(part, axis=0)
    mean = total / np.maximum(count, 1)
    for rows, used in _chunks(values, is_used):
        squares += np.nansum((rows[used].astype(np.float64) - mean) ** 2, axis=0)
    return mean, np.sqrt(squares / np.maximum(count, 1))


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
