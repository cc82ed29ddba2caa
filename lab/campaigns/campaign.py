"""What the campaigns share: count the trials, keep the failures, write the record.

A campaign tries one guarantee of docs/reliability.md many times, in random ways that a seed makes repeatable:

    python -m lab campaign <name> [--count N] [--seed 0] [--minutes M] [--record]

It prints how many trials were run and how many failed, and exits with code 1 if any failed. With --record the figures
go to lab/results/campaigns/<name>.json; --minutes ends it early, and the record then has the count that was reached.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lab.benchmarks import harness

HERE = Path(__file__).resolve().parent

MOST_SHOWN = 20


class Campaign:
    """One guarantee, tried again and again: `for number, rng in campaign.trials(): campaign.check(ok, what)`."""

    def __init__(self, guarantee: str, count: int, arguments: Callable[[argparse.ArgumentParser], None] | None = None):
        self.name = Path(sys.argv[0]).stem
        parser = argparse.ArgumentParser(description=guarantee)
        parser.add_argument("--count", type=int, default=count, help="number of trials")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this many minutes")
        parser.add_argument("--record", action="store_true", help="write lab/results/campaigns/<name>.json")
        if arguments is not None:
            arguments(parser)
        self.guarantee, self.options = guarantee, parser.parse_args()
        self.tried, self.failures, self.by_kind = 0, [], {}
        self.began = time.monotonic()

    def trials(self) -> Iterator[tuple[int, np.random.Generator]]:
        """The number of each trial and its own random numbers, which depend only on the seed and that number."""
        for number in range(self.options.count):
            if time.monotonic() - self.began > 60 * self.options.minutes:
                return
            yield number, np.random.default_rng([self.options.seed, number])

    def check(self, holds: bool, kind: str, detail: str = "") -> None:
        """Count one trial; `kind` is a row of the record, `detail` says how to reproduce a failure."""
        self.tried += 1
        tried, failed = self.by_kind.get(kind, (0, 0))
        self.by_kind[kind] = (tried + 1, failed + (not holds))
        if not holds:
            self.failures.append(f"{kind}: {detail}")
            print("FAILED", self.failures[-1], flush=True)

    def finish(self, **facts: object) -> None:
        """Print the totals, write the record if asked to, and end the process."""
        seconds = round(time.monotonic() - self.began, 1)
        print(f"{self.name}: {self.tried:,} tried, {len(self.failures):,} failed, {seconds:,} s")
        if self.options.record:
            harness.write_record(
                self.name,
                {
                    "guarantee": self.guarantee,
                    "tried": self.tried,
                    "failed": len(self.failures),
                    "seconds": seconds,
                    "by_kind": {kind: {"tried": t, "failed": f} for kind, (t, f) in sorted(self.by_kind.items())},
                    "failures": self.failures[:MOST_SHOWN],
                    **facts,
                },
                folder="campaigns",
            )
        sys.exit(bool(self.failures))
