"""The leaderboard: windows, scores, what is known at a cutoff, refits from the weights before."""

import datetime as dt
import json
import re
import warnings

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from lab.__main__ import app
from lab.experiments.experiment import LAB, RunSpec, TrainOptions, open_experiment
from lab.experiments.fev_scores import Grid, mean_scores, seasonal_error
from lab.experiments.leaderboard import Refit, naive_record, record_of, run_windows
from lab.experiments.records import Record
from mqcast import models
from mqcast.errors import ConfigError, DataError, MqcastError
from mqcast.models.ensemble import mean_of_frames

NUM_DAYS, HORIZON, WINDOWS = 90, 5, 2
TOML = """
name = "shops_1D"
protocol = "windows"
rows = "shops.parquet"
static = "towns.parquet"
horizon = 5
windows = 2
levels = [0.1, 0.5, 0.9]
season = 7
close_gaps = 7
zero_when = { column = "open", equals = 0 }
neighbours = [{ column = "open", offsets = [-1, 1] }]

[columns]
freq = "D"
past = ["customers"]
known = ["open", "promo"]
static = ["town"]
kinds = { open = "flag", promo = "flag" }

[network.window]
history = 10
num_fcts = 10
batch_size = 4

[network.scaling]
by = "recent"
log1p = true

[network.model]
hidden_dim = 4
lookback = 7
encoder_dilations = [1, 2]
position_dilations = [1]

[network.train]
max_steps = 4
micro_batch = 4
warmup_steps = 1

[published]
other = { SQL = 0.5, WQL = 0.2, MASE = 0.6, WAPE = 0.3 }
"""


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    shops().write_parquet(path / "shops.parquet")
    towns().write_parquet(path / "towns.parquet")
    (path / "task.toml").write_text(TOML)
    return path


@pytest.fixture(scope="module")
def data(folder):
    return open_experiment(folder / "task.toml").load(folder)


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
    task = open_experiment("rossmann_1D")
    record = Record.read(LAB / "results" / task.name / "seasonal-naive-0.json")
    assert {name: round(score, 4) for name, score in record.metrics.items()} == task.published["Seasonal naive"]


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
    assert later.select("open", "promo", "open-1", "open+1").null_count().sum_horizontal().item() == 0
    assert known.filter(open=0)["y"].null_count() == known.filter(open=0).height


def test_neighbours_are_what_the_plan_says_of_the_days_around(data):
    known = data.known_at(data.cutoffs[0]).filter(unique_id="s0")
    assert known["open+1"][:-1].to_list() == known["open"][1:].to_list()
    assert known["open-1"][1:].to_list() == known["open"][:-1].to_list()
    assert known["open+1"][-1] == known["open"][-7]  # beyond the plan: as a week before


def test_a_task_may_tell_less_of_the_date(data, folder):
    assert data.schema.calendar is data.dataset.schema.calendar
    assert data.task.replace(calendar=["day_of_week"]).load(folder).schema.calendar == ("day_of_week",)


def test_a_gap_is_closed_by_whole_weeks_for_forecasting_alone(data):
    cutoff = data.cutoffs[0]
    known = data.known_at(cutoff)
    moved = data.without_gaps(known, cutoff)
    one = pl.col("unique_id") == "s1"
    assert moved.filter(~one).equals(known.filter(~one))
    seen = known.filter(one & pl.col("y").is_not_null())["ds"], moved.filter(one & pl.col("y").is_not_null())["ds"]
    shift = (seen[1] - seen[0]).unique().to_list()
    assert shift == [dt.timedelta(28)]
    assert cutoff - dt.timedelta(7) < seen[1].max() <= cutoff
    assert not moved.select("unique_id", "ds").is_duplicated().any()


