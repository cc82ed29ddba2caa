"""Writes a bill of materials, CycloneDX 1.5 in JSON: mqcast and every pinned package, with licence and needs.

.venv/bin/python tools/sbom.py dist/sbom.json
"""

import importlib.metadata as metadata
import json
import re
import sys
from pathlib import Path

from licences import PINS, licence
from lock import ROOT, Pin, read
from packaging.requirements import Requirement


def reference(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def component(pin: Pin) -> dict:
    """A package: its version, its licence where it is installed, and the hashes of its files on every platform."""
    of = licence(pin.name)
    return {
        "type": "library",
        "bom-ref": reference(pin.name, pin.version),
        "name": pin.name,
        "version": pin.version,
        "purl": reference(pin.name, pin.version),
        **({"licenses": [{"license": {"name": of}}]} if of else {}),
        "hashes": [{"alg": "SHA-256", "content": one} for one in sorted(pin.hashes)],
    }


def needed(name: str, pins: dict[str, str]) -> list[str]:
    """The references of what a package needs here, of the pinned ones."""
    try:
        wanted = map(Requirement, metadata.requires(name) or ())
    except metadata.PackageNotFoundError:
        return []
    names = {re.sub(r"[-_.]+", "-", x.name).lower() for x in wanted if x.marker is None or x.marker.evaluate()}
    return [reference(one, pins[one]) for one in sorted(names & pins.keys())]


def bill() -> dict:
    every = [pin for file in PINS for pin in read(ROOT / file)[1]]
    pins, version = {pin.name: pin.version for pin in every}, metadata.version("mqcast")
    itself = {"type": "library", "bom-ref": reference("mqcast", version), "name": "mqcast", "version": version}
    graph = {itself["bom-ref"]: needed("mqcast", pins)}
    graph |= {reference(pin.name, pin.version): needed(pin.name, pins) for pin in every}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**itself, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": [component(pin) for pin in every],
        "dependencies": [{"ref": one, "dependsOn": others} for one, others in graph.items()],
    }


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill(), indent=1) + "\n")
