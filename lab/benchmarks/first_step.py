"""Seconds from `mqcast fit` to the first training step, and memory, on many short series.

    python -m lab benchmark first_step [--series 1000000] [--weeks 60] [--rounds 3]

The panel, weekly sales with promotions and prices known 13 weeks ahead, is packed first, which does not count. Then
the command runs with its default settings, in one process, until `metrics.jsonl` has a first step (of the rehearsal),
and is ended. Writes lab/results/benchmarks/first_step.json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.benchmarks import harness
from lab.peers.versus import Gauge

HORIZON, SERIES_A_PART, LONGEST_S, POLL_S = 13, 20_000, 900.0, 0.05
GOAL = 30.0


def make_panel(folder: Path, series: int, weeks: int) -> dict[str, float]:
    """Pack Poisson sales; the seconds that it took."""
    from mqcast import Schema, pack

    file, rng, span = folder / "sales.parquet", np.random.default_rng(0), weeks + HORIZON
    dates = pa.array([dt.datetime(2022, 1, 2) + dt.timedelta(weeks=i) for i in range(span)], pa.timestamp("us"))
    writer = None
    for first in range(0, series, SERIES_A_PART):
        num = min(SERIES_A_PART, series - first)
        promo = rng.random((num, span)) < 0.15
        price = np.round(rng.uniform(5, 20, (num, 1)) * np.where(promo, 0.8, 1.0), 2)
        y = rng.poisson(rng.gamma(2, 10, (num, 1)) * np.where(promo, 1.8, 1.0)).astype(float)
        is_plan = np.broadcast_to(np.arange(span) >= weeks, y.shape)
        table = pa.table(
            {
                "unique_id": pa.array([f"item {i:07}" for i in range(first, first + num) for _ in range(span)]),
                "ds": pa.concat_arrays([dates] * num),
                "y": pa.array(y.ravel(), mask=is_plan.ravel()),
                "promo": pa.array(promo.ravel().astype(np.int8)),
                "price": pa.array(price.ravel()),
            }
        )
        writer = pq.ParquetWriter(file, table.schema) if writer is None else writer
        writer.write_table(table)
    assert writer is not None
    writer.close()
    begun = time.perf_counter()
    pack(file, folder / "panel", Schema(known=("promo", "price"), holidays=("US",)))
    file.unlink()
    return {"pack_s": time.perf_counter() - begun}


def first_step(panel: Path, place: Path) -> dict[str, float]:
    """Seconds from the command to its first step, and the peak of its anonymous memory until then."""
    run = place / "run"
    command = [sys.executable, "-m", "mqcast", "fit", str(panel), str(run), "--horizon", str(HORIZON)]
    command += ["--processes", "1", "--set", "train.log_every=1", "--json"]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with Gauge(process.pid) as gauge:
        while not any('"step"' in file.read_text() for file in run.rglob("metrics.jsonl")):
            if process.poll() is not None:
                raise SystemExit(f"the fit ended: {process.communicate()[1][-500:]}")
            if time.perf_counter() - begun > LONGEST_S:
                process.kill()
                raise SystemExit(f"no step within {LONGEST_S:g} s")
            time.sleep(POLL_S)
        seconds = time.perf_counter() - begun
        ticks = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    process.send_signal(signal.SIGKILL)
    process.wait()
    return {"first_step_s": seconds, "cpu_s": ticks / 100, "peak_mb": gauge.peak_mb}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=1_000_000)
    parser.add_argument("--weeks", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-record", action="store_true")
    options = parser.parse_args()
    with harness.lock(), tempfile.TemporaryDirectory() as place:
        facts = make_panel(Path(place), options.series, options.weeks)
        print(facts, flush=True)
        rounds = []
        for number in range(options.rounds):
            (folder := Path(place) / f"round-{number}").mkdir()
            before = harness._others_cpu()
            rounds.append(first_step(Path(place) / "panel", folder))
            rounds[-1]["others_cpu_s"] = round(max(0.0, harness._others_cpu() - before), 1)
            print(rounds[-1], flush=True)
    figures = harness.spread("first_step_s", [one["first_step_s"] for one in rounds], f"<= {GOAL:g}")
    for name in ("cpu_s", "peak_mb"):
        figures |= harness.spread(name, [one[name] for one in rounds], ">= 0")
    if not options.no_record:
        print(harness.write_record("first_step", {**facts, "figures": figures, "rounds": rounds}))


if __name__ == "__main__":
    main()
