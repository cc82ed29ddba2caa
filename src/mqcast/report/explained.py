"""Figures of why: what a forecast looks at, what a revision came from, what was learnt of the calendar."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from mqcast.report.style import add_special, colour, plain, styled

MOST_CHANNELS, MOST_BARS = 24, 6  # bars: of the past, and of earlier forecasts


def attention_figure(weights: pl.DataFrame, name: str, events: Mapping[str, Sequence[Any]] | None = None) -> go.Figure:
    """Past date × horizon, from the attention weights of one item at one cutoff (block "history")."""
    part = weights.filter(block="history")
    weight_at = {(row[0], row[1]): row[2] for row in part.select("horizon", "looked_at", "weight").iter_rows()}
    dates, horizons = part["looked_at"].unique().sort(), part["horizon"].unique().sort().to_list()
    z = [[weight_at.get((horizon, date), 0.0) for date in dates] for horizon in horizons]
    figure = go.Figure(
        go.Heatmap(
            x=dates.to_list(),
            y=horizons,
            z=z,
            zmin=0,
            colorscale="Cividis",
            colorbar={"title": "weight"},
            hovertemplate="%{y} steps ahead looks at %{x}: %{z:.1%}<extra></extra>",
        )
    )
    _add_events(figure, events or {}, dates)
    figure.update_xaxes(title_text="date looked at")
    figure.update_yaxes(title_text="steps ahead")
    return styled(figure.update_layout(title_text=f"What the forecast of {plain(name)} looks at"), 420)


def revision_figure(before: pl.DataFrame, after: pl.DataFrame, name: str, date: Any) -> go.Figure:
    """Weights behind the forecasts of one date from two cutoffs: the past, and earlier forecasts (marked as such)."""
    both = pl.concat([before, after])
    labels = []
    for block in ("history", "feedback"):
        largest = both.filter(block=block).group_by("looked_at").agg(pl.max("weight")).sort("weight", descending=True)
        labels += [(block, day) for day in largest["looked_at"].head(MOST_BARS).sort()]
    shown, figure = [_day(day) if block == "history" else f"forecast {_day(day)}" for block, day in labels], go.Figure()
    for i, weights in enumerate((before, after)):
        weight_at = {(row[0], row[1]): row[2] for row in weights.select("block", "looked_at", "weight").iter_rows()}
        heights = [weight_at.get(label, 0.0) for label in labels]
        figure.add_bar(x=shown, y=heights, name=f"made at {_day(weights['cutoff'][0])}", marker={"color": colour(i)})
    figure.update_xaxes(type="category")
    figure.update_yaxes(title_text="weight", tickformat=".0%")
    title = f"{plain(name)}, {_day(date)}: what the revision came from"
    return styled(figure.update_layout(title_text=title, barmode="group"), 400)


def encodings_figure(encodings: pl.DataFrame, events: Mapping[str, Sequence[Any]] | None = None) -> go.Figure:
    """Learned position encodings over the calendar: ds, channel, value; the channels that vary most."""
    spread = (
        encodings.group_by("channel")
        .agg(pl.std("value").alias("spread"))
        .sort("spread", "channel", descending=[True, False])
    )
    channels = spread.filter(pl.col("spread") > 0).head(MOST_CHANNELS)["channel"].to_list()
    dates = encodings["ds"].unique().sort()
    z = [encodings.filter(channel=channel).sort("ds")["value"].to_list() for channel in channels]
    figure = go.Figure(
        go.Heatmap(
            x=dates.to_list(),
            y=list(range(1, len(channels) + 1)),
            z=z,
            colorscale="Cividis",
            colorbar={"title": "code"},
            hovertemplate="%{x}, channel %{y}: %{z:.2f}<extra></extra>",
        )
    )
    _add_events(figure, events or {}, dates)
    figure.update_yaxes(title_text="channel, by how much it varies")
    return styled(figure.update_layout(title_text="What the network learnt about the calendar"), 460)


def _add_events(figure: go.Figure, events: Mapping[str, Sequence[Any]], dates: pl.Series) -> None:
    shown = set(dates.to_list())
    inside = {name: [day for day in days if day in shown] for name, days in events.items()}
    add_special(figure, {}, {name: days for name, days in inside.items() if days})


def _day(date: Any) -> str:
    return str(date).removesuffix(" 00:00:00")
