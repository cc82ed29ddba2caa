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
    """Train a run, or go on with it; and what it has cost over all its sessions."""
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
        text = f"stopped in training, saved in {spec.folder}; go on with the same command"
        raise Interrupted(text, stopped.signal) from None
    return run, costs(run, time.monotonic() - wall, total(time.process_time() - cpu))


def costs(run: Run, session_wall: float, session_cpu: float) -> dict[str, Any]:
    """Of all sessions of a run; the CPU time is that of all processes together."""
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
    """Steps of the first training and of each refit, decided once, so that an interrupted run goes on as it began.

    None: neither minutes nor train.max_steps are given, and epochs end the training.
    """
    options, most = spec.options, config.train.max_steps
    if options.minutes is None and options.refit_minutes is None and most is None:
        return None, None
    given = {
        "minutes": options.minutes,
        "refit_minutes": options.refit_minutes,
        "max_steps": most,
        "refit share": refit_share,
    }

    def decide() -> dict[str, Any]:
        per_minute = 0.0
        if minutes := options.minutes or options.refit_minutes:
            per_minute = steps_within(minutes, panel, config, spec.folder, options.device) / minutes
        first = max(1, round(per_minute * options.minutes)) if options.minutes else most or 1
        later = per_minute * options.refit_minutes if options.refit_minutes else refit_share * first
        return {"first": first, "later": max(1, int(later))}

    steps = once(spec.folder / "steps.json", given, decide)
    return steps["first"], steps["later"]


def steps_within(minutes: float, panel: Panel, config: RunConfig, folder: Path, device: str) -> int:
    """How many steps of training take so long: measured in a trial that is thrown away, the same for all processes.

    Minutes are of each process's CPU, so that other programs on the machine do not count; with a GPU they are the
    clock's.
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
    """The first process's value, for all; they wait for each other."""
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
    """What was decided first, kept in a file with what was given: all processes and later calls go by it."""
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
    """What a file says; nothing if it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(values))


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    packed = io.BytesIO()
    frame.write_parquet(packed)
    write_file(path, packed.getvalue())
