"""Ten bad ways to call each verb: a clear line, an exit code that is not 0, and nothing half-written."""

import shutil
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from mqcast.cli import app
from mqcast.errors import MqcastError
from mqcast.simulate import lognormal_world

SMALL = ("--set", "model.hidden_dim=6", "--set", "train.max_steps=2", "--set", "window.num_fcts=12", "--processes", "1")
JUDGED = [
    "none.parquet actuals.parquet",
    "rev.parquet none.parquet",
    "text.parquet actuals.parquet",
    "empty.parquet actuals.parquet",
    "rev.parquet empty.parquet",
    "actuals.parquet actuals.parquet",
    "rev.parquet actuals.parquet --id shop",
    "rev.parquet actuals.parquet --time week",
    "rev.parquet actuals.parquet --target revenue",
    "rev.parquet text.parquet",
]
READ_RUN = [
    "none panel OUT",
    "run none OUT",
    "run actuals.parquet OUT",
    "run other_panel OUT",
    "damaged panel OUT",
    "untrained panel OUT",
    "text.parquet panel OUT",
    "run panel",
    "run panel OUT --device abacus",
    "run panel OUT --processes 0",
]
MISTAKES = {
    "init": [
        "none.parquet --out OUT",
        "text.parquet --out OUT",
        "empty.parquet --out OUT",
        "sales.parquet --out mqcast.toml",
        "sales.parquet --out OUT --horizon 0",
        "sales.parquet --out OUT --id shop",
        "sales.parquet --out OUT --time week",
        "sales.parquet --out OUT --target revenue",
        "sales.parquet --out OUT --target brand",
        "panel --out OUT",
        "",
    ],
    "pack": [
        "none.parquet OUT",
        "text.parquet OUT",
        "empty.parquet OUT",
        "sales.parquet panel/panel.json",
        "sales.parquet OUT --id shop",
        "sales.parquet OUT --target brand",
        "sales.parquet OUT --known price",
        "sales.parquet OUT --freq fortnight",
        "sales.parquet OUT --holidays Atlantis",
        "sales.parquet OUT --config none.toml",
        "sales.parquet OUT --like none",
        "doubled.parquet OUT",
    ],
    "fit": [
        "none OUT --horizon 4",
        "panel OUT",
        "panel OUT --horizon 5000",
        "panel OUT --horizon 4 --model tft",
        "panel OUT --horizon 4 --set learning_rate=1",
        "panel OUT --horizon 4 --set train.learning_rat=1",
        "panel OUT --horizon 4 --set train.learning_rate=fast",
        "panel OUT --config none.toml",
        "panel run --horizon 4",
        "panel OUT --horizon 4 --start-from none",
        "panel OUT --horizon 4 --device abacus --processes 1",
        "actuals.parquet OUT --horizon 4",
    ],
    "forecast": [*READ_RUN, "run panel OUT --first 2019-99-01", "run panel OUT --first 2021-01-03 --last 2020-01-05"],
    "revisions": [
        *(f"{call} --start 2020-01-05" for call in READ_RUN),
        "run panel OUT",
        "run panel OUT --start soon",
        "run panel OUT --start 2031-01-05",
    ],
    "backtest": [
        "none OUT --horizon 4",
        "panel OUT",
        "panel OUT --horizon 0",
        "panel OUT --horizon 900",
        "panel OUT --horizon 4 --model tft",
        "panel OUT --horizon 4 --start soon",
        "panel OUT --horizon 4 --start 2031-01-05",
        "panel OUT --horizon 4 --refit 0",
        "actuals.parquet OUT --horizon 4",
        "panel OUT --horizon 4 --config none.toml",
    ],
    "evaluate": [
        *JUDGED,
        "rev.parquet other.parquet",
        "rev.parquet panel --missing raise",
        "rev.parquet actuals.parquet --by colour",
        "rev.parquet actuals.parquet --missing guess",
    ],
    "volatility": [
        *JUDGED,
        "rev.parquet other.parquet",
        "rev.parquet panel --missing raise",
        "rev.parquet actuals.parquet --level 0.3",
        "rev.parquet actuals.parquet --cdf normal",
        "rev.parquet actuals.parquet --weights price",
        "rev.parquet actuals.parquet --compare none.parquet",
    ],
    "rank-revisions": [*JUDGED, "rev.parquet actuals.parquet --rank fame", "rev.parquet actuals.parquet --per shop"],
    "what-if": [
        "none panel plan.parquet OUT",
        "run none plan.parquet OUT",
        "run panel none.parquet OUT",
        "run panel text.parquet OUT",
        "run panel empty.parquet OUT",
        "run panel actuals.parquet OUT",
        "run panel plan.parquet OUT --baseline short.parquet",
        "run panel dates.parquet OUT",
        "run panel strangers.parquet OUT",
        "run other_panel plan.parquet OUT",
        "damaged panel plan.parquet OUT",
        "run panel plan.parquet OUT --baseline none.parquet",
    ],
    "calibrate": [
        *(f"{call} --out OUT" for call in JUDGED),
        "rev.parquet actuals.parquet",
        "rev.parquet other.parquet --out OUT",
        "rev.parquet actuals.parquet --out OUT --by colour",
        "rev.parquet actuals.parquet --out OUT --by cutoff",
        "rev.parquet actuals.parquet --out OUT --by brand --static empty.parquet",
        "rev.parquet actuals.parquet --out OUT --by brand --static none.parquet",
    ],
    "recalibrate": [
        "rev.parquet none.json OUT.parquet",
        "rev.parquet text.parquet OUT.parquet",
        "rev.parquet mqcast.toml OUT.parquet",
        "rev.parquet panel OUT.parquet",
        "rev.parquet run/run.json OUT.parquet",
        "rev.parquet panel/panel.json OUT.parquet",
        "rev.parquet mqcast.toml OUT.xlsx",
        "rev.parquet mqcast.toml OUT",
        "rev.parquet mqcast.toml",
        "rev.parquet",
    ],
    "report": [
        *(f"{call} --out OUT" for call in JUDGED),
        "run --panel none --out OUT",
        "run other_panel --out OUT",
        "damaged panel --out OUT",
        "rev.parquet actuals.parquet --compare none.parquet --out OUT",
        "rev.parquet actuals.parquet --baseline nobody --out OUT",
    ],
}


