"""What belongs to one process and not to those that are forked from it: its threads, and its temporary folders."""

import os
import random
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mqcast.errors import ForkedProcessError

_user: int | None = None


def use() -> None:
    """Note which process uses mqcast; raise in one that was forked from it.

    A forked process has locks of the parent's libraries (polars, OpenMP) but not their threads: it would wait forever.
    """
    global _user
    if _user is None:
        _user = os.getpid()
    elif _user != os.getpid():
        raise ForkedProcessError(
            "this process was forked from one that had already used mqcast and lacks its threads; start processes with "
            "multiprocessing.get_context('spawn'), or fork before the first use"
        )


@contextmanager
def importing() -> Iterator[None]:
    """For imports that come late: what libraries change in the host's process as they are imported is taken back.

    That is warnings filters (scipy, sympy, plotly), Python's random state (rich) and environment variables (torch).
    """
    variables, state = set(os.environ), random.getstate()
    with warnings.catch_warnings():
        yield
    if random.getstate() != state:
        random.setstate(state)
    for name in set(os.environ) - variables:
        del os.environ[name]


def new_temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="mqcast-"))


def keep_as_long_as(owner: Any, folder: Path) -> None:
    """Remove a folder with its owner, or as this process ends; a forked process leaves it alone."""
    weakref.finalize(owner, _remove_own, str(folder), os.getpid())


def _remove_own(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
