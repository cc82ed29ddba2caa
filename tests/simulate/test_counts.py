"""The count oracle against the enumeration of every path of the hidden level, and against a plain forward filter."""

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from scipy.stats import nbinom

from mqcast.errors import ConfigError
from mqcast.simulate import World, count_world
from mqcast.simulate.counts import CountOracle

CLASSES, STRENGTHS, R = (0.0, 1.0), (1.0, 2.0), 2.5
GRID = np.array([-1.0, 0.0, 1.0, 2.0])


def tiny_world(num_weeks: int, item_lifts: bool) -> tuple[World, CountOracle]:
    """Three items on a grid of four levels, with multipliers that change from week to week."""
    world = count_world(
        3,
        num_weeks,
        horizon=2,
        seed=2,
        num_categories=2,
        item_lifts=item_lifts,
        grid=(-1.0, 2.0, 4),
        step_probability=0.3,
        lift_classes=CLASSES,
        promo_strengths=STRENGTHS,
        dispersion=R,
        promo_rates=(0.4, 0.3),
    )
    assert isinstance(world.oracle, CountOracle)
    multiplier = np.random.default_rng(5).normal(0, 0.5, world.oracle.log_multiplier.shape)
    return world, replace(world.oracle, log_multiplier=multiplier)


def step_probability(a: int, b: int) -> float:
    if a == b:
        return 0.4 if 0 < a < 3 else 0.7
    return 0.3 if abs(a - b) == 1 else 0.0


def mean_demand(world: World, oracle: CountOracle, item: int, week: int, x: int, kappa: int) -> float:
    strength = sum(s for s, on in zip(STRENGTHS, world.promotions[item, week], strict=True) if on)
    return np.exp(oracle.log_multiplier[oracle.category[item], week] + GRID[x] + CLASSES[kappa] * strength)


def demand_given(mean: float) -> Any:
    return nbinom(R, R / (R + mean))


def cdf_by_enumeration(world: World, oracle: CountOracle, item: int, t: int, lead: int, value: int) -> float:
    """P(Y_t+lead <= value, y_0..t) / P(y_0..t), summed over all paths of level and lift class."""
    g, weeks = oracle.category[item], range(t + 1)
    laws = np.empty((t + lead + 1, 4, 2), dtype=object)
    for week, x, kappa in np.ndindex(laws.shape):
        laws[week, x, kappa] = demand_given(mean_demand(world, oracle, item, week, x, kappa))
    seen = np.array([[[laws[w, x, k].pmf(world.demand[item, w]) for k in (0, 1)] for x in range(4)] for w in weeks])
    reached = np.array([[laws[t + lead, x, k].cdf(value) for k in (0, 1)] for x in range(4)])
    joint = both = 0.0
    for path in product(range(4), repeat=t + lead + 1):
        chance = oracle.level_prior[g, path[0]]
        chance *= np.prod([step_probability(a, b) for a, b in pairwise(path)])
        if chance == 0:
            continue
        for drawn in product((0, 1), repeat=1 if oracle.settings.item_lifts else t + 2):
            kappas = drawn * (t + 2) if oracle.settings.item_lifts else drawn
            weight = chance * np.prod(oracle.lift_prior[g][list(drawn)])
            weight *= np.prod([seen[w, path[w], kappas[w]] for w in weeks])
            joint += weight
            both += weight * reached[path[t + lead], kappas[t + 1]]
    return both / joint


@pytest.mark.parametrize("item_lifts", [True, False])
def test_the_forward_filter_equals_the_enumeration_of_all_hidden_paths(item_lifts: bool):
    world, oracle = tiny_world(num_weeks=3, item_lifts=item_lifts)
    assert world.promotions[:, :3].any()
    for value in (0, 3):
        found = oracle.cdf(np.array(float(value)), 0, 2)
        for item, t, lead in product(range(3), (0, 1, 2), (1, 2)):
            expected = cdf_by_enumeration(world, oracle, item, t, lead, value)
            assert found[item, lead - 1, t] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("item_lifts", [True, False])
def test_the_forward_filter_equals_a_plain_loop_over_a_longer_past(item_lifts: bool):
    world, oracle = tiny_world(num_weeks=15, item_lifts=item_lifts)
    found = oracle.cdf(np.array(2.0), 5, 14)
    for item in range(3):
        g = oracle.category[item]
        alpha = {(x, k): oracle.level_prior[g, x] * oracle.lift_prior[g, k] for x in range(4) for k in (0, 1)}
        for t in range(15):
            alpha = {
                (x, k): a * demand_given(mean_demand(world, oracle, item, t, x, k)).pmf(world.demand[item, t])
                for (x, k), a in alpha.items()
            }
            total = sum(alpha.values())
            ahead = alpha = {state: a / total for state, a in alpha.items()}
            for lead in (1, 2):
                ahead = walked(ahead, oracle.lift_prior[g], item_lifts)
                laws = {s: demand_given(mean_demand(world, oracle, item, t + lead, *s)) for s in ahead}
                if t >= 5:
                    expected = sum(a * laws[s].cdf(2) for s, a in ahead.items())
                    assert found[item, lead - 1, t - 5] == pytest.approx(expected, abs=1e-12)
            alpha = walked(alpha, oracle.lift_prior[g], item_lifts)


