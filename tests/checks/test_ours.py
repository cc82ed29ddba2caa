"""Our own forecasters, in every configuration, keep what the battery promises; a run does so on the command line."""

import datetime as dt
import json
import warnings
from functools import cache

import polars as pl
import pytest
from typer.testing import CliRunner

from mqcast import Forecaster, Schema, pack
from mqcast.checks import check_forecaster, sample_frame, what_is_on_disk_is_whole
from mqcast.cli import app
from mqcast.errors import ArtifactError, CheckError

ROLES = Schema(
    freq="D",
    static=["brand", "size"],
    past=["visits"],
    known=["promo", "price"],
    events=["feast"],
    kinds={"size": "number", "price": "number"},
)
SMALL = {
    "train": {"num_threads": 1},
    "model": {"hidden_dim": 4, "encoder_dilations": (1, 2), "lookback": 6},
    "window": {"history": 6, "num_fcts": 10},
}
NAIVE = "seasonal-naive"
BY_THE_TESTS = "the state of random has moved"  # beartype, which runs annotations in tests, draws from it


def new(model: str, schema: Schema | None = None, **tables) -> Forecaster:
    config = {name: SMALL.get(name, {}) | tables.get(name, {}) for name in {*SMALL, *tables}}
    made = {"schema": schema, "max_steps": 2, "verbose": False, "config": None if model == NAIVE else config}
    return Forecaster(model, 3, (0.1, 0.5, 0.9), **made)


def passes(forecaster: Forecaster) -> bool:
    results = check_forecaster(forecaster)
    assert not [result for result in results.failures if result.seen != BY_THE_TESTS], results
    return True


@cache
def fitted(model: str, has_roles: bool = True) -> Forecaster:
    schema = ROLES if has_roles else None
    return new(model, schema).fit(sample_frame(schema, 3))


@pytest.mark.parametrize(
    ("model", "has_roles"),
    [
        ("mqt", True),
        (NAIVE, False),
        *(
            pytest.param(model, has_roles, marks=pytest.mark.slow)
            for model, has_roles in (
                *(("mqt-nods", False), ("mqt-all", True), ("mqcnn", True), ("mqrnn", False)),
                *((f"auto(mqcnn, {NAIVE})", True), ("calibrated(mqcnn)", False)),
            )
        ),
    ],
)
def test_every_model_passes_once_it_is_fitted(model: str, has_roles: bool):
    assert passes(fitted(model, has_roles))


def test_training_and_backtests_pass():
    assert passes(new(NAIVE))


@pytest.mark.slow
@pytest.mark.parametrize("schema", [ROLES, None], ids=["all roles", "bare"])
@pytest.mark.parametrize("model", ["mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn", NAIVE])
def test_training_and_backtests_of_every_model_pass(model: str, schema: Schema | None):
    assert passes(new(model, schema))


@pytest.mark.slow
@pytest.mark.parametrize("by", ["recent", "series", "global", "past", "past_mean", "none"])
@pytest.mark.parametrize("log1p", [True, False])
def test_every_scaling_passes(by: str, log1p: bool):
    assert passes(new("mqt", scaling={"by": by, "log1p": log1p}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        {"head": "monotone"},
        {"encoder_attention": True},
        {"static_encoding": "one_hot"},
        {"block": "bare"},
        {"feedback_heads": "per_horizon"},
        {"agnostic_context": "current"},
        {"position_norm": False},
        {"horizon_code": False},
        {"scale_inputs": True},
    ],
    ids=str,
)
def test_every_part_of_a_network_passes(part: dict):
    assert passes(new("mqt", ROLES, model=part))


@pytest.mark.slow
@pytest.mark.parametrize("freq", ["h", "B", "W", "MS"])
@pytest.mark.parametrize("model", ["mqt", "mqcnn", "mqrnn", NAIVE])
def test_every_frequency_passes(model: str, freq: str):
    assert passes(new(model, ROLES.replace(freq=freq)))


def test_a_fitted_forecaster_is_checked_on_its_own_data_and_not_trained():
    results = check_forecaster(fitted("mqcnn"))
    assert not [result for result in results.failures if result.seen != BY_THE_TESTS], results
    assert results.named("same_input_gives_the_same_forecasts").seen == "equal when called twice"
    assert "is not trained again" in results.named("later_rows_change_no_backtest").seen


def test_a_run_with_other_weights_than_were_trained_is_not_whole():
    made = new("mqcnn").fit(sample_frame(horizon=3, num_steps=20))
    assert what_is_on_disk_is_whole(made).passed
    weights = made.run_.folder / "model.safetensors"
    packed = bytearray(weights.read_bytes())
    packed[-3] ^= 64
    weights.write_bytes(packed)
    with pytest.raises(CheckError, match=r"model\.safetensors"):
        what_is_on_disk_is_whole(made)


# -- the command line --------------------------------------------------------------------------------------------------


def run_check(*arguments) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["check", *map(str, arguments)])
    return found.exit_code, found.stdout


def test_a_run_is_checked_on_a_panel_by_the_command_line(tmp_path):
    pack(sample_frame(ROLES, 3), tmp_path / "panel", like=fitted("mqcnn").panel_)
    code, text = run_check(fitted("mqcnn").run_.folder, "--panel", tmp_path / "panel", "--series", 4, "--json")
    told = json.loads(text)
    failed = {check["name"] for check in told["checks"] if check["outcome"] == "failed"}
    seen = {check["seen"] for check in told["checks"] if check["name"] in failed}
    assert seen <= {BY_THE_TESTS}, text
    assert (code, told["passed"]) == (1 if failed else 0, not failed)
    assert (told["series"], told["of"]) == (4, 6)


def test_a_saved_forecaster_needs_no_panel_and_the_table_says_what_was_seen(tmp_path):
    code, text = run_check(fitted("mqcnn").save(tmp_path / "saved"))
    assert "output_has_the_right_shape" in text
    assert "0 failed" in text or "state of random" in text
    code, _ = run_check(fitted("mqcnn").run_.folder)
    assert code != 0


def test_a_damaged_run_ends_with_code_1_and_no_run_with_an_error(tmp_path):
    saved = fitted("mqcnn").save(tmp_path / "saved")
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    code, text = run_check(saved, "--json")
    assert code == 1
    assert [check["name"] for check in json.loads(text)["checks"]] == ["what_is_on_disk_is_whole"]
    found = CliRunner().invoke(app, ["check", str(tmp_path / "nothing"), "--panel", str(saved / "panel")])
    assert isinstance(found.exception, ArtifactError)


def test_gaps_and_series_that_end_before_the_others_are_no_look_ahead():
    """Real histories have both: here one lacks weeks in its middle and at a cutoff, one ends two weeks early."""
    weeks = [dt.datetime(2024, 1, 7) + dt.timedelta(weeks=i) for i in range(33)]
    there = {
        "whole": range(33),
        "whole too": range(33),
        "gaps": [i for i in range(33) if not 14 <= i < 24],
        "one gap": [*range(16), *range(17, 33)],
    }
    rows = [
        {"unique_id": name, "ds": weeks[i], "y": float(i % 4 + 1) if i < 30 else None, "promo": i % 3}
        for name, steps in (there | {"ends early": range(28)}).items()
        for i in steps
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = Forecaster("seasonal-naive", horizon=3, schema=Schema(known=["promo"]), verbose=False).fit(
            pl.DataFrame(rows)
        )
        results = check_forecaster(fitted)
    assert results.passed, results
