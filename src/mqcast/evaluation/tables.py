"""Frames of forecasts and of actual demand as checked, sorted arrays; and tables back in the caller's own library.

A forecast frame is long: `unique_id, cutoff, ds, horizon, q0.5, q0.9, …`, one row a series, cutoff and target date; any
forecaster's frame will do. Rows are held by series, target date and cutoff, so that the forecasts of one target, its
*trajectory*, stand together, oldest first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from mqcast.data.axis import TimeAxis
from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import Frequency, show_time
from mqcast.data.schema import Schema, refuse_taken
from mqcast.data.source import open_source
from mqcast.errors import (
    ConfigError,
    DataError,
    DuplicateRowsError,
    MissingColumnError,
    NonFiniteError,
    SchemaError,
    quoted,
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
    same_clock,
    sorting,
    times_of,
)
from mqcast.levels import level_of

NEVER = np.iinfo(np.int64).min
SAME_LEVEL = 1e-9
Missing = Literal["raise", "drop"]
Crossing = Literal["allow", "raise"]


@dataclass(frozen=True)
class Names:
    """What the columns are called."""

    id: str = "unique_id"
    time: str = "ds"
    target: str = "y"
    cutoff: str = "cutoff"
    horizon: str = "horizon"

    @classmethod
    def of(cls, schema: Schema | None = None, **said: str | None) -> "Names":
        """The names that a schema gives; those said one by one go before it."""
        if schema is not None:
            schema = Schema.of(schema)
        names = {} if schema is None else {"id": schema.id, "time": schema.time, "target": schema.target}
        names |= {name: value for name, value in said.items() if value is not None}
        for role, name in names.items():
            if not isinstance(name, str):
                raise ConfigError(f"{role} is {quoted(name)}; give the name of the {role} column")
        found = cls(**names)
        refuse_taken({"id": found.id, "time": found.time}, (), "every forecast")
        if len({found.id, found.time, found.target}) < 3:
            three = f"{found.id}, {found.time}, {found.target}"
            raise SchemaError(f"id, time and target are {three}; name three different columns")
        return found


@dataclass(frozen=True, eq=False)
class Keyed:
    """Rows known by series and date, sorted by both, each pair once."""

    ids: list[str]  # sorted
    item: np.ndarray  # index into ids
    time: np.ndarray  # microseconds
    clock: TimeAxis

    @cached_property
    def dates(self) -> np.ndarray:
        """The distinct dates, sorted."""
        return distinct(self.time)

    @cached_property
    def keys(self) -> np.ndarray:
        """Rising with the rows: series times the number of dates, plus the place of the date."""
        return self.item.astype(np.int64) * len(self.dates) + places(self.time, self.dates)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each series begins, and the end of the last."""
        return np.searchsorted(self.item, np.arange(len(self.ids) + 1))

    def find(self, ids: Sequence[str], item: np.ndarray, time: np.ndarray) -> np.ndarray:
        """The rows of these series and dates; -1 where there is none."""
        if not len(self.item):
            return np.full(len(item), -1)
        item = self.items_of(ids)[item]
        date = np.searchsorted(self.dates, time)
        near = np.minimum(date, len(self.dates) - 1)
        known = (item >= 0) & (self.dates[near] == time)
        keys = item.astype(np.int64) * len(self.dates) + near
        row = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(known & (self.keys[row] == keys), row, -1)

    def items_of(self, ids: Sequence[str]) -> np.ndarray:
        """The index of each id; -1 where it does not occur."""
        index = {name: i for i, name in enumerate(self.ids)}
        return np.array([index.get(name, -1) for name in ids], np.int64)


@dataclass(frozen=True, eq=False)
class Actuals(Keyed):
    """What was observed, with NaN where it was not."""

    value: np.ndarray
    names: Names

    @cached_property
    def frequency(self) -> Frequency | None:
        """The grid of the dates; None if they have none."""
        return frequency_of(self.item, self.time)

    def before(self, time: np.ndarray, steps: int) -> np.ndarray:
        """The date so many steps before each: by the calendar, or else by the dates that there are."""
        if self.frequency is None:
            place = np.searchsorted(self.dates, time) - steps
            return np.where(place >= 0, self.dates[np.maximum(place, 0)], NEVER)
        if self.frequency.unit == "fixed":
            return time - steps * self.frequency.size
        return self.frequency.times(self.frequency.steps(time)[0] - steps)

    def known_mean(self, ids: Sequence[str], until: np.ndarray) -> np.ndarray:
        """Each series' mean of what was observed up to its own date; NaN where nothing was."""
        item = self.items_of(ids)
        seen = np.concatenate([[0.0], np.nancumsum(self.value)])
        counts = np.concatenate([[0], np.cumsum(~np.isnan(self.value))])
        found = np.full(len(ids), np.nan)
        for i in np.flatnonzero(item >= 0):
            begin, end = self.offsets[item[i]], self.offsets[item[i] + 1]
            end = begin + np.searchsorted(self.time[begin:end], until[i], side="right")
            if counts[end] > counts[begin]:
                found[i] = (seen[end] - seen[begin]) / (counts[end] - counts[begin])
        return found


