"""Arguments, checked at the door: each function gives the value as its caller takes it, or says what to give."""

import math
import numbers
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mqcast.errors import ConfigError, quoted
from mqcast.levels import DECIMALS, are_levels


def whole_number(name: str, value: Any, lower_bound: int = 1, upper_bound: int | None = None) -> int:
    """A whole number of any library; true and false are none."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)
    whole = int(value) if is_whole else lower_bound - 1
    if whole < lower_bound or (upper_bound is not None and whole > upper_bound):
        bounds = f"{lower_bound} or more" if upper_bound is None else f"from {lower_bound} to {upper_bound:,}"
        raise ConfigError(f"{name} is {quoted(value)}; give a whole number, {bounds}")
    return whole


def number(name: str, value: Any, low: float, high: float = math.inf, *, or_low: bool = False) -> float:
    """A finite number above `low` (or from it, if that is allowed) and up to `high`."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    real = float(value) if is_number else math.nan
    if not math.isfinite(real) or not low <= real <= high or (real == low and not or_low):
        bounds = f"{'of at least' if or_low else 'above'} {low:g}" + (f", up to {high:g}" if high < math.inf else "")
        raise ConfigError(f"{name} is {quoted(value)}; give a number {bounds}")
    return real


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name} is {quoted(value)}; give True or False")
    return bool(value)


def levels_of(name: str, value: Any) -> tuple[float, ...]:
    """Quantile levels, rising."""
    listed = list(value) if isinstance(value, Sequence | np.ndarray) or hasattr(value, "to_list") else []
    if isinstance(value, str) or not are_levels(listed):
        raise ConfigError(
            f"{name} are {quoted(value)}; give levels between 0 and 1, rising and at least 1e-7 apart: (0.1, 0.5, 0.9)"
        )
    return tuple(round(float(str(level) if isinstance(level, np.floating) else level), DECIMALS) for level in listed)


def names_of(name: str, value: Any) -> tuple[str, ...]:
    """One name or several, each once."""
    listed = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(one, str) for one in listed) or len(set(listed)) < len(listed):
        raise ConfigError(f"{name} is {quoted(value)}; give the name of a column, or several, each once")
    return listed


def path_of(name: str, value: Any) -> Path:
    """A path that the system can look up, whether or not something is there."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str) or not os.fspath(value):
        raise ConfigError(f"{name} is {quoted(value)}; give a path")
    path = Path(value)
    try:
        if "\0" in str(path):
            raise ValueError("it has a sign that no path may have")
        path.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name} {quoted(str(path))} cannot be used: {reason}; give another path") from None
    return path
