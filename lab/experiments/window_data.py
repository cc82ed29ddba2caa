"""The data of a leaderboard's windows, and what of them is known at each cutoff."""

import datetime as dt
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from lab.datasets import Dataset
from mqcast.data.axis import TimeAxis
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, DataError
from mqcast.settings import Settings, nearest


class ZeroRule(Settings):
    """The target is 0 wherever a known column has this value: closed days. Such days are not learnt, but set."""

    column: str
    equals: float | str

    def holds(self) -> pl.Expr:
        return pl.col(self.column) == self.equals


class Neighbours(Settings):
    """A known column's values some steps before and after each row, as known columns of their own."""

    column: str
    offsets: tuple[int, ...] = (-1, 1)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column}{offset:+d}" for offset in self.offsets)


class WindowData:
    """A data set cut into windows; `task` is a Leaderboard."""

    def __init__(self, task: Any, dataset: Dataset):
        self.task, self.dataset = task, dataset
        schema = dataset.schema
        if schema.time_grid == "rows":
            raise ConfigError(f"task {task.name}: grids of rows are not windowed here; give freq and calendar days")
        self.id, self.time, self.target = schema.id, schema.time, schema.target
        self._check_columns()
        sold = dataset.frame.filter(pl.col(self.target).cast(pl.Float64).is_not_nan())  # null is neither
        if sold.is_empty():
            raise DataError(
                f"task {task.name}: no row has a target", "give the past, with its sales", column=self.target
            )
        self.rows = dataset.frame.filter(pl.col(self.time) <= sold[self.time].max()).sort(self.id, self.time)
        rules = [rule.column for rule in (task.zero_when, *task.neighbours) if rule is not None]
        if unknown := [name for name in rules if name not in schema.known]:
            raise ConfigError(f"task {task.name}: {', '.join(unknown)} must be among the known columns")

    def _check_columns(self) -> None:
        """Raise if the data lack a column that the schema names."""
        tables = {"static": self.dataset.static, "events": self.dataset.events}
        for role, name in self.dataset.schema.roles():
            table = tables.get(role)
            there = [*self.dataset.frame.columns, *([] if table is None else table.columns)]
            if name not in there:
                raise ConfigError(
                    f"task {self.task.name}: {role} column {name!r} is not in the data{nearest(name, there)}; "
                    f"there are {', '.join(there)}"
                )

    @cached_property
    def schema(self) -> Schema:
        """With the columns that the task adds."""
        schema = self.dataset.schema
        added = {name: part.column for part in self.task.neighbours for name in part.names}
        kinds = {name: schema.kinds[source] for name, source in added.items() if source in schema.kinds}
        calendar = schema.calendar if self.task.calendar is None else self.task.calendar
        return schema.replace(known=(*schema.known, *added), kinds=schema.kinds | kinds, calendar=calendar)

    @cached_property
    def dates(self) -> pl.Series:
        """All dates, from the first to the last, on the grid."""
        times = self.rows[self.time].unique().sort()
        counted = times.cast(pl.Datetime("us")).cast(pl.Int64).to_numpy()
        frequency = TimeAxis.of(self.schema.freq, None, counted, np.ones_like(counted)).frequency
        (first, last), _ = frequency.steps(counted[[0, -1]])
        return pl.Series(frequency.times(np.arange(first, last + 1))).cast(pl.Datetime("us"))

    @property
    def cutoffs(self) -> list[dt.datetime]:
        """The windows' last known dates."""
        task, dates = self.task, self.dates
        if (first := len(dates) - task.windows * task.horizon - 1) < task.season:
            raise DataError(f"{len(dates)} dates are too few for {task.windows} windows", "judge fewer windows")
        return [dates[first + window * task.horizon] for window in range(task.windows)]

    def horizon_of(self, cutoff: dt.datetime) -> pl.Series:
        start = int(self.dates.search_sorted(cutoff)) + 1
        return self.dates[start : start + self.task.horizon]

    def known_at(self, cutoff: dt.datetime) -> pl.DataFrame:
        """Rows up to the horizon's end; after the cutoff without what is then not known, and one for every date.

        Where a series has no row after the cutoff it gets one, with what most series have on that date: it is not
        judged, but the others of its horizon may be.
        """
        schema, ahead = self.dataset.schema, self.horizon_of(cutoff)
        past = self.rows.filter(pl.col(self.time) <= cutoff)
        self._check_rule(past)
        has_begun = pl.col(self.id).is_in(past[self.id].unique().implode())
        future = self.rows.filter(pl.col(self.time).is_in(ahead.implode()) & has_begun)
        usual = future.group_by(self.time).agg(pl.col(schema.known).drop_nulls().mode().sort().first())
        keys = past.select(self.id).unique(maintain_order=True).join(pl.DataFrame({self.time: ahead}), how="cross")
        planned = keys.join(future.select(self.id, self.time, *schema.known), on=[self.id, self.time], how="left")
        planned = planned.join(usual, on=self.time, how="left", suffix=" usual")
        planned = planned.select(
            self.id, self.time, *[pl.coalesce(name, f"{name} usual").alias(name) for name in schema.known]
        )
        if schema.known and planned.select(pl.col(schema.known).null_count()).sum_horizontal().item():
            raise DataError(f"no series has known values on some date after {cutoff}", "check the task's columns")
        both = pl.concat([past, planned], how="diagonal").sort(self.id, self.time)
        if self.task.zero_when is not None:
            is_zero = self.task.zero_when.holds()
            both = both.with_columns(pl.when(~is_zero).then(self.target).alias(self.target))
        return self._with_neighbours(both)

    def with_zeros(self, forecasts: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
        """The rule applied: 0 where the plan says that there is nothing to sell."""
        if (rule := self.task.zero_when) is None:
            return forecasts
        keys = [self.id, self.time]
        planned = known.select(*keys, rule.holds().alias(" zero"))
        forecasts = forecasts.join(planned, on=keys, how="left", maintain_order="left")
        is_zero = pl.col(" zero").fill_null(False)
        zeros = [pl.when(is_zero).then(0.0).otherwise(name).alias(name) for name in self.task.quantile_names]
        return forecasts.with_columns(zeros).drop(" zero")

    def _check_rule(self, past: pl.DataFrame) -> None:
        if (rule := self.task.zero_when) is None:
            return
        broken = past.filter(rule.holds() & (pl.col(self.target) != 0)).head(1)
        if broken.height:
            series, time = broken[self.id][0], str(broken[self.time][0])
            problem = f"{rule.column} is {rule.equals} but the target is not 0"
            raise DataError(problem, "leave zero_when out of the task", series=series, time=time)

    def _with_neighbours(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Beside each row what is known of rows before and after; where there is none, of those a season before."""
        step, keys = self.dates[1] - self.dates[0], [self.id, self.time]
        for part in self.task.neighbours:
            for name, offset in zip(part.names, part.offsets, strict=True):
                for place in (offset, offset - self.task.season):
                    moved = rows.select(self.id, pl.col(self.time) - place * step, pl.col(part.column).alias(" there"))
                    rows = rows.join(moved, on=keys, how="left", maintain_order="left")
                    before = pl.col(name) if name in rows.columns else pl.lit(None)
                    rows = rows.with_columns(pl.coalesce(before, " there").alias(name)).drop(" there")
                rows = rows.with_columns(pl.col(name).fill_null(pl.col(part.column)))
        return rows

    def without_gaps(self, known: pl.DataFrame, cutoff: dt.datetime) -> pl.DataFrame:
        """To forecast from: rows before a gap moved up towards its end, so that recent history is what was last seen.

        They move by multiples of `close_gaps`, to keep weekdays and the rhythm of promotions.
        """
        if (unit := self.task.close_gaps) is None:
            return known
        step = self.dates[1] - self.dates[0]
        missing = ((pl.col(self.time).shift(-1) - pl.col(self.time)) / step).over(self.id).fill_null(1) - 1
        moves = (missing // unit * unit).cum_sum(reverse=True).over(self.id)
        moves = pl.when(pl.col(self.time) <= cutoff).then(moves).otherwise(0).cast(pl.Int64)
        return known.with_columns(pl.col(self.time) + moves * step)
