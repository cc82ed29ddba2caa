"""A table of forecasts as a model: those of another program, or of a planner, looked up by cutoff."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.cutoffs import CutoffPlan
from mqcast.data.frequency import show_time
from mqcast.data.panel import Panel
from mqcast.errors import ConfigError
from mqcast.evaluation.reading import read_forecasts
from mqcast.evaluation.tables import ForecastTable, Names
from mqcast.forecast.frames import plan_cutoffs
from mqcast.levels import quantile_column
from mqcast.models.protocol import TrainOptions
from mqcast.settings import WindowConfig

FILE = "forecasts.parquet"


@dataclass(frozen=True)
class GivenForecasts:
    """The forecasts that a table has; it learns nothing, and forecasts from no other cutoff."""

    name: str
    frame: Any
    options: TrainOptions | None = None

    def __call__(self) -> "GivenForecasts":
        return self

    def fit(self, panel: Panel, options: TrainOptions) -> "GivenForecasts":
        return GivenForecasts(self.name, self.frame, options)

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        assert self.options is not None
        table = read_forecasts(self.frame, Names.of(panel.schema), what=f"the forecasts of {self.name!r}")
        table = table.at_levels(self.options.quantiles)
        known = np.isin(np.array(table.ids), panel.ids.to_pylist())[table.item]
        table = table.where(known & (table.lead <= self.options.horizon))
        cutoffs = self._cutoffs(panel, first, last)
        self._require(table, cutoffs)
        table = table.where(np.isin(table.cutoff, cutoffs))
        columns = {
            panel.schema.id: pl.Series(table.ids, dtype=pl.String).gather(table.item),
            "cutoff": panel.axis.dates(table.cutoff),
            panel.schema.time: panel.axis.dates(table.time),
            "horizon": pl.Series(table.lead, dtype=pl.Int32),
        }
        values = {quantile_column(level): table.quantiles[:, i] for i, level in enumerate(table.levels)}
        return pl.DataFrame(columns | values)

    def files(self) -> dict[str, bytes]:
        packed = io.BytesIO()
        pl.DataFrame(self.frame).write_parquet(packed)
        return {FILE: packed.getvalue()}

    def load(self, folder: Path, options: TrainOptions) -> "GivenForecasts":
        return GivenForecasts(self.name, pl.read_parquet(folder / FILE), options)

    def _cutoffs(self, panel: Panel, first: Any, last: Any) -> np.ndarray:
        """The times of the cutoffs that were asked for."""
        assert self.options is not None
        window = WindowConfig(horizon=self.options.horizon, history=1, num_fcts=1)
        plan: CutoffPlan = plan_cutoffs(window, panel, first, last)
        longest = int((plan.last_fct - plan.first_fct).max()) + 1
        times = panel.times_at(plan.series, plan.first_fct, longest)
        return np.unique(times[np.arange(longest) <= (plan.last_fct - plan.first_fct)[:, None]])

    def _require(self, table: ForecastTable, cutoffs: np.ndarray) -> None:
        assert self.options is not None
        for cutoff in cutoffs:
            leads = table.lead[table.cutoff == cutoff]
            if len(np.unique(leads)) < self.options.horizon:
                has = "nothing" if not len(leads) else f"{len(np.unique(leads))} of {self.options.horizon} steps"
                raise ConfigError(
                    f"model {self.name!r}: the table has {has} from cutoff {show_time(int(cutoff))}; add its forecasts"
                )
