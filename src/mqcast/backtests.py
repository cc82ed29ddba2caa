# pyright: strict
"""A backtest: models that are trained only on what was known, their forecasts, and what a report takes from both."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import narwhals as nw
import polars as pl

from mqcast import models, process
from mqcast.data.panel import Panel
from mqcast.data.windows import as_time
from mqcast.evaluation.reading import read_forecasts
from mqcast.evaluation.tables import Names
from mqcast.forecast.frames import check_cutoffs, first_and_last_cutoff, refit_parts
from mqcast.joint.dependence import Dependence
from mqcast.joint.spans import totals_in
from mqcast.joint_forecasts import dependence_for, usual_spans
from mqcast.models.protocol import CanDescribe, FittedModel, HasSpans, Model, TrainOptions

if TYPE_CHECKING:
    from mqcast.report.sources import Sources

TOGETHER = 1 - 1e-6  # a correlation at which quantiles add up


@dataclass(frozen=True)
class Backtest:
    """What a backtest was made from: the data, the options, and the last fitted model with its cutoffs."""

    panel: Panel
    model: str
    options: TrainOptions
    fitted: FittedModel
    first: Any
    last: Any

    def sources(self, forecasts: Any) -> "Sources":
        """The forecasts beside those of seasonal naive, for figures and reports."""
        with process.importing():
            from mqcast.report.sources import Sources

        cutoffs: Any = nw.from_native(forecasts, eager_only=True)["cutoff"]
        naive = models.get(models.BASELINE).fit(self.panel, self.options)
        frames = {self.model: forecasts}
        frames.setdefault(models.BASELINE, naive.forecast(self.panel, cutoffs.min(), cutoffs.max()))
        trained: Mapping[str, Any] = {}
        if isinstance(self.fitted, CanDescribe):
            trained = {self.model: self.fitted.describe(self.panel, self.first, self.last)}
        return Sources.of(frames, panel=self.panel, trained=trained, totals=self._totals(forecasts))

    def _totals(self, forecasts: Any) -> dict[str, pl.DataFrame]:
        """Totals over spans from the cutoffs of the last fit, if it has learnt how steps go together."""
        spans = usual_spans(self.fitted, self.options.horizon)
        if not spans:
            return {}
        table, levels = read_forecasts(forecasts, Names.of(self.panel.schema)), self.options.quantiles
        table = table.where(table.cutoff >= as_time(self.first, self.panel.axis))
        dependence = dependence_for(self.fitted, self.panel, self.options.horizon, self.first)
        found = {f"{self.model}, by paths": totals_in(table, spans, dependence, levels)}
        if isinstance(self.fitted, HasSpans) and (own := self.fitted.spans):
            found[f"{self.model}, by heads"] = self.fitted.forecast_spans(self.panel, own, self.first, self.last)
        together = Dependence.constant(self.options.horizon, TOGETHER)
        return found | {f"{self.model}, summed quantiles": totals_in(table, spans, together, levels)}


def run_backtest(
    name: str, model: Model, options: TrainOptions, panel: Panel, start: Any, end: Any, refit: int | None
) -> tuple[pl.DataFrame, Backtest]:
    """Forecasts from every cutoff, by models trained up to the first cutoff of their part."""
    start, end = first_and_last_cutoff(panel, start, end, options.horizon)
    check_cutoffs(panel, start, end, options.horizon)  # fail before the training, not after it
    frames: list[pl.DataFrame] = []
    backtest: Backtest | None = None
    for first, last in refit_parts(panel, start, end, refit):
        fitted = model.fit(panel, replace(options, until=first))
        frames.append(fitted.forecast(panel, first, last))
        backtest = Backtest(panel, name, options, fitted, first, last)
    assert backtest is not None
    return pl.concat(frames).sort(panel.schema.id, "cutoff", panel.schema.time), backtest
