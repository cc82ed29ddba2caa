"""Loads the compiled library after checking every byte of it, or says why not.

libkernels.json is written when the library is built and holds its size and SHA-256. What is loaded is a private copy of
the checked bytes, so truncating the file later cannot crash the process.
"""

import ctypes
import hashlib
import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCE, LIBRARY, MANIFEST = "kernels.c", "libkernels.so", "libkernels.json"
LARGEST_FILE = 2**24  # bytes
REINSTALL = "reinstall mqcast"


class RefusedError(Exception):
    """Why the library is not loaded."""


def load(folder: Path = FOLDER) -> ctypes.CDLL:
    """The library in this folder, if it belongs to the source beside it and to this processor."""
    library = _loaded(_verified_bytes(folder))
    try:
        digest, runs_here = library.kernels_digest, library.kernels_run_here
    except AttributeError:
        raise RefusedError(f"{LIBRARY} does not describe itself; {REINSTALL}") from None
    digest.restype = ctypes.c_char_p
    if digest() != hashlib.sha256(_content(folder, SOURCE)).hexdigest().encode():
        raise RefusedError(f"the kernels belong to another version; {REINSTALL}")
    if not runs_here():
        raise RefusedError("this processor lacks AVX2")
    return library


def _verified_bytes(folder: Path) -> bytes:
    """The library's content, if it is exactly what was built."""
    if not os.path.lexists(folder / MANIFEST):
        raise RefusedError(f"mqcast was installed without compiled kernels; install a C compiler and {REINSTALL}")
    try:
        manifest = json.loads(_content(folder, MANIFEST))
        if "failure" in manifest:
            raise RefusedError(f"mqcast was installed without compiled kernels: {manifest['failure']}")
        size, digest = manifest["size"], manifest["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RefusedError(f"{MANIFEST}, which holds the checksum of the kernels, is damaged; {REINSTALL}") from None
    content = _content(folder, LIBRARY)
    if (len(content), hashlib.sha256(content).hexdigest()) != (size, digest):
        raise RefusedError(f"{LIBRARY} is damaged: its checksum is wrong; {REINSTALL}")
    return content


def _content(folder: Path, name: str) -> bytes:
    """The bytes of a regular file in the package. Never waits for a pipe, never follows a link out of the package."""
    try:
        path = (folder / name).resolve(strict=True)
        if path.parent != (folder / SOURCE).resolve().parent:
            raise RefusedError(f"{name} is a link to outside the package; {REINSTALL}")
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
                raise RefusedError(f"{name} is not a regular file of a plausible size; {REINSTALL}")
            return b"".join(iter(lambda: os.read(file, LARGEST_FILE), b""))
        finally:
            os.close(file)
    except (OSError, RuntimeError) as error:  # RuntimeError: a cycle of links, before Python 3.13
        reason = getattr(error, "strerror", None) or "a cycle of links"
        raise RefusedError(f"{name} cannot be read ({reason}); {REINSTALL}") from None


def _loaded(content: bytes) -> ctypes.CDLL:
    """Load a private copy: from memory where the system can, else from a temporary folder that is removed at once."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError):  # some systems forbid running code from memory
            return _loaded_from_memory(content)
    try:
        with tempfile.TemporaryDirectory(prefix="mqcast-kernels-") as folder:
            path = Path(folder) / LIBRARY
            path.write_bytes(content)
            return ctypes.CDLL(str(path))
    except OSError as error:
        reason = str(error).rpartition(": ")[2]  # without the path of the copy
        raise RefusedError(f"the system cannot load {LIBRARY} ({reason}); {REINSTALL}") from None


def _loaded_from_memory(content: bytes) -> ctypes.CDLL:
    copy = os.memfd_create(LIBRARY, os.MFD_CLOEXEC)
    try:
        with open(copy, "wb", closefd=False) as file:
            file.write(content)
        library = ctypes.CDLL(f"/proc/self/fd/{copy}")
    except OSError:
        os.close(copy)
        raise
    return library  # stays open: the loader identifies libraries by path, and the next file would reuse this number
