"""Training trajectories per second: with and without forking, processes and threads, sizes of micro-batch.

    python -m lab benchmark training [--rounds 3] [--steps 24]

One network, one panel; each variant is a run of `mqcast fit`, in interleaved rounds. A trajectory is one (series,
creation time) with its whole horizon in the loss. The rate is that of the steps after the first few, loading included.
Writes lab/results/benchmarks/training.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from lab.benchmarks.harness import lock, write_record
from mqcast.data.panel import pack
from mqcast.settings import RunConfig
from mqcast.settings.merge import assigned, tables_of
from mqcast.simulate import lognormal_world

HORIZON, SKIPPED = 26, 4
WINDOW = {"horizon": HORIZON, "history": 104, "num_fcts": 52, "batch_size": 32}
COMMON = {"scaling.by": '"past"', "scaling.log1p": "true", "model.lookback": 104, "train.patience": '"none"'}
WAYS: dict[str, dict] = {
    "2 processes": {"processes": 2},
    "1 process, 2 threads": {"processes": 1, "train.num_threads": 2},
    "1 process, 1 thread": {"processes": 1},
    "2 processes, without forking": {"processes": 2, "forking": False},
    "2 processes, micro-batch 4": {"processes": 2, "train.micro_batch": 4},
    "2 processes, micro-batch 16": {"processes": 2, "train.micro_batch": 16},
}


def measure(panel: Path, way: dict, steps: int) -> dict[str, float]:
    """Trajectories and steps a second of one run."""
    window = dict(WINDOW)
    if not way.get("forking", True):
        window |= {"history": WINDOW["history"] + WINDOW["num_fcts"] - 1, "num_fcts": 1, "aligned": "false"}
        window |= {"num_trajectories": WINDOW["batch_size"] * steps}
    values = {f"window.{key}": value for key, value in window.items()} | COMMON
    values |= {key: value for key, value in way.items() if "." in key}
    values |= {"train.max_steps": steps, "train.log_every": 1}
    changes = [f"{key}={value}" for key, value in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "mqcast",
            "fit",
            str(panel),
            str(run),
            "--processes",
            str(way["processes"]),
            "--json",
        ]
        (Path(folder) / "run.toml").write_text(RunConfig(**tables_of([assigned(changes)])).to_toml())
        command += ["--config", f"{folder}/run.toml"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": ""}
        )
        if done.returncode:
            raise SystemExit(f"{way}: {done.stderr}")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    step_lines = [line for line in lines if line["record"] == "step"][SKIPPED - 1 :]
    seconds = step_lines[-1]["seconds"] - step_lines[0]["seconds"]
    return {
        "trajectories_per_second": (step_lines[-1]["trajectories"] - step_lines[0]["trajectories"]) / seconds,
        "seconds_per_step": seconds / (len(step_lines) - 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    rounds: list[dict[str, dict[str, float]]] = []
    try:
        with lock():
            world = lognormal_world(800, 208, HORIZON, seed=0)
            world.frame.write_parquet(scratch / "sales.parquet")
            pack(scratch / "sales.parquet", scratch / "panel", world.schema, world.static, world.events)
            for number in range(options.rounds):
                rounds.append({})
                for way in options.ways:
                    rounds[-1][way] = measure(scratch / "panel", WAYS[way], options.steps)
                    print(number, way, {k: round(v, 3) for k, v in rounds[-1][way].items()}, flush=True)
    finally:
        shutil.rmtree(scratch)
    first = options.ways[0]
    rates = {way: [r[way]["trajectories_per_second"] for r in rounds] for way in options.ways}
    ratios = {way: [a / b for a, b in zip(rates[way], rates[first], strict=True)] for way in options.ways}
    record = {
        "command": f"python -m lab benchmark training --rounds {options.rounds} --steps {options.steps}",
        "window": WINDOW,
        "trajectories_per_second": {way: {"median": float(np.median(v)), "all": v} for way, v in rates.items()},
        f"over_{first}": {
            way: {"median": float(np.median(v)), "least": min(v), "most": max(v)} for way, v in ratios.items()
        },
    }
    print(write_record("training", record))


if __name__ == "__main__":
    main()
