"""A run: the folder that training writes and forecasting reads. It has safetensors, JSON and TOML, but no code.

config.toml            all settings
run.json               format, versions, the panel's signature and fingerprint, size of the micro-batches
manifest.json          size and SHA-256 of every file except checkpoints, which have their own digests
schema.json            what the columns mean: roles, kinds, categories, frequency, holidays
scaling.safetensors    the fitted transforms
metrics.jsonl          one line per logged step and one per validation; in the manifest once training is done
checkpoints/           to resume from
model.safetensors      the trained weights; written when training is done
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError

from mqcast.artifact import MANIFEST, ArtifactFolder, Manifest, add_files, entry_of
from mqcast.data.batch import Assembler
from mqcast.data.covariates import CategoryFilter, NumberScaler, OwnLevels
from mqcast.data.inputs import Inputs
from mqcast.data.layout import Layout
from mqcast.data.panel import Panel
from mqcast.data.scaling import TargetScaler
from mqcast.data.structure import check_scalers, texts
from mqcast.data.views import can_be_read_as, read_as
from mqcast.durable import cannot_write, write_file
from mqcast.errors import ArtifactError, ConfigError, MqcastError
from mqcast.nn import kernels
from mqcast.nn.allocation import AtMost
from mqcast.nn.members import AnyNetwork, seeded_network
from mqcast.settings import RunConfig, Settings
from mqcast.shifts import Shifts
from mqcast.version import __version__

FORMAT, FORMAT_VERSION = "mqcast-run", 5
FIXED = (
    "config.toml",
    "schema.json",
    "scaling.safetensors",
    "run.json",
)  # written at the start; the last one marks the folder as a run
WEIGHTS, METRICS = "model.safetensors", "metrics.jsonl"
CALIBRATOR, SPAN_CALIBRATORS, DEPENDENCE = "calibrator.json", "span_calibrators.json", "dependence.json"
LEARNT = (CALIBRATOR, SPAN_CALIBRATORS, DEPENDENCE)  # from a rehearsal
ROOM = 2**16  # entries of tensors that a network makes beside its weights
REHEARSAL = "rehearsal"  # a run of its own
REMEDY = "restore it, or train again"
MAY_CHANGE = ("max_minutes", "checkpoint_minutes", "log_every", "memory_gib")  # settings that a resumed run may change


@dataclass(frozen=True)
class Run:
    """An open run folder."""

    folder: Path
    config: RunConfig
    facts: dict[str, Any] = field(repr=False)

    @classmethod
    def start(
        cls,
        folder: Path,
        config: RunConfig,
        panel: Panel,
        assemble: Assembler,
        micro_batch: int,
        start_from: "Run | None" = None,
    ) -> "Run":
        """A new run in a new or an empty folder; with `start_from`, training starts from the weights of that run."""
        require_free(folder)
        facts = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "mqcast": __version__,
            "torch": torch.__version__,
            "decoder": kernels.status(),
            "panel": panel.fingerprint,
            "signature": assemble.panel.layout.signature,
            "inputs": assemble.inputs.model_dump(mode="json"),
            "micro_batch": micro_batch,
            "never_negative": bool(np.nanmin(assemble.panel.target) >= 0),
            "start_from": start_from and start_from.weights_digest,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        contents = {
            "config.toml": config.to_toml().encode(),
            "schema.json": json.dumps(assemble.panel.layout.description, indent=1).encode(),
            "scaling.safetensors": safetensors.numpy.save(scaler_arrays(assemble)),
            "run.json": json.dumps(facts, indent=1).encode(),
        }
        Manifest({name: entry_of(content) for name, content in contents.items()}, {}).write(folder)
        for name in FIXED:
            write_file(folder / name, contents[name])
        return cls(folder, config, facts)

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Open a run, after checking that every file in its manifest is as it was written."""
        folder = Path(folder)
        if not exists(folder):
            raise ArtifactError(
                f"there is no run at {folder}, because run.json is missing; train one with `mqcast fit`"
            )
        files = ArtifactFolder(folder, REMEDY)
        facts = files.read_json("run.json")
        if facts.get("format") != FORMAT:
            raise files.damaged("run.json", "it does not describe a run")
        if facts.get("version") != FORMAT_VERSION:
            raise ArtifactError(
                f"{folder / 'run.json'} has run format {facts.get('version')!r}, this mqcast reads {FORMAT_VERSION}; "
                "train it again"
            )
        contents = {name: files.read_verified(name) for name in FIXED}
        manifest = files.manifest()
        for name in (WEIGHTS, METRICS):
            if manifest.entries(name) and (folder / name).exists():
                files.read_verified(name)
        return cls(folder, _settings(files, contents["config.toml"]), facts)

    @property
    def files(self) -> ArtifactFolder:
        return ArtifactFolder(self.folder, REMEDY)

    @cached_property
    def layout(self) -> Layout:
        """Roles, kinds and categories of the training panel's columns; frames to forecast from are read with them."""
        packed = self.files.read_verified("schema.json")
        try:
            layout = Layout.from_description(json.loads(packed))
            if layout.signature != self.facts["signature"]:
                raise ValueError("not the signature in run.json")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MqcastError) as error:
            raise self.files.damaged("schema.json", error) from None
        return layout

    @property
    def micro_batch(self) -> int:
        return self.facts["micro_batch"]

    @property
    def lower_bound(self) -> float:
        """No forecast is below this: 0 if no target was negative."""
        return 0.0 if self.facts.get("never_negative") else -np.inf

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def is_trained(self) -> bool:
        return (self.folder / WEIGHTS).exists()

    @property
    def weights_digest(self) -> str:
        """A digest of the trained weights, which runs that start from them record."""
        return hashlib.sha256(self._trained_weights()).hexdigest()

    def check_start(self, config: RunConfig, panel: Panel) -> None:
        """Raise unless a network with these settings, on this panel, can start from the weights of this run."""
        changed = [name for name in _differences(self.config.model, config.model) if name != "dropout"]
        changed += ["horizon"] if self.config.window.horizon != config.window.horizon else []
        if changed:
            raise ConfigError(
                f"the network of {self.folder} has another {', '.join(changed)}, so its weights do not fit; keep "
                "its settings, or train without start_from"
            )
        self._check_layout(panel)

    def check_resumable(self, config: RunConfig, panel: Panel, start_from: "Run | None" = None) -> None:
        """Raise unless this run was started with the same settings, data and initial weights."""
        if self.facts["panel"] != panel.fingerprint:
            raise ConfigError(
                f"{self.folder} was started with other data; resume it with the same panel, or train in a new folder"
            )
        self.check_settings(config)
        if self.facts.get("start_from") != (start_from and start_from.weights_digest):
            raise ConfigError(
                f"{self.folder} was started from other weights; start from those, or train in a new folder"
            )

    def check_settings(self, config: RunConfig) -> None:
        """Raise unless these are the run's settings, except for those that may change."""
        changed = [name for name in _differences(self.config, config) if name.split(".")[-1] not in MAY_CHANGE]
        if changed:
            raise ConfigError(
                f"{self.folder} was started with other settings ({', '.join(changed)}); keep those, or train in a new "
                "folder"
            )

    def _check_layout(self, panel: Panel) -> None:
        if not can_be_read_as(panel, self.layout):
            raise ArtifactError(
                f"the panel's columns, kinds or categories are not those that {self.folder} was trained on; pack it "
                "with --like and the training panel (from Python: like=)"
            )

    def assembler(self, panel: Panel) -> Assembler:
        """The fitted transforms, applied to a panel with the columns and categories of the training panel."""
        self._check_layout(panel)
        return Assembler(read_as(panel, self.layout), self.config.window, *self._scalers)

    @cached_property
    def _scalers(self) -> tuple[TargetScaler, NumberScaler, CategoryFilter]:
        packed = self.files.read_verified("scaling.safetensors")
        try:
            arrays = safetensors.numpy.load(packed)
            check_scalers(arrays, self.layout.encoding)
            return scalers_of(arrays, self.config)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise self.files.damaged("scaling.safetensors", error) from None

    def new_network(self, start_from: "Run | None" = None) -> AnyNetwork:
        """A network with initial weights, which depend on the seed alone, or with the weights of another run."""
        config, inputs = self.config, Inputs(**self.facts["inputs"])
        network = seeded_network(config.model, inputs, config.window.horizon, config.train.seed)
        if start_from is not None:
            network.load_state_dict(start_from.network().state_dict())
        return network

    @cached_property
    def kept_network(self) -> AnyNetwork:
        """The trained network, read once and kept in memory; for forecasts, which do not change it."""
        return self.network()

    def network(self) -> AnyNetwork:
        """A new network with the trained weights."""
        packed = self._trained_weights()
        try:
            weights = safetensors.torch.load(packed)
            with AtMost(ROOM + 2 * sum(tensor.numel() for tensor in weights.values())):
                network = self.new_network()
            wanted, given = ({name: x.shape for name, x in one.items()} for one in (network.state_dict(), weights))
            if wanted != given:
                wrong = sorted(name for name in wanted | given if wanted.get(name) != given.get(name))
                raise ValueError(f"{wrong[0]} does not have the shape that config.toml requires")
            network.load_state_dict(weights)
            if not_finite := [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]:
                raise ValueError(f"{not_finite[0]} is not finite")
        except (SafetensorError, RuntimeError, ValueError, TypeError) as error:
            raise self.files.damaged(WEIGHTS, error) from None
        return network.eval()

    def _trained_weights(self) -> bytes:
        if not self.is_trained:
            raise ArtifactError(
                f"{self.folder / WEIGHTS} does not exist, because training is not finished; continue it with "
                "`mqcast fit … --resume`"
            )
        return self.files.read_verified(WEIGHTS)

    def final_files(self) -> dict[str, bytes]:
        """The files of a trained run, by name and content, for a copy of it."""
        listed = self.files.manifest().files
        names = [*FIXED, WEIGHTS, *(name for name in (METRICS, *LEARNT) if name in listed)]
        return {name: self.files.read_verified(name) for name in names}

    @cached_property
    def calibrator(self) -> Shifts | None:
        """How published quantiles are moved; None if they are those of the network."""
        if CALIBRATOR not in self.files.manifest().files:
            return None
        calibrator = Shifts.from_json(self.files.read_verified(CALIBRATOR))
        if calibrator.levels != self.config.model.quantiles:
            raise self.files.damaged(CALIBRATOR, "its levels are not those of the network")
        return calibrator

    def add_calibrator(self, calibrator: Shifts) -> None:
        """Move the quantiles that this run publishes from now on."""
        add_files(self.files, {CALIBRATOR: calibrator.to_json().encode()})
        self.__dict__.pop("calibrator", None)

    @cached_property
    def span_calibrators(self) -> dict[tuple[int, int], Shifts]:
        """How the totals of heads are moved, by span."""
        if SPAN_CALIBRATORS not in self.files.manifest().files:
            return {}
        try:
            packed = json.loads(self.files.read_verified(SPAN_CALIBRATORS))
            return {(int(first), int(last)): Shifts.from_json(text) for first, last, text in packed}
        except (ValueError, TypeError, ArtifactError) as error:
            raise self.files.damaged(SPAN_CALIBRATORS, error) from None

    def add_span_calibrators(self, calibrators: Mapping[tuple[int, int], Shifts]) -> None:
        """Move the totals of heads that this run publishes from now on."""
        packed = json.dumps([[*span, calibrator.to_json()] for span, calibrator in calibrators.items()])
        add_files(self.files, {SPAN_CALIBRATORS: packed.encode()})
        self.__dict__.pop("span_calibrators", None)

    def add_dependence(self, packed: bytes) -> None:
        """Keep how steps ahead go together, for paths and totals."""
        add_files(self.files, {DEPENDENCE: packed})

    def begin_training(self) -> None:
        """Remove from the manifest what is going to change: the metrics, and what was learnt about other weights."""
        if changing := [name for name in (METRICS, *LEARNT) if name in self.files.manifest().files]:
            add_files(self.files, {}, drop=changing)

    def save_network(self, weights: dict[str, torch.Tensor]) -> None:
        """Write the trained weights, and add them and the current metrics to the manifest."""
        packed = safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in weights.items()})
        final = {METRICS: self.metrics.read_bytes()} if self.metrics.is_file() else {}
        add_files(self.files, {WEIGHTS: packed}, vouch_for=final)
        self.__dict__.pop("kept_network", None)


