"""What the experiments share: agreements and sums of processes, how many steps fit into a time, means of networks."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch

from mqcast.data.panel import Panel
from mqcast.durable import write_file
from mqcast.errors import ConfigError
from mqcast.launch import is_first, is_worker
from mqcast.settings import RunConfig
from mqcast.train.distributed import joined
from mqcast.train.loop import fit
from mqcast.train.records import Step, read_metrics

TRIAL_STEPS, WARM_UP, TRIAL_SHARE = 100, 5, 0.1  # of the time allowed, at most


def agreed(value: int) -> int:
    """The first process's value, for all; they wait for each other."""
    if not is_worker():
        return int(value)
    with joined("cpu") as ranks:
        return ranks.agree(int(value))


def once(path: Path, said: dict[str, Any], find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was found once for what was said, kept in a file: all processes, and all later calls, go by it."""
    if not agreed(path.exists()):
        found = find()
        if is_first():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, json.dumps(found | {"said": said}))
        agreed(1)
    found = json.loads(path.read_text(encoding="utf-8"))
    before = found.get("said", said)
    unlike = [f"{name}: {before.get(name)}, now {value}" for name, value in said.items() if before.get(name) != value]
    if unlike:
        told = "; ".join(unlike)
        raise ConfigError(f"{path.parent} was begun with other settings ({told}); keep those, or name another --out")
    return found


def total(value: float) -> float:
    """Over all processes."""
    if not is_worker():
        return value
    with joined("cpu") as ranks:
        return float(ranks.add(torch.tensor([value], dtype=torch.float64)).item())


def steps_within(minutes: float, panel: Panel, config: RunConfig, folder: Path, device: str) -> int:
    """How many steps of training take so long: measured in a few that are thrown away, the same for all processes.

    Minutes are of each process's CPU, so that others on the machine do not count; with a GPU they are the clock's.
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
    if is_first():  # the others hear nothing
        first = min(WARM_UP, len(times) - 2)
        return agreed(max(1, int(60 * minutes * (len(times) - 1 - first) / (times[-1] - times[first]))))
    return agreed(0)


def training_facts(run: Any, session_wall: float, session_cpu: float) -> dict[str, float]:
    """What a run has cost over all its sessions: `session_…` are this one's, the CPU of all processes together."""
    last = read_metrics(run.metrics)[-1]
    again = max(last["seconds"] / session_wall, 1.0) if session_wall > 1 else 1.0
    return {
        "steps": last["step"],
        "trajectories": last["trajectories"],
        "wall_seconds": last["seconds"],
        "cpu_seconds": session_cpu * again,
    }


def averaged(frames: Sequence[pl.DataFrame], keys: Sequence[str], quantiles: Sequence[str]) -> pl.DataFrame:
    """The mean of several models' quantiles: an ensemble."""
    together = pl.concat([frame.select(*keys, *quantiles) for frame in frames])
    counts = {frame.height for frame in frames}
    found = together.group_by(keys, maintain_order=True).agg(pl.col(quantiles).mean())
    if counts != {found.height}:
        raise ConfigError("the forecasts to be averaged are not of the same series and dates; forecast all alike")
    return found
