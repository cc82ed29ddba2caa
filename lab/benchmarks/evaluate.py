"""Time and memory to evaluate a large backtest: volatility of two models, paired, and accuracy.

    python -m lab benchmark evaluate [--items 30000] [--targets 28] [--leads 28] [--resamples 1000] [--rounds 3]

Frames of random forecasts in memory (polars), rows in the order a backtest writes them: by item, cutoff and lead. Each
evaluation runs in a process of its own; time is from the frames to the tables, memory is the peak, frames included.
Writes lab/results/benchmarks/evaluate.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

import numpy as np
import polars as pl

from lab.benchmarks.harness import lock, run, write_record

WAYS = ("volatility", "paired", "evaluate")


def frames(options: argparse.Namespace) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Two models' revisions, noisy and calm, and the actuals with a year before them."""
    rng = np.random.default_rng(0)
    num, leads, past = options.items, options.leads, 52
    num_cutoffs = options.targets + leads - 1
    weeks = np.datetime64("2020-01-05", "us") + np.arange(past + num_cutoffs + leads) * np.timedelta64(7, "D")
    level = rng.lognormal(3, 1, num)
    demand = level[:, None] * rng.lognormal(0, 0.4, (num, len(weeks)))
    cutoff, lead = (
        part.ravel() for part in np.meshgrid(np.arange(num_cutoffs), np.arange(1, leads + 1), indexing="ij")
    )
    complete = (cutoff + lead >= leads) & (cutoff + lead <= num_cutoffs)  # targets with every lead
    cutoff, lead = cutoff[complete], lead[complete]
    ids = pl.Series([f"item_{i:06d}" for i in range(num)]).gather(np.repeat(np.arange(num), len(lead)))
    keys = {
        "unique_id": ids,
        "cutoff": np.tile(weeks[past - 1 + cutoff], num),
        "ds": np.tile(weeks[past - 1 + cutoff + lead], num),
        "horizon": np.tile(lead.astype(np.int32), num),
    }
    models = []
    for spread in (0.2, 0.05):
        median = np.repeat(level, len(lead)) * rng.lognormal(0, spread, num * len(lead))
        models.append(pl.DataFrame(keys | {"q0.5": median, "q0.9": median * np.exp(0.4 * 1.2816)}))
    actuals = pl.DataFrame(
        {"unique_id": np.repeat(ids.unique(maintain_order=True), len(weeks)), "ds": np.tile(weeks, num)}
        | {"y": demand.ravel()}
    )
    return models[0], models[1], actuals


def judge(options: argparse.Namespace) -> dict:
    from mqcast import evaluate, volatility

    noisy, calm, actuals = frames(options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.perf_counter()
    if options.way == "evaluate":
        shown = evaluate(noisy, actuals).select("qrisk_pooled_q0.5", "mase").row(0)
    else:
        judged = volatility(noisy, actuals, resamples=options.resamples)
        shown = judged.summary["excess"].to_list()
        if options.way == "paired":
            shown += judged.reduction(volatility(calm, actuals, resamples=options.resamples))["difference"].to_list()
    return {
        "seconds": time.perf_counter() - start,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "frames_gib": before,
        "rows": len(noisy),
        "values": 2 * len(noisy),
        "found": shown,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"items": 30_000, "targets": 28, "leads": 28, "resamples": 1000, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(judge(options)))
        return
    settings = [f"--{name}={getattr(options, name)}" for name in ("items", "targets", "leads", "resamples")]
    rounds: dict[str, list[dict]] = {way: [] for way in WAYS}
    with lock():
        for number in range(options.rounds):
            for way in WAYS:
                rounds[way].append(run([sys.executable, "-m", "lab.benchmarks.evaluate", "--way", way, *settings]))
                print(number, way, rounds[way][-1], flush=True)
    medians = {
        way: {key: float(np.median([one[key] for one in runs])) for key in ("seconds", "peak_gib", "values")}
        for way, runs in rounds.items()
    }
    print(write_record("evaluate", {"medians": medians, "rounds": rounds}))


if __name__ == "__main__":
    main()
