"""Sums of the process V over targets, by item and by target date: means, and those of resampled items and dates."""

from collections import Counter

import numpy as np

from mqcast.evaluation.trajectories import Chances, Trajectories

RESAMPLES_AT_A_TIME = 64
OF_TARGETS, OF_REVISIONS = ("coverage", "announced", "announced_0", "direction_changes"), ("mqc", "sqpc")


class GroupSums:
    """Weighted sums of V, and of the weights, over the targets of each group."""

    def __init__(self, num_groups: int, num_levels: int, num_steps: int):
        self.v = np.zeros((num_groups, num_levels, num_steps))
        self.weight = np.zeros((num_groups, num_levels, num_steps))

    def add(self, other: "GroupSums", first: int = 0) -> None:
        groups = slice(first, first + len(other.v))
        self.v[groups] += other.v
        self.weight[groups] += other.weight

    def take(self, v: np.ndarray, weight: np.ndarray, group: np.ndarray) -> None:
        """Add the targets' values, (levels, targets, steps), to those of their groups."""
        order = np.argsort(group, kind="stable")
        begins = np.flatnonzero(np.diff(group[order], prepend=-1))
        at = group[order][begins]
        for total, values in ((self.v, v * weight), (self.weight, weight)):
            total[at] += np.add.reduceat(values[:, order], begins, axis=1).transpose(1, 0, 2)

    def mean(self) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.v.sum(axis=0) / self.weight.sum(axis=0)

    def resampled(self, resamples: int, draws: np.random.Generator) -> np.ndarray:
        """(resamples, levels, steps): V of as many groups, drawn with replacement."""
        num_groups = len(self.v)
        v, weight, means = self.v.reshape(num_groups, -1), self.weight.reshape(num_groups, -1), []
        for begin in range(0, resamples, RESAMPLES_AT_A_TIME):
            size = min(RESAMPLES_AT_A_TIME, resamples - begin)
            drawn = draws.integers(0, num_groups, (size, num_groups)) + np.arange(size)[:, None] * num_groups
            times = np.bincount(drawn.ravel(), minlength=size * num_groups).reshape(size, num_groups).astype(float)
            with np.errstate(invalid="ignore", divide="ignore"):
                means.append(((times @ v) / (times @ weight)).reshape(size, *self.v.shape[1:]))
        return np.concatenate(means)


class MartingaleSums:
    """Weighted sums over targets: of V by item and by target date, of the rest over all."""

    def __init__(self, num_items: int, num_dates: int, num_levels: int, num_steps: int, first_item: int = 0):
        self.first_item = first_item
        self.of_items = GroupSums(num_items, num_levels, num_steps)
        self.of_dates = GroupSums(num_dates, num_levels, num_steps)
        self.targets = np.zeros((num_levels, num_steps), np.int64)
        self.totals: dict[str, np.ndarray] = {name: np.zeros((num_levels, num_steps)) for name in ("Q", "U")}
        self.totals |= {name: np.zeros(num_levels) for name in (*OF_TARGETS, *OF_REVISIONS)}
        self.num_targets, self.num_revisions = np.zeros(num_levels), np.zeros(num_levels)
        self.cases: Counter[str] = Counter()

    def add(self, other: "MartingaleSums") -> None:
        self.of_items.add(other.of_items, other.first_item)
        self.of_dates.add(other.of_dates)
        self.targets += other.targets
        for name, total in other.totals.items():
            self.totals[name] += total
        self.num_targets += other.num_targets
        self.num_revisions += other.num_revisions
        self.cases.update(other.cases)

    def means(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        weight = self.of_items.weight.sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            process = {"V": self.of_items.mean()} | {name: self.totals[name] / weight for name in ("Q", "U")}
            means = {name: self.totals[name] / self.num_targets for name in OF_TARGETS}
            means |= {name: self.totals[name] / self.num_revisions for name in OF_REVISIONS}
        return process, means

    def resampled(self, resamples: int, seed: int) -> np.ndarray:
        """(resamples, levels, steps): V of other items on other dates; the same draws for every model.

        Items and dates are drawn apart, and both deviations count: items that sell together on a date are no
        independent evidence, nor are the dates of one item.
        """
        items = self.of_items.resampled(resamples, np.random.default_rng(seed))
        dates = self.of_dates.resampled(resamples, np.random.default_rng((seed, 1)))
        return items + dates - self.of_items.mean()


def sums_of(
    chances: Chances,
    part: Trajectories,
    weight: np.ndarray,
    place: np.ndarray,
    date: np.ndarray,
    num_dates: int,
    drop_zeros: bool,
) -> MartingaleSums:
    """`place`: which item each target belongs to, rising; `date`: which of the target dates."""
    num_items = int(place[-1] - place[0]) + 1
    sums = MartingaleSums(num_items, num_dates, len(chances.levels), part.horizon + 1, int(place[0]))
    p, quantiles, tau = chances.process(part, sums.cases)
    is_zero = (tau <= 0) & chances.from_zero
    counts = ~is_zero if drop_zeros else np.ones_like(is_zero)  # (levels, targets)
    weights = weight * counts
    begun = np.pad(part.has_begun, ((0, 0), (0, 1)), constant_values=True)
    weighs = weights[..., None] * begun
    v, q, u = martingale(p)
    sums.of_items.take(v, weighs, place - place[0])
    sums.of_dates.take(v, weighs, date)
    sums.targets += (counts[..., None] & begun).sum(axis=1)
    sums.totals["Q"] += (q * weighs).sum(axis=1)
    sums.totals["U"] += (u * weighs).sum(axis=1)
    is_revision = part.is_new[:, 1:] & part.has_begun[:, :-1]
    of_targets = {"coverage": p[..., -1], "announced": p[..., 0], "announced_0": is_zero}
    for name, values in (of_targets | revision_sizes(quantiles, is_revision)).items():
        sums.totals[name] += (values * weights).sum(axis=1)
    sums.num_targets += weights.sum(axis=1)
    sums.num_revisions += (weights * is_revision.sum(axis=1)).sum(axis=1)
    return sums


def martingale(p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V, Q and U of processes p, whose last axis is the steps."""
    away = p - p[..., :1]
    q = np.zeros_like(p)
    np.cumsum(np.diff(p, axis=-1) ** 2, axis=-1, out=q[..., 1:])
    v = q - away**2
    return v, q, v + (1 - 2 * p[..., :1]) * away


def revision_sizes(quantiles: np.ndarray, is_revision: np.ndarray) -> dict[str, np.ndarray]:
    """Sums over a target's revisions (levels, targets): size, size over the mean of both, changes of direction."""
    change = np.diff(quantiles, axis=-1) * is_revision
    size = np.abs(change)
    mean = np.abs(quantiles[..., 1:]) + np.abs(quantiles[..., :-1])
    share = np.divide(2 * size, mean, where=mean > 0, out=np.zeros_like(size))
    index = np.maximum.accumulate(np.where(change != 0, np.arange(change.shape[-1]), 0), axis=-1)
    direction = np.sign(np.take_along_axis(change, index, axis=-1))  # of the last real change
    reversals = (np.diff(direction, axis=-1) != 0) & (direction[..., :-1] != 0)
    changes = reversals.sum(axis=-1).astype(float)
    return {"mqc": size.sum(axis=-1), "sqpc": share.sum(axis=-1), "direction_changes": changes}
