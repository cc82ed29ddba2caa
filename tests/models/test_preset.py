"""The preset `paper` from fit to forecasts: saved, resumed, started from, backtested and searched."""

import json
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from mqcast import Forecaster
from mqcast.cli import app
from mqcast.data.panel import Panel, pack
from mqcast.errors import ConfigError
from mqcast.models import TrainOptions, get
from mqcast.nn.attention import HeadsPerHorizon
from mqcast.settings import FAMILY
from mqcast.settings.merge import user_layers
from mqcast.simulate import lognormal_world
from mqcast.train.records import read_metrics

HORIZON = 4
SMALL = {
    "model": {"hidden_dim": 8, "encoder_dilations": [1, 2], "lookback": 8},
    "train": {"max_epochs": 3, "num_threads": 1},
}
WORLD = lognormal_world(num_items=10, num_weeks=70, horizon=HORIZON)


def new(model: str = "mqt", preset: str | None = "paper", **arguments) -> Forecaster:
    given = {"config": SMALL, "verbose": False} | arguments
    return Forecaster(model, HORIZON, schema=WORLD.schema, preset=preset, **given)


def fit(forecaster: Forecaster, **arguments) -> Forecaster:
    return forecaster.fit(WORLD.frame, static=WORLD.static, events=WORLD.events, **arguments)


@cache
def fitted(model: str = "mqt") -> Forecaster:
    return fit(new(model))


@pytest.mark.parametrize("model", FAMILY)
def test_every_network_of_the_family_is_fitted_saved_and_loaded_with_it(model, tmp_path):
    forecaster = fitted(model)
    origins = dict(forecaster.settings_.select("setting", "origin").iter_rows())
    assert (origins["train.clip_norm"], origins["model.hidden_dim"]) == ("preset", "arguments")
    assert forecaster.config_.model.research.plain_start
    assert not (forecaster.run_.folder / "rehearsal").exists()
    loaded = Forecaster.load(forecaster.save(tmp_path / "saved"))
    assert loaded.preset == "paper"
    assert loaded.config == SMALL
    assert loaded.predict().equals(forecaster.predict())


def test_no_waves_of_the_year_reach_the_network():
    default = fit(new(preset=None, max_steps=2)).run_.network().members[0]
    paper = fitted().run_.network()
    assert default.inputs.global_numbers == paper.inputs.global_numbers + 4
    assert (default.inputs.calendar, paper.inputs.calendar) == ((), (53, 12))
    assert paper.inputs.echo_numbers == 0 < default.inputs.echo_numbers


def test_a_run_is_resumed_with_the_same_preset_only(tmp_path):
    one = fit(new(folder=tmp_path / "run"))
    again = fit(new(folder=tmp_path / "run"), resume=True)
    assert again.predict().equals(one.predict())
    with pytest.raises(ConfigError, match="other settings"):
        fit(new(preset=None, folder=tmp_path / "run", max_steps=3), resume=True)


def test_a_fit_that_starts_from_another_keeps_its_network_before_the_preset():
    later = fit(new(config={"train": SMALL["train"]}), start_from=fitted())
    assert later.config_.model == fitted().config_.model
    assert later.config_.model.hidden_dim == 8


def test_a_backtest_validates_on_the_last_horizon_before_its_first_cutoff_and_sees_nothing_later():
    dates = WORLD.frame["ds"].unique().sort()
    start = dates[-3 * HORIZON]
    later = WORLD.frame.with_columns(y=pl.when(pl.col("ds") > start).then(pl.col("y") * 3 + 1).otherwise("y"))
    frames = []
    for rows in (WORLD.frame, later):
        forecaster = new()
        frames.append(forecaster.backtest(rows, start, start, static=WORLD.static, events=WORLD.events))
        split = forecaster._backtest_.fitted.config.split
        assert (split.train_until, split.valid_until) == (dates[-4 * HORIZON], start)
    assert frames[0].equals(frames[1])


