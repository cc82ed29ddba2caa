"""A user's frames → checked tables.

A forecast frame is long: `unique_id, cutoff, ds, horizon, q0.5, q0.9, …`, one row for each series, cutoff and target
date. It may come from any forecaster. Functions that judge forecasts take frames or tables: a frame is read once, and
its table can be given to as many of them as one likes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from narwhals.typing import IntoDataFrame, IntoDataFrameT

from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import Frequency, show_time
from mqcast.data.joined import with_joined_id
from mqcast.data.schema import OF_FORECASTS, Schema
from mqcast.data.source import AN_INDEX, open_source
from mqcast.errors import (
    ConfigError,
    DataError,
    DuplicateRowsError,
    MissingColumnError,
    NonFiniteError,
    SchemaError,
)
from mqcast.evaluation.columns import (
    columns_of,
    distinct,
    frequency_of,
    ids_of,
    numbers_of,
    one_of,
    order_of,
    places,
    sorting,
    times_of,
)
from mqcast.evaluation.tables import (
    FIRST,
    LAST,
    SAME_LEVEL,
    SPAN,
    SPANS_BY,
    START,
    ActualsTable,
    ForecastTable,
    Names,
    crossings,
)
from mqcast.levels import level_of

Crossing = Literal["allow", "raise"]
Read: TypeAlias = pl.LazyFrame | str | Path  # read into a polars frame
Forecasts: TypeAlias = IntoDataFrameT | ForecastTable | Read
Models: TypeAlias = Mapping[str, IntoDataFrameT | ForecastTable | Read]
Actuals: TypeAlias = IntoDataFrame | ActualsTable | Read


def names_in(
    forecasts: Forecasts[IntoDataFrame] | Models[IntoDataFrame], schema: Schema | None = None, **given: str | None
) -> Names:
    """What the columns are called: as the caller says, or else as a Forecaster calls them in the (first) frame.

    Besides cutoff, horizon and quantiles, its frames have two columns, the id and the date.
    """
    names = Names.of(schema, **given)
    frame = next(iter(forecasts.values()), None) if isinstance(forecasts, Mapping) else forecasts
    if schema is not None or frame is None or isinstance(frame, ForecastTable | pl.LazyFrame):
        return names
    source = open_source(frame, "the forecasts")
    of_spans = (FIRST, LAST, SPAN, START, SPANS_BY) if has_spans(source) else ()
    others = [name for name in source.names if name not in (*OF_FORECASTS, *of_spans) and level_of(name) is None]
    others = [name for name in others if not (isinstance(name, str) and AN_INDEX.fullmatch(name))]
    dates = [name for name in others if pa.types.is_temporal(source.type_of(name))]
    if "cutoff" not in source.names or {names.id, names.time} <= set(others) or len(others) != 2 or len(dates) != 1:
        return names
    id, time = next(name for name in others if name not in dates), dates[0]
    is_other = given.get("id") not in (None, id) or given.get("time") not in (None, time)
    return names if is_other else Names.of(id=id, time=time, target=given.get("target"))


def has_spans(frame: Any) -> bool:
    """Whether its rows are totals over spans of steps."""
    source = frame if hasattr(frame, "index_names") else open_source(frame, "the forecasts")
    return {FIRST, LAST, START} <= set(source.names)


def forecast_table(forecasts: Forecasts[IntoDataFrame], names: Names, crossing: Crossing = "allow") -> ForecastTable:
    """The table of a frame; a table is returned as it is."""
    one_of("crossing", crossing, Crossing)
    if isinstance(forecasts, ForecastTable):
        _refuse_other_names(names, forecasts.names, ("id", "time"))
        table = forecasts
    else:
        table = read_forecasts(forecasts, names)
    if crossing == "raise":
        _refuse_crossings(table)
    return table


def forecast_tables(
    forecasts: Forecasts[IntoDataFrame] | Models[IntoDataFrame], names: Names, crossing: Crossing = "allow"
) -> dict[str, ForecastTable]:
    """The tables of {model: frame}; one frame alone has no name."""
    models = forecasts if isinstance(forecasts, Mapping) else {"": forecasts}
    if not models:
        raise ConfigError("there is no model; give {name: forecasts}")
    return {model: forecast_table(frame, names, crossing) for model, frame in models.items()}


def actuals_table(actuals: Actuals, names: Names) -> ActualsTable:
    """The table of a frame; a table is returned as it is."""
    if not isinstance(actuals, ActualsTable):
        return read_actuals(actuals, names)
    _refuse_other_names(names, actuals.names, ("id", "time", "target"))
    return actuals


def _refuse_other_names(names: Names, own: Names, roles: Sequence[str]) -> None:
    for role in roles:
        asked, known = getattr(names, role), getattr(own, role)
        if asked not in (known, getattr(Names(), role)):
            raise ConfigError(f"{role} is {asked!r}, but the table was read with {known!r}; leave {role}= out")


def read_forecasts(
    frame: IntoDataFrame | Read, names: Names | None = None, *, what: str = "the forecasts"
) -> ForecastTable:
    """Check a forecast frame and sort it."""
    names = names or Names()
    source = with_joined_id(open_source(frame, what), names.id)
    if has_spans(source):
        raise SchemaError(
            f"{what} are totals over spans of steps ({FIRST}, {LAST}, {START}); evaluate, volatility and orders take "
            "these, and this takes forecasts of single steps"
        )
    levels = _levels(source.names)
    columns = columns_of(
        source, [names.id, names.cutoff, names.time, *levels.values()], what, names.horizon, text=names.id
    )
    ids, item = ids_of(columns[names.id], names.id, what)
    times, clock = times_of({name: columns[name] for name in (names.cutoff, names.time)}, what)
    cutoff, time = times[names.cutoff], times[names.time]
    order = order_of(item, time, cutoff)
    if order is not None:
        item, time, cutoff = item[order], time[order], cutoff[order]
    values = np.empty((len(item), len(levels)))
    for i, name in enumerate(levels.values()):
        column = numbers_of(columns[name], name, what)
        values[:, i] = column if order is None else column[order]
    keys = {"item": item, "cutoff": cutoff, "time": time, "lead": np.zeros(len(item), np.int32)}
    table = ForecastTable(
        ids=ids,
        **keys,
        levels=tuple(levels),
        columns=tuple(levels.values()),
        quantiles=values,
        order=order,
        size=len(item),
        clock=clock,
        names=names,
        frame_types=FrameTypes.of(frame, names.id, names.time, source),
        frame=frame,
    )
    _check_keys(table)
    table = replace(table, lead=_leads(columns.get(names.horizon), table))
    _refuse_non_finite(table)
    return table


def read_actuals(frame: IntoDataFrame | Read, names: Names | None = None, what: str = "the actuals") -> ActualsTable:
    """Check a frame of demand and sort it; missing values are NaN."""
    names = names or Names()
    source = with_joined_id(open_source(frame, what), names.id)
    columns = columns_of(source, [names.id, names.time, names.target], what, text=names.id)
    ids, item = ids_of(columns[names.id], names.id, what)
    times, clock = times_of({names.time: columns[names.time]}, what)
    time = times[names.time]
    order = sorting(ids, item, time, what, source)
    value = numbers_of(columns[names.target], names.target, what)
    if (bad := np.flatnonzero(np.isinf(value))).size:
        where = {"series": ids[item[bad[0]]], "time": show_time(int(time[bad[0]]))}
        raise NonFiniteError(f"an infinite value among {what}", "correct it", column=names.target, **where)
    return ActualsTable(ids, item[order], time[order], clock, value[order], names)


def _levels(columns: Sequence[str]) -> dict[float, str]:
    """The quantile columns by level, in increasing order."""
    by_level: dict[float, str] = {}
    for name in columns:
        level = level_of(name)
        if level is not None and (other := by_level.setdefault(level, name)) != name:
            raise SchemaError(f"the forecasts have two columns of one level, {other} and {name}; keep one")
    for one, other in pairwise(sorted(by_level)):
        if other - one < SAME_LEVEL:
            raise SchemaError(
                f"the forecasts have two columns of one level, {by_level[one]} and {by_level[other]}; keep one"
            )
    if not by_level:
        others = ", ".join(map(str, columns))
        raise MissingColumnError(
            f"the forecasts have no column of quantiles, such as q0.5 or q0.9, but {others}; rename "
            "yours, or use a converter of mqcast.evaluation.converters"
        )
    return dict(sorted(by_level.items()))


def _leads(column: pa.Array | None, rows: ForecastTable) -> np.ndarray:
    """Whole steps from cutoff to target: the frame's own, or by the grid of its dates."""
    name, (frequency, is_sure) = rows.names.horizon, _grid_of(rows)
    if column is None:
        if frequency is None:
            remedy = f"add a column {name!r}: 1 for the first step after the cutoff"
            raise DataError("leads cannot be counted: the dates are no regular grid", remedy)
        return _counted(rows, frequency)
    lead = rows.from_frame(numbers_of(column, name, "the forecasts"))
    whole = np.where(np.isfinite(lead), lead, -1).astype(np.int32)
    same = np.diff(rows.trajectory) == 0
    bad = (whole < 1) | (whole != lead) | np.append(same & (np.diff(whole) >= 0), False)
    told = "leads are whole numbers from 1, and shrink as the cutoff nears the target"
    if not bad.any() and is_sure and frequency is not None:
        counted = _counted(rows, frequency)
        bad, told = whole * counted[0] != counted * whole[0], "by the dates it is another"
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"lead {lead[row]:g} from cutoff {show_time(int(rows.cutoff[row]))} (and {bad.sum() - 1} more)",
            f"{told}; correct or leave out the column",
            column=name,
            **rows.at(row),
        )
    return whole


