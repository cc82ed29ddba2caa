"""Settings that follow from the size of the data."""

import polars as pl
import pytest

from mqcast import Panel, Schema
from mqcast.models import recipe
from mqcast.models.recipe import SAFE_STEPS, settings_for
from mqcast.simulate import lognormal_world

HORIZON = 4


def settings(num_weeks: int):
    world = lognormal_world(num_items=10, num_weeks=num_weeks, horizon=HORIZON)
    rows = world.frame.drop_nulls("y").select("unique_id", "ds", pl.col("y"))
    return settings_for(Panel.from_frame(rows, Schema()), "mqt", HORIZON, (0.5, 0.9)).config


def test_large_data_have_wider_networks_and_fewer_of_them(monkeypatch: pytest.MonkeyPatch):
    small = settings(num_weeks=60).model
    for name in ("HIDDEN_DIM", "MEMBERS", "DROPOUT"):
        monkeypatch.setattr(recipe, name, (500, *getattr(recipe, name)[1:]))  # 10 items × 59 weeks are more
    large = settings(num_weeks=60).model
    assert (small.hidden_dim, small.members, small.dropout) == (32, 5, 0.15)
    assert (large.hidden_dim, large.members, large.dropout) == (64, 3, 0.1)


def test_a_history_that_is_too_short_for_a_rehearsal_is_trained_on_for_few_steps():
    short, long = settings(num_weeks=2 * HORIZON + 2).train, settings(num_weeks=2 * HORIZON + 3).train
    assert (short.refit, short.max_steps) == (False, SAFE_STEPS)
    assert long.refit
    assert long.max_steps is not None
    assert long.max_steps > SAFE_STEPS


def test_the_spread_is_remembered_longer_than_the_level():
    scaling = settings(num_weeks=60).scaling
    assert scaling.spread_half_life == 6 * scaling.half_life


def test_training_is_shorter_and_of_fewer_networks_where_a_step_is_more_work(monkeypatch: pytest.MonkeyPatch):
    usual = settings(num_weeks=60)
    steps, members = usual.train.max_steps, usual.model.members
    assert (steps, members) == (recipe.LEAST_STEPS, 5)
    window, model = usual.window, usual.model
    cells = window.batch_size * (window.num_fcts + HORIZON) * HORIZON * (1 + model.lookback / recipe.BESIDES_LOOKBACK)
    work = (members + 1) * model.hidden_dim * (cells + recipe.BESIDES_CELLS)
    monkeypatch.setattr(recipe, "MOST_WORK", steps * work / 2 + 1)
    dear = settings(num_weeks=60)
    assert (dear.train.max_steps, dear.model.members) == (steps, 2)
    monkeypatch.setattr(recipe, "MOST_WORK", steps * work / 20)
    dearer = settings(num_weeks=60)
    assert (dearer.train.max_steps, dearer.model.members) == (steps // 2, 1)


def test_a_step_has_fewer_windows_where_the_horizon_is_long():
    world = lognormal_world(num_items=200, num_weeks=150, horizon=HORIZON)
    panel = Panel.from_frame(world.frame.drop_nulls("y").select("unique_id", "ds", "y"), Schema())
    short, long = (settings_for(panel, "mqt", horizon, (0.5, 0.9)).config.window for horizon in (HORIZON, 60))
    assert short.batch_size * short.num_fcts <= recipe.TRAJECTORIES_A_STEP
    assert long.num_fcts == 60
    assert long.batch_size * 60 * 60 <= recipe.FORECASTS_A_STEP


@pytest.mark.parametrize(("num_weeks", "years"), [(56, 1), (161, 2), (213, 3), (300, 3)])
def test_sales_of_several_years_ago_are_inputs_only_after_a_longer_history(num_weeks: int, years: int):
    assert settings(num_weeks + 1).scaling.echoes == tuple(52 * number for number in range(1, years + 1))
