"""Damaged files are refused by name, or change nothing: no crash, no hang, no huge allocation.

    python -m lab campaign mutated_files [--count 10000] [--seed 0]

A child process opens and uses a panel, a run, a saved forecaster, the checkpoints of an interrupted run or the shards
of an interrupted forecast, of which one file was damaged. It must raise an MqcastError that names the file, or give the
same results as undamaged files. A child that dies, hangs or needs too much memory is a failure, and is replaced.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import numpy as np
import polars as pl
from artifact_samples import CONFIG, files_of, make_all, pack_tiny, tiny_frame

from lab.campaigns.campaign import Campaign
from mqcast import Forecaster, Panel
from mqcast.data import store
from mqcast.errors import MqcastError
from mqcast.forecast import predict
from mqcast.run import Run
from mqcast.train.loop import fit
from mqcast.train.records import Record, Step

SECONDS, SPARE_BYTES = 60, 2**30  # that a trial may take
NEEDED = {"forecaster": ("forecaster",), "checkpoint": ("panel", "half"), "shard": ("panel", "run", "shards")}
SHARES = {"panel": 0.2, "mapped panel": 0.2, "run": 0.25, "forecaster": 0.25, "checkpoint": 0.04, "shard": 0.06}
FOLDERS = {"mapped panel": "panel", "checkpoint": "half/checkpoints", "shard": "shards"}
HUGE = ("1000000000000", "-1", "1e999", "99999999999999999999999", "0", "null", "true", '"a"', "[]", "{}", "NaN")


class Halted(Exception):
    """Training or forecasting stops midway, as in a crash."""


# -- the artifacts -----------------------------------------------------------------------------------------------------


def make_artifacts(folder: Path) -> None:
    """panel, run, forecaster; half, an interrupted run; shards, an interrupted forecast; other, to swap files with."""
    make_all(folder)
    (folder / "other").mkdir()
    panel = Panel.from_frame(tiny_frame().with_columns(pl.col("y") * 2), like=pack_tiny(folder / "other" / "panel"))
    other = Forecaster(horizon=2, config=CONFIG, seed=7, folder=folder / "other" / "run", verbose=False).fit(panel)
    other.save(folder / "other" / "forecaster")

    def halt(record: Record) -> None:
        if isinstance(record, Step) and record.step == 3:
            raise Halted

    with contextlib.suppress(Halted):
        fit(Panel.open(folder / "panel"), CONFIG, folder / "half", listeners=(halt,))
    finish, predict.Merger.finish = predict.Merger.finish, _halt
    try:
        predict.forecast(Run.open(folder / "run"), Panel.open(folder / "panel"), folder / "out.parquet")
    except Halted:
        next(folder.glob(".out.parquet.*")).rename(folder / "shards")
    finally:
        predict.Merger.finish = finish


def _halt(self: predict.Merger) -> None:
    raise Halted


def use(kind: str, folder: Path) -> pl.DataFrame | bytes:
    """The result that an artifact of this kind gives."""
    store.SMALL_BYTES = 0 if kind == "mapped panel" else 2**26
    if kind == "forecaster":
        return Forecaster.load(folder / "forecaster").revisions()
    if kind == "checkpoint":
        run = fit(Panel.open(folder / "panel"), CONFIG, folder / "half", resume=True)
        return (run.folder / "model.safetensors").read_bytes()
    run, panel = Run.open(folder / "run"), Panel.open(folder / "panel")
    if kind == "shard":
        plan = predict.cutoff_plan(run, panel)
        (folder / "shards").rename(folder / f".out.parquet.{predict._key(run, panel, plan)}")
        return pl.read_parquet(predict.forecast(run, panel, folder / "out.parquet"))
    return predict.forecast_frame(run, panel)


# -- damage ------------------------------------------------------------------------------------------------------------


def flipped(content: bytearray, rng: np.random.Generator) -> bytes:
    for _ in range(int(rng.integers(1, 4)) if rng.random() < 0.3 else 1):
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    return bytes(content)


def cut(content: bytearray, rng: np.random.Generator) -> bytes:
    return bytes(content[: rng.integers(len(content))])


def extended(content: bytearray, rng: np.random.Generator) -> bytes:
    return bytes(content) + rng.bytes(int(rng.integers(1, 5000)))


def zeroed(content: bytearray, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content)))
    stop = min(len(content), start + int(rng.integers(1, 64)))
    content[start:stop] = bytes(stop - start)
    return bytes(content)


def scrambled(content: bytearray, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content)))
    stop = min(len(content), start + int(rng.integers(1, 64)))
    content[start:stop] = rng.bytes(stop - start)
    return bytes(content)


def renumbered(content: bytearray, rng: np.random.Generator) -> bytes:
    """Change a number in the text or in a header: works for JSON, TOML, safetensors and .npy files."""
    places = [m.span() for m in re.finditer(rb"\d+(\.\d+)?", bytes(content[:4000]))]
    if not places:
        return flipped(content, rng)
    start, stop = places[rng.integers(len(places))]
    new = HUGE[rng.integers(len(HUGE))] if rng.random() < 0.5 else str(rng.integers(10 ** min(stop - start, 18)))
    return bytes(content[:start]) + new.encode() + bytes(content[stop:])


def deepened(content: bytearray, rng: np.random.Generator) -> bytes:
    return b"[" * int(rng.integers(10, 100_000)) + bytes(content)


CONTENT: dict[str, Callable[[bytearray, np.random.Generator], bytes]] = {
    "bit flip": flipped,
    "truncation": cut,
    "extension": extended,
    "zeroed range": zeroed,
    "random range": scrambled,
    "edited number": renumbered,
    "deep nesting": deepened,
}
HARMS = [*(3 * list(CONTENT)), "swap", "other's", "deletion", "FIFO", "link out", "link loop", "folder", "folder link"]


def harm(how: str, file: Path, pristine: Path, work: Path, rng: np.random.Generator) -> list[Path]:
    """Damage a file; the files that an error may name."""
    content = bytearray(file.read_bytes())
    if how in CONTENT and content:
        file.write_bytes(CONTENT[how](content, rng))
    elif how == "swap":
        others = [path for path in files_of(file.parent) if path != file]
        other = others[rng.integers(len(others))] if others else file
        content = other.read_bytes()
        other.write_bytes(file.read_bytes())
        file.write_bytes(content)
        return [file, other]
    elif how == "other's" and (other := pristine / "other" / file.relative_to(work)).is_file():
        file.write_bytes(other.read_bytes())
        return [file, *files_of(pristine / "other")] if file.suffix == ".json" else [file]  # it speaks of those
    elif how == "link out":
        (work / "elsewhere").write_bytes(content)
        file.unlink()
        file.symlink_to(work / "elsewhere")
    elif how == "folder link" and file.parent.name.startswith("data-"):
        (work / "moved").mkdir()
        inside = files_of(file.parent)
        file.parent.rename(work / "moved" / "data")
        file.parent.symlink_to(work / "moved" / "data")
        return inside
    else:
        file.unlink()
        if how == "FIFO":
            os.mkfifo(file)
        elif how == "link loop":
            file.symlink_to(file.name)
        elif how == "folder":
            file.mkdir()
    return [file]


# -- a child that tries ------------------------------------------------------------------------------------------------


def serve(pipe: Connection, pristine: Path, work: Path, seed: int) -> None:
    """Run the trials whose numbers come through the pipe; send back the kind of each, whether it held, and why not."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    predict.ROWS_A_SHARD = 2
    wanted: dict[str, Any] = {}
    for kind in SHARES:
        copy_needed(kind, pristine, work)
        wanted[kind] = use(kind, work)
        shutil.rmtree(work)
    used = int(re.findall(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, resource.RLIM_INFINITY))
    pipe.send(None)
    while (number := pipe.recv()) is not None:
        pipe.send(one_trial(np.random.default_rng([seed, number]), pristine, work, wanted))


