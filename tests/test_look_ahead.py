"""A backtest is blind to what comes after its cutoff: nothing that happens later changes a bit of its forecasts."""

import warnings
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from look_ahead_samples import CHANGES, CUTOFF, HORIZON, MODELS, Backtest, fitted, sales

from mqcast import Panel
from mqcast.data.views import known_at
from mqcast.data.windows import as_time
from mqcast.errors import MqcastWarning
from mqcast.models.recipe import settings_for

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.MqcastWarning")
INTERFACES = ("frame", "panel", "command")


@pytest.mark.parametrize("number", range(6), ids=MODELS)
def test_nothing_that_happens_later_changes_a_backtest(number, tmp_path):
    rng = np.random.default_rng(number)
    data = sales(rng, is_rich=number != 3)
    backtest = Backtest(MODELS[number], INTERFACES[number % 3], refit=(None, 1, 2)[number % 3])
    before = backtest(data, tmp_path)
    assert before["cutoff"].n_unique() == 2
    for name in list(CHANGES)[number::6]:
        now = backtest(CHANGES[name](rng, data), tmp_path)
        assert now.equals(before), name


def test_nothing_that_happens_later_changes_an_earlier_revision():
    rng = np.random.default_rng(7)
    data = sales(rng)
    revise = fitted("mqt", data)
    before = revise(data, 5, 3)
    for name, change in CHANGES.items():
        assert revise(change(rng, data), 5, 3).equals(before), name


def test_the_plan_of_one_series_does_not_change_what_another_is_forecast(tmp_path):
    """Known columns after the cutoff are inputs of a forecast, but not of the training before it."""
    data = sales(np.random.default_rng(1))
    backtest = Backtest("mqt", "frame", before=0, beyond=0)
    is_other = (pl.col("unique_id") == "s1") & data.after()
    price, kind = (
        pl.when(is_other).then(value).otherwise(name).alias(name)
        for name, value in (("price", pl.lit(999.0)), ("kind", pl.lit("new")))
    )
    other = replace(data, rows=data.rows.with_columns(price, kind))
    one, two = (backtest(found, tmp_path) for found in (data, other))
    is_s1 = pl.col("unique_id") == "s1"
    assert one.filter(~is_s1).equals(two.filter(~is_s1))
    assert not one.filter(is_s1).equals(two.filter(is_s1)), "its own plan counts"


def test_a_series_is_forecast_from_a_cutoff_if_it_was_observed_within_a_horizon_before_it(tmp_path):
    """Whether it sells again later does not count; once it does, it is forecast again."""
    data = sales(np.random.default_rng(2))
    found = Backtest("seasonal-naive", "frame", before=8, beyond=0)(data, tmp_path)
    silent = found.filter(pl.col("unique_id") == "s2")["cutoff"].unique().sort().to_list()
    last_observed = CUTOFF - 7
    assert silent == list(data.dates[CUTOFF - 8 : last_observed + HORIZON + 1])


@pytest.mark.parametrize("seed", range(3))
def test_a_panel_at_a_time_is_the_panel_of_the_rows_up_to_it(seed):
    data = sales(np.random.default_rng(seed))
    rows = data.rows.filter(~data.after())
    assert data.events is not None
    events = data.events.filter(~data.after())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MqcastWarning)
        alone, whole = Panel.from_frame(rows, data.schema, data.static, events), data.panel()
    view = known_at(whole, as_time(data.cutoff, whole.axis))
    assert view.layout == alone.layout
    assert view.ids.equals(alone.ids)
    assert view.arrays.keys() - {"steps"} == alone.arrays.keys() - {"steps"}
    for name, array in alone.arrays.items():
        assert np.array_equal(np.asarray(view.arrays[name]), array, equal_nan=array.dtype.kind == "f"), name
    assert view.span == alone.span
    assert np.array_equal(view.last_step, alone.last_step)
    settings = (settings_for(panel, "mqt", HORIZON, (0.5, 0.9), until=data.cutoff) for panel in (whole, alone))
    assert next(settings) == next(settings)


def test_a_backtest_is_what_a_fit_on_the_rows_up_to_its_cutoff_gives(tmp_path):
    data = sales(np.random.default_rng(4))
    assert data.events is not None
    before = replace(data, rows=data.rows.filter(~data.after()), events=data.events.filter(~data.after()))
    assert fitted("mqt", before)(data, 0, 0).equals(Backtest("mqt", "frame", before=0, beyond=0)(data, tmp_path))
