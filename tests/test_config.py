"""Settings: frozen, checked at birth, TOML in and out."""

import pytest

from mqcast import Schema
from mqcast.errors import ConfigError, SchemaError
from mqcast.settings import ModelConfig, RunConfig, ScalingConfig, TrainConfig, WindowConfig


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Schema().target = "sales"


def test_toml_out_and_in_is_the_same(tmp_path):
    for settings in (
        Schema(known=("promo",), kinds={"promo": "category"}, holidays=("US",), freq="W"),
        WindowConfig(horizon=3, history=4, num_fcts=5),
        ScalingConfig(by="past_mean", log1p=True),
    ):
        (tmp_path / "x.toml").write_text(settings.to_toml(), encoding="utf-8")
        assert type(settings).from_toml(tmp_path / "x.toml") == settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"known": ("a", "a")}, "column 'a' is twice in known"),
        ({"known": ("a",), "past": ("a",)}, "column 'a' is both past and known"),
        ({"target": "ds"}, "column 'ds' is both time and target"),
        ({"kinds": {"prise": "number"}, "known": ("price",)}, r"kinds names 'prise' \(did you mean 'price'\?\)"),
        ({"kinds": {"a": "text"}, "known": ("a",)}, "Schema.kinds.a"),
        ({"knwon": ("a",)}, r"Schema has no setting 'knwon' \(did you mean 'known'\?\)"),
        ({"time_grid": "columns"}, "Schema.time_grid"),
        ({"freq": "often"}, "frequency 'often' is not known"),
    ],
)
def test_a_wrong_schema_says_what_is_wrong(settings, says):
    with pytest.raises((SchemaError, ConfigError), match=says):
        Schema(**settings)


def test_one_column_need_not_be_a_list():
    assert Schema(known="promo").known == ("promo",)


@pytest.mark.parametrize(
    ("text", "says"),
    [("= 3", "is not TOML"), ("[model]\nx = 1", r"no table \[schema\]"), ("[shema]\n", "did you mean 'shema'")],
)
def test_a_broken_file_is_named(tmp_path, text, says):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        Schema.from_toml(tmp_path / "x.toml", table="schema")
    with pytest.raises(ConfigError, match="no settings file"):
        Schema.from_toml(tmp_path / "none.toml")


def test_none_survives_a_toml_file_where_it_is_not_the_default(tmp_path):
    settings = RunConfig(
        window=WindowConfig(horizon=4, history=4, num_fcts=4),
        scaling=ScalingConfig(by="none"),
        train=TrainConfig(patience=None, clip_norm=None),
    )
    path = tmp_path / "run.toml"
    path.write_text(settings.to_toml())
    assert RunConfig.from_toml(path) == settings
    assert settings.train.patience is None
    assert settings.scaling.by == "none"
    with pytest.raises(ConfigError, match=r"TrainConfig.max_epochs: Input should be a valid integer"):
        RunConfig(window=settings.window, train={"max_epochs": "none"})


@pytest.mark.parametrize(
    ("model", "history"), [("mqt", 3 + 10 + 4), ("mqt-nods", 3 + 10), ("mqt-all", 3 + 20), ("mqcnn", 3), ("mqrnn", 3)]
)
def test_a_whole_context_reaches_as_far_back_as_the_first_forecast_looks(model, history):
    window = WindowConfig(horizon=5, history=1, num_fcts=2)
    config = RunConfig(window=window, model=ModelConfig(model=model, encoder_dilations=(1, 2), lookback=10))
    assert config.with_whole_context().window.history == history
    longer = config.replace(window=window.replace(history=99))
    assert longer.with_whole_context() == longer