def copy_needed(kind: str, pristine: Path, work: Path) -> None:
    for name in NEEDED.get(kind, ("panel", "run")):
        shutil.copytree(pristine / name, work / name)


def one_trial(rng: np.random.Generator, pristine: Path, work: Path, wanted: dict[str, Any]) -> tuple[str, bool, str]:
    kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    copy_needed(kind, pristine, work)
    how = HARMS[rng.integers(len(HARMS))]
    folder = work / FOLDERS.get(kind, kind)
    files = [path for path in files_of(folder) if kind == "checkpoint" or "checkpoints" not in path.parts]
    file = files[rng.integers(len(files))]
    what = f"{how} of {file.relative_to(work)}, used as a {kind}"
    before = file.read_bytes()
    names = [path.name for path in harm(how, file, pristine, work, rng)]
    if file.is_file() and not file.is_symlink() and file.read_bytes() == before and len(names) == 1:
        what += " (which changed nothing)"
    try:
        outcome = use(kind, work)
        same = outcome.equals(wanted[kind]) if isinstance(outcome, pl.DataFrame) else outcome == wanted[kind]
        return kind, bool(same), f"{what}: other results"
    except MqcastError as error:
        is_named = any(name in str(error) for name in names)
        return kind, is_named, f"{what}: the message does not name it: {error}"
    except BaseException as error:
        return kind, False, f"{what}: {type(error).__name__}: {str(error)[:300]}"
    finally:
        shutil.rmtree(work, ignore_errors=True)


class Child:
    """A process that runs one trial after another; when it dies, a new one takes its place."""

    def __init__(self, *arguments: Any):
        self.arguments, self.process = arguments, None
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, child_end = context.Pipe()
        self.process = context.Process(target=serve, args=(child_end, *self.arguments), daemon=True)
        self.process.start()
        child_end.close()
        if not self.pipe.poll(10 * SECONDS):
            raise RuntimeError("the child does not start")
        self.pipe.recv()

    def run_trial(self, number: int) -> tuple[str, bool, str]:
        assert self.process is not None
        self.pipe.send(number)
        try:
            if self.pipe.poll(SECONDS):
                return self.pipe.recv()
            why = f"no result after {SECONDS} s"
        except EOFError:
            self.process.join()
            why = f"the process ended with code {self.process.exitcode}"
        self.stop()
        self.start()
        return "crash", False, f"trial {number}: {why}"

    def stop(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.join()
        shutil.rmtree(self.arguments[1], ignore_errors=True)


def main() -> None:
    guarantee = "A damaged file is refused by its name, or changes nothing; no crash, no hang, no huge allocation."
    campaign = Campaign(guarantee, 10_000)
    warnings.simplefilter("ignore")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="mqcast-campaign-") as place:
        predict.ROWS_A_SHARD = 2
        make_artifacts(Path(place) / "pristine")
        child = Child(Path(place) / "pristine", Path(place) / "work", campaign.options.seed)
        try:
            for number, _ in campaign.trials():
                kind, holds, detail = child.run_trial(number)
                campaign.check(holds, kind, f"trial {number}: {detail}")
        finally:
            child.stop()
    campaign.finish()


if __name__ == "__main__":
    main()