def test_a_rule_that_the_data_break_is_reported(folder, tmp_path):
    broken = shops().with_columns(pl.when(pl.col("ds") == dt.datetime(2024, 1, 7)).then(5.0).otherwise("y").alias("y"))
    broken.write_parquet(tmp_path / "shops.parquet")
    towns().write_parquet(tmp_path / "towns.parquet")
    broken_data = open_experiment(folder / "task.toml").load(tmp_path)
    with pytest.raises(DataError, match=r"series 's0', at 2024-01-07.*open is 0.*but the target is not 0"):
        broken_data.known_at(broken_data.cutoffs[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "rossman", "rows": None}, "no data set 'rossman' .did you mean 'rossmann'"),
        ({"dataset": "rossmann"}, "either a dataset, or rows"),
        ({"levels": (0.1, 0.9)}, "0.5 is among them"),
        ({"columns": None}, "need a table .columns."),
    ],
)
def test_impossible_tasks_are_refused(folder, change, message):
    with pytest.raises(ConfigError, match=message):
        open_experiment(folder / "task.toml").replace(**change)


def test_an_unknown_task_is_refused_with_a_list_of_all():
    with pytest.raises(ConfigError, match=r"no experiment 'rossman'; give a TOML file, or one of .*rossmann_1D"):
        open_experiment("rossman")


def spec_of(data, out, **options) -> RunSpec:
    return RunSpec(data.task, "mqt", 0, out, TrainOptions(device="cpu", **options))


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = spec_of(data, tmp_path_factory.mktemp("runs"))
        return spec, run_windows(data, spec)


def test_every_window_is_forecast_by_weights_that_come_from_the_one_before(done, data):
    spec, paths = done
    facts = [json.loads((path.parent / "run" / "run.json").read_text()) for path in paths]
    from mqcast.run import Run

    assert facts[0]["start_from"] is None
    assert facts[1]["start_from"] == Run.open(paths[0].parent / "run").weights_digest
    rates = [Run.open(path.parent / "run").config.train.learning_rate for path in paths]
    assert rates[1] == 0.5 * rates[0]
    record = record_of(data, Grid(data), spec)
    assert record.task == "shops_1D"
    assert record.metrics.keys() == {"SQL", "WQL", "MASE", "WAPE"}
    assert all(np.isfinite(value) for value in record.metrics.values())
    assert record.cpu_seconds > 0


def test_closed_days_are_forecast_as_zero(done):
    spec, paths = done
    frame = pl.concat([pl.read_parquet(path) for path in paths])
    closed = frame.filter(pl.col("ds").dt.weekday() == 7)
    assert closed.height
    assert closed.select(pl.col(spec.experiment.quantile_names).abs().max()).row(0) == (0, 0, 0)
    sold = frame.filter(pl.col("ds").dt.weekday() != 7, pl.col("unique_id") == "s0")
    assert sold["q0.9"].min() > 0


def test_nothing_after_the_cutoff_matters(data, done, folder, tmp_path):
    """Later sales and customers are changed: the first window's forecasts are the same to the bit."""
    cutoff = data.cutoffs[0]
    later = pl.col("ds") > cutoff
    other = shops().with_columns(
        y=pl.when(later & (pl.col("open") == 1)).then(pl.col("y") * 3 + 1000).otherwise("y").cast(pl.Float32),
        customers=pl.when(later).then(77).otherwise("customers"),
    )
    other.write_parquet(tmp_path / "shops.parquet")
    towns().write_parquet(tmp_path / "towns.parquet")
    changed = open_experiment(folder / "task.toml").load(tmp_path)
    path = run_windows(changed, spec_of(changed, tmp_path, num_windows=1))[0]
    assert pl.read_parquet(path).equals(pl.read_parquet(done[1][0]))


def test_what_is_done_is_found_again_and_an_interrupted_window_goes_on(done, data, tmp_path, monkeypatch):
    import shutil

    from lab.experiments import leaderboard

    spec, paths = done
    again = spec_of(data, tmp_path)
    shutil.copytree(spec.folder, again.folder)
    shutil.rmtree(again.folder / "window-02")
    calls = []
    monkeypatch.setattr(leaderboard, "_run_window", lambda *given: calls.append(given[2]))
    run_windows(data, again)
    assert calls == [1]
    monkeypatch.undo()
    assert pl.read_parquet(run_windows(data, again)[1]).equals(pl.read_parquet(paths[1]))


