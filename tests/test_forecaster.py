"""The Forecaster: sklearn's manners, pandas and polars, new history, new items, other plans, and what is on disk."""

import datetime as dt
import json
import pickle
from functools import cache

import numpy as np
import pandas as pd
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from sklearn.base import clone
from sklearn.utils.estimator_checks import (
    check_estimator_cloneable,
    check_estimator_repr,
    check_get_params_invariance,
    check_no_attributes_set_in_init,
    check_parameters_default_constructible,
    check_set_params,
)

from mqcast import Forecaster, Panel, Schema, models, quick
from mqcast.errors import (
    ArtifactError,
    ColumnTypeError,
    ConfigError,
    DataError,
    DuplicateRowsError,
    FutureMissingWarning,
    KnownValuesError,
    MissingColumnError,
    NotFittedError,
    SeriesLeftOutWarning,
)
from mqcast.models.recipe import settings_for
from mqcast.settings import RunConfig, WindowConfig
from mqcast.settings.merge import user_layers
from mqcast.simulate import World, lognormal_world

HORIZON = 4
SMALL = {
    "train": {"num_threads": 1},
    "model": {"hidden_dim": 6, "encoder_dilations": (1, 2), "lookback": 8},
    "window": {"history": 8, "num_fcts": 12},
}
KEYS = ["unique_id", "cutoff", "ds", "horizon"]


@cache
def world() -> World:
    return lognormal_world(12, 60, HORIZON)


def new(model: str = "mqt", **settings) -> Forecaster:
    config = None if model == "seasonal-naive" else SMALL
    return Forecaster(model, HORIZON, schema=world().schema, max_steps=4, config=config, **settings)


@cache
def fitted(model: str = "mqt") -> Forecaster:
    return new(model).fit(world().frame, static=world().static, events=world().events)


def plan() -> pl.DataFrame:
    """The future rows of the world's own frame."""
    return world().frame.filter(pl.col("y").is_null()).drop("y")


# -- sklearn's manners -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check",
    [
        check_get_params_invariance,
        check_set_params,
        check_no_attributes_set_in_init,
        check_estimator_cloneable,
        check_estimator_repr,
        check_parameters_default_constructible,
    ],
)
def test_sklearns_checks_of_parameters_pass(check):
    check("Forecaster", Forecaster())


def test_a_clone_has_the_parameters_and_no_fit():
    copy = clone(fitted())
    assert copy.get_params() == fitted().get_params()
    with pytest.raises(NotFittedError, match=r"not been fitted; call fit\(frame\) first"):
        copy.predict()
    assert not copy.__sklearn_is_fitted__()
    assert fitted().__sklearn_is_fitted__()


def test_every_verb_but_fit_asks_for_a_fit(tmp_path):
    verbs = [
        lambda f: f.predict(),
        lambda f: f.revisions(),
        lambda f: f.backtest(),
        lambda f: f.evaluate(),
        lambda f: f.what_if(plan()),
        lambda f: f.explain("a"),
        lambda f: f.save(tmp_path / "f"),
    ]
    for verb in verbs:
        with pytest.raises(NotFittedError):
            verb(Forecaster())
    assert not list(tmp_path.iterdir())


def test_pickling_is_refused_with_the_way_to_save():
    with pytest.raises(TypeError, match=r"save\(path\) and Forecaster.load\(path\)"):
        pickle.dumps(fitted())


def test_unknown_parameters_are_told_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no parameter 'horizn' \(did you mean 'horizon'\?\)"):
        Forecaster().set_params(horizn=3)


def test_the_text_of_a_forecaster_names_what_was_said():
    assert repr(Forecaster("mqcnn", horizon=7)) == "Forecaster(model='mqcnn', horizon=7)"


# -- forecasts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn", "seasonal-naive"])
def test_every_model_forecasts_every_series_from_the_last_sale(model: str):
    found = fitted(model).predict()
    assert found.columns == [*KEYS, "q0.5", "q0.9"]
    assert len(found) == 12 * HORIZON
    sold = world().frame.drop_nulls("y")["ds"].max()
    assert found["cutoff"].unique().to_list() == [sold]
    assert (found["q0.9"] >= found["q0.5"]).all()
    assert (found["q0.5"] >= 0).all()
    assert found.select("unique_id", "ds").equals(plan().select("unique_id", "ds"))


