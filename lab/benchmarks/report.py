"""Time and size of reports, and time to load them: a large backtest of two models with its panel, and one item.

    python -m lab benchmark report [--items 30000] [--cutoffs 39] [--rounds 3]

Time is from frames in memory to the file, 13 weeks ahead, two levels; memory is the process' peak, frames included.
Loading is by Chromium (make browser), from opening the file to its first figure.
Writes lab/results/benchmarks/report.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from lab.benchmarks.harness import lock, run, write_record

HORIZON, WEEKS, LEVELS = 13, 156, (0.5, 0.9)


def measure(options: argparse.Namespace) -> dict:
    from mqcast import Panel
    from mqcast.report.write import write_report
    from mqcast.simulate import lognormal_world

    world = lognormal_world(options.items, WEEKS, HORIZON)
    best = world.oracle_forecasts(LEVELS, WEEKS - options.cutoffs, WEEKS - 1)
    forecasts = {"best": best, "high": best.with_columns(pl.col("^q.*$") * 1.1)}
    panel = Panel.from_frame(world.frame, world.schema, world.static, world.events)
    with tempfile.TemporaryDirectory() as folder:
        cpu, start = time.process_time(), time.perf_counter()
        path = write_report(Path(folder) / "report.html", forecasts, world.actuals, panel=panel)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        return {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "rows": len(best),
            "bytes": path.stat().st_size,
            "load_seconds": load(path),
        }


def load(path: Path) -> float | None:
    """Seconds until the first figure is drawn; None without a browser."""
    from playwright.sync_api import sync_playwright

    if (chromium := shutil.which("chromium")) is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 2000})
        start = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_selector(".plot .main-svg")
        seconds = time.perf_counter() - start
        browser.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"items": 30_000, "cutoffs": 39, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure(options)))
        return
    rounds: dict[str, list[dict]] = {"many": [], "one item": []}
    with lock():
        for _ in range(options.rounds):
            for name, items in (("many", options.items), ("one item", 1)):
                command = [sys.executable, "-m", "lab.benchmarks.report", "--once"]
                command += [f"--items={items}", f"--cutoffs={options.cutoffs}"]
                rounds[name].append(run(command))
                print(name, rounds[name][-1], flush=True)
    keys = ("seconds", "cpu_seconds", "peak_gib", "bytes", "load_seconds")
    medians = {
        name: {key: float(np.median([one[key] for one in runs])) for key in keys} for name, runs in rounds.items()
    }
    print(write_record("report", {"medians": medians, "rounds": rounds}))


if __name__ == "__main__":
    main()
