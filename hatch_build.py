"""Compiles the kernels when mqcast is installed; where that fails, mqcast is installed without them and says why."""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_kernels import LIBRARY, MANIFEST, SOURCE, build


class Kernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        source = Path(self.root) / SOURCE
        build_data["artifacts"].append(str(SOURCE.with_name(MANIFEST)))
        if why := build(source, source.parent):
            self.app.display_warning(f"mqcast is installed without compiled kernels and uses PyTorch instead: {why}")
            return
        build_data["artifacts"].append(str(SOURCE.with_name(LIBRARY)))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
