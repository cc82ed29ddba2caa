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
from mqcast.forecast.frames import plan_cutoffs, rows_frame
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
        series, cutoff = self._wanted(panel, first, last)
        times = panel.times_at(series, cutoff, 1)[:, 0]
        self._require(table, np.unique(times))
        table = table.where(np.isin(table.cutoff, times))
        columns = {
            panel.schema.id: pl.Series(table.ids, dtype=pl.String).gather(table.item),
            "cutoff": panel.axis.dates(table.cutoff),
            panel.schema.time: panel.axis.dates(table.time),
            "horizon": pl.Series(table.lead, dtype=pl.Int32),
        }
        values = {quantile_column(level): table.quantiles[:, i] for i, level in enumerate(table.levels)}
        published = rows_frame(panel, series, cutoff, np.zeros((len(series), self.options.horizon, 0)), ())
        keys = [panel.schema.id, "cutoff", "horizon"]
        return pl.DataFrame(columns | values).join(published, on=keys, how="semi", maintain_order="left")

    def files(self) -> dict[str, bytes]:
        packed = io.BytesIO()
        pl.DataFrame(self.frame).write_parquet(packed)
        return {FILE: packed.getvalue()}

    def load(self, folder: Path, options: TrainOptions) -> "GivenForecasts":
        return GivenForecasts(self.name, pl.read_parquet(folder / FILE), options)

    def _wanted(self, panel: Panel, first: Any, last: Any) -> tuple[np.ndarray, np.ndarray]:
        """The series and cutoffs (as steps) that any model would forecast."""
        assert self.options is not None
        window = WindowConfig(horizon=self.options.horizon, history=1, num_fcts=1)
        plan: CutoffPlan = plan_cutoffs(window, panel, first, last)
        steps = plan.first_fct[:, None] + np.arange(int((plan.last_fct - plan.first_fct).max()) + 1)
        row, column = np.nonzero(steps <= plan.last_fct[:, None])
        return plan.series[row], steps[row, column]

    def _require(self, table: ForecastTable, cutoffs: np.ndarray) -> None:
        assert self.options is not None
        for cutoff in cutoffs:
            leads = table.lead[table.cutoff == cutoff]
            if len(np.unique(leads)) < self.options.horizon:
                has = "nothing" if not len(leads) else f"{len(np.unique(leads))} of {self.options.horizon} steps"
                raise ConfigError(
                    f"model {self.name!r}: the table has {has} from cutoff {show_time(int(cutoff))}; add its forecasts"
                )
