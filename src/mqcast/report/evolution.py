"""Figures of how forecasts evolve: martingale volatility by step, one item's fan of quantiles, one date's forecasts."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from mqcast.levels import percentile, quantile_column
from mqcast.report.style import ACTUAL, ZERO, add_special, colour, dash, plain, styled


def volatility_figure(process: pl.DataFrame) -> go.Figure:
    """V by lead to go, with 95 % bands, one panel a level: `Volatility.process` of several models, named in `model`."""
    levels, models = sorted(set(process["level"])), process["model"].unique(maintain_order=True).to_list()
    figure = make_subplots(rows=1, cols=len(levels), subplot_titles=[percentile(level) for level in levels])
    for i, model in enumerate(models):
        for column, level in enumerate(levels, start=1):
            part = process.filter((pl.col("level") == level) & (pl.col("model") == model)).sort("step")
            _add_band(figure, part, i, row=1, col=column)
            figure.add_scatter(
                x=part["lead"].to_list(),
                y=part["V"].to_list(),
                name=plain(model),
                legendgroup=str(i),
                showlegend=column == 1,
                mode="lines+markers",
                line={"color": colour(i), "dash": dash(i)},
                marker={"symbol": i % 8, "size": 6},
                hovertemplate="%{x} steps before: V = %{y:.4f}",
                row=1,
                col=column,
            )
    for column in range(1, len(levels) + 1):
        figure.add_hline(y=0, line={"color": ZERO, "width": 2, "dash": "dot"}, row=1, col=column)  # type: ignore[arg-type]
    figure.update_xaxes(title_text="remaining steps (0: the outcome)", autorange="reversed")
    figure.update_yaxes(title_text="V (above 0: over-reaction)", col=1)
    return styled(figure.update_layout(title_text="Are revisions justified?"), 440)


def fan_figure(
    history: pl.DataFrame,
    fan: pl.DataFrame,
    name: str,
    promotions: Mapping[str, Sequence[Any]] | None = None,
    events: Mapping[str, Sequence[Any]] | None = None,
) -> go.Figure:
    """One item from one cutoff: ds and y of its history, ds and quantiles of the forecast; dates that are special."""
    levels, figure = _levels(fan), go.Figure()
    dates = fan["ds"].to_list()
    for low, high in zip(levels, reversed(levels), strict=True):
        if low < high:
            _add_between(figure, dates, fan, low, high)
    for level in levels:
        line = {"color": colour(0), "width": 2.5 if level == 0.5 else 1}
        figure.add_scatter(
            x=dates, y=fan[quantile_column(level)].to_list(), name=percentile(level), line=line, mode="lines"
        )
    figure.add_scatter(
        x=history["ds"].to_list(),
        y=history["y"].to_list(),
        name="actual",
        mode="lines+markers",
        line={"color": ACTUAL, "width": 1.5},
        marker={"size": 4},
    )
    add_special(figure, promotions or {}, events or {})
    figure.update_yaxes(rangemode="tozero")
    return styled(figure.update_layout(title_text=f"Forecast of {plain(name)}"), 420)


def evolution_figure(forecasts: Mapping[str, pl.DataFrame], actual: float | None, name: str, date: Any) -> go.Figure:
    """How the forecast of one date moved as it approached: model → cutoff and quantiles; and what it came to."""
    figure = go.Figure()
    for i, (model, frame) in enumerate(forecasts.items()):
        levels, frame = _levels(frame), frame.sort("cutoff")
        cutoffs = frame["cutoff"].to_list()
        if i == 0 and len(levels) > 1:
            low, high = levels[0], levels[-1]
            _add_between(figure, cutoffs, frame, low, high)
        level = 0.5 if 0.5 in levels else levels[-1]
        figure.add_scatter(
            x=cutoffs,
            y=frame[quantile_column(level)].to_list(),
            name=f"{plain(model)}, {percentile(level)}",
            mode="lines+markers",
            line={"color": colour(i), "dash": dash(i), "shape": "hv"},
            marker={"symbol": i % 8},
        )
    if actual is not None:
        figure.add_hline(
            y=actual, line={"color": ACTUAL, "dash": "dash", "width": 2}, annotation_text=f"actual {actual:,.4g}"
        )
    figure.update_xaxes(title_text="forecast made at")
    figure.update_yaxes(rangemode="tozero")
    shown = str(date).removesuffix(" 00:00:00")
    return styled(figure.update_layout(title_text=f"{plain(name)}, {shown}: how its forecast evolved"), 400)


def _levels(frame: pl.DataFrame) -> list[float]:
    return sorted(float(name[1:]) for name in frame.columns if name.startswith("q"))


def _add_between(figure: go.Figure, x: list, quantiles: pl.DataFrame, lower: float, upper: float) -> None:
    low, high = (quantiles[quantile_column(level)].to_list() for level in (lower, upper))
    figure.add_scatter(
        x=[*x, *x[::-1]],
        y=[*low, *high[::-1]],
        fill="toself",
        fillcolor=colour(0),
        opacity=0.2,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        name=f"{percentile(lower)} to {percentile(upper)}",
    )


def _add_band(figure: go.Figure, part: pl.DataFrame, i: int, **place: int) -> None:
    if part["lo"].null_count():
        return
    leads = part["lead"].to_list()
    figure.add_scatter(
        x=[*leads, *leads[::-1]],
        y=[*part["lo"], *part["hi"].reverse()],
        fill="toself",
        fillcolor=colour(i),
        opacity=0.18,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        legendgroup=str(i),
        showlegend=False,
        **place,
    )
