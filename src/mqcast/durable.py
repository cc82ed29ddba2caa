"""Files that are either as they were or wholly new, whatever happens meanwhile."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mqcast.errors import ArtifactError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


@contextlib.contextmanager
def locked(folder: Path, doing: str) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArtifactError(f"another process is {doing} {folder}; wait for it or name another folder") from None
        yield
    finally:
        os.close(handle)


def fsync(path: Path) -> None:
    """Make a file's contents, or a folder's list of names, survive a crash."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes | str, lasting: bool = True) -> None:
    """Write under a temporary name, make it durable, rename. What stood there before is intact if this fails.

    Without `lasting` it is whole for all processes, but a crash of the machine may leave less of it.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        draft.replace(path)
        if lasting:
            fsync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # if even that fails, the first error says why
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def make_parent(path: Path) -> None:
    """The folder that a file is to be written to; refused where the file itself is a folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise ArtifactError(f"cannot write {path}: it is a folder; name a file")
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"cannot write {path}: {error.strerror or error}; free space or give write permission, then go on. "
        "What was saved before is intact"
    )
