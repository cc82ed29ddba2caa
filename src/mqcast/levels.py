"""Quantile levels: what is one, what its columns are called, and the loss of a quantile.

A level has up to 12 decimals; what is beyond is noise of sums, such as 0.30000000000000004. Levels are apart from each
other, from 0 and from 1 by at least `APART`, so that each has a name, and a weight in float32, of its own.
"""
# pyright: strict

import math
import numbers
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

DECIMALS, APART = 12, 1e-7
COLUMN = re.compile(r"q(0?\.\d+)")


def quantile_column(level: float) -> str:
    """q0.5, q0.975, q0.00001: `level_of` reads it back."""
    return f"q{_digits(level)}"


def percentile(level: float) -> str:
    """P50, P97.5: as charts and tables show it."""
    return f"P{_digits(100 * level)}"


def level_of(column: Any) -> float | None:
    """The level of a column of quantiles, from its name; None for other columns."""
    match = COLUMN.fullmatch(column) if isinstance(column, str) else None
    return None if match is None else float(match[1]) or None


def pinball(actual: np.ndarray, quantile: np.ndarray, level: float | np.ndarray) -> np.ndarray:
    """The quantile loss, element by element."""
    error = actual - quantile
    return np.maximum(level * error, (level - 1) * error)


def are_levels(levels: Sequence[Any]) -> bool:
    """Whether these are numbers between 0 and 1, rising, and far enough apart."""
    if not len(levels) or any(isinstance(x, bool | np.bool_) or not isinstance(x, numbers.Real) for x in levels):
        return False
    steps = np.diff([0.0, *(float(level) for level in levels), 1.0])
    return all(math.isfinite(step) and round(step, DECIMALS) >= APART for step in steps)


def _digits(number: float) -> str:
    return np.format_float_positional(round(float(number), DECIMALS), trim="-")