@dataclass(frozen=True, eq=False)
class Forecasts:
    """The rows of a forecast frame, by series, target date and cutoff."""

    ids: list[str]  # sorted
    item: np.ndarray  # index into ids
    cutoff: np.ndarray  # microseconds
    time: np.ndarray  # of the target
    lead: np.ndarray  # whole steps from cutoff to target
    levels: tuple[float, ...]  # rising
    columns: tuple[str, ...]  # of the levels
    quantiles: np.ndarray  # (rows, levels)
    order: np.ndarray | None  # the rows of the frame in this order; None: as they stand
    size: int  # rows of the frame
    clock: TimeAxis
    names: Names
    frame_types: FrameTypes

    @property
    def num_rows(self) -> int:
        return len(self.item)

    @cached_property
    def begins(self) -> np.ndarray:
        """The first row of each trajectory: of each pair of series and target date."""
        changes = (np.diff(self.item) != 0) | (np.diff(self.time) != 0)
        return np.concatenate([[0], np.flatnonzero(changes) + 1])

    @cached_property
    def trajectory(self) -> np.ndarray:
        """Which trajectory each row belongs to."""
        return np.repeat(np.arange(len(self.begins), dtype=np.int32), np.diff(self.begins, append=self.num_rows))

    def first_cutoffs(self) -> np.ndarray:
        """The earliest cutoff of each series of `ids`."""
        first = np.full(len(self.ids), np.iinfo(np.int64).max)
        np.minimum.at(first, self.item[self.begins], self.cutoff[self.begins])
        return first

    def place_of(self, level: float) -> int:
        near = [i for i, mine in enumerate(self.levels) if abs(mine - level) < SAME_LEVEL]
        if not near:
            there = ", ".join(self.columns)
            raise ConfigError(f"level {level!r} is asked for, but the forecasts have {there}; say those: levels=")
        return near[0]

    def level(self, level: float) -> np.ndarray:
        """The quantiles of one level."""
        return self.quantiles[:, self.place_of(level)]

    def where(self, rows: np.ndarray) -> "Forecasts":
        """Some of the rows, in their order, by a mask; every series keeps its place in `ids`."""
        order = np.flatnonzero(rows) if self.order is None else self.order[rows]
        parts = {name: getattr(self, name)[rows] for name in ("item", "cutoff", "time", "lead", "quantiles")}
        return replace(self, order=order, **parts)

    def to_frame(self, values: np.ndarray) -> np.ndarray:
        """Values of these rows in the order of the frame that they came from; NaN for its other rows."""
        if self.order is None:
            return values
        found = np.full((self.size, *values.shape[1:]), np.nan)
        found[self.order] = values
        return found

    def from_frame(self, values: np.ndarray) -> np.ndarray:
        return values if self.order is None else values[self.order]

    def at(self, row: int) -> dict[str, Any]:
        """Where a row stands, for an error."""
        return {"series": self.ids[self.item[row]], "time": show_time(self.time[row])}


def read_forecasts(frame: Any, names: Names, *, crossing: Crossing = "allow", what: str = "the forecasts") -> Forecasts:
    """Check a forecast frame and sort it."""
    one_of("crossing", crossing, Crossing)
    source = open_source(frame, what)
    levels = _levels(source.names)
    columns = columns_of(source, [names.id, names.cutoff, names.time, *levels.values()], what, names.horizon)
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
    found = Forecasts(
        ids=ids,
        **keys,
        levels=tuple(levels),
        columns=tuple(levels.values()),
        quantiles=values,
        order=order,
        size=len(item),
        clock=clock,
        names=names,
        frame_types=FrameTypes.of(frame, names.id, names.time),
    )
    _check_keys(found)
    found = replace(found, lead=_leads(columns.get(names.horizon), found))
    _check_values(found, crossing)
    return found


def read_actuals(frame: Any, names: Names, what: str = "the actuals") -> Actuals:
    """Check a frame of demand and sort it; missing values are NaN."""
    columns = columns_of(frame, [names.id, names.time, names.target], what)
    ids, item = ids_of(columns[names.id], names.id, what)
    times, clock = times_of({names.time: columns[names.time]}, what)
    time = times[names.time]
    order = sorting(ids, item, time, what)
    value = numbers_of(columns[names.target], names.target, what)
    if (bad := np.flatnonzero(np.isinf(value))).size:
        where = {"series": ids[item[bad[0]]], "time": show_time(int(time[bad[0]]))}
        raise NonFiniteError(f"an infinite value among {what}", "correct it", column=names.target, **where)
    return Actuals(ids, item[order], time[order], clock, value[order], names)


