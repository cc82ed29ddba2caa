"""What a nightly job relies on: JSON that is complete, one line a warning, exit codes, and options like settings."""

import contextlib
import datetime as dt
import errno
import io
import json
import re
import sys
import warnings

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from test_cli import run

from mqcast import Forecaster, Panel
from mqcast.cli.app import main
from mqcast.cli.output import print_json

pytestmark = pytest.mark.filterwarnings("always")
WEEKS, HORIZON = 30, 3
FIRST = dt.datetime(2024, 1, 7)


def rows(name: str, weeks: int) -> list[dict]:
    return [{"unique_id": name, "ds": FIRST + dt.timedelta(weeks=i), "y": float(i % 4 + 1)} for i in range(weeks)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A packed panel with a series that ended long ago and one that lags, and a run."""
    folder = tmp_path_factory.mktemp("nightly")
    pl.DataFrame(rows("a", WEEKS) + rows("lags", WEEKS - 2) + rows("over", 8)).write_parquet(folder / "sales.parquet")
    (folder / "run.toml").write_text(f"[window]\nhorizon = {HORIZON}\n")
    assert run("pack", "sales.parquet", "panel", cwd=folder).returncode == 0
    fit = run("fit", "panel", "run", "--model", "seasonal-naive", "--config", "run.toml", "--json", cwd=folder)
    assert fit.returncode == 0, fit.stderr
    assert json.loads(fit.stdout) == {
        "run": "run",
        "model": "seasonal-naive",
        "series": 3,
        "rows": 2 * WEEKS + 6,
        "last_observed": "2024-07-28 00:00:00",
        "warnings": [],
    }
    return folder


def said(done, code: int = 0) -> dict:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_a_forecast_tells_its_counts_its_cutoffs_and_what_it_left_out(place):
    done = run("forecast", "run", "panel", "out.parquet", "--json", cwd=place)
    facts = said(done)
    (warning,) = facts.pop("warnings")
    assert facts == {
        "forecasts": "out.parquet",
        "rows": 2 * HORIZON,
        "series": 2,
        "cutoffs": 1,
        "first_cutoff": "2024-07-28 00:00:00",
        "last_cutoff": "2024-07-28 00:00:00",
        "left_out": {"series": 1, "first": ["over"]},
    }
    assert warning["kind"] == "SeriesLeftOutWarning"
    assert done.stderr == f"warning: {warning['message']}\n"


def test_each_series_is_forecast_from_its_own_end_and_ids_choose_series(place):
    facts = said(run("forecast", "run", "panel", "each.parquet", "--cutoff", "each", "--json", cwd=place))
    assert (facts["cutoffs"], facts["series"], facts["first_cutoff"]) == (3, 3, "2024-02-25 00:00:00")
    facts = said(run("forecast", "run", "panel", "one.csv", "--id", "lags", "--cutoff", "each", "--json", cwd=place))
    assert (facts["rows"], facts["left_out"]["series"]) == (HORIZON, 0)
    assert pl.read_csv(place / "one.csv")["unique_id"].unique().to_list() == ["lags"]
    facts = said(run("forecast", "run", "panel", "at.parquet", "--cutoff", "2024-06-30", "--json", cwd=place))
    assert facts["last_cutoff"] == "2024-06-30 00:00:00"


def test_a_saved_forecaster_of_any_model_forecasts_on_the_command_line(place, tmp_path):
    Forecaster.load(place / "run", Panel.open(place / "panel")).save(tmp_path / "saved")
    for folder in (place / "run", tmp_path / "saved"):
        facts = said(run("forecast", str(folder), "panel", f"{tmp_path}/{folder.name}.csv", "--json", cwd=place))
        assert facts["series"] == 2
    assert (tmp_path / "run.csv").read_text() == (tmp_path / "saved.csv").read_text()
    for asked in (("--paths", "3"), ("--span", "1-2")):
        made = []
        for folder in (place / "run", tmp_path / "saved"):
            done = run("forecast", str(folder), "panel", f"{tmp_path}/joint.csv", *asked, "--json", cwd=place)
            assert said(done)["series"] == 2
            made.append((tmp_path / "joint.csv").read_text())
        assert made[0] == made[1]


def test_an_incomplete_plan_is_counted_and_an_error_for_the_series_that_was_asked_for(tmp_path):
    sales = pl.DataFrame(rows("a", WEEKS) + rows("b", WEEKS)).with_columns(promo=1.0)
    plan = pl.DataFrame(rows("a", WEEKS + HORIZON) + rows("b", WEEKS + HORIZON - 1)).drop("y").with_columns(promo=0.0)
    sales.write_csv(tmp_path / "sales.csv")
    plan.filter(pl.col("ds") > sales["ds"].max()).write_csv(tmp_path / "plan.csv")
    (tmp_path / "run.toml").write_text(f'[schema]\nknown = ["promo"]\n\n[window]\nhorizon = {HORIZON}\n')
    config = ("--config", "run.toml")
    assert run("pack", "sales.csv", "panel", "--future", "plan.csv", *config, cwd=tmp_path).returncode == 0
    fit = run("fit", "panel", "run", "--model", "seasonal-naive", *config, cwd=tmp_path)
    wanted = (
        "warning: promo of the coming 3 steps are not in the data for 1 series; .* mqcast forecast leaves these out"
    )
    assert fit.returncode == 0
    assert re.match(wanted, fit.stderr)
    facts = said(run("forecast", "run", "panel", "out.csv", "--json", cwd=tmp_path))
    assert (facts["rows"], facts["left_out"]) == (HORIZON, {"series": 1, "first": ["b"]})
    assert [one["kind"] for one in facts["warnings"]] == ["IncompletePlanWarning"]
    facts = said(run("forecast", "run", "panel", "out.csv", "--id", "b", "--json", cwd=tmp_path), 2)
    assert facts["error"]["kind"] == "KnownValuesError"


def test_one_cutoff_and_a_span_of_cutoffs_contradict_each_other(place):
    done = run("forecast", "run", "panel", "no.parquet", "--cutoff", "each", "--first", "2024-06-30", cwd=place)
    assert (done.returncode, "leave out --first and --last" in done.stderr) == (2, True)
    assert not (place / "no.parquet").exists()


def test_quantiles_are_an_option_and_a_backtest_takes_its_horizon_from_the_file(place):
    options = ("--model", "seasonal-naive", "--config", "run.toml", "--quantile", 0.2, "--quantile", 0.7)
    facts = said(run("backtest", "panel", "back.parquet", *options, "--json", cwd=place))
    assert facts["rows"] == pl.read_parquet(place / "back.parquet").height
    said(run("fit", "panel", "levels", *options, "--json", cwd=place))
    said(run("forecast", "levels", "panel", "levels.parquet", "--json", cwd=place))
    for name in ("back", "levels"):
        columns = pl.read_parquet(place / f"{name}.parquet").columns
        assert [name for name in columns if name.startswith("q")] == ["q0.2", "q0.7"]


def test_an_error_is_json_with_its_kind_and_the_exit_code_and_a_line_for_the_log(place):
    done = run("forecast", "nowhere", "panel", "no.parquet", "--json", cwd=place)
    told = json.loads(done.stdout)
    assert done.returncode == told["exit_code"] == 2
    assert told["error"]["kind"] == "ArtifactError"
    assert done.stderr == f"error: {told['error']['message']}\n"
    assert run("forecast", "nowhere", "panel", "no.parquet", cwd=place).stdout == ""


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("inspect panel", {"num_series", "fingerprint"}),
        ("doctor", {"version", "kernels"}),
        ("check run --panel panel", {"checks", "passed"}),
        ("page run --panel panel --out p.html", {"page", "rows", "series", "cutoffs", "last_cutoff", "left_out"}),
        ("backtest panel back.parquet --horizon 3 --model seasonal-naive", {"rows", "cutoffs", "left_out"}),
        ("evaluate back.parquet panel", {"metrics", "rows", "series", "without_actual", "left_out"}),
        ("volatility back.parquet panel", {"summary", "process", "rows", "cutoffs"}),
        ("rank-revisions back.parquet panel", {"ranked", "rows", "left_out"}),
        ("report back.parquet panel --out r.html", {"report", "notes", "forecasts"}),
        ("calibrate back.parquet panel --out c.json --judge back.parquet", {"moved", "effect"}),
        ("recalibrate back.parquet c.json again.parquet", {"forecasts", "rows"}),
        ("fit panel more --horizon 3 --explain-settings", {"model", "settings"}),
        ("init sales.parquet --out more.toml", {"config", "schema"}),
    ],
)
def test_every_verb_says_what_it_did_as_one_object_with_its_warnings(place, command, keys):
    told = said(run(*command.split(), "--json", cwd=place))
    assert keys | {"warnings"} <= told.keys()


@pytest.mark.parametrize("options", ["", "--id a", "--span 1-2", "--paths 2"])
def test_a_forecast_named_csv_is_csv(place, options):
    for name in ("out.csv", "out.parquet"):
        told = said(run("forecast", "run", "panel", name, *options.split(), "--json", cwd=place))
        assert told["forecasts"] == name
    table = pl.read_csv(place / "out.csv", try_parse_dates=True)
    assert table.columns == pl.read_parquet(place / "out.parquet").columns
    assert table["cutoff"].dtype == pl.Date
    assert sorted(path.name for path in place.glob(".*")) == []


@pytest.mark.parametrize("words", ["forecast run panel", "backtest panel", "what-if run panel sales.parquet"])
def test_a_file_of_another_kind_is_refused_at_once(place, words):
    done = run(*words.split(), "out.xlsx", "--json", cwd=place)
    assert "name a .parquet or a .csv file" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("words", ["evaluate --nope", "nope", "evaluate only_one"])
def test_a_command_that_does_not_exist_like_this_is_told_as_json_too(place, words):
    done = run(*words.split(), "--json", cwd=place)
    told = json.loads(done.stdout)
    assert (done.returncode, told["exit_code"], told["error"]["kind"]) == (2, 2, "UsageError")


def test_a_bug_is_told_as_json_beside_its_traceback(place, monkeypatch):
    monkeypatch.setattr("mqcast.doctor.report", lambda: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["mqcast", "doctor", "--json"])
    said_of_it = io.StringIO()
    with contextlib.redirect_stdout(said_of_it), pytest.raises(ZeroDivisionError):
        main()
    told = json.loads(said_of_it.getvalue())
    assert told["error"] == {
        "kind": "ZeroDivisionError",
        "message": "mqcast has a mistake here; look for odd values in the data and, if there are none, please report "
        "the traceback",
        "detail": "ZeroDivisionError: division by zero",
    }
    assert told["exit_code"] == 1


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/srv/p"),
            2,
            "'/srv/p' may not be read or written; give",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No such file", "/srv/p"),
            2,
            "there is no file or folder '/srv/p'; check",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "there is no space left for a file; free some, then run"),
        (
            OSError(errno.ELOOP, "Too many levels", "/srv/p"),
            2,
            "the system cannot use '/srv/p' (ELOOP); check",
        ),
        (MemoryError("Unable to allocate 9 TiB"), 2, "there is not enough memory; take fewer series at a time"),
        (ModuleNotFoundError("No module named 'ray'", name="ray"), 2, "the package 'ray' is not installed; install it"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "invalid"), 1, "a file has text that is not UTF-8; save it as UTF-8"),
        (
            pl.exceptions.ComputeError("cannot cast"),
            1,
            "polars cannot do what mqcast asks of it here; look",
        ),
        (pa.ArrowInvalid("offset overflow"), 1, "pyarrow cannot do what mqcast asks of it here; look for odd values"),
        (duckdb.Error("Catalog Error"), 1, "duckdb cannot do what mqcast asks of it here; look for odd values"),
    ],
)
def test_errors_of_others_are_told_in_words_and_their_own_words_kept(error, code, says, monkeypatch, capsys):
    def fail():
        raise error

    monkeypatch.setattr("mqcast.doctor.report", fail)
    monkeypatch.setattr(sys, "argv", ["mqcast", "doctor", "--json"])
    with pytest.raises(SystemExit if code == 2 else type(error)):
        main()
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["error"]["message"].startswith(says)
    assert told["error"]["detail"] == f"{type(error).__name__}: {error}"
    assert (told["exit_code"], told["error"]["kind"]) == (code, type(error).__name__)
    assert said.err == (f"error: {told['error']['message']}\n" if code == 2 else "")


def test_numbers_that_json_does_not_have_are_null(capsys):
    print_json({"rows": pl.DataFrame({"mase": [float("nan"), 1.5]}), "worst": float("inf")})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "rows": [{"mase": None}, {"mase": 1.5}],
        "worst": None,
        "warnings": [],
    }


def test_warnings_of_other_libraries_are_one_line_too_and_told_once(place, monkeypatch):
    from mqcast.models.seasonal_naive import FittedSeasonalNaive

    before = FittedSeasonalNaive.forecast

    def noisy(*arguments):
        for _ in range(2):
            warnings.warn("of a library,\nin two lines", RuntimeWarning, stacklevel=1)
        return before(*arguments)

    monkeypatch.setattr(FittedSeasonalNaive, "forecast", noisy)
    done = run("forecast", "run", "panel", "noisy.parquet", cwd=place)
    lines = done.stderr.splitlines()
    assert lines[0] == "warning: of a library,\\nin two lines"
    assert lines.count(lines[0]) == 1
