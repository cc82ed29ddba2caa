"""Pictures in the docs are those that their scripts draw from the modules and records as they are."""

import importlib.util
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DOCS, PICTURES = ROOT / "docs", ROOT / "lab" / "pictures"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PICTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(drawn: str, picture: str, by: str) -> None:
    assert ElementTree.fromstring(drawn).get("role") == "img"
    assert drawn.encode() == (DOCS / picture).read_bytes(), f"draw it again: python -m lab pictures {by}"


def test_drawn_anew_the_network_is_byte_for_byte_the_picture_in_the_docs():
    check(script("network").draw(), "network.svg", "network")


@pytest.mark.parametrize("name", ["evidence-leaderboard", "evidence-trade-off"])
def test_drawn_anew_the_evidence_is_byte_for_byte_the_picture_in_the_docs(name):
    check(script("evidence").PICTURES[name](), f"{name}.svg", "evidence")


def test_the_tables_of_the_evidence_are_those_of_the_records():
    tables = script("evidence_tables")
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.with_tables(page) == page, "write them again: python -m lab pictures evidence_tables"