@pytest.mark.parametrize(
    ("task", "tables", "match"),
    [
        ({}, {"train": {"max_steps": 5}}, "other settings .max_steps: 4, now 5"),
        ({}, {"model": {"hidden_dim": 8}}, "other settings .model.hidden_dim"),
        ({"horizon": 4}, {}, "started with other data|other settings"),
        ({"refit": Refit(rate=0.25)}, {}, "window-02.*other settings .train.learning_rate"),
        ({"neighbours": ()}, {}, "started with other data"),
    ],
)
def test_what_is_done_is_not_taken_for_what_other_settings_would_give(done, folder, task, tables, match):
    changed = open_experiment(folder / "task.toml").replace(**task).load(folder)
    with pytest.raises(ConfigError, match=match):
        run_windows(changed, spec_of(changed, done[0].out, tables=tables))


def test_what_is_done_is_not_taken_for_forecasts_of_other_data(done, folder, tmp_path):
    shops().with_columns(pl.col("y") * 2).write_parquet(tmp_path / "shops.parquet")
    towns().write_parquet(tmp_path / "towns.parquet")
    changed = open_experiment(folder / "task.toml").load(tmp_path)
    with pytest.raises(ConfigError, match="started with other data"):
        run_windows(changed, spec_of(changed, done[0].out))


def test_minutes_that_change_are_refused(done, data):
    with pytest.raises(ConfigError, match="minutes: None, now 3"):
        run_windows(data, spec_of(data, done[0].out, minutes=3.0))


def test_rows_of_the_plan_alone_are_no_window(folder, data, tmp_path):
    last = shops()["ds"].max()
    plan = shops().filter(pl.col("ds") > last - dt.timedelta(days=7))
    plan = plan.with_columns(pl.col("ds") + dt.timedelta(days=7), y=None, customers=None)
    pl.concat([shops(), plan], how="vertical_relaxed").write_parquet(tmp_path / "shops.parquet")
    towns().write_parquet(tmp_path / "towns.parquet")
    with_plan = open_experiment(folder / "task.toml").load(tmp_path)
    assert with_plan.cutoffs == data.cutoffs
    assert naive_record(with_plan, Grid(with_plan)).metrics == naive_record(data, Grid(data)).metrics


def test_a_column_that_the_data_lack_is_named(folder):
    task = open_experiment(folder / "task.toml")
    assert task.columns is not None
    with pytest.raises(ConfigError, match=r"known column 'promos' is not in the data .did you mean 'promo'"):
        task.replace(columns=task.columns.replace(known=("open", "promos"), kinds={"open": "flag"})).load(folder)


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
def test_anyones_forecasts_are_checked_before_they_are_scored(done, folder, tmp_path, change, match):
    change(pl.read_parquet(done[1][0])).write_parquet(tmp_path / "other.parquet")
    command = ["score", str(folder / "task.toml"), str(tmp_path / "other.parquet"), "--data", str(folder)]
    ran = CliRunner().invoke(app, command)
    assert isinstance(ran.exception, MqcastError), ran.exception
    assert re.search(match, str(ran.exception))


def test_seeds_are_averaged_and_frames_that_do_not_match_are_refused(done, data):
    frame = pl.read_parquet(done[1][0])
    other = frame.with_columns(pl.col(data.task.quantile_names) + 2)
    mean = mean_of_frames([frame, other], data.task.levels)
    assert np.allclose(mean["q0.5"], frame["q0.5"] + 1)
    with pytest.raises(ConfigError, match="same series"):
        mean_of_frames([frame, other.head(3)], data.task.levels)


