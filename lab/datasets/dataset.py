"""What every loader returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl

from mqcast.data.panel import Panel
from mqcast.data.schema import Schema

Oracle = Callable[[Sequence[float], Any, Any], pl.DataFrame]


@dataclass(frozen=True)
class Dataset:
    """One row per series and step, the tables that go with them, and a schema that says what the columns mean.

    The target is in its own units, missing where nothing was recorded. `static` has a row per series and `events` a row
    per date. `promotions` are the known flags that mark promotions, one per kind. `of_date` are known columns and those
    of events that published code made from the date alone. A simulated data set has an oracle: (levels, first cutoff,
    last cutoff) → the best possible forecasts.
    """

    rows: pl.LazyFrame
    schema: Schema
    static: pl.DataFrame | None = None
    events: pl.DataFrame | None = None
    promotions: tuple[str, ...] = ()
    oracle: Oracle | None = None
    of_date: tuple[str, ...] = ()

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The rows in memory."""
        return self.rows.collect()

    @property
    def tables(self) -> dict[str, Any]:
        """What goes with the rows, as arguments of `Panel.from_frame` and of a Forecaster."""
        return {"static": self.static, "events": self.events}

    def as_recorded(self) -> "Dataset":
        """Without what published code made from the date: mqcast has a calendar of its own."""
        schema, events = self.schema, self.events
        left = {role: tuple(n for n in getattr(schema, role) if n not in self.of_date) for role in ("known", "events")}
        kinds = {name: kind for name, kind in schema.kinds.items() if name not in self.of_date}
        schema = schema.replace(**left, kinds=kinds, calendar=None)
        events = events.drop(self.of_date, strict=False) if events is not None and left["events"] else None
        return replace(self, rows=self.rows.drop(self.of_date, strict=False), schema=schema, events=events, of_date=())

    def panel(self) -> Panel:
        return Panel.from_frame(self.frame, self.schema, **self.tables)
