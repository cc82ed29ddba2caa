"""The battery's table: every kept record beside seasonal naive, MQ-CNN, LightGBM and the best published score."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.battery.job import RECORD, Job
from lab.battery.tasks import TASKS, Mode
from lab.experiments.records import Record
from lab.experiments.systems import BASELINE, SEASONAL_NAIVE
from mqcast.durable import write_file
from mqcast.errors import ConfigError
from mqcast.settings import nearest

LIGHTGBM = "lightgbm"
REFERENCES = {SEASONAL_NAIVE: "÷ naive", BASELINE: "÷ MQ-CNN", LIGHTGBM: "÷ LightGBM"}
RATIOS = ("SQL", "WQL", "P50", "P90")
Row = dict[str, Any]


@dataclass(frozen=True)
class Seeds:
    """The records of one label on one task."""

    records: Sequence[Record]

    def mean(self, of: Callable[[Record], float | None]) -> float | None:
        values = [value for record in self.records if (value := of(record)) is not None]
        return float(np.mean(values)) if values else None

    def metric(self, name: str) -> float:
        return float(np.mean([record.metrics[name] for record in self.records]))

    @property
    def spread(self) -> float | None:
        """The standard deviation of SQL over seeds, as a share of its mean."""
        losses = [record.metrics["SQL"] for record in self.records]
        return float(np.std(losses, ddof=1) / np.mean(losses)) if len(losses) > 1 else None


class Results:
    """All finished jobs of a mode, by task and label; and the records of others in a folder of results."""

    def __init__(self, out: Path, mode: Mode, kept: Path | None = None):
        self.mode = mode
        paths = [] if kept is None else sorted(kept.glob("*/*.json"))
        paths += sorted((out / mode).glob(f"*/*/{RECORD}"))
        jobs = [(Job(**record.config["job"]), record) for record in map(Record.read, paths)]
        found = {(job.task, job.label, job.seed): record for job, record in jobs if job.mode == mode}
        if not found:
            raise ConfigError(f"{out} has no finished {mode} job; run some with `python -m lab battery --out {out}`")
        seeds: dict[tuple[str, str], list[Record]] = {}
        for (task, label, _), record in found.items():
            seeds.setdefault((task, label), []).append(record)
        self.of = {key: Seeds(records) for key, records in seeds.items()}
        self.tasks = [task for task in TASKS if any(task == there for there, _ in self.of)]
        labels = dict.fromkeys(label for _, label in self.of)
        self.labels = sorted(labels, key=lambda label: (label != SEASONAL_NAIVE, label))

    @property
    def records(self) -> list[Record]:
        return [record for seeds in self.of.values() for record in seeds.records]

    def ratio(self, task: str, label: str, other: str, metric: str = "SQL") -> float | None:
        mine, theirs = self.of.get((task, label)), self.of.get((task, other))
        return None if mine is None or theirs is None else mine.metric(metric) / theirs.metric(metric)

    def rows(self) -> list[Row]:
        """A row per task and label."""
        return [self._row(task, label) for task in self.tasks for label in self.labels if (task, label) in self.of]

    def _row(self, task: str, label: str) -> Row:
        seeds = self.of[task, label]
        best = next((record.details["published"] for record in seeds.records if record.details["published"]), None)
        excess = {q: seeds.mean(lambda one, q=q: one.details.get("excess", {}).get(q)) for q in ("q0.5", "q0.9")}
        covered = {q: seeds.mean(lambda one, q=q: one.details["coverage"][q]) for q in ("q0.1", "q0.5", "q0.9")}
        return {
            "task": task,
            "model": label,
            "SQL": seeds.metric("SQL"),
            **{title: self.ratio(task, label, other) for other, title in REFERENCES.items()},
            "÷ published": seeds.metric("SQL") / best["SQL"] if best else None,
            "P50": seeds.metric("P50"),
            "P90": seeds.metric("P90"),
            **{f"≤ {q}": share for q, share in covered.items()},
            "bias": seeds.metric("bias"),
            **{f"V {q}": value for q, value in excess.items()},
            "filled": seeds.mean(lambda one: one.details["filled"]),
            "spread": seeds.spread,
            "seeds": len(seeds.records),
            "CPU-min": seeds.mean(lambda one: (one.cpu_seconds or 0) / 60),
        }

    def summary(self) -> list[Row]:
        """A row per label: skill is 1 - the geometric mean of SQL as a share of seasonal naive's."""
        return [self._summary(label) for label in self.labels]

    def _summary(self, label: str) -> Row:
        tasks = [task for task in self.tasks if (task, label) in self.of]
        of_fev = [task for task in tasks if TASKS[task].is_fev]
        naive, *others = REFERENCES
        fev, everywhere = (self._mean_ratio(chosen, label, naive) for chosen in (of_fev, tasks))
        costs = [self.of[task, label].mean(lambda one: (one.cpu_seconds or 0) / 60) or 0.0 for task in tasks]
        return {
            "model": label,
            "fev tasks": len(of_fev),
            "skill, fev": None if fev is None else 1 - fev,
            "tasks": len(tasks),
            "skill, all": None if everywhere is None else 1 - everywhere,
            **{REFERENCES[other]: self._mean_ratio(tasks, label, other) for other in others},
            "CPU-min": sum(costs),
        }

    def _mean_ratio(self, tasks: Iterable[str], label: str, other: str) -> float | None:
        return geometric_mean(self.ratio(task, label, other) for task in tasks)

    def against(self, other: str) -> list[Row]:
        """Ratios of losses to those of a label, by task, with their geometric mean; below 1 is better."""
        if other not in self.labels:
            near = nearest(other, tuple(self.labels))
            raise ConfigError(f"no results of {other!r}{near}; there are those of {', '.join(self.labels)}")
        rows: list[Row] = []
        for label in self.labels:
            shared = [task for task in self.tasks if label != other and self.ratio(task, label, other) is not None]
            ratios = {task: {name: self.ratio(task, label, other, name) for name in RATIOS} for task in shared}
            rows += [{"task": task, "model": label} | ratios[task] for task in shared]
            if shared:
                means = {name: geometric_mean(ratios[task][name] for task in shared) for name in RATIOS}
                rows.append({"task": f"all {len(shared)}", "model": label} | means)
        return rows


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    there = [value for value in values if value is not None]
    return float(np.exp(np.mean(np.log(there)))) if there else None


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table that can also be read as it is; numbers are aligned to the right."""
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(rows[0]))]
    texts = [name in ("task", "model") for name in rows[0]]
    rule = ["-" * width if text else "-" * (width - 1) + ":" for width, text in zip(widths, texts, strict=True)]
    lines = [
        [f"{one:{'<' if text else '>'}{width}}" for one, width, text in zip(line, widths, texts, strict=True)]
        for line in cells
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in [lines[0], rule, *lines[1:]])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
    return "" if value is None else str(value)


def write(results: Results, folders: Sequence[Path], against: str | None = None) -> dict[str, str]:
    """The tables, as table-<mode>.json and .md in some folders; returns both texts, by their endings."""
    tables = {"tasks": results.rows(), "summary": results.summary()}
    if against is not None:
        tables[f"against {against}"] = results.against(against)
    parts = (f"## {name}\n\n{markdown(rows)}" for name, rows in tables.items() if rows)
    texts = {
        "json": json.dumps(tables, indent=1, ensure_ascii=False) + "\n",
        "md": "\n".join([f"# The battery: {results.mode} windows\n", *parts]),
    }
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for ending, text in texts.items():
            write_file(folder / f"table-{results.mode}.{ending}", text)
    return texts
