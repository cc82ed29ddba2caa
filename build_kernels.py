"""Compiles src/mqcast/nn/kernels.c where there is a C compiler, and writes down what came of it.

`hatch_build.py` does so as mqcast is installed; in a clone, `python build_kernels.py` does it alone. Beside the library
stands libkernels.json: its size and SHA-256, without which it is not taken, or why there is none.
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
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")  # of every address and every sum
SANITIZED = ("-O1", "-g", "-std=gnu11", "-fPIC", "-shared", *CHECKED)
OF_MACHINE = {"x86_64": ("-mavx2", "-mfma"), "AMD64": ("-mavx2", "-mfma")}
LONGEST_REASON = 300  # characters


def build(source: Path, folder: Path, flags: Sequence[str] = FLAGS, compilers: Sequence[str] = ()) -> str | None:
    """Library and manifest into `folder`, by the first compiler that can; None, or why there is no library."""
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
    """None once a compiler has made the library, else what each of them said."""
    if os.name != "posix":
        return f"the kernels are not made for {platform.system()}"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    every = [*flags, *OF_MACHINE.get(platform.machine(), ()), f'-DDIGEST="{digest}"']
    failures = {}  # by compiler: cc is often another name of one of the others
    for words in map(shlex.split, compilers):
        found = words and shutil.which(words[0])
        if not found or (compiler := (os.path.realpath(found), *words[1:])) in failures:
            continue
        command = [*words, *every, str(source), "-o", str(library), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        failures[compiler] = f"{_version(words)} could not compile them: {_first_error(done)}"
    return "; ".join(failures.values())[:LONGEST_REASON] or "no C compiler was found"


def _version(compiler: list[str]) -> str:
    """What a compiler calls itself."""
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    return next(iter(done.stdout.splitlines()), " ".join(compiler))


def _first_error(done: subprocess.CompletedProcess) -> str:
    """The first error of a compilation, without the folders of this machine."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if not lines:
        return f"it ended with code {done.returncode}"
    return next((line.partition("error: ")[2] for line in lines if "error: " in line), lines[-1])


if __name__ == "__main__":
    root = Path(__file__).resolve().parent
    found = build(root / SOURCE, (root / SOURCE).parent)
    sys.exit(found and f"mqcast has no kernels and decodes by PyTorch: {found}")
