"""Totals over several past steps, beside the demand of all of them: numbers, figure and text."""

import warnings
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import polars as pl

from mqcast.errors import ImplausibleForecastWarning
from mqcast.evaluation.metrics import evaluate
from mqcast.evaluation.tables import FIRST, LAST
from mqcast.levels import percentile, quantile_column
from mqcast.report.page import Cell, PageFigure, PageTable, Section
from mqcast.report.sources import Sources
from mqcast.report.style import colour, plain, styled


def spans_section(totals: Mapping[str, Any], sources: Sources) -> Section:
    """How good the totals are, each by the name of its forecaster."""
    names, levels = sources.first.names, sources.judged_levels
    frames = {str(name): pl.DataFrame(frame) for name, frame in totals.items()}
    with warnings.catch_warnings():  # the table below shows the coverage
        warnings.simplefilter("ignore", ImplausibleForecastWarning)
        judged = evaluate(frames, sources.observed, id=names.id, time=names.time, target=names.target)
    judged = judged.sort(LAST, FIRST, maintain_order=True)
    columns = ["total over", "forecaster", "totals"]
    columns += [f"≤ {percentile(level)}" for level in levels]
    columns += [f"loss of {percentile(level)}" for level in levels]
    rows = []
    for row in judged.iter_rows(named=True):
        cells = [Cell(_named(row)), Cell(row["model"]), Cell(f"{row['rows']:,}", row["rows"])]
        for level in levels:
            share = row[f"coverage_{quantile_column(level)}"]
            cells.append(Cell(f"{100 * share:.1f} %", share))
        rows.append([*cells, *(Cell.number(row[f"quantile_loss_{quantile_column(level)}"]) for level in levels)])
    reading = (
        "What has to last for several steps is judged by their total demand. The share of totals at or below (≤) a "
        "quantile should equal its level; a lower loss is better. Summed quantiles of single steps are no quantiles of "
        "the total: the high ones are too high, because not all steps are high at once."
    )
    left_out = int(judged.select(pl.col("left_out").max()).item())
    told = f"Up to {left_out:,} totals of a span are left out, since some of their demand is missing."
    label = f"Share of totals at or below {percentile(levels[-1])}"
    figures = [PageFigure(label, _coverage_figure(judged, levels[-1]))]
    return Section(
        "spans",
        "Totals over several steps",
        reading,
        [told] if left_out else [],
        [PageTable("Totals", columns, rows)],
        figures,
    )


def _named(row: Mapping[str, Any]) -> str:
    first, last = row[FIRST], row[LAST]
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _coverage_figure(judged: pl.DataFrame, level: float) -> go.Figure:
    figure, covered = go.Figure(), f"coverage_{quantile_column(level)}"
    for i, (model,) in enumerate(judged.select("model").unique(maintain_order=True).iter_rows()):
        rows = judged.filter(pl.col("model") == model)
        figure.add_scatter(
            x=[_named(row) for row in rows.iter_rows(named=True)],
            y=rows[covered].to_list(),
            mode="markers",
            name=plain(model),
            hovertemplate=f"{plain(model)}, %{{x}}: %{{y:.1%}}<extra></extra>",
            marker={"color": colour(i), "size": 10},
        )
    figure.add_hline(y=level, line={"dash": "dot", "color": "#7d8590"})
    return styled(figure.update_layout(yaxis_tickformat=".0%", xaxis_type="category"), 360)