def _grid_of(rows: ForecastTable) -> tuple[Frequency | None, bool]:
    """The grid that target dates and cutoffs share, and whether no step is missing on it.

    Cutoffs may name another day of the week, or of the month, than targets do.
    """
    cutoffs = pl.DataFrame({"item": rows.item, "time": rows.cutoff}).unique()
    of_targets = frequency_of(rows.item[rows.begins], rows.time[rows.begins])
    of_cutoffs = frequency_of(cutoffs["item"].to_numpy(), cutoffs["time"].to_numpy())
    if of_targets is None and np.bincount(rows.item[rows.begins]).max() == 1:
        return of_cutoffs, False
    if of_targets is None or of_cutoffs is None or of_targets.unit != of_cutoffs.unit:
        return of_targets, False
    frequency = replace(of_targets, size=math.gcd(of_targets.size, of_cutoffs.size))
    dates = distinct(np.append(rows.time[rows.begins], cutoffs["time"].to_numpy()))
    gaps = np.diff(dates)
    return frequency, frequency.unit == "fixed" and bool((gaps == frequency.size).all())


def _counted(rows: ForecastTable, frequency: Frequency) -> np.ndarray:
    """A cutoff between two dates of the grid counts as the earlier one."""
    if frequency.unit == "fixed":
        return (-((rows.cutoff - rows.time) // frequency.size)).astype(np.int32)
    cutoffs, dates = distinct(rows.cutoff), distinct(rows.time)
    steps = frequency.steps(dates)[0][places(rows.time, dates)]
    return (steps - frequency.floor(cutoffs)[places(rows.cutoff, cutoffs)]).astype(np.int32)


def _check_keys(rows: ForecastTable) -> None:
    late = np.flatnonzero(rows.time <= rows.cutoff)
    if late.size:
        cutoff = show_time(int(rows.cutoff[late[0]]))
        raise DataError(
            f"the target date is not after the cutoff, {cutoff}{_and_more(late.size, 'rows')}",
            "a forecast is made before its target; correct the dates",
            column=rows.names.time,
            **rows.at(late[0]),
        )
    twice = np.flatnonzero((np.diff(rows.trajectory) == 0) & (np.diff(rows.cutoff) == 0))
    if twice.size:
        raise DuplicateRowsError(
            f"two forecasts from cutoff {show_time(int(rows.cutoff[twice[0]]))}{_and_more(twice.size, 'times')}",
            "keep one; several models go in as {name: frame}",
            **rows.at(twice[0]),
        )


def _and_more(number: int, what: str) -> str:
    return f" (and {number - 1} more {what})" if number > 1 else ""


def _refuse_non_finite(rows: ForecastTable) -> None:
    not_finite = ~np.isfinite(rows.quantiles)
    if not_finite.any():
        row, column = np.argwhere(not_finite)[0]
        raise NonFiniteError(
            f"a quantile is missing or infinite{_and_more(int(not_finite.sum()), 'quantiles')}",
            "fill it, or drop the rows",
            column=rows.columns[column],
            **rows.at(row),
        )


def _refuse_crossings(rows: ForecastTable) -> None:
    crossed = np.flatnonzero(crossings(rows.quantiles))
    if crossed.size:
        row = crossed[0]
        shown = ", ".join(f"{name} {value:g}" for name, value in zip(rows.columns, rows.quantiles[row], strict=True))
        raise DataError(
            f"quantiles cross: {shown} (and in {crossed.size - 1} more rows)",
            "sort them within the row, or allow it: crossing='allow'",
            **rows.at(row),
        )
