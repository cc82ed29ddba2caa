"""What the contenders of versus_peers.py share: the work, a step counter, a memory gauge. Standard library alone."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

HISTORY, HORIZON, HIDDEN, LEVELS, THREADS = 168, 24, 64, (0.5, 0.9), 2
SAMPLE_SECONDS = 0.1
TRIED = 2  # steps of training with each number of threads
SKIPPED = 1 + 2 * TRIED  # first steps of a peer, which do not count
FEW = 4  # cutoffs of a short backtest, which shows how many fit into the time


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", help="Parquet: unique_id, ds, y, hour, weekday; sorted, all series equally long")
    parser.add_argument("--model", required=True)
    parser.add_argument("--train-seconds", type=float, required=True)
    parser.add_argument("--skip-steps", type=int, required=True, help="mqcast only: first steps, which do not count")
    parser.add_argument("--cutoffs", type=int, required=True, help="the last N with a whole horizon of actuals")
    parser.add_argument("--backtest-seconds", type=float, required=True)
    parser.add_argument("--windows", type=int, help="peers only: windows per step; default: a fast choice")
    parser.add_argument("--change", action="append", default=[], help="mqcast only: table.setting=value")
    return parser.parse_args()


def tree_anon_mb(pid: int) -> float:
    """RssAnon of a process and all its descendants, in MiB."""
    total = 0.0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total = int(line.split()[1]) / 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(tree_anon_mb(int(child)) for child in (task / "children").read_text().split())
    except OSError:  # it has just ended
        pass
    return total


class Gauge:
    """`with Gauge(pid) as gauge: …`, then `gauge.peak_mb`: the peak memory of the process tree."""

    def __init__(self, pid: int):
        self.pid, self.peak_mb, self._done = pid, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._done.is_set():
            self.peak_mb = max(self.peak_mb, tree_anon_mb(self.pid))
            self._done.wait(SAMPLE_SECONDS)

    def __enter__(self) -> Gauge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


class Steps:
    """The times at which a peer's training steps end; `end` says whether there are enough.

    The first step is a warm-up; the next ones try THREADS threads and then one, and the faster choice is kept. Where
    another process uses a core, threads that wait for each other can be a hundred times slower than one.
    """

    def __init__(self, started: float, seconds: float, set_threads: Callable[[int], None]):
        self.started, self.seconds, self.set_threads = started, seconds, set_threads
        self.ends: list[float] = []
        self.tried: dict[int, float] = {}
        self._use(THREADS)

    def _use(self, threads: int) -> None:
        self.threads = threads
        self.set_threads(threads)

    def end(self) -> bool:
        self.ends.append(time.perf_counter())
        count = len(self.ends)
        if count in (1 + TRIED, 1 + 2 * TRIED):
            self.tried[self.threads] = min(b - a for a, b in pairwise(self.ends[-1 - TRIED :]))
            self._use(1 if count == 1 + TRIED else min(self.tried, key=lambda threads: self.tried[threads]))
        return count >= SKIPPED + 3 and self.ends[-1] - self.ends[SKIPPED - 1] >= self.seconds

    def callback(self, base: type) -> object:
        """The same as a Lightning callback, for either of its two packages."""
        end = self.end

        class Each(base):
            def on_train_batch_end(self, trainer, *_):
                trainer.should_stop = trainer.should_stop or end()

        return Each()

    def figures(self, windows_a_step: int) -> dict:
        seconds, steps = self.ends[-1] - self.ends[SKIPPED - 1], len(self.ends) - SKIPPED
        return {
            "first_step_s": self.ends[0] - self.started,
            "trajectories_per_second": windows_a_step * steps / seconds,
            "steps": steps,
            "train_s": seconds,
            "trajectories_a_step": windows_a_step,
            "threads": self.threads,
            "step_s_by_threads": self.tried,
        }


def backtest(run: Callable[[int], int], cutoffs: int, seconds: float) -> dict:
    """Forecasts per second of `run(cutoffs)`, which returns how many it made; fewer cutoffs if all take too long.

    The time per cutoff is estimated from a call with one and a call with FEW, after a warm-up, so that the fixed cost
    of a call is not counted for each of them.
    """

    def timed(count: int) -> tuple[int, float]:
        began = time.perf_counter()
        return run(count), time.perf_counter() - began

    timed(1)
    one = timed(1)[1]
    few = min(FEW, cutoffs)
    a_cutoff = (timed(few)[1] - one) / (few - 1) if few > 1 and few * one < seconds else one
    used = max(1, min(cutoffs, 1 + int((seconds - one) / max(a_cutoff, 1e-6))))
    made, spent = timed(used)
    return {
        "forecasts_per_second": made / spent,
        "forecasts": made,
        "backtest_s": spent,
        "cutoffs": used,
        "all_cutoffs": used == cutoffs,
    }


def report(packages: tuple[str, ...], settings: dict, *figures: dict) -> None:
    results = {name: value for part in figures for name, value in part.items()}
    print(json.dumps({**results, "settings": settings, "versions": {name: version(name) for name in packages}}))
