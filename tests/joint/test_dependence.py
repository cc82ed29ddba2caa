"""The dependence of steps: recovered where it is known, careful where there is little to see, the same after saving."""

import json

import numpy as np
import polars as pl
import pytest
from scipy.stats import nbinom

from mqcast import ArtifactError, ConfigError
from mqcast.errors import DataError, MissingColumnError, TooFewRevisionsError
from mqcast.joint import Dependence, fit_dependence
from tests.joint.samples import actuals_of, autoregression, correlation_of, frame_of


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_the_dependence_of_an_autoregression_is_recovered(rho):
    found = fit_dependence(*autoregression(rho, series=60))
    assert np.abs(found.correlation - correlation_of(rho, 6)).max() < 0.06
    assert (found.num_forecasts, found.num_cutoffs) == (60 * 60, 60)


def test_forecasts_that_are_too_high_or_too_narrow_show_the_same_dependence():
    forecasts, actuals = autoregression(0.7, series=50)
    middle, outer = pl.col("q0.5"), pl.col("q0.1", "q0.3", "q0.7", "q0.9")
    wrong = forecasts.with_columns(middle + 8, outer * 0.5 + middle * 0.5 + 8)
    found, right = (fit_dependence(one, actuals).correlation for one in (wrong, forecasts))
    assert np.abs(found - right).max() < 0.05


def test_counts_that_are_often_zero_show_no_dependence_where_there_is_none():
    """Outcomes of 0 have the same place in the forecasts of all steps, unless it is drawn."""
    rng, levels = np.random.default_rng(0), (0.1, 0.5, 0.9)
    demand = nbinom(2, 2 / 2.5).rvs((150, 46), random_state=rng)
    quantiles = np.broadcast_to(nbinom(2, 2 / 2.5).ppf(levels), (150, 40, 6, 3))
    found = fit_dependence(frame_of(quantiles, levels), actuals_of(demand.astype(float)))
    assert np.abs(found.correlation - np.eye(6)).max() < 0.03


def test_with_little_evidence_the_correlation_is_drawn_towards_one_half():
    few = fit_dependence(*autoregression(0.0, series=1, cutoffs=8, horizon=4)).correlation
    many = fit_dependence(*autoregression(0.0, series=100, cutoffs=40, horizon=4)).correlation
    off = ~np.eye(4, dtype=bool)
    assert few[off].mean() > many[off].mean() + 0.1
    assert np.abs(many[off]).max() < 0.05


def test_too_few_dates_or_cutoffs_are_refused_with_the_count_that_is_needed():
    with pytest.raises(TooFewRevisionsError, match="have 6 target dates with demand, and 8 are needed"):
        fit_dependence(*autoregression(0.5, series=3, cutoffs=3, horizon=4))
    with pytest.raises(TooFewRevisionsError, match="have 2 cutoffs with demand, and 3 are needed"):
        fit_dependence(*autoregression(0.5, series=3, cutoffs=2, horizon=9))


def test_how_far_series_of_a_group_go_together_is_recovered():
    forecasts, actuals = autoregression(0.5, series=40, shared=0.4)
    static = pl.DataFrame({"unique_id": [f"s{i:03}" for i in range(40)], "parity": ["even", "odd"] * 20})
    static = static.with_columns(pair=pl.Series([f"p{i // 2}" for i in range(40)]))
    found = fit_dependence(forecasts, actuals, static=static, groups=["parity", "pair"]).groups
    assert found["parity"] == pytest.approx(0.4, abs=0.06)
    assert found["pair"] < 0.06  # one even series and one odd
    with pytest.raises(MissingColumnError, match="no static column 'party' \\(did you mean 'parity'"):
        fit_dependence(forecasts, actuals, static=static, groups=["party"])
    with pytest.raises(DataError, match="series 's000', column 'pair'"):
        fit_dependence(forecasts, actuals, static=static[1:], groups=["pair"])


def test_a_saved_dependence_is_the_same_to_the_bit_and_a_damaged_one_is_refused():
    found = fit_dependence(*autoregression(0.6, series=10))
    again = Dependence.from_json(found.to_json())
    assert again.correlation.tobytes() == found.correlation.tobytes()
    assert again.to_json() == found.to_json()
    facts = json.loads(found.to_json())
    for change in (
        {"correlation": [[1, 0.5]]},
        {"correlation": [[1, 2], [2, 1]]},
        {"version": 2},
        {"groups": {"a": 3}},
    ):
        with pytest.raises(ArtifactError, match="this is no dependence"):
            Dependence.from_json(json.dumps(facts | change))


def test_draws_have_the_correlation_and_every_rank_once_a_step():
    exact = correlation_of(0.8, 5)
    ranks = Dependence(exact, True, 0, 0).template(seed=1)
    assert (np.sort(ranks, axis=1) == np.arange(2048)).all()
    spearman = np.corrcoef(ranks)
    np.testing.assert_allclose(spearman, 6 / np.pi * np.arcsin(exact / 2), atol=0.01)


def test_draws_of_a_series_depend_neither_on_others_nor_on_the_horizon():
    dependence = Dependence(correlation_of(0.8, 5), True, 0, 0, {"store": 0.5})
    all_of_them = dependence.ranks(["a", "b", "c"], 5, 50, 3, ["x", "x", "y"], 0.5)
    alone = dependence.ranks(["b"], 3, 50, 3, ["x"], 0.5)
    assert np.array_equal(all_of_them[1, :3], alone[0])
    assert not np.array_equal(all_of_them[0], dependence.ranks(["a"], 5, 50, 4, ["x"], 0.5)[0])


def test_draws_of_series_of_one_group_go_together():
    dependence = Dependence(correlation_of(0.3, 3), True, 0, 0, {"store": 0.6})
    ranks = dependence.ranks(["a", "b", "c"], 3, 4000, 0, ["x", "x", "y"], dependence.share_of("store"))
    together, apart = (np.corrcoef(ranks[0, 1], ranks[i, 1])[0, 1] for i in (1, 2))
    assert together == pytest.approx(6 / np.pi * np.arcsin(0.3), abs=0.05)
    assert abs(apart) < 0.05
    with pytest.raises(ConfigError, match="no dependence was learnt between series of one 'stor'"):
        dependence.share_of("stor")
