"""Protocol "parts", that of the paper's public tasks: TFT's published code, the paper's sizes, published numbers.

A task states its data, parts, horizon and quantiles. The preset `paper` has what the paper gives for the task as well
(its table `paper`); the recipe is what a Forecaster does with the rows of the training part, without the columns that
published code made from the date.

A task has parts, spans of dates that are panels of their own: a forecast of one part sees no row of another, and every
block of `encoder_steps` + `horizon` consecutive rows inside a part is a forecast. Where a part begins with rows of the
one before, they are context for its first forecast. Where paper and code differ, the code counts; see
docs/reproduce_public.md.

    OUT/panels/electricity/                 made once from the raw files
    OUT/electricity/mqt@paper-0/run/        the run (with --search: search/, an ordinary search)
    OUT/electricity/mqt@paper-0/forecasts.parquet, done.json
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from lab.experiments.experiment import Experiment, Outcome, RunSpec
from lab.experiments.fits import fit
from lab.experiments.part_panels import Panels, panels_of
from lab.experiments.records import Record
from lab.experiments.systems import PRESET, System
from lab.experiments.training import GIVEN, agreed, costs, once, read_json, train
from mqcast.data.cutoffs import CutoffPlan
from mqcast.data.panel import Panel
from mqcast.data.windows import WindowPlan
from mqcast.durable import claimed, put_in_place
from mqcast.errors import ConfigError
from mqcast.evaluation import evaluate, loss_by_lead, volatility
from mqcast.forecast.predict import write_forecasts
from mqcast.launch import is_first
from mqcast.models import DEFAULT
from mqcast.models.networks import FittedNetwork
from mqcast.report.accuracy import loss_by_lead_figure
from mqcast.report.evolution import volatility_figure
from mqcast.report.page import Page, PageFigure, PageTable, Section, write_page
from mqcast.run import Run
from mqcast.settings import RunConfig, SearchConfig, WindowConfig
from mqcast.train.records import read_metrics
from mqcast.train.search import search
from mqcast.train.spans import training_spans

BLOCKS = 256  # forecast at a time
Dates = tuple[dt.datetime, dt.datetime]  # the first and the last row of a part
METRICS = {
    "P50": "qrisk_tft_code_q0.5",
    "P90": "qrisk_tft_code_q0.9",
    "P50 pooled": "qrisk_pooled_q0.5",
    "P90 pooled": "qrisk_pooled_q0.9",
    "P50 covers": "coverage_q0.5",
    "P90 covers": "coverage_q0.9",
    "bias": "bias",
}
Progress = Callable[[int, int], None]


class PaperTask(Experiment):
    """What is the same for every model of a task."""

    default_models: ClassVar = (f"{DEFAULT}{PRESET}paper", DEFAULT)
    metrics: ClassVar = tuple(METRICS)

    protocol: Literal["parts"] = "parts"
    parts: dict[str, Dates]
    encoder_steps: int = Field(ge=1, description="rows of a block before its horizon")
    scaled_by: Literal["entity", "global"]
    num_blocks: int | None = None  # of the test part, where it is known of the whole files
    num_samples: int | None = None  # blocks that are drawn for training without forking; None: all
    deviation_ddof: int = 0
    is_imputed: bool = False  # missing targets are the mean, as inputs and as what is scored
    left_out: tuple[str, ...] = ()  # columns
    peers: dict[str, dict[str, Any]] = {}  # published settings of other libraries' models  # noqa: RUF012

    @property
    def total_steps(self) -> int:
        """Rows of a block."""
        return self.encoder_steps + self.horizon

    @property
    def split(self) -> dict[str, Any]:
        return {"train_until": self.parts["train"][1], "valid_until": self.parts["valid"][1]}

    @property
    def block(self) -> WindowConfig:
        """Windows of one creation time that see only their block."""
        steps, horizon = self.encoder_steps, self.horizon
        return WindowConfig(
            horizon=horizon, history=steps - 1, num_fcts=1, batch_size=BLOCKS, min_history=steps, partial_horizon=False
        )

    def config(self, model: str, seed: int, tables: Mapping[str, Any]) -> RunConfig:
        """Settings under a preset; without forking, blocks are sampled."""
        system = System.parse(model)
        config = self.merged(system, seed, tables).config
        if system.is_forked:
            return config
        window = config.window.replace(num_fcts=1, aligned=False, num_trajectories=self.num_samples)
        return config.replace(window=window)

    def check_models(self, models: Sequence[str], tables: Mapping[str, Any]) -> None:
        if others := [name for name in models if not System.parse(name).is_network]:
            raise ConfigError(
                f"{self.name} is a task of the paper, which only networks of the family can run; run {others[0]} in a "
                "study or on a leaderboard"
            )
        super().check_models(models, tables)

    def load(self, folder: Path | None, out: Path, on_progress: Progress | None = None) -> Panels:
        if folder is None:
            raise ConfigError(f"{self.name} needs --data, the folder with the files of {self.dataset}")
        return panels_of(self, folder, out / "panels" / self.name.removesuffix("-search"), on_progress)

    def train(self, data: Panels, spec: RunSpec) -> None:
        path, device = spec.folder / "forecasts.parquet", spec.options.device
        given = {"settings": spec.options.tables, "minutes": spec.options.minutes, "data": data.training.fingerprint}

        def train_and_forecast() -> dict[str, Any]:
            run, facts = self._trained(data, spec)
            return facts | {"scored_blocks": forecast_blocks(self._part(data, spec, "test"), data, run, path, device)}

        once(spec.folder / "done.json", json.loads(json.dumps(given, default=str)), train_and_forecast)
        revisions = spec.folder / "revisions.parquet"
        if spec.options.revisions and not agreed(revisions.exists()):
            run, _ = self._trained(data, spec)
            forecast_blocks(self._part(data, spec, "revisions"), data, run, revisions, device)

    def _part(self, data: Panels, spec: RunSpec, name: str) -> Panel:
        """The rows of a part, as the system was trained on such rows."""
        return data.recorded(name) if spec.system.preset is None else data.part(name)

    def _trained(self, data: Panels, spec: RunSpec) -> tuple[Run, dict[str, Any]]:
        options = spec.options
        if spec.system.preset is None:
            fitted, facts = fit(spec, data.recorded("train"), self.parts["train"][1], spec.folder / "run")
            assert isinstance(fitted, FittedNetwork)
            return fitted.run, facts
        config = settled(data, spec)
        if not options.search:
            run, facts = train(spec, data.training, config, spec.folder / "run")
            return run, facts | {"config": config.model_dump(mode="json"), "validations": validations(run)}
        space = SearchConfig(**options.tables.get("search", {}))
        best = search(
            data.training, config, space, spec.folder / "search", listeners=options.listeners, device=options.device
        )
        losses = {trial.name: trial.valid_loss for trial in best.trials}
        details = {"config": best.run.config.model_dump(mode="json"), "best": best.name, "valid_losses": losses}
        return best.run, costs(best.run, 0.0, 0.0) | details

    def judge(
        self, data: Panels, specs: Sequence[RunSpec], others: Mapping[str, Path], label: str | None = None
    ) -> Outcome:
        ours = [(spec, spec.folder / "forecasts.parquet") for spec in specs]
        theirs = [(specs[0].replace(model=name), path) for name, path in others.items()]
        records = [self._record(data, spec, path, label or self.name) for spec, path in ours + theirs]
        if not specs[0].options.revisions:
            return Outcome(records)
        frames = {
            f"{spec.model}, seed {spec.seed}": pl.read_parquet(spec.folder / "revisions.parquet") for spec in specs
        }
        page = specs[0].out / self.name / f"revisions-{specs[0].seed}.html"
        return Outcome(records, judge_revisions(data, frames, page), [page])

    def _record(self, data: Panels, spec: RunSpec, path: Path, title: str) -> Record:
        missing = "raise" if self.is_imputed else "drop"
        table = evaluate(pl.read_parquet(path), data.actuals("test"), missing=missing)
        done, peer = (read_json(spec.folder / name) for name in ("done.json", "peer.json"))
        facts = done or peer.get("facts", {})
        facts.pop(GIVEN, None)
        config = facts.pop("config", None) or peer.get("config", {})
        wall, cpu = (facts.pop(name, 0.0) for name in ("wall_seconds", "cpu_seconds"))
        facts |= {"data": data.training.fingerprint, "scored_values": int(table[0, "rows"])}
        metrics = {name: float(table[0, column]) for name, column in METRICS.items()}
        return Record(title, spec.model, spec.seed, metrics, config, wall, cpu, details=facts)

    def notes(self, records: Sequence[Record]) -> list[str]:
        notes = [
            "P50, P90: the mean over horizons of 2 Σ loss / Σ |y|, as TFT's evaluation code has it; pooled: the "
            "papers' formula."
        ]
        limits = {record.config.get("train", {}).get("max_steps") for record in records if PRESET in record.model}
        if limits - {None}:
            notes.append(
                f"Presets were trained for at most {max(limits - {None}):,} steps, not until their rule ends it."
            )
        scored = records[0].details.get("scored_blocks")
        if scored is not None and self.num_blocks not in (None, scored):
            notes.append(f"{scored:,} blocks were scored, not the {self.num_blocks:,} of the whole files.")
        if any("scored_blocks" in record.details and PRESET not in record.model for record in records):
            notes.append("By the recipe a forecast may use rows of its part before its block; with presets, the block.")
        if "open" in self.left_out:
            notes.append("Days without a sale are not scored here; in the published numbers they are.")
        return notes


def forecast_blocks(
    panel: Panel, panels: Panels, run: Any, path: Path, device: str = "auto", on_progress: Progress | None = None
) -> int:
    """Forecast every block of a part's panel, each from its own rows only; returns the number of blocks."""
    plan = CutoffPlan.of_blocks(panel, panels.task.block)
    scaled = path.with_name(f"scaled-{path.name}")
    write_forecasts(run, panel, plan, scaled, device=device, on_progress=on_progress)
    if is_first():
        with claimed(path, "forecasting to") as draft:
            panels.in_units(pl.scan_parquet(scaled)).sink_parquet(draft)
            put_in_place(draft, path)
        scaled.unlink()
    return plan.num_trajectories


