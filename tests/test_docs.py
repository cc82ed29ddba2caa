"""Every Python block in README and docs runs, in order, in an empty folder (those of the tutorials: test_tutorials)."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from mqcast.cli import app
from mqcast.models import registry

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "lab" / "results"
TEXTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PAGES = [page for page in TEXTS if "```python" in page.read_text() and page.parent.name != "tutorials"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_on_the_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_OUTSIDE", dict(registry._OUTSIDE))  # pages register models
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


def test_links_between_pages_lead_somewhere():
    for page in (ROOT / "CONTRIBUTING.md", *TEXTS):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_menu_once_and_every_entry_is_a_page():
    menu = re.findall(r": ([\w/]+\.md)$|- ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in TEXTS[1:]]
    assert sorted(map("".join, menu)) == sorted(pages)


def test_every_command_is_in_the_table_of_commands():
    named = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "commands.md").read_text(), flags=re.MULTILINE)
    shown = [name for name, command in get_command(app).commands.items() if not command.hidden]
    assert sorted(named) == sorted(shown)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_records_that_a_page_names_are_there(page):
    for name in re.findall(r"`(lab/results/[^`\s]+\.json)`", page.read_text()):
        assert list(ROOT.glob(name)), f"{page.name} names {name}"


def test_every_record_is_in_the_table_of_records_and_every_row_has_records():
    """A row names files of lab/results with * for any part of a name."""
    rows = re.findall(r"^\| `([^`]+\.json)` \|", (RESULTS / "README.md").read_text(), flags=re.MULTILINE)
    files = {row: set(RESULTS.glob(row)) for row in rows}
    assert rows
    assert [row for row, paths in files.items() if not paths] == []
    assert set(RESULTS.rglob("*.json")) == set().union(*files.values())
