"""Folders of mapped arrays: written durably, replaced in one step, checked when they are opened.

    folder/panel.json        the manifest: format, schema, shapes, fingerprint, and the name of the data folder
    folder/data-…/*.npy      the arrays

The manifest is the one thing that is replaced; a crash before that leaves the old panel, or none.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mqcast.durable import fsync, locked
from mqcast.errors import ArtifactError

FORMAT = "mqcast-panel"
FORMAT_VERSION = 1
MANIFEST = "panel.json"


@contextmanager
def new_data_folder(folder: Path) -> Iterator[Path]:
    """A fresh data folder inside `folder`; gone again, with `folder` if it was new, when something goes wrong."""
    if folder.is_file():
        raise ArtifactError(f"{folder} is a file; name a folder for the panel")
    if folder.is_dir() and not (folder / MANIFEST).exists() and _strangers(folder):
        raise ArtifactError(f"{folder} holds something that is not a panel; name an empty or a new folder")
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    data = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, "packing into"):
            data = Path(tempfile.mkdtemp(prefix="data-", dir=folder))
            yield data
    except BaseException as error:
        if data is not None:
            shutil.rmtree(data, ignore_errors=True)
        for place in new:
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        if isinstance(error, OSError):
            raise ArtifactError(f"cannot write to {folder}: {error.strerror or error}; see to it and retry") from error
        raise


def _strangers(folder: Path) -> bool:
    """Is anything in the folder that an interrupted pack would not leave?"""
    return any(not entry.name.startswith("data-") for entry in folder.iterdir())


def allocate_file(data: Path, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array whose memory is a file; its blocks are reserved, so that a full disk is an error here, not a crash."""
    file = data / f"{name}.npy"
    if 0 in shape:
        array = np.empty(shape, dtype)
        np.save(file, array)
        return array
    array = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as handle:
            os.posix_fallocate(handle.fileno(), 0, file.stat().st_size)
    return array


def commit(folder: Path, data: Path, arrays: dict[str, np.ndarray], description: dict[str, Any]) -> None:
    """Make the arrays durable, point the manifest at them, then drop what it pointed at before."""
    for file in data.glob("*.npy"):
        if file.stem not in arrays:
            file.unlink()
    for name, array in arrays.items():
        if isinstance(array, np.memmap):
            array.flush()
        fsync(data / f"{name}.npy")
    shapes = {name: {"dtype": array.dtype.str, "shape": list(array.shape)} for name, array in arrays.items()}
    manifest = {"format": FORMAT, "version": FORMAT_VERSION, "folder": data.name, "arrays": shapes} | description
    draft = data / MANIFEST
    draft.write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
    fsync(draft)
    fsync(data)
    draft.replace(folder / MANIFEST)
    fsync(folder)
    for other in folder.glob("data-*"):
        if other != data:
            shutil.rmtree(other, ignore_errors=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(f"no panel at {folder}; write one with `mqcast pack`") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise damaged(folder, error) from None
    except OSError as error:
        raise ArtifactError(f"cannot read {folder}: {error.strerror}; check its permissions") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise damaged(folder, "not a panel's manifest")
    if (version := manifest.get("version")) != FORMAT_VERSION:
        raise ArtifactError(f"{folder} has panel format {version}, this mqcast reads {FORMAT_VERSION}; pack it again")
    return manifest


def map_arrays(folder: Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    data = folder / Path(manifest["folder"]).name
    return {name: _map(data / f"{Path(name).name}.npy", **shape) for name, shape in manifest["arrays"].items()}


def damaged(folder: Path, reason: object) -> ArtifactError:
    return ArtifactError(f"{folder / MANIFEST} is damaged ({reason}); pack the panel again")


def _map(file: Path, dtype: str, shape: list[int]) -> np.ndarray:
    try:
        array = np.load(file, mmap_mode=None if 0 in shape else "r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArtifactError(f"{file} is missing or damaged ({error}); pack the panel again") from None
    if array.dtype.str != dtype or list(array.shape) != shape:
        raise ArtifactError(f"{file} holds {array.dtype}{array.shape}, not {dtype}{tuple(shape)}; pack the panel again")
    return array
