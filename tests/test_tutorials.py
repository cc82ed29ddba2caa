"""The tutorials run, print what stands on their pages, and are the same as notebooks."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import tutorials

PAGES = pytest.mark.parametrize("path", tutorials.pages(), ids=lambda path: path.stem)
AGAIN = "write the pages anew: .venv/bin/python tools/tutorials.py"


@PAGES
def test_a_tutorial_prints_what_stands_on_its_page_but_for_the_digits(path):
    page = path.read_text(encoding="utf-8")
    printed, stands = tutorials.run(page), tutorials.shown(page)
    assert any(stands)
    assert list(map(tutorials.alike, printed)) == list(map(tutorials.alike, stands)), AGAIN


@PAGES
def test_a_notebook_is_that_of_its_page(path):
    made = path.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert made == tutorials.notebook(path.read_text(encoding="utf-8")), AGAIN
    cells = json.loads(made)["cells"]
    assert "".join(cells[0]["source"]).startswith("# ")
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_outputs_that_differ_in_words_or_columns_are_not_alike():
    assert tutorials.alike("│ 0.5 ┆ over-reaction │") == tutorials.alike("│ -0.49   ┆ over-reaction │")
    assert tutorials.alike("over-reaction") != tutorials.alike("under-reaction")
    assert tutorials.alike("1 ┆ 2") != tutorials.alike("1")
