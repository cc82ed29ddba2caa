"""Totals over spans: right where the answer is known, refused where a span cannot be, judged against sums of demand."""

import numpy as np
import polars as pl
import pytest
from scipy.stats import norm

from mqcast import ConfigError, DataError, Policy, orders
from mqcast.joint import Dependence, evaluate_spans, fit_dependence, paths_of, span_quantiles
from mqcast.joint.spans import span_of, spans_of
from tests.joint.samples import LEVELS, WEEK, actuals_of, autoregression, correlation_of, frame_of


def normal(levels: tuple[float, ...] = LEVELS) -> pl.DataFrame:
    return frame_of(np.broadcast_to(100 + 10 * norm.ppf(levels), (2, 1, 6, len(levels))), levels)


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.95])
def test_totals_of_normal_steps_are_normal_with_the_variance_of_their_sum(rho):
    correlation = correlation_of(rho, 6)
    found = span_quantiles(normal((0.01, *LEVELS, 0.99)), [(1, 4), (3, 6)], Dependence(correlation, False, 0, 0))
    for first, last in ((1, 4), (3, 6)):
        part = slice(first - 1, last)
        exact = norm(400, 10 * np.sqrt(correlation[part, part].sum()))
        row = found.filter((pl.col("first") == first) & (pl.col("last") == last))
        for level in LEVELS:
            assert row[f"q{level:g}"][0] == pytest.approx(exact.ppf(level), abs=0.05 * exact.std())


def test_the_totals_of_an_autoregression_are_covered_as_often_as_they_should_be():
    forecasts, actuals = autoregression(0.8, series=40, cutoffs=50)
    dates = forecasts["cutoff"].unique().sort()
    learnt = fit_dependence(forecasts.filter(pl.col("cutoff") < dates[30]), actuals.filter(pl.col("ds") < dates[30]))
    later = forecasts.filter(pl.col("cutoff") >= dates[36])
    for dependence, is_right in (
        (learnt, True),
        (Dependence.constant(6, 0), False),
        (Dependence.constant(6, 0.999), False),
    ):
        found = evaluate_spans(span_quantiles(later, [(1, 6)], dependence), actuals)
        assert (abs(found["coverage_q0.9"][0] - 0.9) < 0.02) == is_right


def test_a_span_of_one_step_has_the_quantiles_of_that_step():
    frame = normal().with_columns(pl.col("^q.*$") * pl.col("horizon"))
    found = span_quantiles(frame, [(3, 3)], Dependence.constant(6, 0.5))
    assert found["q0.7"].to_list() == frame.filter(pl.col("horizon") == 3)["q0.7"].to_list()


def test_the_quantiles_of_a_span_do_not_depend_on_other_spans_or_series():
    frame, dependence = autoregression(0.5, series=3, cutoffs=2)[0], Dependence.constant(6, 0.5)
    both = span_quantiles(frame, [(1, 4), (2, 6)], dependence)
    alone = span_quantiles(frame.filter(pl.col("unique_id") == "s001"), [(1, 4)], dependence)
    assert both.filter((pl.col("unique_id") == "s001") & (pl.col("last") == 4)).equals(alone)


def test_paths_and_totals_agree():
    frame, dependence = autoregression(0.5, series=2, cutoffs=1)[0], Dependence(correlation_of(0.5, 6), True, 0, 0)
    found = span_quantiles(frame, [(2, 5)], dependence, (0.1, 0.5, 0.9))
    summed = paths_of(frame, dependence, 4000).values[:, 1:5].sum(axis=1)
    for level in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(found[f"q{level:g}"], np.quantile(summed, level, axis=1), atol=3)


