"""All systems of a study in one harness: trained for the same time, judged on the same windows, in the paper's tables.

OUT/<study>/<model>-<seed>/run, forecasts.parquet, done.json; OUT/<study>/judged-<seed>/report.html, tables.json.
The mean of several has them in its folder's `members` instead of a run.
Another system's folder has peer.json, what it was given and what it took, instead of done.json.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl

from lab.datasets import Dataset
from lab.experiments.coordination import agreed, averaged, once, steps_within, total, training_facts
from lab.experiments.record import Record
from lab.experiments.study import BASELINE, Study, members_of
from mqcast.data.panel import Panel
from mqcast.data.windows import WindowPlan
from mqcast.durable import write_file
from mqcast.evaluation import Comparison, Volatility, compare, evaluate, loss_by_lead, volatility
from mqcast.forecast.baselines import seasonal_naive
from mqcast.forecast.predict import forecast
from mqcast.launch import is_first
from mqcast.levels import percentile, quantile_column
from mqcast.report.accuracy import loss_by_lead_figure
from mqcast.report.evolution import volatility_figure
from mqcast.report.page import Page, PageFigure, PageTable, Section, write_page
from mqcast.run import Run
from mqcast.train.loop import fit
from mqcast.train.records import read_metrics
from mqcast.train.spans import training_spans

SEEDS_APART = 1000  # of the members of a mean
SEASONAL_NAIVE, ORACLE = "seasonal-naive", "oracle"
WEIGHTS = {"equal": None, "demand": "demand"}


@dataclass(frozen=True)
class Harness:
    """A study's data, and how its systems are trained."""

    study: Study
    loaded: Dataset
    panel: Panel
    out: Path
    tables: Mapping[str, Any]
    minutes: float | None = None
    device: str = "auto"
    listeners: tuple[Any, ...] = ()
    label: str | None = None  # of what is judged, in records and tables; None: the study's name

    @property
    def title(self) -> str:
        return self.label or self.study.name

    def judged(self, seed: int) -> Path:
        return self.out / self.study.name / f"judged-{f'{self.label}-' if self.label else ''}{seed}"

    def folder(self, model: str, seed: int) -> Path:
        return self.out / self.study.name / f"{model}-{seed}"


def run_system(harness: Harness, model: str, seed: int) -> Path:
    """Train one system and keep its forecasts from every cutoff of the test; found again if they are there."""
    folder, study = harness.folder(model, seed), harness.study
    path = folder / "forecasts.parquet"
    is_done = agreed((folder / "done.json").exists())
    if members_of(model)[1] > 1:
        return _run_members(harness, model, seed, bool(is_done))
    config = study.config(model, seed, harness.tables, _steps(harness, model, seed))
    if is_done:
        Run.open(folder / "run").check_resumable(config, harness.panel)
        return path
    clocks = time.monotonic(), time.process_time()
    run = fit(harness.panel, config, folder / "run", resume=True, listeners=harness.listeners, device=harness.device)
    wall, cpu = time.monotonic() - clocks[0], total(time.process_time() - clocks[1])
    forecast(run, harness.panel, path, first=study.train_until, last=study.last_cutoff, device=harness.device)
    if is_first():
        facts = training_facts(run, wall, cpu)
        span, _ = training_spans(harness.panel, config)
        in_epoch = WindowPlan(harness.panel, config.window, span).num_trajectories
        facts["minutes_per_epoch"] = facts["wall_seconds"] / 60 * in_epoch / max(facts["trajectories"], 1)
        facts["parameters"] = sum(parameter.numel() for parameter in run.network().parameters())
        write_file(folder / "done.json", json.dumps(facts))
    agreed(1)
    return path


def _run_members(harness: Harness, model: str, seed: int, is_done: bool) -> Path:
    """The mean of several of a network: each has a seed of its own and, of given minutes, its share."""
    (name, count), folder = members_of(model), harness.folder(model, seed)
    minutes = None if harness.minutes is None else harness.minutes / count
    alone = replace(harness, out=folder / "members", minutes=minutes)
    seeds = [seed + SEEDS_APART * number for number in range(count)]
    paths = [run_system(alone, name, one) for one in seeds]
    path = folder / "forecasts.parquet"
    if is_first() and not is_done:
        frames = [pl.read_parquet(one) for one in paths]
        quantiles = [quantile_column(level) for level in harness.study.levels]
        keys = [column for column in frames[0].columns if column not in quantiles]
        averaged(frames, keys, quantiles).write_parquet(path)
        facts = [_read(one.parent / "done.json") for one in paths]
        whole = {name: sum(fact[name] for fact in facts) for name in facts[0]}
        each = {"steps": round(whole["steps"] / count), "minutes_per_epoch": whole["minutes_per_epoch"] / count}
        whole |= each | {"members": count}
        write_file(folder / "done.json", json.dumps(whole))
    agreed(1)
    return path


