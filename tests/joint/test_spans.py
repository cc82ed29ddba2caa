"""Totals over spans: right where the answer is known, refused where a span cannot be, judged against sums of demand."""

import numpy as np
import polars as pl
import pytest
from scipy.stats import norm

from mqcast import ConfigError, DataError, Policy, SchemaError, evaluate, implausible, orders, volatility
from mqcast.joint import Dependence, fit_dependence, paths_of, span_quantiles
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
        found = evaluate(span_quantiles(later, [(1, 6)], dependence), actuals)
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
    table = evaluate(found, lost)
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
        evaluate(found, actuals_of(np.full((5, 16), np.nan)).with_columns(pl.col("y").fill_nan(None)))


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_totals_of_several_models_are_judged_by_groups_and_slices_in_the_library_of_the_frame(library):
    forecasts, actuals = autoregression(0.5, series=5, cutoffs=10)
    found = span_quantiles(forecasts, [(1, 3), (2, 6)], Dependence.constant(6, 0.5))
    models = {name: found if library == "polars" else found.to_pandas() for name in ("one", "other")}
    static = pl.DataFrame({"unique_id": [f"s{i:03}" for i in range(5)], "kind": list("aabbb")})
    table = evaluate(models, actuals, "kind", static=static)
    assert type(table).__module__.startswith(library)
    rows = pl.DataFrame(table).select("model", "first", "last", "kind", "rows", "left_out").rows()
    of_spans = [(1, 3, "a", 20, 0), (1, 3, "b", 30, 0), (2, 6, "a", 20, 0), (2, 6, "b", 30, 0)]
    assert rows == [(model, *row) for model in ("one", "other") for row in of_spans]
    with pytest.raises(ConfigError, match="by='first' is a column of the answer already"):
        evaluate(found, actuals, "first")
    with pytest.raises(ConfigError, match="some forecasts are totals over spans and others of single steps"):
        evaluate({"one": found, "other": forecasts}, actuals)


def revised(rho: float = 0.8, length: int = 3, **options) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Totals of the same dates from successive cutoffs, and demand."""
    forecasts, actuals = autoregression(rho, horizon=6, **options)
    spans = [(first, first + length - 1) for first in range(1, 8 - length)]
    return span_quantiles(forecasts, spans, Dependence(correlation_of(rho, 6), False, 0, 0)), actuals


def test_the_volatility_of_totals_is_that_of_single_steps_on_summed_demand():
    found, actuals = revised(series=20, cutoffs=30)
    y = actuals["y"].to_numpy().reshape(20, -1)
    sums = pl.DataFrame(
        {
            "unique_id": np.repeat([f"s{i:03}" for i in range(20)], y.shape[1] - 2),
            "ds": np.tile(actuals["ds"].unique().sort().to_numpy()[:-2], 20),
            "y": np.lib.stride_tricks.sliding_window_view(y, 3, axis=1).sum(axis=2).ravel(),
        }
    )
    steps = found.with_columns(ds="start", horizon="first").drop("start", "first", "last", "span")
    options = {"cdf": "quantiles", "resamples": 50}
    of_totals, of_steps = volatility(found, actuals, **options), volatility(steps, sums, **options)
    assert of_totals.process.equals(of_steps.process)
    assert of_totals.summary["targets"].to_list() == [20 * 27] * 2  # dates with a forecast at each of 4 leads
    volatility(found, actuals, weights="demand", **options)


def test_exact_totals_have_no_excess_volatility_and_jittered_ones_do():
    found, actuals = revised(series=300, cutoffs=40)
    jitter = np.random.default_rng(0).normal(0, 15, found.height)
    jittered = found.with_columns(pl.col("^q.*$") + jitter)
    exact, excess = (volatility(one, actuals, 0.5, cdf="quantiles").summary for one in (found, jittered))
    assert abs(exact["excess"][0]) < 0.02 < excess["lo"][0]


def test_totals_that_cannot_be_judged_are_refused_in_one_line():
    forecasts, actuals = autoregression(0.5, series=3, cutoffs=12)
    both = span_quantiles(forecasts, [(1, 2), (1, 4)], Dependence.constant(6, 0.5))
    with pytest.raises(ConfigError, match="the totals are over 2, 4 steps; give those of one length at a time"):
        volatility(both, actuals)
    with pytest.raises(ConfigError, match=r"since span \(1, 4\) of each cutoff has dates of its own; give spans that"):
        volatility(both.filter(pl.col("last") == 4), actuals)
    with pytest.raises(SchemaError, match=r"the forecasts are totals over spans of steps .* takes forecasts of single"):
        implausible({"one": both}, actuals)
