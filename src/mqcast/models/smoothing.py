"""Exponential smoothing as a model: each series by its own level, weekday and time of year, blended as past errors say.

It learns little from other series, and so needs little history: how the candidates of `smoothing_states` are weighted,
the usual course of a year, and how far targets fall from forecasts. It uses no other column than the target.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mqcast.artifact import ArtifactFolder
from mqcast.data.panel import Panel
from mqcast.data.views import known_at
from mqcast.data.windows import as_time
from mqcast.errors import ArtifactError, ConfigError, DataError
from mqcast.models.blend import Judged, best_weights
from mqcast.models.boost import forecast_origins, typical_largest
from mqcast.models.boost_training import horizon_groups
from mqcast.models.histories import Histories, history_chunks
from mqcast.models.protocol import TrainOptions
from mqcast.models.smoothing_states import NUM_CANDIDATES, NUM_SEASONS, States, Usual
from mqcast.models.target_scale import Facts, Origins, Spans

FORMAT, FORMAT_VERSION, FACTS = "mqcast-smoothing", 1, "smoothing.json"
MOST_CUTOFFS, MOST_VALUES = 40, 400_000  # that the weights are learnt from; forecasts of each candidate
LEAST_SEEN = 3  # observations before a cutoff that is learnt from
LEAST_ERRORS = 30  # that give the quantiles of a step ahead
LEAST_SCALE = 1e-3  # of the losses of a series, as a share of their mean


@dataclass(frozen=True)
class FittedSmoothing:
    """What is learnt from all series.

    of_year   the usual effect of each month or week, if a year is known
    weights   (groups of horizons, candidates)
    typical   the usual miss of a series
    errors    (horizon, levels): quantiles of the errors, in multiples of what is usual for a series
    """

    facts: Facts
    quantiles: tuple[float, ...]
    typical_largest: float
    of_year: np.ndarray | None
    weights: np.ndarray
    typical: float
    errors: np.ndarray
    context: int | None = None

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        return forecast_origins(
            panel, self.facts, self.quantiles, self.typical_largest, self._values_in, first=first, last=last
        )

    def _values_in(self, histories: Histories) -> Callable[[Origins], np.ndarray]:
        return partial(self._values, States(histories, self.of_year))

    def _values(self, states: States, origins: Origins) -> np.ndarray:
        """(origins, horizon, levels)."""
        point = _blended(states.candidates(origins), self.weights)
        scale = states.usual(origins).scale(self.typical, point)
        return np.sort(point[..., None] + scale[..., None] * self.errors, axis=-1)

    def files(self) -> dict[str, bytes]:
        learnt = {"of_year": self.of_year, "weights": self.weights, "errors": self.errors}
        described = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "facts": asdict(self.facts),
            "quantiles": self.quantiles,
            "typical_largest": self.typical_largest,
            "typical": self.typical,
        } | {name: None if array is None else array.tolist() for name, array in learnt.items()}
        return {FACTS: json.dumps(described, indent=1).encode()}


class Smoothing:
    """Exponential smoothing under the name `smoothing`."""

    def fit(self, panel: Panel, options: TrainOptions) -> FittedSmoothing:
        if options.start_from is not None:
            raise ConfigError("smoothing cannot start from another forecaster; fit it without start_from")
        known = panel if options.until is None else known_at(panel, as_time(options.until, panel.axis))
        known.require_verified()
        facts = Facts.of(known, options.horizon)
        groups, levels = len(horizon_groups(options.horizon)), options.quantiles
        of_year = _of_year(known, facts)
        equal = np.full((groups, NUM_CANDIDATES), 1 / NUM_CANDIDATES)
        fitted = FittedSmoothing(
            facts, levels, typical_largest(known), of_year, equal, 1.0, np.zeros((options.horizon, len(levels)))
        )
        return _with_errors(fitted, known)

    def load(self, folder: Path, options: TrainOptions) -> FittedSmoothing:
        files = ArtifactFolder(folder, "fit the model again")
        try:
            described = json.loads(files.read_verified(FACTS))
            if (described["format"], described["version"]) != (FORMAT, FORMAT_VERSION):
                raise ArtifactError(f"{folder / FACTS} was written by another version of mqcast; fit the model again")
            facts = Facts(**described["facts"])
            of_year = described["of_year"]
            fitted = FittedSmoothing(
                facts,
                tuple(described["quantiles"]),
                float(described["typical_largest"]),
                None if of_year is None else np.array(of_year, float),
                np.array(described["weights"], float),
                float(described["typical"]),
                np.array(described["errors"], float),
            )
            groups, shape = len(horizon_groups(facts.horizon)), (facts.horizon, len(fitted.quantiles))
            if of_year is not None and len(of_year) != NUM_SEASONS:
                raise ValueError("seasons of another number")
            if fitted.weights.shape != (groups, NUM_CANDIDATES) or fitted.errors.shape != shape:
                raise ValueError("weights or errors of another shape")
        except ArtifactError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise files.damaged(FACTS, error) from None
        return fitted


def _of_year(panel: Panel, facts: Facts) -> np.ndarray | None:
    """The usual effect of each month or week; None if not all of them were seen in the middle of a year."""
    if Spans.of(panel.axis.frequency).year == 1 or not facts.never_negative:
        return None
    total, count = np.zeros(NUM_SEASONS), np.zeros(NUM_SEASONS)
    every = Origins(np.arange(panel.num_series), panel.last_observed)
    for _, histories in history_chunks(panel, every, facts):
        sums, counts = States(histories, None).effects_of_year()
        total, count = total + sums, count + counts
    seen = count > 0
    is_whole = seen.sum() >= (12 if panel.axis.frequency.unit == "month" else 52)
    return np.where(seen, total / np.maximum(count, 1), 1.0) if is_whole else None


def _with_errors(fitted: FittedSmoothing, panel: Panel) -> FittedSmoothing:
    """Learn weights and errors from forecasts of the last cutoffs."""
    horizon = fitted.facts.horizon
    origins = _past_origins(panel, horizon)
    if not len(origins):
        raise DataError("no series has more than 3 steps to learn from", "give more history, or fit seasonal-naive")
    candidates = np.empty((NUM_CANDIDATES, len(origins), horizon))
    y, parts = np.empty(candidates.shape[1:]), list[tuple[slice, Usual]]()
    for part, histories in history_chunks(panel, origins, fitted.facts):
        some, states = origins.take(part), States(histories, fitted.of_year)
        i, t = (values[:, None] for values in histories.places(some))
        candidates[:, part] = states.candidates(some)
        has_level = histories.counts[i, t + 1] >= LEAST_SEEN
        y[part] = np.where(has_level, histories.at(histories.y, i, t + np.arange(1, horizon + 1)), np.nan)
        parts.append((part, states.usual(some)))
    weights = _weights(candidates, y, origins)
    misses = np.concatenate([usual.miss[usual.count >= LEAST_SEEN] for _, usual in parts])
    typical = float(np.median(misses[misses > 0])) if (misses > 0).any() else fitted.typical
    errors = y - (point := _blended(candidates, weights))
    for part, usual in parts:
        errors[part] /= usual.scale(typical, point[part])
    return replace(fitted, weights=weights, typical=typical, errors=_quantiles(errors, fitted.quantiles))


def _past_origins(panel: Panel, horizon: int) -> Origins:
    """The last cutoffs of each series, up to a year or two horizons, at equal distances; of many series, some."""
    reach = max(2 * horizon, Spans.of(panel.axis.frequency).year, 26)
    begun = np.maximum(panel.first_step + 2, panel.last_observed - reach)
    count = np.maximum(panel.last_observed - begun, 0)
    each = max(1, min(MOST_CUTOFFS, int(count.max(initial=1))))
    num_series = max(1, MOST_VALUES // (horizon * each))
    series = np.unique(np.linspace(0, panel.num_series - 1, min(num_series, panel.num_series)).astype(int))
    series = series[count[series] > 0]
    share = (np.arange(each) + 0.5) / each
    cutoff = begun[series, None] + (share * count[series, None]).astype(np.int64)
    pairs = np.unique(np.stack((np.repeat(series, each), cutoff.reshape(-1)), axis=1), axis=0)
    return Origins(pairs[:, 0], pairs[:, 1])


def _weights(candidates: np.ndarray, y: np.ndarray, origins: Origins) -> np.ndarray:
    """(groups, candidates): those with the lowest absolute errors at the last cutoffs; if these are few, near equal."""
    names, horizon = tuple(map(str, range(len(candidates)))), y.shape[1]
    num_dates = 1 + len(np.unique(origins.cutoff)) / horizon
    loss = np.nan_to_num(np.abs(candidates - y).mean(axis=0))
    of_series = np.bincount(origins.series, loss.mean(axis=1)) / np.maximum(np.bincount(origins.series), 1)
    least = LEAST_SCALE * of_series.mean() or 1.0
    row_weight = np.repeat(1 / np.maximum(of_series, least)[origins.series], horizon).reshape(y.shape)
    found = np.full((len(horizon_groups(horizon)), len(candidates)), 1 / len(candidates))
    for group, (first, last) in enumerate(horizon_groups(horizon)):
        kept = ~np.isnan(y)
        kept[:, : first - 1], kept[:, last:] = False, False
        if kept.any():
            values = np.ascontiguousarray(candidates[:, kept].T[None])
            found[group] = best_weights(Judged(names, (0.5,), values, y[kept], row_weight[kept], num_dates))[0]
    return found


def _blended(candidates: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(origins, horizon): each group of horizons with its own weights; no row depends on how many there are."""
    lengths = [last - first + 1 for first, last in horizon_groups(candidates.shape[-1])]
    total = np.zeros(candidates.shape[1:])
    for candidate, weight in zip(candidates, np.repeat(weights, lengths, axis=0).T, strict=True):
        total += weight * candidate
    return total


def _quantiles(errors: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """(horizon, levels): of the errors of each step ahead and its neighbours."""
    horizon = errors.shape[1]
    around, every = max(1, horizon // 6), errors[~np.isnan(errors)]
    found = np.zeros((horizon, len(levels)))
    for k in range(horizon):
        near = errors[:, max(0, k - around) : k + around + 1]
        near = near[~np.isnan(near)]
        near = near if near.size >= LEAST_ERRORS else every
        if near.size:
            found[k] = np.quantile(near, levels)
    return found
