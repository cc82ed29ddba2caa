"""Data as people have them: rows that are missing, plans that are not there yet, series that end at different dates."""

import datetime as dt
import warnings

import numpy as np
import polars as pl
import pytest

from mqcast import Forecaster, Schema, errors, models, pack

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


# -- plans that lack rows ----------------------------------------------------------------------------------------------


def without(rows: pl.DataFrame, name: str, *weeks: int) -> pl.DataFrame:
    return rows.filter((pl.col("unique_id") != name) | ~pl.col("ds").is_in(WEEKS.gather(list(weeks)).implode()))


PLAN = frame(future=HORIZON)
HOLE = without(PLAN, "b", NUM_WEEKS + 1)
LACKS = r"1 of 3 series are not forecast, .* \(series 'b', column 'promo', at 2023-03-05 …\); add rows with promo"


@pytest.mark.parametrize("model", ["seasonal-naive", "mqcnn", "mean_of(mqcnn, seasonal-naive)"])
@pytest.mark.parametrize("cutoff", [None, "each"])
def test_series_with_a_complete_plan_are_forecast_as_if_all_were_complete(model, cutoff):
    made = new(model=model).fit(PLAN)
    with pytest.warns(errors.IncompletePlanWarning, match=LACKS):
        found = made.predict(HOLE, cutoff=cutoff)
    wanted = made.predict(PLAN, cutoff=cutoff).filter(pl.col("unique_id") != "b")
    assert found.select("unique_id", "ds").equals(wanted.select("unique_id", "ds"))
    rtol = 1e-5 if cutoff else 0  # other series in the batch change the last bits of sums; here they are the same
    np.testing.assert_allclose(found["q0.9"], wanted["q0.9"], rtol=rtol)


@pytest.mark.parametrize("cutoff", [None, "each"])
def test_a_series_that_was_asked_for_must_have_a_plan(cutoff):
    made = new().fit(PLAN)
    for ids in ("b", ["a", "b"]):
        with pytest.raises(errors.KnownValuesError, match=r"series 'b', column 'promo', at 2023-03-05: .* missing"):
            made.predict(HOLE, ids=ids, cutoff=cutoff)
    assert made.predict(HOLE, ids=["a", "c"], cutoff=cutoff)["unique_id"].n_unique() == 2


def test_a_table_of_forecasts_leaves_out_what_every_model_leaves_out():
    steps = pl.DataFrame({"horizon": range(1, HORIZON + 1)})
    table = pl.DataFrame({"unique_id": ["a", "b", "c"], "cutoff": WEEKS[NUM_WEEKS - 1]}).join(steps, how="cross")
    table = table.with_columns(pl.col("cutoff").dt.offset_by(pl.format("{}w", "horizon")).alias("ds"))
    models.register_frame("planner", table.with_columns(pl.lit(1.0).alias("q0.5"), pl.lit(2.0).alias("q0.9")))
    try:
        made = new(model="planner").fit(PLAN)
        with pytest.warns(errors.IncompletePlanWarning, match=LACKS):
            found = made.predict(HOLE)
    finally:
        models.unregister("planner")
    assert found["unique_id"].unique(maintain_order=True).to_list() == ["a", "c"]
    assert found.height == 2 * HORIZON


def test_what_if_and_figures_of_a_series_without_a_plan_are_errors():
    with pytest.warns(
        errors.FutureMissingWarning, match="promo of .* not in the data for 1 series; .* leaves these out"
    ):
        made = new(model="mqt").fit(HOLE)
    change = PLAN.filter(pl.col("y").is_null()).with_columns(promo=True).drop("y")
    for call in (lambda: made.what_if(change), lambda: made.plot.fan("b"), lambda: made.explain(["a", "b"])):
        with pytest.raises(errors.KnownValuesError, match="series 'b', column 'promo', at 2023-03-05"):
            call()
    assert made.what_if(change.filter(pl.col("unique_id") != "b"))["unique_id"].n_unique() == 2


@pytest.mark.parametrize("model", ["seasonal-naive", "mqcnn"])
def test_a_backtest_leaves_out_the_forecasts_whose_plan_lacks_rows(model):
    made = new(model=model)
    with pytest.warns(errors.IncompletePlanWarning, match="1 of 3 series are not forecast from all cutoffs"):
        found = made.backtest(HOLE)
    lacking = new(model=model).backtest(PLAN).join(found, on=["unique_id", "cutoff", "ds"], how="anti")
    late = [WEEKS[i] for i in (NUM_WEEKS - 3, NUM_WEEKS - 2)]  # whose horizon has the missing week
    assert lacking.select("unique_id", "cutoff").unique(maintain_order=True).rows() == [("b", week) for week in late]
    assert lacking.height == 2 * HORIZON
    kept = new(model=model).backtest(PLAN).join(found, on=["unique_id", "cutoff", "ds"], how="semi")
    assert kept.equals(found)


def test_which_series_are_forecast_does_not_depend_on_later_rows():
    made = new(model="mqcnn").fit(PLAN)
    at, plans = WEEKS[NUM_WEEKS - 1], []
    for rows in (HOLE, HOLE.filter(pl.col("ds") <= WEEKS[NUM_WEEKS + 2])):
        later = rows.with_columns(promo=pl.col("promo") ^ (pl.col("ds") > WEEKS[NUM_WEEKS + 1]))
        with pytest.warns(errors.IncompletePlanWarning):
            plans.append(made.revisions(later, at - dt.timedelta(weeks=2), at - dt.timedelta(weeks=2)))
    assert plans[0].equals(plans[1])
    assert plans[0]["unique_id"].unique(maintain_order=True).to_list() == ["a", "c"]


