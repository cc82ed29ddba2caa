"""Integer demand with zeros, and a finite-state filter that forecasts it exactly.

    Y_it | x, κ ~ NegBin(mean m_gt exp(x_it + κ s_it), dispersion r)
    log m_gt = a_g sin(2πt/52 + φ_g) + Σ_k b_kg f_k(t)

for item i in category g. The level x is a lazy random walk on a grid with reflecting ends. κ is the lift class of the
item, drawn once from the prior of the category; it is unknown and has to be learnt from past promotions. s_it is the
total strength of the promotions in week t. The multiplier m is known. With `item_lifts=False`, a new class is drawn
every week.

Every lift is a whole number of grid steps. The log mean minus log m is therefore on one longer grid x_1..x_E for all
classes and promotions, and a forecast is a mixture of E negative binomials, shared by a category's items in a week.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import betainc, gammaln

from mqcast.simulate.world import (
    PROMOTIONS,
    Assortment,
    Size,
    World,
    assemble_world,
    check_creation_times,
    check_levels,
    draw_assortment,
    draw_categories,
    draw_holidays,
    holiday_effects,
    random_streams,
    require,
)

CHUNK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class CountSettings:
    """The grid of log levels and the walk on it, the lift classes and the noise; validated when created."""

    grid: tuple[float, float, int]  # first, last, number of points
    step_probability: float  # probability per week of each of the two neighbours
    lift_classes: tuple[float, ...]
    promo_strengths: tuple[float, ...]
    dispersion: float
    item_lifts: bool

    def __post_init__(self):
        low, high, num_points = self.grid
        require(low < high and num_points >= 2, f"grid is {self.grid}", "give (first, last, number of points >= 2)")
        possible = 0 < self.step_probability <= 0.5
        require(possible, f"step_probability is {self.step_probability}", "give more than 0 and at most 0.5")
        require(self.dispersion > 0, f"dispersion is {self.dispersion}", "give more than 0")
        require(len(self.lift_classes) > 0, "lift_classes is empty", "give at least one")
        count = len(PROMOTIONS)
        require(len(self.promo_strengths) == count, f"promo_strengths is {self.promo_strengths}", f"give {count}")
        steps = np.outer(self.strengths, self.lift_classes) / self.grid_step
        whole = bool(np.all(np.abs(steps - np.rint(steps)) < 1e-9) and np.all(steps > -0.5))
        remedy = f"make each class times strength a whole, positive number of grid steps ({self.grid_step:g})"
        require(whole, f"lift_classes {self.lift_classes} with promo_strengths {self.promo_strengths}", remedy)

    @property
    def grid_step(self) -> float:
        return (self.grid[1] - self.grid[0]) / (self.grid[2] - 1)

    @property
    def strengths(self) -> np.ndarray:
        """The total strength of every set of promotions; the bits of a set's number are its promotions."""
        sets = np.arange(2 ** len(self.promo_strengths))[:, None] >> np.arange(len(self.promo_strengths)) & 1
        return sets @ np.asarray(self.promo_strengths)

    @cached_property
    def shifts(self) -> np.ndarray:
        """(promotion sets, lift classes): the lift in grid steps."""
        return np.rint(np.outer(self.strengths, self.lift_classes) / self.grid_step).astype(int)

    @cached_property
    def levels(self) -> np.ndarray:
        """The grid of levels, extended by the largest lift."""
        return self.grid[0] + self.grid_step * np.arange(self.grid[2] + self.shifts.max())

    @cached_property
    def transition(self) -> np.ndarray:
        """The transition matrix of the lazy walk; a step beyond an end stays there."""
        size, p = self.grid[2], self.step_probability
        walk = (1 - 2 * p) * np.eye(size) + p * (np.eye(size, k=1) + np.eye(size, k=-1))
        walk[0, 0] = walk[-1, -1] = 1 - p
        return walk


