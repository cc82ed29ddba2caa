"""Arguments are checked at the door: a typed error in words, before anything is read, trained or written."""

import datetime as dt
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import mqcast
from mqcast import Forecaster, Panel, Schema, compare, errors, evaluate, rank_revisions, volatility
from mqcast.errors import ConfigError, MqcastError, SchemaError
from mqcast.simulate import World, lognormal_world
from mqcast.train import loop

NO_PATHS = [5, None, "", b"bytes", "a\0b", "x" * 300]


@cache
def world() -> World:
    return lognormal_world(4, 40, 4)


@cache
def fitted() -> Forecaster:
    made = Forecaster("seasonal-naive", 4, schema=world().schema)
    return made.fit(world().frame, static=world().static, events=world().events)


@cache
def judged() -> pl.DataFrame:
    return Forecaster("seasonal-naive", 4, schema=world().schema).backtest(
        world().frame, static=world().static, events=world().events
    )


@pytest.fixture
def no_training(monkeypatch):
    def train(*_, **__):
        raise AssertionError("training has begun")

    monkeypatch.setattr(loop, "fit", train)


# -- the Forecaster's own ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        *({"model": value} for value in (3, None, "MQT2", ["mqt"])),
        *({"horizon": value} for value in (True, 2.5, 0, -1, "4", None, 10**9, 10**400, np.nan)),
        *({"quantiles": value} for value in (0.5, ("a",), (True,), (np.nan,), "0.5", None, (), (0.5, 0.5), {0.5: 1})),
        *({"seed": value} for value in (2**70, -1, "a", 1.5, None, True)),
        *({"max_steps": value} for value in (0, -1, 2.5, "a", True)),
        *({"max_minutes": value} for value in (0, -1, np.nan, np.inf, "a", True)),
        *({"members": value} for value in (0, -1, 33, 2.5, "a", True)),
        *({"folder": value} for value in (5, "", "a\0b", "x" * 300)),
        *({"device": value} for value in ("moon", 5, None, "")),
        *({"verbose": value} for value in ("x", 1, None)),
        *({"schema": value} for value in (5, "y", [("id", "shop")], {"ids": "shop"}, {"id": 5}, {5: "id"})),
        *({"config": value} for value in (5, {"train": 3}, {5: {}}, {"train": {5: 1}}, "nowhere.toml")),
        *({"config": value} for value in ({"model": {"hidden_dim": 10**9}}, {"train": {"log_every": 0}})),
        {"config": {"x" * 10_000: {}}},
    ],
)
def test_a_wrong_argument_of_a_forecaster_is_told_before_training(wrong, no_training):
    given = {"model": "mqt", "horizon": 4, "schema": world().schema} | wrong
    for verb in ("fit", "backtest"):
        with pytest.raises(MqcastError) as caught:
            getattr(Forecaster(**given), verb)(world().frame, static=world().static, events=world().events)
        assert len(str(caught.value)) <= errors.LONGEST
        assert next(iter(wrong)) in str(caught.value).lower() or "config" in wrong


def test_numbers_of_any_library_will_do(tmp_path):
    frame = pl.DataFrame(
        {"unique_id": "a", "ds": pl.datetime_range(dt.datetime(2024, 1, 1), dt.datetime(2024, 2, 1), eager=True)}
    )
    made = Forecaster("seasonal-naive", np.int64(2), np.float32([0.1, 0.9]), seed=np.uint8(3), max_steps=np.int16(5))
    found = made.fit(frame.with_columns(y=pl.int_range(pl.len()))).predict()
    assert found.columns[-2:] == ["q0.1", "q0.9"]
    made.save(tmp_path / "made")
    again = Forecaster.load(tmp_path / "made")
    assert (again.seed, again.max_steps, again.quantiles) == (3, 5, (0.1, 0.9))


def test_a_dictionary_is_taken_as_a_schema(sales, same_arrays):
    said = {"freq": "W", "known": ["promo", "price"]}
    same_arrays(Panel.from_frame(sales, said), Panel.from_frame(sales, Schema(**said)))
    rows = sales.rename({"unique_id": "shop", "ds": "week"})
    found = Forecaster("seasonal-naive", 2, schema={"id": "shop", "time": "week"}).fit(rows).predict()
    assert found.columns[:3] == ["shop", "cutoff", "week"]
    assert evaluate(found, rows.fill_null(1), schema={"id": "shop", "time": "week"})["rows"][0] == 4
    with pytest.raises(ConfigError, match="schema is 5; give a Schema, or a dictionary"):
        Panel.from_frame(sales, 5)


