"""Pack a Parquet panel of more than 4 GB, and read an epoch of it, within 2 GiB of anonymous memory.

    .venv/bin/python -m lab benchmark larger_than_memory [--gigabytes 3.3] [--no-record]

The files are laid out as in practice: one per period, each with rows of all series in no order, so that all rows have
to be sorted out of core. Two processes are supervised, and ended if their anonymous memory exceeds 2 GiB (mapped file
pages do not count): one packs, the other reads every batch of an epoch and then trains a stand-in network (the
convolutional encoder and shared decoder of an MQ-CNN) for 150 steps, counting the seconds it waits for data.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.benchmarks import harness

NUM_SERIES, NUM_FILES, NUM_NUMBERS = 20_000, 12, 16
LIMIT_GIB, TRAIN_STEPS = 2.0, 150
KNOWN = [f"known_{i}" for i in range(NUM_NUMBERS - 4)]
PAST = [f"past_{i}" for i in range(4)]
FOLDER = harness.DATA / "larger-than-memory"


def make_files(gigabytes: float) -> Path:
    """Random numbers do not compress: with ids and dates the files take a third more than `gigabytes`."""
    num_steps = int(gigabytes * 1e9 / (4 * (NUM_NUMBERS + 1) * NUM_SERIES))
    folder = FOLDER / f"rows-{NUM_SERIES}x{num_steps}"
    if (folder / "done").exists():
        return folder
    shutil.rmtree(FOLDER, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    names = pa.array([f"item-{i:05}" for i in range(NUM_SERIES)])
    kinds = pa.array(["none", "coupon", "display", "both"])
    for part, days in enumerate(np.array_split(np.arange(num_steps), NUM_FILES)):
        with pq.ParquetWriter(folder / f"{part:02}.parquet", _schema()) as writer:
            for chunk in np.array_split(days, max(1, len(days) // 25)):
                series, day = (grid.ravel() for grid in np.meshgrid(np.arange(NUM_SERIES), chunk))
                order = rng.permutation(series.size)
                numbers = rng.standard_normal((NUM_NUMBERS, series.size), dtype=np.float32)
                columns = [
                    pa.DictionaryArray.from_arrays(pa.array(series[order].astype(np.int32)), names),
                    pa.array((day[order] * 86_400_000_000).astype("M8[us]")),
                    pa.array(rng.gamma(2.0, 5.0, series.size).astype(np.float32)),
                    pa.DictionaryArray.from_arrays(pa.array(rng.integers(4, size=series.size, dtype=np.int32)), kinds),
                    *(pa.array(column) for column in numbers),
                ]
                writer.write_table(pa.table(columns, schema=_schema()))
    (folder / "done").touch()
    return folder


def _schema() -> pa.Schema:
    text = pa.dictionary(pa.int32(), pa.string())
    head = [("unique_id", text), ("ds", pa.timestamp("us")), ("y", pa.float32()), ("promo", text)]
    return pa.schema(head + [(name, pa.float32()) for name in KNOWN + PAST])


def pack_files(files: Path, folder: Path) -> None:
    from lab.peers.clock import Clock
    from mqcast import Schema, pack

    clock = Clock()
    panel = pack(str(files / "*.parquet"), folder, Schema(freq="D", known=("promo", *KNOWN), past=tuple(PAST)))
    clock.mark("pack")
    clock.report(("mqcast", "duckdb", "pyarrow"), series=panel.num_series, rows=panel.num_rows)


def read_and_train(folder: Path) -> None:
    import torch

    from lab.benchmarks.stand_in import StandIn
    from lab.peers.clock import Clock
    from mqcast import Panel
    from mqcast.data.batch import Assembler
    from mqcast.data.parallel import ahead
    from mqcast.data.windows import WindowPlan
    from mqcast.settings import ScalingConfig, WindowConfig

    clock = Clock()
    panel = Panel.open(folder)
    config = WindowConfig(horizon=28, history=128, num_fcts=512, batch_size=32, reach=27)
    assemble = Assembler.fit(panel, config, ScalingConfig())
    plan = WindowPlan(panel, config)
    clock.mark("fit")
    trajectories = sum(
        int(batch.is_fct.sum()) for batch in ahead((assemble(plan.batch(0, i)) for i in range(plan.num_batches(0))), 2)
    )
    clock.mark("epoch")
    torch.manual_seed(0)
    network = StandIn(panel, config.horizon)
    optimiser = torch.optim.Adam(network.parameters())
    waits, steps = [], []
    batches = ahead((assemble(plan.batch(1, i)) for i in range(plan.num_batches(1))), 2)
    for _ in range(TRAIN_STEPS):
        started = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - started)
        optimiser.zero_grad()
        network.loss(batch).backward()
        optimiser.step()
        steps.append(time.perf_counter() - started)
    batches.close()
    clock.mark("train")
    detail = {"trajectories": trajectories, "batches": plan.num_batches(0), "step_s": float(np.median(steps))}
    detail |= {"wait_share": sum(waits[5:]) / sum(steps[5:]), "wait_median_s": float(np.median(waits))}
    clock.report(("mqcast", "torch", "numpy"), **detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.3)
    parser.add_argument("--no-record", action="store_true", help="print the figures, write no record")
    parser.add_argument("--stage", choices=("pack", "train"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    packed = FOLDER / "panel"
    if args.stage == "pack":
        return pack_files(make_files(args.gigabytes), packed)
    if args.stage == "train":
        return read_and_train(packed)
    with harness.lock():
        try:
            body = measure(make_files(args.gigabytes), packed, args.gigabytes)
        finally:
            shutil.rmtree(FOLDER, ignore_errors=True)
    if not args.no_record:
        print(f"wrote {harness.write_record('larger_than_memory', body).relative_to(harness.ROOT)}")
    print(json.dumps(body))
    return None


def measure(files: Path, packed: Path, gigabytes: float) -> dict:
    size = sum(file.stat().st_size for file in files.glob("*.parquet"))
    print(f"{size / 1e9:.2f} GB of Parquet in {NUM_FILES} files", flush=True)
    body: dict = {"parquet_bytes": size, "limit_gib": LIMIT_GIB}
    for stage in ("pack", "train"):
        command = [
            sys.executable,
            "-m",
            "lab.benchmarks.larger_than_memory",
            "--gigabytes",
            str(gigabytes),
            "--stage",
            stage,
        ]
        body[stage] = harness.run(command, memory_gib=LIMIT_GIB, seconds=1800)
        print(stage, body[stage], flush=True)
    body["panel_bytes"] = sum(file.stat().st_size for file in packed.rglob("*") if file.is_file())
    return body


if __name__ == "__main__":
    main()
