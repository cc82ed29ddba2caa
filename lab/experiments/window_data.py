"""The data of a leaderboard's windows, and what of them is known at each cutoff."""

import datetime as dt
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from lab.datasets import Dataset
from mqcast.data.axis import TimeAxis
from mqcast.errors import ConfigError, DataError


class WindowData:
    """A data set cut into windows; `task` is a Leaderboard."""

    def __init__(self, task: Any, dataset: Dataset):
        self.task, self.dataset = task, dataset
        schema = dataset.schema
        if schema.time_grid == "rows":
            raise ConfigError(f"task {task.name}: grids of rows are not windowed here; give freq and calendar days")
        self.id, self.time, self.target = schema.id, schema.time, schema.target
        self.schema = schema
        sold = dataset.frame.filter(pl.col(self.target).cast(pl.Float64).is_not_nan())  # null is neither
        if sold.is_empty():
            raise DataError(
                f"task {task.name}: no row has a target", "give the past, with its sales", column=self.target
            )
        self.rows = dataset.frame.filter(pl.col(self.time) <= sold[self.time].max()).sort(self.id, self.time)

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
        return pl.concat([past, planned], how="diagonal").sort(self.id, self.time)
