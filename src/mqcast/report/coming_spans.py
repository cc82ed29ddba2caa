"""Totals over several coming steps, of each item and of groups of items: numbers, figures and text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from mqcast.evaluation.tables import FIRST, LAST
from mqcast.levels import percentile, quantile_column
from mqcast.report.coming import Coming, middle_of
from mqcast.report.page import Cell, PageFigure, PageTable, Section
from mqcast.report.style import PALETTE, plain, styled

MOST_DRAWN = 20
GROUP, NUM_ITEMS = "group", "items"


@dataclass(frozen=True, eq=False)
class Ahead:
    """Totals over spans of the coming steps.

    items     a frame of totals: one row an item and span
    groups    by static column: group, items, first, last, q0.5 …: one row a group and span
    learnt    from what it was learnt how steps go together, in words
    """

    items: pl.DataFrame
    groups: dict[str, pl.DataFrame]
    learnt: str

    @property
    def spans(self) -> list[tuple[int, int]]:
        return self.items.select(FIRST, LAST).unique().sort(LAST, FIRST).rows()


@dataclass(frozen=True, eq=False)
class SpanTotals:
    """The totals of the items of a page: NaN where an item has none."""

    ahead: Ahead
    spans: list[tuple[int, int]]
    values: np.ndarray  # (items, spans, levels)

    @classmethod
    def of(cls, coming: Coming, ahead: Ahead) -> "SpanTotals":
        spans, places = ahead.spans, {id: i for i, id in enumerate(coming.ids)}
        values = np.full((len(coming.ids), len(spans), len(coming.levels)), np.nan)
        rows = ahead.items.with_columns(pl.col(coming.table.names.id).cast(pl.String))
        item = rows[coming.table.names.id].replace_strict(places, default=-1, return_dtype=pl.Int64).to_numpy()
        span = np.array([spans.index(one) for one in rows.select(FIRST, LAST).iter_rows()], int)
        shown = item >= 0
        quantiles = rows.select(map(quantile_column, coming.levels)).to_numpy()
        values[item[shown], span[shown]] = quantiles[shown]
        return cls(ahead, spans, values)

    def names(self, coming: Coming) -> list[str]:
        """week 1 to 4, …"""
        return [named(coming, *span) for span in self.spans]


def named(coming: Coming, first: int, last: int) -> str:
    return f"{coming.step} {first}" if first == last else f"{coming.step}s {first} to {last}"


def spans_section(coming: Coming, totals: SpanTotals) -> Section:
    levels, names = coming.levels, totals.names(coming)
    low, middle, high = (percentile(levels[i]) for i in (0, middle_of(levels), -1))
    reading = (
        f"What has to last for several {coming.step}s is judged by the total demand of all of them. Each row has the "
        f"quantiles of such totals. A {high} of a total is lower than the sum of the {high}s of its {coming.step}s, "
        f"because not all {coming.step}s are high at once. Markers show {middle}, lines the range from {low} to {high}."
    )
    notes = [totals.ahead.learnt]
    if totals.ahead.groups:
        notes.append("In totals of a group, its items go together as far as they did in past forecasts.")
    columns, cells = _columns(levels, names), [*coming.first]
    rows = [[Cell(coming.ids[item], item=item), *_numbers(totals.values[item])] for item in cells]
    tables = [PageTable("Totals of the items to look at first", ["item", *columns], rows)]
    figures = [PageFigure("Totals of the largest items", _items_figure(coming, totals))]
    for column, frame in totals.ahead.groups.items():
        texts = frame[GROUP].unique(maintain_order=True).to_list()
        values = frame.select(map(quantile_column, levels)).to_numpy().reshape(len(texts), len(names), len(levels))
        counts = frame[NUM_ITEMS].to_list()[:: len(names)]
        body = [
            [Cell(text), Cell(f"{count:,}", count), *_numbers(one)]
            for text, count, one in zip(texts, counts, values, strict=True)
        ]
        tables.append(PageTable(f"Totals by {column}", [column, "items", *columns], body))
        figures.append(PageFigure(f"Totals by {column}", _figure(texts, values, levels, names)))
    return Section("spans", f"Totals over several {coming.step}s", reading, notes, tables, figures)


def _columns(levels: Sequence[float], names: Sequence[str]) -> list[str]:
    return [f"{name}, {percentile(level)}" for name in names for level in levels]


def _numbers(values: np.ndarray) -> list[Cell]:
    return [Cell.amount(float(value)) for value in values.ravel()]


def _items_figure(coming: Coming, totals: SpanTotals) -> go.Figure:
    size = np.nan_to_num(totals.values[:, -1, middle_of(coming.levels)], nan=-1.0)
    largest = np.argsort(-size, kind="stable")[:MOST_DRAWN]
    ids = [coming.ids[item] for item in largest]
    return _figure(ids, totals.values[largest], coming.levels, totals.names(coming))


def _figure(texts: Sequence[str], values: np.ndarray, levels: Sequence[float], names: Sequence[str]) -> go.Figure:
    """The middle quantile and the range of each span, side by side at each of the texts, the largest first."""
    middle, figure = middle_of(tuple(levels)), go.Figure()
    order = np.argsort(-np.nan_to_num(values[:, -1, middle]), kind="stable")[:MOST_DRAWN]
    at, shown = np.arange(len(order)), [texts[int(i)] for i in order]
    for s, name in enumerate(names):
        found = values[order, s]
        told = [f"{percentile(level)} %{{customdata[{i}]:,.4g}}" for i, level in enumerate(levels)]
        figure.add_scatter(
            x=at + (s - (len(names) - 1) / 2) * 0.7 / len(names),
            y=found[:, middle],
            error_y={"array": found[:, -1] - found[:, middle], "arrayminus": found[:, middle] - found[:, 0]},
            customdata=found,
            text=[plain(text) for text in shown],
            hovertemplate=f"%{{text}}, {name}: {', '.join(told)}<extra></extra>",
            mode="markers",
            name=name,
            marker={"color": PALETTE[s % len(PALETTE)], "size": 8},
        )
    axis: Any = {"tickvals": at, "ticktext": [plain(text, 24) for text in shown], "tickangle": -40}
    return styled(figure.update_layout(yaxis_rangemode="tozero", xaxis=axis), 440)
