"""Distributions from quantiles: exact where they are proper, and a counted policy where they are not."""

from collections import Counter

import numpy as np
import pytest
from scipy.special import gammainc, gammaincinv
from scipy.stats import gamma

from mqcast.evaluation.cdf import gamma_through, linear_cdf

ALL = np.array(True)


def chance(low, high, at, levels=(0.5, 0.9)) -> tuple[float, dict[str, int]]:
    cases: Counter[str] = Counter()
    p = gamma_through(*levels).cdf(np.array([low]), np.array([high]), np.array([at]), cases, ALL)
    return float(p[0]), {name: count for name, count in cases.items() if count}


@pytest.mark.parametrize("levels", [(0.5, 0.9), (0.1, 0.9), (0.25, 0.75)])
def test_the_gamma_through_its_own_quantiles_is_found_again(levels):
    shape = np.geomspace(0.03, 5e5, 400)
    scale = np.geomspace(1e-3, 1e6, 400)[::-1]
    low, high = (scale * gammaincinv(shape, level) for level in levels)
    good = high / low < 1e11
    shape, low, high = shape[good], low[good], high[good]
    found, quantile = gamma_through(*levels).shapes(high / low)
    np.testing.assert_allclose(found, shape, rtol=1e-9)
    np.testing.assert_allclose(quantile, gammaincinv(shape, levels[0]), rtol=1e-9)


def test_chances_are_those_of_the_gamma():
    shape, scale, at = 2.3, 7.0, np.linspace(0, 60, 50)
    low, high = gamma.ppf(0.5, shape, scale=scale), gamma.ppf(0.9, shape, scale=scale)
    p = gamma_through(0.5, 0.9).cdf(np.full(50, low), np.full(50, high), at, Counter(), ALL)
    np.testing.assert_allclose(p, gammainc(shape, at / scale), atol=1e-10)
    assert chance(low, high, low)[0] == pytest.approx(0.5, abs=1e-10)
    assert chance(low, high, high)[0] == pytest.approx(0.9, abs=1e-10)


def test_all_mass_at_zero():
    assert chance(0.0, 0.0, 0.0) == (1.0, {"at_zero": 1})
    assert chance(0.0, 0.0, 3.0) == (1.0, {"at_zero": 1})


def test_a_lower_quantile_of_zero_is_half_the_mass_there_and_an_exponential_tail():
    p, cases = chance(0.0, 10.0, 0.0)
    assert (p, cases) == (pytest.approx(0.5), {"half_at_zero": 1})
    assert chance(0.0, 10.0, 10.0)[0] == pytest.approx(0.9)
    assert chance(0.0, 10.0, 5.0)[0] == pytest.approx(1 - 0.5 * np.exp(-5 * np.log(5) / 10))


def test_quantiles_without_spread_are_a_step():
    assert chance(50.0, 50.01, 49.9) == (0.0, {"no_spread": 1})
    assert chance(50.0, 50.01, 50.0) == (1.0, {"no_spread": 1})
    assert chance(50.0, 50.0, 50.0) == (1.0, {"no_spread": 1})
    p, cases = chance(50.0, 50.06, 50.0)  # narrower than the largest shape, yet no step
    assert cases == {}
    assert p == pytest.approx(0.5, abs=1e-6)


def test_proper_and_improper_quantiles_side_by_side():
    low, high = np.array([0.0, 0.0, 5.0, 5.0]), np.array([0.0, 8.0, 5.0, 9.0])
    cases: Counter[str] = Counter()
    p = gamma_through(0.5, 0.9).cdf(low, high, np.full(4, 5.0), cases, np.array([True, True, True, True]))
    expected = [1, 1 - 0.5 * np.exp(-5 * np.log(5) / 8), 1, 0.5]
    np.testing.assert_allclose(p, expected, atol=1e-9)
    assert cases == {"at_zero": 1, "half_at_zero": 1, "no_spread": 1}


def linear(quantiles, levels, at, from_zero=True) -> np.ndarray:
    q = np.broadcast_to(np.array(quantiles, float), (len(at), len(quantiles)))
    return linear_cdf(q, levels, np.array(at, float), Counter(), ALL, from_zero=from_zero)


def test_straight_lines_from_zero_through_the_quantiles():
    p = linear([10, 20, 40], (0.2, 0.5, 0.9), [0, 5, 10, 15, 20, 30, 40])
    np.testing.assert_allclose(p, [0, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])


def test_tails_are_exponential_with_the_slope_of_the_outer_two():
    width = 20 / np.log(0.5 / 0.1)
    np.testing.assert_allclose(linear([10, 30], (0.5, 0.9), [50]), 1 - 0.1 * np.exp(-20 / width))
    width = 20 / np.log(0.9 / 0.5)
    np.testing.assert_allclose(
        linear([10, 30], (0.5, 0.9), [-10, 10], from_zero=False), [0.5 * np.exp(-20 / width), 0.5]
    )


def test_equal_quantiles_are_a_point_mass():
    np.testing.assert_allclose(linear([0, 0, 8], (0.2, 0.5, 0.9), [0, 4]), [0.5, 0.7])
    np.testing.assert_allclose(linear([0, 8, 8], (0.2, 0.5, 0.9), [4, 8, 9]), [0.35, 1, 1])


def test_chances_rise_with_the_value():
    rng = np.random.default_rng(0)
    for _ in range(50):
        q = np.sort(rng.choice([0.0, 1.0, rng.gamma(2, 3), rng.gamma(2, 3)], 3))
        at = np.sort(rng.uniform(-3, 20, 60))
        for from_zero in (True, False):
            p = linear(q, (0.1, 0.5, 0.9), at, from_zero)
            assert (np.diff(p) >= -1e-12).all()
            assert p.min() >= 0
            assert p.max() <= 1
