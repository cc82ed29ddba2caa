"""Forecasts of totals over spans of steps, as ordinary forecasts and actuals: each total beside its summed demand.

The frame has one row a series, cutoff and span: `first` and `last` are steps ahead, `start` and the time column their
dates.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.frequency import show_time
from mqcast.data.source import read_table
from mqcast.errors import ConfigError, DataError, MissingColumnError
from mqcast.evaluation.columns import columns_of, ids_of, same_clock, times_of
from mqcast.evaluation.reading import has_spans
from mqcast.evaluation.tables import FIRST, LAST, NEVER, SPAN, START, ActualsTable, ForecastTable, Names
from mqcast.levels import level_of

DEMAND, WHAT = "_demand", "the totals"


@dataclass(frozen=True)
class SpanRows:
    """The totals of one span, as a frame of forecasts and one of actuals, without those that lack demand."""

    first: int
    last: int
    forecasts: pl.DataFrame
    actuals: pl.DataFrame
    left_out: int


def all_have_spans(frames: list[Any]) -> bool:
    """Whether these are frames of totals; raises where only some are."""
    found = [not isinstance(frame, ForecastTable) and has_spans(frame) for frame in frames]
    if any(found) and not all(found):
        raise ConfigError("some forecasts are totals over spans and others of single steps; judge them apart")
    return any(found)


def by_span(frame: Any, observed: ActualsTable, names: Names) -> list[SpanRows]:
    """The totals of each span, by its steps; a total counts at its last date, and its horizon is its last step."""
    rows, found = _with_demand(frame, observed, names), list[SpanRows]()
    for (first, last), part in sorted(rows.group_by(FIRST, LAST), key=lambda one: one[0]):
        known = _known(part, f"no total over steps {first} to {last}")
        forecasts = known.with_columns(pl.col(LAST).alias(names.horizon)).drop(FIRST, LAST, START, SPAN, strict=False)
        actuals = known.select(names.id, names.time, pl.col(DEMAND).alias(names.target)).unique()
        found.append(SpanRows(int(first), int(last), forecasts.drop(DEMAND), actuals, part.height - known.height))
    return found


def revisions_of_totals(frame: Any, observed: ActualsTable, names: Names) -> SpanRows:
    """Totals of one length, each a target that is known by its first date: its horizon is the step of that date."""
    rows = _with_demand(frame, observed, names)
    lengths = (rows[LAST] - rows[FIRST] + 1).unique().sort().to_list()
    if len(lengths) > 1:
        listed = ", ".join(map(str, lengths))
        raise ConfigError(f"the totals are over {listed} steps; give those of one length at a time: last - first")
    if not rows.select(names.id, START).is_duplicated().any():
        first, last = rows.select(FIRST, LAST).row(0)
        raise ConfigError(
            f"no dates have totals from two cutoffs, since span ({first}, {last}) of each cutoff has dates of its own; "
            f"give spans that come nearer, such as [({first}, {last}), ({first + 1}, {last + 1})]"
        )
    known = _known(rows, "no total")
    levels = [name for name in known.columns if level_of(name) is not None]
    start = pl.col(START).alias(names.time)
    forecasts = known.select(names.id, names.cutoff, start, pl.col(FIRST).alias(names.horizon), *levels)
    actuals = known.select(names.id, start, pl.col(DEMAND).alias(names.target)).unique()
    return SpanRows(1, lengths[0], forecasts, actuals, rows.height - known.height)


def _known(rows: pl.DataFrame, what: str) -> pl.DataFrame:
    known = rows.filter(pl.col(DEMAND).is_not_null())
    if known.is_empty():
        raise DataError(f"{what} has demand of all its steps", "give actuals of those dates")
    return known


def _with_demand(frame: Any, observed: ActualsTable, names: Names) -> pl.DataFrame:
    """The frame, with demand from the first to the last date of each row; null where a step was not observed."""
    rows = read_table(frame, WHAT)
    for name in (names.id, names.cutoff, START, names.time, FIRST, LAST):
        if name not in rows.columns:
            listed = ", ".join(rows.columns)
            raise MissingColumnError(f"{WHAT} have no column {name!r}, only {listed}; make them by predict(spans=…)")
    columns = columns_of(rows, [names.id, names.cutoff, START, names.time], WHAT, text=names.id)
    ids, item = ids_of(columns.pop(names.id), names.id, WHAT)
    times, clock = times_of(columns, WHAT)
    same_clock(clock, observed.clock, WHAT, "the actuals")
    start, end = times[START], times[names.time]
    if (bad := np.flatnonzero((start > end) | (start <= times[names.cutoff]) | (start == NEVER))).size:
        where = {"series": ids[item[bad[0]]], "time": show_time(int(end[bad[0]]))}
        raise DataError(f"a total goes from {show_time(int(start[bad[0]]))} to this date", "correct its dates", **where)
    sums = _sums(observed, observed.items_of(ids)[item], start, end, (rows[LAST] - rows[FIRST] + 1).to_numpy())
    return rows.with_columns(pl.Series(DEMAND, sums).fill_nan(None))


def _sums(
    observed: ActualsTable, item: np.ndarray, start: np.ndarray, end: np.ndarray, num_steps: np.ndarray
) -> np.ndarray:
    """Demand of each item (-1: unknown) from one date to another, NaN unless so many steps were observed."""
    known = ~np.isnan(observed.value)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, observed.value, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    key = np.maximum(item, 0) * np.int64(len(observed.dates))
    low = np.searchsorted(observed.keys, key + np.searchsorted(observed.dates, start))
    high = np.searchsorted(observed.keys, key + np.searchsorted(observed.dates, end, side="right"))
    whole = (item >= 0) & (counts[high] - counts[low] == num_steps)
    return np.where(whole, sums[high] - sums[low], np.nan)
