"""fev-bench's kind of task: windows, scores, what is known at a cutoff, anyone's forecasts."""

import datetime as dt
import json
import re

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from lab.__main__ import app
from lab.battery.tasks import TASKS, BatteryTask
from lab.datasets import Dataset
from lab.experiments.experiment import LAB
from lab.experiments.fev_scores import Grid, mean_scores, seasonal_error
from lab.experiments.leaderboard import Leaderboard
from lab.experiments.records import Record
from lab.experiments.window_data import WindowData
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, DataError, MqcastError
from mqcast.models.ensemble import mean_of_frames

NUM_DAYS, HORIZON, WINDOWS = 90, 5, 2
FLAGS = {"open": "flag", "promo": "flag"}
SCHEMA = Schema(freq="D", past=("customers",), known=("open", "promo"), static=("town",), kinds=FLAGS)
TASK = Leaderboard(name="shops_1D", dataset="shops", horizon=HORIZON, windows=WINDOWS, season=7, levels=(0.1, 0.5, 0.9))


def shops(seed: int = 0) -> pl.DataFrame:
    """Six shops, closed on Sundays; one has a gap of weeks, one opens late, one never sells."""
    rng = np.random.default_rng(seed)
    days = pl.datetime_range(dt.datetime(2024, 1, 1), interval="1d", end=dt.datetime(2024, 3, 30), eager=True)
    assert len(days) == NUM_DAYS
    frames = []
    for i in range(6):
        is_open = (days.dt.weekday() != 7).cast(pl.Int8)
        promo = ((days.dt.week() % 2) == 0).cast(pl.Int8)
        y = (100 * (i + 1) * (1 + 0.3 * promo.to_numpy()) * np.exp(0.1 * rng.standard_normal(NUM_DAYS))).round()
        y = np.where(is_open.to_numpy() == 1, y, 0.0) * (i != 5)
        frames.append(
            pl.DataFrame(
                {"unique_id": f"s{i}", "ds": days, "y": y.astype(np.float32), "customers": (y / 7).astype(int)}
            ).with_columns(open=is_open, promo=promo)
        )
    frames[1] = frames[1].filter(~pl.int_range(NUM_DAYS).is_between(50, 82))  # ends inside the first window
    frames[2] = frames[2].tail(60)
    return pl.concat(frames)


def towns() -> pl.DataFrame:
    return pl.DataFrame({"unique_id": [f"s{i}" for i in range(6)], "town": list("aabbcc")})


def data_of(rows: pl.DataFrame) -> WindowData:
    return WindowData(TASK, Dataset(rows.lazy(), SCHEMA, towns()))


@pytest.fixture(scope="module")
def data() -> WindowData:
    return data_of(shops())


def test_windows_are_the_last_ones_and_touch_each_other(data):
    assert data.cutoffs == [dt.datetime(2024, 3, 20), dt.datetime(2024, 3, 25)]
    assert data.horizon_of(data.cutoffs[1]).to_list()[-1] == dt.datetime(2024, 3, 30)


def test_scores_are_those_of_a_plain_loop(data):
    """fev-bench's definitions, value by value."""
    grid, rng = Grid(data), np.random.default_rng(1)
    rows = {(i, t): y for i, t, y in shops().select("unique_id", "ds", "y").iter_rows()}
    for cutoff in data.cutoffs:
        frame = grid.seasonal_naive(cutoff)
        names = data.task.quantile_names
        frame = frame.with_columns(pl.col(names) * pl.Series(rng.uniform(0.5, 1.5, frame.height)))
        losses, errors, sizes, scaled_losses, scaled_errors = [], [], [], [], []
        for row in frame.iter_rows(named=True):
            y = rows.get((row["unique_id"], row["ds"]))
            if y is None:
                continue
            past = [t for i, t in rows if i == row["unique_id"] and t <= cutoff]
            week = dt.timedelta(days=7)
            before = [
                abs(rows[row["unique_id"], t] - rows[row["unique_id"], t - week])
                for t in past
                if (row["unique_id"], t - week) in rows
            ]
            scale = sum(before) / len(before)
            pinball = [2 * max(q * (y - row[f"q{q:g}"]), (q - 1) * (y - row[f"q{q:g}"])) for q in data.task.levels]
            losses.append(np.mean(pinball))
            errors.append(abs(y - row["q0.5"]))
            sizes.append(abs(y))
            if scale > 0:
                scaled_losses.append(losses[-1] / scale)
                scaled_errors.append(errors[-1] / scale)
        size = max(np.mean(sizes), 1)
        expected = {
            "SQL": np.mean(scaled_losses),
            "WQL": np.mean(losses) / size,
            "MASE": np.mean(scaled_errors),
            "WAPE": np.mean(errors) / size,
        }
        assert grid.scores(frame) == pytest.approx(expected, rel=1e-6)


