"""The record of one run: task, model, seed, metrics, and all that is needed to obtain them again."""

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mqcast.durable import write_file
from mqcast.provenance import git
from mqcast.version import __version__


@dataclass(frozen=True)
class Record:
    """One model on one task with one seed; `metrics` are the goal's, by the names that the task's owners use."""

    task: str
    model: str
    seed: int
    metrics: dict[str, float]
    config: dict[str, Any]
    wall_seconds: float
    cpu_seconds: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    command: str = field(default_factory=lambda: " ".join(["mqcast", *sys.argv[1:]]))
    commit: str | None = field(default_factory=lambda: git("rev-parse", "HEAD"))
    uncommitted_changes: bool = field(default_factory=lambda: bool(git("status", "--porcelain", "--", ".")))
    when: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    mqcast: str = __version__

    @property
    def name(self) -> str:
        return f"{self.task}-{self.model}-{self.seed}"

    def write(self, folder: str | Path) -> Path:
        path = Path(folder) / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(asdict(self), indent=2, default=str) + "\n")
        return path

    @classmethod
    def read(cls, path: str | Path) -> "Record":
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))


def machine() -> dict[str, Any]:
    """Cores and Python: facts about the machine that say nothing of where it is."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores": cores,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
