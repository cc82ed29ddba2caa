"""mqcast: quantile demand forecasts from every creation time in one pass."""
# pyright: strict

from importlib import import_module
from typing import TYPE_CHECKING

from mqcast.errors import ArtifactError, ConfigError, DataError, MqcastError, SchemaError
from mqcast.version import __version__ as __version__

if TYPE_CHECKING:
    from mqcast.calibration import Calibrator, calibrate
    from mqcast.data.panel import Panel, pack
    from mqcast.data.schema import Schema
    from mqcast.decide import Hierarchy, Policy, orders, reconcile, replay, totals
    from mqcast.evaluation import compare, evaluate, implausible, rank_revisions, volatility
    from mqcast.first_forecast import quick
    from mqcast.forecaster import Forecaster

__all__ = [
    "ArtifactError",
    "Calibrator",
    "ConfigError",
    "DataError",
    "Forecaster",
    "Hierarchy",
    "MqcastError",
    "Panel",
    "Policy",
    "Schema",
    "SchemaError",
    "calibrate",
    "compare",
    "evaluate",
    "implausible",
    "orders",
    "pack",
    "quick",
    "rank_revisions",
    "reconcile",
    "replay",
    "totals",
    "volatility",
]

# Imported on first use: polars, pyarrow and pydantic take several times as long as everything else together.
_MODULES = {
    "Calibrator": "mqcast.calibration",
    "Forecaster": "mqcast.forecaster",
    "Hierarchy": "mqcast.decide",
    "Panel": "mqcast.data.panel",
    "Policy": "mqcast.decide",
    "Schema": "mqcast.data.schema",
    "calibrate": "mqcast.calibration",
    "compare": "mqcast.evaluation",
    "evaluate": "mqcast.evaluation",
    "exceptions": "mqcast.evaluation",  # deprecated
    "implausible": "mqcast.evaluation",
    "orders": "mqcast.decide",
    "pack": "mqcast.data.panel",
    "quick": "mqcast.first_forecast",
    "rank_revisions": "mqcast.evaluation",
    "reconcile": "mqcast.decide",
    "replay": "mqcast.decide",
    "totals": "mqcast.decide",
    "volatility": "mqcast.evaluation",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
