"""The compiled decoder beside plain PyTorch: training steps and forecasts, interleaved, in one process.

    .venv/bin/python -m lab benchmark kernels [--rounds 3]

Each round trains MQT and MQT-NoDS for a few steps, with and without the kernels in turn, at the sizes of
versus_peers.py (24 hours ahead after 168, hidden size 64), and forecasts the last 100 cutoffs of 60 series. CPU time of
one thread. Writes lab/results/benchmarks/kernels.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

import torch

from lab.benchmarks import harness
from lab.benchmarks.pack import make_file
from mqcast import Panel, Schema
from mqcast.forecast.predict import forecast
from mqcast.launch import keep_pages
from mqcast.nn import kernels
from mqcast.run import Run
from mqcast.settings import RunConfig
from mqcast.train.loop import fit
from mqcast.train.records import Step

SERIES, STEPS, CUTOFFS, TIMED, SKIPPED, HORIZON, HISTORY = 60, 3_000, 100, 4, 2, 24, 168
SCHEMA = Schema(freq="h", static=("unique_id",), calendar=("hour_of_day", "day_of_week"))
WAYS = {"kernels": "on", "plain": "off"}


def config(model: str) -> RunConfig:
    window = {"horizon": HORIZON, "history": HISTORY, "min_history": HISTORY, "partial_horizon": False}
    return RunConfig(
        window=window | {"num_fcts": 601, "batch_size": 12},  # pyright: ignore
        model={"model": model, "hidden_dim": 64, "lookback": HISTORY - 1},  # pyright: ignore
        train={"patience": "none", "micro_batch": 6, "max_steps": SKIPPED + TIMED},  # pyright: ignore
    )


def measure(panel: Panel, model: str, way: str, folder: Path) -> dict[str, float]:
    """Microseconds of CPU a trajectory in training, and a forecast in a backtest."""
    os.environ[kernels.ENV_VAR] = WAYS[way]
    kernels._kernels.cache_clear()
    assert (kernels.status() == kernels.COMPILED) == (way == "kernels"), kernels.status()
    marks = []

    def listen(record: object) -> None:
        if isinstance(record, Step):
            marks.append((time.process_time(), record.trajectories))

    fit(panel, config(model), folder, listeners=(listen,))
    (began, before), (ended, after) = marks[SKIPPED - 1], marks[-1]
    last = datetime(1970, 1, 1) + timedelta(microseconds=panel.span[1]) - timedelta(hours=HORIZON)
    started = time.process_time()
    forecast(Run.open(folder), panel, folder / "out.parquet", first=last - timedelta(hours=CUTOFFS - 1), last=last)
    rolled = time.process_time() - started
    return {
        "trajectory_us": 1e6 * (ended - began) / (after - before),
        "forecast_us": 1e6 * rolled / SERIES / CUTOFFS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    keep_pages()
    torch.set_num_threads(1)
    runs = []
    with harness.lock(), tempfile.TemporaryDirectory() as scratch:
        panel = Panel.from_frame(make_file(SERIES, STEPS), SCHEMA)
        for number in range(rounds):
            for model in ("mqt", "mqt-nods"):
                for way in WAYS if number % 2 else reversed(WAYS):
                    figures = measure(panel, model, way, Path(scratch) / f"{model}-{way}-{number}")
                    runs.append({"round": number, "model": model, "way": way, **figures})
                    print(runs[-1], flush=True)
    ratios = {}
    for model in ("mqt", "mqt-nods"):
        for key in ("trajectory_us", "forecast_us"):
            each = [
                next(run[key] for run in runs if (run["round"], run["model"], run["way"]) == (number, model, way))
                for number in range(rounds)
                for way in WAYS
            ]
            of_rounds = [plain / kernel for kernel, plain in zip(each[::2], each[1::2], strict=True)]
            ratios[f"{model} {key}, plain over kernels"] = {
                "median": statistics.median(of_rounds),
                "least": min(of_rounds),
                "most": max(of_rounds),
            }
    for name, figures in ratios.items():
        print(name, {key: round(value, 2) for key, value in figures.items()})
    print(harness.write_record("kernels", {"ratios": ratios, "runs": runs}))


if __name__ == "__main__":
    sys.exit(main())
