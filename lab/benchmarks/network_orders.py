"""Orders from networks' forecasts beside orders from the oracle's, on a simulated retailer.

    python -m lab benchmark network_orders [--minutes 5] [--items 200] [--trained-items 200] [--world-seed 0]

MQTransformer and MQ-CNN are trained once by the defaults, with P10, P50 and P90, on 105 weeks. In the 40 weeks after
these they forecast each week, and each item is ordered from paths of these forecasts, as by `python -m lab benchmark
orders`: a unit held for a week costs 1, a unit short 9; what is short is delivered later.

Expected cost is that of the levels under the oracle's distribution, so that only forecasts differ and not luck: what
the policy gives, and what the quantile at the critical ratio of the whole interval gives. Beside the networks stand
the oracle's own P10, P50 and P90, joined as theirs are, and MQTransformer's forecasts with the oracle's medians, or
with its spread around their own. Replays are compared at equal service: each forecaster has the shortage cost at which
nothing is short in 90 % of the weeks. tails: orders from the oracle's P50 and P90 alone where a unit short costs 9, 19
or 49, so that the level is in the tail. Intervals (95 %) are of items that are resampled in pairs. With
--trained-items, networks learn from more items than are ordered. Writes lab/results/benchmarks/network_orders.json, or
with more items network_orders_<number>.json.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import polars as pl

from lab.benchmarks.harness import lock, write_record
from lab.benchmarks.orders import FIRST, HORIZON, LAST
from mqcast import Forecaster
from mqcast.decide import Policy
from mqcast.decide.demand import totals_of
from mqcast.decide.ordering import Terms, base_stock
from mqcast.decide.replays import _by_cutoff, _demand, _differences, _levels, _reviews, _sums
from mqcast.errors import MqcastWarning
from mqcast.evaluation import read_actuals
from mqcast.evaluation.tables import Names
from mqcast.joint import Dependence, fit_dependence
from mqcast.joint.paths import Paths, paths_of
from mqcast.levels import quantile_column
from mqcast.simulate import World, lognormal_world

NETWORKS, LEVELS, LEAD_TIMES = ("mqt", "mqcnn"), (0.1, 0.5, 0.9), (0, 3, 7)
HOLDING, SHORTAGE, SERVICE, HALVINGS, RESAMPLES = 1.0, 9.0, 0.9, 12, 1000
NUM_DRAWS, OTHER_DRAWS = 1000, 10_000  # of the oracle; seeds of those that judge
KEYS, COLUMNS = ("unique_id", "cutoff", "ds"), [quantile_column(level) for level in LEVELS]


def policy_of(lead_time: int, shortage_cost: float = SHORTAGE, service_level: float | None = None) -> Policy:
    costs = {"holding_cost": HOLDING, "shortage_cost": shortage_cost}
    return Policy(lead_time, 1, **costs, service_level=service_level, unmet="backordered")


def oracle_paths(world: World, num: int) -> list[Paths]:
    weeks, ids = world.events["ds"].to_numpy(), world.static["unique_id"].to_list()
    found = []
    for t in range(FIRST, LAST + 1):
        dates = np.broadcast_to(weeks[t + 1 : t + 1 + HORIZON], (len(ids), HORIZON))
        values = world.oracle.paths(t, num, seed=t).astype(np.float32)
        found.append(Paths(ids, np.full(len(ids), weeks[t]), dates, values))
    return found


def oracle_dependence(world: World) -> Dependence:
    """Learnt as networks learn theirs: from forecasts of dates before the first cutoff."""
    past = world.oracle_forecasts(LEVELS, FIRST - 26, FIRST - HORIZON)
    return fit_dependence(past, world.actuals)


def mixtures(world: World, steps: pl.DataFrame, dependence: Dependence, num: int) -> dict[str, Paths]:
    """The oracle's quantiles joined as a network's are, and a network's forecasts that are put right in part."""
    exact = world.oracle_forecasts(LEVELS, FIRST, LAST).sort(KEYS)
    steps = steps.filter(pl.col("unique_id").is_in(exact["unique_id"].implode())).sort(KEYS)
    own, right = (np.maximum(frame.select(COLUMNS).to_numpy(), 1e-3) for frame in (steps, exact))
    middle = [LEVELS.index(0.5)]

    def joined(values: np.ndarray) -> Paths:
        columns = (pl.Series(name, values[:, i]) for i, name in enumerate(COLUMNS))
        return paths_of(steps.with_columns(columns), dependence, num)

    return {
        "oracle's quantiles": paths_of(exact, oracle_dependence(world), num),
        "mqt, oracle's medians": joined(right[:, middle] * own / own[:, middle]),
        "mqt, oracle's spread": joined(own[:, middle] * right / right[:, middle]),
    }