# -- verbs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refit", ["a", True, 0, -1, 1.5])
def test_refit_is_a_whole_number(refit, no_training):
    with pytest.raises(ConfigError, match="refit is"):
        Forecaster("mqt", 4, schema=world().schema).backtest(
            world().frame, static=world().static, events=world().events, refit=refit
        )


@pytest.mark.parametrize("date", ["soon", 5, 2.5, dt.time(1, tzinfo=dt.UTC), np.datetime64("NaT"), [], "2024-13-01"])
def test_a_cutoff_that_is_no_date_is_refused(date):
    for call in (
        lambda: fitted().predict(cutoff=date),
        lambda: fitted().revisions(start=date),
        lambda: fitted().backtest(end=date),
    ):
        with pytest.raises(ConfigError, match="is not a date"):
            call()


def test_cutoffs_in_the_wrong_order_or_outside_the_data_are_refused():
    with pytest.raises(ConfigError, match="is after the last"):
        fitted().revisions(start=dt.date(2030, 1, 1), end=dt.date(2020, 1, 1))
    for date in ("1900-01-01", "2200-01-01", dt.datetime.max, dt.date.min):
        with pytest.raises(MqcastError):
            fitted().predict(cutoff=date)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fitted().evaluate(by=5),
        lambda: fitted().evaluate(by=("horizon", "horizon")),
        lambda: fitted().evaluate(season=True),
        lambda: evaluate(judged(), world().frame, season=2.5, missing="drop"),
        lambda: evaluate(judged(), world().frame, missing=pl.DataFrame({"a": [1, 2]})),
        lambda: evaluate(judged(), world().frame, id=5),
        lambda: evaluate(judged(), world().frame, schema=5),
        lambda: evaluate(judged(), world().frame, id="ds", time="ds"),
        lambda: compare(judged(), world().frame, "a"),
        lambda: compare({"a": judged()}, world().frame, ["a"]),
        lambda: compare({"a": judged()}, world().frame, "a", horizons=True),
        lambda: volatility(judged(), world().frame, seed=-1, missing="drop"),
        lambda: volatility(judged(), world().frame, resamples=True, missing="drop"),
        lambda: volatility(judged(), world().frame, resamples=10**12, missing="drop"),
        lambda: volatility(judged(), world().frame, levels="a", missing="drop"),
        lambda: rank_revisions(judged(), level="a"),
        lambda: rank_revisions(judged(), level=True),
        lambda: rank_revisions(judged(), top=1.5),
        lambda: rank_revisions(judged(), top=True),
        lambda: fitted().fit(world().frame, start_from="a"),
        lambda: fitted().fit(world().frame, resume="yes"),
        lambda: fitted().explain("nobody"),
    ],
)
def test_a_wrong_argument_of_a_verb_is_told_in_words(call):
    with pytest.raises(MqcastError) as caught:
        call()
    assert len(str(caught.value)) <= errors.LONGEST


@pytest.mark.parametrize("path", NO_PATHS)
def test_what_is_no_path_is_refused(path, sales):
    for call in (
        lambda: fitted().save(path),
        lambda: Forecaster.load(path),
        lambda: fitted().report(path),
        lambda: mqcast.pack(sales, path),
        lambda: Panel.open(path),
    ):
        with pytest.raises(MqcastError, match="path"):
            call()
    with pytest.raises(MqcastError):
        Panel.from_frame(path)


@pytest.mark.parametrize("path", ["~nobody-of-this-name/f.parquet", "**x/*.parquet", "f[.parquet"])
def test_a_path_that_leads_nowhere_is_refused(path):
    with pytest.raises(errors.SourceError, match="no Parquet or CSV file at"):
        Panel.from_frame(path)


def test_a_report_that_cannot_be_written_is_refused_before_the_backtest(tmp_path, no_training):
    (tmp_path / "file").write_text("")
    made = Forecaster("mqt", 4, schema=world().schema)
    made.panel_ = fitted().panel_
    for path in (tmp_path / "file" / "deep" / "report.html", tmp_path, "/proc/none/report.html"):
        with pytest.raises(MqcastError, match="cannot"):
            made.report(path)


# -- columns that would overwrite each other ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cutoff", "horizon", "q0.5", "q.9", "q0.123"])
@pytest.mark.parametrize("role", ["id", "time"])
def test_a_key_called_like_a_column_of_forecasts_is_refused(role, name):
    for call in (lambda: Schema(**{role: name}), lambda: evaluate(judged(), world().frame, **{role: name})):
        with pytest.raises(SchemaError, match=rf"the {role} column is called '{name}'.*rename yours"):
            call()


