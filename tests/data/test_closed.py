"""Days on which nothing can be sold are found in the data, left out of training, and forecast as 0."""

import datetime as dt

import numpy as np
import polars as pl
import pytest

from mqcast import Forecaster, Schema
from mqcast.data.closed import ClosedRows, closing_rules
from mqcast.data.on_sale import TargetReader
from mqcast.data.panel import Panel
from mqcast.models.recipe import settings_for
from mqcast.settings import ScalingConfig

SCHEMA = Schema(freq="D", known=("open", "promo", "feast"), kinds={"open": "flag", "promo": "flag"})
NUM_DAYS, AHEAD = 120, 7


def shops(rng: np.random.Generator, exceptions: int = 0, zeros: float = 0.0) -> pl.DataFrame:
    """Shops that are closed on Sundays and on one kind of feast, with a plan for the days ahead."""
    parts = []
    for shop in range(4):
        days = np.arange(NUM_DAYS + AHEAD)
        open_ = days % 7 != 6
        feast = np.where(days % 11 == 5, "closed", np.where(days % 13 == 4, "busy", "none"))
        sold = rng.poisson(50 * (shop + 1), len(days)).astype(float)
        sold = np.where(rng.random(len(days)) < zeros, 0.0, sold)
        sold = np.where(open_ & (feast != "closed"), sold, 0.0)
        sold[np.flatnonzero(~open_)[:exceptions]] = 5.0
        columns = {"unique_id": f"shop {shop}", "ds": [dt.datetime(2024, 1, 1) + dt.timedelta(int(d)) for d in days]}
        columns |= {"y": np.where(days < NUM_DAYS, sold, np.nan), "open": open_, "promo": rng.random(len(days)) < 0.3}
        parts.append(pl.DataFrame(columns | {"feast": feast}).with_columns(pl.col("y").fill_nan(None)))
    return pl.concat(parts)


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({}, (("open", 0.0), ("feast", "closed"))),
        ({"exceptions": 1}, (("feast", "closed"),)),  # 4 of 68 closed days had sales: no rule
        ({"zeros": 0.7}, ()),  # most demand is 0 anyway
    ],
)
def test_rules_are_those_that_always_held(options: dict, rules: tuple):
    rows = shops(np.random.default_rng(0), **options)
    assert closing_rules(Panel.from_frame(rows, SCHEMA)) == rules


def test_rows_of_a_rule_are_not_learnt():
    panel = Panel.from_frame(shops(np.random.default_rng(1)), SCHEMA)
    rules = closing_rules(panel)
    rows = np.arange(panel.num_rows)
    closed = ClosedRows(panel, rules)(rows)
    read = TargetReader(panel, ScalingConfig(zero_when=rules)).rows(rows, np.zeros(len(rows), int))
    np.testing.assert_array_equal(np.isnan(read), np.isnan(panel.target) | closed)


def test_a_rule_is_learnt_only_from_what_was_known():
    rows = shops(np.random.default_rng(2))
    late = pl.col("ds") > dt.datetime(2024, 4, 1)
    changed = rows.with_columns(y=pl.when(late & ~pl.col("open")).then(9.0).otherwise("y"))
    given = [
        settings_for(Panel.from_frame(frame, SCHEMA), "mqt", AHEAD, (0.5,), until="2024-04-01").config.scaling
        for frame in (rows, changed)
    ]
    assert given[0] == given[1]
    assert ("open", 0.0) in given[0].zero_when


def test_closed_days_are_forecast_as_0_and_others_are_not(tmp_path):
    rows = shops(np.random.default_rng(3))
    forecaster = Forecaster("mqcnn", AHEAD, (0.1, 0.5, 0.9), SCHEMA, max_steps=40, members=1, verbose=False).fit(rows)
    plan = rows.select("unique_id", "ds", closed=~pl.col("open") | (pl.col("feast") == "closed"))
    found = forecaster.predict().join(plan, on=["unique_id", "ds"])
    values = pl.col("q0.1", "q0.5", "q0.9")
    assert found.filter("closed").height >= 4
    assert found.filter("closed").select((values == 0).all()).row(0) == (True, True, True)
    assert found.filter(~pl.col("closed")).select((pl.col("q0.5", "q0.9") > 0).all()).row(0) == (True, True)
    again = Forecaster.load(forecaster.save(tmp_path / "saved"))
    assert again.predict().equals(forecaster.predict())
