"""Figures of how forecasts evolve: martingale volatility by step, and the loss as the target date approaches."""

from collections.abc import Mapping

import plotly.graph_objects as go
import polars as pl
from plotly.colors import qualitative
from plotly.subplots import make_subplots


def volatility_figure(processes: Mapping[str, pl.DataFrame]) -> go.Figure:
    """V by lead to go, with 95 % bands, one panel a level; `processes` are `Volatility.process` by the model's name."""
    levels = sorted({level for process in processes.values() for level in process["level"]})
    titles = [f"P{level * 100:g}" for level in levels]
    figure = make_subplots(rows=1, cols=len(levels), shared_yaxes=False, subplot_titles=titles)
    for i, (name, process) in enumerate(processes.items()):
        colour = qualitative.Plotly[i % len(qualitative.Plotly)]
        for column, level in enumerate(levels, start=1):
            part = process.filter(pl.col("level") == level).sort("step")
            _add_band(figure, part, colour, column, name)
            line = go.Scatter(
                x=part["lead"].to_list(),
                y=part["V"].to_list(),
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": colour},
            )
            figure.add_trace(line, row=1, col=column)
    for column in range(1, len(levels) + 1):
        figure.add_hline(y=0, line={"color": "#64748b", "width": 1, "dash": "dot"}, row=1, col=column)  # type: ignore[arg-type]
        figure.update_xaxes(title_text="steps to go (0: the outcome)", autorange="reversed", row=1, col=column)
    figure.update_yaxes(title_text="V: above 0 over-reaction, below under-reaction", row=1, col=1)
    figure.update_layout(title_text="Do forecasts move for good reason?", template="plotly_white", height=460)
    return figure


def loss_by_lead_figure(losses: pl.DataFrame) -> go.Figure:
    """The centred loss of `loss_by_lead` by lead: who learns as the date approaches."""
    levels = sorted(set(losses["level"]))
    figure = make_subplots(rows=1, cols=len(levels), subplot_titles=[f"P{level * 100:g}" for level in levels])
    names = losses["model"].unique(maintain_order=True).to_list() if "model" in losses.columns else [""]
    for i, name in enumerate(names):
        of_model = losses.filter(model=name) if name else losses
        for column, level in enumerate(levels, start=1):
            part = of_model.filter(pl.col("level") == level).sort("lead", descending=True)
            line = go.Scatter(
                x=part["lead"].to_list(),
                y=part["centred"].to_list(),
                name=name,
                legendgroup=name,
                showlegend=column == 1 and bool(name),
                mode="lines+markers",
                line={"color": qualitative.Plotly[i % len(qualitative.Plotly)]},
            )
            figure.add_trace(line, row=1, col=column)
            figure.update_xaxes(title_text="steps to go", autorange="reversed", row=1, col=column)
    figure.update_yaxes(title_text="quantile loss, less its mean", row=1, col=1)
    figure.update_layout(title_text="What is learnt on the way", template="plotly_white", height=420)
    return figure


def _add_band(figure: go.Figure, part: pl.DataFrame, colour: str, column: int, name: str) -> None:
    if part["lo"].null_count():
        return
    leads = part["lead"].to_list()
    band = go.Scatter(
        x=[*leads, *leads[::-1]],
        y=[*part["lo"], *part["hi"].reverse()],
        fill="toself",
        fillcolor=colour,
        opacity=0.18,
        line={"width": 0},
        hoverinfo="skip",
        legendgroup=name,
        showlegend=False,
    )
    figure.add_trace(band, row=1, col=column)
