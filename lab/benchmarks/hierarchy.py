"""Time to reconcile 42,840 series of M5's shape: 30,490 items in stores and 12,350 totals, 28 days ahead.

    python -m lab benchmark hierarchy [--paths 20] [--rounds 3]

Items and totals are drawn; a round times the twelve levels' totals of all paths, and the reconciliation of the items'
paths with independent paths of totals, by variances and by structure. Largest gap: of a total from the sum of its
items, over the total, in any path. Writes lab/results/benchmarks/hierarchy.json.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from lab.benchmarks.harness import lock, write_record
from mqcast.decide import Hierarchy, reconcile, totals

NUM_ITEMS, HORIZON = 3049, 28
STORES = {f"{state}_{i}": state for state, count in (("CA", 4), ("TX", 3), ("WI", 3)) for i in range(1, count + 1)}
DEPARTMENTS = {"HOBBIES_1": 416, "HOBBIES_2": 149, "HOUSEHOLD_1": 532, "HOUSEHOLD_2": 515, "FOODS_1": 216}
DEPARTMENTS |= {"FOODS_2": 398, "FOODS_3": 823}
BY = ["state", "store", "category", "department", ("state", "category"), ("state", "department")]
BY += [("store", "category"), ("store", "department"), "item", ("state", "item")]


@dataclass(frozen=True, eq=False)
class Drawn:
    ids: list[str]
    cutoffs: np.ndarray
    dates: np.ndarray
    values: np.ndarray


def static() -> pl.DataFrame:
    items = [(f"{name}_{i:03d}", name) for name, count in DEPARTMENTS.items() for i in range(count)]
    rows = [(f"{item}_{store}", item, name, store) for store in STORES for item, name in items]
    table = pl.DataFrame(rows, ["unique_id", "item", "department", "store"], orient="row")
    category, state = pl.col("department").str.split("_").list.first(), pl.col("store").replace_strict(STORES)
    return table.with_columns(category=category, state=state)


def measure(num_paths: int, seed: int) -> dict:
    table, rng = static(), np.random.default_rng(seed)
    start = time.perf_counter()
    hierarchy = Hierarchy.of(table, BY)
    built = time.perf_counter() - start
    cutoffs = np.full(len(table), np.datetime64("2016-05-22", "us"))
    dates = cutoffs[:, None] + np.timedelta64(1, "D") * np.arange(1, HORIZON + 1)
    means = rng.gamma(0.5, 3.0, (len(table), 1, 1))
    items = Drawn(list(hierarchy.items), cutoffs, dates, rng.gamma(1.0, means, (len(table), HORIZON, num_paths)))
    start = time.perf_counter()
    summed = totals(items, hierarchy)
    added = time.perf_counter() - start
    given = replace(summed, values=summed.values * rng.gamma(400.0, 1 / 400, (len(summed.ids), 1, 1)))
    facts = {"series": len(table) + len(summed.ids), "paths": num_paths, "build_s": built, "totals_s": added}
    for weights in ("variance", "structure"):
        start = time.perf_counter()
        moved = reconcile(items, given, hierarchy, weights)
        facts[f"reconcile_{weights}_s"] = time.perf_counter() - start
        again = totals(moved, hierarchy)
        of_departments = [i for i, name in enumerate(again.ids) if name.startswith("department=")]
        gap = np.abs(again.values[of_departments].sum(axis=0) - again.values[0]) / again.values[0]
        facts[f"largest_gap_{weights}"] = float(gap.max())
    return facts | {"peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with lock():
        rounds = [measure(options.paths, seed) for seed in range(options.rounds)]
    medians = {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}
    print(medians)
    print(write_record("hierarchy", {"medians": medians, "rounds": rounds}))


if __name__ == "__main__":
    main()
