"""mqcast: quantile demand forecasts from every creation time in one pass."""

from mqcast.data.panel import Panel, pack
from mqcast.data.schema import Schema
from mqcast.errors import ArtifactError, ConfigError, DataError, MqcastError, SchemaError
from mqcast.evaluation import compare, evaluate, exceptions, implausible, volatility
from mqcast.forecaster import Forecaster
from mqcast.version import __version__ as __version__

__all__ = [
    "ArtifactError",
    "ConfigError",
    "DataError",
    "Forecaster",
    "MqcastError",
    "Panel",
    "Schema",
    "SchemaError",
    "compare",
    "evaluate",
    "exceptions",
    "implausible",
    "pack",
    "volatility",
]
