"""Writes the SHA-256 of every file of every pinned version into the files of pins, so that pip checks what it installs.

    .venv/bin/python tools/lock.py [--wheels FOLDER]

The pins are what stands there, `name==version`: change, add or delete such lines, delete the hashes below those that
changed, and run this. Hashes come from the index that pip is configured with, for all platforms, and from the wheels in
FOLDER: the builds of torch without CUDA, say. Hashes that are there already are kept.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from packaging.version import InvalidVersion, Version
from pip._internal.models.index import PyPI

ROOT = Path(__file__).resolve().parents[1]
FILES = ("constraints.txt", "constraints-cpu.txt", "constraints-cuda.txt", "tools/audit.txt", "tools/build.txt")
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(;[^\\]*)?")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    name: str
    version: str
    marker: str
    hashes: frozenset[str]

    def lines(self) -> str:
        head = f"{self.name}=={self.version}" + (f" {self.marker}" if self.marker else "")
        return " \\\n".join([head, *(f"    --hash=sha256:{one}" for one in sorted(self.hashes))])


def read(path: Path) -> tuple[list[str], list[Pin]]:
    """The comments at the top of a file of pins, and its pins."""
    text = path.read_text()
    top = [line for line in text.splitlines() if line.startswith("#")]
    pins = []
    for part in re.split(r"\n(?=[A-Za-z0-9])", "\n" + text):
        if found := PIN.match(part):
            name, version, marker = found.groups()
            pins.append(Pin(name, version, (marker or "").strip(), frozenset(HASH.findall(part))))
    return top, pins


def versions(path: Path) -> dict[str, str]:
    return {pin.name: pin.version for pin in read(path)[1]}


class _Links(HTMLParser):
    """File names and addresses of an index's page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if tag == "a" and name == "href" and value]


@cache
def index() -> str:
    """The address of the index that pip asks."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return (os.environ.get("PIP_INDEX_URL") or configured or PyPI.simple_url).rstrip("/")


def version_of(file: str) -> Version | None:
    """Of a wheel or a source distribution, by its name."""
    stem = re.sub(r"\.(tar\.gz|tar\.bz2|zip|whl|egg|exe)$", "", urllib.request.unquote(file))
    try:
        return Version(stem.split("-")[1] if file.endswith(".whl") else stem.rpartition("-")[2])
    except (InvalidVersion, IndexError):
        return None


def with_hashes(pin: Pin, own: dict[str, str]) -> Pin:
    """The pin with the hashes of all its files on the index, and of one's own wheels."""
    page = _Links()
    with urllib.request.urlopen(f"{index()}/{pin.name}/") as answer:
        page.feed(answer.read().decode())
    files = [address.rpartition("/")[2].partition("#sha256=") for address in page.addresses]
    found = {digest for name, _, digest in files if digest and version_of(name) == Version(pin.version)}
    prefix = re.sub(r"[-_.]+", "_", pin.name).lower()
    of_pin = [name for name in own if name.lower().startswith(f"{prefix}-")]
    found |= {own[name] for name in of_pin if version_of(name) == Version(pin.version)}
    if not found | pin.hashes:
        sys.exit(f"{pin.name}=={pin.version}: the index has no such version, or no hashes of it")
    return replace(pin, hashes=pin.hashes | found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the hashes of every pinned version into the files of pins.")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels of one's own")
    folder = parser.parse_args().wheels
    wheels = sorted(folder.glob("*.whl")) if folder else []
    own = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels}
    for path in map(ROOT.joinpath, FILES):
        top, pins = read(path)
        with ThreadPoolExecutor(8) as pool:
            locked = sorted(pool.map(lambda pin: with_hashes(pin, own), pins), key=lambda pin: pin.name)
        path.write_text("\n".join([*top, *(pin.lines() for pin in locked)]) + "\n")
        new = [pin.name for pin, old in zip(locked, sorted(pins, key=lambda x: x.name), strict=True) if pin != old]
        print(f"{path.name}: {len(locked)} versions; new hashes of {', '.join(new) or 'none'}")


if __name__ == "__main__":
    main()
