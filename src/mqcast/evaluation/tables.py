"""Forecasts and actual demand as checked, sorted arrays; `reading` makes them from a user's frames.

Rows of forecasts are held by series, target date and cutoff, so that the forecasts of one target, its *trajectory*,
stand together, oldest first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl

from mqcast.data.axis import TimeAxis
from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import Frequency, show_time
from mqcast.data.schema import Schema, refuse_taken
from mqcast.errors import ConfigError, DataError, SchemaError, TargetsLeftOutWarning, quoted, warn
from mqcast.evaluation.columns import distinct, frequency_of, one_of, places, same_clock
from mqcast.levels import quantile_column

NEVER = np.iinfo(np.int64).min
SAME_LEVEL = 1e-9
FIRST, LAST, SPAN, START = "first", "last", "span", "start"  # columns of totals over spans of steps
SPANS_BY = "spans_by"  # how a total was forecast
Missing = Literal["warn", "raise", "drop"]  # what to do with forecasts of dates without an actual
MOST_STRANGERS = 0.5  # of the series: with more that the actuals do not know, ids are written differently


@dataclass(frozen=True)
class Names:
    """What the columns are called."""

    id: str = "unique_id"
    time: str = "ds"
    target: str = "y"
    cutoff: str = "cutoff"
    horizon: str = "horizon"

    @classmethod
    def of(cls, schema: Schema | None = None, **given: str | None) -> "Names":
        """The names in a schema; those given one by one override it."""
        if schema is not None:
            schema = Schema.of(schema)
        chosen = {} if schema is None else {"id": schema.id, "time": schema.time, "target": schema.target}
        chosen |= {role: name for role, name in given.items() if name is not None}
        for role, name in chosen.items():
            if not isinstance(name, str):
                raise ConfigError(f"{role} is {quoted(name)}; give the name of the {role} column")
        names = cls(**chosen)
        refuse_taken({"id": names.id, "time": names.time}, (), "every forecast")
        if len({names.id, names.time, names.target}) < 3:
            three = f"{names.id}, {names.time}, {names.target}"
            raise SchemaError(f"id, time and target are {three}; name three different columns")
        return names


@dataclass(frozen=True, eq=False)
class Keyed:
    """Rows identified by series and date, sorted by both, each pair once."""

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
        """Increasing with the rows: series times the number of dates, plus the place of the date."""
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
class ActualsTable(Keyed):
    """Observed demand, NaN where it is missing."""

    value: np.ndarray
    names: Names

    @cached_property
    def frequency(self) -> Frequency | None:
        """The grid of the dates; None if they have none."""
        return frequency_of(self.item, self.time)

    def before(self, time: np.ndarray, steps: int) -> np.ndarray:
        """The date so many steps before each: by the calendar, or else by the dates in the table."""
        if self.frequency is None:
            place = np.searchsorted(self.dates, time) - steps
            return np.where(place >= 0, self.dates[np.maximum(place, 0)], NEVER)
        if self.frequency.unit == "fixed":
            return time - steps * self.frequency.size
        return self.frequency.times(self.frequency.steps(time)[0] - steps)

    def known_mean(self, ids: Sequence[str], until: np.ndarray) -> np.ndarray:
        """Each series' mean demand up to its own date; NaN where nothing was observed."""
        item = self.items_of(ids)
        sums = np.concatenate([[0.0], np.nancumsum(self.value)])
        counts = np.concatenate([[0], np.cumsum(~np.isnan(self.value))])
        means = np.full(len(ids), np.nan)
        for i in np.flatnonzero(item >= 0):
            begin, end = self.offsets[item[i]], self.offsets[item[i] + 1]
            end = begin + np.searchsorted(self.time[begin:end], until[i], side="right")
            if counts[end] > counts[begin]:
                means[i] = (sums[end] - sums[begin]) / (counts[end] - counts[begin])
        return means

    def where(self, rows: np.ndarray) -> "ActualsTable":
        """Some of the rows, by a mask; every series keeps its place in `ids`."""
        return replace(self, item=self.item[rows], time=self.time[rows], value=self.value[rows])

    def to_polars(self) -> pl.DataFrame:
        """unique_id, ds, y."""
        ids = pl.Series(self.ids, dtype=pl.String).gather(self.item)
        values = pl.Series(self.value).fill_nan(None)
        return pl.DataFrame({"unique_id": ids, "ds": self.clock.dates(self.time), "y": values})


