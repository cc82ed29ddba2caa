"""Training inside an experiment: costs over all sessions, and processes that agree."""

import io
import json
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
from mqcast.train.records import read_metrics

GIVEN = "given"  # what a decision was made for, in its file


def train(spec: RunSpec, panel: Panel, config: RunConfig, folder: Path) -> tuple[Run, dict[str, Any]]:
    """Train or resume a run; returns it with its cost over all sessions."""
    wall, cpu = time.monotonic(), time.process_time()
    options = spec.options
    try:
        run = fit(
            panel,
            config,
            folder,
            resume=True,
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