def test_pandas_polars_arrow_and_parquet_give_the_same_to_the_bit(tmp_path):
    w, expected = world(), fitted().predict()
    w.frame.write_parquet(tmp_path / "sales.parquet")
    pandas = new().fit(w.frame.to_pandas(), static=w.static.to_pandas(), events=w.events.to_pandas()).predict()
    assert isinstance(pandas, pd.DataFrame)
    assert pl.from_pandas(pandas).equals(expected)
    parquet = new().fit(str(tmp_path / "sales.parquet"), static=w.static, events=w.events)
    assert parquet.predict().equals(expected)
    for history in (w.frame, w.frame.to_arrow(), tmp_path / "sales.parquet"):
        found = pl.DataFrame(fitted().predict(history))
        assert found.equals(expected)
    assert pl.from_pandas(fitted().predict(w.frame.to_pandas())).equals(expected)
    panel = Panel.from_frame(w.frame, w.schema, w.static, w.events)
    assert new().fit(panel).predict().equals(expected)


def test_ids_and_dates_come_back_in_their_types():
    rng = np.random.default_rng(0)
    days = pd.date_range("2024-01-01", periods=40)
    frame = pd.DataFrame({"shop": np.repeat([3, 1], 40), "day": np.tile(days, 2), "sold": rng.poisson(9, 80)})
    made = Forecaster("seasonal-naive", 3, schema=Schema(id="shop", time="day", target="sold")).fit(frame)
    found = made.predict()
    assert found["shop"].dtype == np.int64
    assert found["day"].dtype == frame["day"].dtype
    assert set(found["shop"]) == {1, 3}
    dated = pl.from_pandas(frame).with_columns(pl.col("day").cast(pl.Date))
    assert Forecaster("seasonal-naive", 3, schema=made.schema).fit(dated).predict().schema["cutoff"] == pl.Date


def test_new_history_moves_the_cutoff_without_training():
    w = world()
    early = w.frame.filter(pl.col("ds") <= w.frame["ds"].unique().sort()[52])
    weeks = early["ds"].unique().sort()
    early = early.with_columns(pl.when(pl.col("ds") <= weeks[-1 - HORIZON]).then("y").alias("y"))
    found = fitted().predict(early)
    assert found["cutoff"].unique().to_list() == [weeks[-1 - HORIZON]]
    assert found.equals(fitted().predict(cutoff=weeks[-1 - HORIZON]))


def test_new_items_are_forecast_from_their_attributes_and_plan():
    w = world()
    item = plan().filter(unique_id="item_000001").with_columns(unique_id=pl.lit("new"))
    static = pl.DataFrame({"unique_id": ["new"], "category": "category_01", "brand": "brand_01", "price_band": "low"})
    found = fitted().predict(future=pl.concat([plan(), item]), static=static)
    assert len(found.filter(unique_id="new")) == HORIZON
    assert found.filter(pl.col("unique_id") != "new").equals(fitted().predict())
    sold = w.frame.filter(unique_id="item_000001").tail(HORIZON + 3).with_columns(unique_id=pl.lit("new"))
    young = fitted().predict(pl.concat([w.frame, sold]), static=static)
    assert len(young.filter(unique_id="new")) == HORIZON
    assert not young.filter(unique_id="new")["q0.5"].equals(found.filter(unique_id="new")["q0.5"])


def test_doubled_rows_of_a_plan_are_told_by_their_numbers_in_it(tmp_path):
    twice = pl.concat([plan(), plan().filter(unique_id="item_000003").head(1)])
    twice.write_csv(tmp_path / "plan.csv")
    for given, places in (
        (twice, f"rows 12 and {len(plan())} of the future"),
        (tmp_path / "plan.csv", "csv, rows 14 a"),
    ):
        with pytest.raises(DuplicateRowsError, match=rf"series 'item_000003', .*the future has 2 rows \(.*{places}"):
            fitted().predict(future=given)
        with pytest.raises(DuplicateRowsError, match=rf"the future has 2 rows \(.*{places}"):
            fitted().what_if(given)


