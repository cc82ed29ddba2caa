"""What this installation is and what it lacks, as a dictionary: versions, devices, compiled kernels, extras."""

import os
import platform
import re
from importlib import metadata
from typing import Any

from mqcast.launch import num_cores
from mqcast.version import __version__

FOR_DEVELOPERS = {"dev", "docs", "fuzz"}  # extras that no user needs


def report() -> dict[str, Any]:
    """Facts about this installation; `missing` lists what could be added, and how."""
    import torch

    from mqcast.nn import kernels

    extras, status = _extras(), kernels.status()
    missing = [] if status == kernels.COMPILED else [f"compiled kernels ({status})"]
    missing += [f"extra {name}: {what}" for name, what in extras.items() if what.startswith("pip ")]
    return {
        "version": __version__,
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": status,
        "devices": _devices(),
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "extras": extras,
        "missing": missing,
    }


def _devices() -> list[str]:
    """The devices that torch can use here, accelerators first."""
    import torch

    devices = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return [*devices, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def _extras() -> dict[str, str]:
    """By extra: the versions of its packages, or how to install it."""
    packages: dict[str, list[str]] = {}
    for requirement in _requirements():
        if match := re.match(r"""([\w.-]+).*extra\s*==\s*["']([\w-]+)["']""", requirement):
            packages.setdefault(match[2], []).append(match[1])
    return {name: _installed(name, packages[name]) for name in packages if name not in FOR_DEVELOPERS}


def _installed(extra: str, packages: list[str]) -> str:
    versions = [_version(package) for package in packages]
    if None in versions:
        return f"pip install 'mqcast[{extra}]'"
    return ", ".join(f"{package} {version}" for package, version in zip(packages, versions, strict=True))


def _requirements() -> list[str]:
    try:
        return metadata.requires("mqcast") or []
    except metadata.PackageNotFoundError:  # run from its source, not installed
        return []


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
