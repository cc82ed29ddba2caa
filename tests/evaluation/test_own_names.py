"""Frames with a schema's own names go into every verb."""

import numpy as np
import polars as pl
import pytest

from mqcast import Forecaster, Schema, compare, errors, evaluate, rank_revisions, volatility
from mqcast.calibration import calibrate
from mqcast.evaluation import implausible, stabilise
from mqcast.evaluation.slices import promotions
from mqcast.simulate import lognormal_world

SCHEMA = Schema(id="shop", time="week", target="sold")


@pytest.fixture(scope="module")
def sales() -> pl.DataFrame:
    weeks = pl.date_range(pl.date(2022, 1, 2), pl.date(2023, 12, 31), "1w", eager=True)
    sold = np.random.default_rng(0).poisson(30, (3, len(weeks))).astype(float)
    return pl.concat(
        [pl.DataFrame({"shop": name, "week": weeks, "sold": sold[i]}) for i, name in enumerate(("Ulm", "Bonn", "Kiel"))]
    )


@pytest.fixture(scope="module")
def revisions(sales) -> pl.DataFrame:
    return Forecaster("seasonal-naive", 4, schema=SCHEMA).fit(sales).revisions()


def test_verbs_find_the_names_of_a_forecasters_frame(sales, revisions, tmp_path):
    renamed = revisions.rename({"shop": "unique_id", "week": "ds"})
    actuals = sales.rename({"shop": "unique_id", "week": "ds", "sold": "y"})
    assert evaluate(revisions, sales, target="sold", missing="drop").equals(evaluate(renamed, actuals, missing="drop"))
    ranked = rank_revisions(revisions, sales, target="sold")
    assert ranked.rename({"shop": "unique_id", "week": "ds"}).equals(rank_revisions(renamed, actuals))
    assert rank_revisions(revisions).columns[:2] == ["shop", "week"]
    revisions.write_csv(tmp_path / "revisions.csv")
    assert rank_revisions(tmp_path / "revisions.csv")["shop"].to_list() == rank_revisions(revisions)["shop"].to_list()
    volatility(revisions, sales, target="sold", missing="drop", resamples=10)
    compare({"a": revisions, "b": revisions}, sales, baseline="b", target="sold", missing="drop")
    calibrate(revisions, sales, target="sold").apply(revisions)
    stabilise.ensemble(revisions)
    implausible(revisions, sales, target="sold")


def test_a_target_of_another_name_is_asked_for(sales, revisions):
    with pytest.raises(errors.MissingColumnError, match=r"the actuals: no column 'y'.*target=…, or schema=…"):
        evaluate(revisions, sales)
    assert evaluate(revisions, sales, schema=SCHEMA, missing="drop")["rows"][0] > 0


def test_slices_name_their_arguments(sales):
    flagged = sales.with_columns(promo=pl.col("sold") > 30)
    assert promotions(flagged, ["promo"], schema=SCHEMA)[0].name == "promo"
    assert promotions(flagged, ["promo"], id="shop", time="week")[0].name == "promo"
    with pytest.raises(errors.MissingColumnError, match=r"the promotions: no column 'unique_id'.*id=…, or schema=…"):
        promotions(flagged, ["promo"])


def test_a_frame_with_more_columns_is_not_guessed_at(revisions):
    with pytest.raises(errors.MissingColumnError, match=r"no column 'unique_id'.*say which is yours: id=…"):
        rank_revisions(revisions.with_columns(region=pl.lit("south")))


def test_ids_of_several_columns_are_joined_in_forecasts_and_actuals():
    world = lognormal_world(num_items=6, num_weeks=60, horizon=4)
    forecasts, actuals = world.oracle_forecasts((0.5, 0.9), first=50, last=53), world.actuals

    def apart(table: pl.DataFrame) -> pl.DataFrame:
        number = pl.col("unique_id").str.tail(2).cast(pl.Int64)
        return table.with_columns(store=number // 3, item=number % 3).drop("unique_id")

    joined = evaluate(apart(forecasts), apart(actuals), by="store", id="store+item")
    assert joined["rows"].to_list() == [forecasts.height // 2] * 2
    assert evaluate(apart(forecasts), apart(actuals), id="store+item").equals(evaluate(forecasts, actuals))