def _steps(harness: Harness, model: str, seed: int) -> int | None:
    """As many as the minutes allow, settled once; None: the settings'."""
    if harness.minutes is None:
        return None
    minutes, folder = harness.minutes, harness.folder(model, seed)

    def find() -> dict[str, Any]:
        config = harness.study.config(model, seed, harness.tables)
        return {"steps": steps_within(minutes, harness.panel, config, folder, harness.device)}

    return once(folder / "steps.json", {"minutes": minutes}, find)["steps"]


def naive_forecasts(harness: Harness) -> pl.DataFrame:
    study = harness.study
    first, last = study.train_until, study.last_cutoff
    return seasonal_naive(harness.panel, study.horizon, study.levels, first=first, last=last)


# -- judgement ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """The paper's tables of some systems' forecasts."""

    accuracy: pl.DataFrame  # q-risk at each level, as in tab:public
    comparison: Comparison  # relative to MQ-CNN, by slice
    volatility: dict[str, dict[str, Volatility]]  # by weights, then by system
    by_lead: pl.DataFrame
    num_series: int

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        found = {"accuracy": self.accuracy, "relative": self.comparison.losses, "loss_by_lead": self.by_lead}
        found |= {} if (regret := self.regret()) is None else {"regret": regret}
        for weights, judged in self.volatility.items():
            named = [frame.summary.select(pl.lit(name).alias("model"), pl.all()) for name, frame in judged.items()]
            found[f"volatility, {weights} weights"] = pl.concat(named)
            pairs = [(name, BASELINE) for name in judged] + [("mqt", name) for name in judged if name != BASELINE]
            reductions = [
                judged[name]
                .reduction(judged[base])
                .select(pl.lit(name).alias("model"), pl.lit(base).alias("against"), pl.all())
                for name, base in pairs
                if name != base and {name, base} <= judged.keys()
            ]
            found[f"reduction, {weights} weights"] = pl.concat(reductions) if reductions else pl.DataFrame()
        return {name: table.to_dicts() for name, table in found.items()}

    def regret(self) -> pl.DataFrame | None:
        """By slice, the loss above the oracle's, as a share of it; None without one."""
        losses, keys = self.comparison.losses.select("dimension", "model", "level", "loss"), ["dimension", "level"]
        least = losses.filter(model=ORACLE).select(*keys, least="loss")
        if not least.height:
            return None
        both = losses.filter(pl.col("model") != ORACLE).join(least, on=keys, maintain_order="left")
        return both.select("dimension", "model", "level", regret=pl.col("loss") / pl.col("least") - 1)


def judge(study: Study, loaded: Dataset, frames: Mapping[str, pl.DataFrame], baseline: str = BASELINE) -> Judgement:
    """All systems on the forecasts that all of them have."""
    actuals, schema = study.actuals(loaded), loaded.schema
    names: dict[str, Any] = {"id": schema.id, "time": schema.time, "target": schema.target, "missing": "drop"}
    keys = [schema.id, "cutoff", schema.time]
    shared = actuals.select(schema.id, schema.time)
    common = next(iter(frames.values())).select(keys).join(shared, on=[schema.id, schema.time], how="semi")
    for frame in frames.values():
        common = common.join(frame.select(keys), on=keys, how="semi")
    alike = {name: frame.join(common, on=keys, how="semi", maintain_order="left") for name, frame in frames.items()}
    slices = study.slices(loaded)
    return Judgement(
        evaluate(alike, actuals, **names),
        compare(alike, actuals, baseline, study.levels, slices=slices, **names),
        {
            label: {
                name: volatility(frame, actuals, study.levels, weights=weights, **names)
                for name, frame in alike.items()
            }
            for label, weights in WEIGHTS.items()
            if weights is None or actuals[schema.target].min() >= 0  # type: ignore[operator]
        },
        loss_by_lead(alike, actuals, study.levels, **names),
        common[schema.id].n_unique(),
    )


