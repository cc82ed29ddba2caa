"""Latency of a loaded forecaster, cold start, and sizes of the pages.

    python -m lab benchmark latency [--items 3000] [--rounds 5] [--forecaster FOLDER]

A default 13-week weekly model with promotions and prices, trained for three steps (its speed does not depend on the
weights), or a saved forecaster that is given. Each round is a process of its own. `cold` is the CPU time of a process
that imports Forecaster and loads the folder; `one` and `all` are forecasts of one item and of all by `predict`: medians
of seconds on the clock and of CPU, and the quickest on the clock. `page` is `forecaster.page`, `report` a report on
seasonal naive's backtest of the same items. Writes lab/results/benchmarks/latency.json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lab.benchmarks.harness import lock, run, write_record

HORIZON, WEEKS, STEPS = 13, 120, 3
GOALS = {"cold cpu_s": 1.5, "one median_s": 0.005, "all median_s": 0.5}


def sales(items: int):
    """Poisson sales with promotions and prices, known 13 weeks ahead."""
    import polars as pl

    rng, span = np.random.default_rng(0), WEEKS + HORIZON
    promo = rng.random((items, span)) < 0.15
    price = np.round(rng.uniform(5, 20, (items, 1)) * np.where(promo, 0.8, 1.0), 2)
    y = rng.poisson(rng.gamma(2, 10, (items, 1)) * np.where(promo, 1.8, 1.0)).astype(float)
    y[:, WEEKS:] = np.nan
    weeks = [dt.datetime(2022, 1, 2) + dt.timedelta(weeks=i) for i in range(span)]
    columns = {"y": y.ravel(), "promo": promo.ravel().astype(int), "price": price.ravel()}
    ids = np.repeat([f"item {i:06}" for i in range(items)], span)
    return pl.DataFrame({"unique_id": ids, "ds": weeks * items, **columns}).with_columns(pl.col("y").fill_nan(None))


def make(folder: Path, items: int) -> None:
    from mqcast import Forecaster

    schema = {"known": ["promo", "price"], "holidays": ["US"]}
    Forecaster(horizon=HORIZON, schema=schema, max_steps=STEPS, verbose=False).fit(sales(items)).save(folder)


def timed(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Medians of seconds on the clock and of CPU, after one call that is not counted; and the quickest."""
    work()
    clock, cpu = [], []
    for _ in range(repeats):
        before = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - before[0])
        cpu.append(time.process_time() - before[1])
    return {"median_s": statistics.median(clock), "least_s": min(clock), "cpu_s": statistics.median(cpu)}


def measure(folder: Path) -> dict:
    """One round: this process has imported nothing of mqcast before."""
    before = time.process_time()
    from mqcast import Forecaster

    forecaster = Forecaster.load(folder)
    found = {"cold": {"cpu_s": time.process_time() - before}}
    one = forecaster.panel_.ids[len(forecaster.panel_.ids) // 2].as_py()
    found["one"] = timed(lambda: forecaster.predict(ids=one), 30)
    found["all"] = timed(forecaster.predict, 3)
    with tempfile.TemporaryDirectory() as place:
        before = time.perf_counter()
        page = forecaster.page(Path(place) / "page.html")
        found["page"] = {"seconds": time.perf_counter() - before, "bytes": page.stat().st_size}
        naive = Forecaster("seasonal-naive", forecaster.horizon, forecaster.quantiles)
        naive.backtest(forecaster.panel_)
        before = time.perf_counter()
        report = naive.report(Path(place) / "report.html")
        found["report"] = {"seconds": time.perf_counter() - before, "bytes": report.stat().st_size}
    return found


def spreads(rounds: list[dict]) -> dict[str, dict]:
    """Of each figure: the median of the rounds, the least and the most, and whether the goal is met."""
    figures = {}
    for part, keys in rounds[0].items():
        for key in keys if isinstance(keys, dict) else ():
            each = [one[part][key] for one in rounds]
            name = f"{part} {key}"
            figures[name] = {"median": statistics.median(each), "least": min(each), "most": max(each)}
            if name in GOALS:
                figures[name] |= {"goal": GOALS[name], "reached": figures[name]["median"] <= GOALS[name]}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--forecaster", type=Path)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure(options.once)))
        return
    with lock(), tempfile.TemporaryDirectory() as place:
        folder = options.forecaster
        if folder is None:
            make(folder := Path(place) / "saved", options.items)
        command = [sys.executable, "-m", "lab.benchmarks.latency", "--once", str(folder)]
        rounds = []
        for _ in range(options.rounds):
            rounds.append(run(command))
            print(rounds[-1], flush=True)
            if "failed" in rounds[-1]:
                raise SystemExit(1)
    print(write_record("latency", {"figures": spreads(rounds), "rounds": rounds}))


if __name__ == "__main__":
    main()
