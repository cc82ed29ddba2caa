"""Folders of mapped arrays: written durably, replaced in one step, and checked when they are opened.

    folder/panel.json        the manifest: format, schema, fingerprint, the name of the data folder, and of each array
                             its shape and the size and SHA-256 of its file; with a digest of itself
    folder/data-…/*.npy      the arrays

Only the manifest is replaced; a crash before that leaves the old panel, or none.
"""

import errno
import math
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mqcast.artifact import ArtifactFolder, check_entry, entry_of, entry_of_file, seal
from mqcast.durable import claimed, fsync
from mqcast.errors import ArtifactError

FORMAT = "mqcast-panel"
FORMAT_VERSION = 2
MANIFEST = "panel.json"
REMEDY = "restore it, or pack the panel again"
DTYPES = ("|u1", "<u2", "<u4", "<u8", "<i4", "<i8", "<f4")
SMALL_BYTES = 64 * 2**20  # a panel up to this size is read into memory and verified; a larger one is mapped


@contextmanager
def new_data_folder(folder: Path) -> Iterator[Path]:
    """A new data folder inside `folder`; after an error it is removed, and `folder` too if it was new."""
    with claimed(folder, "packing into", make_parents=True):
        if folder.is_file():
            raise ArtifactError(f"{folder} is a file; give a folder for the panel")
        is_new, data = not folder.exists(), None
        if not is_new and not (folder / MANIFEST).exists() and _holds_other_files(folder):
            raise ArtifactError(f"{folder} is neither empty nor a panel; give an empty or a new folder")
        try:
            folder.mkdir(exist_ok=True)
            data = Path(tempfile.mkdtemp(prefix="data-", dir=folder))
            yield data
        except BaseException as error:
            if data is not None:
                shutil.rmtree(data, ignore_errors=True)
            if is_new and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
            if isinstance(error, OSError):
                problem = error.strerror or error
                raise ArtifactError(f"cannot write to {folder}: {problem}; fix this and try again") from error
            raise


def _holds_other_files(folder: Path) -> bool:
    """Whether the folder has files that an interrupted pack would not leave."""
    return any(not entry.name.startswith("data-") for entry in folder.iterdir())


