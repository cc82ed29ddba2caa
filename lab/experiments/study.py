"""Protocol "cutoffs", a study's: systems are trained once and forecast from every cutoff of the test span.

OUT/<name>/<model>-<seed>/model, forecasts.parquet, done.json; OUT/<name>/judged-<seed>/report.html, tables.json.
OUT/<name>/<model>-grid has the search of its settings, if there was one.
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
from lab.experiments.fits import fitted_and_forecast
from lab.experiments.study_report import Judgement, judge, records_of, write_judgement
from lab.experiments.systems import BASELINE, NETWORKS, ORACLE, SEASONAL_NAIVE, System
from mqcast.data.panel import Panel
from mqcast.errors import ConfigError
from mqcast.evaluation.slices import Slice, peaks, promotions, ramp_down, short_horizons


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
    peaks: dict[str, list[dt.datetime]] = Field(default={}, description="dates that were expected to be peaks, by name")
    ramp: int = Field(default=1, ge=1, description="steps after a peak")

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

    def check_models(self, models: Sequence[str], tables: Mapping[str, Any]) -> None:
        if drawn := [name for name in models if not System.parse(name).is_forked]:
            raise ConfigError(f"only the tasks of the paper draw trajectories; leave {drawn[0]} out of {self.name}")
        super().check_models(models, tables)

    def train(self, data: StudyData, spec: RunSpec) -> None:
        fitted_and_forecast(spec, data.panel, self.train_until, self.last_cutoff)

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
        if self.peaks:
            slices += [*peaks(self.peaks), ramp_down(self.peaks, periods=self.ramp)]
        if dataset.promotions:
            rows = dataset.frame.filter(pl.col(schema.time) > self.train_until)
            slices += promotions(rows, dataset.promotions, id=schema.id, time=schema.time)
        return [*slices, short_horizons(self.short)]


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
