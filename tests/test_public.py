"""The public face: what is exported, and what importing it costs."""

import subprocess
import sys

import mqcast
from mqcast import errors


def test_the_public_names_are_pinned():
    assert mqcast.__all__ == [
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
    assert all(hasattr(mqcast, name) for name in mqcast.__all__)


def test_importing_mqcast_does_not_import_torch():
    code = "import sys, mqcast, mqcast.cli, mqcast.simulate, mqcast.evaluation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_error_is_one_of_ours_and_drawn_in_the_tree():
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, (errors.MqcastError, errors.MqcastWarning))
            assert name in (errors.__doc__ or "")
