"""Every Python block in README and docs runs, in order, in an empty folder."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = [page for page in TEXTS if "```python" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_on_the_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


def test_links_between_pages_lead_somewhere():
    for page in (ROOT / "CONTRIBUTING.md", *TEXTS):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_records_that_pages_name_are_there():
    for page in TEXTS:
        for name in re.findall(r"`(lab/results/[^`\s]+\.json)`", page.read_text()):
            assert list(ROOT.glob(name)), f"{page.name} names {name}"
