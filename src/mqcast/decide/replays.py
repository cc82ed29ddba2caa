"""What a policy would have cost with each forecaster: orders from every cutoff's forecast, and the sales that came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from mqcast.arguments import whole_number
from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import show_time
from mqcast.data.schema import Schema
from mqcast.data.source import open_source
from mqcast.decide.demand import Totals, totals_of
from mqcast.decide.ordering import Terms, base_stock, quantity
from mqcast.decide.policy import Policy
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation.columns import one_of
from mqcast.evaluation.reading import actuals_table, names_in, read_forecasts
from mqcast.evaluation.tables import SPAN, ActualsTable, ForecastTable, Names
from mqcast.settings import nearest

Lacking = Literal["raise", "drop"]
MEASURES = {  # each is the sum over items of the first, over that of the second
    "cost": ("cost", "steps"),
    "fill_rate": ("served", "demand"),
    "service_level": ("full_cycles", "cycles"),
    "mean_stock": ("stock", "steps"),
    "order_variance": ("variance_of_orders", "variance_of_demand"),
    "order_change": ("change_of_orders", "demand_of_cycle"),
}


@dataclass(frozen=True, eq=False)
class Replay:
    """What each forecaster's orders would have led to.

    summary      a row a forecaster: cost and mean_stock (of an item and step), fill_rate, service_level (cycles in
                 which nothing was short), order_variance (of orders over that of demand: the bullwhip) and
                 order_change (the mean absolute change between orders, over the mean demand between reviews)
    differences  each forecaster less the baseline, with 95 % intervals over items that are resampled in pairs
    items        the same measures of every item
    """

    baseline: str
    _items: pl.DataFrame
    _intervals: pl.DataFrame
    _frame_types: FrameTypes

    @property
    def summary(self) -> Any:
        sums = self._items.group_by("forecaster", maintain_order=True).agg(pl.col(pl.Float64).sum())
        return self._frame_types.to_native(_measured(sums, "forecaster"))

    @property
    def items(self) -> Any:
        id = self._items.columns[1]
        return self._frame_types.to_native(_measured(self._items, "forecaster", id), id)

    @property
    def differences(self) -> Any:
        return self._frame_types.to_native(self._intervals)


def _measured(sums: pl.DataFrame, *keys: str) -> pl.DataFrame:
    ratios = [(pl.col(one) / pl.col(other)).fill_nan(None).alias(name) for name, (one, other) in MEASURES.items()]
    return sums.select(*keys, *ratios).with_columns(
        pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in MEASURES
    )


def replay(
    forecasts: Any,
    actuals: Any,
    policy: Policy,
    *,
    baseline: str | None = None,
    correlation: float = 0.5,
    resamples: int = 1000,
    seed: int = 0,
    missing: Lacking = "raise",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Replay:
    """Replay a policy over a backtest, for one forecaster or {name: forecasts}; baseline: the first.

    At every review period's end, from the first cutoff on, each item is ordered up to the level that the forecast of
    that cutoff gives. Items start with the first such level in stock; the first `lead_time` steps, which no order can
    reach, are not counted. Forecasts are frames, or Paths of all cutoffs, or a list of Paths. Items that lack a
    forecast or a sale are an error, or left out by missing="drop".

    >>> from mqcast import Policy, replay
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> policy = Policy(holding_cost=1, shortage_cost=9)
    >>> replay({"oracle": forecasts}, world.actuals, policy).summary.columns[:3]
    ['forecaster', 'cost', 'fill_rate']
    """
    one_of("missing", missing, Lacking)
    whole_number("resamples", resamples)
    models = dict(forecasts) if isinstance(forecasts, Mapping) else {"forecast": forecasts}
    if not models:
        raise ConfigError("there is no forecaster; give {name: forecasts}")
    baseline = next(iter(models)) if baseline is None else baseline
    if baseline not in models:
        raise ConfigError(f"there is no forecaster {baseline!r}{nearest(baseline, list(models))} to be the baseline")
    if policy.holding_cost is None:
        raise ConfigError("a replay counts costs; give the policy holding_cost and shortage_cost")
    frames = {name: one for name, one in models.items() if not _is_paths(one)}
    names = names_in(frames, schema, id=id, time=time, target=target)
    observed = actuals_table(actuals, names)
    parts = {name: _by_cutoff(one, policy, names, correlation, seed) for name, one in models.items()}
    reviews = _reviews(parts, observed, policy)
    first = int(np.searchsorted(observed.dates, reviews[0])) + 1
    levels = {name: _levels(part, reviews, observed.ids) for name, part in parts.items()}
    demand = _demand(observed, first, len(reviews) * policy.review_period)
    kept = _complete(levels, demand, observed, reviews, missing)
    sums = {name: _sums(level[kept], demand[kept], policy) for name, level in levels.items()}
    ids = [observed.ids[i] for i in np.flatnonzero(kept)]
    rows = [pl.DataFrame({"forecaster": [name] * len(ids), names.id: ids} | one) for name, one in sums.items()]
    intervals = _differences(sums, baseline, resamples, whole_number("seed", seed, 0))
    types = _types(next(iter(models.values())), names)
    return Replay(baseline, pl.concat(rows), intervals, types)


def _types(forecast: Any, names: Names) -> FrameTypes:
    if isinstance(forecast, ForecastTable):
        return forecast.frame_types
    return FrameTypes() if _is_paths(forecast) else FrameTypes.of(forecast, names.id, names.cutoff)


def _is_paths(forecast: Any) -> bool:
    return isinstance(forecast, list | tuple) or (hasattr(forecast, "values") and hasattr(forecast, "cutoffs"))


class _Cutoffs(dict[int, Totals]):
    """Totals by cutoff, made when they are asked for, so that only one cutoff's draws are in memory."""

    def __init__(self, table: ForecastTable, policy: Policy, correlation: float, seed: int):
        super().__init__(dict.fromkeys(np.unique(table.cutoff).tolist()))
        self.of = lambda cutoff: totals_of(
            table.where(table.cutoff == cutoff), policy, correlation=correlation, seed=seed
        )

    def __getitem__(self, cutoff: int) -> Totals:
        return self.of(cutoff)