def write_judgement(judgement: Judgement, harness: Harness, seed: int) -> Path:
    """One page, and the same tables as JSON."""
    study, folder = harness.study, harness.judged(seed)
    tables, baseline = judgement.tables(), judgement.comparison.baseline
    relative = PageTable.of(f"Quantile loss relative to {baseline}", judgement.comparison.table)
    others = [
        PageTable.of(name.capitalize(), pl.DataFrame(tables[name]))
        for name in tables
        if name.startswith(("accuracy", "volatility", "reduction")) and tables[name]
    ]
    named = [found.process.with_columns(model=pl.lit(name)) for name, found in judgement.volatility["equal"].items()]
    figures = [
        PageFigure("Excess volatility", volatility_figure(pl.concat(named))),
        PageFigure("Loss by lead", loss_by_lead_figure(judgement.by_lead)),
        PageFigure("Loss against CPU-seconds", learning_figure(harness, seed)),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "tables.json", json.dumps(tables, indent=1, default=str))
    write_file(folder / "relative.md", judgement.comparison.to_markdown() + "\n")
    lead = [
        f"{study.horizon} steps ahead, from every cutoff from {study.train_until} to {study.last_cutoff}: "
        f"{judgement.num_series:,} series, {judgement.accuracy['rows'][0]:,} forecasts that all systems have."
    ]
    sections = [
        Section("relative", "Beside the baseline", "1 is the baseline; lower is better.", tables=[relative]),
        Section("figures", "How forecasts evolve, and what they cost", "V: 0 is best.", figures=figures),
        Section("tables", "All tables", "Intervals are of 95 %, from resampled items.", tables=others),
    ]
    return write_page(folder / "report.html", Page(f"{harness.title}, seed {seed}", lead, sections))


def learning_figure(harness: Harness, seed: int) -> go.Figure:
    """The training loss of each network against the CPU-seconds it has used."""
    figure = go.Figure()
    for done in sorted((harness.out / harness.study.name).glob(f"*-{seed}/done.json")):
        facts = _read(done)
        if "members" in facts:
            continue
        steps = [line for line in read_metrics(done.parent / "run" / "metrics.jsonl") if line["record"] == "step"]
        rate = facts["cpu_seconds"] / max(facts["wall_seconds"], 1e-9)
        name = done.parent.name.removesuffix(f"-{seed}")
        x, y = [rate * line["seconds"] for line in steps], pl.Series([line["loss"] for line in steps])
        smooth = y.ewm_mean(half_life=max(1, len(y) / 50)) if len(y) else y
        label = f"{name}, {facts['minutes_per_epoch']:.2g} minutes an epoch"
        figure.add_trace(go.Scatter(x=x, y=smooth.to_list(), name=label, mode="lines"))
    below = {"orientation": "h", "y": -0.25}
    figure.update_layout(title_text="Loss against CPU-seconds", template="plotly_white", height=420, legend=below)
    figure.update_xaxes(title_text="CPU-seconds")
    figure.update_yaxes(title_text="training loss, scaled")
    return figure


def records_of(judgement: Judgement, harness: Harness, seed: int) -> list[Record]:
    """One of each system: its q-risks, what it was trained with and what it cost."""
    found, regret = [], judgement.regret()
    for row in judgement.accuracy.iter_rows(named=True):
        folder, tables = harness.folder(row["model"], seed), harness.tables
        done, peer = (_read(folder / name) for name in ("done.json", "peer.json"))
        facts = done or peer.get("facts", {})
        config: dict[str, Any] = {"study": harness.study.model_dump(mode="json", exclude={"network", "models"})}
        config |= peer.get("config", {})
        if done:
            config |= harness.study.config(row["model"], seed, tables, facts["steps"]).model_dump(mode="json")
        metrics = {percentile(level): row[f"qrisk_pooled_{quantile_column(level)}"] for level in harness.study.levels}
        for found_regret in [] if regret is None else regret.filter(model=row["model"]).iter_rows(named=True):
            metrics[f"regret {percentile(found_regret['level'])}, {found_regret['dimension']}"] = found_regret["regret"]
        times = facts.get("wall_seconds", 0.0), facts.get("cpu_seconds")
        details = facts | {"series": judgement.num_series, "forecasts": row["rows"]}
        found.append(Record(harness.title, row["model"], seed, metrics, config, *times, details=details))
    return found


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
