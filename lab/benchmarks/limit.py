"""How close a training step comes to the machine's speed of matrix products, and where the rest of its time goes.

    .venv/bin/python -m lab benchmark limit [--rounds 3] [--quick]

Two processes of one thread each train independently, side by side, and after every step both time one large product of
float32 matrices. Useful operations are counted from shapes: what windows share counts once, masked keys do not count,
and a backward pass counts as two forward passes. The fraction is operations / time / rate of the product, over steps
in which all creation times are scored, loading included. Merged into lab/results/benchmarks/throughput.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from lab.benchmarks import harness
from lab.benchmarks.pack import make_file
from lab.benchmarks.throughput_table import RECORD, write_table
from mqcast import Panel, Schema
from mqcast.nn.decoder import fading
from mqcast.nn.encoder import Encoder
from mqcast.nn.position import LearnedPosition, doubling_dilations
from mqcast.settings import ModelConfig, RunConfig, WindowConfig
from mqcast.train.loop import fit
from mqcast.train.records import Step

PROCESSES, BATCH, MICRO_BATCH, CELLS = 2, 8, 4, 6
HISTORY, NUM_FCTS, TIMED, SKIPPED = 168, 336, 8, 2
PRODUCT, REPEATS = 1024, 5
SETTINGS = [("mqt", d, h) for h in (24, 52) for d in (32, 64, 128)] + [("mqcnn", 64, 24)]
PROFILED = ("mqt", 128, 24)
MODULES = {LearnedPosition: "position", Encoder: "encoder"}  # timed in the forward pass
KERNELS = {  # timed as torch's profiler names them, and how many forward passes they are worth
    "sums over the past": ("_AlignedContexts", "align", 1),
    "sums over the past, back": ("_AlignedContextsBackward", "align", 2),
    "cells, there and back": ("_LossOfCells", "cells", 3),
}
SCHEMA = Schema(freq="h", static=("unique_id",), calendar=("hour_of_day", "day_of_week"))
Setting = tuple[str, int, int]


def label(setting: Setting) -> str:
    return f"{setting[0]}, d_h {setting[1]}, H {setting[2]}"


def config_of(setting: Setting, num_fcts: int, steps: int) -> RunConfig:
    model, hidden, horizon = setting
    window = {"horizon": horizon, "history": HISTORY, "min_history": HISTORY, "partial_horizon": False}
    return RunConfig(
        window=WindowConfig(**window, num_fcts=num_fcts, batch_size=BATCH),
        model=ModelConfig(model=model, hidden_dim=hidden, lookback=HISTORY - 1),
        train={"patience": "none", "micro_batch": MICRO_BATCH, "max_steps": steps},  # pyright: ignore
    )


def forward_flops(config: RunConfig, windows: int) -> dict[str, float]:
    """Useful floating-point operations of MQT's forward pass over `windows` windows that share their dates, by part.

    The panel has a calendar, so that all windows share one position encoding r^g, and a static code per series.
    """
    model, window, b = config.model, config.window, windows
    d, a, c, s, big_h = model.hidden_dim, model.head_dim, model.context_dim, model.static_dim, window.horizon
    steps, n, back, q = window.num_steps, window.num_fcts, model.lookback, len(model.quantiles)
    m = min(n + big_h - 1, steps)  # creation times that get contexts: the first of them for later ones to look at
    pairs = sum(min(back, t) + 1 for t in range(steps - m, steps))  # of a creation time and a step in its look-back
    likeness = 0  # pairs of a target and a step that some creation time sees together
    for u in range(steps - m + 1, steps + big_h):
        first, last = max(u - big_h, steps - m), min(u - 1, steps - 1)
        likeness += last - max(0, first - back) + 1
    seen = min(steps, m + back)
    position, span = 0.0, steps + big_h + 2 * (big_h - 1)
    for dilation in doubling_dilations(big_h - 1):
        position += 2 * span * d * 3 * d
        span -= 2 * dilation
    layers = len(model.encoder_dilations) - 1
    earlier = n * big_h * (big_h + 1) / 2  # pairs of a forecast and an earlier one of the same target
    needed = [big_h - max(0, m - n - i) for i in range(m)]  # cells of a creation time that a wanted forecast looks at
    looks = sum(min(back, steps - m + i) + 1 for i in range(m) for _ in range(needed[i]))
    made, wanted, paces = b * sum(needed), b * n * big_h, fading(big_h).shape[1]

    def query(fcts: int) -> int:
        """Channels of [h_t; r_t] over all windows and creation times, and of r_{t+h}."""
        return fcts * (b * d + d) + b * s + (fcts + big_h - 1) * d

    linear = a * (seen * (2 * b * d + d) + b * s + query(m)) + c * b * seen * a  # queries, keys and values of the past
    linear += c * query(m) + a * (n * b * d + b * s + n * big_h * d)  # the block around them; c^a
    linear += a * (query(n) + m * d) + c * query(n)  # of earlier forecasts; the block around those
    linear += a * (n * b * (a + paces * d) + (n + big_h - 1) * d)  # m_L
    return {
        "position": position,
        "encoder": 2 * steps * 2 * d * (4 * b + d + layers * b * d) + 2 * b * d * s,
        "linear maps of steps": 2 * linear,
        "align": 2 * a * b * (pairs + likeness) + 2 * c * b * looks,
        "cells": 2 * c * (a * wanted + (a + c) * made + c * wanted + 2 * a * wanted)
        + 2 * (a + c) * b * earlier
        + 2 * a * wanted * (q + paces),
    }


def step_flops(config: RunConfig) -> float:
    """Forward and backward over a step's micro-batches."""
    return 3 * BATCH / MICRO_BATCH * sum(forward_flops(config, MICRO_BATCH).values())


