"""Figures of accuracy: by horizon, by decile of demand, as the date approaches, and against what was announced."""

from collections.abc import Callable, Sequence

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from mqcast.levels import percentile, quantile_column
from mqcast.report.style import ZERO, colour, dash, plain, styled


def by_horizon_figure(horizons: pl.DataFrame, levels: Sequence[float]) -> go.Figure:
    """Quantile risk at each horizon, from `evaluate(…, by="horizon")` of several models."""
    figure = _panels(
        levels,
        lambda level, model: _line(horizons.filter(model=model), "horizon", f"qrisk_pooled_{quantile_column(level)}"),
        _models(horizons),
    )
    figure.update_xaxes(title_text="steps ahead")
    figure.update_yaxes(rangemode="tozero").update_yaxes(title_text="risk", col=1)
    return _titled(figure, "Accuracy by horizon")


def by_decile_figure(deciles: pl.DataFrame, levels: Sequence[float]) -> go.Figure:
    """Quantile risk of items by how much they sell."""
    placed = deciles.with_columns(decile=pl.col("slice").str.extract(r"(\d+)$").cast(pl.Int32))
    figure = _panels(
        levels,
        lambda level, model: _line(placed.filter(model=model), "decile", f"qrisk_pooled_{quantile_column(level)}"),
        _models(deciles),
    )
    figure.update_xaxes(title_text="decile of demand", dtick=1)
    figure.update_yaxes(rangemode="tozero").update_yaxes(title_text="risk", col=1)
    return _titled(figure, "Accuracy by demand")


def loss_by_lead_figure(losses: pl.DataFrame) -> go.Figure:
    """The centred loss of `loss_by_lead` by lead: who learns as the date approaches."""
    losses = losses if "model" in losses.columns else losses.with_columns(model=pl.lit(""))

    def line(level: float, model: str) -> tuple[list, list]:
        part = losses.filter((pl.col("level") == level) & (pl.col("model") == model)).sort("lead", descending=True)
        return part["lead"].to_list(), part["centred"].to_list()

    figure = _panels(sorted(set(losses["level"])), line, _models(losses))
    figure.update_xaxes(title_text="remaining steps", autorange="reversed")
    figure.update_yaxes(title_text="quantile loss minus its mean", col=1)
    return _titled(figure, "Improvement as the date approaches")


def calibration_figure(calibration: pl.DataFrame) -> go.Figure:
    """The share of actuals at or below each quantile, beside its level."""
    figure = go.Figure()
    ideal = {"color": ZERO, "dash": "dot", "width": 1}
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name="ideal", line=ideal, hoverinfo="skip")
    for i, model in enumerate(_models(calibration)):
        part = calibration.filter(model=model).sort("level")
        _add(figure, i, model, part["level"].to_list(), part["observed"].to_list())
    figure.update_xaxes(title_text="announced", range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title_text="observed", range=[0, 1], tickformat=".0%")
    return _titled(figure, "Calibration")


def width_figure(horizons: pl.DataFrame) -> go.Figure:
    """The mean width of the widest interval at each horizon."""
    figure, name = go.Figure(), next(name for name in horizons.columns if name.startswith("width_"))
    low, high = (percentile(float(part[1:])) for part in name.removeprefix("width_").split("_"))
    for i, model in enumerate(_models(horizons)):
        _add(figure, i, model, *_line(horizons.filter(model=model), "horizon", name))
    figure.update_xaxes(title_text="steps ahead")
    figure.update_yaxes(title_text=f"{low} to {high}, in units", rangemode="tozero")
    return _titled(figure, "Width of the interval")


def _models(table: pl.DataFrame) -> list[str]:
    return table["model"].unique(maintain_order=True).to_list()


def _line(part: pl.DataFrame, x: str, y: str) -> tuple[list, list]:
    part = part.sort(x)
    return part[x].to_list(), part[y].to_list()


def _panels(levels: Sequence[float], line: Callable[[float, str], tuple[list, list]], models: list[str]) -> go.Figure:
    """One panel a level, one line a model."""
    figure = make_subplots(rows=1, cols=len(levels), subplot_titles=[percentile(level) for level in levels])
    for i, model in enumerate(models):
        for column, level in enumerate(levels, start=1):
            _add(figure, i, model, *line(level, model), showlegend=column == 1 and bool(model), row=1, col=column)
    return figure


def _add(figure: go.Figure, i: int, model: str, x: list, y: list, **place: object) -> None:
    figure.add_scatter(
        x=x,
        y=y,
        name=plain(model),
        legendgroup=str(i),
        mode="lines+markers",
        line={"color": colour(i), "dash": dash(i)},
        marker={"symbol": i % 8, "size": 7},
        hovertemplate="%{x}: %{y:.4g}",
        **place,
    )


def _titled(figure: go.Figure, title: str) -> go.Figure:
    return styled(figure.update_layout(title_text=title))
