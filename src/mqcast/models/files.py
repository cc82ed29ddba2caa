"""A fitted model in a folder: the run of a network, or the files of any other model with the options of its fit."""

import json
from pathlib import Path

from mqcast.arguments import levels_of, whole_number
from mqcast.artifact import ArtifactFolder, Manifest, entry_of
from mqcast.durable import write_file
from mqcast.errors import ArtifactError, ConfigError
from mqcast.models.networks import FittedNetwork, NetworkModel
from mqcast.models.protocol import CanLoad, CanSave, FittedModel, TrainOptions
from mqcast.models.registry import DEFAULT, get
from mqcast.version import __version__

FORMAT, FORMAT_VERSION = "mqcast-model", 1
FACTS = "model.json"


def write_model(fitted: FittedModel, name: str, options: TrainOptions, folder: Path) -> None:
    """Write what `open_model` needs; the run of a network is there already."""
    if isinstance(fitted, FittedNetwork):
        return
    if not isinstance(fitted, CanSave):
        raise ConfigError(f"model {name!r} cannot be saved; give its class files() and load()")
    facts = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "mqcast": __version__,
        "model": name,
        "horizon": options.horizon,
        "quantiles": options.quantiles,
    }
    contents = fitted.files() | {FACTS: json.dumps(facts, indent=1).encode()}
    for file, content in contents.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / file, content)
    Manifest({file: entry_of(content) for file, content in contents.items()}, {}).write(folder)


def is_model(folder: Path) -> bool:
    """Does the folder hold a model that is not a network, as `write_model` wrote it?"""
    return (folder / FACTS).exists()


def open_model(folder: str | Path, device: str = "auto") -> FittedModel:
    """Open the model that `mqcast fit` or `write_model` wrote."""
    folder = Path(folder)
    if not (folder / FACTS).exists():
        return NetworkModel(DEFAULT).load(folder, TrainOptions(horizon=1, quantiles=(0.5,), device=device))
    name, options = read_options(folder, device)
    model = get(name)
    if not isinstance(model, CanLoad):
        raise ConfigError(f"model {name!r} cannot be loaded; give its class load()")
    return model.load(folder, options)


def horizon_of(fitted: FittedModel, folder: Path) -> int:
    """The steps ahead that the model of a folder forecasts."""
    return fitted.config.window.horizon if isinstance(fitted, FittedNetwork) else read_options(folder)[1].horizon


def read_options(folder: Path, device: str = "auto") -> tuple[str, TrainOptions]:
    """The name of the model that a folder holds, and what was asked of it; every file is verified."""
    files = ArtifactFolder(folder, "fit the model again")
    facts = files.read_json(FACTS)
    if (facts.get("format"), facts.get("version")) != (FORMAT, FORMAT_VERSION):
        raise ArtifactError(f"{folder / FACTS} was written by another version of mqcast; fit the model again")
    for file in files.manifest().files:
        files.read_verified(file)
    try:
        horizon = whole_number("horizon", facts["horizon"])
        options = TrainOptions(horizon=horizon, quantiles=levels_of("quantiles", facts["quantiles"]), device=device)
        get(facts["model"])
    except (KeyError, ConfigError) as error:
        raise files.damaged(FACTS, error) from None
    return facts["model"], options