@dataclass(frozen=True, eq=False)
class ForecastTable:
    """The rows of a forecast frame, by series, target date and cutoff."""

    ids: list[str]  # sorted
    item: np.ndarray  # index into ids
    cutoff: np.ndarray  # microseconds
    time: np.ndarray  # of the target
    lead: np.ndarray  # whole steps from cutoff to target
    levels: tuple[float, ...]  # increasing
    columns: tuple[str, ...]  # of the levels
    quantiles: np.ndarray  # (rows, levels)
    order: np.ndarray | None  # the rows of the frame in this order; None: unchanged
    size: int  # rows of the frame
    clock: TimeAxis
    names: Names
    frame_types: FrameTypes
    frame: Any = field(repr=False)  # as the user gave it

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
            listed = ", ".join(self.columns)
            raise ConfigError(f"the forecasts have no level {level!r}, only {listed}; choose among those: levels=")
        return near[0]

    def level(self, level: float) -> np.ndarray:
        """The quantiles of one level."""
        return self.quantiles[:, self.place_of(level)]

    def where(self, rows: np.ndarray) -> "ForecastTable":
        """Some of the rows, in their order, by a mask; every series keeps its place in `ids`."""
        order = np.flatnonzero(rows) if self.order is None else self.order[rows]
        parts = {name: getattr(self, name)[rows] for name in ("item", "cutoff", "time", "lead", "quantiles")}
        return replace(self, order=order, **parts)

    def at_levels(self, levels: Sequence[float]) -> "ForecastTable":
        """Some of the levels."""
        if self.levels == tuple(levels):
            return self
        kept = [self.place_of(level) for level in levels]
        columns = tuple(self.columns[i] for i in kept)
        return replace(self, levels=tuple(levels), columns=columns, quantiles=self.quantiles[:, kept])

    def to_frame(self, values: np.ndarray) -> np.ndarray:
        """Values of these rows in the order of the frame that they came from; NaN for its other rows."""
        if self.order is None:
            return values
        in_order = np.full((self.size, *values.shape[1:]), np.nan)
        in_order[self.order] = values
        return in_order

    def from_frame(self, values: np.ndarray) -> np.ndarray:
        return values if self.order is None else values[self.order]

    def to_polars(self) -> pl.DataFrame:
        """unique_id, cutoff, ds, horizon, q0.5 …"""
        keys = {
            "unique_id": pl.Series(self.ids, dtype=pl.String).gather(self.item),
            "cutoff": self.clock.dates(self.cutoff),
            "ds": self.clock.dates(self.time),
            "horizon": pl.Series(self.lead, dtype=pl.Int32),
        }
        return pl.DataFrame(keys | {quantile_column(q): self.quantiles[:, i] for i, q in enumerate(self.levels)})

    def at(self, row: int) -> dict[str, Any]:
        """Where a row stands, for an error."""
        return {"series": self.ids[self.item[row]], "time": show_time(self.time[row])}


