"""Log-normal demand with unknown lifts per item, and a Kalman filter that forecasts it exactly.

    log Y_it = ℓ_it + a_g sin(2πt/52 + φ_g) + Σ_k β_ik f_k(t) + Σ_j γ_ij (u_ij,t - ψ u_ij,t-1) + ε_it
    ℓ_it = ℓ_i,t-1 + η_it,   η ~ N(0, σ_η²),   ε ~ N(0, σ_ε²),   ℓ_i0 ~ N(μ_g, σ_0²)
    β_ik ~ N(b_kg, ω_β²),   γ_ij ~ N(c_jg, ω_γ²)

for item i in category g. f_k is the shape of holiday k, and u_ij are the promotions of type j, which are followed by a
dip ψ. The lifts β_i and γ_i have to be learnt from past holidays and promotions of the item. With `item_lifts=False`, a
new γ is drawn for each promotion and week, so that the past contains no information about it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from mqcast.simulate.world import (
    PROMOTIONS,
    Assortment,
    Categories,
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

ITEMS_A_CHUNK = 1024


@dataclass(frozen=True)
class LognormalSettings:
    """Standard deviations on the log scale, and the dip after promotions; validated when created."""

    sigma_eta: float
    sigma_eps: float
    sigma_0: float
    omega_beta: float
    omega_gamma: float
    psi: float
    item_lifts: bool

    def __post_init__(self):
        for name in ("sigma_eta", "sigma_0", "omega_beta", "omega_gamma"):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}", "give 0 or more")
        require(self.sigma_eps > 0, f"sigma_eps is {self.sigma_eps}", "give more than 0")


@dataclass(frozen=True, eq=False)
class LognormalOracle:
    """log Y_t+h given the weeks 0..t is normal, with the mean and variance of a Kalman filter.

    The state is z_t = (ℓ_t, β, γ). If lifts are drawn for each promotion, it is (ℓ_t, β, γ_t, γ_t-1), since the dip of
    week t+1 has the lift of the promotion in week t.
    """

    settings: LognormalSettings
    horizon: int
    num_weeks: int
    demand: np.ndarray  # (items, weeks)
    promotions: np.ndarray  # (items, weeks, promotion types)
    holiday_effects: np.ndarray  # (weeks, holidays)
    category: np.ndarray  # (items,)
    categories: Categories
    promo_lift: np.ndarray  # (categories, promotion types): c

    def quantiles(self, levels: Sequence[float], first: int, last: int) -> np.ndarray:
        check_levels(levels)
        mean, sd = self.log_moments(first, last)
        out = np.empty((*mean.shape, len(levels)))
        for i, level in enumerate(levels):
            np.exp(mean + ndtri(level) * sd, out=out[..., i])
        return out

    def cdf(self, values: np.ndarray, first: int, last: int) -> np.ndarray:
        mean, sd = self.log_moments(first, last)
        with np.errstate(divide="ignore"):
            log_values = np.log(np.maximum(values, 0.0))
        return ndtr((log_values - mean) / sd)

    def log_moments(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of log demand, each (items, horizon, creation times first..last)."""
        check_creation_times(first, last, self.num_weeks)
        shape = (len(self.demand), self.horizon, last - first + 1)
        mean, sd = np.empty(shape), np.empty(shape)
        for start in range(0, len(self.demand), ITEMS_A_CHUNK):
            rows = slice(start, start + ITEMS_A_CHUNK)
            season = self.categories.season(self.demand.shape[1])[self.category[rows]]
            regressors = self._regressors(rows)
            for t, state, covariance in self._filtered(rows, regressors, season, last):
                if t >= first:
                    ahead = regressors[:, t + 1 : t + 1 + self.horizon]
                    loc, variance = self._predictive(rows, ahead, state, covariance)
                    mean[rows, :, t - first] = loc + season[:, t + 1 : t + 1 + self.horizon]
                    sd[rows, :, t - first] = np.sqrt(variance)
        return mean, sd

    def paths(self, time: int, num_paths: int, seed: int = 0) -> np.ndarray:
        """(items, horizon, paths): draws of demand in the weeks after a creation time, given what is known then."""
        check_creation_times(time, time, self.num_weeks)
        require(self.settings.item_lifts, "paths of lifts that are drawn every week", "leave item_lifts True")
        rng, parts = np.random.default_rng(seed), []
        for start in range(0, len(self.demand), ITEMS_A_CHUNK):
            rows = slice(start, start + ITEMS_A_CHUNK)
            season = self.categories.season(self.demand.shape[1])[self.category[rows]]
            regressors = self._regressors(rows)
            *_, (_, mean, covariance) = self._filtered(rows, regressors, season, time)
            size, ahead = len(mean), slice(time + 1, time + 1 + self.horizon)
            noise = rng.standard_normal((size, num_paths, mean.shape[1]))
            values, vectors = np.linalg.eigh(covariance)
            root = vectors * np.sqrt(np.maximum(values, 0))[:, None]
            state = mean[:, None] + noise @ root.transpose(0, 2, 1)
            level = self.settings.sigma_eta * rng.standard_normal((size, self.horizon, num_paths)).cumsum(axis=1)
            level += self.settings.sigma_eps * rng.standard_normal(level.shape)
            level += season[:, ahead, None] + regressors[:, ahead] @ state.transpose(0, 2, 1)
            parts.append(np.exp(level))
        return np.concatenate(parts)

    def _regressors(self, rows: slice) -> np.ndarray:
        """(items, weeks, state): Z_t, with which log Y_t = Z_t·z_t + season + ε."""
        now = self.promotions[rows].astype(float)
        dip = -self.settings.psi * _week_before(now)
        level = np.ones((*now.shape[:2], 1))
        holidays = np.broadcast_to(self.holiday_effects, (len(now), *self.holiday_effects.shape))
        lifts = [now + dip] if self.settings.item_lifts else [now, dip]
        return np.concatenate([level, holidays, *lifts], axis=2)

    def _prior(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Mean (items, state) and covariance (items, state, state) of z_0."""
        settings, group = self.settings, self.category[rows]
        means = [self.categories.level[group, None], self.categories.holiday_lift[group], self.promo_lift[group]]
        num_holidays, num_promos = means[1].shape[1], means[2].shape[1]
        spread = [settings.sigma_0] + [settings.omega_beta] * num_holidays + [settings.omega_gamma] * num_promos
        if not settings.item_lifts:
            means.append(np.zeros((len(group), num_promos)))
            spread += [0.0] * num_promos
        covariance = np.diag(np.square(spread))
        return np.concatenate(means, axis=1), np.repeat(covariance[None], len(group), axis=0)

    def _advance(self, rows: slice, mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The state one week later: the level moves and, if lifts are drawn again, γ_t-1 ← γ_t ~ N(c, ω_γ²)."""
        mean, covariance = mean.copy(), covariance.copy()
        covariance[:, 0, 0] += self.settings.sigma_eta**2
        if not self.settings.item_lifts:
            num_promos = self.promo_lift.shape[1]
            before = slice(mean.shape[1] - num_promos, None)
            now = slice(mean.shape[1] - 2 * num_promos, mean.shape[1] - num_promos)
            mean[:, before] = mean[:, now]
            mean[:, now] = self.promo_lift[self.category[rows]]
            covariance[:, before] = covariance[:, now]
            covariance[:, :, before] = covariance[:, :, now]
            covariance[:, now] = 0
            covariance[:, :, now] = 0
            covariance[:, now, now] = self.settings.omega_gamma**2 * np.eye(num_promos)
        return mean, covariance

    def _filtered(
        self, rows: slice, regressors: np.ndarray, season: np.ndarray, last: int
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Mean and covariance of z_t given weeks 0..t, for t = 0..last."""
        mean, covariance = self._prior(rows)
        observed = np.log(self.demand[rows, : last + 1]) - season[:, : last + 1]
        for t in range(last + 1):
            if t > 0:
                mean, covariance = self._advance(rows, mean, covariance)
            z = regressors[:, t]
            covariance_z = np.einsum("nij,nj->ni", covariance, z)
            innovation = observed[:, t] - np.einsum("ni,ni->n", z, mean)
            variance = np.einsum("ni,ni->n", z, covariance_z) + self.settings.sigma_eps**2
            gain = covariance_z / variance[:, None]
            mean = mean + gain * innovation[:, None]
            covariance = covariance - gain[:, :, None] * covariance_z[:, None, :]
            yield t, mean, covariance

    def _predictive(
        self, rows: slice, ahead: np.ndarray, mean: np.ndarray, covariance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of log demand minus season, (items, horizon), in the weeks with regressors `ahead`.

        From lead 2 on, only the variance of the level grows: lifts that are drawn again have their prior by then.
        """
        one_week_on = self._advance(rows, mean, covariance)
        two_weeks_on = self._advance(rows, *one_week_on)
        next_week, later = (ahead[:, :1], ahead[:, 1:])
        parts = [(next_week, *one_week_on), (later, *two_weeks_on)]
        loc = np.concatenate([np.einsum("nhi,ni->nh", z, m) for z, m, _ in parts], axis=1)
        variance = np.concatenate([np.einsum("nhi,nhi->nh", z @ p, z) for z, _, p in parts], axis=1)
        walked = np.maximum(np.arange(ahead.shape[1]) - 1, 0) * self.settings.sigma_eta**2
        return loc, variance + walked + self.settings.sigma_eps**2


def lognormal_world(
    num_items: int = 200,
    num_weeks: int = 208,
    horizon: int = 26,
    seed: int = 0,
    *,
    num_categories: int = 8,
    item_lifts: bool = True,
    sigma_eta: float = 0.08,
    sigma_eps: float = 0.35,
    sigma_0: float = 1.2,
    omega_beta: float = 0.3,
    omega_gamma: float = 0.3,
    mu: float = 3.0,
    psi: float = 0.3,
    promo_rates: tuple[float, float] = (0.06, 0.04),
) -> World:
    """Continuous demand with movable holidays, promotions and lifts per item; its oracle is a Kalman filter.

    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4, seed=1)
    >>> world.frame.columns
    ['unique_id', 'ds', 'y', 'promo_display', 'promo_coupon']
    """
    size = Size(num_items, num_weeks, horizon, num_categories)
    settings = LognormalSettings(sigma_eta, sigma_eps, sigma_0, omega_beta, omega_gamma, psi, item_lifts)
    calendar, category_stream, item_streams = random_streams(seed, num_items)
    holidays = draw_holidays(calendar, num_weeks + 3 * horizon + 1)
    effects = holiday_effects(holidays)[: size.total_weeks]
    categories = draw_categories(category_stream, num_categories, mu, max_amplitude=0.5)
    promo_lift = category_stream.uniform(0.2, 1.0, (num_categories, len(PROMOTIONS)))
    assortment = draw_assortment(item_streams, num_categories, size.total_weeks, promo_rates)
    demand = _simulate(settings, assortment, effects, categories, promo_lift)
    oracle = LognormalOracle(
        settings=settings,
        horizon=horizon,
        num_weeks=num_weeks,
        demand=demand,
        promotions=assortment.promotions,
        holiday_effects=effects,
        category=assortment.category,
        categories=categories,
        promo_lift=promo_lift,
    )
    return assemble_world("lognormal", size, assortment, holidays, demand, oracle)


def _simulate(
    settings: LognormalSettings,
    assortment: Assortment,
    effects: np.ndarray,
    categories: Categories,
    promo_lift: np.ndarray,
) -> np.ndarray:
    """(items, weeks): demand. The lifts are drawn last, so that `item_lifts` changes nothing else."""
    group = assortment.category
    num_weeks, num_holidays = effects.shape
    walk, noise, beta = (_normals(assortment, shape) for shape in (num_weeks, num_weeks, num_holidays))
    gamma = _normals(assortment, (1 if settings.item_lifts else num_weeks, len(PROMOTIONS)))
    walk *= np.where(np.arange(num_weeks) == 0, settings.sigma_0, settings.sigma_eta)
    level = categories.level[group, None] + np.cumsum(walk, axis=1)
    holiday = np.einsum("nk,tk->nt", categories.holiday_lift[group] + settings.omega_beta * beta, effects)
    lift = (promo_lift[group, None] + settings.omega_gamma * gamma) * assortment.promotions
    promotion = (lift - settings.psi * _week_before(lift)).sum(axis=2)
    return np.exp(level + categories.season(num_weeks)[group] + holiday + promotion + settings.sigma_eps * noise)


def _normals(assortment: Assortment, shape: int | tuple[int, ...]) -> np.ndarray:
    return np.stack([rng.standard_normal(shape) for rng in assortment.streams])


def _week_before(weekly: np.ndarray) -> np.ndarray:
    """The same (items, weeks, ...) array one week late; nothing precedes week 0."""
    return np.concatenate([np.zeros_like(weekly[:, :1]), weekly[:, :-1]], axis=1)
