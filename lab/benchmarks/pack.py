"""Time and peak memory from a long frame to a trainable data set: mqcast beside its peers, in one run.

    .venv/bin/python -m lab benchmark pack [--quick] [--rounds 3] [--only NAME ...]

Every contender reads the same Parquet file (sorted by series, then time), builds what it trains from, and draws one
batch of 32 windows (168 steps of history, 24 ahead). Each runs in a process of its own, peers in environments of their
own; rounds are interleaved and their order rotates. The clock starts after the imports.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from lab.benchmarks import harness

STEPS, SERIES_PER_GROUP = 5_000, 200
SIZES = {"1.85M": 370, "18.5M": 3_700}
PINS = {
    "neuralforecast": ("neuralforecast==3.3.0", "pandas==3.1.1", "numpy==2.4.6", "pyarrow==26.0.1", "polars==2.1.0"),
    "gluonts": ("gluonts[torch]==0.17.0", "pandas==2.3.3", "numpy==2.4.6", "pyarrow==26.0.1"),
    "pytorch_forecasting": (
        "pytorch-forecasting==1.8.0",
        "pandas==3.0.6",
        "numpy==2.4.6",
        "pyarrow==26.0.1",
        "numba==0.68.1",
    ),
}
CONTENDERS = {  # name: (library, which has a script and an environment; arguments)
    "mqcast (Parquet)": ("mqcast", ("--route", "parquet")),
    "mqcast (pandas)": ("mqcast", ("--route", "pandas")),
    "NeuralForecast (pandas)": ("neuralforecast", ("--route", "pandas")),
    "NeuralForecast (polars)": ("neuralforecast", ("--route", "polars")),
    "GluonTS": ("gluonts", ()),
    "PyTorch-Forecasting": ("pytorch_forecasting", ()),
}
OWN = [name for name, (who, _) in CONTENDERS.items() if who == "mqcast"]
STAGES = ("read_s", "build_s", "first_batch_s", "total_s")
FIGURES = (*STAGES, "cpu_s")
MEMORY = ("peak_rss_mb", "peak_anon_mb", "peak_added_mb")


def make_file(series: int, steps: int = STEPS) -> Path:
    """The Parquet file of so many series and steps, made once, a row group of 200 series at a time."""
    path = harness.DATA / f"pack-{series}x{steps}.parquet"
    if path.exists():
        return path
    harness.DATA.mkdir(exist_ok=True)
    step = np.arange(steps)
    hours = np.datetime64("2023-01-02T00", "us") + step * np.timedelta64(1, "h")
    hour, weekday = (step % 24).astype(np.int8), (step // 24 % 7).astype(np.int8)
    shape = (2 + np.sin(2 * np.pi * step / 24)) * np.where(weekday < 5, 1.0, 0.7)
    part, rng = path.with_suffix(".part"), np.random.default_rng(7)
    kinds = {"unique_id": pa.string(), "ds": pa.timestamp("us"), "y": pa.float32()}
    schema = pa.schema({**kinds, "hour": pa.int8(), "weekday": pa.int8()})
    edges = [*range(0, series, SERIES_PER_GROUP), series]
    with pq.ParquetWriter(part, schema) as writer:
        for first, last in pairwise(edges):
            count = last - first
            level = rng.lognormal(1.0, 0.8, size=(count, 1))
            y = (rng.gamma(2.0, 0.5, size=(count, steps)) * level * shape).astype(np.float32)
            ids = np.repeat([f"S{number:05d}" for number in range(first, last)], steps)
            columns = [ids, np.tile(hours, count), y.ravel(), np.tile(hour, count), np.tile(weekday, count)]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            writer.write_table(pa.table(arrays, schema=schema), row_group_size=count * steps)
    part.rename(path)
    return path


def prepare(names: list[str]) -> dict[str, Path | str]:
    """The Python of each contender's environment, or the reason why there is none."""
    owners = dict.fromkeys(CONTENDERS[name][0] for name in names)
    return {who: harness.environment(who, PINS[who]) if who in PINS else Path(sys.executable) for who in owners}


