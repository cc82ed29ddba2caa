"""Stabilisers: exact, blind to what comes later, and better where a forecaster over-reacts."""

import numpy as np
import polars as pl
import pytest
from judged import random_frames, revisions_of

from mqcast.errors import ArtifactError, ConfigError, DataError
from mqcast.evaluation import MartingaleFilter, ensemble, trade_off
from mqcast.simulate import lognormal_world


def test_an_ensemble_is_the_mean_of_the_last_forecasts_of_the_target():
    frame, _ = random_frames()
    found = ensemble(frame, over=3)
    assert found.columns == frame.columns
    assert found.drop("q0.5", "q0.9").equals(frame.drop("q0.5", "q0.9"))
    for row, new in zip(frame.rows(named=True), found.rows(named=True), strict=True):
        same = frame.filter(
            (pl.col("unique_id") == row["unique_id"])
            & (pl.col("ds") == row["ds"])
            & (pl.col("cutoff") <= row["cutoff"])
        )
        assert new["q0.9"] == pytest.approx(same.sort("cutoff")["q0.9"].tail(3).mean())
    assert ensemble(frame, over=1).equals(frame)
    with pytest.raises(ConfigError, match="over is 0"):
        ensemble(frame, over=0)


def test_a_pandas_frame_keeps_its_index_order_and_other_columns():
    frame, _ = random_frames()
    table = frame.to_pandas().assign(note="x")
    found = ensemble(table, over=2)
    assert list(found.columns) == list(table.columns)
    assert found.index.equals(table.index)
    np.testing.assert_allclose(found["q0.5"], ensemble(frame, over=2)["q0.5"])


def test_a_filter_moves_a_share_of_the_way_to_each_new_forecast():
    frame, _ = revisions_of([[40, 60, 50]], [50])
    gain = np.array([[0.25, 0.5, 1.0], [1.0, 1.0, 1.0]])
    found = MartingaleFilter((0.5, 0.9), gain).apply(frame)
    assert found["q0.5"].to_list() == [40, 50, 50]
    assert found["q0.9"].to_list() == frame["q0.9"].to_list()


@pytest.mark.parametrize("stabilise", [lambda f: ensemble(f, over=3), lambda f: FITTED.apply(f)])
def test_no_later_forecast_changes_an_earlier_one(stabilise):
    frame, _ = random_frames()
    middle = frame["cutoff"].sort()[len(frame) // 2]
    later = pl.when(pl.col("cutoff") > middle).then(pl.col("q0.5", "q0.9") * 7).otherwise(pl.col("q0.5", "q0.9"))
    one, two = (stabilise(each).filter(pl.col("cutoff") <= middle) for each in (frame, frame.with_columns(later)))
    assert one.equals(two)


FITTED = MartingaleFilter.fit(*random_frames(seed=3))


def test_gains_are_those_of_least_loss():
    frame, actuals = random_frames(num_items=40, num_cutoffs=6)
    fitted = MartingaleFilter.fit(frame, actuals)
    rows = frame.join(actuals, on=["unique_id", "ds"])
    both = rows.filter(horizon=3).join(rows.filter(horizon=4), on=["unique_id", "ds"], suffix="_before")
    y, old, new = (both[name].to_numpy() for name in ("y", "q0.9_before", "q0.9"))
    gains = np.linspace(0, 2, 401)
    losses = [np.maximum(0.9 * (y - q), -0.1 * (y - q)).mean() for q in old + gains[:, None] * (new - old)]
    found = fitted.gains.filter(level=0.9, lead=3)["gain"][0]
    assert found == pytest.approx(gains[np.argmin(losses)], abs=0.006)
    assert fitted.gains.filter(lead=4)["gain"].to_list() == [1.0, 1.0]


def test_a_jumpy_forecaster_gains_accuracy_and_calm_on_a_later_period():
    world = lognormal_world(300, 110, 8)
    frame = world.oracle_forecasts((0.5, 0.9), 60, 109)
    rng = np.random.default_rng(0)
    cutoffs = frame.select("unique_id", "cutoff").unique(maintain_order=True)
    noise = cutoffs.with_columns(noise=pl.Series(np.exp(0.25 * rng.standard_normal(len(cutoffs)))))
    jumpy = frame.join(noise, on=["unique_id", "cutoff"], maintain_order="left").with_columns(
        pl.col("q0.5", "q0.9") * pl.col("noise")
    )
    last = frame["cutoff"].unique().sort()[24]
    early, late = (jumpy.drop("noise").filter(part) for part in (pl.col("ds") <= last, pl.col("cutoff") > last))
    fitted = MartingaleFilter.fit(early, world.actuals)
    assert (fitted.gains.filter(pl.col("lead") < 8)["gain"] < 0.8).all()
    table = trade_off(
        {"as it is": late, "of 3": ensemble(late, over=3), "filtered": fitted.apply(late)}, world.actuals, resamples=50
    )
    for level in (0.5, 0.9):
        found = {row["name"]: row for row in table.filter(level=level).rows(named=True)}
        assert found["as it is"]["relative"] == 1
        for name in ("of 3", "filtered"):
            assert found[name]["relative"] < 0.97
            assert abs(found[name]["excess"]) < 0.3 * found["as it is"]["excess"]
            assert found[name]["mqc"] < found["as it is"]["mqc"]
        assert found["filtered"]["loss"] <= found["of 3"]["loss"] * 1.005


def test_the_oracle_is_left_nearly_alone():
    world = lognormal_world(400, 110, 6)
    fitted = MartingaleFilter.fit(world.oracle_forecasts((0.5, 0.9), 60, 103), world.actuals)
    assert fitted.gains["gain"].mean() == pytest.approx(1, abs=0.12)


def test_a_filter_of_other_levels_or_leads_is_refused():
    frame, actuals = random_frames()
    with pytest.raises(ArtifactError, match="was fitted to levels"):
        FITTED.apply(frame.rename({"q0.9": "q0.95"}))
    longer, _ = random_frames(horizon=6)
    with pytest.raises(ArtifactError, match="4 leads"):
        FITTED.apply(longer)
    assert MartingaleFilter.fit(frame, actuals).gain.shape == (2, 4)


def test_the_trade_off_is_of_the_same_rows():
    frame, actuals = random_frames()
    with pytest.raises(DataError, match="do not forecast the same"):
        trade_off({"a": frame, "b": frame.filter(pl.col("unique_id") != "item 1")}, actuals)
    for wrong in ({}, frame):
        with pytest.raises(ConfigError, match="trade_off compares several forecasts"):
            trade_off(wrong, actuals)
    assert ensemble(frame.lazy(), over=2).equals(ensemble(frame, over=2))