def test_a_plan_with_other_ids_alone_is_told(tmp_path):
    weeks = pl.datetime_range(pl.datetime(2024, 1, 7), pl.datetime(2024, 6, 30), "1w", eager=True)
    rows = pl.DataFrame({"unique_id": "007", "ds": weeks, "y": 1.0, "promo": False})
    plan = pl.DataFrame({"unique_id": 7, "ds": weeks.dt.offset_by("26w"), "promo": True})
    told = r"the future has none of the series to forecast, such as '007', but others, such as '7'; give their plan"
    with pytest.warns(FutureMissingWarning):
        made = Forecaster("seasonal-naive", 2, schema=Schema(known=["promo"])).fit(rows)
    with pytest.raises(DataError, match=told):
        made.predict(future=plan)
    with pytest.raises(DataError, match=told):
        quick(rows, 2, folder=tmp_path / "out", future=plan, verbose=False)


def test_a_plan_of_all_series_serves_those_that_are_asked_for(tmp_path):
    w = world()
    one = w.frame.filter(unique_id="item_000003")
    wanted = fitted().predict(ids="item_000003")
    assert_frame_equal(fitted().predict(one, future=plan()), wanted)
    bare = Forecaster.load(new(folder=tmp_path / "run").fit(w.frame, static=w.static, events=w.events).run_.folder)
    with pytest.warns(SeriesLeftOutWarning, match=r"11 series of the future have neither .* \('item_000000' …\); to"):
        found = bare.predict(one, plan(), static=w.static.filter(unique_id="item_000003"), events=w.events)
    assert_frame_equal(found, wanted)
    with pytest.raises(DataError, match="the future has none of the series to forecast, such as 'item_000003', but ot"):
        fitted().predict(one, future=plan().filter(unique_id="item_000004"))


def test_another_plan_changes_the_forecast_and_the_difference_is_shown():
    promoted = plan().with_columns(promo_display=pl.lit(True))
    found = fitted().what_if(promoted)
    same = fitted().what_if(plan())
    assert same["q0.5_change"].abs().max() == 0
    assert found["q0.5_baseline"].equals(fitted().predict()["q0.5"].alias("q0.5_baseline"))
    np.testing.assert_allclose(found["q0.5_change"], found["q0.5"] - found["q0.5_baseline"])
    assert found["q0.5_change"].abs().max() > 0
    other = fitted().what_if(promoted, baseline=plan().with_columns(promo_coupon=pl.lit(True)))
    assert not other["q0.5_baseline"].equals(found["q0.5_baseline"])
    assert fitted().predict(future=promoted)["q0.5"].equals(found["q0.5"])


def test_changed_rows_alone_are_an_overlay_and_only_their_items_are_forecast():
    promoted = plan().with_columns(promo_display=pl.lit(True))
    weeks = plan()["ds"].unique().sort()
    changes = promoted.filter((pl.col("unique_id") == "item_000003") & (pl.col("ds") >= weeks[1]))
    found = fitted().what_if(changes.select("unique_id", "ds", "promo_display"))
    assert found["unique_id"].unique().to_list() == ["item_000003"]
    keys = ["unique_id", "ds"]
    mixed = pl.concat([plan().join(changes, on=keys, how="anti"), changes], how="diagonal")
    wanted = fitted().predict(future=mixed).filter(unique_id="item_000003")
    np.testing.assert_allclose(found["q0.5"], wanted["q0.5"], rtol=1e-5)
    np.testing.assert_allclose(found["q0.5_baseline"], fitted().predict(ids="item_000003")["q0.5"], rtol=1e-5)
    assert found["q0.5_change"].abs().max() > 0


