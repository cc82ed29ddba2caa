"""Distributions from a few quantiles: a gamma through two of them, or no assumption but straight lines between them.

Every case in which the quantiles do not tell a proper distribution has a fixed policy, and is counted.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np

NO_SPREAD = 1e-3  # ratio of the quantiles, less one, below which all mass is taken to be at the lower
NO_LOW = 1e-12  # ratio of the quantiles below which the lower one is taken to be 0
LARGEST_SHAPE, SMALLEST_SHAPE, NUM_NODES = 1e6, 0.02, 4000


class GammaThrough:
    """The gamma distributions through quantiles of two levels.

    The ratio ρ(k) of the two quantiles falls strictly from ∞ to 1 as the shape k rises, so the ratio tells the shape.
    ln k, and the logarithm of the standard gamma's lower quantile, are smooth in ln ln ρ: cubic splines on a uniform
    grid of it give both to about 1e-11.
    """

    def __init__(self, low: float, high: float):
        from scipy.interpolate import CubicSpline  # slow to import
        from scipy.special import gammainc, gammaincinv

        self._inc, self._inverse = gammainc, gammaincinv
        self.low, self.high = low, high
        ends = self._spread(np.log([LARGEST_SHAPE, SMALLEST_SHAPE]))
        self.first, self.last = float(ends[0]), float(ends[1])
        log_shape = self._solved(np.linspace(self.first, self.last, NUM_NODES))
        nodes = np.stack([log_shape, np.log(self._inverse(np.exp(log_shape), low))], axis=1)
        of_powers = CubicSpline(np.arange(NUM_NODES), nodes).c
        self.coefficients = np.ascontiguousarray(of_powers.transpose(1, 0, 2))  # (node, power, what)

    def _spread(self, log_shape: np.ndarray) -> np.ndarray:
        """ln ln ρ."""
        shape = np.exp(log_shape)
        return np.log(np.log(self._inverse(shape, self.high) / self._inverse(shape, self.low)))

    def _solved(self, spread: np.ndarray) -> np.ndarray:
        """ln k at each ln ln ρ, by Newton's steps from a table."""
        table = np.linspace(np.log(LARGEST_SHAPE), np.log(SMALLEST_SHAPE), NUM_NODES)
        log_shape = np.interp(spread, self._spread(table), table)
        for _ in range(4):
            here = self._spread(log_shape)
            log_shape = log_shape - (here - spread) * 1e-4 / (self._spread(log_shape + 1e-4) - here)
        return log_shape

    def cdf(
        self, low: np.ndarray, high: np.ndarray, at: np.ndarray, cases: Counter[str], counts: np.ndarray
    ) -> np.ndarray:
        """P(demand <= at), for quantiles 0 <= low <= high; `at` may have more axes in front. Counts the cases met."""
        is_zero = high <= 0
        has_no_low = ~is_zero & (low <= NO_LOW * high)
        has_no_spread = ~is_zero & ~has_no_low & (high < low * (1 + NO_SPREAD))
        proper = ~(is_zero | has_no_low | has_no_spread)
        for name, case in (("at_zero", is_zero), ("half_at_zero", has_no_low), ("no_spread", has_no_spread)):
            cases[name] += int((case & counts).sum())
        if proper.all():
            shape, quantile = self.shapes(high / low)
            return self._inc(shape, at * (quantile / low))
        shape, quantile = self.shapes(np.divide(high, low, where=proper, out=np.full_like(high, np.e)))
        chance = self._inc(shape, at * (quantile / np.where(proper, low, 1)))
        tail = np.log((1 - self.low) / (1 - self.high)) / np.where(has_no_low, high, 1)
        exponential = 1 - (1 - self.low) * np.exp(-at * tail)
        return np.where(has_no_low, exponential, np.where(proper, chance, at >= low))

    def shapes(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shape of the gamma with this ratio of quantiles, and the lower quantile of the standard gamma of it."""
        place = (np.log(np.log(ratio)) - self.first) * ((NUM_NODES - 1) / (self.last - self.first))
        place = np.clip(place, 0, NUM_NODES - 1)
        node = np.minimum(place.astype(np.int32), NUM_NODES - 2)
        x, c = (place - node)[..., None], self.coefficients[node]
        logs = ((c[..., 0, :] * x + c[..., 1, :]) * x + c[..., 2, :]) * x + c[..., 3, :]
        np.exp(logs, out=logs)
        return logs[..., 0], logs[..., 1]


@cache
def gamma_through(low: float, high: float) -> GammaThrough:
    return GammaThrough(low, high)


def linear_cdf(
    quantiles: np.ndarray,
    levels: Sequence[float],
    at: np.ndarray,
    cases: Counter[str],
    counts: np.ndarray,
    *,
    from_zero: bool,
) -> np.ndarray:
    """P(demand <= at): straight lines through rising quantiles (…, levels), exponential tails.

    A tail goes on with the mean slope of the two levels next to it; there is no lower one where demand begins at 0.
    Equal quantiles are a point mass. Where the outer two are equal, all that is left is at the outermost.
    """
    q = [quantiles[..., i] for i in range(len(levels))]
    chance = np.zeros(np.broadcast_shapes(at.shape, q[0].shape))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for i in range(len(levels) - 1):
            line = levels[i] + (levels[i + 1] - levels[i]) * (at - q[i]) / (q[i + 1] - q[i])
            chance = np.where((at >= q[i]) & (at < q[i + 1]), line, chance)
        if from_zero:
            below = np.where(at >= 0, levels[0] * at / q[0], 0)
        else:
            width = (q[1] - q[0]) / np.log(levels[1] / levels[0])
            below = np.where(width > 0, levels[0] * np.exp((at - q[0]) / width), 0)
        width = (q[-1] - q[-2]) / np.log((1 - levels[-2]) / (1 - levels[-1]))
        above = np.where(width > 0, 1 - (1 - levels[-1]) * np.exp(-(at - q[-1]) / width), 1)
    cases["no_spread"] += int(((width <= 0) & counts).sum())
    return np.where(at < q[0], below, np.where(at >= q[-1], above, chance))
