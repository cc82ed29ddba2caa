"""The forecasts of each target, one after another, and the chance that each gives to the quantile announced first."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from mqcast.errors import ConfigError, DataError
from mqcast.evaluation.cdf import gamma_through, linear_cdf
from mqcast.evaluation.tables import Forecasts, crossings, distinct

CASES = {
    "crossing": "forecasts whose quantiles crossed; they were sorted",
    "below_zero": "forecasts with a negative quantile of demand that never is; it was read as 0",
    "at_zero": "forecasts with all mass at 0",
    "half_at_zero": "forecasts with the lower quantile at 0: so much mass there, and an exponential tail",
    "no_spread": "forecasts without spread: all mass at one value",
    "gaps": "leads without a forecast between others; no revision is assumed there",
}
LARGEST_LOG = 300.0
Leads = Literal["auto", "complete", "available"]
Cdf = Literal["gamma", "quantiles"] | Callable[[Any, np.ndarray], Any]


@dataclass(frozen=True, eq=False)
class Trajectories:
    """The forecasts of each target, oldest first: steps 0 … H-1 are at leads H … 1.

    A step without a forecast has that of the step before it, and before the first forecast, the first.
    """

    item: np.ndarray  # (targets,): index into the forecasts' ids
    time: np.ndarray
    actual: np.ndarray
    first: np.ndarray  # the first step with a forecast
    row: np.ndarray  # (targets, steps): which row of the forecasts
    is_new: np.ndarray  # (targets, steps): whether there is a forecast at the step

    def __len__(self) -> int:
        return len(self.item)

    @property
    def horizon(self) -> int:
        return self.row.shape[1]

    @property
    def has_begun(self) -> np.ndarray:
        """(targets, steps): whether the first forecast has been made."""
        return np.arange(self.horizon) >= self.first[:, None]

    def part(self, begin: int, end: int) -> "Trajectories":
        return replace(self, **{part.name: getattr(self, part.name)[begin:end] for part in fields(self)})


def trajectories_of(
    forecasts: Forecasts, actual: np.ndarray, leads: Leads, *, unrealised: bool = False
) -> Trajectories:
    """Targets with an actual (unless `unrealised`) and at least two forecasts.

    leads "complete": those with a forecast at every lead; "available": all, each from its first forecast on; "auto":
    complete where there are enough creation times (2H - 1) to have more than a few of them, else available.
    """
    if leads not in ("auto", "complete", "available"):
        raise ConfigError(f"leads is {leads!r}; give 'auto', 'complete' or 'available'")
    begins, counts = forecasts.begins, np.diff(forecasts.begins, append=forecasts.num_rows)
    horizon = int(forecasts.lead.max())
    if leads == "auto":
        leads = "complete" if len(distinct(forecasts.cutoff)) >= 2 * horizon - 1 else "available"
    keep = (counts >= 2) & (unrealised | ~np.isnan(actual)) & ((counts == horizon) | (leads == "available"))
    if not keep.any():
        have = "a forecast at each of its leads" if leads == "complete" else "two forecasts"
        remedy = "give forecasts of the same dates from several cutoffs"
        remedy += ", or leads='available'" if leads == "complete" else ""
        raise DataError(f"no target has {have}{'' if unrealised else ' and an actual'}", remedy)
    kept = np.flatnonzero(keep[forecasts.trajectory])
    row = np.full((int(keep.sum()), horizon), -1, np.int64)
    place = (np.cumsum(keep) - 1)[forecasts.trajectory[kept]]
    row[place, horizon - forecasts.lead[kept]] = kept
    is_new = row >= 0
    first = is_new.argmax(axis=1)
    row = np.maximum(np.maximum.accumulate(row, axis=1), begins[keep][:, None])
    return Trajectories(forecasts.item[begins][keep], forecasts.time[begins][keep], actual[keep], first, row, is_new)


@dataclass(frozen=True, eq=False)
class Chances:
    """How a forecast's quantiles become the chance of demand up to a value; `cases` counts what is not as it should be.

    `on_log_scale`: demand itself can be negative; the gamma is then fitted to exponentials, which leaves chances as
    they are.
    """

    forecasts: Forecasts
    levels: tuple[float, ...]
    cdf: Cdf
    has_negatives: bool
    frame: Any = None  # for a cdf of the caller's own

    def __post_init__(self):
        columns = {level: self.forecasts.level(level) for level in self.levels}  # raises if one is not there
        assert len(columns) == len(self.levels)
        if callable(self.cdf):
            return
        if self.cdf not in ("gamma", "quantiles"):
            raise ConfigError(f"cdf is {self.cdf!r}; give 'gamma', 'quantiles' or a function of (frame, values)")
        if len(self.forecasts.levels) < 2:
            raise ConfigError(
                "one quantile a forecast does not tell a distribution; give forecasts of two levels or more, or a cdf"
            )
        if self.cdf == "gamma" and self.has_negatives and np.abs(self.forecasts.quantiles).max() > LARGEST_LOG:
            raise ConfigError("demand is negative and no logarithm, so no gamma fits it; use cdf='quantiles'")

    @property
    def gamma_levels(self) -> tuple[int, int]:
        """The two that the gamma goes through: 0.5 and 0.9, or else the outermost of those judged, or of all."""
        have = self.forecasts.levels
        for low, high in ((0.5, 0.9), (min(self.levels), max(self.levels)), (have[0], have[-1])):
            if low < high and low in have and high in have:
                return have.index(low), have.index(high)
        raise AssertionError

    def process(self, part: Trajectories, cases: Counter[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """p (levels, targets, steps and the outcome), the quantiles judged (levels, targets, steps), and the first ones
        (levels, targets), which the outcome is measured against."""
        q = self.forecasts.quantiles[part.row]
        crossed = crossings(q) & part.is_new
        cases["crossing"] += int(crossed.sum())
        goes_on = np.logical_or.accumulate(part.is_new[:, ::-1], axis=1)[:, ::-1]
        cases["gaps"] += int((part.has_begun & goes_on & ~part.is_new).sum())
        if crossed.any():
            q = np.sort(q, axis=-1)
        if not self.has_negatives and (q < 0).any():
            cases["below_zero"] += int(((q < 0).any(axis=-1) & part.is_new).sum())
            q = np.maximum(q, 0)
        judged = np.stack([q[..., self.forecasts.levels.index(level)] for level in self.levels])
        tau = judged[:, :, 0]  # before the first forecast stands the first
        before = self._before(q, part, tau, cases)
        outcome = np.where(np.isnan(part.actual), np.nan, part.actual <= tau)
        return np.concatenate([before, outcome[..., None]], axis=2), judged, tau

    def _before(self, q: np.ndarray, part: Trajectories, tau: np.ndarray, cases: Counter[str]) -> np.ndarray:
        at = np.broadcast_to(tau[..., None], (*tau.shape, part.horizon))
        if callable(self.cdf):
            return np.stack([self._own(part, values) for values in tau])
        if self.cdf == "quantiles":
            return linear_cdf(q, self.forecasts.levels, at, cases, part.is_new, from_zero=not self.has_negatives)
        low, high = self.gamma_levels
        if self.has_negatives:
            q, at = np.exp(q), np.exp(at)
        through = gamma_through(self.forecasts.levels[low], self.forecasts.levels[high])
        return through.cdf(q[..., low], q[..., high], at, cases, part.is_new)

    def _own(self, part: Trajectories, tau: np.ndarray) -> np.ndarray:
        """The caller's own chances: one value a row of the caller's frame, NaN where it is not asked for."""
        assert callable(self.cdf)
        values = np.full(self.forecasts.num_rows, np.nan)
        values[part.row] = tau[:, None]
        found = np.asarray(self.cdf(self.frame, self.forecasts.to_frame(values)), float)
        if found.shape != (self.forecasts.size,):
            raise ConfigError(f"cdf gave shape {found.shape} for {self.forecasts.size} rows; give one chance a row")
        chance = self.forecasts.from_frame(found)[part.row]
        if not ((chance >= -1e-9) & (chance <= 1 + 1e-9)).all():
            raise ConfigError("cdf gave a value that is no probability; give numbers from 0 to 1")
        return chance


def has_negatives(actual: np.ndarray) -> bool:
    return bool(np.nanmin(actual) < 0)


def one_level(levels: float | Sequence[float]) -> tuple[float, ...]:
    """Levels, however they are given."""
    found = (levels,) if isinstance(levels, int | float) else tuple(levels)
    if not found or any(not 0 < level < 1 for level in found) or len(set(found)) < len(found):
        raise ConfigError(f"levels is {levels}; give different numbers between 0 and 1, such as (0.5, 0.9)")
    return tuple(float(level) for level in found)
