"""Judging any forecaster's frames: frames in, tables out; no torch."""
# pyright: strict

from typing import TYPE_CHECKING

from mqcast.errors import warn
from mqcast.evaluation.comparison import Comparison, compare, loss_by_lead
from mqcast.evaluation.converters import (
    from_autogluon,
    from_chronos,
    from_darts,
    from_gluonts,
    from_neuralforecast,
)
from mqcast.evaluation.implausible_forecasts import Implausible, implausible
from mqcast.evaluation.martingale import Volatility, volatility
from mqcast.evaluation.metrics import evaluate
from mqcast.evaluation.ranking import rank_revisions
from mqcast.evaluation.reading import read_actuals, read_forecasts
from mqcast.evaluation.stabilise import MartingaleFilter, ensemble, trade_off
from mqcast.evaluation.tables import ActualsTable, ForecastTable, Names

__all__ = [
    "ActualsTable",
    "Comparison",
    "ForecastTable",
    "Implausible",
    "MartingaleFilter",
    "Names",
    "Volatility",
    "compare",
    "ensemble",
    "evaluate",
    "from_autogluon",
    "from_chronos",
    "from_darts",
    "from_gluonts",
    "from_neuralforecast",
    "implausible",
    "loss_by_lead",
    "rank_revisions",
    "read_actuals",
    "read_forecasts",
    "trade_off",
    "volatility",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "exceptions":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warn("exceptions is now rank_revisions, and this name will go; use the new one", DeprecationWarning)
        return rank_revisions
