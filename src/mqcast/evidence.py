# pyright: strict
"""How far quantiles are off, as far as dates and cutoffs are evidence of it.

A score is the error of a quantile in spreads of its forecast, and a quantile is off if its scores are at or below 0 in
another share of the cases than its level says. Errors of one date go together across series, as do those of one cutoff,
of near dates and of near cutoffs: chance is judged by these rather than by rows. What is found is shrunk: gaps of
coverage are taken for draws around 0, with the variance that makes them most likely beside their errors (random
effects). A gap within its error is left alone, and one far beyond it is taken as it is.
"""

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

LEAST_BEYOND = 5  # forecasts whose demand should be on the rarer side of a level
CAUTION = 1.5  # errors count as so many times as large: dates to come are less like those of the fit than these alike
TRUST_IN_CORRELATION = 0.7  # of the errors of different levels, which few dates tell
VARIANCES = np.concatenate([[0.0], np.geomspace(1e-7, 1, 150)])  # that gaps may have, in variances of a hit


@dataclass(frozen=True, eq=False)
class Clusters:
    """Rows whose errors go together: those of one date, or of one cutoff, and less so those of near ones."""

    code: np.ndarray  # (rows,): numbered in the order of time
    number: int
    reach: int  # how far apart clusters may go together, too

    @classmethod
    def of(cls, times: np.ndarray, longest_lead: int) -> "Clusters":
        distinct, code = np.unique(times, return_inverse=True)
        return cls(code, len(distinct), min(longest_lead, int(np.sqrt(len(distinct)))))

    @property
    def doubt(self) -> float:
        """By how much an error is larger than it is estimated to be from so few clusters."""
        return CAUTION * (1 + CAUTION * (1 + self.reach) / self.number)

    def sums(self, parts: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(clusters, columns): sums of parts (rows, columns), of these rows."""
        code = self.code[rows]
        return np.stack([np.bincount(code, part, minlength=self.number) for part in parts.T], axis=1)

    def sums_by(self, parts: np.ndarray, rows: np.ndarray, unit: np.ndarray, num_units: int) -> np.ndarray:
        """(clusters, units): sums of parts (rows,), by the unit of each row."""
        place = self.code[rows] * num_units + unit
        return np.bincount(place, parts, minlength=self.number * num_units).reshape(self.number, num_units)


def error_of_mean(values: np.ndarray, clusters: np.ndarray, reach: int) -> float:
    """The standard error of a mean whose values go together in clusters.

    Clusters are numbered in the order of time. Those up to `reach` apart may go together too, as far as they do.
    """
    sums = np.bincount(clusters, (values - values.mean()) / len(values))[np.bincount(clusters) > 0]
    return float(np.sqrt(variances(sums[:, None], reach)[0]))


def variances(sums: np.ndarray, reach: int) -> np.ndarray:
    """Of the totals of sums by cluster (clusters, columns)."""
    own = (sums**2).sum(axis=0)
    together = sum((1 - k / (reach + 1)) * (sums[k:] * sums[:-k]).sum(axis=0) for k in range(1, reach + 1))
    return np.maximum(own, own + 2 * together) * len(sums) / max(len(sums) - 1, 1)


def covariance(sums: np.ndarray, reach: int) -> np.ndarray:
    """The same of all columns together, with correlations that are trusted in part."""
    products = sums.T @ sums
    for k in range(1, reach + 1):
        later = (1 - k / (reach + 1)) * (sums[k:].T @ sums[:-k])
        products = products + later + later.T
    deviation = np.sqrt(np.maximum(np.diag(products), np.finfo(float).tiny))
    correlation = TRUST_IN_CORRELATION * products / np.outer(deviation, deviation)
    np.fill_diagonal(correlation, 1.0)
    own = np.sqrt(variances(sums, reach))
    return correlation * np.outer(own, own)


@dataclass(frozen=True, eq=False)
class Evidence:
    """The scores of forecasts, and what they have in common."""

    levels: np.ndarray
    scores: np.ndarray  # (rows, levels): NaN where a quantile cannot be moved
    clusters: tuple[Clusters, ...]  # by date and by cutoff

    def less(self, shift: np.ndarray) -> "Evidence":
        """What is left of the scores when quantiles are moved by (rows, levels)."""
        return replace(self, scores=self.scores - shift)

    def has_enough(self, level: int) -> bool:
        share = float(min(self.levels[level], 1 - self.levels[level]))
        return bool((~np.isnan(self.scores[:, level])).sum() * share >= LEAST_BEYOND)

    def common(self, passing_bias: float = 0.0) -> np.ndarray:
        """(levels,): how far to move the levels of all rows.

        Levels are judged together. A shock that all series share lifts demand over all levels at once, so it is weak
        evidence of a bias; that both tails are too thin may be plain all the same. `passing_bias` is the standard
        deviation of a bias that these forecasts alone may have, at all dates, in standard deviations of demand.
        """
        told = [i for i in range(len(self.levels)) if self.has_enough(i)]
        shift, gap, hits = np.zeros(len(self.levels)), np.zeros(len(told)), np.zeros((len(self.scores), len(told)))
        if not told:
            return shift
        size = np.sqrt(self.levels * (1 - self.levels))[told]
        for place, i in enumerate(told):
            rows = np.flatnonzero(~np.isnan(self.scores[:, i]))
            score, of_all = self.scores[rows, i], np.zeros(len(rows), int)
            best, gaps = _of_units(score, of_all, 1, self.levels[i])
            gap[place] = gaps[0] / size[place]
            hits[rows, place] = _centred(score <= best[0], of_all, np.array([len(rows)])) / len(rows) / size[place]
        every = np.arange(len(hits))
        found = [covariance(one.sums(hits, every), one.reach) * one.doubt**2 for one in self.clusters]
        passing = passing_bias * _density(self.levels[told]) / size
        likely = _likely_gaps(gap, max(found, key=np.trace) + np.outer(passing, passing))
        for place, i in enumerate(told):
            if gap[place] and likely[place]:
                at = np.clip(self.levels[i] + (gap[place] - likely[place]) * size[place], 0, 1)
                shift[i] = np.quantile(self.scores[~np.isnan(self.scores[:, i]), i], at, method="inverted_cdf")
        return shift

    def apart(self, unit: np.ndarray, num_units: int) -> np.ndarray:
        """(levels, units): how far to move the rows of each unit beyond all of them together."""
        shift = np.zeros((len(self.levels), num_units))
        for i in filter(self.has_enough, range(len(shift) if num_units > 1 else 0)):
            level, rows = float(self.levels[i]), np.flatnonzero(~np.isnan(self.scores[:, i]))
            mine, variance = unit[rows], float(level * (1 - level))
            score = self.scores[rows, i] - np.quantile(self.scores[rows, i], level, method="inverted_cdf")
            number = np.bincount(mine, minlength=num_units)
            told = number * min(level, 1 - level) >= LEAST_BEYOND
            best, gap = _of_units(score, mine, num_units, level)
            own, of_all = (_centred(score <= at, mine, number) for at in (best[mine], 0.0))
            own, of_all = own / number[mine], of_all / len(score)
            error = np.zeros(num_units)
            for one in self.clusters:
                sums = one.sums_by(own, rows, mine, num_units) - one.sums(of_all[:, None], rows)
                error = np.maximum(error, variances(sums, one.reach) * one.doubt**2)
            if told.sum() > 1:
                scaled, noise = gap[told] / np.sqrt(variance), error[told] / variance
                between = _most_likely(scaled[:, None] ** 2, noise[:, None])
                shift[i, told] = best[told] * between / (between + noise + np.finfo(float).tiny)
        return shift


def _density(levels: np.ndarray) -> np.ndarray:
    """Of the normal distribution at its quantiles: by how much a level is missed for each unit of a small bias."""
    normal = NormalDist()
    return np.array([normal.pdf(normal.inv_cdf(float(level))) for level in levels])


def _centred(hit: np.ndarray, unit: np.ndarray, number: np.ndarray) -> np.ndarray:
    return hit - (np.bincount(unit, hit, minlength=len(number)) / np.maximum(number, 1))[unit]


def _of_units(score: np.ndarray, unit: np.ndarray, num_units: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """The level's quantile of each unit's scores, and by how much the share at or below 0 misses the level.

    Where demand is often exactly the quantile, a level between the shares below it and at or below it is not missed.
    """
    number = np.bincount(unit, minlength=num_units)
    ordered = score[np.lexsort((score, unit))]
    first = np.cumsum(number) - number
    place = first + np.clip(np.ceil(level * number - 1e-9).astype(int) - 1, 0, np.maximum(number - 1, 0))
    best = np.where(number > 0, ordered[np.minimum(place, len(score) - 1)], 0.0)
    below, within = (
        np.bincount(unit, side, minlength=num_units) / np.maximum(number, 1) for side in (score < 0, score <= 0)
    )
    gap = np.where(within < level, within - level, np.where(below > level, below - level, 0.0))
    return np.where(gap == 0, 0.0, best), np.where(number > 0, gap, 0.0)


def _likely_gaps(gap: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """The mean of the gaps, given those that were seen and the covariance of their errors."""
    noise, axes = np.linalg.eigh(covariance)
    noise, along = np.maximum(noise, 1e-12), axes.T @ gap
    between = _most_likely(along[:, None] ** 2, noise[:, None])
    return axes @ (along * between / (between + noise))


def _most_likely(squares: np.ndarray, noise: np.ndarray) -> float:
    """The variance of effects that makes these squares (number, 1), of effects and noise together, most likely."""
    both = VARIANCES + noise + 1e-12
    return float(VARIANCES[np.argmin((np.log(both) + squares / both).sum(axis=0))])
