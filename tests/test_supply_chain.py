"""What is installed is pinned and has hashes, and the pages about it name all of it."""

import importlib.metadata as metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import licences  # noqa: E402
import lock  # noqa: E402
import sbom  # noqa: E402

EVERY = {name: version for file in licences.PINS for name, version in lock.versions(ROOT / file).items()}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("file", lock.FILES)
def test_every_pin_has_hashes_and_nothing_else_is_in_the_file(file):
    top, pins = lock.read(ROOT / file)
    assert pins
    assert all(pin.hashes for pin in pins)
    assert (ROOT / file).read_text() == "\n".join([*top, *(pin.lines() for pin in pins)]) + "\n"
    assert [pin.name for pin in pins] == sorted(normal(pin.name) for pin in pins)


def test_every_dependency_that_is_declared_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    extras = project["project"]["optional-dependencies"]
    declared += [one for extra, wanted in extras.items() for one in wanted if extra != "fuzz"]  # not installed by make
    for wanted in map(Requirement, declared):
        assert wanted.specifier.contains(EVERY[normal(wanted.name)]), wanted


def test_whatever_a_pinned_package_needs_is_pinned_too():
    """They are installed without their dependencies: one that is not in the list would be missing."""
    missing = set()
    for name in lock.versions(ROOT / "constraints.txt"):
        try:
            needed = map(Requirement, metadata.requires(name) or ())
        except metadata.PackageNotFoundError:
            continue
        missing |= {
            normal(x.name) for x in needed if x.marker is None or x.marker.evaluate({"extra": ""})
        } - EVERY.keys()
    assert not missing


def test_wheels_are_built_with_the_pinned_versions():
    assert lock.versions(ROOT / "tools" / "build.txt").items() <= EVERY.items()


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_commit_and_says_its_version(workflow):
    actions = re.findall(r"uses: (.*)", workflow.read_text())
    assert actions
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in actions)


def test_a_torch_without_cuda_is_the_same_version():
    (cpu,) = lock.versions(ROOT / "constraints-cpu.txt").items()
    assert cpu == ("torch", EVERY["torch"] + "+cpu")


def test_the_page_of_licences_names_every_dependency():
    rows = licences.rows((ROOT / "docs" / "licences.md").read_text())
    rows.pop("Package", None), rows.pop("---", None)
    assert {name: version for name, (version, _) in rows.items()} == EVERY
    assert all(of.strip() for _, of in rows.values())


def test_the_bill_of_materials_names_every_dependency_and_what_needs_it():
    bill = json.loads(json.dumps(sbom.bill()))
    assert bill["bomFormat"] == "CycloneDX"
    assert {(x["name"], x["version"]) for x in bill["components"]} == set(EVERY.items())
    assert all(x["hashes"] for x in bill["components"])
    needs = {x["ref"]: x["dependsOn"] for x in bill["dependencies"]}
    references = {x["bom-ref"] for x in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert needs.keys() == references
    assert f"pkg:pypi/torch@{EVERY['torch']}" in needs[bill["metadata"]["component"]["bom-ref"]]


def test_pip_refuses_a_file_of_another_hash(tmp_path):
    """The Makefile's way to install, with one digit of a hash changed."""
    wheel = tmp_path / "harmless-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not what was pinned")
    (tmp_path / "pins.txt").write_text(f"harmless==1.0 --hash=sha256:{'0' * 64}\n")
    way = re.search(r"^LOCKED := \$\(BIN\)/python (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert way is not None
    command = [sys.executable, *way[1].split(), "--no-index", "--find-links", str(tmp_path), "--dry-run"]
    done = subprocess.run([*command, "-r", str(tmp_path / "pins.txt")], capture_output=True, text=True)
    assert done.returncode
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_versions_in_file_names_are_read():
    assert str(lock.version_of("torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl")) == "2.13.0+cpu"
    assert str(lock.version_of("python-dateutil-2.9.0.post0.tar.gz")) == "2.9.0.post0"
    assert lock.version_of("no version here") is None
