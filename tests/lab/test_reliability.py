"""The page on reliability says what the campaigns' records say, and leaves no campaign out."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CAMPAIGNS, RECORDS = ROOT / "lab" / "campaigns", ROOT / "lab" / "results" / "campaigns"


def _module():
    spec = importlib.util.spec_from_file_location("campaign_table", CAMPAIGNS / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


TABLE = _module()


def test_the_table_is_what_the_records_say():
    page = TABLE.PAGE.read_text()
    assert TABLE.filled(page, TABLE.table()) == page, "run lab/campaigns/table.py"


def test_every_campaign_has_a_row_and_every_row_one_campaign():
    scripts = {path.stem for path in CAMPAIGNS.glob("*.py")} - TABLE.NOT_CAMPAIGNS
    campaigns = {name for name in scripts if "Campaign(" in (CAMPAIGNS / f"{name}.py").read_text()}
    named = [row.script for row in TABLE.ROWS]
    assert campaigns <= set(named)
    assert len(named) == len(set(named))


def test_records_are_of_campaigns_and_were_made_from_a_commit():
    for path in RECORDS.glob("*.json"):
        record = json.loads(path.read_text())
        assert path.stem in {row.script for row in TABLE.ROWS}, path.name
        assert record["uncommitted_changes"] is False, f"{path.name} was made from a changed working copy"
        assert record["failed"] == sum(kind["failed"] for kind in record["by_kind"].values())
        assert record["tried"] == sum(kind["tried"] for kind in record["by_kind"].values())


@pytest.mark.parametrize(
    ("record", "cells"),
    [
        (None, "| not run | - |"),
        ({"tried": 10, "failed": 0}, "| 10 | 0 |"),
        ({"tried": 7, "failed": 0}, "| 7 of 10 | 0 |"),
        ({"tried": 1_000, "failed": 12}, "| 1,000 | **12** |"),
    ],
)
def test_a_row_shows_trials_failures_and_campaigns_without_a_record(tmp_path, record, cells):
    if record is not None:
        (tmp_path / "one.json").write_text(json.dumps(record))
    table = TABLE.table(tmp_path, (TABLE.Row("one", 10, "It holds", "by trying"),))
    assert table.splitlines()[2] == f"| It holds | by trying | `lab/campaigns/one.py` {cells}"


def test_a_page_without_the_marks_is_not_overwritten():
    with pytest.raises(SystemExit, match="put them back"):
        TABLE.filled("# Reliability", "| a |")


def test_campaigns_that_the_page_tells_how_to_run_are_there():
    names = re.findall(r"python -m lab campaign (\w+)", TABLE.PAGE.read_text())
    assert names
    for name in names:
        assert (CAMPAIGNS / f"{name}.py").exists(), name
