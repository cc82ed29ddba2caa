"""The total demand until the next order can arrive, from paths, from quantiles of totals, or from those of steps.

What a forecast says of a total is held as equally likely draws, beside the quantiles themselves where they were given.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import polars as pl

from mqcast.arguments import number, whole_number
from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import show_time
from mqcast.data.source import open_source
from mqcast.decide.policy import Policy
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation.columns import columns_of, ids_of, numbers_of, places, times_of
from mqcast.evaluation.reading import names_in, read_forecasts
from mqcast.evaluation.tables import SPAN, ForecastTable, Names
from mqcast.joint.marginals import Marginals
from mqcast.levels import level_of

NUM_DRAWS = 400


class PathsLike(Protocol):
    """Draws of demand: `values[series, horizon, path]`, with the id, the cutoff and the dates of each series."""

    @property
    def ids(self) -> Any: ...
    @property
    def cutoffs(self) -> Any: ...
    @property
    def dates(self) -> Any: ...
    @property
    def values(self) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Totals:
    """Total demand over the protection interval of each series and cutoff, as equally likely draws."""

    ids: list[str]  # sorted
    item: np.ndarray  # (rows,): index into ids
    cutoff: np.ndarray  # (rows,): microseconds
    draws: np.ndarray  # (rows, draws)
    before: np.ndarray | None  # (rows, draws): the part of it before an order can arrive; None: unknown
    quantiles: tuple[tuple[float, ...], np.ndarray] | None  # levels and (rows, levels), if totals were given by them
    policy: Policy
    frame_types: FrameTypes = field(default_factory=FrameTypes)

    def rows(self, rows: np.ndarray) -> "Totals":
        parts: dict[str, Any] = {name: getattr(self, name)[rows] for name in ("item", "cutoff", "draws")}
        before = None if self.before is None else self.before[rows]
        quantiles = None if self.quantiles is None else (self.quantiles[0], self.quantiles[1][rows])
        return replace(self, **parts, before=before, quantiles=quantiles)

    def quantile(self, level: np.ndarray) -> np.ndarray:
        """The smallest total that demand stays within with this chance, for a level of each row."""
        if self.quantiles is not None:
            return Marginals.of(*self.quantiles).at(level[:, None])[:, 0]
        drawn = np.sort(self.draws, axis=1)
        place = np.ceil(level * drawn.shape[1] - 1e-9).astype(int) - 1
        return np.take_along_axis(drawn, np.clip(place, 0, drawn.shape[1] - 1)[:, None], axis=1)[:, 0]

    def cheapest(self, over: np.ndarray, under: np.ndarray) -> np.ndarray:
        """The level with the least expected cost: `over` a unit left at the end, `under` a unit of `shortage`.

        Demand that is short before the order can arrive is short whatever is ordered. Where nothing is known of it, all
        that is short in the interval counts, and the level is a quantile.
        """
        if self.before is None or not self.policy.lead_time:
            return self.quantile(under / (under + over))
        points = np.concatenate([self.before, self.draws], axis=1)  # between them, the cost is a straight line
        slopes = np.repeat([-under, over + under], self.draws.shape[1], axis=0).T
        order = np.argsort(points, axis=1)
        points, slopes = (np.take_along_axis(one, order, axis=1) for one in (points, slopes))
        cost = (np.cumsum(slopes, axis=1)[:, :-1] * np.diff(points, axis=1)).cumsum(axis=1)
        return np.take_along_axis(points, cost.argmin(axis=1)[:, None] + 1, axis=1)[:, 0]

    def shortage(self, position: np.ndarray) -> np.ndarray:
        """Expected demand of the review period that is not served, if this much was in stock or on order."""
        short = _beyond(self.draws, position)
        return short if self.before is None else np.maximum(short - _beyond(self.before, position), 0)

    def left(self, position: np.ndarray) -> np.ndarray:
        """Expected stock at the end of the interval."""
        return np.maximum(position[:, None] - self.draws, 0).mean(axis=1)

    @property
    def of_review(self) -> np.ndarray:
        """Expected demand of the review period, the last part of the interval."""
        if self.before is None:
            return self.draws.mean(axis=1) * (self.policy.review_period / self.policy.protection)
        return (self.draws - self.before).mean(axis=1)

    def fill_rate(self, position: np.ndarray) -> np.ndarray:
        """The share of the review period's expected demand that is served; 1 where no demand is expected."""
        expected = self.of_review
        short = np.divide(self.shortage(position), expected, where=expected > 0, out=np.zeros(len(expected)))
        return np.clip(1 - short, 0, 1)


