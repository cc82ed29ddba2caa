"""Checkpoints: a safetensors file with everything needed to resume training, and a JSON file with its digest.

    checkpoints/00003-000001200.safetensors    epoch and step: weights, optimiser, averages, best weights
    checkpoints/00003-000001200.json           where training stood, and the tensors' digest; sealed by its own

The JSON file comes last, so that a checkpoint exists once it does. Older checkpoints go when a newer one is complete.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from mqcast.artifact import ArtifactFolder, entry_of, seal
from mqcast.durable import cannot_write, write_file
from mqcast.errors import ArtifactError

FORMAT_VERSION = 2
NUM_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    name: str
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path):
        self.folder = folder

    def save(self, name: str, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Save under a name that sorts after the older ones."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        packed = safetensors.torch.save({key: t.detach().cpu().contiguous() for key, t in tensors.items()})
        vouch = {"format_version": FORMAT_VERSION, "tensors": entry_of(packed), "state": state}
        write_file(self.folder / f"{name}.safetensors", packed)
        write_file(self.folder / f"{name}.json", seal(vouch))
        self._tidy(name)

    def newest(self, on_message: Callable[[str], None] = lambda text: None) -> Checkpoint | None:
        """The newest checkpoint that is whole; what is torn is skipped, with a message."""
        for path in sorted(self.folder.glob("[0-9]*.json"), reverse=True):
            checkpoint = self._read(path)
            if isinstance(checkpoint, Checkpoint):
                return checkpoint
            on_message(f"checkpoint {path} is damaged ({checkpoint}); looking for an older one")
        return None

    def _read(self, path: Path) -> Checkpoint | str:
        """A checkpoint, or what is wrong with it."""
        files = ArtifactFolder(self.folder, "an older one will do")
        try:
            vouch = files.read_sealed(path.name)
            if vouch["format_version"] != FORMAT_VERSION:
                return f"format {vouch['format_version']}, this mqcast reads {FORMAT_VERSION}"
            packed = files.read(f"{path.stem}.safetensors", vouch["tensors"]["size"])
            if vouch["tensors"] != entry_of(packed):
                return "its tensors are not those that were saved"
            return Checkpoint(path.stem, safetensors.torch.load(packed), vouch["state"])
        except (ArtifactError, ValueError, KeyError, TypeError, SafetensorError) as error:
            return f"{type(error).__name__}: {error}"

    def _tidy(self, newest: str) -> None:
        """Drop all but the newest, and what interrupted saves left."""
        kept = sorted(path.stem for path in self.folder.glob("[0-9]*.json") if path.stem <= newest)[-NUM_KEPT:]
        for path in [*self.folder.glob("[0-9]*"), *self.folder.glob(".*.part")]:
            if path.stem not in kept:
                with contextlib.suppress(OSError):  # what cannot be removed does no harm
                    path.unlink(missing_ok=True)