def walked(alpha: dict, lift_prior: np.ndarray, item_lifts: bool) -> dict:
    out = dict.fromkeys(alpha, 0.0)
    for (a, k), (b, new) in product(alpha, alpha):
        stays = float(k == new) if item_lifts else lift_prior[new]
        out[b, new] += alpha[a, k] * step_probability(a, b) * stays
    return out


def test_a_quantile_is_the_smallest_integer_that_reaches_its_level():
    world = count_world(60, 30, 4, num_categories=2, promo_rates=(0.2, 0.2))
    levels = (0.02, 0.5, 0.9, 0.995)
    quantiles = world.oracle.quantiles(levels, 10, 29)
    np.testing.assert_array_equal(quantiles, np.floor(quantiles))
    assert quantiles.min() == 0
    for i, level in enumerate(levels):
        assert np.all(world.oracle.cdf(quantiles[..., i], 10, 29) >= level - 1e-12)
        assert np.all(world.oracle.cdf(quantiles[..., i] - 1, 10, 29) < level)


def test_the_answer_does_not_depend_on_the_levels_or_times_asked_for_together():
    world = count_world(40, 30, 4, num_categories=3)
    together = world.oracle.quantiles((0.1, 0.5, 0.9), 0, 29)
    np.testing.assert_array_equal(world.oracle.quantiles((0.5,), 12, 17)[..., 0], together[:, :, 12:18, 1])


def test_chunks_of_items_change_nothing(monkeypatch: pytest.MonkeyPatch):
    world = count_world(40, 20, 3, num_categories=2)
    whole = world.oracle.cdf(np.array(3.0), 0, 19)
    monkeypatch.setattr("mqcast.simulate.counts.CHUNK_BYTES", 60_000)
    np.testing.assert_allclose(world.oracle.cdf(np.array(3.0), 0, 19), whole, atol=1e-13)


def test_the_known_multiplier_is_season_and_holidays_of_the_category():
    world = count_world(5, 60, 4, num_categories=2)
    assert isinstance(world.oracle, CountOracle)
    quiet = np.ones(64, dtype=bool)
    for day in np.flatnonzero(world.holidays.any(axis=1)):
        quiet[max(0, day - 2) : day + 3] = False
    week = np.arange(64)
    waves = np.stack([np.sin(2 * np.pi * week / 52), np.cos(2 * np.pi * week / 52)], axis=1)
    log_m = world.oracle.log_multiplier
    for g in range(2):
        wave, *_ = np.linalg.lstsq(waves[quiet], log_m[g, quiet], rcond=None)
        excess = log_m[g] - waves @ wave
        np.testing.assert_allclose(excess[quiet], 0, atol=1e-12)
        day = np.flatnonzero(world.holidays[:60].any(axis=1))[0]
        shape = excess[day - 2 : day + 3] / excess[day]
        np.testing.assert_allclose(shape, (0.25, 0.6, 1.0, -0.35, -0.15), atol=1e-9)


def test_demand_is_whole_with_some_zeros():
    demand = count_world(100, 50, 4).demand
    np.testing.assert_array_equal(demand, np.floor(demand))
    assert 0.02 < np.mean(demand == 0) < 0.4


@pytest.mark.parametrize(
    "setting",
    [
        {"grid": (1.0, 0.0, 5)},
        {"step_probability": 0.6},
        {"dispersion": 0.0},
        {"lift_classes": (0.0, 0.33)},
        {"lift_classes": (-0.4,)},
        {"lift_classes": ()},
        {"sigma_0": 0.0},
    ],
)
def test_impossible_settings_are_refused(setting: dict):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        count_world(2, 10, 2, **setting)


def test_paths_of_the_oracle_have_its_distributions_and_totals_that_demand_is_a_draw_of():
    world = count_world(300, 30, horizon=4, seed=3, grid=(-1.0, 3.0, 21), lift_classes=(0.0, 0.4, 0.8))
    assert isinstance(world.oracle, CountOracle)
    paths = world.oracle.paths(20, 400, seed=1)
    medians = world.oracle.quantiles([0.5], 20, 20)[:, :, 0]
    exact = world.oracle.cdf(medians, 20, 20)[..., 0]
    assert np.abs((paths <= medians).mean(axis=2) - exact).mean() < 0.03
    total, drawn = world.demand[:, 21:25].sum(axis=1)[:, None], paths.sum(axis=1)
    place = ((drawn < total).mean(axis=1) + (drawn <= total).mean(axis=1)) / 2
    assert place.mean() == pytest.approx(0.5, abs=0.05)
    assert place.std() == pytest.approx(1 / np.sqrt(12), abs=0.03)
