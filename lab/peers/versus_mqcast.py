"""mqcast: `mqcast fit --processes 2` on a packed panel, then `forecast` by two processes.

The time from frame to first step is measured in this process, as for the peers: `Panel.from_frame`, then `fit`. Memory
is that of the whole process tree of `mqcast fit`. A trajectory has its whole horizon in the loss and HISTORY real steps
before it. The backtest times `forecast` itself, after both processes have imported and opened the panel and the run.
"""

import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
from versus import HIDDEN, HISTORY, HORIZON, LEVELS, THREADS, Gauge, backtest, options, report

from mqcast import Panel, Schema
from mqcast.data.panel import pack
from mqcast.forecast.predict import forecast
from mqcast.launch import environments, keep_pages
from mqcast.run import Run
from mqcast.settings import RunConfig
from mqcast.train.loop import fit
from mqcast.train.records import Step

SCHEMA = Schema(freq="h", static=("unique_id",), calendar=("hour_of_day", "day_of_week"))


def tables(args) -> dict[str, dict]:
    window = {"horizon": HORIZON, "history": HISTORY, "min_history": HISTORY, "partial_horizon": False}
    model = {"model": args.model, "hidden_dim": HIDDEN, "lookback": HISTORY - 1, "quantiles": list(LEVELS)}
    tables = {"window": window, "model": model, "train": {"patience": "none"}}
    for change in args.change:
        name, _, value = change.partition("=")
        table, _, setting = name.partition(".")
        tables[table][setting] = json.loads(value)
    return tables


def first_steps(path: str, settings: dict, folder: Path) -> tuple[float, float]:
    """Seconds from a frame in memory to the end of the first step, and of a later step, in one process."""
    frame, ends = pl.read_parquet(path), []

    def listen(record) -> None:
        if isinstance(record, Step):
            ends.append(time.perf_counter())

    few = settings | {"train": settings["train"] | {"max_steps": 3}}
    began = time.perf_counter()
    fit(Panel.from_frame(frame, SCHEMA), RunConfig(**few), folder, listeners=(listen,))
    return ends[0] - began, ends[-1] - ends[-2]


def train(panel: Path, run: Path, settings: dict, steps: int, skipped: int) -> dict:
    """Trajectories per second after the first steps, and the peak memory of the processes."""
    timed = {"log_every": 1, "max_steps": steps}
    file = run.with_suffix(".toml")
    file.write_text(RunConfig(**settings | {"train": settings["train"] | timed}).to_toml())
    command = [sys.executable, "-m", "mqcast", "fit", panel, run, "--processes", THREADS, "--json", "--config", file]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with Gauge(process.pid) as gauge:
        _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(errors)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    step_lines = [line for line in lines if line["record"] == "step"][skipped - 1 :]
    spent, made = (step_lines[-1][key] - step_lines[0][key] for key in ("seconds", "trajectories"))
    return {
        "trajectories_per_second": made / spent,
        "steps": len(step_lines) - 1,
        "train_s": spent,
        "trajectories_a_step": made / (len(step_lines) - 1),
        "peak_mb": gauge.peak_mb,
    }


class Forecasters:
    """Processes that read cutoffs from their input and print the seconds that `forecast` took."""

    def __init__(self, run: Path, panel: Path, out: Path):
        command = [sys.executable, __file__, "--forecaster", str(run), str(panel), str(out)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.processes = [subprocess.Popen(command, env=env, **pipes) for env in environments(THREADS)]
        self._hear()

    def _hear(self) -> None:
        for process in self.processes:
            if not process.stdout.readline():
                raise SystemExit("a process that was to forecast has ended")

    def __call__(self, first: datetime, last: datetime) -> None:
        for process in self.processes:
            process.stdin.write(f"{first.isoformat()} {last.isoformat()}\n")
            process.stdin.flush()
        self._hear()

    def close(self) -> None:
        for process in self.processes:
            process.stdin.close()
            process.wait()


def forecaster(run: str, panel: str, out: str) -> None:
    """One of the processes, set up as those of `mqcast forecast`."""
    keep_pages()
    trained, data = Run.open(run), Panel.open(panel)
    print("ready", flush=True)
    for line in sys.stdin:
        first, last = line.split()
        forecast(trained, data, out, first=first, last=last)
        print("done", flush=True)


def main() -> None:
    args = options()
    settings = tables(args)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        began, a_step = first_steps(args.path, settings, scratch / "first")
        steps = args.skip_steps + max(4, round(args.train_seconds * THREADS / a_step))
        packed = time.perf_counter()
        pack(args.path, scratch / "panel", SCHEMA)
        packed = time.perf_counter() - packed
        figures = train(scratch / "panel", scratch / "run", settings, steps, args.skip_steps)
        last = Panel.open(scratch / "panel")
        end = datetime(1970, 1, 1) + timedelta(microseconds=last.span[1]) - timedelta(hours=HORIZON)
        out, num_series = scratch / "forecasts.parquet", last.num_series
        forecasters = Forecasters(scratch / "run", scratch / "panel", out)

        def roll(cutoffs: int) -> int:
            out.unlink(missing_ok=True)
            forecasters(end - timedelta(hours=cutoffs - 1), end)
            num_rows = pl.scan_parquet(out).select(pl.len()).collect().item()
            assert num_rows == cutoffs * num_series * HORIZON, num_rows
            return num_rows // HORIZON

        rolled = backtest(roll, args.cutoffs, args.backtest_seconds)
        forecasters.close()
    packages = ("mqcast", "torch", "numpy", "polars")
    report(packages, {**settings, "processes": THREADS, "pack_s": packed}, {"first_step_s": began}, figures, rolled)


if len(sys.argv) > 1 and sys.argv[1] == "--forecaster":
    forecaster(*sys.argv[2:])
else:
    main()