@dataclass(frozen=True, eq=False)
class Mixture:
    """Forecasts of one week for items of one category: (creation times, items) mixtures of E negative binomials."""

    rows: np.ndarray  # (items,)
    leads: np.ndarray  # (creation times,)
    times: np.ndarray  # (creation times,), counted from the first requested one
    weights: np.ndarray  # (creation times, items, E)
    means: np.ndarray  # (E,)

    @property
    def place(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The place of its (creation times, items) in (items, horizon, creation times)."""
        return self.rows[None], self.leads[:, None] - 1, self.times[:, None]


@dataclass(frozen=True, eq=False)
class CountOracle:
    """The forward filter α_t(κ, x) ∝ NegBin(y_t) · (α_t-1 A); at lead h demand is a mixture with weights α_t A^h."""

    settings: CountSettings
    horizon: int
    num_weeks: int
    demand: np.ndarray  # (items, weeks)
    promotion_set: np.ndarray  # (items, weeks): the number of the set of promotions that run
    category: np.ndarray  # (items,)
    log_multiplier: np.ndarray  # (categories, weeks): log m
    level_prior: np.ndarray  # (categories, grid points)
    lift_prior: np.ndarray  # (categories, lift classes)

    def quantiles(self, levels: Sequence[float], first: int, last: int) -> np.ndarray:
        """The smallest integer at which the distribution function reaches the level."""
        check_levels(levels)
        check_creation_times(first, last, self.num_weeks)
        out = np.empty((len(self.demand), self.horizon, last - first + 1, len(levels)))
        for mixture in self._mixtures(first, last):
            out[mixture.place] = _mixture_quantiles(mixture.weights, mixture.means, self.settings.dispersion, levels)
        return out

    def cdf(self, values: np.ndarray, first: int, last: int) -> np.ndarray:
        check_creation_times(first, last, self.num_weeks)
        out = np.empty((len(self.demand), self.horizon, last - first + 1))
        values = np.broadcast_to(values, out.shape)
        for mixture in self._mixtures(first, last):
            counts, which = np.unique(np.floor(values[mixture.place]), return_inverse=True)
            table = _negative_binomial_cdf(counts[:, None], mixture.means, self.settings.dispersion)
            out[mixture.place] = np.einsum("tne,tne->tn", mixture.weights, table[which])
        return out

    def paths(self, time: int, num_paths: int, seed: int = 0) -> np.ndarray:
        """(items, horizon, paths): draws of demand in the weeks after a creation time, given what is known then."""
        check_creation_times(time, time, self.num_weeks)
        require(self.settings.item_lifts, "paths of lifts that are drawn every week", "leave item_lifts True")
        settings, rng = self.settings, np.random.default_rng(seed)
        out = np.empty((len(self.demand), self.horizon, num_paths))
        for g in range(len(self.log_multiplier)):
            rows = np.flatnonzero(self.category == g)
            if not len(rows):
                continue
            _, _, states = next(self._forecasts(g, rows, time, time))
            reached = np.cumsum(states[0].reshape(len(rows), -1), axis=1)
            chances = rng.random((len(rows), num_paths)) * reached[:, -1:]
            place = np.stack([np.searchsorted(one, chance) for one, chance in zip(reached, chances, strict=True)])
            lift, point = np.divmod(place, settings.grid[2])
            for step in range(self.horizon):
                week = time + 1 + step
                if step:
                    chance = rng.random(point.shape)
                    moved = (chance > 1 - settings.step_probability).astype(int) - (chance < settings.step_probability)
                    point = np.clip(point + moved, 0, settings.grid[2] - 1)
                shift = settings.shifts[self.promotion_set[rows, week][:, None], lift]
                mean = np.exp(self.log_multiplier[g, week] + settings.levels[point + shift])
                r = settings.dispersion
                out[rows, step] = rng.negative_binomial(r, r / (r + mean))
        return out

    def _mixtures(self, first: int, last: int) -> Iterator[Mixture]:
        """Every forecast created in first..last, by category, then week, in chunks of items to limit memory."""
        bytes_an_item = 8 * self.horizon * self.lift_prior.shape[1] * self.level_prior.shape[1]
        chunk = max(1, CHUNK_BYTES // bytes_an_item)
        for g in range(len(self.log_multiplier)):
            members = np.flatnonzero(self.category == g)
            for start in range(0, len(members), chunk):
                rows = members[start : start + chunk]
                for week, times, states in self._forecasts(g, rows, first, last):
                    weights = self._on_long_grid(states, self.promotion_set[rows, week])
                    yield Mixture(rows, week - times, times - first, weights, self._means(g, week))

    def _forecasts(
        self, g: int, rows: np.ndarray, first: int, last: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Week, creation times t in first..last within the horizon, and P(κ, x_week | weeks 0..t) for each of them.

        The states are (creation times, items, lift classes, grid points), oldest first. They advance together, week by
        week, and the newest is also the prediction of the filter.
        """
        prior = self.lift_prior[g][:, None] * self.level_prior[g]
        states = np.broadcast_to(prior, (1, len(rows), *prior.shape))
        times = np.array([-1])
        for week in range(last + 1 + self.horizon):
            if week > 0:
                states = self._week_later(states, g)
            if times[-1] >= first:
                yield week, times, states
            held = slice(np.searchsorted(times, max(first, week + 1 - self.horizon)), None)
            states, times, predicted = states[held], times[held], states[-1]
            if week <= last:
                states = np.concatenate([states, self._updated(predicted, g, rows, week)[None]])
                times = np.append(times, week)

    def _updated(self, state: np.ndarray, g: int, rows: np.ndarray, week: int) -> np.ndarray:
        """Bayes: the predicted state times the likelihood of the week's demand."""
        r, means, y = self.settings.dispersion, self._means(g, week), self.demand[rows, week][:, None]
        log_likelihood = y * np.log(means) - (y + r) * np.log(r + means)
        likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
        state = state * self._by_state(likelihood, self.promotion_set[rows, week])
        return state / state.sum(axis=(1, 2), keepdims=True)

    def _week_later(self, states: np.ndarray, g: int) -> np.ndarray:
        """The level moves; the lift class stays the same, or is drawn again."""
        states = (states.reshape(-1, self.settings.grid[2]) @ self.settings.transition).reshape(states.shape)
        if self.settings.item_lifts:
            return states
        return states.sum(axis=-2, keepdims=True) * self.lift_prior[g][:, None]

    def _means(self, g: int, week: int) -> np.ndarray:
        return np.exp(self.log_multiplier[g, week] + self.settings.levels)

    def _by_state(self, on_long_grid: np.ndarray, promotion_set: np.ndarray) -> np.ndarray:
        """(items, E) → (items, lift classes, grid points)."""
        windows = np.lib.stride_tricks.sliding_window_view(on_long_grid, self.settings.grid[2], axis=1)
        return windows[np.arange(len(windows))[:, None], self.settings.shifts[promotion_set]]

    def _on_long_grid(self, states: np.ndarray, promotion_set: np.ndarray) -> np.ndarray:
        """(creation times, items, lift classes, grid points) → (creation times, items, E): the weight of each mean."""
        num_points = self.settings.grid[2]
        weights = np.zeros((*states.shape[:2], len(self.settings.levels)))
        np.sum(states, axis=2, out=weights[:, :, :num_points])
        promoted = promotion_set > 0
        weights[:, promoted] = 0
        for number in np.unique(promotion_set[promoted]):
            rows = np.flatnonzero(promotion_set == number)
            for k, shift in enumerate(self.settings.shifts[number]):
                weights[:, rows, shift : shift + num_points] += states[:, rows, k]
        return weights


def _negative_binomial_cdf(counts: np.ndarray, means: np.ndarray, dispersion: float) -> np.ndarray:
    """P(Y <= counts) for integer counts; 0 below zero."""
    reached = betainc(dispersion, np.clip(counts, 0, 1e15) + 1, dispersion / (dispersion + means))
    return np.where(counts < 0, 0.0, reached)


def _mixture_quantiles(weights: np.ndarray, means: np.ndarray, r: float, levels: Sequence[float]) -> np.ndarray:
    """(creation times, items, levels): bisection over the integers, between neighbours on a coarse grid."""
    mixtures = weights.reshape(-1, len(means))
    top = _upper_bound(mixtures, means, r, max(levels))
    stride = int(np.sqrt(top)) + 1
    table = _cdf_table(means, r, stride * (top // stride + 1) + 1)
    coarse = mixtures @ table[::stride].T
    out = np.empty((len(mixtures), len(levels)))
    for i, level in enumerate(levels):
        high = stride * np.sum(coarse < level, axis=1)
        low = np.maximum(high - stride + 1, 0)
        while np.any(low < high):
            middle = (low + high) // 2
            reached = np.einsum("ne,ne->n", mixtures, table[middle]) >= level
            low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
        out[:, i] = high
    return out.reshape(*weights.shape[:2], len(levels))


def _upper_bound(mixtures: np.ndarray, means: np.ndarray, r: float, level: float) -> int:
    """A count at which every mixture has reached the level.

    With δ = (1 - level) / 2, take the mean above which no mixture has more weight than δ, and its (1-δ)-quantile: there
    the distribution function is at least (1-δ)² > level.
    """
    from scipy.stats import nbinom  # slow to import

    miss = (1 - level) / 2
    below = np.cumsum(mixtures, axis=1).min(axis=0) >= 1 - miss
    mean = means[np.argmax(below)] if below.any() else means[-1]
    return int(nbinom.ppf(1 - miss, r, r / (r + mean))) + 1


def _cdf_table(means: np.ndarray, r: float, num_counts: int) -> np.ndarray:
    """(counts 0..num_counts-1, means): P(Y <= count)."""
    counts = np.arange(num_counts)
    coefficient = gammaln(counts + r) - gammaln(counts + 1) - gammaln(r)
    log_pmf = coefficient[:, None] + r * np.log(r / (r + means)) + counts[:, None] * np.log(means / (r + means))
    return np.cumsum(np.exp(log_pmf, out=log_pmf), axis=0, out=log_pmf)


def count_world(
    num_items: int = 200,
    num_weeks: int = 140,
    horizon: int = 13,
    seed: int = 0,
    *,
    num_categories: int = 8,
    item_lifts: bool = True,
    grid: tuple[float, float, int] = (-1.0, 5.0, 61),
    step_probability: float = 0.25,
    lift_classes: tuple[float, ...] = (0.0, 0.4, 0.8, 1.2, 1.6),
    promo_strengths: tuple[float, float] = (1.0, 0.5),
    dispersion: float = 5.0,
    mu: float = 1.5,
    sigma_0: float = 1.0,
    promo_rates: tuple[float, float] = (0.06, 0.04),
) -> World:
    """Integer demand with movable holidays, promotions and a lift class per item; its oracle is a forward filter.

    >>> from mqcast.simulate import count_world
    >>> world = count_world(num_items=5, num_weeks=30, horizon=4)
    >>> bool((world.demand == world.demand.round()).all())
    True
    """
    size = Size(num_items, num_weeks, horizon, num_categories)
    settings = CountSettings(grid, step_probability, lift_classes, promo_strengths, dispersion, item_lifts)
    require(sigma_0 > 0, f"sigma_0 is {sigma_0}", "give more than 0")
    calendar, category_stream, item_streams = random_streams(seed, num_items)
    holidays = draw_holidays(calendar, num_weeks + 3 * horizon + 1)
    effects = holiday_effects(holidays)[: size.total_weeks]
    categories = draw_categories(category_stream, num_categories, mu, max_amplitude=0.4)
    assortment = draw_assortment(item_streams, num_categories, size.total_weeks, promo_rates)
    lift_prior = category_stream.dirichlet(np.full(len(lift_classes), 1.5), num_categories)
    level_prior = _level_prior(settings, categories.level, sigma_0)
    log_multiplier = categories.season(size.total_weeks) + categories.holiday_lift @ effects.T
    promotion_set = assortment.promotions @ 2 ** np.arange(len(PROMOTIONS))
    demand = _simulate(settings, assortment, promotion_set, log_multiplier, level_prior, lift_prior)
    oracle = CountOracle(
        settings=settings,
        horizon=horizon,
        num_weeks=num_weeks,
        demand=demand,
        promotion_set=promotion_set,
        category=assortment.category,
        log_multiplier=log_multiplier,
        level_prior=level_prior,
        lift_prior=lift_prior,
    )
    return assemble_world("counts", size, assortment, holidays, demand, oracle)


def _level_prior(settings: CountSettings, mean: np.ndarray, sigma_0: float) -> np.ndarray:
    """(categories, grid points): a normal distribution, restricted to the grid."""
    energy = 0.5 * ((settings.levels[: settings.grid[2]] - mean[:, None]) / sigma_0) ** 2
    prior = np.exp(energy.min(axis=1, keepdims=True) - energy)
    return prior / prior.sum(axis=1, keepdims=True)


def _simulate(
    settings: CountSettings,
    assortment: Assortment,
    promotion_set: np.ndarray,
    log_multiplier: np.ndarray,
    level_prior: np.ndarray,
    lift_prior: np.ndarray,
) -> np.ndarray:
    """(items, weeks): demand."""
    group, streams, num_weeks = assortment.category, assortment.streams, log_multiplier.shape[1]
    chances = np.stack([rng.random(num_weeks) for rng in streams])
    class_chances = np.stack([rng.random(1 if settings.item_lifts else num_weeks) for rng in streams])
    steps = (chances > 1 - settings.step_probability).astype(int) - (chances < settings.step_probability)
    point = np.empty(chances.shape, dtype=int)
    point[:, :1] = _pick(level_prior[group], chances[:, :1])
    for t in range(1, num_weeks):
        point[:, t] = np.clip(point[:, t - 1] + steps[:, t], 0, settings.grid[2] - 1)
    lift = settings.shifts[promotion_set, _pick(lift_prior[group], class_chances)]
    means = np.exp(log_multiplier[group] + settings.levels[point + lift])
    r = settings.dispersion
    draws = [rng.negative_binomial(r, r / (r + mean)) for rng, mean in zip(streams, means, strict=True)]
    return np.stack(draws).astype(float)


def _pick(probabilities: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """(items, draws): the class of each uniform draw, for probabilities (items, classes)."""
    reached = np.cumsum(probabilities[:, :-1], axis=1)
    return np.sum([chances > reached[:, k, None] for k in range(reached.shape[1])], axis=0)
