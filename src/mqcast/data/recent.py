"""The recent level of one series, row by row, and what each row adds to it; a row depends on no later one.

Zeros that say nothing about demand are separated from those that do. A zero before the first sale: the series was not
on sale yet. A zero where a series sells by the dozen: it was closed or out of the range; it moves neither level nor
spread.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from mqcast.settings import ScalingConfig

MANY = 20.0  # where a series sells so many a step, a step without a sale is not for want of demand
NO_KNEE = float(np.finfo(np.float32).max)
MOST_LOOPED = 512  # rows for which a Python loop is as fast as a filter, which takes a second to import
UNIT_SHARE = 0.1  # of the level: a logarithm in this unit is not carried away by what is far below the level


@dataclass(frozen=True)
class RecentLevel:
    """A value a row of a series: f(y / unit) is near `loc`, which is NaN before the first observation.

    `knee` is the largest value so far, above which f is a straight line. `surprise` is how far a row's f(y / unit) was
    from `loc`, both in the unit of the row before; NaN where it is not one: where nothing was observed, or nothing
    before it, or where the series was closed.
    """

    loc: np.ndarray
    unit: np.ndarray
    knee: np.ndarray
    surprise: np.ndarray


def recent_level(y: np.ndarray, config: ScalingConfig) -> RecentLevel:
    """The weighted mean of f(y), an observation `half_life` rows older weighing half."""
    forward = np.log1p if config.log1p else np.asarray
    told_apart = config.zeros == "told_apart"
    counted = np.where(is_closed(y, config.half_life), np.nan, y) if told_apart else y
    loc = weighted_mean(forward(counted), config.half_life)
    unit, knee = np.ones(len(y)), np.full(len(y), NO_KNEE)
    if config.log1p and told_apart:
        level, largest = np.expm1(loc), np.maximum.accumulate(np.nan_to_num(y))
        unit, knee = np.fmax(1.0, UNIT_SHARE * level), np.where(largest > 0, largest, NO_KNEE)
        loc = np.where(unit > 1, np.log1p(level / unit), loc)
    surprise = np.append(np.nan, forward(counted[1:] / unit[:-1]) - loc[:-1])[: len(y)]
    return RecentLevel(loc, unit, knee, surprise)


def is_closed(y: np.ndarray, half_life: float) -> np.ndarray:
    """Zeros of a series that has recently sold MANY a step, where it sold at all."""
    while_selling = np.expm1(weighted_mean(np.log1p(np.where(y > 0, y, np.nan)), half_life))
    before = np.append(np.nan, while_selling)[: len(y)]
    return (y == 0) & (before > MANY)


def weighted_mean(z: np.ndarray, half_life: float) -> np.ndarray:
    """The mean of the observations up to each row, those `half_life` rows older weighing half; NaN before any."""
    keep = 0.5 ** (1 / half_life)
    observed = ~np.isnan(z)
    total, weight = (decayed_sum(part, keep) for part in (np.where(observed, z, 0.0), observed.astype(float)))
    return np.divide(total, weight, out=np.full(len(z), np.nan), where=np.cumsum(observed) > 0)


def decayed_sum(values: np.ndarray, keep: float) -> np.ndarray:
    """total[i] = values[i] + keep · total[i − 1], with the same bits either way."""
    if len(values) > MOST_LOOPED:
        from scipy.signal import lfilter

        return np.asarray(lfilter([1.0], [1.0, -keep], values))
    totals = accumulate(values.tolist(), lambda total, value: keep * total + value)
    return np.fromiter(totals, np.float64, len(values))
