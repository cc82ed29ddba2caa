"""The data of the checks: rows to forecast from, and the ways in which checks change them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.export import frames_of
from mqcast.data.frame_types import FrameTypes
from mqcast.data.panel import Panel
from mqcast.data.schema import Schema
from mqcast.data.source import FrameLike, open_source
from mqcast.errors import DataError

UNSEEN_CATEGORY = "never seen before"


@dataclass(frozen=True, eq=False)
class Data:
    """Long rows by id and time, tables of series and of dates where they stand apart, and what the columns mean."""

    rows: pl.DataFrame
    schema: Schema
    static: pl.DataFrame | None = None
    events: pl.DataFrame | None = None
    frame_types: FrameTypes = field(default_factory=FrameTypes)

    @classmethod
    def of_frame(
        cls, frame: FrameLike, schema: Schema, static: FrameLike | None = None, events: FrameLike | None = None
    ) -> "Data":
        """A user's frame; the checks give it back in the user's own library and types."""
        rows = _table(frame).with_columns(pl.col(schema.target).cast(pl.Float64).fill_nan(None))
        rows = rows.with_columns(pl.col(pl.Categorical).cast(pl.String)).sort(schema.id, schema.time)
        frame_types = FrameTypes.of(frame, schema.id, schema.time)
        tables = {"static": static, "events": events}
        return cls(
            rows, schema, **{name: _table(t) for name, t in tables.items() if t is not None}, frame_types=frame_types
        )

    @classmethod
    def of_panel(cls, panel: Panel, frame_types: FrameTypes | None = None) -> "Data":
        frames = frames_of(panel)
        return cls(frames.rows, panel.schema, frames.static, frames.events, frame_types or FrameTypes())

    # -- what is in it -------------------------------------------------------------------------------------------------

    @cached_property
    def panel(self) -> Panel:
        """The same, through the gate: it says what is wrong with the data, and which dates follow each other."""
        return Panel.from_frame(self.rows, self.schema, self.static, self.events)

    @cached_property
    def ids(self) -> list[Any]:
        return self.rows[self.schema.id].unique(maintain_order=True).to_list()

    @cached_property
    def observed_dates(self) -> list[Any]:
        """The dates of which some series has a target, rising."""
        return self.rows.filter(self._is_observed)[self.schema.time].unique().sort().to_list()

    @property
    def _is_observed(self) -> pl.Expr:
        target = pl.col(self.schema.target)
        flag = self.schema.observed
        return target.is_not_null() & pl.col(flag).cast(pl.Boolean) if flag else target.is_not_null()

    @cached_property
    def ending_last(self) -> list[Any]:
        """The series that were observed at the last date of all."""
        last = pl.col(self.schema.time) == self.observed_dates[-1]
        return self.rows.filter(self._is_observed & last)[self.schema.id].to_list()

    @cached_property
    def largest(self) -> dict[str, float]:
        """By series, as text: the largest value without its sign; 0 where nothing was observed."""
        of_series = self.rows.group_by(self.schema.id).agg(
            pl.col(self.schema.target).filter(self._is_observed).abs().max().fill_null(0.0)
        )
        return {str(name): float(value) for name, value in of_series.iter_rows()}

    @cached_property
    def num_sold(self) -> dict[str, int]:
        """By series, as text: how many values are not zero."""
        sold = pl.col(self.schema.target).filter(self._is_observed).ne(0).sum()
        return {str(name): int(count) for name, count in self.rows.group_by(self.schema.id).agg(sold).iter_rows()}

    @cached_property
    def is_never_negative(self) -> bool:
        smallest: Any = self.rows.filter(self._is_observed)[self.schema.target].min()
        return smallest is not None and smallest >= 0

    @cached_property
    def new_id(self) -> Any:
        """An id that no series has."""
        return max(self.ids) + 1 if isinstance(self.ids[0], int) else f"not {max(self.ids)}"

    @property
    def needs_plan(self) -> bool:
        """Do the columns have to reach beyond the cutoff?"""
        return bool(self.schema.known) or (bool(self.schema.events) and self.events is None)

    def with_plan(self, horizon: int) -> "Data":
        """The same, or as of an earlier date where columns that are known ahead end before the horizon does."""
        panel = self.panel  # raises now if something is wrong with the data
        try:
            panel.require_future(horizon, np.full(panel.num_series, panel.last_observed.max()))
        except DataError:
            if len(self.observed_dates) <= horizon:
                raise
            return self.until(self.observed_dates[-1 - horizon], horizon)
        return self

    # -- on its way out ------------------------------------------------------------------------------------------------

    def frame(self) -> Any:
        """The rows in the user's library, as a new frame that nothing else refers to."""
        return self.frame_types.to_native(self.rows.clone(), self.schema.id)

    # -- other data ----------------------------------------------------------------------------------------------------

    def with_rows(self, rows: pl.DataFrame) -> "Data":
        return replace(self, rows=rows)

    def shuffled(self, seed: int = 0) -> "Data":
        """The same rows and columns in another order."""
        rows = self.rows.sample(fraction=1, shuffle=True, seed=seed)
        return self.with_rows(rows.select(rows.columns[::-1]))

    def only(self, ids: Sequence[Any]) -> "Data":
        return self.with_rows(self.rows.filter(pl.col(self.schema.id).is_in(list(ids))))

    def until(self, cutoff: Any, horizon: int) -> "Data":
        """What was known at a date: no target and nothing observed after it, and the plan of `horizon` steps.

        Series that lack a row of the plan, since their history has a gap there, are left out.
        """
        time, id = pl.col(self.schema.time), self.schema.id
        if not self.needs_plan:
            return self.with_rows(self.rows.filter(time <= cutoff))
        later = self.rows.filter(time > cutoff)[self.schema.time].unique().sort()
        planned = later.head(horizon)
        rows = self.rows.filter(time <= planned[-1]) if len(later) else self.rows
        if self.schema.known and len(later):
            rows = rows.filter(time.is_in(planned.implode()).sum().over(id) == len(planned))
        unknown = [self.schema.target, *self.schema.past]
        hidden = [pl.when(time <= cutoff).then(name).alias(name) for name in unknown]
        if flag := self.schema.observed:
            kind = rows.schema[flag]
            hidden.append(pl.when(time <= cutoff).then(flag).otherwise(pl.lit(0).cast(kind)).alias(flag))
        return self.with_rows(rows.with_columns(hidden))

    def sold_later(self, cutoff: Any, times: float, plus: float) -> "Data":
        """Other targets, and other values of what is observed, after a date."""
        later = pl.col(self.schema.time) > cutoff
        names = [name for name in (self.schema.target, *self.schema.past) if self.rows.schema[name].is_numeric()]
        other = [
            pl.when(later).then(pl.col(name).cast(pl.Float64) * times + plus).otherwise(name).alias(name)
            for name in names
        ]
        return self.with_rows(self.rows.with_columns(other))

    def grown(self, num_steps: int, cutoff: Any) -> "Data":
        """The same data some steps later: what was to come after the cutoff has been sold, and further rows have come.

        Series that end before the cutoff get none: such rows would not all be later.
        """
        schema, panel = self.schema, self.panel
        sold = pl.col(schema.target)
        to_come = pl.col(schema.time) > max(cutoff, self.observed_dates[-1])
        filled = self.rows.with_columns(pl.when(to_come).then(sold.mean()).otherwise(sold).alias(schema.target))
        dates = panel.times_at(np.arange(panel.num_series), panel.last_step + 1, num_steps)
        index = {name: i for i, name in enumerate(panel.ids.to_pylist())}
        parts = [filled]
        for (name,), rows in filled.group_by(schema.id, maintain_order=True):
            if rows[-1, schema.time] < cutoff:
                continue
            copied = rows.tail(num_steps)
            times = panel.axis.dates(dates[index[str(name)], : len(copied)])
            dated = copied.with_columns(times.cast(rows.schema[schema.time]).alias(schema.time))
            parts.append(_without_events(dated, schema))
        rows = pl.concat(parts).sort(schema.id, schema.time)
        return replace(self.with_rows(rows), events=self._events_until(rows[schema.time]))

    def _events_until(self, dates: pl.Series) -> pl.DataFrame | None:
        """The table of dates, with further ones on which nothing happens."""
        if self.events is None:
            return None
        time = self.schema.time
        later = dates.unique().sort().cast(self.events.schema[time])
        later = later.filter(later > self.events[time].max())
        last = self.events.sort(time).tail(1).drop(time)
        further = _without_events(pl.DataFrame({time: later}).join(last, how="cross"), self.schema)
        return pl.concat([self.events, further.select(self.events.columns)])

    def joined_by_newcomer(self, cutoff: Any) -> "Data":
        """With a series that begins after a date, of categories that no series had before."""
        schema = self.schema
        first = self.ids[0]
        own = pl.col(schema.id) == first
        texts = [
            c for c in (*schema.static, *schema.past) if c in self.rows.columns and self.rows.schema[c] == pl.String
        ]
        other = [pl.lit(UNSEEN_CATEGORY).alias(c) for c in texts] + [_same_type(self.new_id, self.rows, schema.id)]
        rows = self.rows.filter(own & (pl.col(schema.time) > cutoff)).with_columns(other)
        return replace(self.with_rows(pl.concat([self.rows, rows])), static=self._static_with(self.new_id, first))

    def joined_by_young(self, num_observed: int) -> "Data":
        """With a series of which only the last dates are there, `num_observed` of them observed."""
        schema, first = self.schema, self.ending_last[0]
        begins = self.observed_dates[-max(num_observed, 1)]
        rows = self.rows.filter((pl.col(schema.id) == first) & (pl.col(schema.time) >= begins))
        rows = rows.with_columns(_same_type(self.new_id, rows, schema.id))
        if num_observed == 0:
            rows = rows.with_columns(pl.lit(None, rows.schema[schema.target]).alias(schema.target))
        return replace(self.with_rows(pl.concat([self.rows, rows])), static=self._static_with(self.new_id, first))

    def _static_with(self, name: Any, like: Any) -> pl.DataFrame | None:
        """The table of series with one more, of categories that are new or another's."""
        if self.static is None:
            return None
        row = self.static.filter(pl.col(self.schema.id) == like)
        return pl.concat([self.static, row.with_columns(_same_type(name, row, self.schema.id))])

    def with_gaps(self, share: float, seed: int = 0) -> "Data":
        """With some targets missing, but no series' first or last."""
        schema, rng = self.schema, np.random.default_rng(seed)
        number = pl.int_range(pl.len()).over(schema.id)
        inner = (number > 0) & (pl.col(schema.time) < self.observed_dates[-1])
        drawn = pl.Series(rng.random(len(self.rows)) < share)
        return self.with_rows(
            self.rows.with_columns(pl.when(~(drawn & inner)).then(schema.target).alias(schema.target))
        )

    def paused(self, name: Any, first: Any, last: Any) -> "Data":
        """With one series not observed between two dates."""
        schema = self.schema
        within = (pl.col(schema.id) == name) & pl.col(schema.time).is_between(first, last)
        return self.with_rows(self.rows.with_columns(pl.when(~within).then(schema.target).alias(schema.target)))

    def constant(self, levels: dict[Any, float]) -> "Data":
        """With some series at one level all the time."""
        target, id = pl.col(self.schema.target), pl.col(self.schema.id)
        value = target
        for name, level in levels.items():
            value = pl.when((id == name) & target.is_not_null()).then(pl.lit(level)).otherwise(value)
        return self.with_rows(self.rows.with_columns(value.alias(self.schema.target)))


def _same_type(value: Any, like: pl.DataFrame, column: str) -> pl.Expr:
    return pl.lit(value).cast(like.schema[column]).alias(column)


def _table(frame: FrameLike) -> pl.DataFrame:
    source = open_source(frame)
    return pl.DataFrame({name: pl.Series(name, source.column(name)) for name in source.names})


def _without_events(rows: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Rows on which nothing happens, as is assumed of dates that an event table does not have."""
    columns = [name for name in schema.events if name in rows.columns]
    nothing = [
        pl.lit(None if rows.schema[name] in (pl.String, pl.Categorical) else 0).cast(rows.schema[name]).alias(name)
        for name in columns
    ]
    return rows.with_columns(nothing)
