"""Implausible forecasts are found, counted and warned of once; sound ones, however few, are not."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import polars as pl
import pytest
from judged import random_frames, week

from mqcast import Forecaster, Schema, compare, evaluate, implausible, volatility
from mqcast.cli.app import main
from mqcast.errors import ConfigError, ImplausibleForecastWarning, MqcastWarning
from mqcast.evaluation import trade_off
from mqcast.evaluation.slices import short_horizons
from mqcast.simulate import lognormal_world

KEYS = ["unique_id", "cutoff", "ds"]


@contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def with_value(frame: pl.DataFrame, row: int, column: str, value: float) -> pl.DataFrame:
    return frame.with_columns(pl.when(pl.int_range(pl.len()) == row).then(value).otherwise(column).alias(column))


def demand(num_items: int, num_weeks: int, draw, levels=(0.1, 0.5, 0.9), leads: int = 1) -> tuple:
    """Forecasts that are the same for all dates, by the quantiles of `draw`, and actuals that are drawn from it."""
    ids = [f"item {i}" for i in range(num_items)]
    actuals = pl.DataFrame(
        {"unique_id": np.repeat(ids, num_weeks), "ds": [week(i) for _ in ids for i in range(num_weeks)]}
        | {"y": draw(num_items * num_weeks)}
    )
    many = draw(200_000)
    columns = {f"q{level:g}": pl.lit(float(np.quantile(many, level, method="inverted_cdf"))) for level in levels}
    rows = [
        (name, week(i - lead), week(i), lead)
        for name in ids
        for i in range(leads, num_weeks)
        for lead in range(1, leads + 1)
    ]
    frame = pl.DataFrame(rows, schema=["unique_id", "cutoff", "ds", "horizon"], orient="row")
    return frame.with_columns(**columns), actuals


def test_it_finds_what_a_loop_over_all_rows_finds():
    frame, actuals = random_frames(levels=(0.1, 0.5, 0.9))
    rng = np.random.default_rng(1)
    for row in rng.choice(len(frame), 12, replace=False):
        column = f"q{rng.choice([0.1, 0.5, 0.9]):g}"
        frame = with_value(frame, int(row), column, float(rng.choice([-5.0, -1e7, 1e4, 1e60, 1e300])))
    largest = dict(actuals.group_by("unique_id").agg(pl.col("y").max()).iter_rows())
    expected = {}
    for row in frame.iter_rows(named=True):
        values = {level: row[f"q{level:g}"] for level in (0.1, 0.5, 0.9)}
        worst = max(values, key=lambda level: abs(values[level]))
        least = min(values, key=lambda level: values[level])
        key, times = (row["unique_id"], row["cutoff"], row["ds"]), abs(values[worst]) / largest[row["unique_id"]]
        if times > 10:
            expected[key] = (worst, values[worst], "too large")
        elif values[least] < 0:
            expected[key] = (least, values[least], "negative")
    found = implausible(frame, actuals)
    columns = [*KEYS, "quantile", "forecast", "reason"]
    told = {row[:3]: row[3:] for row in found.rows.select(columns).iter_rows()}
    assert told == expected
    assert len(expected) == 12
    assert found.rows["multiple"].is_sorted(descending=True)
    counts = found.counts.row(0, named=True)
    assert counts["too_large"] == sum(reason == "too large" for *_, reason in expected.values())
    assert counts["negative"] == sum(reason == "negative" for *_, reason in expected.values())
    assert counts["series_affected"] == len({key[0] for key in expected})


def test_evaluate_says_how_many_which_is_the_worst_and_what_to_do():
    frame, actuals = random_frames()
    frame = with_value(with_value(frame, 3, "q0.9", 1e30), 7, "q0.5", 1e12)
    worst = frame.row(3, named=True)
    with pytest.warns(ImplausibleForecastWarning) as caught:
        evaluate(frame, actuals)
    text = str(caught[0].message)
    assert issubclass(ImplausibleForecastWarning, MqcastWarning)
    assert "2 of 180 forecasts" in text
    assert "10 times the largest value" in text
    assert "implausible(forecasts" in text
    for part in (repr(worst["unique_id"]), f"{worst['cutoff']:%Y-%m-%d}", f"{worst['ds']:%Y-%m-%d}", "q0.9 is 1e+30"):
        assert part in text
    assert caught[0].filename == __file__


def test_everyone_who_judges_warns_once_a_call_and_not_once_a_slice():
    good, actuals = random_frames()
    bad = with_value(good, 3, "q0.9", 1e30)
    slices = [short_horizons(2), short_horizons(3, name="three")]
    calls = [
        lambda: evaluate(bad, actuals, "horizon", slices=slices),
        lambda: evaluate({"good": good, "bad": bad, "worse": bad}, actuals, slices=slices),
        lambda: compare({"good": good, "bad": bad}, actuals, "good", slices=slices),
        lambda: volatility(bad, actuals, resamples=5, slices=slices),
        lambda: trade_off({"good": good, "bad": bad}, actuals, resamples=5),
    ]
    for call in calls:
        with pytest.warns(ImplausibleForecastWarning) as caught:
            call()
        assert len(caught) == 1


def test_models_are_told_apart():
    good, actuals = random_frames()
    found = implausible({"good": good, "bad": with_value(good, 3, "q0.5", -1.0)}, actuals)
    assert found.rows["model"].to_list() == ["bad"]
    assert found.counts.select("model", "negative").rows() == [("good", 0), ("bad", 1)]
    assert str(found).startswith("bad: 1 of 180 forecasts, of 1 series, are negative")
    assert found
    assert not implausible({"good": good}, actuals)


def test_a_series_is_measured_by_itself_and_one_that_never_sold_by_all():
    values = {"small": 101.0, "never": 101.0, "new": 10_001.0}
    rows = [(name, week(0), week(1), 1, value) for name, value in values.items()]
    frame = pl.DataFrame(rows, schema=["unique_id", "cutoff", "ds", "horizon", "q0.5"], orient="row")
    sold = [("small", week(0), 10.0), ("never", week(0), 0.0), ("large", week(0), 1000.0)]
    actuals = pl.DataFrame(sold, schema=["unique_id", "ds", "y"], orient="row")
    found = implausible(frame, actuals).rows
    assert found.select("unique_id", "largest").rows() == [("small", 10.0), ("new", 1000.0)]
    assert not implausible(frame, actuals, multiple=11)
    assert not implausible(frame, actuals.with_columns(y=0.0)).counts["too_large"].sum()


def test_forecasts_of_the_future_are_judged_and_negative_demand_may_be_forecast():
    frame, actuals = random_frames()
    past = actuals.filter(pl.col("ds") <= week(10))
    assert implausible(with_value(frame, 0, "q0.5", 1e9), past).counts["too_large"].to_list() == [1]
    returns = actuals.with_columns(y=pl.when(pl.int_range(pl.len()) == 0).then(-1.0).otherwise("y"))
    assert not implausible(with_value(frame, 0, "q0.5", -3.0), returns)


def test_a_multiple_that_is_none_is_refused():
    frame, actuals = random_frames()
    for multiple in (0, -1, True, "a", float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="multiple is"):
            implausible(frame, actuals, multiple)  # type: ignore[arg-type]


def test_the_largest_floats_are_judged_without_a_complaint_of_numpy():
    frame, actuals = random_frames()
    frame = frame.with_columns(pl.lit(1.7e308).alias("q0.9"))
    with pytest.warns(ImplausibleForecastWarning, match=r"180 of 180 forecasts"):
        evaluate(frame, actuals, "horizon")
    with pytest.warns(ImplausibleForecastWarning):
        compare({"a": frame, "b": frame}, actuals, "a")
    with pytest.warns(ImplausibleForecastWarning):
        volatility(frame.with_columns(pl.lit(1e150).alias("q0.9")), actuals, resamples=5)


# -- levels ------------------------------------------------------------------------------------------------------------


def test_a_p90_that_covers_76_percent_is_told_and_one_that_covers_86_is_not():
    rng = np.random.default_rng(0)
    frame, actuals = demand(60, 40, lambda size: rng.gamma(4, 5, size))
    low = frame.with_columns(pl.lit(float(np.quantile(actuals["y"], 0.76))).alias("q0.9"))
    fair = frame.with_columns(pl.lit(float(np.quantile(actuals["y"], 0.86))).alias("q0.9"))
    with pytest.warns(ImplausibleForecastWarning, match=r"7[56].\d% of 2,340 actuals are at or below P90"):
        evaluate(low, actuals)
    with no_warning():
        evaluate(fair, actuals)
    assert implausible(low, actuals).coverage["quantile"].to_list() == [0.9]


@pytest.mark.parametrize(("num_items", "num_weeks"), [(1, 3), (2, 30), (8, 9), (12, 10), (40, 12)])
def test_honest_forecasts_on_little_data_are_left_in_peace(num_items, num_weeks):
    for seed in range(15):
        rng = np.random.default_rng(seed)
        frame, actuals = demand(num_items, num_weeks, lambda size: rng.gamma(2, 5, size))  # noqa: B023
        with no_warning():
            evaluate(frame, actuals)


def test_dates_on_which_all_series_err_together_are_one_date_each():
    """An honest forecaster of demand that mostly rises and falls for all items alike is often far off on few dates."""
    for seed in range(25):
        rng = np.random.default_rng(seed)
        frame, actuals = demand(100, 11, lambda size: rng.gamma(4, 5, size))  # noqa: B023
        of_week = pl.DataFrame({"ds": [week(i) for i in range(11)], "factor": rng.lognormal(0, 0.6, 11)})
        actuals = actuals.join(of_week, on="ds").with_columns(pl.col("y") * pl.col("factor")).drop("factor")
        wide = np.quantile(rng.gamma(4, 5, 100_000) * rng.lognormal(0, 0.6, 100_000), [0.1, 0.5, 0.9])
        frame = frame.with_columns(**{f"q{level}": value for level, value in zip((0.1, 0.5, 0.9), wide, strict=True)})
        with no_warning():
            evaluate(frame, actuals)


def test_demand_of_mostly_zeros_has_quantiles_of_about_0():
    rng = np.random.default_rng(0)
    frame, actuals = demand(60, 40, lambda size: rng.poisson(0.3, size).astype(float))
    assert frame["q0.5"][0] == 0
    with no_warning():
        evaluate(frame, actuals)
        evaluate(frame.with_columns(pl.col("q0.1", "q0.5") + 0.05), actuals)


def test_a_series_that_always_sells_is_not_forecast_to_sell_nothing():
    rng = np.random.default_rng(0)
    frame, actuals = demand(3, 20, lambda size: rng.gamma(4, 5, size))
    nothing = frame.with_columns(
        pl.when(pl.col("unique_id") == "item 1").then(0.0).otherwise(pl.col("^q.*$")).name.keep()
    )
    with pytest.warns(ImplausibleForecastWarning, match="1 series that sold on every date .* nothing: 'item 1'"):
        evaluate(nothing, actuals)
    assert implausible(nothing, actuals).all_zero["unique_id"].to_list() == ["item 1"]
    with no_warning():
        evaluate(nothing, actuals.with_columns(y=pl.when(pl.col("ds") == week(1)).then(0.0).otherwise("y")))


# -- other faces -------------------------------------------------------------------------------------------------------


def test_the_oracle_of_a_retail_world_is_plausible():
    world = lognormal_world(num_items=40, num_weeks=70, horizon=6)
    with no_warning():
        evaluate(world.oracle_forecasts((0.1, 0.5, 0.9), first=50, last=69), world.actuals)


def test_a_forecasters_own_evaluation_warns():
    world = lognormal_world(num_items=4, num_weeks=40, horizon=3)
    made = Forecaster("seasonal-naive", horizon=3, schema=world.schema, quantiles=(0.5, 0.9))
    made.fit(world.frame, static=world.static, events=world.events)
    made.backtest_ = with_value(made.backtest(), 2, "q0.9", 1e20)
    with pytest.warns(ImplausibleForecastWarning, match="1e"):
        made.evaluate()


def test_pandas_in_pandas_out_and_names_of_ones_own():
    frame, actuals = random_frames()
    own = {"unique_id": "sku", "ds": "week", "y": "units"}
    frame = with_value(frame, 3, "q0.9", 1e30).rename({"unique_id": "sku", "ds": "week"}).to_pandas()
    schema = Schema(id="sku", time="week", target="units")
    found = implausible(frame, actuals.rename(own).to_pandas(), schema=schema)
    assert type(found.rows).__module__.startswith("pandas")
    assert list(found.rows.columns)[:3] == ["sku", "cutoff", "week"]


def test_the_command_says_it_in_one_line_beside_its_table(tmp_path, monkeypatch, capsys):
    frame, actuals = random_frames()
    with_value(frame, 3, "q0.9", 1e30).write_parquet(tmp_path / "forecasts.parquet")
    actuals.write_parquet(tmp_path / "actuals.parquet")
    arguments = ["evaluate", str(tmp_path / "forecasts.parquet"), str(tmp_path / "actuals.parquet")]
    monkeypatch.setattr("sys.argv", ["mqcast", *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            main()
    out, err = capsys.readouterr()
    assert "quantile_loss_q0.9" in out
    assert err.startswith("warning: 1 of 180 forecasts")
    assert err.count("\n") == 1