def _beyond(draws: np.ndarray, position: np.ndarray) -> np.ndarray:
    return np.maximum(draws - position[:, None], 0).mean(axis=1)


def totals_of(
    forecast: Any, policy: Policy, *, names: Names | None = None, correlation: float = 0.5, seed: int = 0
) -> Totals:
    """What paths, a frame of totals (with a column `span`) or a frame of forecasts says of the protection interval."""
    if hasattr(forecast, "values") and hasattr(forecast, "cutoffs"):
        return _of_paths(forecast, policy)
    if isinstance(forecast, ForecastTable):
        return _of_steps(forecast, policy, correlation, seed)
    names = names_in(forecast) if names is None else names
    if SPAN in open_source(forecast, "the forecasts").names:
        return _of_spans(forecast, policy, names)
    return _of_steps(read_forecasts(forecast, names), policy, correlation, seed)


def require_reach(horizon: int, policy: Policy, series: str | None = None) -> None:
    if horizon < policy.protection:
        raise DataError(
            f"the forecast reaches {horizon} steps ahead, but an order with lead_time {policy.lead_time} and "
            f"review_period {policy.review_period} has to last for {policy.protection}",
            "forecast further ahead, or order more often",
            series=series,
        )


def _of_paths(paths: PathsLike, policy: Policy) -> Totals:
    values = np.asarray(paths.values, float)
    names = [str(one) for one in paths.ids]
    require_reach(values.shape[1], policy)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)).all(axis=(1, 2)))
    if bad.size:
        raise DataError(
            "a path has a value that is negative or not finite", "demand is 0 or more", series=names[bad[0]]
        )
    ids = sorted(set(names))
    place = {name: i for i, name in enumerate(ids)}
    cutoff = _microseconds(paths.cutoffs)
    item = np.array([place[name] for name in names])
    _refuse_doubles(ids, item, cutoff)
    before = values[:, : policy.lead_time].sum(axis=1)
    draws = before + values[:, policy.lead_time : policy.protection].sum(axis=1)
    return Totals(ids, item, cutoff, draws, before, None, policy)


def _microseconds(times: Any) -> np.ndarray:
    series = pl.Series(times)
    return (series if series.dtype == pl.Int64 else series.cast(pl.Datetime("us")).to_physical()).to_numpy()


def _refuse_doubles(ids: list[str], item: np.ndarray, cutoff: np.ndarray) -> None:
    keys = pl.DataFrame({"item": item, "cutoff": cutoff})
    twice = np.flatnonzero(keys.is_duplicated().to_numpy())
    if twice.size:
        where = {"series": ids[item[twice[0]]], "time": show_time(int(cutoff[twice[0]]))}
        raise DataError("two forecasts of the total from one cutoff", "keep one", **where)


def _of_spans(frame: Any, policy: Policy, names: Names) -> Totals:
    what = "the forecasts"
    source = open_source(frame, what)
    by_level = {level: name for name in source.names if (level := level_of(name)) is not None}
    if not by_level:
        raise DataError("the totals have no column of quantiles", "name them q0.5, q0.9 …")
    levels = sorted(by_level)
    columns = columns_of(source, [names.id, names.cutoff, SPAN, *by_level.values()], what, text=names.id)
    span = numbers_of(columns[SPAN], SPAN, what)
    kept = np.flatnonzero(span == policy.protection)
    if not kept.size:
        there = ", ".join(f"{one:g}" for one in np.unique(span)[:5])
        raise DataError(
            f"there is no total over {policy.protection} steps, lead_time and review_period together, but over {there}",
            "forecast totals over that many steps",
            column=SPAN,
        )
    ids, item = ids_of(columns[names.id], names.id, what)
    cutoff = times_of({names.cutoff: columns[names.cutoff]}, what)[0][names.cutoff]
    values = np.stack([numbers_of(columns[by_level[level]], by_level[level], what) for level in levels], axis=1)
    of_lead_time = np.flatnonzero(span == policy.lead_time)
    for rows in (kept, of_lead_time):
        if (bad := rows[~np.isfinite(values[rows]).all(axis=1)]).size:
            raise DataError("a quantile of the total is not finite", "fill it", series=ids[item[bad[0]]])
        _refuse_doubles(ids, item[rows], cutoff[rows])
    early = _same_forecasts(item, cutoff, kept, of_lead_time)
    before = None if early is None else Marginals.of(levels, values[early]).at(_midpoints(NUM_DRAWS))
    item, cutoff, values = item[kept], cutoff[kept], values[kept]
    draws = Marginals.of(levels, values).at(_midpoints(NUM_DRAWS))
    types = FrameTypes.of(frame, names.id, names.cutoff, source)
    return Totals(ids, item, cutoff, draws, before, (tuple(levels), values), policy, types)


