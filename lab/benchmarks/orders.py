"""Orders from the oracle's paths beside orders from its weekly quantiles, on a simulated retailer.

    python -m lab benchmark orders [--items 1000] [--paths 400] [--world-seed 0]

104 weeks of sales, then 40 weekly reviews. A unit held for a week costs 1, a unit short 9; what is short is delivered
later. Paths are draws from the exact distribution of the coming weeks together; quantiles are the exact ones of single
weeks, joined as if weeks were independent, half correlated (the default), or added up.
Writes lab/results/benchmarks/orders.json.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from lab.benchmarks.harness import lock, write_record
from mqcast.decide import Policy, replay
from mqcast.simulate import lognormal_world

FIRST, LAST, HORIZON = 104, 143, 9
LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
JOINED = {"independent weeks": 0.0, "half correlated weeks": 0.5, "summed quantiles": 1.0}


@dataclass(frozen=True, eq=False)
class Drawn:
    ids: list[str]
    cutoffs: np.ndarray
    dates: np.ndarray
    values: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"items": 1000, "paths": 400, "world-seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    world = lognormal_world(options.items, LAST + HORIZON, HORIZON, options.world_seed)
    weeks, ids = world.events["ds"].to_numpy(), world.static["unique_id"].to_list()
    paths = []
    for t in range(FIRST, LAST + 1):
        cutoffs = np.full(len(ids), weeks[t])
        dates = np.broadcast_to(weeks[t + 1 : t + 1 + HORIZON], (len(ids), HORIZON))
        paths.append(Drawn(ids, cutoffs, dates, world.oracle.paths(t, options.paths, seed=t).astype(np.float32)))
    frame, results = world.oracle_forecasts(LEVELS, FIRST, LAST), {}
    start = time.time()
    with lock(shared=True):
        for lead_time in (0, 3, 7):
            policy = Policy(lead_time, 1, holding_cost=1.0, shortage_cost=9.0, unmet="backordered")
            results[f"lead_time {lead_time}"] = {
                name: _compared(paths, frame, world.actuals, policy, correlation)
                for name, correlation in JOINED.items()
            }
    print(write_record("orders", {"results": results, "seconds": time.time() - start}))


def _compared(paths: list[Drawn], frame, actuals, policy: Policy, correlation: float) -> dict:
    models = {"quantiles": frame, "paths": paths}
    found = replay(models, actuals, policy, baseline="quantiles", correlation=correlation)
    summary = {row.pop("forecaster"): row for row in found.summary.to_dicts()}
    differences = {row["measure"]: [row["difference"], row["lo"], row["hi"]] for row in found.differences.to_dicts()}
    print(policy.lead_time, correlation, {name: round(row["cost"], 2) for name, row in summary.items()}, flush=True)
    return {"summary": summary, "paths_less_quantiles": differences}


if __name__ == "__main__":
    main()
