"""The figures of a report one by one, for notebooks: `forecaster.plot.evolution("item", "2024-12-22")` …"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
import plotly.graph_objects as go
import polars as pl

from mqcast.data.frequency import show_time
from mqcast.data.windows import as_time
from mqcast.errors import ConfigError
from mqcast.levels import percentile, quantile_column
from mqcast.report.accuracy import (
    by_decile_figure,
    by_horizon_figure,
    calibration_figure,
    loss_by_lead_figure,
    width_figure,
)
from mqcast.report.bounds import bounded, bounded_at
from mqcast.report.evolution import evolution_figure, fan_figure, volatility_figure
from mqcast.report.explained import attention_figure, encodings_figure, revision_figure
from mqcast.report.figures import learning_curve
from mqcast.report.sources import Sources, Trained
from mqcast.report.style import colour, dash, plain
from mqcast.report.summary import Findings, findings_of
from mqcast.settings import nearest

SHOWN_HISTORY = 110


class Plots:
    """Plotly figures of forecasts and actuals. Dates are texts or dates; a model left out is the first.

    past      what was forecast and came to pass, or a function that gives it when a figure needs it
    coming    a function that gives the forecast of an item's coming steps; None: there is none
    what_if   a function that gives the forecasts of changed plans, as `Forecaster.what_if`
    """

    def __init__(
        self,
        past: Sources | Callable[[], Sources],
        coming: Callable[[Any], Sources] | None = None,
        what_if: Callable[[Any], Any] | None = None,
    ):
        self._past, self._coming, self._what_if = past, coming, what_if

    @cached_property
    def sources(self) -> Sources:
        """What the figures of the past are made from."""
        return self._past if isinstance(self._past, Sources) else self._past()

    @cached_property
    def findings(self) -> Findings:
        """The numbers behind the figures."""
        return findings_of(self.sources)

    # -- of all items --------------------------------------------------------------------------------------------------

    def by_horizon(self) -> go.Figure:
        return self._bounded(by_horizon_figure(self.findings.horizons, self.sources.judged_levels))

    def by_demand(self) -> go.Figure:
        deciles = self._there(self.findings.deciles, "ten items or more")
        return self._bounded(by_decile_figure(deciles, self.sources.judged_levels))

    def by_lead(self) -> go.Figure:
        return self._bounded(loss_by_lead_figure(self._there(self.findings.leads, "several forecasts of one date")))

    def calibration(self) -> go.Figure:
        return calibration_figure(self.findings.calibration)

    def width(self) -> go.Figure:
        if not self.findings.widths.height:
            raise ConfigError("a width needs two quantile levels; forecast more than one")
        return self._bounded(width_figure(self.findings.horizons))

    def volatility(self) -> go.Figure:
        return volatility_figure(self._there(self.findings.process, "two levels and several forecasts of one date"))

    # -- of one item ---------------------------------------------------------------------------------------------------

    def fan(self, id: Any, cutoff: Any = None, model: str | None = None) -> go.Figure:
        """History and quantiles, with promotions and holidays: the coming steps, or what was forecast from a cutoff."""
        if self._coming is not None and cutoff is None and model is None:
            part = self._coming(id)
            model = part.first_model
        else:
            part, model = self._item(id), self._model(model)
        return self._fan(part, id, self._cutoff(part, cutoff), model)

    def what_if(self, id: Any, future: Any) -> go.Figure:
        """The fan of an item's coming steps, and the medians of changed plans: rows that change, or {name: rows}."""
        if self._coming is None or self._what_if is None:
            raise ConfigError("there is no forecaster to ask; call what_if of a Forecaster's plot")
        part = self._coming(id)
        table = pl.DataFrame(nw.from_native(self._what_if(future), eager_only=True).to_arrow())
        of_item = table.filter(pl.col(table.columns[0]).cast(pl.String) == str(id)).sort("horizon")
        if of_item.is_empty():
            raise ConfigError(f"no row of item {str(id)!r} changes; give some")
        figure = self._fan(part, id, self._cutoff(part, None), part.first_model)
        level = min(part.levels, key=lambda one: abs(one - 0.5))
        changes = [
            name for name in of_item.columns if name.startswith(quantile_column(level)) and name.endswith("_change")
        ]
        for i, name in enumerate(changes, start=1):
            scenario = name.removesuffix("_change").removeprefix(quantile_column(level)).removeprefix("_")
            figure.add_scatter(
                x=of_item[table.columns[2]].to_list(),
                y=of_item[name.removesuffix("_change")].to_list(),
                name=plain(f"{scenario or 'what if'}, {percentile(level)}"),
                mode="lines",
                line={"color": colour(i), "dash": dash(i), "width": 2.5},
            )
        return figure

    def _fan(self, part: Sources, id: Any, at: Any, model: str) -> go.Figure:
        forecasts, actuals = part.rows[model].to_polars(), part.observed.to_polars().drop_nulls()
        fan = forecasts.filter(cutoff=at).sort("ds").drop("unique_id", "cutoff", "horizon")
        before = actuals.filter(pl.col("ds") <= at).tail(SHOWN_HISTORY)
        history = pl.concat([before, actuals.filter(pl.col("ds").is_between(at, fan["ds"].max(), closed="right"))])
        shown = set(history["ds"].to_list()) | set(fan["ds"].to_list())
        flags = {}
        if part.promotions is not None:
            marked = part.promotions
            flags = {name: marked.filter(pl.col(name))["ds"].to_list() for name in marked.columns[2:]}
        inside = [
            {name: [day for day in days if day in shown] for name, days in marks.items()}
            for marks in (flags, part.events)
        ]
        marks = ({name: days for name, days in marks.items() if days} for marks in inside)
        return bounded_at(fan_figure(history, fan, str(id), *marks), _largest(part))

    def evolution(self, id: Any, ds: Any) -> go.Figure:
        """How the forecast of one date moved as it approached, and what it came to."""
        part = self._item(id)
        date = self._date(part, "ds", ds)
        frames = {
            model: table.to_polars().filter(ds=date).drop("unique_id", "ds", "horizon")
            for model, table in part.rows.items()
        }
        first = self.sources.first_model
        frames = {first: frames.pop(first)} | frames
        actual = part.observed.to_polars().filter(ds=date)["y"].to_list()
        return bounded_at(evolution_figure(frames, actual[0] if actual else None, str(id), date), _largest(part))

    def attention(self, id: Any, cutoff: Any = None, model: str | None = None) -> go.Figure:
        """Past date × horizon: what the forecasts of one cutoff look at."""
        at = self._cutoff(self._item(id), cutoff)
        return attention_figure(self._weights(id, model, at), str(id), self.sources.events)

    def revision(self, id: Any, ds: Any, cutoff: Any = None, model: str | None = None) -> go.Figure:
        """What a date's forecast looked at before and after a cutoff (left out: the last with two)."""
        part = self._item(id)
        date = self._date(part, "ds", ds)
        cutoffs = part.first.to_polars().filter(ds=date)["cutoff"].sort().to_list()
        at = cutoffs[-1] if cutoff is None else self._date(part, "cutoff", cutoff)
        if at not in cutoffs[1:]:
            raise ConfigError(f"{ds} was not forecast both at {at} and before; give a later cutoff, or another date")
        both = [self._weights(id, model, each) for each in (cutoffs[cutoffs.index(at) - 1], at)]
        before, after = (weights.filter(pl.col(weights.columns[2]) == date) for weights in both)
        return revision_figure(before, after, str(id), date)

    # -- of the network ------------------------------------------------------------------------------------------------

    def encodings(self, model: str | None = None) -> go.Figure:
        encodings = self._trained(model).encodings
        return encodings_figure(self._there(encodings, "a network that learns positions (mqt …)"), self.sources.events)

    def learning_curve(self) -> go.Figure:
        return learning_curve({name: list(one.metrics) for name, one in self.sources.trained.items()})

    # -- inside --------------------------------------------------------------------------------------------------------

    def _bounded(self, figure: go.Figure) -> go.Figure:
        return bounded(figure, self.findings.suspicious)

    def _there(self, table: pl.DataFrame | None, needs: str) -> pl.DataFrame:
        if table is None:
            raise ConfigError(f"there is nothing to draw: it needs {needs}")
        return table

    def _model(self, model: str | None) -> str:
        if model is not None and model not in self.sources.models:
            raise ConfigError(f"there is no model {model!r}{nearest(model, self.sources.models)}")
        return model or self.sources.first_model

    def _trained(self, model: str | None) -> Trained:
        name = self._model(model)
        if name not in self.sources.trained:
            raise ConfigError(f"{name} is not a trained network; there is nothing to show")
        return self.sources.trained[name]

    def _weights(self, id: Any, model: str | None, cutoff: Any) -> pl.DataFrame:
        explain = self._trained(model).explain
        if explain is None:
            raise ConfigError(f"{self._model(model)} has no attention to explain; fit mqt, mqt-nods or mqt-all")
        weights = explain([str(id)])
        at_cutoff = weights if weights.is_empty() else weights.filter(pl.col("cutoff") == cutoff)
        if at_cutoff.is_empty():
            raise ConfigError(f"the network that forecast {str(id)!r} from {cutoff} is not kept; give a later cutoff")
        return at_cutoff

    def _item(self, id: Any) -> Sources:
        if str(id) not in self.sources.ids:
            raise ConfigError(f"no item {str(id)!r}{nearest(str(id), self.sources.ids)} was forecast")
        return self.sources.of_items([str(id)])

    def _cutoff(self, part: Sources, cutoff: Any) -> Any:
        return part.first.to_polars()["cutoff"].max() if cutoff is None else self._date(part, "cutoff", cutoff)

    def _date(self, part: Sources, column: str, date: Any) -> Any:
        rows = part.first
        time, known = as_time(date, rows.clock), rows.cutoff if column == "cutoff" else rows.time
        if time not in known:
            first, last = show_time(int(known.min())), show_time(int(known.max()))
            what = "cutoff" if column == "cutoff" else "date that was forecast"
            raise ConfigError(f"{date} is no {what}; they go from {first} to {last}")
        return rows.clock.dates(np.array([time])).to_list()[0]


def _largest(part: Sources) -> float:
    """The largest value ever sold, in size; 0 if nothing was."""
    return float(np.nanmax(np.abs(part.observed.value), initial=0))
