"""The preset `paper`: every line of its table in docs/paper.md, what a network of it has, and how it is overridden."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from mqcast import Panel
from mqcast.data.inputs import Inputs
from mqcast.errors import ConfigError
from mqcast.models.recipe import settings_for
from mqcast.nn.layers import Convolution, Dropout
from mqcast.nn.networks import Network
from mqcast.settings import RunConfig, WindowConfig
from mqcast.settings.merge import Layer, Merged, Origin, merge, preset_layers, user_layers
from mqcast.simulate import lognormal_world
from mqcast.train.optimiser import new_optimiser

HORIZON, FITS = 6, "fits the data"
WINDOW = {"horizon": 52, "history": 60, "num_fcts": 10}
WORLD = lognormal_world(12, 90, HORIZON)
INPUTS = Inputs(known_numbers=2, known_flags=(0,), global_numbers=2, global_flags=(0, 1), static_categories=(4,))


def settings(*layers: Layer) -> Merged:
    panel = Panel.from_frame(WORLD.frame, WORLD.schema, WORLD.static, WORLD.events)
    return settings_for(panel, "mqt", HORIZON, (0.5, 0.9), *layers)


def value_of(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = None if text == "none" else text
    return tuple(value) if isinstance(value, list) else value


def table() -> dict[str, tuple[str, str]]:
    """Setting → preset, default: the rows of the table in docs/paper.md."""
    page = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    section = page.split("## The preset `paper`")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    assert all(len(row) == 4 and row[3] for row in rows)
    names = [row[0].strip("`") for row in rows]
    assert len(set(names)) == len(names)
    return {name: (row[1], row[2]) for name, row in zip(names, rows, strict=True)}


def values(merged: Merged) -> dict[str, Any]:
    return {name: value for name, value, _ in merged.rows()}


def test_the_page_has_every_setting_of_the_preset_and_its_value():
    (layer,) = preset_layers("paper")
    assert {name: value_of(preset) for name, (preset, _) in table().items()} == dict(layer.items())


def test_the_page_has_everything_that_our_default_does_otherwise():
    default, paper = settings(), settings(*preset_layers("paper"))
    differ = {name for name, value in values(default).items() if values(paper)[name] != value}
    assert {"model.research.block", "train.clip_norm", "train.refit", "scaling.echoes"} <= differ
    assert differ - {"window.history"} <= table().keys()  # which follows from the encoder's dilations
    for name, (_, said) in table().items():
        origin = default.origins.get(name, Origin.BUILT_IN)
        assert said == FITS if origin is Origin.FITS_THE_DATA else str(value_of(said)) == values(default)[name], name


def test_settings_of_the_preset_say_so_and_a_file_and_arguments_override_them(tmp_path):
    (tmp_path / "run.toml").write_text("[model]\nhidden_dim = 64\ndropout = 0.3\n[train]\npatience = 'none'\n")
    merged = settings(
        *preset_layers("paper"),
        *user_layers(tmp_path / "run.toml"),
        Layer(Origin.ARGUMENTS, {"model": {"dropout": 0.2, "research": {"feedback_heads": "per_horizon"}}}),
    )
    rows = {name: (value, origin) for name, value, origin in merged.rows()}
    assert rows["train.alignment_rate"] == ("1.0", "preset")
    assert rows["model.research.block"] == ("bare", "preset")
    assert rows["model.research.feedback_heads"] == ("per_horizon", "arguments")
    assert rows["model.hidden_dim"] == ("64", "file")
    assert rows["train.patience"] == ("None", "file")
    assert rows["model.dropout"] == ("0.2", "arguments")
    assert rows["model.lookback"][1] == FITS


@pytest.mark.parametrize("name", ["papers", "Paper", 3, ["paper"]])
def test_an_unknown_preset_is_refused_with_the_nearest_one(name):
    near = r" \(did you mean 'paper'\?\)" if isinstance(name, str) else ""
    with pytest.raises(ConfigError, match=rf"preset is .*{near}; give one of paper, or leave it out"):
        preset_layers(name)


def test_a_config_of_the_paper_is_the_preset_with_what_is_changed():
    config = RunConfig.paper(WINDOW, model={"hidden_dim": 64, "static_encoding": "one_hot"})
    assert config == RunConfig.paper(WindowConfig(**WINDOW), model={"hidden_dim": 64, "static_encoding": "one_hot"})
    window = Layer(Origin.FITS_THE_DATA, {"window": WINDOW})
    changed = config.replace(model=config.model.replace(hidden_dim=32, static_dim=64, head_dim=16, context_dim=16))
    assert (
        changed.replace(model=changed.model.replace(static_encoding="embedding"))
        == merge(window, *preset_layers("paper")).config
    )
    assert (config.model.static_dim, config.model.head_dim) == (128, 32)
    with pytest.raises(ConfigError, match="no setting 'hiden_dim'"):
        RunConfig.paper(WINDOW, model={"hiden_dim": 64})


def paper_network(model: str = "mqt", horizon: int = 52, **changes: Any) -> Network:
    config = RunConfig.paper(WINDOW | {"horizon": horizon}, model={"model": model, **changes})
    return Network.seeded(config.model, INPUTS, horizon, seed=0)


@pytest.mark.parametrize(
    ("horizon", "dilations"),
    [(24, [1, 2, 4, 8, 8]), (5, [1, 1, 2]), (30, [1, 2, 4, 8, 14]), (52, [1, 2, 4, 8, 16, 20])],
)
def test_positions_have_the_dilations_of_the_papers_tables(horizon, dilations):
    position = paper_network(horizon=horizon).position
    assert [layer.taps for layer in position.convolutions] == [(0, d, 2 * d) for d in dilations]
    assert position.reach == horizon - 1


@pytest.mark.parametrize("hidden_dim", [32, 64])
def test_the_network_has_the_papers_widths_dropout_and_no_norms(hidden_dim):
    network = paper_network(hidden_dim=hidden_dim)
    a = hidden_dim // 2
    assert network.encoder.dims == (hidden_dim, 2 * hidden_dim)
    assert network.contexts.dims == (a, a)
    assert network.feedback.dim == network.feedback_block.dim == network.local.out.in_features == a
    assert network.encoder.static.embeddings.weight.shape == (4, hidden_dim)
    assert {module.rate for module in network.modules() if isinstance(module, Dropout)} == {0.15}
    assert not any(isinstance(module, nn.LayerNorm) for module in network.modules())
    convolutions = [module for module in network.modules() if isinstance(module, Convolution)]
    assert all(len(layer.bias) == hidden_dim for layer in convolutions)


@pytest.mark.parametrize(("heads", "own"), [("shared", 0), ("per_horizon", 5)])
def test_only_the_heads_of_the_text_have_weights_for_each_horizon(heads, own):
    network = paper_network(horizon=7, feedback_heads=heads)
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    per_horizon = [name for name, shape in shapes.items() if 7 in shape and "future" not in name]
    assert len(per_horizon) == own
    assert all(name.startswith("feedback.heads") for name in per_horizon)


def test_one_rate_holds_for_all_parameters():
    config = RunConfig.paper(WINDOW)
    optimiser = new_optimiser(paper_network(), config.train)
    assert {(group["share"], group["lr"], group["weight_decay"]) for group in optimiser.param_groups} == {(1, 1e-3, 0)}


def test_the_preset_is_the_same_after_a_run_has_written_and_read_it(tmp_path):
    config = RunConfig.paper(WINDOW)
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert RunConfig.from_toml(tmp_path / "config.toml") == config
