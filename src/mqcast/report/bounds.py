"""Figures with implausible values: the axes fit the plausible ones, and marks at the edge show what lies beyond."""

from collections.abc import Collection
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mqcast.evaluation.plausibility import MULTIPLE
from mqcast.report.style import plain

MARGIN = 0.08  # of the axis, beyond the plausible values


def bounded(figure: go.Figure, models: Collection[str]) -> go.Figure:
    """For lines of models some of which have implausible forecasts: those are measured by the lines of the others, or
    by their own median if there is no other."""
    suspicious = {plain(model) for model in models}
    if not suspicious:
        return figure
    for axis in _axes(figure):
        lines = [(trace, _numbers(trace.y)) for trace in _traces(figure) if _is_line(trace) and _axis_of(trace) == axis]
        others = np.concatenate([np.abs(y) for trace, y in lines if trace.name not in suspicious] or [[]])
        others = others[np.isfinite(others)]
        own = np.concatenate([np.abs(y) for trace, y in lines if trace.name in suspicious] or [[]])
        own = own[~np.isnan(own)]
        if not own.size:
            continue
        limit = MULTIPLE * float(others.max() if others.size else np.median(own))
        _bound_axis(figure, axis, limit)
    return figure


def bounded_at(figure: go.Figure, largest: float | None) -> go.Figure:
    """For one item: what is more than MULTIPLE times the largest value ever sold is beyond the axis."""
    if largest:
        _bound_axis(figure, "y", MULTIPLE * largest)
    return figure


def _bound_axis(figure: go.Figure, axis: str, limit: float) -> None:
    traces = [trace for trace in _traces(figure) if _axis_of(trace) == axis and trace.y is not None]
    values = np.concatenate([_numbers(trace.y) for trace in traces] or [[]])
    values = values[~np.isnan(values)]
    beyond, fine = values[np.abs(values) > limit], values[np.abs(values) <= limit]
    if not beyond.size or not limit > 0:
        return
    top, bottom = float(fine.max(initial=0)), float(fine.min(initial=0))
    room = MARGIN * ((top - bottom) or limit)
    low, high = bottom - room, top + room
    for trace in traces:
        y = _numbers(trace.y)
        is_beyond = np.abs(y) > limit
        if not is_beyond.any():
            continue
        edge = np.where(y > 0, high, low)
        trace.y = [None if np.isnan(one) else one for one in np.where(is_beyond, edge, y).tolist()]
        if trace.fill is None:
            trace.update(customdata=y.tolist(), hovertemplate="%{x}: %{customdata:.4g}")
            _add_marks(figure, trace, y, is_beyond, edge)
    name = "yaxis" + axis.removeprefix("y")
    figure.layout[name].update(range=[low - room if (beyond < 0).any() else bottom, high + room])
    figure.add_annotation(
        text=f"▲ beyond the axis, to {np.abs(beyond).max():.2g}",
        font={"size": 11},
        xref=f"{_x_axis(traces)} domain",
        yref=f"{axis} domain",
        x=0.01,
        y=0.9 if (beyond < 0).any() else 0.02,
        showarrow=False,
        xanchor="left",
        yanchor="bottom",
    )


def _add_marks(figure: go.Figure, trace: Any, y: np.ndarray, is_beyond: np.ndarray, edge: np.ndarray) -> None:
    where = np.flatnonzero(is_beyond)
    figure.add_scatter(
        x=[trace.x[i] for i in where],
        y=edge[where],
        mode="markers",
        marker={
            "symbol": ["triangle-up" if y[i] > 0 else "triangle-down" for i in where],
            "size": 11,
            "color": trace.line.color,
        },
        text=[f"{trace.name}: {y[i]:.4g}" for i in where],
        hovertemplate="%{x}: %{text}<extra></extra>",
        showlegend=False,
        legendgroup=trace.legendgroup,
        xaxis=trace.xaxis,
        yaxis=trace.yaxis,
    )


def _numbers(values: Any) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], float)


def _is_line(trace: Any) -> bool:
    return trace.y is not None and trace.fill is None and "lines" in (trace.mode or "")


def _axis_of(trace: Any) -> str:
    return trace.yaxis or "y"


def _x_axis(traces: list[Any]) -> str:
    return traces[0].xaxis or "x"


def _traces(figure: go.Figure) -> list[Any]:
    return list(figure.data)


def _axes(figure: go.Figure) -> list[str]:
    return list(dict.fromkeys(_axis_of(trace) for trace in _traces(figure)))
