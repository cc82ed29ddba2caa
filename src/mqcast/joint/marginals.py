"""Whole distributions from a few quantiles, and where outcomes stand within them.

Between two levels the logarithm of demand is a straight line in normal scores, so that the pieces are those of
log-normal distributions; below the lowest level its line goes on. From a quantile of 0 on, demand itself is a straight
line in the level, and below a lowest quantile of 0 everything is 0. Above the highest level the tail is exponential,
with the mean slope between the two levels next to it. What may be negative has straight lines in normal scores, and
exponential tails at both ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TINY = np.finfo(float).tiny


@dataclass(frozen=True, eq=False)
class Marginals:
    """Distributions of demand, which may be said not to be negative, by their quantiles (rows, levels), sorted."""

    levels: np.ndarray
    quantiles: np.ndarray
    not_negative: bool

    @classmethod
    def of(cls, levels: Sequence[float], quantiles: np.ndarray, not_negative: bool = True) -> "Marginals":
        known = np.sort(quantiles, axis=1)
        if len(levels) == 1:  # a straight line from 0, or nothing but this number
            levels, first = (0.0, *levels), 0.0 if not_negative else known
            known = np.concatenate([np.broadcast_to(first, known.shape), known], axis=1)
        return cls(np.array(levels, float), np.maximum(known, 0) if not_negative else known, not_negative)

    @property
    def _scores(self) -> np.ndarray:
        return _ndtri(self.levels)

    @property
    def _above(self) -> np.ndarray:
        """(rows,): the mean of what is beyond the highest level, above it."""
        return (self.quantiles[:, -1] - self.quantiles[:, -2]) / np.log((1 - self.levels[-2]) / (1 - self.levels[-1]))

    @property
    def _below(self) -> np.ndarray:
        """(rows,): the same below the lowest level, where demand may be negative."""
        return (self.quantiles[:, 1] - self.quantiles[:, 0]) / np.log(self.levels[1] / self.levels[0])

    def at(self, levels: np.ndarray) -> np.ndarray:
        """(rows, any): quantiles at other levels, which are (any,) or (rows, any)."""
        x, levels = self.levels, np.clip(levels, 1e-12, 1 - 1e-12)
        place = np.clip(np.searchsorted(x, levels), 1, len(x) - 1)
        with np.errstate(all="ignore"):
            found = self._inside(levels, place)
            for at, i in ((levels == x[0], 0), (levels == x[place], place)):  # exactly, whatever logarithms round
                found = np.where(at, _columns(self.quantiles, np.asarray(i) + 0 * place), found)
            if (levels > x[-1]).any():
                up = np.log((1 - x[-1]) / (1 - levels)) * self._above[:, None] + self.quantiles[:, -1:]
                found = np.where(levels > x[-1], up, found)
        return found

    def _inside(self, levels: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Between the quantiles at `place` - 1 and `place`, and below the lowest one."""
        x, z, q = self.levels, self._scores, self.quantiles
        along = (_ndtri(levels) - z[place - 1]) / (z[place] - z[place - 1])
        if not self.not_negative:
            inner = _columns(q, place - 1) + along * _columns(np.diff(q, axis=1), place - 1)
            down = q[:, :1] + np.log(levels / x[0]) * self._below[:, None]
            return np.where(levels < x[0], down, inner)
        logs = np.log(q)
        found = np.exp(_columns(logs, place - 1) + along * _columns(np.diff(logs, axis=1), place - 1))
        if (q <= 0).any():
            straight = np.maximum(levels - x[place - 1], 0) / (x[place] - x[place - 1])
            found = np.where(_columns(q, place - 1) > 0, found, straight * _columns(q, place))
        return found

    def chances(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For a value of each row, the chance of less than it, and of at most it."""
        values = np.asarray(values, float)
        less, most = (op(self.quantiles, values[:, None]).sum(axis=1) for op in (np.less, np.less_equal))
        below, at = self._chance(values, less), self._chance(values, most)
        if self.not_negative:
            below = np.where(values <= 0, 0.0, below)
            at = np.where(values < 0, 0.0, at)
        return below, np.maximum(below, at)

    def _chance(self, values: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The chance of values between the quantiles at `place` - 1 and `place`; there are tails beyond both ends."""
        x, z, q, row = self.levels, self._scores, self.quantiles, np.arange(len(values))
        inner = np.clip(place, 1, len(x) - 1)
        low, high = q[row, inner - 1], q[row, inner]
        with np.errstate(all="ignore"):
            plain = (values - low) / (high - low)
            if self.not_negative:
                log = np.log(values / low) / np.log(high / low)
                along = np.where(low > 0, log, plain)
            else:
                along = plain
            curved = _ndtr(z[inner - 1] + along * (z[inner] - z[inner - 1]))
            if self.not_negative:
                straight = x[inner - 1] + plain * (x[inner] - x[inner - 1])
                found = np.where(low > 0, curved, np.where(place == 0, 0.0, straight))
            else:
                found = np.where(place == 0, x[0] * np.exp((values - q[:, 0]) / self._below), curved)
            found = np.where((place == 0) & (high <= low), 0.0, found)
            above, beyond = self._above, values - q[:, -1]
            tail = np.where(above > 0, 1 - (1 - x[-1]) * np.exp(-beyond / np.maximum(above, TINY)), 1.0)
        return np.where(place == len(x), tail, found)


def _columns(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """(rows, any): columns of all rows, or others for each."""
    return values[:, place] if place.ndim == 1 else np.take_along_axis(values, place, axis=1)


def _ndtri(levels: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri  # slow to import

    return ndtri(levels)


def _ndtr(scores: np.ndarray) -> np.ndarray:
    from scipy.special import ndtr

    return ndtr(scores)
