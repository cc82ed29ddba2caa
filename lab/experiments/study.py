"""Protocol "cutoffs", a study's: systems are trained once and forecast from every cutoff of the test span.

OUT/<name>/<model>-<seed>/run, forecasts.parquet, done.json; OUT/<name>/judged-<seed>/report.html, tables.json.
The mean of several networks has them in its folder's `members` instead of a run; a registered model has `model`.
Another system's folder has peer.json, what it was given and what it took, instead of done.json.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from lab.datasets import Dataset
from lab.experiments.experiment import Experiment, Outcome, RunSpec
from lab.experiments.registered import run_registered
from lab.experiments.study_report import Judgement, judge, records_of, write_judgement
from lab.experiments.systems import BASELINE, NETWORKS, ORACLE, SEASONAL_NAIVE, System
from lab.experiments.training import agreed, budgeted_steps, read_json, train, write_json
from mqcast.data.panel import Panel
from mqcast.data.windows import WindowPlan
from mqcast.evaluation.slices import Slice, peaks, promotions, ramp_down, short_horizons
from mqcast.forecast.predict import forecast
from mqcast.launch import is_first
from mqcast.models.ensemble import mean_of_frames
from mqcast.run import Run
from mqcast.train.spans import training_spans


@dataclass(frozen=True)
class StudyData:
    """A study's data set and its panel."""

    dataset: Dataset
    panel: Panel


class Study(Experiment):
    """Trained on targets up to `train_until`; judged from every cutoff from there to `last_cutoff`."""

    default_models: ClassVar = NETWORKS
    metrics: ClassVar = ("P50", "P90")

    protocol: Literal["cutoffs"] = "cutoffs"
    train_until: dt.datetime
    last_cutoff: dt.datetime
    observed: str | None = Field(default=None, description="a known flag: where it is 0 there is nothing to judge")
    short: int = Field(default=1, ge=1, description="leads that count as short")
    peak_share: float | None = Field(default=None, description="dates by total demand that are peaks")
    ramp: int = Field(default=1, ge=1, description="steps after a peak")

    @property
    def split(self) -> dict[str, Any]:
        return {"train_until": self.train_until, "valid_until": self.train_until}

    def load(self, folder: Path | None, out: Path | None = None, on_progress: Any = None) -> StudyData:
        dataset = self.load_dataset(folder)
        rows, target = dataset.frame, dataset.schema.target
        if self.observed is not None:
            rows = rows.with_columns(pl.when(pl.col(self.observed) == 1).then(target).alias(target))
        dataset = replace(dataset, rows=reaching(rows, dataset, self).lazy())
        return StudyData(dataset, dataset.panel())

    def models_of(self, chosen: Sequence[str] | None) -> list[str]:
        """Every study also judges MQ-CNN and the seasonal naive forecast."""
        return list(dict.fromkeys([BASELINE, *(chosen or self.default_models), SEASONAL_NAIVE]))

    def train(self, data: StudyData, spec: RunSpec) -> None:
        run_system(data, spec)

    def judge(
        self, data: StudyData, specs: Sequence[RunSpec], others: Mapping[str, Path], label: str | None = None
    ) -> Outcome:
        paths = {spec.model: spec.folder / "forecasts.parquet" for spec in specs}
        frames = {name: pl.read_parquet(path) for name, path in (paths | dict(others)).items()}
        if data.dataset.oracle is not None:
            frames[ORACLE] = data.dataset.oracle(self.levels, self.train_until, self.last_cutoff)
        judgement = self.judge_frames(data.dataset, frames)
        title, spec = label or self.name, specs[0]
        page = write_judgement(judgement, spec, title)
        return Outcome(records_of(judgement, spec, title), judgement.tables(), [page])

    def judge_frames(self, dataset: Dataset, frames: Mapping[str, pl.DataFrame]) -> Judgement:
        """All systems on the forecasts that all of them have."""
        return judge(frames, self.actuals(dataset), dataset.schema, self.levels, self.slices(dataset), BASELINE)

    def actuals(self, dataset: Dataset) -> pl.DataFrame:
        """What is judged: observed demand."""
        schema, rows = dataset.schema, dataset.frame
        rows = rows.filter(pl.col(schema.observed)) if schema.observed else rows
        return rows.select(schema.id, schema.time, pl.col(schema.target).cast(pl.Float64)).drop_nulls()

    def slices(self, dataset: Dataset) -> list[Slice]:
        """Peaks, the steps after them, promotions by kind, short leads."""
        schema, slices = dataset.schema, []
        if self.peak_share is not None:
            tested = self.actuals(dataset).filter(pl.col(schema.time) > self.train_until)
            by_date = tested.group_by(schema.time).agg(pl.sum(schema.target)).sort(schema.target, descending=True)
            dates = by_date[schema.time].head(max(1, round(self.peak_share * by_date.height))).to_list()
            slices += [*peaks({"Peaks": dates}), ramp_down({"Peaks": dates}, periods=self.ramp)]
        if dataset.promotions:
            rows = dataset.frame.filter(pl.col(schema.time) > self.train_until)
            slices += promotions(rows, dataset.promotions, id=schema.id, time=schema.time)
        return [*slices, short_horizons(self.short)]


