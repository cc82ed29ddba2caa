"""Of two writers to one path, in threads or processes, one is refused and the other's result is complete.

A barrier releases two writers at once: two of one kind, or of two kinds that write to such a path (files: forecasts
and reports; folders: saves, fits and packs). At least one has to succeed, and the other one is refused with an
ArtifactError. The result opens, and is that of a writer that succeeded; no draft or lock is left behind. Where a verb
never overwrites (save, fit), exactly one succeeds. Two overwriting verbs may both succeed, one after the other; the
record has how often one was refused.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.campaigns.campaign import Campaign
from mqcast import ArtifactError, Forecaster, Panel, pack
from mqcast.run import Run

FOLDERS, FILES = ("save", "pack", "fit"), ("forecast", "report")
NEVER_OVERWRITE = {"save", "fit"}
NUM_WRITERS = 2
SMALL = {
    "window": {"history": 12, "num_fcts": 8, "batch_size": 8},
    "model": {"hidden_dim": 8, "encoder_dilations": (1, 2, 4)},
}


def sales(number: int) -> pl.DataFrame:
    weeks = pl.datetime_range(pl.datetime(2022, 1, 2), pl.datetime(2023, 2, 19), "1w", eager=True)
    y = [float(3 + number + i % 5) for i in range(len(weeks))]
    return pl.DataFrame({"unique_id": "item", "ds": weeks, "y": y})


class Writer:
    """One of two writers to a path; each has data of its own, so that their results differ."""

    def __init__(self, number: int):
        self.number, self.frame = number, sales(number)
        self.panel = Panel.from_frame(self.frame)
        self.made = Forecaster("mqt", 4, config=SMALL, max_steps=1, seed=number, verbose=False).fit(self.frame)
        self.forecasts, self.plain = self.made.predict(), Forecaster("seasonal-naive", 4).fit(self.frame)
        self.judged = self.plain.backtest()

    def write(self, verb: str, path: Path) -> None:
        getattr(self, f"_{verb}")(path)

    def _save(self, path: Path) -> None:
        self.made.save(path)

    def _pack(self, path: Path) -> None:
        pack(self.frame, path)

    def _fit(self, path: Path) -> None:
        settings = {"seed": self.number, "max_steps": 1, "verbose": False}
        Forecaster("mqt", 4, config=SMALL, folder=path, **settings).fit(self.panel)

    def _forecast(self, path: Path) -> None:
        from mqcast.forecast.predict import forecast

        assert self.made.run_ is not None
        forecast(self.made.run_, self.panel, path)

    def _report(self, path: Path) -> None:
        from mqcast.report import write

        write.write_report(path, {"naive": self.judged}, self.frame, title=f"writer {self.number}")

    def is_result(self, verb: str, path: Path) -> bool:
        """Whether the result at the path is complete, and this writer's."""
        if verb == "save":
            return Forecaster.load(path).predict().equals(self.forecasts)
        if verb == "pack":
            panel = Panel.open(path)
            panel.verify()
            return panel.fingerprint == self.panel.fingerprint
        if verb == "fit":
            run = Run.open(path)
            run.network()
            return run.config.train.seed == self.number and run.facts["panel"] == self.panel.fingerprint
        if verb == "forecast":
            return pl.read_parquet(path).equals(self.forecasts)
        page = path.read_text(encoding="utf-8")
        return page.rstrip().endswith("</html>") and f"writer {self.number}" in page


def attempt(writer: Writer, verb: str, path: Path, meet: Callable[[], Any]) -> tuple[str, float, float]:
    """Its outcome, and the times at which it began and ended."""
    meet()
    began, outcome = time.monotonic(), "done"
    try:
        writer.write(verb, path)
    except ArtifactError:
        outcome = "refused"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    return outcome, began, time.monotonic()


def serve(number: int, jobs: Any, answers: Any, barrier: Any) -> None:
    """One writer as a process, job after job."""
    warnings.simplefilter("ignore")
    writer = Writer(number)
    answers.put((number, None))
    while (job := jobs.get()) is not None:
        answers.put((number, attempt(writer, job[0], Path(job[1]), barrier.wait)))