def _by_cutoff(forecast: Any, policy: Policy, names: Names, correlation: float, seed: int) -> dict[int, Totals]:
    if isinstance(forecast, ForecastTable):
        return _Cutoffs(forecast, policy, correlation, seed)
    if not _is_paths(forecast) and SPAN not in open_source(forecast, "the forecasts").names:
        return _Cutoffs(read_forecasts(forecast, names), policy, correlation, seed)
    by_cutoff: dict[int, Totals] = {}
    for part in forecast if isinstance(forecast, list | tuple) else [forecast]:
        totals = totals_of(part, policy, names=names)
        for cutoff in np.unique(totals.cutoff).tolist():
            if cutoff in by_cutoff:
                raise ConfigError(f"two parts have forecasts from {show_time(cutoff)}; give one part a cutoff")
            by_cutoff[cutoff] = totals.rows(np.flatnonzero(totals.cutoff == cutoff))
    return by_cutoff


def _reviews(parts: dict[str, dict[int, Totals]], observed: ActualsTable, policy: Policy) -> list[int]:
    """The cutoffs at which orders are placed: one a review period, as long as the sales after it are known."""
    dates, period = observed.dates, policy.review_period
    first, last = (bound(bound(part) for part in parts.values()) for bound in (min, max))
    begin = int(np.searchsorted(dates, first))
    if begin == len(dates) or dates[begin] != first:
        raise DataError(
            f"the first cutoff, {show_time(first)}, is no date of the actuals", "give the sales of that date"
        )
    reviews = [int(date) for date in dates[begin::period] if date <= last]
    reviews = reviews[: max(0, (len(dates) - 1 - begin) // period)]
    if len(reviews) * period <= policy.lead_time:
        raise DataError(
            f"there are {len(reviews)} reviews from {show_time(first)} on, and none of their orders arrives in time",
            "give more cutoffs, or the sales after them",
        )
    for name, part in parts.items():
        for cutoff in reviews:
            if cutoff not in part:
                raise DataError(
                    f"{name!r} has no forecast from {show_time(cutoff)}, when an order is due",
                    f"forecast from every {period}th date" if period > 1 else "forecast from every date",
                )
    return reviews


def _levels(part: dict[int, Totals], reviews: Sequence[int], ids: list[str]) -> np.ndarray:
    """(items, reviews): the level that each forecast orders up to; NaN where there is no forecast."""
    place = {name: i for i, name in enumerate(ids)}
    levels = np.full((len(ids), len(reviews)), np.nan)
    for review, cutoff in enumerate(reviews):
        totals = part[cutoff]
        for name in (totals.ids[i] for i in np.unique(totals.item)):
            if name not in place:
                raise DataError(
                    "is forecast, but has no sales among the actuals", "write ids alike in both", series=name
                )
        rows = np.array([place[totals.ids[i]] for i in totals.item], int)
        levels[rows, review] = base_stock(totals, Terms.of(totals.policy, len(rows)))
    return levels


def _demand(observed: ActualsTable, first: int, steps: int) -> np.ndarray:
    """(items, steps): sales from the date of this place on; NaN where they are unknown."""
    demand = np.full((len(observed.ids), len(observed.dates)), np.nan)
    demand[observed.item, np.searchsorted(observed.dates, observed.time)] = observed.value
    return demand[:, first : first + steps]


def _complete(
    levels: dict[str, np.ndarray], demand: np.ndarray, observed: ActualsTable, reviews: list[int], missing: Lacking
) -> np.ndarray:
    """Which items have all forecasts and sales; items without any forecast are not asked about."""
    known = {name: np.isfinite(level) for name, level in levels.items()}
    forecast = np.any([one.any(axis=1) for one in known.values()], axis=0)
    sold = np.isfinite(demand) & (demand >= 0)
    kept = forecast & sold.all(axis=1) & np.all([one.all(axis=1) for one in known.values()], axis=0)
    lost = np.flatnonzero(forecast & ~kept)
    remedy = "add what is missing, or leave such items out: missing='drop'"
    if lost.size and (missing == "raise" or not kept.any()):
        item, more = lost[0], f" (and {lost.size - 1} more items lack something)"
        for name, one in known.items():
            if not one[item].all():
                when = show_time(reviews[int(np.argmin(one[item]))])
                raise DataError(f"{name!r} has no forecast from {when}{more}", remedy, series=observed.ids[item])
        first = int(np.searchsorted(observed.dates, reviews[0])) + 1
        when = show_time(int(observed.dates[first + int(np.argmin(sold[item]))]))
        raise DataError(f"sales are missing or negative{more}", remedy, series=observed.ids[item], time=when)
    return kept


@dataclass(frozen=True, eq=False)
class Ledger:
    """What happened: orders of each review, and unserved demand and stock at the end of each step."""

    orders: np.ndarray  # (items, reviews)
    short: np.ndarray  # (items, steps)
    stock: np.ndarray  # (items, steps)


def run(levels: np.ndarray, demand: np.ndarray, policy: Policy) -> Ledger:
    """Order up to the levels (items, reviews), and sell what is demanded (items, steps), for all items at once."""
    items, steps = demand.shape
    terms = Terms.of(policy, items)
    arriving = np.zeros((items, steps + policy.lead_time))
    ordered, short, stock = np.zeros(levels.shape), np.zeros(demand.shape), np.zeros(demand.shape)
    net = levels[:, 0].copy()  # on hand, less what is owed
    on_order = np.zeros(items)
    for step in range(steps):
        if step % policy.review_period == 0:
            review = step // policy.review_period
            order = quantity(levels[:, review] - net - on_order, terms)
            ordered[:, review] = order
            arriving[:, step + policy.lead_time] += order
            on_order += order
        net += arriving[:, step]
        on_order -= arriving[:, step]
        short[:, step] = demand[:, step] - np.clip(net, 0, demand[:, step])
        net = net - demand[:, step]
        if policy.unmet == "lost":
            net = np.maximum(net, 0)
        stock[:, step] = np.maximum(net, 0)
    return Ledger(ordered, short, stock)


def _sums(levels: np.ndarray, demand: np.ndarray, policy: Policy) -> dict[str, np.ndarray]:
    """What the measures are made of, for each item."""
    ledger = run(levels, demand, policy)
    lead, period = policy.lead_time, policy.review_period
    short, stock, sold = ledger.short[:, lead:], ledger.stock[:, lead:], demand[:, lead:]
    cycles = sold.shape[1] // period
    by_cycle = short[:, : cycles * period].reshape(-1, cycles, period).sum(axis=2)
    of_cycles = demand.reshape(len(demand), -1, period).sum(axis=2)
    orders = ledger.orders[:, 1:]  # items start with their level in stock, so that there is no first order
    costs = (policy.holding_cost or 0) * stock + (policy.shortage_cost or 0) * short
    size = len(demand)
    return {
        "cost": costs.sum(axis=1),
        "steps": np.full(size, float(sold.shape[1])),
        "served": (sold - short).sum(axis=1),
        "demand": sold.sum(axis=1),
        "full_cycles": (by_cycle <= 1e-9).sum(axis=1).astype(float),
        "cycles": np.full(size, float(cycles)),
        "stock": stock.sum(axis=1),
        "variance_of_orders": orders.var(axis=1) if orders.size else np.zeros(size),
        "variance_of_demand": of_cycles[:, :-1].var(axis=1) if orders.size else np.zeros(size),
        "change_of_orders": np.abs(np.diff(orders, axis=1)).mean(axis=1) if orders.shape[1] > 1 else np.zeros(size),
        "demand_of_cycle": of_cycles.mean(axis=1),
    }


def _differences(sums: dict[str, dict[str, np.ndarray]], baseline: str, resamples: int, seed: int) -> pl.DataFrame:
    size, rng = len(sums[baseline]["cost"]), np.random.default_rng(seed)
    chosen = np.stack([np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(resamples)])
    weights = np.concatenate([np.ones((1, size)), chosen])
    schema = {"forecaster": pl.String, "baseline": pl.String, "measure": pl.String}
    schema |= dict.fromkeys(("difference", "lo", "hi"), pl.Float64)
    rows = []
    for measure, (one, other) in MEASURES.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            values = {name: (weights @ of[one]) / (weights @ of[other]) for name, of in sums.items()}
        for name in sums:
            if name != baseline:
                apart = values[name] - values[baseline]
                finite = apart[1:][np.isfinite(apart[1:])]
                bounds = np.quantile(finite, (0.025, 0.975)).tolist() if finite.size else [None, None]
                first = float(apart[0]) if np.isfinite(apart[0]) else None
                rows.append((name, baseline, measure, first, *bounds))
    return pl.DataFrame(rows, schema, orient="row").sort("forecaster", maintain_order=True)
