"""How the time of an epoch and memory grow with the number of series, and as T, H and L double.

    .venv/bin/python -m lab benchmark scaling [--rounds 3] [--quick]

Each size trains a few epochs with `mqcast fit` in one process; the first epoch does not count. Exponents are slopes of
log time over log size. The data side is measured separately, in a process that opens the panel and draws an epoch of
batches without a network: bytes of the panel's arrays, and memory beyond the imports. Merged into
lab/results/benchmarks/throughput.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lab.benchmarks import harness
from lab.benchmarks.pack import make_file
from lab.benchmarks.throughput_table import RECORD, write_table
from lab.peers.versus import Gauge, tree_anon_mb
from mqcast.settings import RunConfig

BASE = {"series": 96, "steps": 800, "horizon": 12, "lookback": 48}
SHORT = {"steps": 200}  # per series, where the number of series grows
GROWTH = {
    "series": [32, 320, 3200],
    "T (steps a series)": [400, 800, 1600],
    "H (horizon)": [12, 24, 48],
    "L (look-back and history)": [48, 96, 192],
}
QUICK_GROWTH = {"series": [8, 32], "T (steps a series)": [200, 400], "H (horizon)": [6, 12]}
QUICK_GROWTH |= {"L (look-back and history)": [24, 48]}
FIELD = dict(zip(GROWTH, BASE, strict=True))
NUM_FCTS, BATCH, MICRO_BATCH, HIDDEN, EPOCHS = 96, 32, 8, 32, 3


def window_of(size: dict) -> dict:
    window = {"horizon": size["horizon"], "history": size["lookback"], "min_history": size["lookback"]}
    return {**window, "partial_horizon": False, "num_fcts": NUM_FCTS, "batch_size": BATCH}


def packed(size: dict, scratch: Path) -> Path:
    """A packed panel with this number of series and steps."""
    from mqcast import Schema
    from mqcast.data.panel import pack

    folder = scratch / f"panel-{size['series']}x{size['steps']}"
    if not folder.exists():
        schema = Schema(freq="h", static=("unique_id",), calendar=("hour_of_day", "day_of_week"))
        pack(make_file(size["series"], size["steps"]), folder, schema)
    return folder


def train(panel: Path, size: dict, epochs: int) -> dict:
    """Seconds of an epoch after the first, and the peak memory of training."""
    tables = {
        "window": window_of(size),
        "model": {"hidden_dim": HIDDEN, "lookback": size["lookback"]},
        "train": {"patience": "none", "micro_batch": MICRO_BATCH, "max_epochs": epochs},
    }
    with tempfile.TemporaryDirectory() as folder:
        run, file = Path(folder) / "run", Path(folder) / "run.toml"
        file.write_text(RunConfig(**tables).to_toml())
        command = [sys.executable, "-m", "mqcast", "fit", str(panel), str(run), "--processes", "1", "--json"]
        command += ["--config", str(file)]
        where = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=where)
        with Gauge(process.pid) as gauge:
            _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{size}: {errors}")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ends = [line["seconds"] for line in lines if line["record"] == "epoch"]
    made = [line["trajectories"] for line in lines if line["record"] == "epoch"]
    return {"epoch_s": float(np.median(np.diff(ends))), "trajectories": made[0], "peak_mb": gauge.peak_mb}


def draw(panel: str, size: str) -> None:
    """In a process of its own: draw an epoch of batches and print the memory of the data side."""
    from mqcast import Panel
    from mqcast.data.batch import Assembler
    from mqcast.data.parallel import ahead
    from mqcast.data.windows import WindowPlan
    from mqcast.settings import ScalingConfig, WindowConfig

    before = tree_anon_mb(os.getpid())
    config = WindowConfig(**window_of(json.loads(size)))
    data = Panel.open(panel)
    assemble, plan = Assembler.fit(data, config, ScalingConfig()), WindowPlan(data, config)
    with Gauge(os.getpid()) as gauge:
        count = sum(1 for _ in ahead((assemble(plan.batch(0, i)) for i in range(plan.num_batches(0))), 2))
        time.sleep(0.2)  # one more reading of the gauge
    arrays = sum(array.nbytes for array in data.arrays.values())
    print(json.dumps({"panel_mb": arrays / 2**20, "data_mb": gauge.peak_mb - before, "batches": count}))


def sizes_of(what: str, values: list[int]) -> list[dict]:
    base = BASE | SHORT if what == "series" else BASE
    return [base | {FIELD[what]: value} for value in values]


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of a least-squares line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def measure(growth: dict[str, list[int]], scratch: Path, epochs: int) -> dict[str, list[dict]]:
    """One round: every size of everything that grows."""
    by_size: dict[str, list[dict]] = {}
    for what, values in growth.items():
        for size in sizes_of(what, values):
            panel = packed(size, scratch)
            drawn = harness.run([sys.executable, "-m", "lab.benchmarks.scaling", "--draw", panel, json.dumps(size)])
            if "failed" in drawn:
                raise SystemExit(f"{size}: {drawn['failed']}")
            run = {"size": size[FIELD[what]], **train(panel, size, epochs), **drawn}
            by_size.setdefault(what, []).append(run)
            print(what, {key: v if isinstance(v, str) else round(v, 3) for key, v in run.items()}, flush=True)
    return by_size


def summary(rounds: list[dict[str, list[dict]]]) -> dict[str, dict]:
    """Medians over rounds, and exponents of time and memory."""
    by_size = {}
    for what in rounds[0]:
        sizes = [run["size"] for run in rounds[0][what]]
        each = {
            key: [statistics.median(r[what][i][key] for r in rounds) for i in range(len(sizes))]
            for key in ("epoch_s", "trajectories", "peak_mb", "panel_mb", "data_mb")
        }
        a_trajectory = [seconds / made for seconds, made in zip(each["epoch_s"], each["trajectories"], strict=True)]
        slopes = {
            "exponent": exponent(sizes, each["epoch_s"]),
            "exponent_a_trajectory": exponent(sizes, a_trajectory),
            "memory_exponent": exponent(sizes, each["peak_mb"]),
            "panel_exponent": exponent(sizes, each["panel_mb"]),
        }
        by_size[what] = {"sizes": sizes, **each, **slopes}
    return by_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round; the record goes to .data")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    growth, count, epochs = (QUICK_GROWTH, 1, 2) if args.quick else (GROWTH, args.rounds, EPOCHS)
    record = harness.DATA / "throughput.json" if args.quick else RECORD
    setting = {
        "base": BASE,
        "short": SHORT,
        "num_fcts": NUM_FCTS,
        "batch_size": BATCH,
        "micro_batch": MICRO_BATCH,
        "hidden": HIDDEN,
    }
    rounds: list[dict[str, list[dict]]] = []
    with harness.lock(), tempfile.TemporaryDirectory() as scratch:
        for _ in range(count):
            rounds.append(measure(growth, Path(scratch), epochs))
            of_series = [
                exponent([run["size"] for run in r["series"]], [run["epoch_s"] for run in r["series"]]) for r in rounds
            ]
            keys = harness.spread("series_exponent", of_series, "<= 1.02")
            body = {"setting": {**setting, "epochs": epochs}, "growth": summary(rounds), "runs": rounds}
            harness.merge_record(record, "scaling", keys, body)
    for name, figure in keys.items():
        print(f"{name}: {figure['median']:.3f} ({figure['least']:.3f} to {figure['most']:.3f}); goal {figure['goal']}")
    if not args.quick:
        write_table()
    print(f"wrote {record.relative_to(harness.ROOT)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        draw(*sys.argv[2:])
    else:
        main()
