"""Orders from networks' forecasts beside orders from the oracle's, on a simulated retailer.

    python -m lab benchmark network_orders [--minutes 5] [--items 200] [--paths 200] [--world-seed 0]

MQTransformer and MQ-CNN are trained once by the defaults, with P10, P50 and P90, on 105 weeks. In the 40 weeks after
these they forecast each week, and each item is ordered from paths of these forecasts, as by `python -m lab benchmark
orders`: a unit held for a week costs 1, a unit short 9; what is short is delivered later. Costs are compared under this
policy. Orders are compared at equal service: each forecaster has the shortage cost at which nothing is short in 90 % of
the weeks. Intervals (95 %) are of items that are resampled in pairs. Writes lab/results/benchmarks/network_orders.json.
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
from mqcast.decide.replays import _by_cutoff, _demand, _differences, _levels, _reviews, _sums
from mqcast.errors import MqcastWarning
from mqcast.evaluation import read_actuals
from mqcast.evaluation.tables import Names
from mqcast.joint.paths import Paths, paths_of
from mqcast.simulate import World, lognormal_world

NETWORKS, LEVELS, LEAD_TIMES = ("mqt", "mqcnn"), (0.1, 0.5, 0.9), (0, 3, 7)
SERVICE, HALVINGS, RESAMPLES = 0.9, 12, 1000


def policy_of(lead_time: int, shortage_cost: float = 9.0) -> Policy:
    return Policy(lead_time, 1, holding_cost=1.0, shortage_cost=shortage_cost, unmet="backordered")


def oracle_paths(world: World, num: int) -> list[Paths]:
    weeks, ids = world.events["ds"].to_numpy(), world.static["unique_id"].to_list()
    found = []
    for t in range(FIRST, LAST + 1):
        dates = np.broadcast_to(weeks[t + 1 : t + 1 + HORIZON], (len(ids), HORIZON))
        values = world.oracle.paths(t, num, seed=t).astype(np.float32)
        found.append(Paths(ids, np.full(len(ids), weeks[t]), dates, values))
    return found


def network_paths(world: World, model: str, options: argparse.Namespace) -> tuple[Paths, float, pl.DataFrame]:
    weeks = world.frame["ds"].unique().sort()
    chosen = {"schema": world.schema, "max_minutes": options.minutes, "seed": options.seed, "verbose": False}
    forecaster, start = Forecaster(model, HORIZON, LEVELS, **chosen), time.time()
    known = world.frame.filter(pl.col("ds") <= weeks[FIRST])
    forecaster.fit(known, static=world.static, events=world.events)
    seconds = time.time() - start
    steps = forecaster.revisions(world.frame, weeks[FIRST], weeks[LAST], events=world.events)
    dependence: Any = forecaster.fitted_.dependence
    return paths_of(steps, dependence, options.paths), seconds, steps


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


def measured(world: World, models: dict[str, Any], lead_time: int) -> dict:
    same = {name: played(paths, world, policy_of(lead_time)) for name, paths in models.items()}
    equal = {name: at_equal_service(paths, world, lead_time) for name, paths in models.items()}
    sums = {name: one for name, (_, one) in equal.items()}
    networks = {name: sums[name] for name in NETWORKS}
    found = {
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
    for name, default in {"items": 200, "paths": 200, "world-seed": 0, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options, start = parser.parse_args(), time.time()
    warnings.simplefilter("ignore", MqcastWarning)
    world = lognormal_world(options.items, LAST + HORIZON + 1, HORIZON, options.world_seed)
    with lock(shared=True):
        models: dict[str, Any] = {"oracle": oracle_paths(world, options.paths)}
        trained = {}
        for model in NETWORKS:
            models[model], seconds, _ = network_paths(world, model, options)
            trained[model] = seconds
        results = {f"lead_time {lead}": measured(world, models, lead) for lead in LEAD_TIMES}
    record = {"results": results, "seconds to train": trained, "seconds": time.time() - start}
    print(write_record("network_orders", record))


if __name__ == "__main__":
    main()
