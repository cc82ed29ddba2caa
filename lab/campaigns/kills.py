"""Killed at any moment, fit, pack, forecast and save leave the old result or the new one, and can be run again.

    python -m lab campaign kills [--count 200] [--seed 0]

Each trial starts a job in a process of its own and ends it with SIGKILL at a random moment. Another process then checks
what is left, runs the job again, and compares: a resumed run has the same weights, bit for bit.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import polars as pl
from artifact_samples import CONFIG, SCHEMA, make_all, pack_tiny, tiny_frame

from lab.campaigns.campaign import Campaign
from mqcast import Forecaster, Panel
from mqcast.data.panel import pack
from mqcast.errors import ArtifactError
from mqcast.forecast import predict
from mqcast.run import Run, exists
from mqcast.train.loop import fit

SECONDS = 120  # that a job, or the check of what it left, may take
# Jobs run in forked processes. This one only starts them: threads that it had started would be missing there.


def fit_job(place: Path) -> None:
    fit(Panel.open(place / "panel"), CONFIG, place / "new run", resume=True)


def fit_left(place: Path) -> None:
    if exists(place / "new run"):
        Run.open(place / "new run")
    fit_job(place)
    resumed, wanted = (place / run / "model.safetensors" for run in ("new run", "run"))
    assert resumed.read_bytes() == wanted.read_bytes(), "the resumed run has other weights"


def pack_job(place: Path) -> None:
    pack(tiny_frame().with_columns(pl.col("y") * 2), place / "panel", SCHEMA)


def pack_left(place: Path) -> None:
    old = Panel.from_frame(tiny_frame(), SCHEMA).fingerprint
    new = Panel.from_frame(tiny_frame().with_columns(pl.col("y") * 2), SCHEMA).fingerprint
    left = Panel.open(place / "panel")
    assert left.fingerprint == left._digest(), "the panel does not match its fingerprint"
    assert left.fingerprint in (old, new), "neither the old panel nor the new one"
    pack_job(place)
    assert Panel.open(place / "panel").fingerprint == new
    assert len(list((place / "panel").iterdir())) == 2, "something was left behind"


def forecast_job(place: Path) -> None:
    predict.ROWS_A_SHARD = 2
    predict.forecast(Run.open(place / "run"), Panel.open(place / "panel"), place / "out.parquet", first="2023-04-23")


def forecast_left(place: Path) -> None:
    wanted = pl.read_parquet(place / "wanted.parquet")
    if (place / "out.parquet").exists():
        assert pl.read_parquet(place / "out.parquet").equals(wanted), "the file is not complete"
    forecast_job(place)
    assert pl.read_parquet(place / "out.parquet").equals(wanted), "forecasts differ from those without the kill"


def save_job(place: Path) -> None:
    Forecaster.load(place / "forecaster").save(place / "saved")


def save_left(place: Path) -> None:
    wanted = Forecaster.load(place / "forecaster").predict()
    if not (place / "saved").exists():
        save_job(place)
    assert Forecaster.load(place / "saved").predict().equals(wanted), (
        "forecasts differ from those of the saved forecaster"
    )
    try:
        save_job(place)
    except ArtifactError:
        return
    raise AssertionError("a saved forecaster was overwritten")


JOBS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "fit": (fit_job, fit_left),
    "pack": (pack_job, pack_left),
    "forecast": (forecast_job, forecast_left),
    "save": (save_job, save_left),
}


def make(place: Path) -> None:
    make_all(place)
    shutil.rmtree(place / "run")
    fit(pack_tiny(place / "panel"), CONFIG, place / "run")
    forecast_job(place)
    (place / "out.parquet").rename(place / "wanted.parquet")


def in_child(job: Callable[[Path], None], place: Path, kill_after: float | None = None) -> str:
    """Run a job in a process of its own; what went wrong, or "" if it succeeded or was killed as requested."""
    note = place.with_name("note")
    note.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            warnings.simplefilter("ignore")
            job(place)
            code = 0
        except BaseException:
            note.write_text(traceback.format_exc()[-1500:])
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return ""
    ends = time.monotonic() + SECONDS
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"no result after {SECONDS} s"
        time.sleep(0.005)
    if os.waitstatus_to_exitcode(done[1]) == 0:
        return ""
    return note.read_text() if note.exists() else f"it ended with code {os.waitstatus_to_exitcode(done[1])}"


def main() -> None:
    campaign = Campaign("Killed at any moment, a job leaves the old result or the new one, and can be run again.", 200)
    with tempfile.TemporaryDirectory(prefix="mqcast-campaign-") as folder:
        pristine, work = Path(folder) / "pristine", Path(folder) / "work"
        if problem := in_child(make, pristine):
            sys.exit(problem)
        durations = {}
        for name, (job, _) in JOBS.items():
            shutil.copytree(pristine, work)
            began = time.monotonic()
            if problem := in_child(job, work):
                sys.exit(problem)
            durations[name] = time.monotonic() - began
            shutil.rmtree(work)
        for number, rng in campaign.trials():
            name = list(JOBS)[number % len(JOBS)]
            job, left = JOBS[name]
            shutil.copytree(pristine, work)
            moment = float(rng.uniform(0, 1.1 * durations[name]))
            in_child(job, work, kill_after=moment)
            problem = in_child(left, work)
            campaign.check(not problem, name, f"trial {number}, killed after {moment:.3f} s: {problem}")
            shutil.rmtree(work)
    campaign.finish(seconds_of_jobs={name: round(seconds, 2) for name, seconds in durations.items()})


if __name__ == "__main__":
    main()