def run_system(data: StudyData, spec: RunSpec) -> Path:
    """Train one system and keep its forecasts from every cutoff of the test span, unless they are there."""
    folder, study, system = spec.folder, spec.experiment, System.parse(spec.model)
    path, device = folder / "forecasts.parquet", spec.options.device
    if spec.is_registered:
        return run_registered(spec, folder, data.panel, data.panel, study.train_until, study.last_cutoff)
    is_done = bool(agreed((folder / "done.json").exists()))
    if system.num_members > 1:
        return _run_members(data, spec, is_done)
    steps, _ = budgeted_steps(spec, data.panel, spec.config())
    config = spec.config() if steps is None else spec.config(max_steps=steps)
    if is_done:
        Run.open(folder / "run").check_resumable(config, data.panel)
        return path
    run, facts = train(spec, data.panel, config, folder / "run")
    forecast(run, data.panel, path, first=study.train_until, last=study.last_cutoff, device=device)
    if is_first():
        span, _ = training_spans(data.panel, config)
        in_epoch = WindowPlan(data.panel, config.window, span).num_trajectories
        facts["minutes_per_epoch"] = facts["wall_seconds"] / 60 * in_epoch / max(facts["trajectories"], 1)
        facts["parameters"] = sum(parameter.numel() for parameter in run.network().parameters())
        write_json(folder / "done.json", facts)
    agreed(1)
    return path


def _run_members(data: StudyData, spec: RunSpec, is_done: bool) -> Path:
    """The mean of several of a network: each has a seed of its own and, of given minutes, its share."""
    system, folder = System.parse(spec.model), spec.folder
    count, minutes = system.num_members, spec.options.minutes
    options = replace(spec.options, minutes=None if minutes is None else minutes / count)
    member = spec.replace(model=system.member, out=folder / "members", options=options)
    paths = [run_system(data, member.replace(seed=seed)) for seed in system.member_seeds(spec.seed)]
    path = folder / "forecasts.parquet"
    if is_first() and not is_done:
        frames, quantiles = [pl.read_parquet(one) for one in paths], spec.experiment.levels
        mean_of_frames(frames, quantiles).write_parquet(path)
        facts = [read_json(one.parent / "done.json") for one in paths]
        whole = {name: sum(fact[name] for fact in facts) for name in facts[0]}
        each = {"steps": round(whole["steps"] / count), "minutes_per_epoch": whole["minutes_per_epoch"] / count}
        write_json(folder / "done.json", whole | each | {"members": count})
    agreed(1)
    return path


def reaching(rows: pl.DataFrame, dataset: Dataset, study: Study) -> pl.DataFrame:
    """Series that end before the last target get rows without one: known values stay, and no flag is set.

    They are forecast like the others, since their end is not known at the cutoff; only dates with an actual are judged.
    """
    schema = dataset.schema
    if not schema.known:
        return rows
    dates = rows.select(pl.col(schema.time).unique().sort())
    until = dates.filter(pl.col(schema.time) > study.last_cutoff).head(study.horizon)[schema.time].max()
    ends = rows.group_by(schema.id, maintain_order=True).agg(pl.max(schema.time).alias(" end"))
    wanted = ends.filter(pl.col(" end") < until).join(dates.filter(pl.col(schema.time) <= until), how="cross")
    wanted = wanted.filter(pl.col(schema.time) > pl.col(" end")).drop(" end")
    if wanted.is_empty():
        return rows
    both = pl.concat([rows, wanted], how="diagonal").sort(schema.id, schema.time)
    flags = [name for name in schema.known if schema.kinds.get(name) == "flag"]
    others = [name for name in schema.known if name not in flags]
    down = [pl.col(name).fill_null(False if rows.schema[name] == pl.Boolean else 0) for name in flags]
    return both.with_columns(*down, pl.col(others).forward_fill().over(schema.id))
