"""A run: the folder that training writes and forecasting reads. safetensors, JSON and TOML; nothing in it is code.

config.toml            all settings
run.json               format, versions, the panel's signature and fingerprint, the micro-batch
schema.json            what the columns mean: roles, kinds, categories, frequency, holidays
scaling.safetensors    the fitted transforms
metrics.jsonl          one line a logged step, one an epoch
checkpoints/           to go on from
model.safetensors      the trained weights; there once training is done
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError

from mqcast.config import RunConfig, Settings
from mqcast.data.batch import Assembler
from mqcast.data.layout import Layout
from mqcast.data.panel import Panel
from mqcast.data.scaling import CategoryFilter, NumberScaler, TargetScaler
from mqcast.durable import cannot_write, write_file
from mqcast.errors import ArtifactError, ConfigError
from mqcast.model import kernels
from mqcast.model.inputs import Inputs
from mqcast.model.networks import Network
from mqcast.version import __version__

FORMAT, FORMAT_VERSION = "mqcast-run", 4
DIGEST = "sha256"  # of the weights, in their file
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
        """A new run in a new or an empty folder; perhaps one that begins with another's weights."""
        if exists(folder):
            raise ArtifactError(f"{folder} holds a run already; resume it, or name another folder")
        if folder.is_file() or (folder.is_dir() and any(_is_strange(path) for path in folder.iterdir())):
            raise ArtifactError(f"{folder} holds something that is not a run; name an empty or a new folder")
        facts = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "mqcast": __version__,
            "torch": torch.__version__,
            "decoder": kernels.status(),
            "panel": panel.fingerprint,
            "signature": panel.layout.signature,
            "inputs": Inputs.of(panel).model_dump(mode="json"),
            "micro_batch": micro_batch,
            "never_negative": bool(np.nanmin(panel.target) >= 0),
            "start_from": start_from and start_from.weights_digest,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        write_file(folder / "config.toml", config.to_toml())
        write_file(folder / "schema.json", json.dumps(panel.layout.description, indent=1))
        write_file(folder / "scaling.safetensors", safetensors.numpy.save(scaler_arrays(assemble)))
        write_file(folder / "run.json", json.dumps(facts, indent=1))
        return cls(folder, config, facts)

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        folder = Path(folder)
        if not exists(folder):
            raise ArtifactError(f"no run at {folder}; train one with `mqcast fit`")
        try:
            facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _damaged(folder / "run.json", error) from None
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise _damaged(folder / "run.json", "not a run's facts")
        if facts.get("version") != FORMAT_VERSION:
            raise ArtifactError(
                f"{folder} has run format {facts.get('version')}, this mqcast reads {FORMAT_VERSION}; train it again"
            )
        return cls(folder, RunConfig.from_toml(folder / "config.toml"), facts)

    @property
    def layout(self) -> Layout:
        """What the columns of the panel that was trained on mean; frames to forecast from are read alike."""
        path = self.folder / "schema.json"
        try:
            layout = Layout.from_description(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(path, error) from None
        if layout.signature != self.facts["signature"]:
            raise _damaged(path, "not the signature in run.json")
        return layout

    @property
    def micro_batch(self) -> int:
        return self.facts["micro_batch"]

    @property
    def least(self) -> float:
        """No forecast is below this: 0 if no target ever was."""
        return 0.0 if self.facts.get("never_negative") else -np.inf

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def is_trained(self) -> bool:
        return (self.folder / "model.safetensors").exists()

    @property
    def weights_digest(self) -> str:
        """Which weights were trained; runs that begin with them remember it."""
        return hashlib.sha256(self._trained_weights()).hexdigest()

    def check_start(self, config: RunConfig, panel: Panel) -> None:
        """Raise unless a network with these settings, on this panel, can begin with this run's weights."""
        unlike = [name for name in _unlike(self.config.model, config.model) if name != "dropout"]
        unlike += ["horizon"] if self.config.window.horizon != config.window.horizon else []
        if unlike:
            raise ConfigError(
                f"the network of {self.folder} has another {', '.join(unlike)}, so that its weights do not fit; keep "
                "its settings, or train from new weights"
            )
        self._check_layout(panel)

    def check_resumable(self, config: RunConfig, panel: Panel, start_from: "Run | None" = None) -> None:
        """Raise unless this run would be the same with these settings, data and first weights."""
        if self.facts["panel"] != panel.fingerprint:
            raise ConfigError(f"{self.folder} was begun on other data; resume it with the same panel, or begin anew")
        self.check_settings(config)
        if self.facts.get("start_from") != (start_from and start_from.weights_digest):
            raise ConfigError(f"{self.folder} was begun from other weights; start from those, or begin anew")

    def check_settings(self, config: RunConfig) -> None:
        """Raise unless these are the run's settings, those aside that may change on the way."""
        unlike = [name for name in _unlike(self.config, config) if name.split(".")[-1] not in MAY_CHANGE]
        if unlike:
            raise ConfigError(
                f"{self.folder} was begun with other settings ({', '.join(unlike)}); keep those, or begin anew"
            )

    def _check_layout(self, panel: Panel) -> None:
        if self.facts["signature"] != panel.layout.signature:
            raise ArtifactError(
                f"the panel's columns, kinds or categories are not those that {self.folder} was trained on; pack it "
                "with --like the training panel (from Python: like=)"
            )

    def assembler(self, panel: Panel) -> Assembler:
        """The fitted transforms, on a panel with the columns and categories of the one that was trained on."""
        self._check_layout(panel)
        path = self.folder / "scaling.safetensors"
        try:
            scalers = scalers_of(safetensors.numpy.load(path.read_bytes()), self.config)
        except (OSError, SafetensorError, KeyError) as error:
            raise _damaged(path, error) from None
        return Assembler(panel, self.config.window, *scalers)

    def new_network(self, start_from: "Run | None" = None) -> Network:
        """With fresh weights, the same for the same seed, or another run's."""
        config, inputs = self.config, Inputs(**self.facts["inputs"])
        network = Network.seeded(config.model, inputs, config.window.horizon, config.train.seed)
        if start_from is not None:
            network.load_state_dict(start_from.network().state_dict())
        return network

    def network(self) -> Network:
        """With the trained weights."""
        network, packed = self.new_network(), self._trained_weights()
        try:
            weights = safetensors.torch.load(packed)
            if _said_digest(packed) not in (None, _digest(weights)):
                raise ValueError("its weights are not those that were saved")
            network.load_state_dict(weights)
        except (SafetensorError, RuntimeError, ValueError) as error:
            raise _damaged(self.folder / "model.safetensors", error) from None
        return network.eval()

    def _trained_weights(self) -> bytes:
        path = self.folder / "model.safetensors"
        if not path.exists():
            raise ArtifactError(f"training in {self.folder} is not done; go on with `mqcast fit … --resume`")
        try:
            return path.read_bytes()
        except OSError as error:
            raise _damaged(path, error) from None

    def save_network(self, weights: dict[str, torch.Tensor]) -> None:
        weights = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
        write_file(self.folder / "model.safetensors", safetensors.torch.save(weights, {DIGEST: _digest(weights)}))


def _digest(weights: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode() + weights[name].numpy().tobytes())
    return found.hexdigest()


def _said_digest(packed: bytes) -> str | None:
    """What a file of weights says of itself; older ones say nothing."""
    header = json.loads(packed[8 : 8 + int.from_bytes(packed[:8], "little")])
    return header.get("__metadata__", {}).get(DIGEST)


def exists(folder: Path) -> bool:
    return (folder / "run.json").exists()


def _is_strange(path: Path) -> bool:
    """Is this something that an interrupted start would not leave?"""
    return path.name not in ("config.toml", "schema.json", "scaling.safetensors") and not path.name.endswith(".part")


def scaler_arrays(assemble: Assembler) -> dict[str, np.ndarray]:
    """The fitted transforms as arrays."""
    target, number, category = assemble.target.scaler, assemble.number, assemble.category
    _, offsets, text = target.ids.buffers()
    arrays = {
        "target.loc": target.loc,
        "target.scale": target.scale,
        "target.default": np.array([target.default_loc, target.default_scale, target.typical_spread]),
        "target.id_offsets": np.frombuffer(offsets, np.int64),
        "target.id_bytes": np.frombuffer(text or b"", np.uint8),
    }
    for block, columns in category.lookup.items():
        arrays |= {f"number.{block}.loc": number.loc[block], f"number.{block}.scale": number.scale[block]}
        arrays |= {f"category.{block}.{i}": lookup for i, lookup in enumerate(columns)}
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def scalers_of(arrays: dict[str, np.ndarray], config: RunConfig) -> tuple[TargetScaler, NumberScaler, CategoryFilter]:
    """The fitted transforms that `scaler_arrays` came from."""
    offsets, text = (pa.py_buffer(arrays[f"target.{name}"]) for name in ("id_offsets", "id_bytes"))
    ids = pa.LargeStringArray.from_buffers(len(arrays["target.loc"]), offsets, text)
    default = (float(value) for value in arrays["target.default"])
    target = TargetScaler(config.scaling, ids, arrays["target.loc"], arrays["target.scale"], *default)
    blocks = [name.split(".")[1] for name in arrays if name.startswith("number.") and name.endswith(".loc")]
    number = NumberScaler(*({block: arrays[f"number.{block}.{part}"] for block in blocks} for part in ("loc", "scale")))
    lookup = {block: [] for block in blocks}
    for name in sorted((n for n in arrays if n.startswith("category.")), key=lambda n: int(n.split(".")[2])):
        lookup[name.split(".")[1]].append(arrays[name])
    return target, number, CategoryFilter(lookup)


def _unlike(one: Settings, other: Settings) -> list[str]:
    """Names of the settings in which two of a kind differ."""
    found = []
    for name in type(one).model_fields:
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, Settings):
            found += [f"{name}.{inner}" for inner in _unlike(mine, theirs)]
        elif mine != theirs:
            found.append(name)
    return found


def _damaged(path: Path, error: object) -> ArtifactError:
    return ArtifactError(f"{path} is missing or damaged ({error}); restore it, or train again")