def actuals_of(
    forecasts: ForecastTable, actuals: ActualsTable, missing: Missing, *, may_be_none: bool = False
) -> np.ndarray:
    """The demand of each trajectory's target; NaN, if that is allowed, where it was not observed."""
    one_of("missing", missing, Missing)
    same_clock(forecasts.clock, actuals.clock, "the forecasts", "the actuals")
    item, time = forecasts.item[forecasts.begins], forecasts.time[forecasts.begins]
    row = actuals.find(forecasts.ids, item, time)
    demand = np.where(row >= 0, actuals.value[row], np.nan)
    bad = np.flatnonzero(np.isnan(demand))
    if not bad.size or (may_be_none and missing != "raise"):
        return demand
    _refuse_strangers(forecasts, actuals, missing)
    if bad.size == len(demand):
        known = actuals.time[~np.isnan(actuals.value)]
        sold = f"from {show_time(int(known.min()))} to {show_time(int(known.max()))}" if known.size else "nowhere"
        raise DataError(
            f"no forecast has an actual: the targets go from {show_time(int(time.min()))} to "
            f"{show_time(int(time.max()))}, what was sold is known {sold}",
            "wait for the sales of the targets, or see that both tables have the same dates",
        )
    if missing == "raise":
        raise DataError(
            f"a forecast has no actual (nor have {bad.size - 1} more of {len(demand)} pairs of series and date)",
            "give actuals up to the last target date, or missing='drop' to leave such forecasts out",
            column=actuals.names.target,
            series=forecasts.ids[item[bad[0]]],
            time=show_time(int(time[bad[0]])),
        )
    if missing == "warn":
        _warn_of_left_out(forecasts, actuals, bad)
    return demand


def _warn_of_left_out(forecasts: ForecastTable, actuals: ActualsTable, bad: np.ndarray) -> None:
    """Say how many trajectories have no actual, and how many of these lie in the future."""
    rows = forecasts.begins[bad]
    last = int(actuals.time[~np.isnan(actuals.value)].max())
    warn(
        f"{bad.size} of {len(forecasts.begins)} pairs of series and date have no actual and are left out "
        f"({(forecasts.time[rows] > last).sum()} of them after {show_time(last)}, the last date with one; series "
        f"{quoted(forecasts.ids[forecasts.item[rows[0]]])} at {show_time(int(forecasts.time[rows[0]]))} …); "
        "missing='raise' makes this an error, missing='drop' says nothing",
        TargetsLeftOutWarning,
    )


def _refuse_strangers(forecasts: ForecastTable, actuals: ActualsTable, missing: Missing) -> None:
    """Raise if no series has actuals or, unless such series are to be dropped, if few have."""
    strange = np.flatnonzero(actuals.items_of(forecasts.ids) < 0)
    if strange.size < len(forecasts.ids) and (missing == "drop" or strange.size <= MOST_STRANGERS * len(forecasts.ids)):
        return
    all_of_them = strange.size == len(forecasts.ids)
    few = "no id" if all_of_them else f"{strange.size} of {len(forecasts.ids)} ids"
    raise DataError(
        f"{few} of the forecasts, such as {quoted(forecasts.ids[strange[0]])}, {'is' if all_of_them else 'are not'} "
        f"among those of the actuals, such as {quoted(actuals.ids[0])}",
        "write the ids alike in both" + ("" if all_of_them else ", or missing='drop' to leave such forecasts out"),
        column=actuals.names.id,
    )


def common_rows(tables: Mapping[str, ForecastTable]) -> dict[str, np.ndarray] | None:
    """Masks of the rows that all tables have (series, cutoff and date); None if all have the same rows."""
    first, *others = tables.values()
    if all(_same_rows(first, other) for other in others):
        return None
    keys = {name: _keys(table) for name, table in tables.items()}
    common, *rest = keys.values()
    for other in rest:
        common = common.join(other, on=common.columns, how="semi")
    masks = {}
    for name, key in keys.items():
        masks[name] = np.zeros(key.height, bool)
        masks[name][key.with_row_index("row").join(common, on=key.columns, how="semi")["row"].to_numpy()] = True
    return None if all(mask.all() for mask in masks.values()) else masks


def _same_rows(one: ForecastTable, other: ForecastTable) -> bool:
    keys = ("item", "cutoff", "time")
    return one.ids == other.ids and all(np.array_equal(getattr(one, key), getattr(other, key)) for key in keys)


def _keys(table: ForecastTable) -> pl.DataFrame:
    ids = pl.Series(table.ids, dtype=pl.String).gather(table.item)
    return pl.DataFrame({"id": ids, "cutoff": table.cutoff, "time": table.time})


def crossings(quantiles: np.ndarray) -> np.ndarray:
    """Rows in which a higher level has a lower value."""
    return np.any(np.diff(quantiles, axis=-1) < 0, axis=-1)
