"""mqcast: quantile demand forecasts from every creation time in one pass."""

from mqcast.data.panel import Panel, pack
from mqcast.data.schema import Schema
from mqcast.errors import ArtifactError, ConfigError, DataError, MqcastError, SchemaError

__version__ = "0.1.0.dev0"
__all__ = [
    "ArtifactError",
    "ConfigError",
    "DataError",
    "MqcastError",
    "Panel",
    "Schema",
    "SchemaError",
    "pack",
]