def _settings(files: ArtifactFolder, packed: bytes) -> RunConfig:
    try:
        return RunConfig(**tomllib.loads(packed.decode()))
    except (ValueError, TypeError, RecursionError, MqcastError) as error:
        raise files.damaged("config.toml", error) from None


def require_free(folder: Path) -> None:
    """Raise unless a new run can start in a folder."""
    if exists(folder):
        raise ArtifactError(f"{folder} already contains a run; resume it, or give another folder")
    if folder.is_file() or (folder.is_dir() and any(_is_foreign(path) for path in folder.iterdir())):
        raise ArtifactError(f"{folder} is neither empty nor a run; give an empty or a new folder")


def exists(folder: Path) -> bool:
    return (folder / "run.json").exists()


def _is_foreign(path: Path) -> bool:
    """Whether this is a file that an interrupted start of a run would not leave."""
    return path.name not in (MANIFEST, REHEARSAL, *FIXED) and not path.name.endswith(".part")


def scaler_arrays(assemble: Assembler) -> dict[str, np.ndarray]:
    """The fitted transforms as arrays."""
    target, number, category = assemble.target.scaler, assemble.number, assemble.category
    _, offsets, text = target.ids.buffers()
    arrays = {
        "target.loc": target.loc,
        "target.scale": target.scale,
        "target.default": np.array(
            [target.default_loc, target.default_scale, target.typical_spread, target.typical_largest]
        ),
        "target.id_offsets": np.frombuffer(offsets, np.int64),
        "target.id_bytes": np.frombuffer(text or b"", np.uint8),
    }
    for block, columns in category.lookup.items():
        arrays |= {f"number.{block}.loc": number.loc[block], f"number.{block}.scale": number.scale[block]}
        if block in number.own:
            arrays |= {f"own.{block}.{name}": part for name, part in vars(number.own[block]).items()}
        arrays |= {f"category.{block}.{i}": lookup for i, lookup in enumerate(columns)}
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def scalers_of(arrays: dict[str, np.ndarray], config: RunConfig) -> tuple[TargetScaler, NumberScaler, CategoryFilter]:
    """The fitted transforms from the arrays of `scaler_arrays`."""
    ids = texts(arrays["target.id_offsets"], arrays["target.id_bytes"])
    default = (float(value) for value in arrays["target.default"])
    target = TargetScaler(config.scaling, ids, arrays["target.loc"], arrays["target.scale"], *default)
    blocks = [name.split(".")[1] for name in arrays if name.startswith("number.") and name.endswith(".loc")]
    loc, scale = ({block: arrays[f"number.{block}.{part}"] for block in blocks} for part in ("loc", "scale"))
    own = {
        block: OwnLevels(*(arrays[f"own.{block}.{field.name}"] for field in fields(OwnLevels)))
        for block in blocks
        if f"own.{block}.columns" in arrays
    }
    number = NumberScaler(loc, scale, own)
    lookup = {block: [] for block in blocks}
    for name in sorted((n for n in arrays if n.startswith("category.")), key=lambda n: int(n.split(".")[2])):
        lookup[name.split(".")[1]].append(arrays[name])
    return target, number, CategoryFilter(lookup)


def _differences(one: Settings, other: Settings) -> list[str]:
    """Names of the settings that differ."""
    names = []
    for name in type(one).model_fields:
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, Settings):
            names += [f"{name}.{inner}" for inner in _differences(mine, theirs)]
        elif mine != theirs:
            names.append(name)
    return names