def test_the_frame_says_which_steps_and_dates_and_orders_read_it():
    found = span_quantiles(normal(), [(1, 4), (2, 5)], Dependence.constant(6, 0.3))
    keys = ["unique_id", "cutoff", "start", "ds", "first", "last", "span"]
    assert found.columns == [*keys, *(f"q{level:g}" for level in LEVELS)]
    assert found["span"].to_list() == [4, None] * 2
    assert ((found["start"] - found["cutoff"]).to_numpy() == found["first"].to_numpy() * WEEK).all()
    assert ((found["ds"] - found["cutoff"]).to_numpy() == found["last"].to_numpy() * WEEK).all()
    stock = pl.DataFrame({"unique_id": ["s000", "s001"], "on_hand": [0.0, 0.0]})
    ordered = orders(found, stock, Policy(lead_time=3, service_level=0.9))
    assert ordered["base_stock"].to_list() == found.filter(pl.col("span") == 4)["q0.9"].to_list()


def test_series_that_lack_a_step_are_left_out():
    frame = normal().filter(~((pl.col("unique_id") == "s001") & (pl.col("horizon") == 2)))
    found = span_quantiles(frame, [(1, 3), (3, 6)], Dependence.constant(6, 0.3))
    assert found.select("unique_id", "first").rows() == [("s000", 1), ("s000", 3), ("s001", 3)]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(1, 7)], r"span \(1, 7\) goes beyond the horizon of 6; end it at 6"),
        ([(4, 1)], r"span \(4, 1\) ends before it begins; give \(1, 4\)"),
        ([(0, 3)], "a step of a span is 0; give a whole number"),
        ([(1, 2.5)], "a step of a span is 2.5; give a whole number"),
        ([(1, 4), (1, 4)], r"span \(1, 4\) is given twice"),
        ((1, 4), r"give pairs of first and last step: \[\(1, 4\)\]"),
        ([], "give pairs of first and last step"),
        ("1-4", "give pairs of first and last step"),
        ([(1, 2, 3)], r"span \(1, 2, 3\) is no pair"),
    ],
)
def test_a_span_that_cannot_be_is_refused_in_one_line(spans, message):
    with pytest.raises(ConfigError, match=message):
        span_quantiles(normal(), spans, Dependence.constant(6, 0.5))
    assert spans_of([(1, 4), (6, 6)], 6) == [(1, 4), (6, 6)]


def test_spans_of_the_command_line_are_read():
    assert span_of("3-8") == (3, 8)
    with pytest.raises(ConfigError, match="span is '3:8'; give its first and its last step, such as 1-4"):
        span_of("3:8")


def test_totals_are_judged_by_sums_of_demand_and_those_with_a_missing_step_are_left_out():
    forecasts, actuals = autoregression(0.5, series=5, cutoffs=10)
    found = span_quantiles(forecasts, [(1, 3), (2, 6)], Dependence.constant(6, 0.5))
    lost = actuals.filter(~((pl.col("unique_id") == "s002") & (pl.col("ds") == actuals["ds"].unique().sort()[4])))
    table = evaluate_spans(found, lost)
    y = actuals["y"].to_numpy().reshape(5, -1)
    for row, (first, last) in enumerate(((1, 3), (2, 6))):
        part = found.filter((pl.col("first") == first) & (pl.col("last") == last))
        sums = np.array([[y[i, t + first : t + last + 1].sum() for t in range(10)] for i in range(5)])
        kept = np.array([[not (i == 2 and t + first <= 4 <= t + last) for t in range(10)] for i in range(5)])
        for level in LEVELS:
            error = (sums.ravel() - part[f"q{level:g}"].to_numpy())[kept.ravel()]
            loss = np.maximum(level * error, (level - 1) * error).mean()
            assert table[f"quantile_loss_q{level:g}"][row] == pytest.approx(loss)
            assert table[f"coverage_q{level:g}"][row] == pytest.approx((error <= 0).mean())
        assert (table["rows"][row], table["left_out"][row]) == (kept.sum(), (~kept).sum())
    with pytest.raises(DataError, match="no total over steps 1 to 3 has demand of all its steps"):
        evaluate_spans(found, actuals_of(np.full((5, 16), np.nan)).with_columns(pl.col("y").fill_nan(None)))
