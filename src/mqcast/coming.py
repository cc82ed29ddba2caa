"""What a page on the coming steps says beside the forecast: what was warned of, and what the forecast rests on."""

import warnings
from collections.abc import Callable
from typing import Any

import polars as pl

from mqcast.data.panel import Panel
from mqcast.errors import ImplausibleForecastWarning, MqcastWarning, warn
from mqcast.models.protocol import CanDescribe, FittedModel, HasLeaderboard, TrainOptions
from mqcast.report.coming_page import Basis

SHOWN = {
    "window": ("history",),
    "scaling": ("by", "log1p"),
    "model": ("hidden_dim", "lookback", "dropout"),
    "train": ("max_steps", "learning_rate"),
}


def heard(make: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call gives, and what mqcast warned of meanwhile; the warnings are given again."""
    result, caught = recorded(make)
    for one in caught:
        warn(str(one.message), one.category)
    ours = [one for one in caught if issubclass(one.category, MqcastWarning)]
    return result, [str(one.message) for one in ours if not issubclass(one.category, ImplausibleForecastWarning)]


def recorded(make: Callable[[], Any]) -> tuple[Any, list[warnings.WarningMessage]]:
    """What a call gives, and the warnings that it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return make(), caught


def basis_of(
    model: str, options: TrainOptions, fitted: FittedModel, panel: Panel, is_new: bool, cutoff: Any, warned: list[str]
) -> Basis:
    """What the forecast rests on: the model, its training, the settings that matter most, its members.

    is_new: the panel is not the one that the model was fitted with.
    """
    config = getattr(fitted, "config", None)
    facts = {"trained on": "other data: those it was fitted with" if is_new else "these data"}
    full = ""
    if isinstance(fitted, CanDescribe):
        trained = fitted.describe(panel, cutoff, cutoff)
        facts |= {name: text for name, text in trained.facts.items() if name != "model"}
        full = trained.config
    if config is not None:
        chosen = {f"{t}.{name}": getattr(getattr(config, t), name) for t, names in SHOWN.items() for name in names}
        facts["settings"] = ", ".join(f"{name} = {value}" for name, value in chosen.items())
    if options.max_minutes is not None:
        facts["time to train"] = f"at most {options.max_minutes:g} minutes"
    tables: dict[str, pl.DataFrame] = {}
    if isinstance(fitted, HasLeaderboard):
        tables["Members, by their loss on held-out dates relative to seasonal naive"] = fitted.leaderboard
    return Basis(model, facts, tables, full, warned)
