"""Pictures in the docs are those that their scripts draw from the modules and records as they are."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

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


def test_the_table_of_the_readme_is_that_of_the_record():
    """A row has one or several tasks; favorita_stores_1D, _1W stands for two."""
    record = json.loads((ROOT / "lab" / "results" / "battery" / "table-validation.json").read_text(encoding="utf-8"))
    ratio = {(line["task"], line["model"]): line["÷ naive"] for line in record["tasks"]}
    tasks = list(dict.fromkeys(line["task"] for line in record["tasks"]))
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("| scaled quantile loss")[2]
    seen = []
    for row in section.splitlines()[2 : section.splitlines().index("")]:
        title, *cells = row.strip("| ").split(" | ")
        shown = [re.findall(r"(\**)(\d\.\d{3})", cell) for cell in cells]
        named = re.findall(r"`([^`]+)`", title)
        named = [name if not name.startswith("_") else named[0].rpartition("_")[0] + name for name in named] or tasks
        for model, numbers in zip(("mqt", "lightgbm"), shown, strict=True):
            values = [ratio[task, model] for task in named]
            values = [float(np.exp(np.log(values).mean()))] if named == tasks else values
            assert [number for _, number in numbers] == [f"{value:.3f}" for value in values]
        for (ours, mine), (theirs, other) in zip(*shown, strict=True):
            assert (bool(ours), bool(theirs)) == (mine < other, other < mine)
        seen += named if named != tasks else []
    assert sorted(seen) == sorted(tasks)
    lower = sum(ratio[task, "lightgbm"] < ratio[task, "mqt"] for task in tasks)
    words = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"lower loss on {lower} of {len(tasks)} tasks" in words
