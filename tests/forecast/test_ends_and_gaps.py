"""Data as people have them: rows that are missing, plans that are not there yet, series that end at different dates."""

import datetime as dt
import warnings

import numpy as np
import polars as pl
import pytest

from mqcast import Forecaster, Schema, errors

HORIZON, NUM_WEEKS = 4, 60
WEEKS = pl.datetime_range(pl.datetime(2022, 1, 2), pl.datetime(2022, 1, 2) + pl.duration(weeks=67), "1w", eager=True)
KNOWN = Schema(known=["promo"])


def frame(ends: tuple[int, ...] = (NUM_WEEKS,) * 3, future: int = 0) -> pl.DataFrame:
    """Series a, b, c with so many weeks of sales each, and promotions so many weeks beyond the last of them."""
    rng, parts = np.random.default_rng(0), []
    for name, end in zip("abc", ends, strict=True):
        num = NUM_WEEKS + future if future else end
        y = [*rng.poisson(20, end).astype(float), *[None] * (num - end)]
        promo = (np.arange(num) % 7 == 0).tolist()
        parts.append(pl.DataFrame({"unique_id": [name] * num, "ds": WEEKS[:num], "y": y, "promo": promo}))
    return pl.concat(parts)


def new(schema: Schema | None = KNOWN, model: str = "seasonal-naive") -> Forecaster:
    return Forecaster(model, HORIZON, schema=schema, max_steps=2, members=1, verbose=False)


# -- gaps --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["seasonal-naive", "mqcnn"])
@pytest.mark.parametrize("future", [0, HORIZON])
def test_a_missing_week_is_left_out_of_a_backtest_and_counted_once(model, future):
    gap = WEEKS[NUM_WEEKS - 3]
    whole = frame(future=future)
    gaps = whole.filter((pl.col("unique_id") != "b") | (pl.col("ds") != gap))
    made = new(model=model)
    with pytest.warns(
        errors.TargetsLeftOutWarning, match=r"1 targets of 1 series .* no promo \(series 'b' at 2023-02-05"
    ) as told:
        found = made.backtest(gaps, refit=4)
    assert len([one for one in told if issubclass(one.category, errors.TargetsLeftOutWarning)]) == 1
    keys = new().backtest(whole).select("unique_id", "cutoff", "ds")
    lacking = keys.join(found, on=["unique_id", "cutoff", "ds"], how="anti")
    assert lacking.select("unique_id", "ds").unique().rows() == [("b", gap)]
    assert made.evaluate()["rows"][0] > 0


def test_a_backtest_needs_no_plan_of_the_coming_weeks():
    found = new().backtest(frame())
    assert found["ds"].max() == WEEKS[NUM_WEEKS - 1]
    assert found["cutoff"].max() == WEEKS[NUM_WEEKS - 1 - HORIZON]
    assert new().backtest(frame(future=HORIZON))["cutoff"].max() == WEEKS[NUM_WEEKS - 2]


def test_a_backtest_that_cannot_be_forecast_fails_before_it_trains(monkeypatch):
    monkeypatch.setattr("mqcast.models.networks.NetworkModel.fit", lambda *_: pytest.fail("it has trained"))
    with pytest.raises(errors.KnownValuesError, match="add rows with promo"):
        new(model="mqcnn").backtest(frame(), end=WEEKS[NUM_WEEKS - 1])


def test_a_hole_in_the_plan_is_still_an_error():
    plan = frame(future=HORIZON).filter(pl.col("ds") != WEEKS[NUM_WEEKS + 1])
    with pytest.raises(errors.KnownValuesError, match=r"at 2023-03-05: known values are missing"):
        new().fit(plan).predict()


# -- the future --------------------------------------------------------------------------------------------------------


def test_fit_says_what_predict_will_need():
    wanted = r"promo of the coming 4 steps are not in the data; .* up to 2023-03-19, .* predict\(future=…\)"
    with pytest.warns(errors.FutureMissingWarning, match=wanted):
        made = new().fit(frame())
    plan = frame(future=HORIZON).filter(pl.col("y").is_null()).drop("y")
    assert made.predict(future=plan)["ds"].max() == dt.datetime(2023, 3, 19)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new().fit(frame(future=HORIZON))
        new(None).fit(frame().drop("promo"))


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["seasonal-naive", "mqcnn"])
def test_each_series_is_forecast_from_its_own_end(model):
    made = new(model=model).fit(frame((60, 57, 60), future=HORIZON))
    found = made.predict(cutoff="each")
    ends = dict(found.select("unique_id", "cutoff").unique().rows())
    assert ends == {"a": WEEKS[59], "b": WEEKS[56], "c": WEEKS[59]}
    assert found["horizon"].to_list() == [1, 2, 3, 4] * 3
    alone = made.predict(cutoff=WEEKS[56]).filter(unique_id="b")
    assert found.filter(unique_id="b").select("ds", "cutoff").equals(alone.select("ds", "cutoff"))
    np.testing.assert_allclose(found.filter(unique_id="b")["q0.9"], alone["q0.9"], rtol=1e-5)


def test_the_default_says_how_many_lag_behind():
    made = new(None).fit(frame((60, 57, 30)).drop("promo"))
    with (
        pytest.warns(errors.LaggingSeriesWarning, match=r"1 of 2 series .* 2023-02-19, .*\(series 'b' at 2023-01-29"),
        pytest.warns(errors.SeriesLeftOutWarning, match="'c'"),
    ):
        assert made.predict()["cutoff"].unique().to_list() == [WEEKS[59]]
    assert made.predict(cutoff="each")["unique_id"].unique(maintain_order=True).to_list() == ["a", "b", "c"]


def test_a_forecast_of_some_ids_is_that_part_of_the_whole():
    made = new(model="mqcnn").fit(frame(future=HORIZON))
    whole, part = made.predict(), made.predict(ids=["c", "a"])
    wanted = whole.filter(pl.col("unique_id") != "b")
    assert part.select("unique_id", "cutoff", "ds").equals(wanted.select("unique_id", "cutoff", "ds"))
    np.testing.assert_allclose(part["q0.5"], wanted["q0.5"], rtol=1e-5)
    assert made.predict(ids="b")["unique_id"].unique().to_list() == ["b"]
    for wrong, match in (("d", "series 'd': no such series"), ([], "ids is empty")):
        with pytest.raises(errors.MqcastError, match=match):
            made.predict(ids=wrong)


def test_one_lagging_series_is_forecast_from_the_cutoff_of_all():
    made = new(None).fit(frame((60, 57, 60)).drop("promo"))
    with pytest.warns(errors.LaggingSeriesWarning):
        assert made.predict(ids="b")["cutoff"].unique().to_list() == [WEEKS[59]]
