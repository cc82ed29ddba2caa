"""Training inside an experiment: budgets in minutes, costs over all sessions, and processes that agree."""

import io
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch

from lab.experiments.experiment import RunSpec
from mqcast.data.panel import Panel
from mqcast.durable import write_file
from mqcast.errors import ConfigError, Interrupted
from mqcast.launch import is_first, is_worker
from mqcast.run import Run
from mqcast.settings import RunConfig
from mqcast.train.distributed import joined
from mqcast.train.loop import fit
from mqcast.train.records import Step, read_metrics

GIVEN = "given"  # what a decision was made for, in its file
TRIAL_STEPS, WARM_UP, TRIAL_SHARE = 100, 5, 0.1  # of the time allowed, at most


def train(
    spec: RunSpec, panel: Panel, config: RunConfig, folder: Path, start_from: Run | None = None
) -> tuple[Run, dict[str, Any]]:
    """Train or resume a run; returns it with its cost over all sessions."""
    wall, cpu = time.monotonic(), time.process_time()
    options = spec.options
    try:
        run = fit(
            panel,
            config,
            folder,
            resume=True,
            start_from=start_from,
            listeners=options.listeners,
            device=options.device,
        )
    except Interrupted as stopped:
        text = f"training was stopped and saved in {spec.folder}; resume it with the same command"
        raise Interrupted(text, stopped.signal) from None
    return run, costs(run, time.monotonic() - wall, total(time.process_time() - cpu))


def costs(run: Run, session_wall: float, session_cpu: float) -> dict[str, Any]:
    """The cost of all sessions of a run; CPU time is summed over processes."""
    last = read_metrics(run.metrics)[-1]
    sessions = max(last["seconds"] / session_wall, 1.0) if session_wall > 1 else 1.0
    return {
        "steps": last["step"],
        "trajectories": last["trajectories"],
        "wall_seconds": last["seconds"],
        "cpu_seconds": session_cpu * sessions,
    }


def budgeted_steps(
    spec: RunSpec, panel: Panel, config: RunConfig, refit_share: float = 1.0
) -> tuple[int | None, int | None]:
    """Steps of the first training and of each refit, decided once, so that a resumed run keeps them.

    None: neither minutes nor train.max_steps are given, and epochs end the training.
    """
    options, max_steps = spec.options, config.train.max_steps
    if options.minutes is None and options.refit_minutes is None and max_steps is None:
        return None, None
    given = {
        "minutes": options.minutes,
        "refit_minutes": options.refit_minutes,
        "max_steps": max_steps,
        "refit share": refit_share,
    }

    def decide() -> dict[str, Any]:
        per_minute = 0.0
        if minutes := options.minutes or options.refit_minutes:
            per_minute = steps_within(minutes, panel, config, spec.folder, options.device) / minutes
        first = max(1, round(per_minute * options.minutes)) if options.minutes else max_steps or 1
        later = per_minute * options.refit_minutes if options.refit_minutes else refit_share * first
        return {"first": first, "later": max(1, int(later))}

    steps = once(spec.folder / "steps.json", given, decide)
    return steps["first"], steps["later"]


def steps_within(minutes: float, panel: Panel, config: RunConfig, folder: Path, device: str) -> int:
    """How many training steps fit into this time: measured in a trial that is discarded, equal for all processes.

    Minutes are CPU time of each process, so that other programs on the machine do not count; with a GPU, wall time.
    """
    clock = time.monotonic if torch.cuda.is_available() else time.process_time
    times: list[float] = []

    def listen(record: Any) -> None:
        if isinstance(record, Step):
            times.append(clock())

    trial = folder / ".trial"
    shutil.rmtree(trial, ignore_errors=True)
    agreed(1)
    bounds = {"max_steps": TRIAL_STEPS, "max_minutes": TRIAL_SHARE * minutes, "warmup_steps": 0}
    times.append(clock())
    fit(panel, config.replace(train=config.train.replace(**bounds)), trial, listeners=(listen,), device=device)
    shutil.rmtree(trial, ignore_errors=True)
    if is_first():  # listeners of the other processes are not called
        first = min(WARM_UP, len(times) - 2)
        return agreed(max(1, int(60 * minutes * (len(times) - 1 - first) / (times[-1] - times[first]))))
    return agreed(0)


# -- several processes -------------------------------------------------------------------------------------------------


def agreed(value: int) -> int:
    """The first process's value, for all processes, which wait for each other."""
    if not is_worker():
        return int(value)
    with joined("cpu") as ranks:
        return ranks.agree(int(value))


def total(value: float) -> float:
    """The sum over all processes."""
    if not is_worker():
        return value
    with joined("cpu") as ranks:
        return float(ranks.add(torch.tensor([value], dtype=torch.float64)).item())


def once(path: Path, given: dict[str, Any], decide: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A decision that is kept in a file, with what it was made for: all processes and later calls use it."""
    if not agreed(path.exists()):
        decision = decide()
        if is_first():
            write_json(path, decision | {GIVEN: given})
        agreed(1)
    decision = read_json(path)
    before = decision.get(GIVEN, given)
    changed = [f"{name}: {before.get(name)}, now {value}" for name, value in given.items() if before.get(name) != value]
    if changed:
        raise ConfigError(
            f"{path.parent} was begun with other settings ({'; '.join(changed)}); keep those, or name another --out"
        )
    return decision


# -- files -------------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file; empty if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(values))


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    packed = io.BytesIO()
    frame.write_parquet(packed)
    write_file(path, packed.getvalue())
