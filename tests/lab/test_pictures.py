"""Pictures in the docs are those that their scripts draw from the modules and records as they are."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from lab.battery.tasks import TASKS
from mqcast import Forecaster
from mqcast.simulate import lognormal_world

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


@pytest.mark.parametrize("name", ["evidence-trade-off"])
def test_drawn_anew_the_evidence_is_byte_for_byte_the_picture_in_the_docs(name):
    check(script("evidence").PICTURES[name](), f"{name}.svg", "evidence")


def test_the_tables_of_the_evidence_are_those_of_the_records():
    tables = script("evidence_tables")
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.with_tables(page) == page, "write them again: python -m lab pictures evidence_tables"


@pytest.mark.parametrize("path", [*DOCS.glob("*.png")], ids=lambda path: path.name)
def test_a_picture_is_small(path):
    assert path.stat().st_size <= 200_000


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium here; `make browser` installs it")
def test_the_picture_of_the_coming_weeks_can_be_taken_of_any_page(tmp_path):
    world = lognormal_world(8, 60, 4)
    forecaster = Forecaster("seasonal-naive", 4, (0.1, 0.5, 0.9), world.schema)
    page = forecaster.fit(world.frame, world.static, world.events).page(tmp_path / "page.html")
    picture = script("coming").main(page, tmp_path / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20], "big") == script("coming").WIDTH
    assert 600 < int.from_bytes(picture[20:24], "big") < 2000  # the parts that are left out are not on it


def record_of(task: str, label: str) -> dict[str, Any]:
    return json.loads((ROOT / "lab" / "results" / "battery" / task / f"{label}-0.json").read_text(encoding="utf-8"))


def test_the_table_of_the_readme_is_that_of_the_records():
    """Columns: auto, two of its members, and the best published score, relative to seasonal naive."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("| scaled quantile loss")[2]
    found: dict[str, np.ndarray] = {}
    for row in section.splitlines()[2 : section.splitlines().index("")]:
        title, *cells = row.strip("| ").split(" | ")
        if task := re.search(r"`(\w+)`", title):
            record = record_of(task[1], "auto")
            members, best = record["details"]["members"], record["details"]["published"]
            losses = [record["metrics"]["SQL"], *(members.get(name, {}).get("SQL") for name in ("mqt", "lightgbm"))]
            naive = record_of(task[1], "seasonal-naive")["metrics"]["SQL"]
            found[task[1]] = np.array([*losses, best["SQL"]], float) / naive
            assert cells[-1].endswith(f"({best['model']})")
        values = found[task[1]] if task else np.exp(np.log(list(found.values())).mean(axis=0))
        expected = ["" if np.isnan(value) else f"{value:.3f}" for value in values]
        assert [cell.strip("* ").partition(" ")[0].rstrip("*") for cell in cells] == expected
        assert [cell.startswith("**") for cell in cells] == [value == np.nanmin(values) for value in values]
    assert sorted(found) == sorted(name for name, task in TASKS.items() if task.is_fev)
    skill = 1 - np.exp(np.log(list(found.values())).mean(axis=0))[0]
    assert f"{skill:.1%} below seasonal naive's".replace("%", " %") in (ROOT / "README.md").read_text(encoding="utf-8")