@pytest.mark.parametrize("heads", ["shared", "per_horizon"])
def test_the_private_task_has_one_hot_categories_and_keeps_the_final_weights(heads):
    model = SMALL["model"] | {"static_encoding": "one_hot", "feedback_heads": heads}
    forecaster = fit(new(config={"model": model, "train": SMALL["train"] | {"patience": "none"}}))
    network = forecaster.run_.network()
    assert network.encoder.static.embeddings is None
    assert isinstance(network.feedback.heads, HeadsPerHorizon) == (heads == "per_horizon")
    losses = [line["valid_loss"] for line in read_metrics(forecaster.run_.metrics) if line["record"] == "epoch"]
    assert losses == [None] * 3  # trained on all dates
    assert forecaster.predict()["q0.5"].is_finite().all()


def test_members_of_a_blend_have_the_preset_too(tmp_path):
    panel = Panel.from_frame(WORLD.frame, WORLD.schema, WORLD.static, WORLD.events)
    options = TrainOptions(
        horizon=HORIZON, quantiles=(0.5, 0.9), preset="paper", layers=user_layers(SMALL), folder=tmp_path / "auto"
    )
    get("auto(mqcnn, seasonal-naive)").fit(panel, options)
    config = get("mqcnn").load(tmp_path / "auto" / "member-1", options).config
    assert config.model.research.plain_start
    assert config.train.patience == 5


@pytest.mark.parametrize("model", ["mqt", "seasonal-naive", "mean_of(mqt, 2)"])
def test_a_wrong_preset_is_told_before_any_data_are_read(model):
    with pytest.raises(ConfigError, match=r"preset is 'papre' \(did you mean 'paper'\?\)"):
        new(model, preset="papre").fit("no such file.parquet")


# -- from the command line ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def panel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("panel") / "panel"
    pack(WORLD.frame, folder, WORLD.schema, WORLD.static, WORLD.events)
    return folder


def run(*arguments: object) -> str:
    small = ["model.hidden_dim=8", "model.lookback=8", "train.max_epochs=2", "train.num_threads=1"]
    changes = [part for change in small for part in ("--set", change)]
    found = CliRunner().invoke(app, [*map(str, arguments), "--horizon", str(HORIZON), *changes, "--json"])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_the_command_line_explains_which_settings_are_the_presets(panel, tmp_path):
    told = run("fit", panel, tmp_path / "run", "--preset", "paper", "--explain-settings")
    rows = {row["setting"]: (row["value"], row["origin"]) for row in json.loads(told)["settings"]}
    assert rows["model.research.block"] == ("bare", "preset")
    assert rows["train.patience"] == ("5", "preset")
    assert rows["model.hidden_dim"] == ("8", "arguments")
    assert rows["model.lookback"] == ("8", "arguments")


def test_the_command_line_fits_with_the_preset_and_resumes_with_it_only(panel, tmp_path):
    fit_here = ("fit", panel, tmp_path / "run", "--processes", 1)
    first = json.loads(run(*fit_here, "--preset", "paper"))
    assert first["epoch"] <= 1
    assert json.loads(run(*fit_here, "--preset", "paper", "--resume"))["step"] == first["step"]
    without = [*map(str, fit_here), "--horizon", str(HORIZON), "--set", "train.max_steps=2", "--resume"]
    other = CliRunner().invoke(app, without)
    assert isinstance(other.exception, ConfigError)
    assert "other settings" in str(other.exception)


def test_the_command_line_backtests_and_searches_with_the_preset(panel, tmp_path):
    run("backtest", panel, tmp_path / "backtest.parquet", "--preset", "paper")
    assert pl.read_parquet(tmp_path / "backtest.parquet").height
    (tmp_path / "search.toml").write_text('[search.space]\n"train.learning_rate" = [1e-3, 1e-2]\n')
    told = run("search", panel, tmp_path / "search", "--preset", "paper", "--config", tmp_path / "search.toml")
    best = get("mqt").load(Path(json.loads(told)["run"]), TrainOptions(horizon=HORIZON, quantiles=(0.5, 0.9)))
    assert best.config.model.research.block == "bare"
    assert best.config.train.clip_norm is None
    assert best.config.train.learning_rate in (1e-3, 1e-2)