def actuals_of(forecasts: Forecasts, actuals: Actuals, missing: Missing, *, may_be_none: bool = False) -> np.ndarray:
    """The demand of each trajectory's target; NaN, if that is allowed, where it was not observed."""
    one_of("missing", missing, Missing)
    same_clock(forecasts.clock, actuals.clock, "the forecasts", "the actuals")
    item, time = forecasts.item[forecasts.begins], forecasts.time[forecasts.begins]
    row = actuals.find(forecasts.ids, item, time)
    found = np.where(row >= 0, actuals.value[row], np.nan)
    bad = np.flatnonzero(np.isnan(found))
    if not bad.size or (may_be_none and missing == "drop"):
        return found
    if (actuals.items_of(forecasts.ids) < 0).all():
        raise DataError(
            f"no id of the forecasts, such as {forecasts.ids[0]!r}, is among those of the actuals, such as "
            f"{actuals.ids[0]!r}",
            "write the ids alike in both",
            column=actuals.names.id,
        )
    if bad.size == len(found):
        raise DataError(
            f"no forecast has an actual: the targets go from {show_time(int(time.min()))} to "
            f"{show_time(int(time.max()))}, the actuals from {show_time(int(actuals.dates[0]))} to "
            f"{show_time(int(actuals.dates[-1]))}",
            "see that both tables have the same dates",
        )
    if missing == "raise":
        raise DataError(
            f"a forecast has no actual (nor have {bad.size - 1} more of {len(found)} pairs of series and date)",
            "give actuals up to the last target date, or missing='drop' to leave such forecasts out",
            column=actuals.names.target,
            series=forecasts.ids[item[bad[0]]],
            time=show_time(int(time[bad[0]])),
        )
    return found


def _levels(columns: Sequence[str]) -> dict[float, str]:
    """The quantile columns by level, rising."""
    found: dict[float, str] = {}
    for name in columns:
        level = level_of(name)
        if level is not None and (other := found.setdefault(level, name)) != name:
            raise SchemaError(f"the forecasts have two columns of one level, {other} and {name}; keep one")
    for one, other in pairwise(sorted(found)):
        if other - one < SAME_LEVEL:
            raise SchemaError(f"the forecasts have two columns of one level, {found[one]} and {found[other]}; keep one")
    if not found:
        others = ", ".join(map(str, columns))
        raise MissingColumnError(
            f"the forecasts have no column of quantiles, such as q0.5 or q0.9, but {others}; rename "
            "yours, or use a converter of mqcast.evaluation.converters"
        )
    return dict(sorted(found.items()))


def _leads(column: pa.Array | None, rows: Forecasts) -> np.ndarray:
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


def _grid_of(rows: Forecasts) -> tuple[Frequency | None, bool]:
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


def _counted(rows: Forecasts, frequency: Frequency) -> np.ndarray:
    """A cutoff between two dates of the grid counts as the earlier one."""
    if frequency.unit == "fixed":
        return (-((rows.cutoff - rows.time) // frequency.size)).astype(np.int32)
    cutoffs, dates = distinct(rows.cutoff), distinct(rows.time)
    steps = frequency.steps(dates)[0][places(rows.time, dates)]
    return (steps - frequency.floor(cutoffs)[places(rows.cutoff, cutoffs)]).astype(np.int32)


def _check_keys(rows: Forecasts) -> None:
    late = np.flatnonzero(rows.time <= rows.cutoff)
    if late.size:
        cutoff = show_time(int(rows.cutoff[late[0]]))
        raise DataError(
            f"the target date is not after the cutoff, {cutoff} (and in {late.size - 1} more rows)",
            "a forecast is made before its target; correct the dates",
            column=rows.names.time,
            **rows.at(late[0]),
        )
    twice = np.flatnonzero((np.diff(rows.trajectory) == 0) & (np.diff(rows.cutoff) == 0))
    if twice.size:
        raise DuplicateRowsError(
            f"two forecasts from cutoff {show_time(int(rows.cutoff[twice[0]]))} (and {twice.size - 1} more times)",
            "keep one; several models go in as {name: frame}",
            **rows.at(twice[0]),
        )


def _check_values(rows: Forecasts, crossing: Crossing) -> None:
    not_finite = ~np.isfinite(rows.quantiles)
    if not_finite.any():
        row, column = np.argwhere(not_finite)[0]
        raise NonFiniteError(
            f"a quantile is missing or infinite (as are {not_finite.sum() - 1} more)",
            "fill it, or drop the rows",
            column=rows.columns[column],
            **rows.at(row),
        )
    if crossing == "raise" and (crossed := np.flatnonzero(crossings(rows.quantiles))).size:
        row = crossed[0]
        shown = ", ".join(f"{name} {value:g}" for name, value in zip(rows.columns, rows.quantiles[row], strict=True))
        raise DataError(
            f"quantiles cross: {shown} (and in {crossed.size - 1} more rows)",
            "sort them within the row, or allow it: crossing='allow'",
            **rows.at(row),
        )


def crossings(quantiles: np.ndarray) -> np.ndarray:
    """Rows in which a higher level has a lower value."""
    return np.any(np.diff(quantiles, axis=-1) < 0, axis=-1)
