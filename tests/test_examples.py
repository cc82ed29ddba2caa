"""Every public name says what it is, with an example that runs, and stands on a page of the API."""

import doctest
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_ON_A_PAGE = {"ActualsTable", "ForecastTable", "Names"}  # what functions pass to each other
MODULES = ("mqcast", "mqcast.calibration", "mqcast.checks", "mqcast.joint", "mqcast.models", "mqcast.simulate")


def public(module: str) -> dict[str, object]:
    """The names that users are told of; a check of the battery is a `Check`, and a constant has no docstring."""
    found = import_module(module)
    names = getattr(found, "__all__", ("Calibrator", "calibrate"))
    all_of = {f"{module}.{name}": getattr(found, name) for name in names}
    return {name: thing for name, thing in all_of.items() if inspect.isclass(thing) or inspect.isfunction(thing)}


NAMES = {name: thing for module in MODULES for name, thing in public(module).items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = NAMES[name]
    parsed = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {"__name__": "example"}, name, None, 0)
    assert parsed.examples, f"{name} has no example in its docstring; add one after >>>"
    written: list[str] = []
    doctest.DocTestRunner().run(parsed, out=written.append)
    assert written == []


@pytest.mark.parametrize("module", [*MODULES, "mqcast.evaluation"])
def test_every_public_name_stands_on_a_page_of_the_api(module):
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    listed = set(re.findall(r"^::: mqcast\.(?:\w+\.)*(\w+)$", pages, flags=re.MULTILINE))
    assert {name.rpartition(".")[2] for name in public(module)} - listed - NOT_ON_A_PAGE == set()


def test_docstrings_become_markdown():
    pytest.importorskip("griffe")
    sys.path.insert(0, str(ROOT / "tools"))
    from docstrings import markdown

    text = "What it is.\n\nseed, max_steps   for training,\n    on one core\nfolder   where\n\n>>> 1 + 1\n2\n\nThe end."
    assert markdown(text) == (
        "What it is.\n\n\n- `seed`, `max_steps`: for training,\n    on one core\n- `folder`: where\n"
        "\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThe end."
    )