def test_several_scenarios_stand_side_by_side():
    one = plan().filter(unique_id="item_000003").with_columns(promo_display=pl.lit(True))
    two = plan().filter(unique_id="item_000005").with_columns(promo_coupon=pl.lit(True))
    found = fitted().what_if({"display": one, "coupon": two})
    assert found.columns[:4] == ["unique_id", "cutoff", "ds", "horizon"]
    assert {"q0.5_baseline", "q0.5_display", "q0.5_display_change", "q0.9_coupon_change"} <= set(found.columns)
    of = {name: part for (name,), part in found.group_by("unique_id")}
    assert sorted(of) == ["item_000003", "item_000005"]
    assert of["item_000003"]["q0.5_coupon_change"].abs().max() == 0
    assert of["item_000003"]["q0.5_display_change"].abs().max() > 0
    np.testing.assert_allclose(of["item_000003"]["q0.5_display"], fitted().what_if(one)["q0.5"], rtol=1e-5)
    figure = fitted().plot.what_if("item_000003", {"display": one, "coupon": two})
    line = next(trace for trace in figure.data if trace.name == "display, P50")
    np.testing.assert_allclose(line.y, of["item_000003"]["q0.5_display"], rtol=1e-5)


def test_mistakes_in_changes_say_what_to_give():
    one = plan().filter(unique_id="item_000003")
    for wrong, kind, match in (
        (
            one.select("unique_id", "ds"),
            MissingColumnError,
            "no column 'promo_display' or 'promo_coupon'; give the known",
        ),
        (pl.concat([one, one]), DataError, "series 'item_000003', .*the future has 2 rows"),
        (one.with_columns(promo_display=pl.lit("maybe")), DataError, "'promo_display': a flag holds 'maybe'"),
        ({"baseline": one}, ConfigError, "a scenario is called 'baseline'"),
        ({}, ConfigError, "there is no scenario"),
        (one.with_columns(pl.col("ds").dt.offset_by("-1y")), DataError, "no row after the last sale"),
    ):
        with pytest.raises(kind, match=match):
            fitted().what_if(wrong)
    with pytest.raises(ConfigError, match="no row of item 'item_000001' changes"):
        fitted().plot.what_if("item_000001", one)


def test_revisions_hold_every_cutoff_and_agree_with_each_of_them():
    weeks = world().frame["ds"].unique().sort()
    found = fitted().revisions(start=weeks[50], end=weeks[55])
    assert found["cutoff"].n_unique() == 6
    assert len(found) == 12 * 6 * HORIZON
    alone = fitted().predict(cutoff=weeks[53])
    np.testing.assert_allclose(found.filter(cutoff=weeks[53])["q0.9"], alone["q0.9"], rtol=1e-5)
    assert fitted().revisions()["cutoff"].n_unique() == 3 * HORIZON - 1


def test_a_backtest_sees_nothing_after_its_start():
    w, weeks = world(), world().frame["ds"].unique().sort()
    later = pl.col("ds") > weeks[48]
    changed = w.frame.with_columns(pl.when(later).then(pl.col("y") * 5 + 3).otherwise("y").alias("y"))
    frames = (w.frame, changed)
    one, two = (new().fit(f, static=w.static, events=w.events).backtest(start=weeks[48], end=weeks[49]) for f in frames)
    assert one.filter(cutoff=weeks[48]).equals(two.filter(cutoff=weeks[48]))
    assert not one.filter(cutoff=weeks[49]).equals(two.filter(cutoff=weeks[49]))


def test_a_backtest_with_refits_trains_anew_for_each_part():
    weeks = world().frame["ds"].unique().sort()
    made = new().fit(world().frame, static=world().static, events=world().events)
    found = made.backtest(start=weeks[46], end=weeks[51], refit=3)
    assert found["cutoff"].n_unique() == 6
    once = made.backtest(start=weeks[46], end=weeks[51])
    assert_frame_equal(found.filter(cutoff=weeks[47]), once.filter(cutoff=weeks[47]), rel_tol=1e-5)
    with pytest.raises(AssertionError):
        assert_frame_equal(found.filter(cutoff=weeks[50]), once.filter(cutoff=weeks[50]), rel_tol=1e-5)
    score = made.evaluate(by="horizon")
    assert score["horizon"].to_list() == [1, 2, 3, 4]
    assert score["rows"].sum() == len(found)
    assert made.evaluate(by="category").columns[0] == "category"