def run(*arguments) -> None:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, (done.output, done.exception)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with sound files, and with bad ones."""
    home = tmp_path_factory.mktemp("home")
    world = lognormal_world(6, 60, 4)
    sales = world.frame.join(world.static, on="unique_id")
    plan = world.frame.filter(pl.col("y").is_null()).drop("y")
    files = {
        "sales": sales,
        "other": sales.select(unique_id=pl.lit("x"), ds="ds", y=pl.lit(1.0)).unique(["ds"]),
        "actuals": world.actuals,
        "empty": sales.clear(),
        "doubled": pl.concat([sales, sales.head(3)]),
        "plan": plan,
        "short": plan.group_by("unique_id", maintain_order=True).head(2),
        "dates": plan.with_columns(pl.col("ds").dt.to_string("%d/%m/%Y")),
        "strangers": plan.with_columns(unique_id=pl.lit("zzzz")).unique(["ds"]),
    }
    for name, frame in files.items():
        frame.write_parquet(home / f"{name}.parquet")
    (home / "text.parquet").write_text("no Parquet at all")
    run("init", home / "sales.parquet", "--out", home / "mqcast.toml", "--horizon", 4)
    run("pack", home / "sales.parquet", home / "panel", "--config", home / "mqcast.toml")
    run("pack", home / "other.parquet", home / "other_panel")
    run("fit", home / "panel", home / "run", "--config", home / "mqcast.toml", *SMALL, "--json")
    run("revisions", home / "run", home / "panel", home / "rev.parquet", "--start", "2020-01-05", "--processes", 1)
    for name in ("damaged", "untrained"):
        shutil.copytree(home / "run", home / name)
    (home / "damaged" / "model.safetensors").write_bytes((home / "run" / "model.safetensors").read_bytes()[:-9])
    (home / "untrained" / "model.safetensors").unlink()
    return home


def everything(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("verb", "call"), [(verb, call) for verb, calls in MISTAKES.items() for call in calls])
def test_a_mistake_is_one_clear_line_and_leaves_nothing_behind(home: Path, verb, call, monkeypatch):
    monkeypatch.chdir(home)
    before = everything(home)
    words = call.replace("OUT", "out/made").split()
    processes = ["--processes", "1"] if verb in ("fit", "forecast", "revisions") and "--processes" not in words else []
    (home / "out").mkdir(exist_ok=True)
    done = CliRunner().invoke(app, [verb, *words, *processes])
    assert done.exit_code != 0, done.output
    if isinstance(done.exception, SystemExit):  # of the parser
        assert "Usage:" in done.output
    else:
        assert isinstance(done.exception, MqcastError), repr(done.exception)
        assert len(str(done.exception)) > 20
    assert everything(home) == before


def test_every_verb_has_ten_mistakes():
    assert all(len(calls) >= 10 for calls in MISTAKES.values())
