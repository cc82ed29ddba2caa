"""Models on a public task: trained, forecast on every block of the test part, judged both ways, recorded.

    panels/electricity/                 made once from the raw files
    electricity/mqt-0/run/              the run (with search: search/, an ordinary search)
    electricity/mqt-0/forecasts.parquet
    records/electricity-mqt-0.json

The same call finds what is done, goes on with what was interrupted, and begins what is missing.
"""

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.experiments.public import AGGREGATIONS, LEVELS, PublicTask
from lab.experiments.public_panels import Panels
from lab.experiments.record import Record
from mqcast.data.cutoffs import CutoffPlan
from mqcast.data.windows import WindowPlan
from mqcast.durable import claimed, put_in_place
from mqcast.errors import Interrupted
from mqcast.evaluation import evaluate, loss_by_lead, volatility
from mqcast.launch import is_first
from mqcast.levels import quantile_column
from mqcast.settings import RunConfig, SearchConfig

MODEL_NAMES = {
    "mqt": "MQTransformer",
    "mqt-nods": "MQT-NoDS",
    "mqt-all": "MQT-All",
    "mqcnn": "MQ-CNN",
    "mqrnn": "MQ-RNN",
}
METRICS = tuple(f"qrisk_{kind}_{quantile_column(level)}" for kind in AGGREGATIONS for level in LEVELS)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Asked:
    """How the models of one call are trained."""

    has_forking: bool = True
    is_search: bool = False
    max_steps: int | None = None
    max_minutes: float | None = None
    device: str = "auto"

    @property
    def ending(self) -> str:
        """Of the names of folders and records."""
        return ("" if self.has_forking else "-no-forking") + ("-search" if self.is_search else "")


@dataclass(frozen=True)
class Trained:
    """A run whose training is done, and what it took, this time."""

    run: Any
    details: dict[str, Any]
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class PublicRun:
    """One model and seed: where its files are, and how it is obtained."""

    panels: Panels
    model: str
    seed: int
    asked: Asked
    out: Path

    @property
    def task(self) -> PublicTask:
        return self.panels.task

    @property
    def name(self) -> str:
        return f"{self.task.name}{self.asked.ending}"

    @property
    def folder(self) -> Path:
        return self.out / self.name / f"{self.model}-{self.seed}"

    @property
    def config(self) -> RunConfig:
        num = None if self.asked.has_forking else num_drawn(self.panels)
        return self.task.settings(self.model, self.seed, num, self.asked.max_steps, self.asked.max_minutes)

    def found(self) -> Record | None:
        """The record of a run of the same data and settings, if it is done."""
        path = self.out / "records" / f"{self.name}-{self.model}-{self.seed}.json"
        if not path.exists() or not (self.folder / "forecasts.parquet").exists():
            return None
        record = Record.read(path)
        same = record.details.get("data") == self.panels.training.fingerprint
        return record if same and record.details.get("asked") == self.config.model_dump(mode="json") else None

    def train(self, listeners: Sequence[Any] = ()) -> Trained:
        """By the task's settings, or by a search around them; what was begun before goes on."""
        from mqcast.run import exists
        from mqcast.train.loop import fit
        from mqcast.train.search import search

        began, cpu = time.perf_counter(), time.process_time()
        training, config = self.panels.training, self.config
        told: dict[str, Any] = {"listeners": tuple(listeners), "device": self.asked.device}
        details: dict[str, Any] = {}
        try:
            if self.asked.is_search:
                best = search(training, config, SearchConfig(), self.folder / "search", **told)
                losses = {trial.name: trial.valid_loss for trial in best.trials}
                run, details = best.run, {"best": best.name, "valid_losses": losses}
            else:
                folder = self.folder / "run"
                run = fit(training, config, folder, resume=exists(folder), **told)
        except Interrupted as asked:
            text = f"stopped in training, saved in {self.folder}; go on with the same command"
            raise Interrupted(text, asked.signal) from None
        return Trained(run, details, time.perf_counter() - began, time.process_time() - cpu)

    def judge(self, trained: Trained, on_progress: Progress | None = None) -> Record | None:
        """Forecast every block of the test part and judge them; of several processes the first one has the record."""
        began, cpu = time.perf_counter(), time.process_time()
        (self.folder / "revisions.parquet").unlink(missing_ok=True)  # of weights that may have been others
        path = self.folder / "forecasts.parquet"
        num_blocks = forecast_blocks(self.panels, trained.run, "test", path, self.asked.device, on_progress)
        if not is_first():
            return None
        missing = "raise" if self.task.is_imputed else "drop"
        table = evaluate(pl.read_parquet(path), self.panels.actuals("test"), missing=missing)
        details = {
            "data": self.panels.training.fingerprint,
            "asked": self.config.model_dump(mode="json"),
            "scored_blocks": num_blocks,
            "scored_values": int(table[0, "rows"]),
        }
        record = Record(
            task=self.name,
            model=self.model,
            seed=self.seed,
            metrics={name: float(table[0, name]) for name in METRICS},
            config=trained.run.config.model_dump(mode="json"),
            wall_seconds=trained.wall_seconds + time.perf_counter() - began,
            cpu_seconds=trained.cpu_seconds + time.process_time() - cpu,
            details=details | trained.details,
        )
        record.write(self.out / "records")
        return record

    def revised(self, on_progress: Progress | None = None) -> pl.DataFrame | None:
        """Forecasts of the part `revisions`, made now if need be; of several processes the first one has them."""
        path = self.folder / "revisions.parquet"
        if not path.exists():
            run = self.train().run
            forecast_blocks(self.panels, run, "revisions", path, self.asked.device, on_progress)
        return pl.read_parquet(path) if is_first() else None


