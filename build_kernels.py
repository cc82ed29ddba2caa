"""Compiles src/mqcast/nn/kernels.c where there is a C compiler (GCC 11 or newer, or Clang), and records the outcome.

`hatch_build.py` calls this when mqcast is installed; in a clone, run `python build_kernels.py`. libkernels.json beside
the library holds its size and SHA-256, without which it is not loaded, or the reason why there is none.
"""

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path("src/mqcast/nn/kernels.c")
LIBRARY, MANIFEST = "libkernels.so", "libkernels.json"
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fPIC", "-shared")
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")  # checks every address and every sum
SANITIZED = ("-O1", "-g", "-std=gnu11", "-fPIC", "-shared", *CHECKED)
MACHINE_FLAGS = {"x86_64": ("-mavx2", "-mfma"), "AMD64": ("-mavx2", "-mfma")}
LONGEST_REASON = 300  # characters


def build(source: Path, folder: Path, flags: Sequence[str] = FLAGS, compilers: Sequence[str] = ()) -> str | None:
    """Write library and manifest into `folder`, by the first compiler that can; None, or why there is no library."""
    part, library, manifest = folder / f"{LIBRARY}.part", folder / LIBRARY, folder / MANIFEST
    library.unlink(missing_ok=True)
    why = _compile(source, part, flags, compilers or (os.environ.get("CC", ""), "cc", "gcc", "clang"))
    if why is None:
        content = part.read_bytes()
        facts: dict[str, object] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        part.replace(library)
    else:
        part.unlink(missing_ok=True)
        facts = {"failure": why}
    manifest.write_text(json.dumps(facts) + "\n")
    return why


def _compile(source: Path, library: Path, flags: Sequence[str], compilers: Sequence[str]) -> str | None:
    """None if a compiler made the library, else the first error of each."""
    if os.name != "posix":
        return f"the kernels do not support {platform.system()}"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    all_flags = [*flags, *MACHINE_FLAGS.get(platform.machine(), ()), f'-DDIGEST="{digest}"']
    failures = {}  # by compiler: cc is often an alias of another one
    for words in map(shlex.split, compilers):
        path = words and shutil.which(words[0])
        if not path or (compiler := (os.path.realpath(path), *words[1:])) in failures:
            continue
        command = [*words, *all_flags, str(source), "-o", str(library), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        failures[compiler] = f"{_version(words)} could not compile them: {_first_error(done)}"
    return "; ".join(failures.values())[:LONGEST_REASON] or "no C compiler was found; install GCC 11 or newer, or Clang"


def _version(compiler: list[str]) -> str:
    """A compiler's name and version."""
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    return next(iter(done.stdout.splitlines()), " ".join(compiler))


def _first_error(done: subprocess.CompletedProcess) -> str:
    """The first error of a compilation, without paths of this machine."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if not lines:
        return f"it ended with code {done.returncode}"
    return next((line.partition("error: ")[2] for line in lines if "error: " in line), lines[-1])


if __name__ == "__main__":
    root = Path(__file__).resolve().parent
    failure = build(root / SOURCE, (root / SOURCE).parent)
    sys.exit(failure and f"no compiled kernels; mqcast uses PyTorch instead: {failure}")
