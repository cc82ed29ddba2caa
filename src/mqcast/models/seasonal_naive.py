"""Seasonal naive as a model: it learns nothing and repeats the past of each series."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from mqcast.data.panel import Panel
from mqcast.forecast.baselines import seasonal_naive
from mqcast.models.protocol import TrainOptions


@dataclass(frozen=True)
class FittedSeasonalNaive:
    horizon: int
    quantiles: tuple[float, ...]
    context: int | None = None

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        return seasonal_naive(panel, self.horizon, self.quantiles, first=first, last=last)

    def files(self) -> dict[str, bytes]:
        return {}


class SeasonalNaive:
    def fit(self, panel: Panel, options: TrainOptions) -> FittedSeasonalNaive:
        return FittedSeasonalNaive(options.horizon, options.quantiles)

    def load(self, folder: Path, options: TrainOptions) -> FittedSeasonalNaive:
        return FittedSeasonalNaive(options.horizon, options.quantiles)
