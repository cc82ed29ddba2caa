"""A rehearsal finds how long to train and calibrates the quantiles; it never sees what comes after `until`."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from mqcast import Forecaster, Schema
from mqcast.calibration import Calibrator
from mqcast.data.panel import Panel
from mqcast.data.windows import as_time
from mqcast.errors import KnownValuesError
from mqcast.models import TrainOptions, get
from mqcast.models.holdout import hold_out
from mqcast.models.networks import FittedNetwork
from mqcast.models.rehearsal import after_rehearsal, rehearsal_of
from mqcast.run import Run
from mqcast.settings import RunConfig
from mqcast.settings.merge import user_layers
from mqcast.simulate import lognormal_world

HORIZON, LEVELS = 4, (0.1, 0.5, 0.9)
SMALL = {
    "model": {"hidden_dim": 8, "encoder_dilations": [1, 2], "members": 1},
    "train": {"refit": True, "max_steps": 20, "num_threads": 1},
}
WORLD = lognormal_world(num_items=12, num_weeks=90, horizon=HORIZON)


def options(**changes) -> TrainOptions:
    given = TrainOptions(horizon=HORIZON, quantiles=LEVELS, layers=user_layers(SMALL), verbose=False)
    return replace(given, **changes)


def panel(rows: pl.DataFrame = WORLD.frame) -> Panel:
    return Panel.from_frame(rows, WORLD.schema, WORLD.static, WORLD.events)


def fitted(tmp_path: Path) -> FittedNetwork:
    return get("mqcnn").fit(panel(), options(folder=tmp_path / "run"))


def test_a_run_is_trained_after_a_rehearsal_and_can_be_resumed(tmp_path: Path):
    found = fitted(tmp_path)
    rehearsal = Run.open(tmp_path / "run" / "rehearsal")
    assert rehearsal.config.split.train_until is not None
    assert 4 <= found.config.train.max_steps <= 20
    assert found.config.split.train_until is None
    again = get("mqcnn").fit(panel(), options(folder=tmp_path / "run", resume=True))
    assert again.forecast(panel()).equals(found.forecast(panel()))


def test_without_a_rehearsal_a_run_has_the_steps_that_were_said(tmp_path: Path):
    found = get("mqcnn").fit(panel(), options(layers=user_layers({**SMALL, "train": {"max_steps": 5}})))
    assert found.config.train.max_steps == 5
    assert not found.config.train.refit
    assert found.run.calibrator is None


def test_what_comes_after_until_changes_neither_length_nor_calibration_nor_forecasts():
    cutoff = WORLD.frame.drop_nulls("y")["ds"].unique().sort()[-12]
    later = pl.col("ds") > cutoff
    changed = WORLD.frame.with_columns(y=pl.when(later).then(pl.col("y") * 7 + 100).otherwise("y"))
    forecasts = []
    for rows in (WORLD.frame, changed):
        found = get("mqcnn").fit(panel(rows), options(until=cutoff))
        forecasts.append(found.forecast(panel(rows), cutoff, cutoff))
    assert forecasts[0].equals(forecasts[1])


def test_published_quantiles_are_moved_by_the_calibrator_everywhere(tmp_path: Path):
    found = fitted(tmp_path)
    plain = get("mqcnn").load(tmp_path / "run", options())
    plain.run.__dict__["calibrator"] = None
    before = plain.forecast(panel())
    shift = np.zeros((3, 3))
    shift[2] = 0.5
    found.run.add_calibrator(Calibrator(LEVELS, shift[None, :, :, None], (), (), (), True, 10))
    after = get("mqcnn").load(tmp_path / "run", options()).forecast(panel())
    assert (after["q0.9"] > before["q0.9"]).all()
    assert after["q0.5"].equals(before["q0.5"])
    found.write(panel(), tmp_path / "written.parquet", None, None, None)
    assert pl.read_parquet(tmp_path / "written.parquet")["q0.9"].to_list() == after["q0.9"].to_list()
    forecaster = Forecaster.of_run(tmp_path / "run", panel())
    forecaster.save(tmp_path / "saved")
    assert Forecaster.load(tmp_path / "saved").predict()["q0.9"].to_list() == after["q0.9"].to_list()


def losses(tmp_path: Path, *pairs: tuple[int, float]) -> SimpleNamespace:
    lines = [{"record": "epoch", "step": step, "valid_loss": loss, "seconds": 60.0} for step, loss in pairs]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return SimpleNamespace(metrics=path)


@pytest.mark.parametrize(
    ("pairs", "knows_a_year", "steps"),
    [
        (((100, 0.9), (200, 0.8), (400, 0.79)), True, 400),  # it was still learning
        (((100, 0.9), (200, 0.8), (300, 0.79)), True, 400),  # even as the clock cut it off
        (((100, 0.9), (150, 0.79)), True, 300),  # but at most for twice as long
        (((100, 0.9), (200, 0.8), (400, 0.81)), True, 282),  # half as long is not clearly better
        (((100, 0.9), (200, 0.7), (400, 0.81)), True, 200),
        (((100, 0.9), (200, 0.7), (400, 0.81)), False, 282),  # the rehearsal had no year to learn from
        (((10, 0.5), (200, 0.7), (400, 0.81)), True, 80),  # never less than a fifth
    ],
)
def test_how_long_to_train(tmp_path: Path, pairs, knows_a_year: bool, steps: int):
    config = RunConfig(
        window={"horizon": 4, "history": 8, "num_fcts": 4},
        scaling={"echoes": [52]},
        train={"max_steps": 400, "max_minutes": 10.0, "warmup_steps": 100},
    )
    found = after_rehearsal(config, SimpleNamespace(knows_a_year=knows_a_year), losses(tmp_path, *pairs))
    assert found.train.max_steps == steps
    assert found.train.warmup_steps == steps // 10
    assert found.train.max_minutes == 9.0
    assert found.model.members == 1
    rehearsal = rehearsal_of(config, SimpleNamespace(first="2024-01-07"))
    assert (rehearsal.train.max_minutes, rehearsal.model.members) == (2.5, 1)
    assert not rehearsal.train.refit


@pytest.mark.parametrize(
    ("pairs", "may_have_fewer", "steps", "members"),
    [
        (((100, 0.9), (400, 0.8)), True, 400, 5),  # 60 s for 400 steps, and 540 s are left
        (((100, 0.9), (200, 0.8)), True, 400, 4),
        (((100, 0.9), (150, 0.8)), True, 300, 4),
        (((40, 0.9), (50, 0.8)), True, 100, 4),
        (((100, 0.9), (200, 0.8)), False, 400, 5),
        (((40, 0.7), (100, 0.8)), True, 40, 5),
    ],
)
def test_where_time_is_short_fewer_members_are_trained_for_all_steps(
    tmp_path: Path, pairs, may_have_fewer: bool, steps: int, members: int
):
    config = RunConfig(
        window={"horizon": 4, "history": 8, "num_fcts": 4},
        model={"members": 5},
        train={"max_steps": 400, "max_minutes": 10.0},
    )
    found = after_rehearsal(config, SimpleNamespace(knows_a_year=True), losses(tmp_path, *pairs), may_have_fewer)
    assert (found.train.max_steps, found.model.members) == (steps, members)


@pytest.mark.parametrize("num_gaps", [1, 12])
def test_rows_that_are_missing_among_the_held_out_dates_do_not_end_the_fit(num_gaps: int):
    date, items = WORLD.frame.drop_nulls("y")["ds"].unique().sort()[-2], WORLD.frame["unique_id"].unique().sort()
    is_gap = (pl.col("ds") == date) & pl.col("unique_id").is_in(items[:num_gaps].to_list())
    rows = panel(WORLD.frame.filter(~is_gap))
    found = get("mqcnn").fit(rows, options())
    assert found.run.calibrator is not None
    assert found.forecast(rows)["unique_id"].n_unique() == 12


def test_on_a_grid_of_rows_no_held_out_target_is_after_the_last_observation():
    """One series has no rows on five of the last days: its horizon is longer than that of the others."""
    days = pl.date_range(date(2022, 1, 3), date(2022, 7, 22), "1d", eager=True).cast(pl.Datetime("us"))
    days = days.filter(days.dt.weekday() < 6)
    kept = {"whole": days, "holed": days[:-8].append(days[-4:-3]).append(days[-1:])}
    rows = [pl.DataFrame({"unique_id": name, "ds": at, "y": 1.0, "promo": 0.0}) for name, at in kept.items()]
    panel = Panel.from_frame(pl.concat(rows), Schema(freq="B", time_grid="rows", known=("promo",)))
    holdout = hold_out(panel, TrainOptions(horizon=5, quantiles=(0.5,)))
    assert holdout.last == days[-12]  # from here, five rows of the series with holes end at the last day
    last = panel.steps_until(as_time(holdout.last, panel.axis))
    panel.require_future(5, last)
    with pytest.raises(KnownValuesError):
        panel.require_future(5, last + 1)