def sgemm_gflops() -> float:
    """The best of a few products of square matrices; times that are not positive are left out."""
    x, y, seconds = torch.randn(PRODUCT, PRODUCT), torch.randn(PRODUCT, PRODUCT), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        torch.mm(x, y)
        seconds.append(time.perf_counter() - began)
    return 2 * PRODUCT**3 / min(taken for taken in seconds if taken > 0) / 1e9


class Meter:
    """Listens to training: times complete steps, and the product after each, in step with the other process."""

    def __init__(self, barrier: Any, whole: int):
        self.barrier, self.whole = barrier, whole
        self.seconds: list[float] = []
        self.rates: list[float] = []
        self.resumed, self.before, self.epoch, self.count = 0.0, 0, 0, 0

    def __call__(self, record: object) -> None:
        if not isinstance(record, Step):
            return
        seconds, made = time.perf_counter() - self.resumed, record.trajectories - self.before
        self.count += 1
        if self.count > SKIPPED and made == self.whole and record.epoch == self.epoch:
            self.seconds.append(seconds)
        self.barrier.wait(300)
        self.rates.append(sgemm_gflops())
        self.barrier.wait(300)
        self.before, self.epoch, self.resumed = record.trajectories, record.epoch, time.perf_counter()


def work(rank: int, barrier: Any, out: Any, path: str, settings: list[Setting], num_fcts: int, timed: int) -> None:
    """One of the processes: measure every setting in turn and put the figures into the queue."""
    panel = Panel.from_frame(path, SCHEMA)
    for i, setting in enumerate(settings):
        meter = Meter(barrier, BATCH * num_fcts)
        with tempfile.TemporaryDirectory() as folder:
            fit(panel, config_of(setting, num_fcts, SKIPPED + 2 * timed), Path(folder) / "run", listeners=(meter,))
        out.put((i, rank, statistics.median(meter.seconds), statistics.median(meter.rates)))


