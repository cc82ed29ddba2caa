# pyright: strict
"""What a model is, which models there are, and how to register your own."""

from mqcast.models.outside import forecast_each
from mqcast.models.protocol import FittedModel, Model, TrainOptions
from mqcast.models.registry import BASELINE, DEFAULT, get, names, register, register_frame, unregister

__all__ = [
    "BASELINE",
    "DEFAULT",
    "FittedModel",
    "Model",
    "TrainOptions",
    "forecast_each",
    "get",
    "names",
    "register",
    "register_frame",
    "unregister",
]
