"""The one merge of settings: later layers overrule earlier ones, and every value knows where it came from."""

import pytest

from mqcast.errors import ConfigError
from mqcast.settings import RunConfig, WindowConfig
from mqcast.settings.merge import Layer, Origin, assigned, merge, tables_of, user_layers

WINDOW = Layer(Origin.FITS_THE_DATA, {"window": {"horizon": 4, "history": 8, "num_fcts": 6}})


def test_later_layers_overrule_earlier_ones_setting_by_setting():
    file = Layer(Origin.FILE, {"train": {"seed": 1, "learning_rate": 0.1}})
    given = Layer(Origin.ARGUMENTS, {"train": {"seed": 2}})
    merged = merge(WINDOW, file, given)
    assert (merged.config.train.seed, merged.config.train.learning_rate) == (2, 0.1)
    assert merged.origins["train.seed"] is Origin.ARGUMENTS
    assert merged.origins["train.learning_rate"] is Origin.FILE


def test_every_setting_has_a_row_with_its_origin():
    merged = merge(WINDOW, Layer(Origin.PRESET, {"model": {"hidden_dim": 16}}))
    rows = {name: (value, origin) for name, value, origin in merged.rows()}
    assert rows["model.hidden_dim"] == ("16", "preset")
    assert rows["window.history"] == ("8", "fits the data")
    assert rows["model.research.block"] == ("residual", "built in")
    assert merged.table().height == len(rows)


def test_a_preset_overrules_what_fits_the_data_and_the_user_overrules_both():
    preset = Layer(Origin.PRESET, {"window": {"history": 16, "batch_size": 4}})
    config = merge(WINDOW, preset, Layer(Origin.FILE, {"window": {"batch_size": 7}})).config
    assert (config.window.num_fcts, config.window.history, config.window.batch_size) == (6, 16, 7)


def test_dates_that_are_required_are_not_contradicted():
    with pytest.raises(ConfigError, match=r"config has split\.train_until = '2020-01-01', but split\.train_until is"):
        merge(
            WINDOW,
            Layer(Origin.FILE, {"split": {"train_until": "2020-01-01"}}),
            required={"split.train_until": "2019-01-01"},
        )


def test_layers_out_of_order_are_a_mistake_of_ours():
    with pytest.raises(AssertionError):
        merge(Layer(Origin.FILE, {}), WINDOW)


def test_what_is_asked_for_may_be_repeated_but_not_contradicted():
    asked = {"window.horizon": 4, "model.quantiles": (0.5, 0.9)}
    same = Layer(Origin.FILE, {"window": {"horizon": 4}, "model": {"quantiles": [0.5, 0.9]}})
    assert merge(WINDOW, same, required=asked).config.window.horizon == 4
    with pytest.raises(ConfigError, match=r"config has window\.horizon = 5, but horizon is 4.*horizon=5"):
        merge(WINDOW, Layer(Origin.FILE, {"window": {"horizon": 5}}), required=asked)


@pytest.mark.parametrize("model", [{"block": "bare"}, {"research": {"block": "bare"}}, {"research.block": "bare"}])
def test_switches_of_research_are_understood_wherever_they_stand(model):
    merged = merge(WINDOW, Layer(Origin.FILE, {"model": {"hidden_dim": 8}}), Layer(Origin.ARGUMENTS, {"model": model}))
    assert merged.config.model.research.block == "bare"
    assert merged.config.model.hidden_dim == 8
    assert merged.origins["model.research.block"] is Origin.ARGUMENTS


def test_what_a_run_writes_gives_the_same_settings_again(tmp_path):
    config = merge(WINDOW, assigned(["train.max_steps=7", "model.horizon_code=false"])).config
    (tmp_path / "run.toml").write_text(config.to_toml())
    fitted = Layer(Origin.FITS_THE_DATA, {"train": {"max_minutes": 3.0, "average": 0.9, "schedule": "cosine"}})
    assert merge(fitted, *user_layers(tmp_path / "run.toml")).config == config
    assert RunConfig.from_toml(tmp_path / "run.toml") == config


def test_assignments_of_the_command_line_are_numbers_lists_or_text():
    tables = assigned(["train.seed=3", "model.quantiles=[0.1, 0.9]", "scaling.by=recent"]).tables
    assert tables == {"train": {"seed": 3}, "model": {"quantiles": [0.1, 0.9]}, "scaling": {"by": "recent"}}
    for text in ("seed=3", "train.seed"):
        with pytest.raises(ConfigError, match=r"write it as table\.setting=value"):
            assigned([text])


def test_a_users_settings_come_as_file_tables_or_config(tmp_path):
    (tmp_path / "run.toml").write_text("[train]\nseed = 5\n[schema]\ntarget = 'y'\n[search]\nnum_trials = 2\n")
    assert dict(user_layers(tmp_path / "run.toml")[0].items()) == {"train.seed": 5}
    window = WindowConfig(horizon=4, history=9, num_fcts=3)
    layers = user_layers(RunConfig(window=window), seed=1, max_steps=None)
    assert tables_of(layers) == {
        "window": {"horizon": 4, "history": 9, "num_fcts": 3},
        "train": {"seed": 1},
    }
    with pytest.raises(ConfigError, match="config is a int"):
        user_layers(3)
    with pytest.raises(ConfigError, match="give tables of settings"):
        user_layers({"train": 3})


def test_windows_grow_to_the_whole_context_unless_the_user_says_how_far():
    grown = merge(WINDOW).with_whole_context()
    assert grown.config.window.history > 8
    assert grown.origins["window.history"] is Origin.FOLLOWS
    said = merge(WINDOW, Layer(Origin.FILE, {"window": {"history": 8}}))
    assert said.with_whole_context() is said


def test_a_table_that_does_not_exist_is_refused_even_if_it_is_empty():
    with pytest.raises(ConfigError, match=r"no setting 'trian' \(did you mean 'train'\?\)"):
        merge(WINDOW, Layer(Origin.FILE, {"trian": {}}))
