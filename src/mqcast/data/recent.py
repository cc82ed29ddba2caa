"""The recent level of series, row by row, and the surprise of each row. No row depends on a later one.

The rows of a series are the last axis of all arrays here.

Zeros that say nothing about demand are separated from those that do. A zero before the first sale means that the series
was not on sale yet. A zero of a series with large sales means that it was closed or not in the assortment; it changes
neither level nor spread.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from mqcast.settings import ScalingConfig

MANY = 20.0  # if a series sells this many per step, a step without sales is not due to a lack of demand
NO_KNEE = float(np.finfo(np.float32).max)
MOST_LOOPED = 512  # rows for which a Python loop is as fast as scipy's filter, which takes a second to import
MANY_SERIES = 8  # from so many on, a loop over their rows is faster
UNIT_SHARE = 0.1  # of the level: with this unit, values far below the level do not dominate the logarithm


@dataclass(frozen=True)
class RecentLevel:
    """One value per row of a series: f(y / unit) is near `loc`, which is NaN before the first observation.

    `knee` is the largest value so far, above which f is a straight line. `surprise` is the difference between f(y /
    unit) of a row and `loc` of the row before, both in the unit of the row before. It is NaN if nothing was observed,
    in that row or before it, and if the series was closed.
    """

    loc: np.ndarray
    unit: np.ndarray
    knee: np.ndarray
    surprise: np.ndarray


def recent_level(y: np.ndarray, config: ScalingConfig) -> RecentLevel:
    """The weighted mean of f(y); an observation that is `half_life` rows older has half the weight."""
    forward = np.log1p if config.log1p else np.asarray
    told_apart = config.zeros == "told_apart"
    counted = np.where(is_closed(y, config.half_life), np.nan, y) if told_apart else y
    loc = weighted_mean(forward(counted), config.half_life)
    unit, knee = np.ones(y.shape), np.full(y.shape, NO_KNEE)
    if config.log1p and told_apart:
        level, largest = np.expm1(loc), np.maximum.accumulate(np.nan_to_num(y), axis=-1)
        unit, knee = np.fmax(1.0, UNIT_SHARE * level), np.where(largest > 0, largest, NO_KNEE)
        loc = np.where(unit > 1, np.log1p(level / unit), loc)
    surprise = shifted(forward(counted[..., 1:] / unit[..., :-1]) - loc[..., :-1], np.nan)[..., : y.shape[-1]]
    return RecentLevel(loc, unit, knee, surprise)


def shifted(values: np.ndarray, first: float) -> np.ndarray:
    """One row more, with a value before the others."""
    return np.concatenate((np.full((*values.shape[:-1], 1), first), values), axis=-1)


def is_closed(y: np.ndarray, half_life: float) -> np.ndarray:
    """Zeros of a series that recently sold at least MANY per step with sales."""
    while_selling = np.expm1(weighted_mean(np.log1p(np.where(y > 0, y, np.nan)), half_life))
    return (y == 0) & (shifted(while_selling, np.nan)[..., :-1] > MANY)


def weighted_mean(z: np.ndarray, half_life: float) -> np.ndarray:
    """The weighted mean of observations up to each row, with weights halved after `half_life` rows; NaN before any."""
    keep = 0.5 ** (1 / half_life)
    observed = ~np.isnan(z)
    total, weight = (decayed_sum(part, keep) for part in (np.where(observed, z, 0.0), observed.astype(float)))
    return np.divide(total, weight, out=np.full(z.shape, np.nan), where=np.cumsum(observed, axis=-1) > 0)


def decayed_sum(values: np.ndarray, keep: float) -> np.ndarray:
    """total[i] = values[i] + keep · total[i − 1], bit-identical with the loops and the filter."""
    if values.ndim > 1 and len(values) >= MANY_SERIES:
        totals = values.T.copy()
        for before, total in pairwise(totals):
            total += keep * before
        return np.ascontiguousarray(totals.T)
    if values.shape[-1] > MOST_LOOPED:
        from scipy.signal import lfilter

        return np.asarray(lfilter([1.0], [1.0, -keep], values))
    if values.ndim > 1:
        return np.stack([decayed_sum(row, keep) for row in values])
    totals = accumulate(values.tolist(), lambda total, value: keep * total + value)
    return np.fromiter(totals, np.float64, len(values))