def test_the_denominator_is_at_least_one_and_a_season_without_a_pair_has_error_one():
    past = np.array([[1.0, 2.0, np.nan, 5.0], [np.nan, np.nan, 3.0, np.nan]])
    assert seasonal_error(past, 2).tolist() == [3.0, 1.0]
    assert mean_scores([{"SQL": 1, "WQL": 2, "MASE": 3, "WAPE": 4}] * 2) == {"SQL": 1, "WQL": 2, "MASE": 3, "WAPE": 4}


def test_the_record_of_the_seasonal_naive_forecast_has_the_published_scores():
    record = Record.read(LAB / "results" / "rossmann_1D" / "seasonal-naive-0.json")
    published = {"SQL": 0.9137, "WQL": 0.3140, "MASE": 0.7886, "WAPE": 0.2692}
    assert {name: round(score, 4) for name, score in record.metrics.items()} == published


def test_seasonal_naive_repeats_the_last_week_and_widens_with_the_weeks(data):
    grid, cutoff = Grid(data), data.cutoffs[0]
    naive = grid.seasonal_naive(cutoff).filter(unique_id="s0")
    before = shops().filter(pl.col("unique_id") == "s0", pl.col("ds").is_in([t - dt.timedelta(7) for t in naive["ds"]]))
    assert naive["q0.5"].to_list() == before["y"].to_list()
    assert (naive["q0.9"] - naive["q0.5"]).n_unique() <= 2  # rounding
    assert naive["q0.1"].min() < 0


def test_missing_forecasts_are_reported(data):
    grid, cutoff = Grid(data), data.cutoffs[0]
    frame = grid.seasonal_naive(cutoff).filter(pl.col("unique_id") != "s3")
    with pytest.raises(DataError, match=r"'s3'.*no forecast 1 steps after"):
        grid.scores(frame)


def test_after_the_cutoff_only_the_plan_is_known(data):
    cutoff = data.cutoffs[0]
    known = data.known_at(cutoff)
    later = known.filter(pl.col("ds") > cutoff)
    assert later.height == 6 * HORIZON
    assert later["ds"].max() == data.horizon_of(cutoff)[-1]
    assert later.select("y", "customers").null_count().row(0) == (later.height, later.height)
    assert later.select("open", "promo").null_count().sum_horizontal().item() == 0


def test_later_sales_and_series_change_nothing_that_is_known_at_a_cutoff(data):
    cutoff = data.cutoffs[0]
    later = pl.col("ds") > cutoff
    changed = shops().with_columns(y=pl.when(later).then(-7.0 * pl.col("y")).otherwise("y").cast(pl.Float32))
    late = shops().filter(pl.col("unique_id") == "s0", later).with_columns(unique_id=pl.lit("a"))
    assert data_of(pl.concat([late, changed])).known_at(cutoff).equals(data.known_at(cutoff))


def test_rows_of_the_plan_alone_are_no_window(data):
    last = shops()["ds"].max()
    plan = shops().filter(pl.col("ds") > last - dt.timedelta(days=7))
    plan = plan.with_columns(pl.col("ds") + dt.timedelta(days=7), y=None, customers=None)
    assert data_of(pl.concat([shops(), plan], how="vertical_relaxed")).cutoffs == data.cutoffs


