"""A short report of one or several forecasters' frames: accuracy, volatility, and how both evolve."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import narwhals as nw
import plotly.graph_objects as go
import polars as pl

from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation import Volatility, evaluate, loss_by_lead, volatility
from mqcast.report.evolution import loss_by_lead_figure, volatility_figure
from mqcast.report.page import PageTable, write_page


def write_summary(
    path: str | Path,
    forecasts: Mapping[str, Any],
    actuals: Any,
    *,
    title: str = "Forecasts",
    schema: Schema | None = None,
) -> Path:
    """One page that works offline; targets without an actual are left out."""
    if not forecasts:
        raise ConfigError("there is nothing to report; give {name: forecasts}")
    frames = {name: nw.from_native(frame, eager_only=True).to_polars() for name, frame in forecasts.items()}
    accuracy = evaluate(frames, actuals, missing="drop", schema=schema)
    levels = [float(name.removeprefix("coverage_q")) for name in accuracy.columns if name.startswith("coverage_q")]
    tables, figures = [_accuracy(accuracy, levels)], {}
    judged = {name: _volatility(frame, actuals, levels, schema) for name, frame in frames.items()}
    moving = {name: found for name, found in judged.items() if found is not None}
    if moving:
        tables.append(_movement(moving))
        figures["Martingale volatility by steps to go"] = volatility_figure({n: v.process for n, v in moving.items()})
        figures |= _losses(frames, actuals, levels, schema)
    rows = int(accuracy["rows"].max() or 0)
    intro = [f"{', '.join(frames)}: {rows:,} forecasts with an actual, {len(levels)} quantile levels."]
    return write_page(Path(path), title, intro, tables, figures)


def _accuracy(table: pl.DataFrame, levels: list[float]) -> PageTable:
    risks = {f"qrisk_pooled_q{level:g}": f"P{level * 100:g} risk" for level in levels}
    covers = {f"coverage_q{level:g}": f"at or below P{level * 100:g}" for level in levels}
    others = {name: name.upper() for name in ("wape", "mase") if name in table.columns} | {"bias": "bias"}
    columns = {name: label for name, label in (risks | covers | others).items() if name in table.columns}
    rows = [[str(row["model"]), *(_cell(row[name]) for name in columns)] for row in table.iter_rows(named=True)]
    lower_is_better = [i for i, name in enumerate(columns, start=1) if name in risks or name in ("wape", "mase")]
    best = {i: [min((row[i] for row in rows if row[i] != "-"), key=float, default="")] for i in lower_is_better}
    reading = (
        "Risk is 2 Σ quantile loss / Σ demand, lower is better; the share at or below a quantile should be its level."
    )
    return PageTable("Accuracy", reading, ["forecaster", *columns.values()], rows, best if len(rows) > 1 else {})


def _movement(judged: Mapping[str, Volatility]) -> PageTable:
    rows = []
    for name, found in judged.items():
        for row in nw.from_native(found.summary, eager_only=True).iter_rows(named=True):
            excess = [_cell(row[key]) for key in ("excess", "lo", "hi")]
            moves = [row["reading"], _cell(row["turns"]), f"{row['targets']:,}"]
            rows.append([name, f"P{row['level'] * 100:g}", *excess, *moves])
    reading = "Excess volatility with its 95 % interval: 0 is best; above it revisions revert, below it they go on."
    columns = ["forecaster", "level", "excess", "from", "to", "reading", "turns a target", "targets"]
    return PageTable("Do forecasts move for good reason?", reading, columns, rows, {})


def _volatility(frame: pl.DataFrame, actuals: Any, levels: list[float], schema: Schema | None) -> Volatility | None:
    """None where there is nothing to judge: one level, or one forecast a target."""
    if len(levels) < 2:
        return None
    chosen = (0.5, 0.9) if {0.5, 0.9} <= set(levels) else (levels[0], levels[-1])
    try:
        return volatility(frame, actuals, chosen, missing="drop", schema=schema)
    except DataError:
        return None


def _losses(
    frames: Mapping[str, Any], actuals: Any, levels: list[float], schema: Schema | None
) -> dict[str, go.Figure]:
    try:
        losses = loss_by_lead(frames, actuals, levels, missing="drop", schema=schema)
    except DataError:  # not of the same targets
        return {}
    return {"Quantile loss by steps to go": loss_by_lead_figure(losses)}


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
