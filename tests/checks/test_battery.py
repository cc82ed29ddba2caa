"""The battery: sound forecasters pass, and each broken one fails the check that is meant for it, and no other."""

import random

import numpy as np
import polars as pl
import pytest
from broken_forecasters import BROKEN, LastValue, last_value

from mqcast import Schema, checks
from mqcast.checks import Candidate, CheckResult, all_checks, check_forecaster, sample_frame
from mqcast.errors import CheckError, ConfigError


def sound(frame, horizon):
    """The last value, without a cutoff to be told."""
    return last_value(frame, horizon)


@pytest.mark.parametrize("thing", [sound, last_value, LastValue()], ids=["function", "with cutoff", "object"])
def test_a_sound_forecaster_fails_nothing(thing):
    results = check_forecaster(thing)
    assert results.passed, results
    assert results.raise_if_failed() is results
    assert sum(result.passed for result in results) >= 12


@pytest.mark.parametrize("thing", BROKEN, ids=lambda thing: thing.__name__)
def test_a_broken_forecaster_fails_the_check_that_is_meant_for_it_and_no_other(thing):
    results = check_forecaster(thing() if isinstance(thing, type) else thing)
    assert [result.name for result in results.failures] == [BROKEN[thing]], results


def test_every_check_has_a_forecaster_that_fails_it():
    needs_a_run = {"what_is_on_disk_is_whole"}  # tests/checks/test_ours.py
    assert {check.name for check in all_checks()} - set(BROKEN.values()) == needs_a_run


@pytest.mark.parametrize("check", all_checks(), ids=repr)
def test_checks_can_be_parameters_of_a_test(check):
    result = check(last_value)
    assert isinstance(result, CheckResult)
    assert result.outcome in ("passed", "not applicable")
    assert getattr(checks, check.name) is check
    assert result.promise


def test_a_check_that_is_called_raises_what_was_seen():
    crosses = next(thing for thing, name in BROKEN.items() if name == "quantiles_do_not_cross")
    with pytest.raises(CheckError, match=r"quantiles_do_not_cross: 5 of 24 rows cross.*2 ahead, q0\.1"):
        checks.quantiles_do_not_cross(crosses)
    with pytest.raises(AssertionError, match="crosses fails 1 of 18 checks: quantiles_do_not_cross"):
        check_forecaster(crosses).raise_if_failed()
    assert checks.quantiles_do_not_cross.result(crosses).failed


def test_results_read_as_a_table_in_text_and_notebooks():
    results = check_forecaster(last_value, checks=["forecasts_are_finite", checks.later_rows_change_no_revision])
    assert repr(results).startswith("last_value: 1 passed, 0 failed, 1 not applicable\n✓ forecasts_are_finite")
    assert "<td>it has no revisions</td>" in results._repr_html_()
    assert results.to_dicts()[0]["outcome"] == "passed"
    assert results.named("forecasts_are_finite").seen == "72 quantiles"
    with pytest.raises(ConfigError, match="there is no check 'finite'; there are output_has"):
        check_forecaster(last_value, checks=["finite"])


def test_a_users_own_frame_comes_in_the_users_library_with_the_users_names():
    frame = sample_frame().to_pandas().rename(columns={"unique_id": "shop", "ds": "week", "y": "sold"})
    frame["shop"] = frame["shop"].str[-1].astype(int)
    schema, seen = Schema(id="shop", time="week", target="sold", freq="W"), set()

    def mine(frame, horizon):
        seen.add(type(frame).__module__.split(".")[0] + str(frame["shop"].dtype))
        named = pl.from_pandas(frame).rename({"shop": "unique_id", "week": "ds", "sold": "y"})
        found = last_value(named.with_columns(pl.col("ds").cast(pl.Datetime("us"))), horizon)
        return found.rename({"unique_id": "shop", "ds": "week"}).to_pandas()

    results = check_forecaster(mine, frame, schema)
    assert results.passed, results
    assert seen == {"pandasint64"}
    assert results.named("output_has_the_right_shape").seen == "6 series, 4 steps, 3 levels"


@pytest.mark.parametrize("freq", ["h", "D", "B", "W", "MS", "QS", "15min"])
def test_the_sample_has_all_that_a_schema_names(freq: str):
    schema = Schema(
        freq=freq,
        static=["unique_id", "brand", "size"],
        past=["visits", "weather"],
        known=["promo", "price"],
        events=["feast"],
        observed="on_shelf",
        kinds={"size": "number", "weather": "category", "price": "number"},
    )
    frame = sample_frame(schema, horizon=3)
    assert set(frame.columns) == {name for _, name in schema.roles()}
    candidate = Candidate(last_value, frame, schema, 3)
    assert candidate.data.panel.num_series == 6
    assert len(candidate.data.ending_last) == 6
    assert candidate.data.is_never_negative


def test_a_plan_that_ends_too_early_is_no_hindrance():
    schema = Schema(known=["promo"])
    frame = sample_frame(schema).drop_nulls("y")
    data = Candidate(last_value, frame, schema).data
    assert data.observed_dates[-1] == frame["ds"].unique().sort()[-5]
    assert data.rows["ds"].max() == frame["ds"].max()


def test_the_battery_itself_leaves_the_random_state_as_it_was():
    before = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    check_forecaster(last_value)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # noqa: NPY002


def test_a_tolerance_lets_small_differences_pass():
    def almost(frame, horizon):
        most = frame["y"].max()
        return last_value(frame, horizon).with_columns(pl.col("q0.5") * (1 + 1e-8 * np.log(most)))

    alone = ["a_series_alone_is_forecast_as_in_company"]
    assert not check_forecaster(almost, checks=alone).passed
    assert check_forecaster(almost, checks=alone, tolerance=1e-5).passed
    with pytest.raises(ConfigError, match="tolerance is -1"):
        check_forecaster(almost, tolerance=-1)


def test_why_there_are_no_forecasts_is_said_once():
    def for_pandas(frame, horizon):
        return frame.groupby("unique_id")

    results = check_forecaster(for_pandas)
    assert [result.name for result in results.failures] == ["output_has_the_right_shape"]
    assert [result.name for result in results if "AttributeError" in result.seen] == ["output_has_the_right_shape"]
    assert "sample_frame().to_pandas()" in results[0].seen
    assert "sample_frame()" not in check_forecaster(for_pandas, sample_frame())[0].seen
    assert "AttributeError" in checks.forecasts_are_finite.result(for_pandas).seen


def test_forecasts_that_are_clipped_to_the_limit_are_of_no_sane_size():
    def clipped(frame, horizon):
        most = frame.group_by("unique_id").agg(most=10 * pl.col("y").max())
        rows = last_value(frame, horizon).join(most, on="unique_id", maintain_order="left")
        return rows.with_columns(pl.col("most").alias("q0.9")).drop("most")

    result = checks.forecasts_are_of_sane_size.result(clipped)
    assert result.failed
    assert "10 times as much" in result.seen


def test_what_is_no_forecaster_is_refused():
    with pytest.raises(ConfigError, match=r"int is no forecaster; give one with fit and predict, or a function"):
        check_forecaster(3)
