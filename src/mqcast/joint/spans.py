"""Quantiles of total demand over spans of steps.

The frame has one row a series, cutoff and span: `first` and `last` are steps ahead, `start` and the time column their
dates, and `span` is the number of steps where the first of them is the next one, as orders need it.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrame

from mqcast.arguments import levels_of, whole_number
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, quoted
from mqcast.evaluation.reading import Forecasts, forecast_table, names_in
from mqcast.evaluation.tables import FIRST, LAST, SPAN, START, ForecastTable
from mqcast.joint.dependence import Dependence
from mqcast.joint.marginals import Marginals
from mqcast.joint.paths import StepGrid
from mqcast.levels import quantile_column

Spans = Sequence[tuple[int, int]]


def spans_of(spans: Any, horizon: int | None = None) -> list[tuple[int, int]]:
    """First and last steps, checked: whole numbers from 1, in order, each pair once, within the horizon."""
    pairs = list(spans) if isinstance(spans, Sequence) and not isinstance(spans, str) else []
    if pairs and all(isinstance(one, int) for one in pairs):
        raise ConfigError(f"spans is {quoted(spans)}; give pairs of first and last step: [({pairs[0]}, {pairs[-1]})]")
    found: list[tuple[int, int]] = []
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ConfigError(f"span {quoted(pair)} is no pair; give its first and its last step, such as (1, 4)")
        first, last = (whole_number("a step of a span", step, 1) for step in pair)
        if first > last:
            raise ConfigError(f"span ({first}, {last}) ends before it begins; give ({last}, {first})")
        if horizon is not None and last > horizon:
            raise ConfigError(f"span ({first}, {last}) goes beyond the horizon of {horizon}; end it at {horizon}")
        if (first, last) in found:
            raise ConfigError(f"span ({first}, {last}) is given twice; give it once")
        found.append((first, last))
    if not found:
        raise ConfigError(f"spans is {quoted(spans)}; give pairs of first and last step, such as [(1, 4), (3, 8)]")
    return found


def span_of(text: str) -> tuple[int, int]:
    """A span as the command line writes it: 1-4."""
    if (match := re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", text)) is None:
        raise ConfigError(f"span is {quoted(text)}; give its first and its last step, such as 1-4")
    return int(match[1]), int(match[2])


def span_quantiles(
    forecasts: Forecasts[IntoDataFrame],
    spans: Spans,
    dependence: Dependence,
    quantiles: Sequence[float] | None = None,
    *,
    seed: int = 0,
    id: str | None = None,
    time: str | None = None,
    schema: Schema | None = None,
) -> Any:
    """Quantiles of the total over each span, at the levels of the forecasts or at others.

    A span of one step has the quantiles of that step. Series of which a step of a span has no forecast are left out.

    >>> from mqcast.joint import Dependence, span_quantiles
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=3, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.1, 0.5, 0.9), first=56, last=56)
    >>> totals = span_quantiles(forecasts, [(1, 4), (3, 4)], Dependence.constant(4, 0.5))
    >>> totals.select("first", "last", "span").unique(maintain_order=True).rows()
    [(1, 4, 4), (3, 4, None)]
    """
    table = forecast_table(forecasts, names_in(forecasts, schema, id=id, time=time))
    levels = table.levels if quantiles is None else levels_of("quantiles", quantiles)
    frame = totals_in(table, spans_of(spans, int(table.lead.max())), dependence, levels, seed)
    return table.frame_types.to_native(frame, table.names.id)


def totals_in(
    table: ForecastTable,
    pairs: Sequence[tuple[int, int]],
    dependence: Dependence,
    levels: tuple[float, ...],
    seed: int = 0,
) -> pl.DataFrame:
    """The frame of totals; rows of series that lack a step are left out."""
    grid, names = StepGrid.of(table, dependence, max(last for _, last in pairs)), table.names
    template = dependence.template(whole_number("seed", seed, 0))[: grid.quantiles.shape[1]]
    horizon, num = template.shape
    found = np.full((len(grid), len(pairs), len(levels)), np.nan)
    for rows in grid.blocks(horizon * num):
        draws = np.take_along_axis(grid.sorted_draws(rows, num, dependence.not_negative), template[None], axis=2)
        for place, (first, last) in enumerate(pairs):
            total = draws[:, first - 1 : last].sum(axis=1)
            found[rows, place] = np.quantile(total, levels, axis=1, method="hazen").T
            if first == last:
                marginals = Marginals.of(table.levels, grid.quantiles[rows, first - 1], dependence.not_negative)
                found[rows, place] = marginals.at(np.array(levels))
    row, place = (np.repeat(np.arange(len(grid)), len(pairs)), np.tile(np.arange(len(pairs)), len(grid)))
    first, last = np.array(pairs)[place].T
    columns = {
        names.id: pl.Series(table.ids, dtype=pl.String).gather(grid.item[row]),
        names.cutoff: table.clock.dates(grid.cutoff[row]),
        START: table.clock.dates(grid.dates[row, first - 1]),
        names.time: table.clock.dates(grid.dates[row, last - 1]),
        FIRST: first.astype(np.int32),
        LAST: last.astype(np.int32),
        SPAN: pl.Series(np.where(first == 1, last, 0).astype(np.int32)).replace(0, None),
    }
    values = {quantile_column(level): found[row, place, i] for i, level in enumerate(levels)}
    return pl.DataFrame(columns | values).filter(~pl.Series(np.isnan(found[row, place, 0])))
