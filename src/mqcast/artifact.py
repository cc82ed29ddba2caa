"""Folders that mqcast wrote, read with care: regular files alone, inside the folder, of the size and digest on record.

    manifest.json    the SHA-256 and size of every file that is final, and a seal: a digest of the manifest itself

A file that is about to be replaced is announced first (`incoming`), so that a crash between the two writes leaves a
folder that still opens, with the old file or with the new one.
"""

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mqcast.durable import cannot_write, write_file
from mqcast.errors import ArtifactError

MANIFEST = "manifest.json"
FORMAT, FORMAT_VERSION = "mqcast-manifest", 1
MOST_JSON = 2**28  # bytes; parsed JSON takes many times its size
CHUNK = 2**22
_SAFELY = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))


@dataclass(frozen=True)
class ArtifactFolder:
    """A folder of files, and what to do where one of them is not as it should be."""

    path: Path
    remedy: str

    def damaged(self, name: str, reason: object) -> ArtifactError:
        return ArtifactError(f"{self.path / name} is missing or damaged ({_short(reason)}); {self.remedy}")

    def open_handle(self, name: str) -> int:
        """A descriptor of a regular file inside the folder; neither a FIFO nor a device can hang or feed it."""
        try:
            inside, real = Path(os.path.realpath(self.path)), Path(os.path.realpath(self.path / name))
            if not real.is_relative_to(inside):
                raise self.damaged(name, "a link out of its folder")
            handle = os.open(real, os.O_RDONLY | _SAFELY)
        except (OSError, ValueError) as error:
            raise self.damaged(name, getattr(error, "strerror", None) or error) from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise self.damaged(name, "not a regular file")
        return handle

    def read(self, name: str, most: int | None = None) -> bytes:
        """All of a file, unless it is larger than `most` bytes."""
        with open_file(self.open_handle(name)) as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise self.damaged(name, f"{size:,} bytes, where at most {most:,} were expected")
            try:
                content = file.read(size)
            except (OSError, MemoryError) as error:
                raise self.damaged(name, error) from None
        if len(content) != size:
            raise self.damaged(name, "it was cut off while it was read")
        return content

    def read_json(self, name: str) -> dict[str, Any]:
        return self._parsed(name, self.read(name, MOST_JSON))

    def read_sealed(self, name: str) -> dict[str, Any]:
        """What `seal` wrote; a JSON file in which any byte differs is refused."""
        packed = self.read(name, MOST_JSON)
        content = self._parsed(name, packed)
        content.pop("seal", None)
        if seal(content).encode() != packed:
            raise self.damaged(name, "its content does not match its seal")
        return content

    def read_verified(self, name: str) -> bytes:
        """A file that the manifest lists, with the size and the digest that it lists."""
        manifest = self.manifest()
        while True:
            if not (entries := manifest.entries(name)):
                raise self.damaged(MANIFEST, f"it does not list {name}")
            content = self.read(name, max(entry["size"] for entry in entries))
            if entry_of(content) in entries:
                return content
            before, manifest = manifest, self.manifest()
            if manifest == before:  # the file has not been replaced in the meantime
                raise self.damaged(name, "its bytes are not those that were written")

    def manifest(self) -> "Manifest":
        content = self.read_sealed(MANIFEST)
        try:
            if content["format"] != FORMAT or content["version"] != FORMAT_VERSION:
                raise ValueError(f"format {content['format']} {content['version']}")
            manifest = Manifest(content["files"], content.get("incoming", {}))
            for entries in (manifest.files, manifest.incoming):
                for entry in entries.values():
                    check_entry(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self.damaged(MANIFEST, error) from None
        return manifest

    def _parsed(self, name: str, packed: bytes) -> dict[str, Any]:
        try:
            content = json.loads(packed.decode())
        except (ValueError, RecursionError, MemoryError) as error:
            raise self.damaged(name, error) from None
        if not isinstance(content, dict):
            raise self.damaged(name, "not a JSON object")
        return content


@dataclass(frozen=True)
class Manifest:
    """Which files are final, and how they must be; `incoming` ones may have come already."""

    files: dict[str, dict[str, Any]]
    incoming: dict[str, dict[str, Any]]

    def entries(self, name: str) -> list[dict[str, Any]]:
        return [entries[name] for entries in (self.files, self.incoming) if name in entries]

    def packed(self) -> bytes:
        content = {"format": FORMAT, "version": FORMAT_VERSION, "files": self.files, "incoming": self.incoming}
        return seal(content).encode()

    def write(self, folder: Path) -> None:
        write_file(folder / MANIFEST, self.packed())


def add_files(
    folder: ArtifactFolder,
    contents: dict[str, bytes],
    *,
    vouch_for: dict[str, bytes] | None = None,
    drop: Iterable[str] = (),
) -> None:
    """Write or replace files of a folder that has a manifest; a crash leaves it with the old ones or the new.

    `vouch_for` is what other files hold already, to be listed from now on; `drop` are files to be listed no longer.
    """
    kept = {name: entry for name, entry in _arrived(folder).items() if name not in drop}
    new = {name: entry_of(content) for name, content in contents.items()}
    if new:
        Manifest(kept, new).write(folder.path)
    for name, content in contents.items():
        write_file(folder.path / name, content)
    known = {name: entry_of(content) for name, content in (vouch_for or {}).items()}
    Manifest(kept | known | new, {}).write(folder.path)


def _arrived(folder: ArtifactFolder) -> dict[str, dict[str, Any]]:
    """The files on record; an incoming one in place of the one before, if a crash came after its arrival."""
    manifest = folder.manifest()
    files = dict(manifest.files)
    for name, entry in manifest.incoming.items():
        with contextlib.suppress(ArtifactError):
            if entry_of(folder.read(name, entry["size"])) == entry:
                files[name] = entry
    return files


def entry_of(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def entry_of_file(handle: int) -> dict[str, Any]:
    """The same of an open file of any size; it is read, not mapped, so that a file cut short is no crash."""
    digest, size = hashlib.sha256(), 0
    with open_file(os.dup(handle)) as file:
        file.seek(0)
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


def check_entry(entry: Any) -> None:
    size, digest = entry["size"], entry["sha256"]
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(digest, str):
        raise ValueError("a file's entry has no size or no digest")


def seal(content: dict[str, Any]) -> str:
    """JSON text that vouches for itself."""
    plain = json.dumps(content, indent=1, sort_keys=True)
    return json.dumps(content | {"seal": hashlib.sha256(plain.encode()).hexdigest()}, indent=1, sort_keys=True)


def open_file(handle: int) -> BinaryIO:
    try:
        return os.fdopen(handle, "rb")
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(handle)
        raise


def open_to_append(path: Path) -> BinaryIO:
    """A regular file, perhaps a new one, to write at its end; never what a link leads to, never a FIFO that waits."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFELY, 0o666)
    except OSError as error:
        raise cannot_write(path, error) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ArtifactError(f"{path} is not a regular file; remove it and go on")
    return os.fdopen(handle, "ab")


def _short(reason: object) -> str:
    text = str(reason) or type(reason).__name__
    return text if len(text) <= 200 else text[:199] + "…"
