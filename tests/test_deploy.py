"""The files in deploy/ and the Dockerfile: the nightly script runs, and what the others name is there."""

import datetime as dt
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SETTINGS = '[schema]\nfreq = "W"\n[window]\nhorizon = 2\n[model]\nmodel = "{}"\n'


def night(place: Path, *plan: str) -> int:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["sh", str(DEPLOY / "nightly.sh"), "sales.csv", *plan]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False).returncode


@pytest.mark.slow
def test_two_nights_train_once_and_a_mistake_keeps_the_last_forecast(tmp_path):
    first = dt.date(2024, 1, 7)
    rows = [
        {"unique_id": name, "ds": first + dt.timedelta(weeks=i), "y": i % 4 + 1} for name in "ab" for i in range(20)
    ]
    pl.DataFrame(rows).write_csv(tmp_path / "sales.csv")
    (tmp_path / "mqcast.toml").write_text(SETTINGS.format("seasonal-naive"))
    assert night(tmp_path) == 0
    (folder,) = (tmp_path / "nights").iterdir()
    assert json.loads((folder / "forecast.json").read_text())["series"] == 2
    (folder / "fit.json").unlink()
    assert night(tmp_path) == 0
    assert not (folder / "fit.json").exists()
    before = (tmp_path / "forecast.parquet").read_bytes()
    (tmp_path / "runs" / "current").unlink()
    (tmp_path / "mqcast.toml").write_text(SETTINGS.format("no such model"))
    assert night(tmp_path) == 2
    assert json.loads((folder / "fit.json").read_text())["exit_code"] == 2
    assert (tmp_path / "forecast.parquet").read_bytes() == before


@pytest.mark.slow
def test_a_plan_may_be_in_a_second_file(tmp_path):
    days = [dt.date(2024, 1, 7) + dt.timedelta(weeks=i) for i in range(22)]
    rows = pl.DataFrame({"unique_id": "a", "ds": days, "y": range(22), "promo": [0, 1] * 11})
    rows.head(20).write_csv(tmp_path / "sales.csv")
    rows.tail(2).drop("y").write_csv(tmp_path / "my plan.csv")
    settings = SETTINGS.replace("[schema]\n", '[schema]\nknown = ["promo"]\n')
    (tmp_path / "mqcast.toml").write_text(settings.format("seasonal-naive"))
    assert night(tmp_path) == 2
    assert night(tmp_path, "my plan.csv") == 0
    assert pl.read_parquet(tmp_path / "forecast.parquet").height == 2


def test_the_image_installs_pins_that_are_there_and_runs_as_no_root():
    text = (ROOT / "Dockerfile").read_text()
    pins = re.findall(r"-r (\S+\.txt)", text)
    assert sorted(pins) == ["constraints-cpu.txt", "constraints-cuda.txt", "constraints.txt"]
    assert all((ROOT / name).is_file() for name in pins)
    assert text.rindex("USER mqcast") > text.rindex("RUN ")
    assert not re.search(r"https?://", text), "pip takes the index that it is configured with"


def test_the_service_starts_the_script_and_the_timer_has_its_name():
    service = (DEPLOY / "mqcast-nightly.service").read_text()
    assert re.search(r"^ExecStart=\S*/deploy/nightly\.sh ", service, flags=re.MULTILINE)
    assert os.access(DEPLOY / "nightly.sh", os.X_OK)
    assert "OnCalendar=" in (DEPLOY / "mqcast-nightly.timer").read_text()
