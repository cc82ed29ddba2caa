# pyright: strict, reportUnnecessaryIsInstance=false
"""Models by name: the networks of the family, trees, smoothing, naive, combinations of models, and registered ones."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from mqcast.data.source import read_table
from mqcast.errors import ConfigError, SchemaError, SourceError, quoted
from mqcast.models.auto import Auto
from mqcast.models.calibrated import CalibratedModel
from mqcast.models.ensemble import MeanOf
from mqcast.models.given import GivenForecasts
from mqcast.models.networks import NetworkModel
from mqcast.models.outside import OutsideModel
from mqcast.models.protocol import ChecksOptions, Model, TrainOptions
from mqcast.models.seasonal_naive import SeasonalNaive
from mqcast.models.smoothing import Smoothing
from mqcast.settings import FAMILY, nearest

BASELINE = "seasonal-naive"  # part of every report
DEFAULT = "mqt"
AUTO = "auto"
AUTO_MEMBERS = ("mqt", "lightgbm", "smoothing", BASELINE)
MOST_MEMBERS = 100
Members = list[tuple[str, Model]]


def _trees() -> Model:
    from mqcast.models.boost import BoostedTrees

    return BoostedTrees()


_OWN: dict[str, Callable[[], Model]] = {
    BASELINE: SeasonalNaive,
    "smoothing": Smoothing,
    "lightgbm": _trees,
    AUTO: lambda: _combined(AUTO, AUTO, _auto_members()),
}
_COMBINED: dict[str, tuple[Callable[[Members], Model], int, int]] = {  # the fewest and the most members
    "mean_of": (lambda members: MeanOf([model for _, model in members]), 2, MOST_MEMBERS),
    AUTO: (lambda members: Auto(_numbered(members)), 1, MOST_MEMBERS),
    "calibrated": (lambda members: CalibratedModel(*members[0]), 1, 1),
}
_OUTSIDE: dict[str, Callable[[], Any]] = {}
_CALL = re.compile(r"(\w+)\((.*)\)")


def names() -> tuple[str, ...]:
    """All names that `get` knows, apart from combinations such as `mean_of(mqt, 3)` and `auto(mqt, mqcnn)`.

    >>> from mqcast import models
    >>> models.names()[:2]
    ('mqt', 'mqt-nods')
    """
    return (*FAMILY, *_OWN, *_OUTSIDE)


def get(name: Any) -> Model:
    """The model with this name.

    >>> from mqcast import models
    >>> hasattr(models.get("mean_of(seasonal-naive, 2)"), "fit")
    True
    """
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


def check(name: str, model: Model, options: TrainOptions) -> None:
    """Raise if the model cannot be fitted with these options."""
    given = {setting: value for layer in options.layers for setting, value in layer.items()}
    if given.get("model.spans") and not isinstance(model, NetworkModel):
        raise ConfigError(
            f"{name} has no totals of its own, those of model.spans; leave these out, and totals come from paths, or "
            f"fit one of {', '.join(FAMILY)}"
        )
    if isinstance(model, ChecksOptions):
        model.check(options)


def register(name: str) -> Callable[[Any], Any]:
    """A decorator that registers a class with `fit` and `forecast` as a model.

    See docs/models.md for the optional methods. A name can be registered only once.

    >>> from mqcast import models
    >>> @models.register("my-model")
    ... class MyModel:
    ...     def fit(self, panel, options):
    ...         self.options = options
    ...     def forecast(self, panel, first=None, last=None): ...  # see forecast_each
    ...
    >>> "my-model" in models.names()
    True
    >>> models.unregister("my-model")
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


def register_frame(name: str, frame: Any) -> None:
    """Register a table of forecasts as a model: id, cutoff, date, horizon and quantiles, or a file of it.

    Forecasts are looked up by cutoff. One that the table does not have is an error.

    >>> from mqcast import models
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> models.register_frame("planner", forecasts)
    >>> "planner" in models.names()
    True
    >>> models.unregister("planner")
    """
    try:
        table = read_table(frame, "the forecasts")
    except (SchemaError, SourceError) as error:
        text = f"{quoted(frame)} is no table of forecasts ({error}); give a frame or a file"
        raise ConfigError(text) from None
    register(name)(GivenForecasts(name, table))


def unregister(name: str) -> None:
    """Forget a model that was registered.

    >>> from mqcast import models
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> models.register_frame("planner", forecasts)
    >>> models.unregister("planner")
    >>> "planner" in models.names()
    False
    """
    _OUTSIDE.pop(name, None)


def _auto_members() -> list[str]:
    """The default members of auto, without those whose package is not installed."""
    return [name for name in AUTO_MEMBERS if name in names() and (name != "lightgbm" or find_spec(name) is not None)]


def _numbered(members: Members) -> dict[str, Model]:
    """Members by name; the second of a name is `mqt 2`."""
    found: dict[str, Model] = {}
    for i, (name, model) in enumerate(members):
        number = sum(other == name for other, _ in members[: i + 1])
        found[name if number == 1 else f"{name} {number}"] = model
    return found


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
    combine, fewest, most = _COMBINED[how]
    if not fewest <= len(listed) <= most:
        wanted = f"from {fewest} to {most}, such as {how}(mqt, 3)" if most > 1 else f"one, such as {how}(mqt)"
        raise ConfigError(f"{name} has {len(listed)} members; name {wanted}")
    if nested := [part for part in listed if part == AUTO]:
        raise ConfigError(f"{name} has a member {nested[0]}, which has members of its own; name those instead")
    return combine([(member, get(member)) for member in listed])


def _unknown(name: Any) -> ConfigError:
    return ConfigError(
        f"model is {quoted(name)}{nearest(name, names())}; there are {', '.join(names())}, and mean_of(mqt, 3)"
    )
