"""The compiled library: vouched for byte by byte before any of it runs, or refused in plain words.

libkernels.json, written as the library was built, has its size and SHA-256. What is loaded is a private copy of the
bytes that were checked, so that nobody who cuts the file short meanwhile brings the process down.
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
AGAIN = "install mqcast again"


class RefusedError(Exception):
    """Why the library is not taken."""


def load(folder: Path = FOLDER) -> ctypes.CDLL:
    """The library of this folder's source, for this processor."""
    library = _loaded(_vouched_bytes(folder))
    try:
        digest, runs_here = library.kernels_digest, library.kernels_run_here
    except AttributeError:
        raise RefusedError(f"{LIBRARY} lacks what it should say of itself; {AGAIN}") from None
    digest.restype = ctypes.c_char_p
    if digest() != hashlib.sha256(_content(folder, SOURCE)).hexdigest().encode():
        raise RefusedError(f"the kernels are of another version; {AGAIN}")
    if not runs_here():
        raise RefusedError("this processor lacks AVX2")
    return library


def _vouched_bytes(folder: Path) -> bytes:
    """The library's content, if it is to the byte what was built."""
    if not os.path.lexists(folder / MANIFEST):
        raise RefusedError(f"mqcast has been installed without its kernels; {AGAIN}, with a C compiler")
    try:
        manifest = json.loads(_content(folder, MANIFEST))
        if "failure" in manifest:
            raise RefusedError(f"mqcast was built without its kernels: {manifest['failure']}")
        size, digest = manifest["size"], manifest["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RefusedError(f"{MANIFEST}, which vouches for the kernels, is damaged; {AGAIN}") from None
    content = _content(folder, LIBRARY)
    if (len(content), hashlib.sha256(content).hexdigest()) != (size, digest):
        raise RefusedError(f"{LIBRARY} is damaged: it is not what was built; {AGAIN}")
    return content


def _content(folder: Path, name: str) -> bytes:
    """Of a regular file beside the source; a pipe is never waited for, a link never followed out of the package."""
    try:
        path = (folder / name).resolve(strict=True)
        if path.parent != (folder / SOURCE).resolve().parent:
            raise RefusedError(f"{name} is a link that leads out of the package; {AGAIN}")
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST_FILE:
                raise RefusedError(f"{name} is not a file that was built; {AGAIN}")
            return b"".join(iter(lambda: os.read(file, LARGEST_FILE), b""))
        finally:
            os.close(file)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        reason = getattr(error, "strerror", None) or "a circle of links"
        raise RefusedError(f"{name} cannot be read ({reason}); {AGAIN}") from None


def _loaded(content: bytes) -> ctypes.CDLL:
    """A private copy in memory where there is such a thing, else in a folder of its own that is removed at once."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError):  # a system may forbid to run what is in memory
            return _loaded_from_memory(content)
    try:
        with tempfile.TemporaryDirectory(prefix="mqcast-kernels-") as folder:
            path = Path(folder) / LIBRARY
            path.write_bytes(content)
            return ctypes.CDLL(str(path))
    except OSError as error:
        reason = str(error).rpartition(": ")[2]  # without the name of the copy
        raise RefusedError(f"the system cannot load {LIBRARY} ({reason}); {AGAIN}") from None


def _loaded_from_memory(content: bytes) -> ctypes.CDLL:
    copy = os.memfd_create(LIBRARY, os.MFD_CLOEXEC)
    try:
        with open(copy, "wb", closefd=False) as file:
            file.write(content)
        library = ctypes.CDLL(f"/proc/self/fd/{copy}")
    except OSError:
        os.close(copy)
        raise
    return library  # its copy stays open: the loader knows libraries by name, and the next file would get its number
