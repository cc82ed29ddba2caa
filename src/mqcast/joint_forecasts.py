# pyright: strict
"""Paths and totals of a fitted model's forecasts, in memory or written some series at a time."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from mqcast.arguments import whole_number
from mqcast.data.export import categories_of, some_series
from mqcast.data.panel import Panel
from mqcast.data.schema import Schema
from mqcast.data.views import known_at
from mqcast.data.windows import as_time
from mqcast.errors import ConfigError, MqcastError, MqcastWarning, TooFewRevisionsError
from mqcast.evaluation.columns import one_of
from mqcast.evaluation.reading import read_forecasts
from mqcast.evaluation.tables import SPAN, SPANS_BY, Names
from mqcast.forecast.frames import first_and_last_cutoff
from mqcast.joint.dependence import LEAST_POWER, Dependence
from mqcast.joint.paths import VALUES_AT_A_TIME, Grouping, Paths, paths_of, write_in_blocks
from mqcast.joint.spans import Spans, spans_of, totals_in
from mqcast.models.holdout import MOST_ROWS, actuals_after, dependence_of
from mqcast.models.protocol import FittedModel, HasDependence, HasSpans

MOST_PATHS = 100_000
USUAL_SPAN = (1, 4)
SpansBy = Literal["heads", "paths"]
Made = Callable[[Panel, Any, Any], pl.DataFrame]  # forecasts from every cutoff between two dates


@dataclass(frozen=True)
class Asked:
    """Paths, or totals over spans, of forecasts up to a horizon; checked before anything is forecast."""

    horizon: int
    paths: int | None = None
    spans: Spans | None = None
    group: str | None = None
    seed: int = 0
    spans_by: SpansBy | None = None

    def __post_init__(self) -> None:
        if (self.paths is None) == (self.spans is None):
            raise ConfigError("give either paths or spans; totals over spans can also be summed from paths")
        if self.group is not None and self.paths is None:
            raise ConfigError("a group joins the paths of several series; give paths with it")
        if self.paths is not None:
            whole_number("paths", self.paths, 1, MOST_PATHS)
        if self.spans is not None:
            spans_of(self.spans, self.horizon)
        if self.spans_by is not None:
            one_of("spans_by", self.spans_by, SpansBy)
            if self.spans is None:
                raise ConfigError("spans_by says how totals over spans are forecast; give spans with it")
        whole_number("seed", self.seed, 0)

    def by_heads(self, fitted: FittedModel) -> "Made | None":
        """Forecasts of the totals that the model has learnt itself, if these were asked for."""
        if self.spans is None or self.spans_by != "heads":
            return None
        pairs, trained = tuple(spans_of(self.spans, self.horizon)), fitted.spans if isinstance(fitted, HasSpans) else ()
        if missing := [pair for pair in pairs if pair not in trained]:
            listed = ", ".join(map(str, trained)) or "none"
            raise ConfigError(
                f"the model has not learnt the total over span {missing[0]} itself, of spans: {listed}; leave spans_by "
                "out, or fit a network with model.spans"
            )
        assert isinstance(fitted, HasSpans)

        def made(panel: Panel, first: Any, last: Any) -> pl.DataFrame:
            return _told(fitted.forecast_spans(panel, pairs, first, last), "heads")

        return made

    def of(self, frame: pl.DataFrame, dependence: Dependence, panel: Panel) -> Paths | pl.DataFrame:
        """What was asked for, of a frame of forecasts of this panel."""
        return self._of(frame, dependence, panel.schema, grouping_of(dependence, self.group, panel))

    def write(self, frame: pl.DataFrame | Path, dependence: Dependence, panel: Panel, path: Path) -> None:
        """Write it to a Parquet file, with some series in memory at a time."""
        schema, grouping = panel.schema, grouping_of(dependence, self.group, panel)

        def made(block: pl.DataFrame) -> pl.DataFrame:
            found = self._of(block, dependence, schema, grouping)
            return found.to_polars() if isinstance(found, Paths) else found

        write_in_blocks(frame, schema.id, path, made, max(1, VALUES_AT_A_TIME // (self.paths or 2**LEAST_POWER)))

    def _of(
        self, frame: pl.DataFrame, dependence: Dependence, schema: Schema, grouping: Grouping
    ) -> Paths | pl.DataFrame:
        if self.paths is not None:
            return paths_of(frame, dependence, self.paths, seed=self.seed, grouping=grouping, schema=schema)
        table = read_forecasts(frame, Names.of(schema))
        found = totals_in(table, spans_of(self.spans, self.horizon), dependence, table.levels, self.seed)
        return _told(found, "paths")


def _told(totals: pl.DataFrame, by: SpansBy) -> pl.DataFrame:
    """The totals, with how they were forecast."""
    return totals.insert_column(totals.columns.index(SPAN) + 1, pl.lit(by).alias(SPANS_BY))


def usual_spans(fitted: FittedModel, horizon: int) -> list[tuple[int, int]]:
    """If the model knows how steps go together: four steps and all of them, and those whose totals it has learnt."""
    if not isinstance(fitted, HasDependence) or fitted.dependence is None or horizon < 2:
        return []
    own = fitted.spans if isinstance(fitted, HasSpans) else ()
    return [span for span in dict.fromkeys((USUAL_SPAN, (1, horizon), *own)) if span[1] <= horizon]


def grouping_of(dependence: Dependence, column: str | None, panel: Panel) -> Grouping:
    """The group of each series by a static column."""
    if column is None:
        return Grouping()
    share = dependence.share_of(column)
    static = categories_of(panel)
    return Grouping(share, dict(zip(static[panel.schema.id], static[column], strict=True)))


def dependence_for(fitted: FittedModel, panel: Panel, horizon: int, until: Any = None) -> Dependence:
    """What the model learnt on dates that it had not seen, or else what its last forecasts up to a date show."""
    learnt = fitted.dependence if isinstance(fitted, HasDependence) else None
    if learnt is not None:
        return learnt
    config = getattr(fitted, "config", None)
    dates = (until, None if config is None else config.split.train_until)
    times = [as_time(date, panel.axis) for date in dates if date is not None]
    known = known_at(panel, min(times)) if times else panel
    num = max(1, MOST_ROWS // (3 * horizon * horizon))
    if known.num_series > num:
        known = some_series(known, np.unique(np.linspace(0, known.num_series - 1, num).astype(int)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MqcastWarning)
            start, end = first_and_last_cutoff(known, None, None, horizon)
            actuals = actuals_after(known, as_time(start, known.axis))
            return dependence_of(fitted.forecast(known, start, end), known, actuals)
    except MqcastError as error:
        is_too_little = isinstance(error, TooFewRevisionsError)
        why = f"{error.problem}; give more history" if is_too_little else str(error)
        raise ConfigError(f"no dependence of steps can be learnt from the last forecasts: {why}") from None