def levels_of(paths: Any, world: World, policy: Policy) -> np.ndarray:
    """(items, reviews): what each item is ordered up to."""
    found = []
    for part in paths if isinstance(paths, list) else [paths]:
        totals = totals_of(part, policy)
        level = base_stock(totals, Terms.of(policy, len(totals.item)))
        ids = pl.Series(totals.ids).gather(totals.item)
        found.append(pl.DataFrame({"id": ids, "cutoff": totals.cutoff, "level": level}))
    table = pl.concat(found).sort("id", "cutoff")
    return table["level"].to_numpy().reshape(len(world.demand), -1)


class Judge:
    """The oracle's expected cost of levels, from draws of its own."""

    def __init__(self, world: World):
        drawn = [world.oracle.paths(t, NUM_DRAWS, seed=OTHER_DRAWS + t) for t in range(FIRST, LAST + 1)]
        self.totals = np.stack([np.cumsum(one, axis=1, dtype=np.float32) for one in drawn], axis=1)

    def cost(self, levels: np.ndarray, lead_time: int, shortage_cost: float = SHORTAGE) -> np.ndarray:
        """(items,): of each item and week."""
        whole, level = self.totals[:, :, lead_time], levels[..., None]
        short = np.maximum(whole - level, 0)
        if lead_time:
            short = short - np.maximum(self.totals[:, :, lead_time - 1] - level, 0)
        return (HOLDING * np.maximum(level - whole, 0) + shortage_cost * short).mean(axis=(1, 2))


def expected(models: dict[str, Any], world: World, judge: Judge, lead_time: int) -> dict[str, dict]:
    """By rule and forecaster: the expected cost, and by what share it is above the oracle's under the same rule."""
    size, found = len(world.demand), {}
    chosen = np.random.default_rng(0).integers(0, size, (RESAMPLES, size))
    ratio = SHORTAGE / (SHORTAGE + HOLDING)
    for rule, policy in {
        "least cost": policy_of(lead_time),
        "quantile": policy_of(lead_time, service_level=ratio),
    }.items():
        costs = {name: judge.cost(levels_of(paths, world, policy), lead_time) for name, paths in models.items()}
        found[rule] = {}
        for name, cost in costs.items():
            above = cost[chosen].mean(axis=1) / costs["oracle"][chosen].mean(axis=1) - 1
            lo, hi = np.quantile(above, (0.025, 0.975)).tolist()
            each = float((cost / costs["oracle"]).mean() - 1)
            mean = float(cost.mean())
            row = {"cost": mean, "above": mean / float(costs["oracle"].mean()) - 1, "lo": lo, "hi": hi}
            found[rule][name] = row | {"above, items alike": each}
            print(lead_time, rule, name, {key: round(value, 3) for key, value in found[rule][name].items()}, flush=True)
    return found


def tails(world: World, oracle: list[Paths], judge: Judge, num: int) -> dict[str, float]:
    """By how much orders from the oracle's P50 and P90 cost more than those from its paths."""
    levels, found = (0.5, 0.9), {}
    dependence = fit_dependence(world.oracle_forecasts(levels, FIRST - 26, FIRST - HORIZON), world.actuals)
    paths = paths_of(world.oracle_forecasts(levels, FIRST, LAST), dependence, num)
    for lead_time in LEAD_TIMES:
        for shortage in (9.0, 19.0, 49.0):
            policy = policy_of(lead_time, shortage)
            costs = [judge.cost(levels_of(one, world, policy), lead_time, shortage).mean() for one in (paths, oracle)]
            found[f"lead_time {lead_time}, a unit short costs {shortage:g}"] = float(costs[0] / costs[1] - 1)
    return found


def network_forecasts(world: World, model: str, options: argparse.Namespace) -> tuple[pl.DataFrame, Any, dict]:
    """Forecasts of the steps, their dependence, and how the network was trained."""
    weeks = world.frame["ds"].unique().sort()
    learnt = lognormal_world(max(options.items, options.trained_items), LAST + HORIZON + 1, HORIZON, options.world_seed)
    chosen = {"schema": world.schema, "max_minutes": options.minutes, "seed": options.seed, "verbose": False}
    forecaster, start = Forecaster(model, HORIZON, LEVELS, **chosen), time.time()
    known = learnt.frame.filter(pl.col("ds") <= weeks[FIRST])
    forecaster.fit(known, static=learnt.static, events=learnt.events)
    assert forecaster.config_ is not None
    trained = {"seconds": time.time() - start, "steps": forecaster.config_.train.max_steps}
    trained |= {"networks": forecaster.config_.model.members, "items": len(learnt.demand)}
    steps = forecaster.revisions(world.frame, weeks[FIRST], weeks[LAST], events=world.events)
    fitted: Any = forecaster.fitted_
    return steps, fitted.dependence, trained


