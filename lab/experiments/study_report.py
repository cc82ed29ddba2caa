"""The paper's tables of a study's systems, a page with them, and the records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl

from lab.experiments.experiment import RunSpec
from lab.experiments.records import Record
from lab.experiments.systems import BASELINE, ORACLE
from lab.experiments.training import GIVEN, read_json
from mqcast.data.schema import Schema
from mqcast.durable import write_file
from mqcast.evaluation import Comparison, Volatility, compare, evaluate, loss_by_lead, volatility
from mqcast.evaluation.slices import Slice
from mqcast.levels import percentile, quantile_column
from mqcast.report.accuracy import loss_by_lead_figure
from mqcast.report.evolution import volatility_figure
from mqcast.report.page import Page, PageFigure, PageTable, Section, write_page
from mqcast.train.records import read_metrics

WEIGHTS = {"equal": None, "demand": "demand"}


@dataclass(frozen=True)
class Judgement:
    """The paper's tables of some systems' forecasts."""

    accuracy: pl.DataFrame  # q-risk at each level, as in tab:public
    comparison: Comparison  # relative to MQ-CNN, by slice
    volatility: dict[str, dict[str, Volatility]]  # by weights, then by system
    by_lead: pl.DataFrame
    num_series: int

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        tables = {"accuracy": self.accuracy, "relative": self.comparison.losses, "loss_by_lead": self.by_lead}
        tables |= {} if (regret := self.regret()) is None else {"regret": regret}
        for weights, judged in self.volatility.items():
            named = [frame.summary.select(pl.lit(name).alias("model"), pl.all()) for name, frame in judged.items()]
            tables[f"volatility, {weights} weights"] = pl.concat(named)
            pairs = [(name, BASELINE) for name in judged] + [("mqt", name) for name in judged if name != BASELINE]
            reductions = [
                judged[name]
                .reduction(judged[base])
                .select(pl.lit(name).alias("model"), pl.lit(base).alias("against"), pl.all())
                for name, base in pairs
                if name != base and {name, base} <= judged.keys()
            ]
            tables[f"reduction, {weights} weights"] = pl.concat(reductions) if reductions else pl.DataFrame()
        return {name: table.to_dicts() for name, table in tables.items()}

    def regret(self) -> pl.DataFrame | None:
        """By slice, the loss above the oracle's, as a share of it; None without an oracle."""
        losses, keys = self.comparison.losses.select("dimension", "model", "level", "loss"), ["dimension", "level"]
        best = losses.filter(model=ORACLE).select(*keys, best="loss")
        if not best.height:
            return None
        both = losses.filter(pl.col("model") != ORACLE).join(best, on=keys, maintain_order="left")
        return both.select("dimension", "model", "level", regret=pl.col("loss") / pl.col("best") - 1)


def judge(
    frames: Mapping[str, pl.DataFrame],
    actuals: pl.DataFrame,
    schema: Schema,
    levels: Sequence[float],
    slices: Sequence[Slice],
    baseline: str,
) -> Judgement:
    """All systems on the forecasts that all of them have."""
    names: dict[str, Any] = {"id": schema.id, "time": schema.time, "target": schema.target, "missing": "drop"}
    keys = [schema.id, "cutoff", schema.time]
    shared = actuals.select(schema.id, schema.time)
    common = next(iter(frames.values())).select(keys).join(shared, on=[schema.id, schema.time], how="semi")
    for frame in frames.values():
        common = common.join(frame.select(keys), on=keys, how="semi")
    alike = {name: frame.join(common, on=keys, how="semi", maintain_order="left") for name, frame in frames.items()}
    return Judgement(
        evaluate(alike, actuals, **names),
        compare(alike, actuals, baseline, levels, slices=slices, **names),
        {
            label: {name: volatility(frame, actuals, levels, weights=weights, **names) for name, frame in alike.items()}
            for label, weights in WEIGHTS.items()
            if weights is None or actuals[schema.target].min() >= 0  # type: ignore[operator]
        },
        loss_by_lead(alike, actuals, levels, **names),
        common[schema.id].n_unique(),
    )