def settled(panels: Panels, spec: RunSpec) -> RunConfig:
    """The settings under a preset, with the number of blocks that follows from the data and the minutes allowed."""
    config = panels.task.config(spec.model, spec.seed, spec.options.tables)
    if not spec.system.is_forked:
        config = config.replace(window=config.window.replace(num_trajectories=num_drawn(panels)))
    if spec.options.minutes is not None:
        config = config.replace(train=config.train.replace(max_minutes=spec.options.minutes))
    return config


def validations(run: Run) -> list[dict[str, Any]]:
    """The learning curve: step and loss of every validation."""
    lines = [line for line in read_metrics(run.metrics) if line["record"] == "epoch"]
    return [{name: line[name] for name in ("step", "train_loss", "valid_loss")} for line in lines]


def num_drawn(panels: Panels) -> int:
    """Number of blocks to train on without forking: the task's budget, or all of them."""
    task = panels.task
    span, _ = training_spans(panels.training, task.config("mqt@paper", 0, {}))
    num_blocks = WindowPlan(panels.training, task.block, span).num_trajectories
    return min(num_blocks, task.num_samples or num_blocks)


def judge_revisions(panels: Panels, revisions: Mapping[str, pl.DataFrame], path: Path) -> dict[str, Any]:
    """V of each model on the part `revisions`, in sales rather than their logarithms; both of the paper's figures."""
    logs, task = panels.actuals("revisions"), panels.task
    sales, levels = logs.with_columns(pl.col("y").exp()), pl.selectors.matches(r"^q0\.")
    judged = {
        name: volatility(frame.with_columns(levels.exp()), sales, task.levels, weights="demand", missing="drop")
        for name, frame in revisions.items()
    }
    rows = [{"model": name} | row for name, one in judged.items() for row in one.summary.iter_rows(named=True)]
    losses = loss_by_lead(revisions, logs, task.levels, missing="drop")
    process = pl.concat(one.process.with_columns(model=pl.lit(name)) for name, one in judged.items())
    text = "V at the outcome: 0 is best; above 0 revisions revert, below 0 they persist. Targets are sales."
    table = PageTable.of("V at the outcome", pl.DataFrame(rows).select("model", "level", "excess", "lo", "hi"))
    figure = PageFigure("Martingale volatility by days to go", volatility_figure(process))
    by_lead = PageFigure("Quantile loss of log sales by days to go", loss_by_lead_figure(losses))
    first, last = task.parts["revisions"]
    first += dt.timedelta(days=task.encoder_steps)
    lead = [f"Creation times a day apart, 30 days ahead each; targets from {first:%Y-%m-%d} to {last:%Y-%m-%d}."]
    about_leads = "The loss minus its mean: the steeper the curve, the more new information is used."
    sections = [
        Section("volatility", "Which forecasts are unstable", text, tables=[table], figures=[figure]),
        Section("leads", "Loss by days to go", about_leads, figures=[by_lead]),
    ]
    write_page(path, Page(f"{task.name}: how forecasts evolve", lead, sections))
    return {"volatility": rows, "loss by lead": losses.to_dicts()}