def test_a_forecaster_starts_from_the_weights_of_another_and_keeps_its_network():
    weeks = world().frame["ds"].unique().sort()
    known = world().frame.filter(pl.col("y").is_not_null())
    shorter = known.filter(pl.col("ds") <= weeks[49])
    before = new().fit(shorter, static=world().static, events=world().events)
    after = Forecaster("mqt", HORIZON, max_steps=1, config={"train": {"learning_rate": 1e-12}})
    after.fit(known, static=world().static, events=world().events, start_from=before)
    assert after.config_.model == before.config_.model
    weights = [made.run_.network().state_dict() for made in (before, after)]
    assert all(np.allclose(weights[0][name], weights[1][name], atol=1e-7) for name in weights[0])
    with pytest.raises(NotFittedError, match="not been fitted"):
        new().fit(known, static=world().static, events=world().events, start_from=new())


def test_an_explanation_sums_to_one_over_the_dates_looked_at():
    found = fitted().explain("item_000003", above=0.0)
    sums = found.group_by("block", "horizon").agg(pl.sum("weight"))
    np.testing.assert_allclose(sums["weight"], 1, rtol=1e-4)
    assert found["unique_id"].unique().to_list() == ["item_000003"]
    assert (found["looked_at"] <= found["cutoff"]).all()
    assert len(fitted().explain(["item_000003", "item_000004"])["unique_id"].unique()) == 2
    for model in ("mqcnn", "seasonal-naive"):
        with pytest.raises(ConfigError, match="no attention to explain"):
            fitted(model).explain("item_000003")


def test_a_report_shows_the_model_beside_the_naive_one(tmp_path):
    made = new().fit(world().frame.to_pandas(), static=world().static, events=world().events)
    text = made.report(tmp_path / "report.html").read_text()
    assert "mqt, 4 steps ahead" in text
    assert "seasonal-naive" in text
    assert "Are revisions justified?" in text


def test_seasonal_naive_is_the_same_season_of_before_with_the_spread_of_its_differences():
    found = fitted("seasonal-naive").predict()
    series = world().frame.filter(unique_id="item_000005").drop_nulls("y")["y"].cast(pl.Float32).cast(pl.Float64)
    mine = found.filter(unique_id="item_000005")
    np.testing.assert_allclose(mine["q0.5"], series[60 - 52 : 60 - 52 + HORIZON], rtol=1e-6)
    spread = np.sqrt(np.mean((series[52:].to_numpy() - series[:-52].to_numpy()) ** 2))
    np.testing.assert_allclose(mine["q0.9"] - mine["q0.5"], 1.2815515655446004 * spread, rtol=1e-6)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_fit_the_data_and_give_way_to_the_users(tmp_path):
    made = fitted()
    assert made.config_.window.history == 8
    assert made.config_.train.max_steps == 4
    assert made.config_.scaling.log1p
    file = tmp_path / "run.toml"
    file.write_text("[train]\nlearning_rate = 0.5\n[schema]\ntarget = 'y'\n")
    given = RunConfig(window=WindowConfig(horizon=HORIZON, history=9, num_fcts=3))

    def settings(**arguments):
        model = models.get("mqt")
        return model.settings(made.panel_, Forecaster(horizon=HORIZON, **arguments)._options())

    assert settings(config=file).config.train.learning_rate == 0.5
    assert settings(config=given).config.window.num_fcts == 3
    assert settings(seed=7, max_minutes=2).config.train.seed == 7
    with pytest.raises(ConfigError, match=r"config has model\.quantiles = \(0\.1,\), but quantiles is \(0\.5, 0\.9\)"):
        settings(config={"model": {"quantiles": (0.1,)}})
    as_toml = {"model": {"quantiles": [0.5, 0.9]}}  # what the Forecaster says too
    assert settings(config=as_toml).config.model.quantiles == (0.5, 0.9)