def write_judgement(judgement: Judgement, spec: RunSpec, title: str) -> Path:
    """One page, and the same tables as JSON."""
    study, seed = spec.experiment, spec.seed
    label = "judged" if title == study.name else f"judged-{title}"
    folder = spec.out / study.name / f"{label}-{seed}"
    tables, baseline = judgement.tables(), judgement.comparison.baseline
    relative = PageTable.of(f"Quantile loss relative to {baseline}", judgement.comparison.table)
    others = [
        PageTable.of(name.capitalize(), pl.DataFrame(tables[name]))
        for name in tables
        if name.startswith(("accuracy", "volatility", "reduction")) and tables[name]
    ]
    processes = [
        judged.process.with_columns(model=pl.lit(name)) for name, judged in judgement.volatility["equal"].items()
    ]
    figures = [
        PageFigure("Excess volatility", volatility_figure(pl.concat(processes))),
        PageFigure("Loss by lead", loss_by_lead_figure(judgement.by_lead)),
        PageFigure("Loss against CPU-seconds", learning_figure(spec.out / study.name, seed)),
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
        Section("tables", "All tables", "Intervals are of 95 %, from resampled items and dates.", tables=others),
    ]
    return write_page(folder / "report.html", Page(f"{title}, seed {seed}", lead, sections))


def learning_figure(folder: Path, seed: int) -> go.Figure:
    """The training loss of each network against the CPU-seconds it has used."""
    figure = go.Figure()
    for done in sorted(folder.glob(f"*-{seed}/done.json")):
        facts, metrics = read_json(done), done.parent / "model" / "metrics.jsonl"
        if not metrics.exists():
            continue
        steps = [line for line in read_metrics(metrics) if line["record"] == "step"]
        rate = facts["cpu_seconds"] / max(facts["wall_seconds"], 1e-9)
        name = done.parent.name.removesuffix(f"-{seed}")
        x, y = [rate * line["seconds"] for line in steps], pl.Series([line["loss"] for line in steps])
        smooth = y.ewm_mean(half_life=max(1, len(y) / 50)) if len(y) else y
        figure.add_trace(go.Scatter(x=x, y=smooth.to_list(), name=name, mode="lines"))
    below = {"orientation": "h", "y": -0.25}
    figure.update_layout(title_text="Loss against CPU-seconds", template="plotly_white", height=420, legend=below)
    figure.update_xaxes(title_text="CPU-seconds")
    figure.update_yaxes(title_text="training loss, scaled")
    return figure


def records_of(judgement: Judgement, spec: RunSpec, title: str) -> list[Record]:
    """One record per system: its q-risks, its settings and its cost."""
    records, regret, study = [], judgement.regret(), spec.experiment
    for row in judgement.accuracy.iter_rows(named=True):
        one = spec.replace(model=row["model"])
        done, peer = (read_json(one.folder / name) for name in ("done.json", "peer.json"))
        facts = done or peer.get("facts", {})
        config: dict[str, Any] = {"study": study.model_dump(mode="json", exclude={"published", "paper"})}
        config |= peer.get("config", {}) | facts.pop(GIVEN, {}) | facts.pop("config", {})
        metrics = {percentile(level): row[f"qrisk_pooled_{quantile_column(level)}"] for level in study.levels}
        for excess in [] if regret is None else regret.filter(model=row["model"]).iter_rows(named=True):
            metrics[f"regret {percentile(excess['level'])}, {excess['dimension']}"] = excess["regret"]
        times = facts.get("wall_seconds", 0.0), facts.get("cpu_seconds")
        details = facts | {"series": judgement.num_series, "forecasts": row["rows"]}
        records.append(Record(title, row["model"], spec.seed, metrics, config, *times, details=details))
    return records
