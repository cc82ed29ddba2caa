"""Data sets by name. A module of this package that has a function `load(folder, …) -> Dataset` is a data set."""

import inspect
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from lab.datasets.dataset import Dataset
from mqcast.errors import ConfigError
from mqcast.settings import nearest

__all__ = ["Dataset", "load", "names"]


@cache
def names() -> tuple[str, ...]:
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(name for name in modules if hasattr(import_module(f"{__name__}.{name}"), "load"))


def load(name: str, folder: str | Path | None, **options: Any) -> Dataset:
    """The data set of this name, from its files in `folder`; `options` are its loader's."""
    if name not in names():
        raise ConfigError(f"no data set {name!r}{nearest(name, names())}; there are {', '.join(names())}")
    loader = import_module(f"{__name__}.{name}").load
    first, *rest = inspect.signature(loader).parameters.values()
    if folder is None and first.default is inspect.Parameter.empty:
        raise ConfigError(f"data set {name} is read from files; give --data, the folder that has them")
    takes = [parameter.name for parameter in rest]
    if unknown := [option for option in options if option not in takes]:
        known = f"its options are {', '.join(takes)}" if takes else "it has no options"
        raise ConfigError(f"data set {name} has no option {unknown[0]!r}; {known}")
    return loader(folder, **options)
