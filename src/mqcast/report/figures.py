"""Figures, from plain lines of numbers. No torch."""

from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

Line = dict[str, Any]
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def learning_curve(metrics: dict[str, list[Line]]) -> go.Figure:
    """How training went, from the lines of `read_metrics` by the run's name.

    Above: the loss of single steps (pale), of epochs (dashed) and on the validation span (full), the best epoch
    starred. Below: the validation loss of each quantile in units of demand.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.6, 0.4])
    for (name, lines), colour in zip(metrics.items(), _colours(len(metrics)), strict=True):
        steps = [line for line in lines if line["record"] == "step"]
        epochs = [line for line in lines if line["record"] == "epoch"]
        _add_losses(figure, name if len(metrics) > 1 else "", colour, steps, epochs)
        _add_quantile_losses(figure, name if len(metrics) > 1 else "", colour, epochs)
    _say_what_is_missing(figure, metrics)
    figure.update_xaxes(title_text="step", row=2, col=1)
    figure.update_yaxes(title_text="quantile loss, scaled as in training", row=1, col=1)
    figure.update_yaxes(title_text="validation, 2·Σ loss / Σ |demand|", row=2, col=1)
    figure.update_layout(
        title_text=f"Learning curve: {', '.join(metrics)}" if 0 < len(metrics) <= 3 else "Learning curves",
        template="plotly_white",
        hovermode="closest",
        height=800,
    )
    return figure


def _add_losses(figure: go.Figure, name: str, colour: str, steps: list[Line], epochs: list[Line]) -> None:
    validated = [line for line in epochs if line["valid_loss"] is not None]
    best = [line for line in validated if line["is_best"]][-1:]
    pale = {"mode": "lines", "line": {"color": colour, "width": 1}, "opacity": 0.3}
    dashed = {"mode": "lines+markers", "line": {"color": colour, "dash": "dash"}, "marker": {"symbol": "circle-open"}}
    full = {"mode": "lines+markers", "line": {"color": colour}}
    star = {"mode": "markers", "marker": {"color": colour, "symbol": "star", "size": 16}}
    for lines, key, what, style in (
        (steps, "loss", "step", pale),
        (epochs, "train_loss", "training", dashed),
        (validated, "valid_loss", "validation", full),
        (best, "valid_loss", "best epoch", star),
    ):
        _add_line(figure, 1, name, what, lines, [line[key] for line in lines], style)


def _add_quantile_losses(figure: go.Figure, name: str, colour: str, epochs: list[Line]) -> None:
    levels = list(dict.fromkeys(level for line in epochs for level in line["valid_quantile_loss"]))
    for i, level in enumerate(levels):
        style = {"mode": "lines+markers", "line": {"color": colour, "dash": DASHES[i % len(DASHES)]}}
        lines = [line for line in epochs if level in line["valid_quantile_loss"]]
        _add_line(figure, 2, name, level, lines, [line["valid_quantile_loss"][level] for line in lines], style)


def _add_line(
    figure: go.Figure, row: int, name: str, what: str, lines: list[Line], values: list[float], style: dict[str, Any]
) -> None:
    if not lines:
        return
    figure.add_scatter(
        x=[line["step"] for line in lines],
        y=values,
        text=[f"epoch {line['epoch'] + 1}, {line['seconds']:,.0f} s" for line in lines],
        hovertemplate="step %{x:,}, %{text}: %{y:.4g}",
        name=what,
        legendgroup=name,
        legendgrouptitle={"text": name} if name else None,
        row=row,
        col=1,
        **style,
    )


def _say_what_is_missing(figure: go.Figure, metrics: dict[str, list[Line]]) -> None:
    without = [name for name, lines in metrics.items() if not any(line["record"] == "epoch" for line in lines)]
    if not metrics:
        _say(figure, 1, "no run")
    elif without:
        _say(figure, 1, f"no epoch has ended yet: {', '.join(without)}")
    if not any(line.get("valid_quantile_loss") for lines in metrics.values() for line in lines):
        _say(figure, 2, "nothing was validated")


def _say(figure: go.Figure, row: int, text: str) -> None:
    axis = "" if row == 1 else str(row)
    place: dict[str, Any] = {"xref": f"x{axis} domain", "yref": f"y{axis} domain", "x": 0.5, "y": 0.5}
    figure.add_annotation(text=text, showarrow=False, font={"size": 16}, **place)


def _colours(num: int) -> Iterable[str]:
    return [qualitative.D3[i % len(qualitative.D3)] for i in range(num)]