def test_a_series_that_ended_without_a_plan_is_left_out_of_forecasts_from_each_end():
    rows = frame((60, 57, 60), future=HORIZON)
    made = new().fit(rows)
    short = rows.filter((pl.col("unique_id") != "b") | (pl.col("ds") < WEEKS[58]))
    with pytest.warns(errors.IncompletePlanWarning, match=r"1 of 3 .* \(series 'b', column 'promo', at 2023-02-12"):
        assert made.predict(short, cutoff="each")["unique_id"].unique(maintain_order=True).to_list() == ["a", "c"]
    with pytest.raises(errors.KnownValuesError, match="and in 2 more series"):
        made.predict(rows.filter(pl.col("y").is_not_null()), cutoff="each")


@pytest.mark.parametrize("kind", [None, float("nan")])
def test_an_empty_value_of_a_plan_is_a_row_that_is_missing(kind):
    whole = PLAN.with_columns(promo=pl.col("promo").cast(pl.Float64))
    plan = whole.filter(pl.col("y").is_null()).drop("y")
    at = (pl.col("unique_id") == "b") & (pl.col("ds") == WEEKS[NUM_WEEKS + 1])
    empty = plan.with_columns(promo=pl.when(at).then(kind).otherwise("promo"))
    with pytest.warns(errors.IncompletePlanWarning, match=r"1 of 3 .* at 2023-03-05 …\); .*fill=.* empty values mean"):
        assert new().fit(whole).predict(future=empty)["unique_id"].n_unique() == 2
    filled = new(Schema(known=["promo"], fill={"promo": 0})).fit(whole)
    assert filled.predict(future=empty)["unique_id"].n_unique() == 3
    with pytest.raises(errors.KnownValuesError, match="has to be known ahead but is missing"):
        new().fit(whole).predict(future=plan.with_columns(promo=pl.lit(kind, pl.Float64)))


@pytest.mark.parametrize("kind", [None, float("nan")])
@pytest.mark.parametrize("form", ["frame", "unsorted frame", "file", "unsorted file"])
def test_an_empty_planned_value_in_the_history_is_a_row_that_is_missing(kind, form, tmp_path):
    whole = PLAN.with_columns(promo=pl.col("promo").cast(pl.Float64))
    at = (pl.col("unique_id") == "b") & (pl.col("ds") == WEEKS[NUM_WEEKS + 1])
    given = rows = whole.with_columns(promo=pl.when(at).then(kind).otherwise("promo"))
    if "unsorted" in form:
        given = rows = rows.sort("ds", "unique_id", descending=True)
    if "file" in form:
        given = tmp_path / "sales.parquet"
        rows.write_parquet(given)
    with pytest.warns(errors.FutureMissingWarning, match=r"promo of the coming .* not in the data for 1 series"):
        made = new().fit(given)
    with pytest.warns(errors.IncompletePlanWarning, match=r"1 of 3 .* at 2023-03-05 …\); .*fill=.* empty values mean"):
        found = made.predict()
    apart = new().fit(whole).predict()
    assert found.equals(apart.filter(pl.col("unique_id") != "b"))
    with pytest.warns(errors.IncompletePlanWarning):
        assert new().fit(whole).predict(given).equals(found)
    packed = pack(given, tmp_path / "panel", KNOWN)
    assert (packed.num_rows, packed.fingerprint) == (len(whole) - 1, made.panel_.fingerprint)


def test_a_plan_without_a_value_names_all_columns_that_may_lack_it():
    two = PLAN.with_columns(price=pl.lit(2.0))
    at = (pl.col("unique_id") == "b") & (pl.col("ds") == WEEKS[NUM_WEEKS + 1])
    with pytest.warns(errors.FutureMissingWarning):
        made = new(Schema(known=["promo", "price"])).fit(two.with_columns(price=pl.when(~at).then("price")))
    with pytest.warns(
        errors.IncompletePlanWarning, match=r"or has empty values \(series 'b', column 'promo' or 'price', "
    ):
        made.predict()


def test_empty_known_values_that_are_no_part_of_a_plan_are_told_with_their_row(tmp_path):
    past = (pl.col("unique_id") == "b") & (pl.col("ds") == WEEKS[NUM_WEEKS - 2])
    sold = pl.col("y").is_not_null()
    for lacks in (past, past | (~sold & (pl.col("unique_id") == "c")), ~sold):
        rows = PLAN.with_columns(promo=pl.when(lacks).then(None).otherwise("promo"))
        with pytest.raises(
            errors.KnownValuesError, match=r"column 'promo', at .* has to be known ahead but is missing"
        ):
            new().fit(rows)
    twice = pl.concat(
        [
            PLAN.with_columns(promo=pl.when(~sold & (pl.col("unique_id") == "b")).then(None).otherwise("promo")),
            PLAN.tail(1),
        ]
    )
    with pytest.raises(errors.DuplicateRowsError, match=rf"rows {len(PLAN) - 1} and {len(PLAN)} of the frame"):
        new().fit(twice)


def test_a_page_tells_of_plans_that_lack_rows_once(tmp_path):
    with pytest.warns(errors.FutureMissingWarning):
        made = new(model="mqt").fit(HOLE)
    with pytest.warns(errors.IncompletePlanWarning) as told:
        page = made.page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(told) == 1
    assert "1 of 3 series are not forecast" in page


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
