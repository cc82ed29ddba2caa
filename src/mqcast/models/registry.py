# pyright: strict, reportUnnecessaryIsInstance=false
"""Models by name: the networks of the family, trees, seasonal naive, means of several models, registered classes."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from mqcast.errors import ConfigError, quoted
from mqcast.models.ensemble import MeanOf
from mqcast.models.networks import NetworkModel
from mqcast.models.outside import OutsideModel
from mqcast.models.protocol import Model
from mqcast.models.seasonal_naive import SeasonalNaive
from mqcast.settings import FAMILY, nearest

BASELINE = "seasonal-naive"  # part of every report
DEFAULT = "mqt"
MOST_MEMBERS = 100


def _trees() -> Model:
    from mqcast.models.boost import BoostedTrees

    return BoostedTrees()


_OWN: dict[str, Callable[[], Model]] = {BASELINE: SeasonalNaive, "lightgbm": _trees}
_COMBINED: dict[str, Callable[[list[Model]], Model]] = {"mean_of": MeanOf}
_OUTSIDE: dict[str, Callable[[], Any]] = {}
_CALL = re.compile(r"(\w+)\((.*)\)")


def names() -> tuple[str, ...]:
    """All names that `get` knows, apart from means such as `mean_of(mqt, 3)` and `mean_of(mqt, mqcnn)`."""
    return (*FAMILY, *_OWN, *_OUTSIDE)


def get(name: Any) -> Model:
    """The model with this name."""
    if not isinstance(name, str):
        raise _unknown(name)
    if call := _CALL.fullmatch(name.strip()):
        return _combined(name, call[1], [part.strip() for part in call[2].split(",")])
    if name in FAMILY:
        return NetworkModel(name)
    if name in _OUTSIDE:
        return OutsideModel(name, _OUTSIDE[name])
    if name in _OWN:
        return _OWN[name]()
    raise _unknown(name)


def register(name: str) -> Callable[[Any], Any]:
    """A decorator that registers a class with `fit` and `forecast` as a model.

    See docs/models.md for the optional methods. A name can be registered only once.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"{quoted(name)} cannot be the name of a model; use letters, digits, '-', '_' and '.'")
    if name in names():
        raise ConfigError(f"there is already a model {name!r}; choose another name")

    def add(kind: Any) -> Any:
        if missing := [verb for verb in ("fit", "forecast") if not callable(getattr(kind, verb, None))]:
            raise ConfigError(f"{kind!r} has no {' and no '.join(missing)}; a model needs both")
        _OUTSIDE[name] = kind
        return kind

    return add


def unregister(name: str) -> None:
    """Forget a model that was registered."""
    _OUTSIDE.pop(name, None)


def _combined(name: str, how: str, members: list[str]) -> Model:
    """`mean_of(mqt, 3)`: a number repeats the member before it."""
    if how not in _COMBINED:
        raise ConfigError(
            f"there is no model {name!r}; combine models by {', '.join(_COMBINED)}, such as mean_of(mqt, 3)"
        )
    listed: list[str] = []
    for before, part in pairwise(["", *members]):
        if part.isdecimal() and before in names() and 2 <= int(part) <= MOST_MEMBERS:
            listed += [before] * (int(part) - 1)
        elif part:
            listed.append(part)
    if not 2 <= len(listed) <= MOST_MEMBERS:
        raise ConfigError(f"{name} has {len(listed)} members; name from 2 to {MOST_MEMBERS}, such as {how}(mqt, 3)")
    return _COMBINED[how]([get(member) for member in listed])


def _unknown(name: Any) -> ConfigError:
    return ConfigError(
        f"model is {quoted(name)}{nearest(name, names())}; there are {', '.join(names())}, and mean_of(mqt, 3)"
    )
