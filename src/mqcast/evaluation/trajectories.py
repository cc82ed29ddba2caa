"""The forecasts of each target, one after another, and the chance that each gives to the quantile announced first."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from mqcast.errors import ConfigError, DataError
from mqcast.evaluation.cdf import gamma_through, linear_cdf
from mqcast.evaluation.columns import distinct, one_of
from mqcast.evaluation.tables import ForecastTable, crossings

CASES = {
    "crossing": "forecasts whose quantiles crossed; they were sorted",
    "below_zero": "forecasts with a negative quantile of demand that never is; it was read as 0",
    "at_zero": "forecasts with all mass at 0",
    "half_at_zero": "forecasts with the lower quantile at 0: so much mass there, and an exponential tail",
    "no_spread": "forecasts without spread: all mass at one value",
    "logarithms": "forecasts read as logarithms, since demand is negative",
    "gaps": "leads without a forecast between others; no revision is assumed there",
}
LARGEST_LOG = 300.0
MOST_RETURNS = 0.1  # a larger share of negative actuals is no demand, but its logarithm
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
    forecasts: ForecastTable, actual: np.ndarray, leads: Leads, *, unrealised: bool = False, may_be_none: bool = False
) -> Trajectories | None:
    """Targets with an actual (unless `unrealised`) and at least two forecasts.

    leads "complete": those with a forecast at every lead; "available": all, each from its first forecast on; "auto":
    complete where there are any, and enough creation times (2H - 1) to have more than a few, else available.
    """
    one_of("leads", leads, Leads)
    begins, counts = forecasts.begins, np.diff(forecasts.begins, append=forecasts.num_rows)
    horizon = int(forecasts.lead.max())
    judged = (counts >= 2) & (unrealised | ~np.isnan(actual))
    complete = judged & (counts == horizon)
    if leads == "auto":
        many = len(distinct(forecasts.cutoff)) >= 2 * horizon - 1
        leads = "complete" if many and complete.any() else "available"
    keep = complete if leads == "complete" else judged
    if not keep.any() and may_be_none:
        return None
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

    Demand that is often negative is taken for a logarithm, and the gamma fitted to exponentials, which leaves chances
    as they are. Negative values of demand that seldom is negative (returns) are read as 0 by the gamma.
    """

    forecasts: ForecastTable
    levels: tuple[float, ...]
    cdf: Cdf
    negative_share: float  # of the actuals

    def __post_init__(self):
        for level in self.levels:
            self.forecasts.place_of(level)
        if callable(self.cdf):
            return
        if self.cdf not in ("gamma", "quantiles"):
            raise ConfigError(f"cdf is {self.cdf!r}; give 'gamma', 'quantiles' or a function of (frame, values)")
        if len(self.forecasts.levels) < 2:
            raise ConfigError(
                "one quantile a forecast does not tell a distribution; give forecasts of two levels or more, or a cdf"
            )
        if self.on_logs and np.abs(self.forecasts.quantiles).max() > LARGEST_LOG:
            raise ConfigError("demand is negative and no logarithm, so no gamma fits it; use cdf='quantiles'")

    @property
    def on_logs(self) -> bool:
        return self.cdf == "gamma" and self.negative_share > MOST_RETURNS

    @property
    def from_zero(self) -> bool:
        """Whether no quantile is taken to be below 0."""
        return not self.on_logs if self.cdf == "gamma" else self.negative_share == 0

    @property
    def gamma_levels(self) -> tuple[int, int]:
        """The two that the gamma goes through: 0.5 and 0.9, or else the outermost of those judged, or of all."""
        have = self.forecasts.levels
        if 0.5 in have and 0.9 in have:
            return have.index(0.5), have.index(0.9)
        judged = sorted(self.forecasts.place_of(level) for level in self.levels)
        return (judged[0], judged[-1]) if len(judged) > 1 else (0, len(have) - 1)

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
        if self.from_zero and not callable(self.cdf) and (q < 0).any():
            cases["below_zero"] += int(((q < 0).any(axis=-1) & part.is_new).sum())
            q = np.maximum(q, 0)
        cases["logarithms"] += int(part.is_new.sum()) if self.on_logs else 0
        judged = np.stack([q[..., self.forecasts.place_of(level)] for level in self.levels])
        tau = judged[:, :, 0]  # before the first forecast stands the first
        before = self._before(q, part, tau, cases)
        outcome = np.where(np.isnan(part.actual), np.nan, part.actual <= tau)
        return np.concatenate([before, outcome[..., None]], axis=2), judged, tau

    def _before(self, q: np.ndarray, part: Trajectories, tau: np.ndarray, cases: Counter[str]) -> np.ndarray:
        at = np.broadcast_to(tau[..., None], (*tau.shape, part.horizon))
        if callable(self.cdf):
            return np.stack([self._own(part, values) for values in tau])
        if self.cdf == "quantiles":
            return linear_cdf(q, self.forecasts.levels, at, cases, part.is_new, from_zero=self.from_zero)
        low, high = self.gamma_levels
        if self.on_logs:
            q, at = np.exp(q), np.exp(at)
        through = gamma_through(self.forecasts.levels[low], self.forecasts.levels[high])
        return through.cdf(q[..., low], q[..., high], at, cases, part.is_new)

    def _own(self, part: Trajectories, tau: np.ndarray) -> np.ndarray:
        """The caller's own chances: one value a row of the caller's frame, NaN where it is not asked for."""
        assert callable(self.cdf)
        values = np.full(self.forecasts.num_rows, np.nan)
        values[part.row] = tau[:, None]
        chances = np.asarray(self.cdf(self.forecasts.frame, self.forecasts.to_frame(values)), float)
        if chances.shape != (self.forecasts.size,):
            raise ConfigError(f"cdf gave shape {chances.shape} for {self.forecasts.size} rows; give one chance a row")
        chance = self.forecasts.from_frame(chances)[part.row]
        if not ((chance >= -1e-9) & (chance <= 1 + 1e-9)).all():
            raise ConfigError("cdf gave a value that is no probability; give numbers from 0 to 1")
        return chance


def negative_share(actual: np.ndarray) -> float:
    known = actual[~np.isnan(actual)]
    return float((known < 0).mean()) if known.size else 0.0


def levels_of(levels: float | Sequence[float]) -> tuple[float, ...]:
    """Levels, however they are given."""
    try:
        checked = tuple(float(level) for level in np.atleast_1d(np.asarray(levels, float)))
    except (TypeError, ValueError):
        checked = ()
    if not checked or any(not 0 < level < 1 for level in checked) or len(set(checked)) < len(checked):
        raise ConfigError(f"levels is {levels!r}; give different numbers between 0 and 1, such as (0.5, 0.9)")
    return checked