def renamed(**names: str) -> tuple[Forecaster, pl.DataFrame]:
    """A forecaster of a frame some of whose columns are called otherwise, and that frame."""
    given = pl.DataFrame({"unique_id": ["a"] * 30 + ["b"] * 30, "y": np.arange(60.0)[::-1], "x": np.arange(60.0) % 2})
    days = pl.datetime_range(dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 30), eager=True)
    frame = given.with_columns(ds=pl.concat([days, days])).rename(names)
    called = {"id": names.get("unique_id", "unique_id"), "time": names.get("ds", "ds"), "target": names.get("y", "y")}
    schema = Schema(**called, known=(names.get("x", "x"),))
    return Forecaster("seasonal-naive", 2, schema=schema).fit(frame), frame


def plan_for(frame: pl.DataFrame, made: Forecaster) -> pl.DataFrame:
    time = made.schema.time
    ahead = frame.group_by(made.schema.id, maintain_order=True).tail(2).drop(made.schema.target)
    return ahead.with_columns(pl.col(time).dt.offset_by("2d"))


@pytest.mark.parametrize("name", ["q0.5_baseline", "q0.9_change"])
@pytest.mark.parametrize("role", ["unique_id", "ds"])
def test_a_key_called_like_a_column_of_what_if_is_refused_there_alone(role, name):
    made, frame = renamed(**{role: name})
    plan = plan_for(frame, made)
    assert name in made.predict(future=plan).columns
    with pytest.raises(SchemaError, match=f"'{name}', like a column of what_if; rename yours"):
        made.what_if(plan, plan)


@pytest.mark.parametrize("name", ["excess", "first", "actual", "revised_at", "forecasts"])
def test_a_key_called_like_a_column_of_rank_revisions_is_refused_there_alone(name):
    made, frame = renamed(unique_id=name)
    found = made.backtest(frame.with_columns(pl.col(made.schema.time)), "2024-01-20", "2024-01-27")
    assert found[name].n_unique() == 2
    with pytest.raises(SchemaError, match=f"'{name}', like a column of rank_revisions"):
        rank_revisions(found, frame, schema=made.schema)


@pytest.mark.parametrize("name", ["rows", "wql", "crossing", "coverage_q0.5"])
def test_a_group_called_like_a_metric_is_refused(name):
    made, frame = renamed(unique_id=name)
    found = made.backtest(frame, "2024-01-20", "2024-01-27")
    assert evaluate(found, frame, schema=made.schema)["rows"][0] == len(found)
    with pytest.raises(ConfigError, match=f"by='{name}' is a column of the answer already"):
        evaluate(found, frame, by=name, schema=made.schema)


def test_an_id_of_whole_numbers_called_model_does_not_disturb_the_models():
    made, frame = renamed(unique_id="model")
    frame = frame.with_columns(pl.col("model").replace_strict({"a": 1, "b": 2}))
    found = Forecaster("seasonal-naive", 2, schema=made.schema).backtest(frame, "2024-01-20", "2024-01-27")
    table = evaluate({"naive": found}, frame, schema=made.schema)
    assert table["model"].to_list() == ["naive"]


@pytest.mark.parametrize("name", ["cutoff", "horizon", "q0.5", "__last", "last sale", "model", "rows", "q0.5_baseline"])
@pytest.mark.parametrize("role", ["y", "x"])
def test_other_columns_may_be_called_anything(role, name):
    made, frame = renamed(**{role: name})
    plain, rows = renamed()
    plan = plan_for(frame, made)
    again = plain.predict(future=plan_for(rows, plain))
    assert made.predict(future=plan).equals(again)
    assert made.what_if(plan, plan).height == again.height
    span = ("2024-01-20", "2024-01-27")
    found = made.backtest(frame, *span)
    assert found.equals(plain.backtest(rows, *span))
    assert evaluate(found, frame, schema=made.schema).equals(evaluate(found, rows))


@pytest.mark.parametrize("name", ["unique_id", "ds", "cutoff", "horizon", "open"])
def test_a_flag_called_like_a_key_is_reported_as_what_it_is(name, tmp_path):
    made, frame = renamed(unique_id="shop", ds="day", x=name)
    made.backtest(frame, "2024-01-20", "2024-01-27")
    page = Path(made.report(tmp_path / "report.html")).read_text(encoding="utf-8")
    assert f"Promotion: {name}" in page
