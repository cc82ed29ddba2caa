"""The command line: each verb works, each mistake is one clear line and a non-zero exit, nothing is half-written."""

import contextlib
import io
import json
import re
import subprocess
import sys
import traceback
from types import SimpleNamespace
from unittest import mock

import polars as pl
import pytest

import mqcast
from mqcast import Panel, Schema
from mqcast.cli import main


def run(*arguments, cwd: str = ".") -> SimpleNamespace:
    """The command in this process: a fresh one takes seconds to import what it needs."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(mock.patch.object(sys, "argv", ["mqcast", *map(str, arguments)]))
        try:
            main()
        except SystemExit as leave:
            code = leave.code or 0
        except mqcast.MqcastError:  # with --debug
            traceback.print_exc()
            code = 1
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def test_the_module_and_the_script_are_the_same_command(tmp_path):
    for command in ([sys.executable, "-m", "mqcast"], [f"{sys.exec_prefix}/bin/mqcast"]):
        done = subprocess.run([*command, "inspect", "nowhere"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: there is no panel at nowhere")


@pytest.fixture
def file(sales, tmp_path):
    sales.write_parquet(tmp_path / "sales.parquet")
    return tmp_path / "sales.parquet"


def test_the_version_is_printed():
    assert run("version").stdout.strip() == run("--version").stdout.strip() == mqcast.__version__


def test_every_verb_explains_itself_with_an_example():
    for verb in ("demo", "pack", "inspect"):
        assert f"mqcast {verb}" in run(verb, "--help").stdout


def test_pack_and_inspect(file, sales, tmp_path):
    packed = run("pack", file, tmp_path / "panel", "--known", "promo", "--known", "price", "--json")
    assert packed.returncode == 0, packed.stderr
    printed = json.loads(packed.stdout)
    assert printed["num_series"] == 2
    panel = Panel.from_frame(sales, Schema(known=("promo", "price")))
    assert printed["fingerprint"] == panel.fingerprint
    inspected = run("inspect", tmp_path / "panel")
    assert panel.fingerprint in inspected.stdout
    assert "2024-01-07 to 2024-02-25, W-SUN" in inspected.stdout


def test_a_schema_can_come_from_toml(file, tmp_path):
    config = tmp_path / "mqcast.toml"
    config.write_text('[schema]\nfreq = "W"\nknown = ["promo", "price"]\nholidays = ["US"]\n')
    packed = run("pack", file, tmp_path / "panel", "--config", config, "--json")
    assert packed.returncode == 0, packed.stderr
    assert Panel.open(tmp_path / "panel").holidays[0][0] == "US"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pack", "none.parquet", "panel"], "no Parquet or CSV file at none.parquet"),
        (["pack", "FILE", "panel", "--known", "prmo"], "did you mean 'promo'"),
        (["pack", "FILE", "panel", "--freq", "fortnight"], "frequency 'fortnight' is not known"),
        (["pack", "FILE", "panel", "--freq", "D", "--time", "price"], "time column 'price' holds numbers"),
        (["pack", "FILE", "panel", "--static", "price"], "changes in time"),
        (["pack", "FILE", "panel", "--time-grid", "columns"], "Schema.time_grid"),
        (["pack", "FILE", "panel", "--config", "none.toml"], "no settings file at none.toml"),
        (["pack", "FILE", "panel", "--holidays", "Atlantis"], "no holidays for 'Atlantis'"),
        (["pack", "FILE", "panel", "--event", "promo", "--known", "promo"], "both known and events"),
        (["pack", "FILE", "FILE"], "is a file"),
        (["inspect", "nowhere"], "no panel at nowhere"),
        (["pack", "FILE"], "Missing argument"),
        (["demo", "--items", "1"], "--items"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(file, tmp_path, arguments, says):
    before = sorted(tmp_path.rglob("*"))
    done = run(*[file if word == "FILE" else word for word in arguments], cwd=tmp_path)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in run("--debug", "inspect", "nowhere", cwd=tmp_path).stderr


def test_the_demo_trains_judges_and_writes_pages_that_need_no_network(tmp_path):
    given = ("demo", "--items", 12, "--steps", 3, "--folder", tmp_path / "demo")
    done = run(*given, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    Panel.open(tmp_path / "demo" / "panel").verify()
    rows = {row["forecaster"]: row for row in printed["table"]}
    assert list(rows) == ["best possible", "MQTransformer", "MQ-CNN", "same week last year"]
    assert rows["best possible"]["regret P50"] == 0
    assert all(row["V P50 lo"] <= row["V P50"] <= row["V P50 hi"] for row in rows.values())
    report, coming = ((tmp_path / "demo" / name).read_text() for name in ("report.html", "page.html"))
    assert "MQTransformer" in report
    assert "The coming 13 weeks" in coming
    for page in (report, coming):
        assert not re.findall(r"""<(?:script|link|img)[^>]+(?:src|href)=["']?http""", page)
    assert "Excess volatility" in run(*given).stdout  # what is trained already is not trained again


def test_hostile_text_is_shown_as_text(tmp_path):
    frame = pl.DataFrame({"unique_id": ["[red]x[/]"] * 2, "y": [1.0, 2.0]}).with_columns(ds=pl.datetime(2024, 1, 1))
    frame.write_parquet(tmp_path / "odd.parquet")
    done = run("pack", "odd.parquet", "panel", "--freq", "D", cwd=tmp_path)
    assert "series '[red]x[/]'" in done.stderr


def test_bench_says_how_fast_the_machine_is():
    found = json.loads(run("bench", "--items", 4, "--horizon", 3, "--steps", 7, "--model", "mqcnn", "--json").stdout)
    assert found["model"] == "mqcnn"
    assert found["trajectories_per_second"] > 0
    assert found["forecasts_per_second"] > 0
