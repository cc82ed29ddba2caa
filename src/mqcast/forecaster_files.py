"""A forecaster on disk: its parameters, the files of its model and the fitted data, with one manifest."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqcast import process
from mqcast.artifact import ArtifactFolder, Manifest, entry_of
from mqcast.data.export import frames_of
from mqcast.data.frame_types import FrameTypes
from mqcast.data.panel import Panel, pack
from mqcast.durable import claimed, put_in_place, write_file
from mqcast.errors import ArtifactError, ConfigError
from mqcast.models.files import is_model, open_model, read_options
from mqcast.models.networks import FittedNetwork, check_layout
from mqcast.models.protocol import CanLoad, CanSave
from mqcast.settings.merge import tables_of
from mqcast.version import __version__

if TYPE_CHECKING:
    from mqcast.forecaster import Forecaster

FORMAT, FORMAT_VERSION = "mqcast-forecaster", 2
FACTS, PANEL = "forecaster.json", "panel"


def save(forecaster: "Forecaster[Any]", path: Path) -> Path:
    with claimed(path, "saving to", make_parents=True):
        _save(forecaster, path)
    return path


def _save(forecaster: "Forecaster[Any]", path: Path) -> None:
    if path.exists():
        raise ArtifactError(f"{path} already exists; give a new folder")
    if not isinstance(forecaster.fitted_, CanSave):
        raise ConfigError(f"model {forecaster.model!r} cannot be saved; give its class files() and load()")
    facts = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "mqcast": __version__,
        "params": _params(forecaster),
        "dress": forecaster.frame_types_.facts(),
    }
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)  # left by a process that was killed
    try:
        draft.mkdir()
        contents = forecaster.fitted_.files() | {FACTS: json.dumps(facts, indent=1, default=str).encode()}
        for name, content in contents.items():
            (draft / name).parent.mkdir(exist_ok=True)
            write_file(draft / name, content)
        frames, panel = frames_of(forecaster._data), forecaster._data
        pack(frames.rows, draft / PANEL, static=frames.static, events=frames.events, like=panel)
        contents[f"{PANEL}/{PANEL}.json"] = (draft / PANEL / f"{PANEL}.json").read_bytes()
        Manifest({name: entry_of(content) for name, content in contents.items()}, {}).write(draft)
        put_in_place(draft, path)
    except OSError as error:
        raise ArtifactError(f"cannot write to {path}: {error.strerror or error}; fix this and try again") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _params(forecaster: "Forecaster[Any]") -> dict[str, Any]:
    """The parameters of the fit, without later changes by `set_params`."""
    model, options = forecaster._fitted_as_
    return {
        "model": model,
        "horizon": options.horizon,
        "quantiles": options.quantiles,
        "preset": options.preset,
        "config": tables_of(options.layers) or None,
        "seed": options.seed,
        "max_steps": options.max_steps,
        "max_minutes": options.max_minutes,
        "members": options.members,
    }


def load(kind: "type[Forecaster[Any]]", path: Path, panel: Panel | None = None) -> "Forecaster[Any]":
    """What a folder of `save` or of `mqcast fit` holds, to forecast its own data or a panel."""
    if not (path / FACTS).exists():
        if (path / PANEL).exists():
            raise ArtifactError(f"there is no forecaster at {path}, because {FACTS} is missing; save it again")
        return _open_run(kind, path, panel)
    forecaster = _open_saved(kind, path)
    if panel is not None:
        if isinstance(forecaster.fitted_, FittedNetwork):
            check_layout(panel, forecaster.fitted_.run, path)
        forecaster.panel_ = panel
    return forecaster


def _open_saved(kind: "type[Forecaster[Any]]", path: Path) -> "Forecaster[Any]":
    files = ArtifactFolder(path, "restore it, or save the forecaster again")
    facts = files.read_json(FACTS)
    if facts.get("format") != FORMAT:
        raise files.damaged(FACTS, "it does not describe a forecaster")
    if facts.get("version") != FORMAT_VERSION:
        raise ArtifactError(
            f"{path / FACTS} has format {facts.get('version')!r}, this mqcast reads {FORMAT_VERSION}; fit it again"
        )
    for name in files.manifest().files:
        files.read_verified(name)
    try:
        params = facts["params"]
        forecaster = kind(**params | {"quantiles": tuple(params["quantiles"])})
        frame_types = FrameTypes(**facts["dress"])
    except (ValueError, KeyError, TypeError) as error:
        raise files.damaged(FACTS, error) from None
    model, options = forecaster._model(), forecaster._options()
    if not isinstance(model, CanLoad):
        raise ConfigError(f"model {forecaster.model!r} cannot be loaded; give its class load(folder, options)")
    panel = Panel.open(path / PANEL)
    panel.require_verified()
    forecaster.schema = panel.schema
    fitted = model.load(path, options)
    if isinstance(fitted, FittedNetwork):
        check_layout(panel, fitted.run, path)
    forecaster.panel_, forecaster.frame_types_, forecaster.fitted_ = panel, frame_types, fitted
    forecaster._keep(options)
    return forecaster


def _open_run(kind: "type[Forecaster[Any]]", folder: Path, panel: Panel | None) -> "Forecaster[Any]":
    if is_model(folder):
        if panel is None:
            raise ConfigError(f"the model in {folder} has no data and no columns of its own; load it with panel=")
        name, options = read_options(folder)
        forecaster = kind(name, options.horizon, options.quantiles, panel.schema)
        forecaster.fitted_ = open_model(folder)
    else:
        with process.importing():
            from mqcast.run import Run, exists

        if not exists(folder):
            raise ArtifactError(
                f"there is no forecaster at {folder}, because both {FACTS} and run.json are missing; write one with "
                "save or `mqcast fit`"
            )
        run = Run.open(folder)
        config = run.config
        schema = run.layout.schema if panel is None else panel.schema
        forecaster = kind(config.model.model, config.window.horizon, config.model.quantiles, schema, folder=folder)
        forecaster.fitted_ = FittedNetwork(run)
    forecaster.frame_types_ = FrameTypes()
    if panel is not None:
        forecaster.panel_ = panel
    forecaster._keep(forecaster._options())
    return forecaster
