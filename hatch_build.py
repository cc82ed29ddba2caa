"""Compiles the decoder's kernels where there is a C compiler; without one, mqcast is installed without them."""

import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/mqcast/model/kernels.c")
LIBRARY = SOURCE.with_name("libkernels.so")
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-fPIC", "-shared"]
OF_MACHINE = {"x86_64": ["-mavx2", "-mfma"], "AMD64": ["-mavx2", "-mfma"]}


class Kernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        source, library = Path(self.root) / SOURCE, Path(self.root) / LIBRARY
        library.unlink(missing_ok=True)
        compiler = next(filter(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang")), None)
        if compiler is None or os.name != "posix":
            self.app.display_warning("no C compiler: mqcast is installed without its kernels, and decodes by PyTorch")
            return
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        flags = [*FLAGS, *OF_MACHINE.get(platform.machine(), []), f'-DDIGEST="{digest}"']
        command = [compiler, *flags, str(source), "-o", str(library), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.app.display_warning(f"mqcast is installed without its kernels: {compiler} failed\n{done.stderr}")
            return
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