def test_seeds_are_averaged_and_frames_that_do_not_match_are_refused(data):
    frame = Grid(data).seasonal_naive(data.cutoffs[0])
    other = frame.with_columns(pl.col(data.task.quantile_names) + 2)
    mean = mean_of_frames([frame, other], data.task.levels)
    assert np.allclose(mean["q0.5"], frame["q0.5"] + 1)
    with pytest.raises(ConfigError, match="same series"):
        mean_of_frames([frame, other.head(3)], data.task.levels)


@pytest.fixture
def shown(data, monkeypatch, tmp_path):
    """A task of the battery on these shops, and naive forecasts of it in a file."""
    monkeypatch.setattr(Leaderboard, "load_dataset", lambda *_: data.dataset)
    monkeypatch.setitem(TASKS, "shops_1D", BatteryTask(TASK, 1))
    path = tmp_path / "forecasts.parquet"
    frame = pl.concat([Grid(data).seasonal_naive(cutoff) for cutoff in data.cutoffs])
    frame.write_parquet(path)
    return frame, path


def score(path, folder, *options):
    return CliRunner().invoke(app, ["score", "shops_1D", str(path), "--data", str(folder), *options])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda frame: frame.drop("q0.1"), "has no q0.1; the task judges q0.1, q0.5, q0.9"),
        (lambda frame: frame.drop("cutoff"), "no column 'cutoff'; there are"),
        (lambda frame: frame.with_columns(pl.col("ds").cast(pl.String)), "column 'ds': holds no dates; parse it first"),
        (lambda frame: frame.with_columns(pl.col("q0.5").cast(pl.String)), "column 'q0.5': holds text, not numbers"),
        (lambda frame: frame.with_columns(pl.col("cutoff") - dt.timedelta(1)), "cutoff 2024-03-19.* is not the task's"),
        (lambda frame: pl.concat([frame, frame.head(1)]), "series 's0', at 2024-03-21: two forecasts from cutoff"),
        (lambda frame: frame.with_columns(pl.col("ds") + dt.timedelta(3)), "not within the 5 steps after 2024-03-20"),
    ],
)
def test_anyones_forecasts_are_checked_before_they_are_scored(shown, tmp_path, change, match):
    frame, path = shown
    change(frame).write_parquet(path)
    ran = score(path, tmp_path)
    assert isinstance(ran.exception, MqcastError), ran.exception
    assert re.search(match, str(ran.exception))


def test_anyones_forecasts_are_scored_beside_what_is_published(shown, data, tmp_path):
    frame, path = shown
    (tmp_path / "fev_published.csv").write_text("task,model,SQL,MASE\nshops_1D,other,0.5,0.25\nrossmann_1D,third,1,2\n")
    expected = mean_scores([Grid(data).scores(frame.filter(cutoff=cutoff)) for cutoff in data.cutoffs])
    ran = score(path, tmp_path, "--json", "--results", str(tmp_path / "results"), "--name", "ours")
    assert ran.exit_code == 0, (ran.output, ran.exception)
    assert json.loads(ran.stdout)["metrics"] == pytest.approx(expected)
    record = Record.read(tmp_path / "results" / "shops_1D" / "ours-0.json")
    assert [window["cutoff"] for window in record.details["windows"]] == [str(cutoff) for cutoff in data.cutoffs]
    told = score(tmp_path, tmp_path)
    assert all(text in told.stdout for text in ("other", "0.5", "0.25"))
    assert "third" not in told.stdout


def test_scores_of_fewer_windows_have_a_name_of_their_own(data):
    scores = Grid(data).scores(Grid(data).seasonal_naive(data.cutoffs[0])) | {"cpu_seconds": 2.0}
    first, both = (TASK.record("ours", 0, [scores] * count, {}) for count in (1, 2))
    assert (first.task, both.task) == ("shops_1D-first-1", "shops_1D")
    assert (first.cpu_seconds, both.cpu_seconds) == (2.0, 4.0)


def test_data_without_a_target_are_refused():
    with pytest.raises(DataError, match="no row has a target"):
        data_of(shops().with_columns(y=pl.lit(None, pl.Float32)))
