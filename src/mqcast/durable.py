"""Files that are either as they were or wholly new, even if the process is killed or another one writes there."""

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from mqcast.errors import ArtifactError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # of file systems that have none
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_FOLDER_SYNC = (errno.EACCES, errno.EINVAL, errno.ENOTSUP)  # Windows; some network file systems
REMEDIES = {
    errno.EISDIR: "it is a folder: name a file",
    errno.ENOENT: "name a place whose folders are there or can be made",
    errno.ENOTDIR: "a part of the path is a file: correct it",
    errno.ENAMETOOLONG: "shorten the name",
}
BUSY_SECONDS = (0.01, 0.05, 0.2, 0.5)
MOST_TRIES = 1000
_drafts = itertools.count()


@contextlib.contextmanager
def claimed(path: Path, doing: str = "writing", make_parents: bool = False) -> Iterator[Path]:
    """`path`, a file or a folder, for one writer at a time of all threads and processes; the others are refused.

    Yields the draft that `put_in_place` may make the file of that name. The claim is a lock on the draft: it goes with
    its owner, however that ends, and a draft that is left behind blocks no one. With `make_parents` the folders above
    are made, and those that stay empty removed again. Windows has no such locks: each writer there has a draft of its
    own, and the last one to finish wins.
    """
    if not path.name:
        raise ArtifactError(f"cannot write {path}: it is a folder; name a file or a folder in it")
    own = "" if fcntl else f".{os.getpid()}-{next(_drafts)}"
    draft = path.with_name(f".{path.name}{own}.part")
    new = [place for place in path.absolute().parents if not place.exists()] if make_parents else []
    handle = None
    try:
        if fcntl is not None:
            handle = _lock(draft, path, make_parents)
        elif make_parents:
            path.parent.mkdir(parents=True, exist_ok=True)
    except BlockingIOError:
        raise ArtifactError(f"another process or thread is {doing} {path}; wait for it or name another place") from None
    except OSError as error:
        _remove_empty(new)
        raise cannot_write(path, error) from error
    try:
        yield draft
    finally:
        if handle is None:
            draft.unlink(missing_ok=True)
        else:
            _unlock(handle, draft)
        _remove_empty(new)


def _lock(draft: Path, path: Path, make_parents: bool) -> int:
    """The draft, opened and locked; BlockingIOError if another writer has it."""
    assert fcntl is not None
    for _ in range(MOST_TRIES):
        try:
            if make_parents:
                draft.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(draft, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except FileNotFoundError:
            if not make_parents:
                raise
            continue  # another writer has taken the folder away again
        except OSError as error:
            if error.errno not in NOT_OURS or not path.is_dir():
                raise
            handle = os.open(path, os.O_RDONLY)  # a folder that is ours, in one that is not: itself is locked
            draft = path
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(handle)
                raise
        if _is_at(handle, draft):
            return handle
        os.close(handle)  # its last owner has put it in place, or taken it away
    raise BlockingIOError


def _unlock(handle: int, draft: Path) -> None:
    assert fcntl is not None
    if _is_at(handle, draft):  # not put in place, nor already the next writer's
        draft.unlink()
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing would not do where a forked process has it open too
    os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Is this open file the one of that name?"""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except OSError:
        return False


def _remove_empty(folders: list[Path]) -> None:
    for place in folders:
        with contextlib.suppress(OSError):
            place.rmdir()


def put_in_place(draft: Path, path: Path, lasting: bool = True) -> None:
    """Make a draft, file or folder, durable, and give it its name."""
    if lasting:
        fsync(draft)
    _replace(draft, path)
    if lasting:
        fsync(path.absolute().parent)


def _replace(draft: Path, path: Path) -> None:
    """Rename; where there are no locks (Windows), wait for a reader that has the old file open, if only to scan it."""
    for seconds in () if fcntl else BUSY_SECONDS:
        try:
            draft.replace(path)
            return
        except PermissionError:
            time.sleep(seconds)
    draft.replace(path)


def fsync(path: Path) -> None:
    """Make a file's contents, or a folder's list of names, survive a crash.

    Files are opened for writing, as Windows demands; folders are left alone where the system cannot sync them.
    """
    is_folder = path.is_dir()
    try:
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not is_folder or error.errno not in NO_FOLDER_SYNC:
            raise


def write_file(path: Path, content: bytes | str, lasting: bool = True, make_parents: bool = False) -> None:
    """Write under a temporary name, make it durable, rename. What stood there before is intact if this fails.

    Without `lasting` it is whole for all processes, but a crash of the machine may leave less of it.
    """
    with claimed(path, make_parents=make_parents) as draft:
        write_draft(draft, path, content, lasting)


def write_draft(draft: Path, path: Path, content: bytes | str, lasting: bool = True) -> None:
    """The same by who has claimed the path already."""
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        put_in_place(draft, path, lasting)
    except OSError as error:
        raise cannot_write(path, error) from error


def make_parent(path: Path) -> None:
    """The folder that a file is to be written to; refused where the file itself is a folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise ArtifactError(f"cannot write {path}: it is a folder; name a file")
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> ArtifactError:
    remedy = REMEDIES.get(error.errno or 0, "free space or give write permission, then go on")
    return ArtifactError(f"cannot write {path}: {error.strerror or error}; {remedy}. What was saved before is intact")