def test_every_setting_says_where_it_came_from(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[train]\nlearning_rate = 0.01\n[window]\nnum_fcts = 12\nhistory = 8\n")
    made = Forecaster("mqcnn", HORIZON, config=file, max_steps=2, schema=world().schema, verbose=False)
    made.fit(world().frame.to_pandas(), static=world().static, events=world().events)
    table = made.settings_
    assert isinstance(table, pd.DataFrame)
    origins = dict(zip(table["setting"], table["origin"], strict=True))
    assert origins["train.learning_rate"] == "file"
    assert origins["train.max_steps"] == origins["window.horizon"] == "arguments"
    assert origins["train.schedule"] == "fits the data"
    assert origins["train.epsilon"] == "built in"
    assert len(origins) == len(table)
    made.save(tmp_path / "saved")
    with pytest.raises(ConfigError, match="config_ has the loaded values"):
        _ = Forecaster.load(tmp_path / "saved").settings_
    with pytest.raises(ConfigError, match="seasonal-naive has no settings of its own"):
        _ = fitted("seasonal-naive").settings_


@pytest.mark.parametrize(
    ("freq", "length"), [("h", 400), ("D", 200), ("W", 120), ("MS", 40), ("B", 90), ("QS", 12), ("D", 12)]
)
def test_a_bare_frame_of_any_frequency_can_be_fitted(freq: str, length: int):
    rng = np.random.default_rng(0)
    dates = pd.date_range("2020-01-06", periods=length, freq=freq)
    frame = pd.DataFrame({"unique_id": np.repeat(["a", "b"], length), "ds": np.tile(dates, 2)})
    frame["y"] = rng.gamma(3, 4, 2 * length)
    config = {"train": {"num_threads": 1}, "model": {"hidden_dim": 4}}
    found = Forecaster(horizon=3, max_steps=1, config=config).fit(frame).predict()
    assert len(found) == 6
    assert np.isfinite(found[["q0.5", "q0.9"]].to_numpy()).all()


def test_the_same_seed_gives_the_same_forecast_and_another_seed_another():
    w = world()
    one, other = (new(seed=s).fit(w.frame, static=w.static, events=w.events).predict() for s in (0, 1))
    assert one.equals(fitted().predict())
    assert not one.equals(other)


# -- on disk -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mqt", "seasonal-naive"])
def test_saved_and_loaded_it_forecasts_the_same_to_the_bit(model: str, tmp_path):
    made = fitted(model)
    path = made.save(tmp_path / "made")
    again = Forecaster.load(path)
    assert again.predict().equals(made.predict())
    assert again.predict(world().frame.to_pandas())["q0.5"].tolist() == made.predict()["q0.5"].to_list()
    assert again.revisions().equals(made.revisions())
    assert again.horizon == HORIZON
    assert not [file for file in path.rglob("*") if file.suffix in (".pkl", ".pt", ".bin")]
    assert again.save(tmp_path / "twice").exists()
    with pytest.raises(ArtifactError, match="already exists"):
        made.save(path)


def test_a_clock_among_the_known_columns_changes_no_forecast(tmp_path):
    """Networks see only how the number of the week moves, which is always by one."""
    frame = pl.DataFrame({"week": range(70)}).with_columns(
        ds=pl.datetime(2023, 1, 1) + pl.duration(weeks=pl.col("week")),
        y=pl.when(pl.col("week") < 66).then(10.0 + pl.col("week") % 4),
    )
    frame = pl.concat([frame.with_columns(unique_id=pl.lit(name)) for name in "ab"])
    made = Forecaster("mqcnn", 4, schema={"known": ["week"]}, max_steps=3, verbose=False, config=SMALL).fit(frame)
    made.save(tmp_path / "saved")
    loaded = Forecaster.load(tmp_path / "saved")
    assert loaded.predict().equals(made.predict())
    later = frame.with_columns(pl.col("week") + 1000)
    assert np.allclose(loaded.predict(later)["q0.5"], made.predict()["q0.5"], rtol=1e-4)


def test_saved_and_loaded_it_trains_again_as_it_was_told_to(tmp_path):
    config = {"model": {"hidden_dim": 4}, "train": {"learning_rate": 0.01}}
    made = Forecaster(horizon=HORIZON, config=config, seed=5, max_steps=3, max_minutes=2, verbose=False)
    again = Forecaster.load(made.fit(world().frame).save(tmp_path / "made"))
    for name in ("config", "seed", "max_steps", "max_minutes"):
        assert getattr(again, name) == getattr(made, name)
    plain = Forecaster(horizon=HORIZON, max_steps=1, verbose=False).fit(world().frame)
    assert Forecaster.load(plain.save(tmp_path / "plain")).config is None


def damaged(path, name: str):
    file = path / name
    file.write_bytes(file.read_bytes()[:-20] + b"x" * 20)


def edited(path, name: str, **changes):
    file = path / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: (path / "forecaster.json").unlink(), "no forecaster at"),
        (lambda path: damaged(path, "forecaster.json"), r"forecaster\.json is missing or damaged"),
        (lambda path: edited(path, "forecaster.json", version=99), "has format 99"),
        (
            lambda path: edited(path, "forecaster.json", params={"model": "mqt"}),
            r"forecaster\.json is missing or damaged",
        ),
        (
            lambda path: (path / "model.safetensors").write_bytes(b"no weights"),
            r"model\.safetensors is missing or damaged",
        ),
        (lambda path: (path / "model.safetensors").unlink(), r"model\.safetensors is missing or damaged"),
        (lambda path: damaged(path, "schema.json"), r"schema\.json is missing or damaged"),
        (lambda path: (path / "panel" / "panel.json").unlink(), r"panel\.json is missing or damaged"),
        (lambda path: edited(path, "run.json", version=1), r"run\.json is missing or damaged"),
        (lambda path: edited(path, "run.json", signature="0"), r"run\.json is missing or damaged"),
    ],
)
def test_what_is_wrong_on_disk_is_told(harm, message: str, tmp_path):
    path = fitted().save(tmp_path / "made")
    harm(path)
    with pytest.raises(ArtifactError, match=message):
        Forecaster.load(path)


