"""Distributions from quantiles: exact at the levels, rising, inverse to their chances, and never negative."""

import numpy as np
import pytest
from scipy.stats import lognorm, norm

from mqcast.joint.marginals import Marginals

AT = np.linspace(0.001, 0.999, 333)


@pytest.mark.parametrize("not_negative", [True, False])
@pytest.mark.parametrize("levels", [(0.5,), (0.5, 0.9), (0.1, 0.5, 0.9), (0.05, 0.2, 0.5, 0.6, 0.95)])
def test_the_quantiles_are_met_exactly_and_chances_are_the_inverse(levels, not_negative):
    quantiles = np.sort(np.random.default_rng(0).gamma(2, 10, (20, len(levels))), axis=1)
    marginals = Marginals.of(levels, quantiles, not_negative)
    assert np.array_equal(marginals.at(np.array(levels)), quantiles)
    if len(levels) == 1 and not not_negative:
        return  # nothing but this number
    found = marginals.at(AT)
    assert (np.diff(found, axis=1) > 0).all()
    assert found.min() < 0 if not not_negative else found.min() >= 0
    for i, level in enumerate(AT):
        for chance in marginals.chances(found[:, i]):
            np.testing.assert_allclose(chance, level, atol=1e-9)


def test_between_quantiles_of_a_log_normal_distribution_it_is_that_distribution():
    exact, levels = lognorm(0.5, scale=20), (0.1, 0.5, 0.9)
    found = Marginals.of(levels, exact.ppf(levels)[None]).at(AT)[0]
    inside = AT <= 0.9
    np.testing.assert_allclose(found[inside], exact.ppf(AT[inside]), rtol=1e-9)
    assert found.mean() == pytest.approx(exact.mean(), rel=0.02)


def test_what_may_be_negative_is_normal_between_the_levels():
    levels = (0.1, 0.5, 0.9)
    found = Marginals.of(levels, norm(-3, 2).ppf(levels)[None], not_negative=False).at(AT)[0]
    inside = (AT >= 0.1) & (AT <= 0.9)
    np.testing.assert_allclose(found[inside], norm(-3, 2).ppf(AT[inside]), atol=1e-9)


def test_the_upper_tail_is_exponential():
    found = Marginals.of((0.5, 0.9), np.array([[10.0, 20.0]])).at(np.array([0.9, 0.99, 0.999]))[0]
    assert found[2] - found[1] == pytest.approx(found[1] - found[0])


@pytest.mark.parametrize(
    ("quantiles", "value", "below", "at"),
    [
        ((0, 0, 3), 0.0, 0.0, 0.5),  # zeros: any place up to the highest level that is 0
        ((0, 0, 3), 3.0, 0.9, 0.9),
        ((0, 2, 2), 2.0, 0.5, 1.0),
        ((4, 4, 4), 4.0, 0.0, 1.0),
        ((4, 4, 4), 3.0, 0.0, 0.0),
        ((4, 4, 4), 5.0, 1.0, 1.0),
        ((1, 2, 3), -1.0, 0.0, 0.0),
        ((0, 0, 0), 0.0, 0.0, 1.0),
    ],
)
def test_equal_quantiles_leave_a_range_of_chances(quantiles, value, below, at):
    found = Marginals.of((0.1, 0.5, 0.9), np.array([quantiles], float)).chances(np.array([value]))
    assert [float(one[0]) for one in found] == [below, at]


def test_crossing_and_negative_quantiles_are_put_right():
    found = Marginals.of((0.1, 0.5, 0.9), np.array([[5.0, -2.0, 9.0]])).at(np.array([0.1, 0.5, 0.9]))
    assert found.tolist() == [[0.0, 5.0, 9.0]]
