"""The command line: parse, call one verb, print."""

from mqcast.cli import calibration, check, data, decide, doctor, forecasts, judge, quick, train  # noqa: F401
from mqcast.cli.app import app, main

__all__ = ["app", "main"]