@contextmanager
def named_parts():
    """Calls of the network's parts appear in a profile under their names."""
    open_: dict[int, Any] = {}

    def enter(module: torch.nn.Module, _: object) -> None:
        if name := MODULES.get(type(module)):
            open_[id(module)] = torch.profiler.record_function(f"part:{name}")
            open_[id(module)].__enter__()

    def leave(module: torch.nn.Module, *_: object) -> None:
        if id(module) in open_:
            open_.pop(id(module)).__exit__(None, None, None)

    hooks = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def profile(path: Path, num_fcts: int, steps: int = 2) -> tuple[dict[str, float], list[dict], float, float]:
    """Milliseconds a step by part (modules: forward pass), by operation (self time) and in total, in one process.

    And the rate of the product in that process, which has the machine to itself.
    """
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    clock: list[float] = []

    def listen(record: object) -> None:
        if isinstance(record, Step):
            if record.step == SKIPPED:
                profiler.start()
            clock.append(time.perf_counter())
            if record.step == SKIPPED + steps:
                profiler.stop()

    config = config_of(PROFILED, num_fcts, SKIPPED + steps)
    with tempfile.TemporaryDirectory() as folder, named_parts():
        fit(Panel.from_frame(path, SCHEMA), config, Path(folder) / "run", listeners=(listen,))
    events = profiler.key_averages()
    parts = {e.key.removeprefix("part:"): e.cpu_time_total / 1e3 / steps for e in events if e.key.startswith("part:")}
    own = {e.key: e.self_cpu_time_total / 1e3 / steps for e in events}
    parts |= {name: own[key] for name, (key, _, _) in KERNELS.items() if key in own}
    ops = sorted((e for e in events if not e.key.startswith("part:")), key=lambda e: -e.self_cpu_time_total)[:20]
    operations = [{"op": e.key, "ms": e.self_cpu_time_total / 1e3 / steps, "calls": e.count // steps} for e in ops]
    torch.set_num_threads(1)
    return parts, operations, 1e3 * (clock[-1] - clock[SKIPPED - 1]) / steps, sgemm_gflops()


def next_result(out: Any, processes: list[Any]) -> tuple[int, int, float, float]:
    """The next figures from one of the processes; an error instead of waiting forever if one has failed."""
    while True:
        try:
            return out.get(timeout=5)
        except queue.Empty:
            if any(process.exitcode for process in processes):
                raise SystemExit("a process has failed; its error is above") from None


def gather(path: Path, rounds: int, num_fcts: int, timed: int, save: Any) -> dict[str, list[dict]]:
    """Interleaved rounds of all settings; `save` is called with the results so far after each."""
    context, settings = multiprocessing.get_context("spawn"), SETTINGS * rounds
    barrier, out = context.Barrier(PROCESSES), context.Queue()
    shared = (barrier, out, str(path), settings, num_fcts, timed)
    processes = [context.Process(target=work, args=(rank, *shared), daemon=True) for rank in range(PROCESSES)]
    for process in processes:
        process.start()
    runs: dict[str, list[dict]] = {label(setting): [] for setting in SETTINGS}
    for i, setting in enumerate(settings):
        pair = [next_result(out, processes) for _ in processes]
        assert all(one[0] == i for one in pair), pair
        seconds, rate = (statistics.fmean(one[k] for one in pair) for k in (2, 3))
        run = {"round": i // len(SETTINGS), "step_s": seconds, "sgemm_gflops": rate}
        if setting[0] == "mqt":
            gflop = step_flops(config_of(setting, num_fcts, 1)) / 1e9
            run |= {"useful_gflop": gflop, "fraction": gflop / seconds / rate}
        runs[label(setting)].append(run)
        print(label(setting), {key: round(value, 3) for key, value in run.items()}, flush=True)
        save(runs)
    for process in processes:
        process.join()
    return runs


def key_figures(runs: dict[str, list[dict]]) -> dict[str, dict]:
    fractions = [run["fraction"] for run in runs[label(("mqt", 128, 24))]]
    pairs = zip(runs[label(("mqt", 64, 24))], runs[label(("mqcnn", 64, 24))], strict=False)
    return {
        **harness.spread("sgemm_fraction_d128", fractions, ">= 0.40"),
        **harness.spread("mqt_over_mqcnn_step", [mqt["step_s"] / cnn["step_s"] for mqt, cnn in pairs], "<= 2.5"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round; the record goes to .data")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    num_fcts, timed, rounds = (24, 3, 1) if args.quick else (NUM_FCTS, TIMED, args.rounds)
    record = harness.DATA / "throughput.json" if args.quick else RECORD
    window = {"history": HISTORY, "num_fcts": num_fcts, "lookback": HISTORY - 1, "batch_size": BATCH}
    setting = {**window, "micro_batch": MICRO_BATCH, "processes": PROCESSES, "product": PRODUCT}
    parts, ops, step_ms, alone, started = {}, [], 0.0, 0.0, time.perf_counter()

    def save(runs: dict[str, list[dict]]) -> None:
        good = {name: each for name, each in runs.items() if each}
        keys = ("step_s", "sgemm_gflops", "useful_gflop", "fraction")
        medians = {
            name: {key: statistics.median(run[key] for run in each) for key in keys if key in each[0]}
            for name, each in good.items()
        }
        useful = forward_flops(config_of(PROFILED, num_fcts, 1), MICRO_BATCH)
        by_part = {}
        counted = {name: (name, 1) for name in MODULES.values()} | {
            name: kernel[1:] for name, kernel in KERNELS.items()
        }
        for name, (count, passes) in counted.items():
            gflop = passes * useful[count] * BATCH / MICRO_BATCH / 1e9
            if ms := parts.get(name):
                by_part[name] = {"ms": ms, "useful_gflop": gflop, "fraction": gflop / ms * 1e3 / alone}
        body = {
            "setting": setting,
            "medians": medians,
            "profiled": label(PROFILED),
            "profiled_step_ms": step_ms,
            "profiled_sgemm_gflops": alone,
        }
        body |= {"parts": by_part, "ops": ops, "runs": runs, "seconds": time.perf_counter() - started}
        harness.merge_record(record, "limit", key_figures(runs), body)

    with harness.lock():
        path = make_file(BATCH, HISTORY + CELLS * num_fcts + 52)
        parts, ops, step_ms, alone = profile(path, num_fcts)
        runs = gather(path, rounds, num_fcts, timed, save)
    for name, figure in key_figures(runs).items():
        print(f"{name}: {figure['median']:.3f} ({figure['least']:.3f} to {figure['most']:.3f}); goal {figure['goal']}")
    if not args.quick:
        write_table()
    print(f"wrote {record.relative_to(harness.ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
