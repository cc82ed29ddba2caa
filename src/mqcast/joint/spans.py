"""Quantiles of total demand over spans of steps, and how good they were.

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
from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import show_time
from mqcast.data.schema import Schema
from mqcast.data.source import read_table
from mqcast.errors import ConfigError, DataError, MissingColumnError, quoted
from mqcast.evaluation.columns import columns_of, ids_of, times_of
from mqcast.evaluation.metrics import evaluate
from mqcast.evaluation.reading import Actuals, Forecasts, actuals_table, forecast_table, names_in
from mqcast.evaluation.tables import NEVER, ActualsTable, ForecastTable, Names
from mqcast.joint.dependence import Dependence
from mqcast.joint.marginals import Marginals
from mqcast.joint.paths import StepGrid
from mqcast.levels import level_of, quantile_column

Spans = Sequence[tuple[int, int]]
FIRST, LAST, SPAN, START = "first", "last", "span", "start"
OF_SINGLE_STEPS = ("mase", "sql")  # their scale is the change of one step's demand


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


def evaluate_spans(
    totals: Any,
    actuals: Actuals,
    *,
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Any:
    """The metrics of `evaluate` for each span of a frame of totals, with the number of totals that were left out.

    A total is left out where demand of one of its steps was not observed.

    >>> from mqcast.joint import Dependence, evaluate_spans, span_quantiles
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.1, 0.5, 0.9), first=30, last=50)
    >>> totals = span_quantiles(forecasts, [(1, 4)], Dependence.constant(4, 0.5))
    >>> evaluate_spans(totals, world.actuals).select("first", "last", "left_out").row(0)
    (1, 4, 0)
    """
    names = Names.of(schema, id=id, time=time, target=target)
    frame = read_table(totals, "the totals")
    for name in (names.id, names.cutoff, START, names.time, FIRST, LAST):
        if name not in frame.columns:
            listed = ", ".join(frame.columns)
            raise MissingColumnError(f"the totals have no column {name!r}, only {listed}; make them by span_quantiles")
    observed, rows = actuals_table(actuals, names), []
    frame = frame.with_columns(_demand=_sums(frame, observed, names))
    levels = [name for name in frame.columns if level_of(name) is not None]
    for (first, last), part in sorted(frame.group_by(FIRST, LAST), key=lambda one: one[0]):
        known = part.filter(pl.col("_demand").is_not_null())
        if known.is_empty():
            raise DataError(
                f"no total over steps {first} to {last} has demand of all its steps", "give actuals of those dates"
            )
        forecast = known.select(names.id, names.cutoff, names.time, pl.col(LAST).alias(names.horizon), *levels)
        demand = known.select(names.id, names.time, pl.col("_demand").alias(names.target)).unique()
        found = evaluate(forecast, demand, id=names.id, time=names.time, target=names.target)
        left_out = pl.lit(part.height - known.height).alias("left_out")
        keys = (pl.lit(value, pl.Int32).alias(name) for name, value in ((FIRST, first), (LAST, last)))
        rows.append(found.select(*keys, "rows", left_out, pl.exclude("rows", *OF_SINGLE_STEPS)))
    return FrameTypes.of(totals, names.id, names.time).to_native(pl.concat(rows))


def _sums(frame: pl.DataFrame, observed: ActualsTable, names: Names) -> pl.Series:
    """Demand from the first to the last date of each row; null where a step of it was not observed."""
    what = "the totals"
    columns = columns_of(frame, [names.id, names.cutoff, START, names.time], what, text=names.id)
    ids, item = ids_of(columns.pop(names.id), names.id, what)
    times, _ = times_of(columns, what)
    start, end = times[START], times[names.time]
    if (bad := np.flatnonzero((start > end) | (start <= times[names.cutoff]) | (start == NEVER))).size:
        where = {"series": ids[item[bad[0]]], "time": show_time(int(end[bad[0]]))}
        raise DataError(f"a total goes from {show_time(int(start[bad[0]]))} to this date", "correct its dates", **where)
    mine = observed.items_of(ids)[item]
    known = ~np.isnan(observed.value)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, observed.value, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    key = np.maximum(mine, 0) * np.int64(len(observed.dates))
    low = np.searchsorted(observed.keys, key + np.searchsorted(observed.dates, start))
    high = np.searchsorted(observed.keys, key + np.searchsorted(observed.dates, end, side="right"))
    wanted = (frame[LAST] - frame[FIRST] + 1).to_numpy()
    whole = (mine >= 0) & (counts[high] - counts[low] == wanted)
    return pl.Series(np.where(whole, sums[high] - sums[low], np.nan)).fill_nan(None)
