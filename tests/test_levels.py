"""Levels: each has a name of its own, in every table, and the name says the level again."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcast import Forecaster, compare, errors, evaluate
from mqcast.evaluation import Names, read_forecasts
from mqcast.levels import APART, are_levels, level_of, percentile, quantile_column
from mqcast.settings import ModelConfig
from mqcast.simulate import lognormal_world

NEAR = (0.00001, 0.1234561, 0.1234562, 0.5, 0.9999999)


@given(st.floats(APART, 1 - APART))
def test_a_levels_name_says_the_level_again(level):
    assert level_of(quantile_column(level)) == pytest.approx(level, abs=1e-12)
    assert level_of(quantile_column(round(level, 12))) == round(level, 12)


@given(st.floats(APART, 1 - APART), st.floats(APART, 1 - APART))
def test_levels_that_can_be_told_apart_have_different_names(one, other):
    if are_levels(sorted((one, other))):
        assert quantile_column(one) != quantile_column(other)
        assert percentile(one) != percentile(other)


def test_usual_levels_keep_their_names():
    usual = (0.05, 0.1, 0.5, 0.9, 0.95, 0.975, 0.1 + 0.2)
    assert [quantile_column(x) for x in usual] == ["q0.05", "q0.1", "q0.5", "q0.9", "q0.95", "q0.975", "q0.3"]
    assert [percentile(level) for level in (0.5, 0.975, 0.29)] == ["P50", "P97.5", "P29"]
    assert [level_of(name) for name in ("q0.5", "q.5", "q1", "q0.0", "q", "p0.5", 5)] == [0.5, 0.5, *[None] * 5]


@pytest.mark.parametrize(
    "levels", [(), (0.5, 0.5), (0.9, 0.5), (0, 0.5), (0.5, 1), (True,), ("a",), (np.nan,), (0.5, 0.5 + 1e-9), (1e-9,)]
)
def test_what_is_no_level_is_refused(levels):
    assert not are_levels(levels)
    with pytest.raises(errors.ConfigError):
        ModelConfig(quantiles=levels)


def test_near_levels_have_columns_of_their_own_in_every_table():
    world = lognormal_world(4, 40, 4)
    forecaster = Forecaster("seasonal-naive", 4, NEAR, world.schema)
    forecaster.fit(world.frame, static=world.static, events=world.events)
    columns = [quantile_column(level) for level in NEAR]
    assert columns == ["q0.00001", "q0.1234561", "q0.1234562", "q0.5", "q0.9999999"]
    found = forecaster.backtest()
    assert list(found.columns[-5:]) == columns
    assert (found["q0.1234561"] < found["q0.1234562"]).any()
    judged = evaluate(found, world.frame, missing="drop")
    assert {f"coverage_{name}" for name in columns} <= set(judged.columns)
    table = compare({"a": found}, world.frame, "a", NEAR, missing="drop").table
    assert table.columns == ["dimension", *(f"a {percentile(level)}" for level in NEAR)]


def test_a_frame_with_two_columns_of_one_level_is_refused():
    frame = pl.DataFrame({"unique_id": ["a"], "q0.5": [1.0], "q.5": [1.0]})
    for name in ("q0.50", "q0.5000000000001"):
        with pytest.raises(errors.SchemaError, match=r"two columns of one level, q0\.5 and q0\.5"):
            read_forecasts(frame.rename({"q.5": name}), Names())