class Processes:
    """Two processes that wait for races."""

    def __init__(self) -> None:
        context = mp.get_context("spawn")
        self.jobs, self.answers = [context.Queue() for _ in range(NUM_WRITERS)], context.Queue()
        barrier = context.Barrier(NUM_WRITERS)
        parts = [(number, jobs, self.answers, barrier) for number, jobs in enumerate(self.jobs)]
        self.processes = [context.Process(target=serve, args=part, daemon=True) for part in parts]
        for process in self.processes:
            process.start()
        for _ in self.processes:
            self.answers.get(timeout=300)

    def race(self, verbs: list[str], path: Path) -> list[tuple[str, float, float]]:
        for jobs, verb in zip(self.jobs, verbs, strict=True):
            jobs.put((verb, str(path)))
        return [result for _, result in sorted(self.answers.get(timeout=300) for _ in self.jobs)]

    def close(self) -> None:
        for jobs in self.jobs:
            jobs.put(None)
        for process in self.processes:
            process.join(60)


def race_of_threads(writers: list[Writer], verbs: list[str], path: Path) -> list[tuple[str, float, float]]:
    barrier = threading.Barrier(NUM_WRITERS)
    with ThreadPoolExecutor(NUM_WRITERS) as pool:
        jobs = [pool.submit(attempt, w, v, path, barrier.wait) for w, v in zip(writers, verbs, strict=True)]
        return [job.result() for job in jobs]


def verdict(writers: list[Writer], verbs: list[str], race: list[tuple[str, float, float]], path: Path) -> str:
    """What is wrong with the result of a race; an empty text if nothing is."""
    outcomes = [outcome for outcome, *_ in race]
    if unexpected := [outcome for outcome in outcomes if outcome not in ("done", "refused")]:
        return f"neither done nor refused: {unexpected}"
    if "done" not in outcomes:
        return "both were refused"
    if outcomes.count("done") == NUM_WRITERS and NEVER_OVERWRITE & set(verbs):
        return "both succeeded, though one of them never overwrites"
    winners = [(w, v) for w, v, outcome in zip(writers, verbs, outcomes, strict=True) if outcome == "done"]
    if not any(_is_result(writer, verb, path) for writer, verb in winners):
        return f"the result is not that of a writer that succeeded: {outcomes}"
    if left := sorted(entry.name for entry in path.parent.iterdir() if entry != path):
        return f"left behind: {left}"
    return ""


def _is_result(writer: Writer, verb: str, path: Path) -> bool:
    try:
        return writer.is_result(verb, path)
    except Exception:
        return False


def drawn(rng: np.random.Generator) -> tuple[list[str], str]:
    """Two verbs for one path, mostly the same, and whether they are threads or processes."""
    group = FOLDERS if rng.random() < 0.6 else FILES
    first = str(rng.choice(group))
    verbs = [first, first if rng.random() < 0.7 else str(rng.choice(group))]
    return verbs, str(rng.choice(["threads", "processes"]))


def main() -> None:
    campaign = Campaign("Two writers to one path end with one whole result and one typed refusal.", 500)
    warnings.simplefilter("ignore")
    writers, met, both = [Writer(number) for number in range(NUM_WRITERS)], 0, 0
    processes = Processes()
    place = Path(tempfile.mkdtemp(prefix="races-"))
    try:
        for number, rng in campaign.trials():
            verbs, kind = drawn(rng)
            path = place / str(number) / "result"
            path.parent.mkdir()
            if rng.random() < 0.3 and not NEVER_OVERWRITE & set(verbs):
                writers[0].write(verbs[0], path)  # it is there already: the verbs overwrite it
            race = race_of_threads(writers, verbs, path) if kind == "threads" else processes.race(verbs, path)
            wrong = verdict(writers, verbs, race, path)
            campaign.check(not wrong, f"{' and '.join(sorted(verbs))}, {kind}", f"trial {number}: {wrong}")
            met += any(outcome == "refused" for outcome, *_ in race)
            both += all(outcome == "done" for outcome, *_ in race)
            shutil.rmtree(path.parent)
    finally:
        processes.close()
        shutil.rmtree(place, ignore_errors=True)
    campaign.finish(one_refused=met, both_done_in_turn=both, cores=os.cpu_count())


if __name__ == "__main__":
    main()