def _same_forecasts(item: np.ndarray, cutoff: np.ndarray, rows: np.ndarray, among: np.ndarray) -> np.ndarray | None:
    """For each of the rows, one of the others that has its series and cutoff; None unless all have one."""
    keys = pl.DataFrame({"item": item, "cutoff": cutoff, "row": np.arange(len(item))})
    found = keys[rows].join(keys[among], on=["item", "cutoff"], how="left", maintain_order="left")["row_right"]
    return None if found.null_count() else found.to_numpy()


def _midpoints(number: int) -> np.ndarray:
    return (np.arange(number) + 0.5) / number


def _of_steps(table: ForecastTable, policy: Policy, correlation: float, seed: int) -> Totals:
    """Draws of totals from the quantiles of single steps, which are taken to be normally dependent.

    The normal scores of any two steps have this correlation: 0 is independence, and 1 adds up the steps' quantiles.
    """
    number("correlation", correlation, 0, 1, or_low=True)
    cutoffs = np.unique(table.cutoff)
    key = table.item.astype(np.int64) * len(cutoffs) + places(table.cutoff, cutoffs)
    keys, row = np.unique(key, return_inverse=True)
    grid = np.full((len(keys), policy.protection, len(table.levels)), np.nan)
    near = table.lead <= policy.protection
    grid[row[near], table.lead[near] - 1] = table.quantiles[near]
    item, cutoff = keys // len(cutoffs), cutoffs[keys % len(cutoffs)]
    missing = np.flatnonzero(np.isnan(grid).any(axis=(1, 2)))
    if missing.size:
        first = missing[0]
        require_reach(int(table.lead[row == first].max()), policy, table.ids[item[first]])
        where = {"series": table.ids[item[first]], "time": show_time(int(cutoff[first]))}
        raise DataError(f"a step before {policy.protection} has no forecast from this cutoff", "forecast all", **where)
    scores = _scores(policy.protection, correlation, whole_number("seed", seed, 0))
    sums = np.zeros((2, len(keys), NUM_DRAWS))
    for step in range(policy.protection):
        drawn = Marginals.of(table.levels, grid[:, step]).at(scores[step])
        sums[0] += drawn
        sums[1] += drawn * (step < policy.lead_time)
    return Totals(table.ids, item, cutoff, sums[0], sums[1], None, policy, table.frame_types)


def _scores(steps: int, correlation: float, seed: int) -> np.ndarray:
    """(steps, draws): levels, the same for all forecasters, so that these differ by their forecasts alone."""
    from scipy.special import ndtr, ndtri  # slow to import

    rng = np.random.default_rng(seed)
    shared = ndtri(_midpoints(NUM_DRAWS))
    own = ndtri(np.stack([rng.permutation(_midpoints(NUM_DRAWS)) for _ in range(steps)]))
    if correlation in (0.0, 1.0):
        return ndtr(own if correlation == 0 else np.broadcast_to(shared, own.shape))
    return ndtr(np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own)


def require_one_cutoff(totals: Totals) -> None:
    if len(np.unique(totals.item)) < len(totals.item):
        twice = totals.item[np.flatnonzero(np.diff(np.sort(totals.item)) == 0)[0]]
        raise ConfigError(
            f"series {totals.ids[twice]!r} is forecast from several cutoffs; keep the last, or replay them all"
        )
