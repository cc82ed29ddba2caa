"""The Kalman oracle against the joint normal distribution of all log demands, written out and conditioned."""

import numpy as np
import pytest
from scipy.stats import norm

from mqcast.simulate import World, lognormal_world
from mqcast.simulate.lognormal import LognormalOracle

SHAPE = (0.25, 0.6, 1.0, -0.35, -0.15)


def tiny_world(item_lifts: bool) -> World:
    rates = (0.4, 0.3)
    return lognormal_world(3, 28, 5, seed=3, num_categories=2, item_lifts=item_lifts, promo_rates=rates, psi=0.4)


def holiday_effect(world: World, week: int, holiday: int) -> float:
    """Two weeks before the holiday feel SHAPE[0], two weeks after it SHAPE[4]."""
    days = np.flatnonzero(world.holidays[:, holiday])
    return sum(SHAPE[week - day + 2] for day in days if abs(week - day) <= 2)


def joint_distribution(world: World, item: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the item's log demands in all weeks, term by term from the equations."""
    oracle = world.oracle
    assert isinstance(oracle, LognormalOracle)
    noise, g, weeks = oracle.settings, oracle.category[item], range(world.num_weeks + world.horizon)
    mean, loads = np.zeros(len(weeks)), []
    for t in weeks:
        mean[t] = oracle.categories.level[g]
        mean[t] += oracle.categories.amplitude[g] * np.sin(2 * np.pi * t / 52 + oracle.categories.phase[g])
        load: dict[tuple, float] = {("level", s): noise.sigma_0 if s == 0 else noise.sigma_eta for s in range(t + 1)}
        load["noise", t] = noise.sigma_eps
        for k in range(world.holidays.shape[1]):
            effect = holiday_effect(world, t, k)
            mean[t] += effect * oracle.categories.holiday_lift[g, k]
            load["holiday", k] = effect * noise.omega_beta
        for j in range(world.promotions.shape[2]):
            for s, share in ((t, 1.0), (t - 1, -noise.psi)):
                if s >= 0 and world.promotions[item, s, j]:
                    mean[t] += share * oracle.promo_lift[g, j]
                    lift = ("lift", j) if noise.item_lifts else ("lift", j, s)
                    load[lift] = load.get(lift, 0.0) + share * noise.omega_gamma
        loads.append(load)
    covariance = np.array([[sum(a[x] * b.get(x, 0.0) for x in a) for b in loads] for a in loads])
    return mean, covariance


@pytest.mark.parametrize("item_lifts", [True, False])
def test_the_kalman_oracle_equals_conditioning_the_joint_normal_distribution(item_lifts: bool):
    world = tiny_world(item_lifts)
    assert isinstance(world.oracle, LognormalOracle)
    assert world.holidays[: world.num_weeks].sum() >= 2
    assert np.any(world.promotions[:, 1:] & world.promotions[:, :-1])
    found_mean, found_sd = world.oracle.log_moments(0, world.num_weeks - 1)
    for item in range(3):
        mean, covariance = joint_distribution(world, item)
        surprise = np.log(world.demand[item]) - mean
        for t in range(world.num_weeks):
            past, ahead = slice(0, t + 1), slice(t + 1, t + 1 + world.horizon)
            gain = np.linalg.solve(covariance[past, past], covariance[past, ahead]).T
            sd = np.sqrt(np.diag(covariance[ahead, ahead] - gain @ covariance[past, ahead]))
            np.testing.assert_allclose(found_mean[item, :, t], mean[ahead] + gain @ surprise[past], atol=1e-9)
            np.testing.assert_allclose(found_sd[item, :, t], sd, atol=1e-9)


def test_quantiles_and_distribution_function_are_those_of_the_lognormal():
    world = tiny_world(item_lifts=True)
    assert isinstance(world.oracle, LognormalOracle)
    mean, sd = world.oracle.log_moments(4, 9)
    quantiles = world.oracle.quantiles((0.1, 0.9), 4, 9)
    np.testing.assert_allclose(quantiles[..., 1], np.exp(mean + norm.ppf(0.9) * sd), rtol=1e-12)
    np.testing.assert_allclose(world.oracle.cdf(quantiles[..., 0], 4, 9), 0.1, atol=1e-12)
    np.testing.assert_allclose(world.oracle.cdf(np.array(20.0), 4, 9), norm.cdf((np.log(20) - mean) / sd), atol=1e-12)
    assert np.all(world.oracle.cdf(np.array([[[0.0]], [[-1.0]], [[-5.0]]]), 4, 9) == 0)


def test_simulated_demand_has_the_mean_and_variance_of_the_equations():
    """Whitened by the joint distribution, the log demands of all items and weeks are standard normal."""
    world = lognormal_world(400, 24, 4, num_categories=2, promo_rates=(0.3, 0.3))
    white = []
    for item in range(400):
        mean, covariance = joint_distribution(world, item)
        white.append(np.linalg.solve(np.linalg.cholesky(covariance), np.log(world.demand[item]) - mean))
    draws = np.ravel(white)
    assert abs(draws.mean()) < 3 / np.sqrt(draws.size)
    assert abs(draws.var() - 1) < 3 * np.sqrt(2 / draws.size)


def test_without_item_lifts_only_promoted_weeks_and_their_dips_change():
    own, fresh = (lognormal_world(20, 60, 8, item_lifts=item_lifts) for item_lifts in (True, False))
    promoted = np.pad(np.any(own.promotions, axis=2), ((0, 0), (1, 0)))
    touched = promoted[:, 1:] | promoted[:, :-1]
    np.testing.assert_array_equal(own.promotions, fresh.promotions)
    np.testing.assert_allclose(own.demand[~touched], fresh.demand[~touched], rtol=1e-12)
    assert np.mean(own.demand[touched] != fresh.demand[touched]) > 0.95  # a lift of week 0 is the first draw of both
