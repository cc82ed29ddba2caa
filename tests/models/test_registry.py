"""The seam: every model by its name, means of several, and a class of one's own in every verb."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

import mqcast.forecaster
from mqcast import Forecaster, models, pack
from mqcast.cli import app
from mqcast.errors import ConfigError
from mqcast.simulate import World, lognormal_world

HORIZON = 4
SMALL = {
    "train": {"num_threads": 1},
    "model": {"hidden_dim": 6, "encoder_dilations": (1, 2), "lookback": 8},
    "window": {"history": 8, "num_fcts": 12},
}


class LastValue:
    """The last sale, whatever the quantile; remembers the last date and the mean that it was shown."""

    def fit(self, panel, options):
        self.options, self.mean = options, float(np.nanmean(panel.target))

    def forecast(self, panel, first=None, last=None):
        shape = self.options.horizon, len(self.options.quantiles)
        return models.forecast_each(panel, self.options, lambda y: np.full(shape, y[~np.isnan(y)][-1]), first, last)

    def files(self):
        return {"mean.json": json.dumps(self.mean).encode()}

    @classmethod
    def load(cls, folder, options):
        model = cls()
        model.options, model.mean = options, json.loads((folder / "mean.json").read_text())
        return model


@cache
def world() -> World:
    return lognormal_world(6, 60, HORIZON)


@pytest.fixture
def last_value():
    models.register("last-value")(LastValue)
    yield "last-value"
    models.unregister("last-value")


def new(model: str, **arguments) -> Forecaster:
    config = SMALL if "mq" in model else None
    arguments = {"max_steps": 2, "verbose": False, "config": config, "schema": world().schema} | arguments
    return Forecaster(model, HORIZON, **arguments)


def fitted(model: str, **arguments) -> Forecaster:
    return new(model, **arguments).fit(world().frame, static=world().static, events=world().events)


def test_a_class_of_ones_own_works_in_every_verb(last_value, tmp_path: Path):
    made = fitted(last_value)
    sold = world().frame.filter(pl.col("y").is_not_null()).group_by("unique_id").agg(pl.last("y"))
    forecasts = made.predict().join(sold, on="unique_id")
    assert (forecasts["q0.5"] == forecasts["y"].cast(pl.Float32).cast(pl.Float64)).all()
    assert forecasts.height == 6 * HORIZON
    assert made.backtest().columns == forecasts.columns[:-1]
    assert made.evaluate().height == 1
    assert "last-value" in made.report(tmp_path / "report.html").read_text()
    made.save(tmp_path / "saved")
    assert_frame_equal(Forecaster.load(tmp_path / "saved").predict(), made.predict())
    with pytest.raises(ConfigError, match="last-value has no attention"):
        made.explain(["item_000000"])


def test_a_class_of_ones_own_sees_no_target_after_the_cutoff_of_a_backtest(last_value):
    dates = world().frame.filter(pl.col("y").is_not_null())["ds"].unique().sort()
    made = new(last_value)
    made.backtest(world().frame, dates[40], dates[45], static=world().static, events=world().events)
    known = world().frame.filter(pl.col("ds") <= dates[40])["y"].cast(pl.Float32)
    assert made._backtest_.fitted.model.mean == pytest.approx(known.mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda frame: frame.drop("q0.9"), "returns no column q0.9"),
        (lambda frame: frame.with_columns(pl.lit(np.nan).alias("q0.5")), "is not finite"),
        (lambda frame: frame.with_columns((pl.col("q0.5") - 1).alias("q0.9")), "quantiles that cross"),
        (lambda frame: pl.concat([frame, frame]), "more than one row for the same series"),
        (lambda frame: frame.with_columns(horizon=pl.col("horizon") + HORIZON), "horizons outside 1 to 4"),
        (lambda frame: 3, "return a frame"),
    ],
)
def test_what_a_class_of_ones_own_gives_is_checked(last_value, wrong, message, monkeypatch):
    right = LastValue.forecast
    monkeypatch.setattr(LastValue, "forecast", lambda *given: wrong(right(*given)))
    with pytest.raises(ConfigError, match=message):
        fitted(last_value).predict()


def test_a_class_that_cannot_be_saved_says_what_it_lacks(last_value, monkeypatch, tmp_path: Path):
    monkeypatch.delattr(LastValue, "files")
    with pytest.raises(ConfigError, match=r"give its class files\(\)"):
        fitted(last_value).save(tmp_path / "saved")


def test_names_are_given_once_and_to_models_only(last_value):
    with pytest.raises(ConfigError, match="there is already a model 'last-value'"):
        models.register("last-value")(LastValue)
    with pytest.raises(ConfigError, match="there is already a model 'mqt'"):
        models.register("mqt")
    with pytest.raises(ConfigError, match="cannot be the name"):
        models.register("mean_of(mqt)")
    with pytest.raises(ConfigError, match="has no forecast"):
        models.register("half")(type("Half", (), {"fit": lambda self: None}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mqtt", "did you mean 'mqt'"),
        (7, "model is 7"),
        ("mean_of(mqt)", "has 1 members"),
        ("mean_of()", "has 0 members"),
        ("mean_of(mqt, 2, 3)", "model is '3'"),
        ("mean_of(mqt, nobody)", "model is 'nobody'"),
        ("sum_of(mqt, 2)", "combine models by mean_of"),
    ],
)
def test_an_unknown_model_is_told_with_those_there_are(name, message):
    with pytest.raises(ConfigError, match=message):
        Forecaster(name).fit(world().frame)


def test_a_mean_is_the_mean_of_its_members_with_seeds_of_their_own(tmp_path: Path):
    made = fitted("mean_of(mqcnn, 2)", seed=3)
    members = [fitted("mqcnn", seed=seed).predict() for seed in (3, 1003)]
    mean = (members[0]["q0.9"] + members[1]["q0.9"]) / 2
    assert np.array_equal(made.predict()["q0.9"], mean)
    assert not members[0].equals(members[1])
    made.save(tmp_path / "saved")
    loaded = Forecaster.load(tmp_path / "saved")
    assert loaded.model == "mean_of(mqcnn, 2)"
    assert_frame_equal(loaded.predict(), made.predict())


def test_members_of_unlike_kinds_are_averaged(last_value):
    both = fitted(f"mean_of(seasonal-naive, {last_value})", config=None).predict()
    parts = [fitted(name).predict()["q0.5"] for name in ("seasonal-naive", last_value)]
    assert np.allclose(both["q0.5"], (parts[0] + parts[1]) / 2)


def test_the_forecaster_names_no_model():
    source = Path(mqcast.forecaster.__file__).read_text()
    devices = ("auto",)
    assert not [name for name in models.names() if name not in devices and f'"{name}"' in source]


def test_the_registry_and_an_own_model_need_no_torch():
    code = (
        "import sys, polars as pl, mqcast, mqcast.models as m\n"
        "days = pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 3, 1), eager=True)\n"
        "rows = pl.DataFrame({'unique_id': 'a', 'ds': days, 'y': 1.0})\n"
        "mqcast.Forecaster('seasonal-naive', 3).fit(rows).predict()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_line_fits_any_model_and_explains_settings(last_value, tmp_path: Path):
    rows = world().frame.select("unique_id", "ds", "y").drop_nulls()
    pack(rows, tmp_path / "panel", world().schema.replace(static=(), known=(), events=(), past=(), kinds={}))

    def run(*arguments) -> str:
        done = CliRunner().invoke(app, [str(one) for one in arguments])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    for name in ("seasonal-naive", last_value):
        run("fit", tmp_path / "panel", tmp_path / name, "--model", name, "--horizon", HORIZON)
        run("forecast", tmp_path / name, tmp_path / "panel", tmp_path / f"{name}.parquet")
        assert pl.read_parquet(tmp_path / f"{name}.parquet").height == 6 * HORIZON
        run("report", tmp_path / name, "--panel", tmp_path / "panel", "--out", tmp_path / f"{name}.html")
        assert name in (tmp_path / f"{name}.html").read_text()
    run("check", tmp_path / "seasonal-naive", "--panel", tmp_path / "panel")
    options = ("--horizon", HORIZON, "--set", "train.max_steps=3", "--explain-settings", "--json")
    explained = json.loads(run("fit", tmp_path / "panel", tmp_path / "run", *options))
    table = {row["setting"]: row for row in explained["settings"]}
    assert table["train.max_steps"] == {"setting": "train.max_steps", "value": "3", "origin": "arguments"}
    assert table["model.lookback"]["origin"] == "fits the data"
    assert not (tmp_path / "run").exists()
    (tmp_path / "run.toml").write_text('[window]\nhorizon = 3\n[model]\nmodel = "mqcnn"\nquantiles = [0.2, 0.7]\n')
    for more, horizon, origin in (((), "3", "file"), (("--horizon", "2"), "2", "arguments")):
        options = ("--config", tmp_path / "run.toml", *more, "--explain-settings", "--json")
        explained = json.loads(run("fit", tmp_path / "panel", tmp_path / "run", *options))
        table = {row["setting"]: row for row in explained["settings"]}
        assert (table["window.horizon"]["value"], table["window.horizon"]["origin"]) == (horizon, origin)
        assert (table["model.model"]["value"], table["model.quantiles"]["origin"]) == ("mqcnn", "file")
