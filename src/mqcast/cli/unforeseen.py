"""Errors that are not mqcast's own, in words: what happened and what to do."""

import errno

from mqcast.errors import quoted

LIBRARIES = ("polars", "pyarrow", "pandas", "duckdb", "torch", "lightgbm")
NO_MEMORY = "there is not enough memory; take fewer series at a time, a smaller train.memory_gib, or a larger machine"
OF_THE_SYSTEM = {
    "ENOENT": "there is no file or folder {}; check the path",
    "EACCES": "{} may not be read or written; give permission, or name another place",
    "EPERM": "{} may not be read or written; give permission, or name another place",
    "EISDIR": "{} is a folder; name a file",
    "ENOTDIR": "a part of the path {} is a file and no folder; correct the path",
    "EEXIST": "{} is there already; name another place, or remove it",
    "ENOTEMPTY": "{} is not empty; name another place, or empty it",
    "ENOSPC": "there is no space left for {}; free some, then run the command again",
    "EDQUOT": "there is no space left for {}; free some, then run the command again",
    "EROFS": "{} is on a disk that cannot be written to; name another place",
    "ENAMETOOLONG": "the name {} is too long; shorten it",
    "EMFILE": "too many files are open to open {}; close some, or raise the limit: ulimit -n",
    "ENFILE": "too many files are open to open {}; close some, or raise the limit: ulimit -n",
    "EIO": "{} could not be read or written; check the disk, then run the command again",
    "ENOMEM": NO_MEMORY,
}


def is_of_the_user(error: Exception) -> bool:
    """Whether the user can help it: files, memory, packages that are not installed."""
    if isinstance(error, OSError):
        return error.errno is not None and not isinstance(error, BrokenPipeError)
    return _is_of_memory(error) or isinstance(error, ModuleNotFoundError)


def in_words(error: Exception) -> str:
    if _is_of_memory(error):
        return NO_MEMORY
    if isinstance(error, OSError) and error.errno is not None:
        path = "a file" if error.filename is None else quoted(str(error.filename))
        name = errno.errorcode.get(error.errno, str(error.errno))
        unknown = f"the system cannot use {{}} ({name}); check the path, its permissions and the disk"
        return OF_THE_SYSTEM.get(name, unknown).format(path)
    if isinstance(error, ModuleNotFoundError):
        return f"the package {quoted(error.name)} is not installed; install it, and see `mqcast doctor`"
    if isinstance(error, UnicodeError):
        return "a file has text that is not UTF-8; save it as UTF-8, then run the command again"
    library = type(error).__module__.partition(".")[0].lstrip("_")
    what = f"{library} cannot do what mqcast asks of it here" if library in LIBRARIES else "mqcast has a mistake here"
    return f"{what}; look for odd values in the data and, if there are none, please report the traceback"


def _is_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