def test_the_commands_score_a_task_by_its_file(folder, done, tmp_path):
    options = ["--data", str(folder), "--json"]
    task = str(folder / "task.toml")
    ran = CliRunner().invoke(app, ["run", task, "--out", str(tmp_path), "--model", "seasonal-naive", *options])
    assert ran.exit_code == 0, ran.output
    shown = json.loads(ran.stdout)["table"]
    data = open_experiment(task).load(folder)
    expected = naive_record(data, Grid(data)).metrics
    assert next(row for row in shown if row["by"] == "mqcast, shops_1D")["SQL"] == f"{expected['SQL']:.4f}"
    record = json.loads((tmp_path / "records" / "shops_1D" / "seasonal-naive-0.json").read_text())
    assert record["metrics"] == pytest.approx(expected)
    score = ["score", task, str(done[0].folder), "--results", str(tmp_path / "results")]
    ran = CliRunner().invoke(app, [*score, *options])
    assert ran.exit_code == 0, ran.output
    assert {row["model"] for row in json.loads(ran.stdout)["table"]} == {"other", "forecasts"}
    record = json.loads((tmp_path / "results" / "shops_1D" / "forecasts-0.json").read_text())
    (member,) = record["config"]["mean_of"]
    assert record["cpu_seconds"] == member["cpu_seconds"] > 0
    assert member["config"]["train"]["max_steps"] == 4


def test_later_rows_and_series_change_nothing_that_a_window_forecasts(folder, tmp_path):
    """Shops that open later, and what the others sell then, are not known at the first cutoff."""
    first = dt.datetime(2024, 3, 20)
    late = shops().filter((pl.col("unique_id") == "s0") & (pl.col("ds") > first)).with_columns(unique_id=pl.lit("a"))
    rows = shops().with_columns(
        y=pl.when(pl.col("ds") > first).then(-7.0 * pl.col("y")).otherwise("y").cast(pl.Float32)
    )
    (other := tmp_path / "other").mkdir()
    pl.concat([late.with_columns(open=pl.lit(1, pl.Int8)), rows]).write_parquet(other / "shops.parquet")
    pl.concat([towns(), pl.DataFrame({"unique_id": ["a"], "town": ["0"]})]).write_parquet(other / "towns.parquet")
    (other / "task.toml").write_text(TOML)
    forecasts = []
    for place in (folder, other):
        data = open_experiment(place / "task.toml").load(place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forecasts.append(pl.read_parquet(run_windows(data, spec_of(data, tmp_path / place.name, num_windows=1))[0]))
    assert forecasts[0].equals(forecasts[1])


OWN_MODEL = """
import numpy as np
from mqcast import models


@models.register("last-week")
class LastWeek:
    def fit(self, panel, options):
        self.options = options

    def forecast(self, panel, first=None, last=None):
        def of_history(y):
            return np.repeat(np.nan_to_num(y[-7:][: self.options.horizon, None]), len(self.options.quantiles), axis=1)

        return models.forecast_each(panel, self.options, of_history, first, last)
"""


def test_a_registered_model_is_fitted_before_each_window_and_recorded(folder, data, tmp_path):
    (tmp_path / "my_models.py").write_text(OWN_MODEL)
    places = ["--data", str(folder), "--out", str(tmp_path)]
    options = ["--model", "last-week", "--module", str(tmp_path / "my_models.py"), "--json"]
    try:
        ran = CliRunner().invoke(app, ["run", str(folder / "task.toml"), *places, *options])
    finally:
        models.unregister("last-week")
    assert ran.exit_code == 0, (ran.output, ran.exception)
    (record,) = json.loads(ran.stdout)["records"]
    assert record["config"]["model"]["model"] == "last-week"
    assert [window["cutoff"] for window in record["details"]["windows"]] == [str(cutoff) for cutoff in data.cutoffs]
    assert record["cpu_seconds"] == sum(window["cpu_seconds"] for window in record["details"]["windows"]) > 0
    forecasts = pl.read_parquet(tmp_path / "shops_1D" / "last-week-0" / "window-02" / "forecasts.parquet")
    week_before = shops().select("unique_id", pl.col("ds") + dt.timedelta(7), pl.col("y").alias("week before"))
    both = forecasts.join(week_before, on=["unique_id", "ds"])
    assert both.filter(unique_id="s0").height == HORIZON
    assert (both["q0.5"] == both["week before"]).all()