def played(paths: Any, world: World, policy: Policy) -> dict[str, np.ndarray]:
    """What the measures of `replay` are made of, for each item."""
    observed = read_actuals(world.actuals)
    part = _by_cutoff(paths, policy, Names(), 0.5, 0)
    reviews = _reviews({"": part}, observed, policy)
    first = int(np.searchsorted(observed.dates, reviews[0])) + 1
    return _sums(_levels(part, reviews, observed.ids), _demand(observed, first, len(reviews)), policy)


def service(sums: dict[str, np.ndarray]) -> float:
    return float(sums["full_cycles"].sum() / sums["cycles"].sum())


def at_equal_service(paths: Any, world: World, lead_time: int) -> tuple[float, dict[str, np.ndarray]]:
    """The shortage cost at which the wanted service is reached, and what it leads to."""
    low, high = 0.0, 8.0  # logarithms
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        reached = service(played(paths, world, policy_of(lead_time, float(np.exp(middle))))) >= SERVICE
        low, high = (low, middle) if reached else (middle, high)
    return float(np.exp(high)), played(paths, world, policy_of(lead_time, float(np.exp(high))))


def compared(sums: dict[str, dict[str, np.ndarray]], baseline: str, measures: tuple[str, ...]) -> list[dict]:
    table = _differences(sums, baseline, RESAMPLES, 0)
    return table.filter(pl.col("measure").is_in(measures)).to_dicts()


def cost(sums: dict[str, np.ndarray]) -> float:
    return float(sums["cost"].sum() / sums["steps"].sum())


def summary(sums: dict[str, np.ndarray]) -> dict[str, float]:
    total = {name: float(values.sum()) for name, values in sums.items()}
    return {
        "service": total["full_cycles"] / total["cycles"],
        "fill_rate": total["served"] / total["demand"],
        "stock": total["stock"] / total["steps"],
        "order_variance": total["variance_of_orders"] / total["variance_of_demand"],
        "order_change": total["change_of_orders"] / total["demand_of_cycle"],
    }


def measured(world: World, models: dict[str, Any], judge: Judge, lead_time: int) -> dict:
    replayed = {name: models[name] for name in ("oracle", *NETWORKS)}
    same = {name: played(paths, world, policy_of(lead_time)) for name, paths in replayed.items()}
    equal = {name: at_equal_service(paths, world, lead_time) for name, paths in replayed.items()}
    sums = {name: one for name, (_, one) in equal.items()}
    networks = {name: sums[name] for name in NETWORKS}
    found = {
        "expected cost": expected(models, world, judge, lead_time),
        "same policy": {name: {"cost": cost(one), **summary(one)} for name, one in same.items()},
        "cost less the oracle's": compared(same, "oracle", ("cost",)),
        "equal service": {name: {"shortage_cost": equal[name][0], **summary(one)} for name, one in sums.items()},
        "mqt less mqcnn": compared(networks, "mqcnn", ("order_variance", "order_change", "mean_stock")),
    }
    for title in ("same policy", "equal service"):
        for name, one in found[title].items():
            print(lead_time, title, name, {key: round(value, 3) for key, value in one.items()}, flush=True)
    print(lead_time, found["cost less the oracle's"], found["mqt less mqcnn"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    for name, default in {"items": 200, "trained-items": 0, "paths": 200, "world-seed": 0, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options, start = parser.parse_args(), time.time()
    warnings.simplefilter("ignore", MqcastWarning)
    world = lognormal_world(options.items, LAST + HORIZON + 1, HORIZON, options.world_seed)
    with lock(shared=True):
        models: dict[str, Any] = {"oracle": oracle_paths(world, NUM_DRAWS)}
        forecasts = {model: network_forecasts(world, model, options) for model in NETWORKS}
        for model, (steps, dependence, _) in forecasts.items():
            models[model] = paths_of(steps, dependence, options.paths)
        models |= mixtures(world, *forecasts["mqt"][:2], options.paths)
        judge, trained = Judge(world), {model: facts for model, (_, _, facts) in forecasts.items()}
        results = {f"lead_time {lead}": measured(world, models, judge, lead) for lead in LEAD_TIMES}
        results["tails"] = tails(world, models["oracle"], judge, options.paths)
    name = f"network_orders_{options.trained_items}" if options.trained_items else "network_orders"
    print(write_record(name, {"results": results, "trained": trained, "seconds": time.time() - start}))


if __name__ == "__main__":
    main()