def allocate_file(data: Path, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array in a mapped file; its blocks are reserved, so that a full disk is an error here and not a crash."""
    file = data / f"{name}.npy"
    if 0 in shape:
        array = np.empty(shape, dtype)
        np.save(file, array)
        return array
    array = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as handle:
            try:
                os.posix_fallocate(handle.fileno(), 0, file.stat().st_size)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system cannot reserve blocks
                    raise
    return array


def commit(folder: Path, data: Path, arrays: dict[str, np.ndarray], description: dict[str, Any]) -> None:
    """Write the arrays to disk, replace the manifest, then delete the old arrays."""
    for file in data.glob("*.npy"):
        if file.stem not in arrays:
            file.unlink()
    for name, array in arrays.items():
        if isinstance(array, np.memmap):
            array.flush()
        fsync(data / f"{name}.npy")
    stored = {name: _described(data / f"{name}.npy", array) for name, array in arrays.items()}
    manifest = {"format": FORMAT, "version": FORMAT_VERSION, "folder": data.name, "arrays": stored} | description
    draft = data / MANIFEST
    draft.write_text(seal(manifest), encoding="utf-8")
    fsync(draft)
    fsync(data)
    draft.replace(folder / MANIFEST)
    fsync(folder)
    for other in folder.glob("data-*"):
        if other != data:
            shutil.rmtree(other, ignore_errors=True)


def _described(file: Path, array: np.ndarray) -> dict[str, Any]:
    handle = ArtifactFolder(file.parent, REMEDY).open_handle(file.name)
    try:
        return {"dtype": array.dtype.str, "shape": list(array.shape)} | entry_of_file(handle)
    finally:
        os.close(handle)


def read_manifest(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).exists():
        raise ArtifactError(
            f"there is no panel at {folder}, because {MANIFEST} is missing; write one with `mqcast pack`"
        )
    files = ArtifactFolder(folder, REMEDY)
    manifest = files.read_json(MANIFEST)
    if manifest.get("format") != FORMAT:
        raise files.damaged(MANIFEST, "not a panel's manifest")
    if (version := manifest.get("version")) != FORMAT_VERSION:
        raise ArtifactError(
            f"{folder / MANIFEST} has panel format {version!r}, this mqcast reads {FORMAT_VERSION}; pack it again"
        )
    return files.read_sealed(MANIFEST)


class StoredArrays:
    """The arrays of a panel on disk. Small ones are read and verified now; large ones are mapped, and verified later.

    Files stay open, so that a later check reads the mapped files even if the panel has been packed again.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.files = ArtifactFolder(folder, REMEDY)
        self.entries: dict[str, dict[str, Any]] = {}
        self.handles: dict[str, int] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.is_verified, self._lock = False, threading.Lock()
        weakref.finalize(self, _close, self.handles)
        inside = manifest["folder"]
        if not isinstance(inside, str) or Path(inside).name != inside:
            raise ValueError("the data folder has no plain name")
        for name, entry in manifest["arrays"].items():
            check_entry(entry)
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError("an array has no plain name")
            self.entries[f"{inside}/{name}.npy"] = entry
        is_small = sum(entry["size"] for entry in self.entries.values()) <= SMALL_BYTES
        for file, entry in self.entries.items():
            self.arrays[Path(file).stem] = self._read(file, entry) if is_small else self._map(file, entry)
        self.is_verified = is_small

    def verify(self) -> None:
        """Read every byte of the mapped files and compare it with the manifest."""
        with self._lock:
            for file, handle in self.handles.items():
                self._compare(file, entry_of_file(handle))
            self.is_verified = True

    def check_sizes(self) -> None:
        """Raise if a mapped file has been truncated, since reading beyond its end would crash the process."""
        for file, handle in self.handles.items():
            if os.fstat(handle).st_size < self.entries[file]["size"]:
                raise self.files.damaged(file, "it was truncated while it was open")

    def _read(self, file: str, entry: dict[str, Any]) -> np.ndarray:
        dtype, shape, size = _shape_of(entry)
        content = self.files.read(file, entry["size"])
        self._compare(file, entry_of(content))
        return np.frombuffer(content, dtype, math.prod(shape), len(content) - size).reshape(shape)

    def _map(self, file: str, entry: dict[str, Any]) -> np.ndarray:
        """Map what follows the header; the header is not parsed, since the manifest describes the array."""
        dtype, shape, size = _shape_of(entry)
        handle = self.handles[file] = self.files.open_handle(file)
        if (size_now := os.fstat(handle).st_size) != entry["size"]:
            raise self.files.damaged(file, f"{size_now:,} bytes, not {entry['size']:,}")
        if size == 0:
            return np.empty(shape, dtype)
        with os.fdopen(os.dup(handle), "rb") as opened:
            return np.memmap(opened, dtype, "r", entry["size"] - size, shape)

    def _compare(self, file: str, entry: dict[str, Any]) -> None:
        if entry != {name: self.entries[file][name] for name in entry}:
            raise self.files.damaged(file, "its bytes have changed since it was packed")


def _shape_of(entry: dict[str, Any]) -> tuple[np.dtype, tuple[int, ...], int]:
    """Type, shape and size in bytes of an array, checked against the size of its file."""
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"an array of type {entry['dtype']!r}")
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    if not 1 <= len(shape) <= 2 or any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"an array of shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    if size > entry["size"] or max(shape) > 2**62:
        raise ValueError(f"an array of shape {shape} in a file of {entry['size']:,} bytes")
    return dtype, shape, size


def _close(handles: dict[str, int]) -> None:
    for handle in handles.values():
        os.close(handle)
    handles.clear()


def damaged(folder: Path, reason: object) -> ArtifactError:
    return ArtifactFolder(folder, REMEDY).damaged(MANIFEST, reason)
