"""The record of one run: task, model, seed, metrics, and all that is needed to reproduce them."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mqcast.durable import write_file
from mqcast.provenance import git
from mqcast.version import __version__

CODE = (":/src", ":/lab", ":(top,exclude)lab/results")


@dataclass(frozen=True)
class Record:
    """One model on one task with one seed; `metrics` have the names that the task's owners use."""

    task: str
    model: str
    seed: int
    metrics: dict[str, float]
    config: dict[str, Any]
    wall_seconds: float
    cpu_seconds: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    command: str = field(default_factory=lambda: this_command())
    commit: str | None = field(default_factory=lambda: git("rev-parse", "HEAD"))
    uncommitted_changes: bool = field(default_factory=lambda: bool(git("status", "--porcelain", "--", *CODE)))
    when: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    mqcast: str = __version__

    def write(self, folder: str | Path) -> Path:
        """FOLDER/<task>/<model>-<seed>.json."""
        path = Path(folder) / self.task / f"{self.model}-{self.seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(asdict(self), indent=2, default=str) + "\n")
        return path

    @classmethod
    def read(cls, path: str | Path) -> "Record":
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))


def this_command() -> str:
    """The command that is running; of absolute paths, which differ from machine to machine, only the names."""
    arguments = [Path(one).name if Path(one).is_absolute() else one for one in sys.argv[1:]]
    return shlex.join(["python", "-m", "lab", *arguments])


def machine() -> dict[str, Any]:
    """Cores, system and Python; nothing that identifies the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": cores,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def beside_published(
    published: Mapping[str, Mapping[str, float]], records: Sequence[Record], metrics: Sequence[str]
) -> pl.DataFrame:
    """Published scores, then ours: the mean over seeds, with the standard deviation where there are several."""
    rows = [
        {"model": name, "by": "published", **{metric: f"{scores[metric]:g}" for metric in metrics if metric in scores}}
        for name, scores in published.items()
    ]
    for task, model in dict.fromkeys((record.task, record.model) for record in records):
        seeds = [record for record in records if (record.task, record.model) == (task, model)]
        cells = {metric: _cell([record.metrics[metric] for record in seeds]) for metric in metrics}
        rows.append({"model": model, "by": f"mqcast, {task}", **cells, "seeds": str(len(seeds))})
    return pl.DataFrame(rows, schema=dict.fromkeys(["model", "by", *metrics, "seeds"], pl.String)).fill_null("")


def _cell(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"
