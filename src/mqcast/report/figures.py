"""Figures, from plain lines of numbers. No torch."""

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mqcast.report.style import DASHES, colour, plain, styled

Line = dict[str, Any]


def learning_curve(metrics: dict[str, list[Line]]) -> go.Figure:
    """How training went, from the lines of `read_metrics` by the run's name.

    Above: the loss of single steps (pale), between validations (dashed) and on the validation span (full),
    the best one starred. Below: the validation loss of each quantile in units of demand.
    """
    is_validated = any(line.get("valid_quantile_loss") for lines in metrics.values() for line in lines)
    rows, heights = (2, [0.6, 0.4]) if is_validated else (1, [1.0])
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=heights)
    for i, (name, lines) in enumerate(metrics.items()):
        steps = [line for line in lines if line["record"] == "step"]
        epochs = [line for line in lines if line["record"] == "epoch"]
        _add_losses(figure, name if len(metrics) > 1 else "", colour(i), steps, epochs)
        _add_quantile_losses(figure, name if len(metrics) > 1 else "", colour(i), epochs)
    _say_what_is_missing(figure, metrics, is_validated)
    figure.update_xaxes(title_text="step", row=rows, col=1)
    figure.update_yaxes(title_text="quantile loss, scaled as in training", row=1, col=1)
    if is_validated:
        figure.update_yaxes(title_text="validation, 2·Σ loss / Σ |demand|", row=2, col=1)
    names = ", ".join(plain(name) for name in metrics)
    title = f"Learning curve: {names}" if 0 < len(metrics) <= 3 else "Learning curves"
    return styled(figure.update_layout(title_text=title), 760 if is_validated else 460)


def _add_losses(figure: go.Figure, name: str, shade: str, steps: list[Line], epochs: list[Line]) -> None:
    validated = [line for line in epochs if line["valid_loss"] is not None]
    best = [line for line in validated if line["is_best"]][-1:]
    pale = {"mode": "lines", "line": {"color": shade, "width": 1}, "opacity": 0.3}
    dashed = {"mode": "lines+markers", "line": {"color": shade, "dash": "dash"}, "marker": {"symbol": "circle-open"}}
    full = {"mode": "lines+markers", "line": {"color": shade}}
    star = {"mode": "markers", "marker": {"color": shade, "symbol": "star", "size": 16}}
    for lines, key, what, style in (
        (steps, "loss", "step", pale),
        (epochs, "train_loss", "training", dashed),
        (validated, "valid_loss", "validation", full),
        (best, "valid_loss", "best validation", star),
    ):
        _add_line(figure, 1, name, what, lines, [line[key] for line in lines], style)


def _add_quantile_losses(figure: go.Figure, name: str, shade: str, epochs: list[Line]) -> None:
    levels = list(dict.fromkeys(level for line in epochs for level in line["valid_quantile_loss"]))
    for i, level in enumerate(levels):
        style = {"mode": "lines+markers", "line": {"color": shade, "dash": DASHES[i % len(DASHES)]}}
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
        legendgrouptitle={"text": plain(name)} if name else None,
        row=row,
        col=1,
        **style,
    )


def _say_what_is_missing(figure: go.Figure, metrics: dict[str, list[Line]], is_validated: bool) -> None:
    without = [name for name, lines in metrics.items() if not any(line["record"] == "epoch" for line in lines)]
    if not metrics:
        _say(figure, 0.5, "no run")
    elif without:
        _say(figure, 0.5, f"no epoch has ended yet: {', '.join(plain(name) for name in without)}")
    if not is_validated:
        _say(figure, 0.98, "nothing was validated")


def _say(figure: go.Figure, height: float, text: str) -> None:
    place: dict[str, Any] = {"xref": "paper", "yref": "paper", "x": 0.5, "y": height}
    figure.add_annotation(text=text, showarrow=False, font={"size": 16}, **place)