def test_nothing_is_left_behind_by_a_save_that_fails(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write "):
        fitted().save(tmp_path / "file" / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# -- bad calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "mqtt"}, r"model is 'mqtt' \(did you mean 'mqt'\?\)"),
        ({"horizon": 0}, "horizon is 0"),
        ({"horizon": 2.5}, "horizon is 2.5"),
        ({"quantiles": (0.9, 0.5)}, "quantiles are"),
        ({"quantiles": ()}, "quantiles are"),
        ({"config": 3}, "config is a int"),
        ({"config": {"train": 3}}, "config: train is 3"),
        ({"config": {"train": {"rate": 3}}}, "no setting 'rate'"),
        ({"config": "nowhere.toml"}, "no settings file at nowhere.toml"),
        ({"max_steps": 0}, "max_steps"),
    ],
)
def test_impossible_settings_are_told_when_fitting(settings, message):
    w = world()
    made = Forecaster(**{"horizon": HORIZON, "schema": w.schema} | settings)
    with pytest.raises(ConfigError, match=message):
        made.fit(w.frame, static=w.static, events=w.events)


def test_bad_frames_are_told_when_forecasting():
    w, made = world(), fitted()
    with pytest.raises(MissingColumnError, match="no column 'promo_coupon'"):
        made.predict(w.frame.drop("promo_coupon"))
    with pytest.raises(MissingColumnError, match="the future has no column 'promo_display'"):
        made.predict(future=plan().drop("promo_display"))
    with pytest.raises(DataError, match="no row after the last sale"):
        made.predict(future=w.frame.drop_nulls("y").drop("y"))
    with pytest.raises(KnownValuesError, match="known values are missing within the horizon"):
        made.predict(future=plan().filter(pl.col("ds") < plan()["ds"].max()))
    with pytest.raises(ConfigError, match="is after the last"):
        made.revisions(start="2020-02-02", end="2020-01-05")
    with pytest.raises(ConfigError, match="is not a date"):
        made.predict(cutoff="someday")
    with pytest.raises(ConfigError, match="refit is 0"):
        made.backtest(refit=0)
    with pytest.raises(DataError, match="no such series"):
        made.explain("nobody")
    with pytest.warns(SeriesLeftOutWarning, match="1 of 12 series are not forecast"):
        made.predict(
            w.frame.filter((pl.col("unique_id") != "item_000004") | (pl.col("ds") < w.frame["ds"].unique().sort()[40]))
        )


