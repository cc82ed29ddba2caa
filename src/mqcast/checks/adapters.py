"""Anything that forecasts, seen alike: a Forecaster, an object with fit and predict, a function of a frame."""

import copy
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from mqcast.checks.data import Data
from mqcast.errors import ConfigError
from mqcast.forecaster import Forecaster

SIDE_TABLES = ("static", "events")


class Subject(Protocol):
    """What the checks ask of a forecaster."""

    name: str
    thing: Any
    has_training: bool  # may it be trained, again and again, by the checks?
    takes_cutoff: bool

    def fit(self, data: Data) -> "Subject":
        """A new one that has been trained on the data; itself, where there is nothing to train."""
        ...

    def fresh(self) -> "Subject":
        """One of the same settings that has seen nothing."""
        ...

    def forecast(self, data: Data, cutoff: Any = None) -> Any: ...

    def call(self, verb: str, data: Data, **arguments: Any) -> Any:
        """Another of its verbs, on the data."""
        ...


class FunctionSubject:
    """A function f(frame, horizon), or f(frame, horizon, cutoff=…)."""

    has_training = False

    def __init__(self, thing: Callable[..., Any], horizon: int):
        self.thing, self.horizon = thing, horizon
        self.name = getattr(thing, "__name__", type(thing).__name__)
        self.takes_cutoff = "cutoff" in _parameters(thing)

    def fit(self, data: Data) -> "FunctionSubject":
        return self

    def fresh(self) -> "FunctionSubject":
        return self

    def forecast(self, data: Data, cutoff: Any = None) -> Any:
        return self.thing(data.frame(), self.horizon, **({} if cutoff is None else {"cutoff": cutoff}))

    def call(self, verb: str, data: Data, **arguments: Any) -> Any:
        raise AttributeError(f"a function has no {verb}")


class ObjectSubject:
    """An object with fit(frame) and predict(frame); static=, events=, horizon= and cutoff= are given where taken."""

    def __init__(self, thing: Any, horizon: int, is_fitted: bool):
        self.thing, self.horizon = thing, horizon
        self.name = f"Forecaster {thing.model!r}" if isinstance(thing, Forecaster) else type(thing).__name__
        self.has_training = not is_fitted
        self.takes_cutoff = "cutoff" in _parameters(thing.predict)

    def fit(self, data: Data) -> "ObjectSubject":
        if not self.has_training:
            return self
        made = self.fresh()
        made.thing.fit(data.frame(), **made._arguments(made.thing.fit, data))
        return made

    def fresh(self) -> "ObjectSubject":
        return ObjectSubject(_copy(self.thing), self.horizon, is_fitted=True)

    def forecast(self, data: Data, cutoff: Any = None) -> Any:
        return self.call("predict", data, **({} if cutoff is None else {"cutoff": cutoff}))

    def call(self, verb: str, data: Data, **arguments: Any) -> Any:
        method = getattr(self.thing, verb)
        return method(data.frame(), **self._arguments(method, data), **arguments)

    def _arguments(self, method: Callable[..., Any], data: Data) -> dict[str, Any]:
        takes = _parameters(method)
        tables = {name: data.frame_types.to_native(table, data.schema.id) for name, table in _tables(data).items()}
        return {name: value for name, value in ({"horizon": self.horizon} | tables).items() if name in takes}


def subject_of(thing: Any, horizon: int) -> Subject:
    if hasattr(thing, "fit") and hasattr(thing, "predict"):
        return ObjectSubject(thing, horizon, is_fitted(thing))
    if callable(thing):
        return FunctionSubject(thing, horizon)
    raise ConfigError(
        f"{type(thing).__name__} is no forecaster; give one with fit and predict, or a function f(frame, horizon)"
    )


def is_fitted(thing: Any) -> bool:
    """Does it say that it is fitted? Then the checks do not train it again."""
    says = getattr(thing, "__sklearn_is_fitted__", None)
    return bool(says()) if says is not None and not isinstance(thing, type) else False


def _copy(thing: Any) -> Any:
    if isinstance(thing, Forecaster):
        return Forecaster(**thing.get_params() | {"folder": None, "verbose": False})
    if hasattr(thing, "get_params"):
        return type(thing)(**thing.get_params(deep=False))
    return copy.deepcopy(thing)


def _tables(data: Data) -> dict[str, Any]:
    tables = {name: getattr(data, name) for name in SIDE_TABLES}
    return {name: table for name, table in tables.items() if table is not None}


def _parameters(method: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(method).parameters)
    except (TypeError, ValueError):
        return set()