def forecast_blocks(
    panels: Panels, run: Any, part: str, path: Path, device: str = "auto", on_progress: Progress | None = None
) -> int:
    """Forecast every block of a part, each seeing its own rows alone; how many there are."""
    from mqcast.forecast.predict import write_forecasts

    panel = panels.part(part)
    plan = CutoffPlan.of_blocks(panel, panels.task.block)
    scaled = path.with_name(f"scaled-{path.name}")
    write_forecasts(run, panel, plan, scaled, device=device, on_progress=on_progress)
    if is_first():
        with claimed(path, "forecasting to") as draft:
            panels.in_units(pl.scan_parquet(scaled)).sink_parquet(draft)
            put_in_place(draft, path)
        scaled.unlink()
    return plan.num_trajectories


def num_drawn(panels: Panels) -> int:
    """Blocks to train on without forking: the task's budget, or all there are."""
    from mqcast.train.spans import training_spans

    task = panels.task
    span, _ = training_spans(panels.training, task.settings("mqt", 0))
    there_are = WindowPlan(panels.training, task.block, span).num_trajectories
    return min(there_are, task.num_samples or there_are)


# -- beside the published numbers --------------------------------------------------------------------------------------

COLUMNS = ("model", "P50", "P90", "P50 pooled", "P90 pooled", "seeds")


def table_rows(task: PublicTask, records: Sequence[Record]) -> list[list[str]]:
    """Published numbers, then ours: the mean over seeds, and its deviation where there are several."""
    rows = [[name, *map(_number, values), "", "", ""] for name, values in task.published.items()]
    for model in dict.fromkeys(record.model for record in records):
        of_model = [record for record in records if record.model == model]
        cells = [_cell([record.metrics[name] for record in of_model]) for name in METRICS]
        rows.append([f"{MODEL_NAMES[model]} (mqcast{_bounds(of_model[0])})", *cells, str(len(of_model))])
    return rows


def table_notes(task: PublicTask, records: Sequence[Record]) -> list[str]:
    """How to read the table, and why our numbers may not be comparable."""
    notes = [
        "P50, P90: the mean over horizons of 2 Σ loss / Σ |y|, as TFT's evaluation code has it; pooled: the papers' "
        "formula. Rows without seeds are published numbers."
    ]
    scored = records[0].details["scored_blocks"]
    if task.num_blocks not in (None, scored):
        notes.append(f"{scored:,} blocks were scored, not the {task.num_blocks:,} of the whole files.")
    if not task.is_imputed and task.name.startswith("retail"):
        notes.append("Days without a sale are not scored here; in the published numbers they are.")
    return notes


def _bounds(record: Record) -> str:
    """What ends training before the paper's settings would."""
    train = record.details["asked"]["train"]
    words = {"max_steps": "steps", "max_minutes": "minutes"}
    return "".join(f", {train[name]:g} {word} at most" for name, word in words.items() if train[name] is not None)


def _number(value: float) -> str:
    return f"{value:.3f}" if round(value, 3) == value else f"{value:g}"


def _cell(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


# -- volatility --------------------------------------------------------------------------------------------------------


def judge_volatility(panels: Panels, revisions: Mapping[str, pl.DataFrame], path: Path) -> list[dict[str, Any]]:
    """V of each model on the part `revisions`, in sales rather than their logarithms; both of the paper's figures."""
    from mqcast.report.accuracy import loss_by_lead_figure
    from mqcast.report.evolution import volatility_figure
    from mqcast.report.page import Page, PageFigure, PageTable, Section, write_page

    logs = panels.actuals("revisions")
    sales, levels = logs.with_columns(pl.col("y").exp()), pl.selectors.matches(r"^q0\.")
    judged = {
        name: volatility(frame.with_columns(levels.exp()), sales, LEVELS, weights="demand", missing="drop")
        for name, frame in revisions.items()
    }
    rows = [{"model": name} | row for name, found in judged.items() for row in found.summary.iter_rows(named=True)]
    losses = loss_by_lead(revisions, logs, LEVELS, missing="drop")
    process = pl.concat(found.process.with_columns(model=pl.lit(name)) for name, found in judged.items())
    text = "V at the outcome: 0 is best; above it revisions revert, below it they go on. Targets are sales."
    table = PageTable.of("V at the outcome", pl.DataFrame(rows).select("model", "level", "excess", "lo", "hi"))
    figure = PageFigure("Martingale volatility by days to go", volatility_figure(process))
    by_lead = PageFigure("Quantile loss of log sales by days to go", loss_by_lead_figure(losses))
    first, last = panels.task.parts["revisions"]
    first += dt.timedelta(days=panels.task.encoder_steps)
    lead = [f"Creation times a day apart, 30 days ahead each; targets from {first:%Y-%m-%d} to {last:%Y-%m-%d}."]
    sections = [
        Section("volatility", "Whose forecasts jump without cause", text, tables=[table], figures=[figure]),
        Section(
            "leads", "What is learnt on the way", "The loss, less its mean: the steeper, the more.", figures=[by_lead]
        ),
    ]
    write_page(path, Page(f"{panels.task.name}: how forecasts evolve", lead, sections))
    return rows