def test_a_horizon_longer_than_all_series_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"horizon is 5000, but no series has more than \d+ rows; forecast fewer"):
        settings_for(fitted().panel_, "mqt", 5000, (0.5, 0.9))


@pytest.mark.parametrize(
    ("demand", "by", "log1p"),
    [
        (lambda rng, closed: rng.gamma(4, 500, len(closed)), "recent", True),
        (lambda rng, closed: np.where(closed, 0, rng.gamma(4, 500, len(closed))), "series", False),  # shut on Sundays
        (lambda rng, closed: rng.poisson(1.2, len(closed)), "recent", True),  # often nothing, but never by plan
        (lambda rng, closed: rng.normal(0, 1, len(closed)), "recent", False),
        (lambda rng, closed: np.zeros(len(closed)), "recent", True),
    ],
    ids=["many", "closings", "few", "negative", "none"],
)
def test_demand_is_taken_in_logarithms_unless_it_has_closings_or_is_negative(demand, by, log1p):
    days = pl.datetime_range(dt.datetime(2024, 1, 1), dt.datetime(2024, 7, 31), "1d", eager=True)
    y = demand(np.random.default_rng(0), (days.dt.weekday() == 7).to_numpy())
    panel = Panel.from_frame(pl.DataFrame({"unique_id": "a", "ds": days, "y": y.astype(float)}))
    scaling = settings_for(panel, "mqt", 7, (0.5, 0.9)).config.scaling
    assert (scaling.by, scaling.log1p) == (by, log1p)


def test_short_trainings_leave_their_warm_up():
    panel = fitted().panel_
    assert (
        settings_for(
            panel, "mqt", HORIZON, (0.5, 0.9), *user_layers({"train": {"max_steps": 20}})
        ).config.train.warmup_steps
        == 2
    )
    said = {"train": {"max_steps": 20, "warmup_steps": 7}}
    assert settings_for(panel, "mqt", HORIZON, (0.5, 0.9), *user_layers(said)).config.train.warmup_steps == 7


def test_a_plan_of_text_dates_or_of_unknown_series_is_refused():
    plan = world().frame.filter(pl.col("y").is_null()).drop("y")
    with pytest.raises(ColumnTypeError, match=r"the future's time column 'ds' holds String, not dates; parse it first"):
        fitted().what_if(plan.with_columns(pl.col("ds").dt.to_string("%d/%m/%Y")))
    known = world().static.head(1).with_columns(unique_id=pl.lit("zzzz"))
    strange = plan.filter(unique_id=plan["unique_id"][0]).with_columns(unique_id=pl.lit("zzzz"))
    with pytest.raises(DataError, match=r"series 'zzzz'.*the plan has 1 series that the baseline plan does not have"):
        fitted().what_if(pl.concat([plan, strange]), plan, static=known)


def test_weights_that_were_changed_on_disk_are_refused(tmp_path):
    folder = fitted().save(tmp_path / "model")
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"model\.safetensors .*not those that were written"):
        Forecaster.load(folder).predict()


def test_parameters_set_after_a_fit_are_for_the_next_one(tmp_path):
    made = new("mqcnn", quantiles=(0.5, 0.9)).fit(world().frame, static=world().static, events=world().events)
    before, revised = made.predict(), made.revisions()
    made.set_params(model="seasonal-naive", horizon=2, quantiles=(0.1,), config=None)
    assert made.predict().equals(before)
    assert made.revisions().equals(revised)
    assert made.what_if(plan())["q0.9_change"].abs().max() == 0
    assert Forecaster.load(made.save(tmp_path / "saved")).predict().equals(before)
    found = made.backtest()
    assert found.columns == [*KEYS, "q0.1"]
    made.set_params(model="mqt", horizon=3)
    assert "seasonal-naive, 2 steps ahead" in made.report(tmp_path / "report.html").read_text()