def measure(names: list[str], pythons: dict[str, Path | str], path: Path, rounds: int) -> dict[str, list[dict]]:
    """Interleaved rounds on one file; a contender that failed is not run on it again."""
    path.read_bytes()  # every contender finds the file in the page cache
    runs: dict[str, list[dict]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            if any("failed" in run for run in runs[name]):
                continue
            who, arguments = CONTENDERS[name]
            python = pythons[who]
            script = harness.LAB / "peers" / f"pack_{who}.py"
            run = {"failed": python} if isinstance(python, str) else harness.run([python, script, path, *arguments])
            if "failed" not in run:
                run["peak_added_mb"] = round(run["peak_rss_mb"] - run["rss_after_import_mb"], 4)
            runs[name].append({"round": turn, **run})
            text = run.get("failed") or f"{run['total_s']:.2f} s, peak {run['peak_rss_mb']:.0f} MiB"
            text += f" (other programs: {run.get('others_cpu_s', 0):.1f} CPU s)"
            print(f"{path.stem}  round {turn + 1}  {name}: {text}", flush=True)
    return runs


def summarise(runs: dict[str, list[dict]]) -> dict:
    """Medians of each contender, and each peer's ratios to each route of mqcast, round by round."""
    good = {name: each for name, each in runs.items() if each and not any("failed" in run for run in each)}
    medians = {
        name: {key: statistics.median(run[key] for run in each) for key in (*FIGURES, *MEMORY)}
        for name, each in good.items()
    }
    ratios: dict[str, dict] = {}
    for peer in (name for name in good if name not in OWN):
        for own in (name for name in OWN if name in good):
            for key in ("total_s", "cpu_s", *MEMORY):
                each = [run[key] / base[key] for run, base in zip(good[peer], good[own], strict=True)]
                spread = {"median": statistics.median(each), "min": min(each), "max": max(each)}
                ratios.setdefault(peer, {}).setdefault(own, {})[key] = {k: round(v, 3) for k, v in spread.items()}
    failed = {name: run["failed"] for name, each in runs.items() for run in each if "failed" in run}
    return {"medians": medians, "ratios": ratios, "failed": failed, "runs": runs}


def show(size: str, results: dict) -> None:
    table = Table(title=f"{size} rows: medians, and times mqcast's (min..max over rounds)", title_justify="left")
    for heading in ("contender", "read s", "build s", "batch s", "total s", "peak MiB", "added MiB"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for own in OWN:
        table.add_column(f"total / {own}", justify="right")
    for name in results["runs"]:
        if name in results["failed"]:
            table.add_row(name, "failed")
            continue
        middle, ratio = results["medians"][name], results["ratios"].get(name, {})
        seconds = [f"{middle[key]:.3f}" for key in STAGES]
        memory = [f"{middle[key]:.0f}" for key in ("peak_rss_mb", "peak_added_mb")]
        times = [ratio[own]["total_s"] if own in ratio else None for own in OWN]
        shown = [f"{t['median']:.1f} ({t['min']:.1f}..{t['max']:.1f})" if t else "" for t in times]
        table.add_row(name, *seconds, *memory, *shown)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for name, reason in results["failed"].items():
        print(f"{name} failed: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the small file, one round; writes no record")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="contenders with NAME in their name; writes no record"
    )
    args = parser.parse_args()
    names = [n for n in CONTENDERS if not args.only or any(o.lower() in n.lower() for o in args.only)]
    sizes = dict(list(SIZES.items())[:1]) if args.quick else SIZES
    results = {}
    with harness.lock():
        pythons = prepare(names)
        for size, series in sizes.items():
            runs = measure(names, pythons, make_file(series), 1 if args.quick else args.rounds)
            results[size] = {"rows": series * STEPS, "series": series, **summarise(runs)}
            show(size, results[size])
        if not (args.quick or args.only):
            setting = {"history": 168, "horizon": 24, "batch": 32, "pins": PINS, "rounds": args.rounds}
            limits = {"memory_gib": harness.MEMORY_LIMIT_GIB, "seconds": harness.TIME_LIMIT_S}
            path = harness.write_record("pack", {"setting": setting, "limits": limits, "sizes": results})
            print(f"wrote {path.relative_to(harness.ROOT)}")


if __name__ == "__main__":
    main()
