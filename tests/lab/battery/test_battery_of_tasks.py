"""The battery: windows of validation end before those that are judged; jobs, their scores, and the table of all."""

import datetime as dt
import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from lab.__main__ import app
from lab.battery.job import RECORD, Job, Judge, run
from lab.battery.table import Results, geometric_mean, markdown
from lab.battery.tasks import TASKS, BatteryTask, plain, task_of
from lab.commands.battery import command_line
from lab.datasets import Dataset
from lab.datasets.fev import SOURCE
from lab.experiments.records import Record
from lab.experiments.systems import SEASONAL_NAIVE
from lab.experiments.window_data import WindowData
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, SeriesLeftOutWarning
from mqcast.levels import pinball

TASK = "favorita_transactions_1M"
STORES, MONTHS, HORIZON = 5, 54, 12
JUDGED_FROM = dt.datetime(2015, 7, 1)  # the last month before the two judged years
TINY = {"model": {"hidden_dim": 4}, "train": {"max_steps": 2, "warmup_steps": 0}}


def write_tables(folder: Path, changed: float = 1.0) -> Path:
    """Five stores by month; `changed` multiplies all that is observed after the last month of validation."""
    (folder / "fev").mkdir(parents=True)
    months = pl.datetime_range(dt.datetime(2013, 2, 1), dt.datetime(2017, 7, 1), "1mo", eager=True)
    assert len(months) == MONTHS
    factor = np.where(months.to_numpy() > np.datetime64(JUDGED_FROM), changed, 1.0)
    noise = np.random.default_rng(0).uniform(0.8, 1.2, (STORES, MONTHS))
    wave = 10 + 4 * np.sin(2 * np.pi * np.arange(MONTHS) / 12)
    pl.concat(
        pl.DataFrame({"unique_id": str(i + 1), "ds": months, "y": (100 * (i + 1) * wave * noise[i] * factor).round()})
        for i in range(STORES)
    ).write_parquet(folder / f"fev/{TASK}.parquet")
    numbers = [f"{i + 1:02}" for i in range(STORES)]
    pl.DataFrame({"unique_id": numbers, "city": "Quito", "state": "P", "store_type": "D", "cluster": 1}).write_parquet(
        folder / "favorita_static.parquet"
    )
    days = pl.datetime_range(dt.datetime(2013, 1, 1), dt.datetime(2017, 8, 1), "1d", eager=True)
    price = np.where(days.to_numpy() > np.datetime64(JUDGED_FROM + dt.timedelta(30)), changed, 1.0) * 50
    pl.DataFrame({"ds": days, "oil_wti": price}).write_parquet(folder / "favorita_oil.parquet")
    published = [f"{TASK},good,0.5,1,1,1,0,0", f"{TASK},bad,0.9,1,1,1,0,0", "other,best,0.1,1,1,1,0,0"]
    (folder / "fev_published.csv").write_text("\n".join(["task,model,SQL,MASE,WAPE,WQL,a,b", *published]))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_tables(tmp_path_factory.mktemp("data") / "tables")


def done(out: Path, data: Path, system: str = "mqt", **rest) -> tuple[Record, pl.DataFrame]:
    settings = TINY if system == "mqt" else {}
    folder = Job(TASK, system, system, data=str(data), settings=settings, **rest).begin(out)
    return run(folder), pl.read_parquet(folder / "forecasts.parquet")


def test_fev_benchs_windows_are_its_own():
    windows = {name: (task.board.horizon, task.board.windows, task.board.season) for name, task in TASKS.items()}
    assert [windows[name] for name in ("rossmann_1D", "rossmann_1W")] == [(48, 10, 7), (13, 8, 1)]
    for kind in ("stores", "transactions"):
        expected = {"1D": (28, 10, 7), "1W": (13, 10, 1), "1M": (12, 2, 12)}
        assert {period: windows[f"favorita_{kind}_{period}"] for period in expected} == expected
    assert sum(task.is_fev for task in TASKS.values()) == 8
    with pytest.raises(ConfigError, match=r"no task 'rosmann_1D' .did you mean 'rossmann_1D'"):
        task_of("rosmann_1D")


def test_validation_ends_where_the_judged_windows_begin(data):
    judged, before = (task_of(TASK).windows(mode, data) for mode in ("judged", "validation"))
    assert judged.cutoffs == [JUDGED_FROM, dt.datetime(2016, 7, 1)]
    assert before.cutoffs == [dt.datetime(2014, 7, 1)]
    assert before.rows["ds"].max() == before.horizon_of(before.cutoffs[-1])[-1] == JUDGED_FROM
    assert len(task_of("counts").windows("validation", None, 2).cutoffs) == 2


def test_nothing_of_the_judged_windows_is_seen_in_validation(data, tmp_path):
    other = write_tables(tmp_path / "changed", changed=7.0)
    ours, theirs = (done(tmp_path / name, folder) for name, folder in (("a", data), ("b", other)))
    assert ours[1].equals(theirs[1])
    assert ours[0].metrics == theirs[0].metrics
    seen = done(tmp_path / "a", data, mode="judged"), done(tmp_path / "b", other, mode="judged")
    assert seen[0][0].metrics != seen[1][0].metrics
    first = [frame.filter(pl.col("cutoff") == JUDGED_FROM) for _, frame in seen]
    assert first[0].equals(first[1])  # what comes after a cutoff changes no forecast from it
    assert first[0].height == STORES * HORIZON


def test_a_task_may_have_a_table_of_events(tmp_path, monkeypatch):
    board = task_of("counts").board.replace(horizon=3, windows=2, season=1, options={"num_items": 6, "num_weeks": 40})
    monkeypatch.setitem(TASKS, "counts", BatteryTask(board, 2))
    record = run(Job("counts", "mqt", "mqt", settings=TINY).begin(tmp_path))
    assert board.load_dataset(None).schema.events
    assert len(record.details["windows"]) == 2
    assert set(record.details["excess"]) == {"q0.5", "q0.9"}


def test_what_was_not_observed_is_neither_known_nor_judged():
    days = pl.datetime_range(dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 20), "1d", eager=True)
    rows = pl.DataFrame({"unique_id": "a", "ds": days, "y": np.arange(20.0), "measured": np.arange(20) != 17})
    dataset = Dataset(rows.lazy(), Schema(freq="D", observed="measured"))
    board = task_of("eia").board.replace(horizon=4, windows=1, season=1)
    judge = Judge(WindowData(board, plain(dataset)))
    assert np.isnan(judge.grid.y[0]).nonzero()[0].tolist() == [17]
    judge.complete(judge.grid.seasonal_naive(days[15]), days[15])
    assert judge.judged == 3


def test_seasonal_naive_takes_its_spread_from_a_thousand_steps_as_the_published_one_does():
    days = pl.datetime_range(dt.datetime(2020, 1, 1), interval="1d", end=dt.datetime(2023, 1, 20), eager=True)
    board = task_of("m5").board.replace(horizon=7, windows=1)
    cutoff, frames = days[len(days) - 8], []
    for changed in (0, len(days) - 1007, len(days) - 1006):  # the last of these is one of the thousand
        y = np.random.default_rng(0).uniform(size=len(days)) + 9 * (np.arange(len(days)) < changed)
        rows = pl.DataFrame({"unique_id": "a", "ds": days, "y": y})
        frames.append(Judge(WindowData(board, Dataset(rows.lazy(), Schema(freq="D")))).grid.seasonal_naive(cutoff))
    assert frames[0].equals(frames[1])
    assert not frames[0].equals(frames[2])


def test_losses_coverage_and_bias_are_those_of_a_plain_loop(data, tmp_path):
    record, frame = done(tmp_path, data, mode="judged")
    actual = task_of(TASK).windows("judged", data).rows.select("unique_id", "ds", "y")
    rows = frame.join(actual, on=["unique_id", "ds"])
    assert rows.height == frame.height == 2 * STORES * HORIZON
    y, size = rows["y"].to_numpy(), rows["y"].abs().sum()
    for name, level in (("P50", 0.5), ("P90", 0.9)):
        loss = sum(pinball(a, q, level) for a, q in zip(y, rows[f"q{level:g}"], strict=True))
        assert record.metrics[name] == pytest.approx(2 * loss / size)
    assert record.metrics["bias"] == pytest.approx((rows["q0.5"] - rows["y"]).sum() / size)
    assert record.details["coverage"]["q0.3"] == pytest.approx((rows["y"] <= rows["q0.3"]).mean())
    assert record.details["published"] == {"model": "good", "SQL": 0.5}
    assert set(record.details["excess"]) == {"q0.5", "q0.9"}
    assert record.config["settings"]["model"]["hidden_dim"] == 4
    assert record.cpu_seconds > 0


def test_a_model_fitted_at_the_only_cutoff_has_no_revisions_to_judge(data, tmp_path):
    record, _ = done(tmp_path, data, SEASONAL_NAIVE)
    assert "excess" not in record.details
    assert record.details["published"] is None  # other windows than the published ones
    refitted, _ = done(tmp_path, data, mode="judged", refit=1)
    assert "excess" not in refitted.details


def test_series_that_a_system_leaves_out_are_seasonal_naives_and_counted(data):
    windows = task_of(TASK).windows("judged", data)
    judge, cutoff = Judge(windows), windows.cutoffs[0]
    naive = judge.grid.seasonal_naive(cutoff)
    whole = judge.complete(naive.filter(pl.col("unique_id") != "2").with_columns(pl.col("q0.5") + 1), cutoff)
    assert whole.height == naive.height
    assert whole.filter(unique_id="2")["q0.5"].to_list() == naive.filter(unique_id="2")["q0.5"].to_list()
    assert judge.scores([whole])[1]["filled"] == pytest.approx(1 / STORES)


def test_a_store_that_reopens_within_a_window_is_judged(tmp_path, monkeypatch):
    """As 180 stores of rossmann_1D do: no rows for half a year, and so no forecast of a network's own."""
    days = pl.datetime_range(dt.datetime(2014, 1, 1), interval="1d", end=dt.datetime(2014, 4, 20), eager=True)
    plan = {"customers": 5, "open": 1, "promo": 0, "state_holiday": "0", "school_holiday": 0}
    rows = pl.concat(
        pl.DataFrame({"unique_id": i, "ds": days, "y": 9.0 + days.dt.day()} | plan) for i in ("0001", "0002")
    )
    closed = (pl.col("unique_id") == "0002") & pl.col("ds").is_between(days[60], days[100])
    rows.filter(~closed).write_parquet(tmp_path / "rossmann_daily.parquet")
    columns = list(SOURCE.columns["rossmann_static.parquet"])
    stores = [[name, "a", "a", "HE", 10.0, 3, 2013, 1, 7, 2013, None] for name in ("0001", "0002")]
    pl.DataFrame(stores, schema=columns, orient="row").write_parquet(tmp_path / "rossmann_static.parquet")
    board = task_of("rossmann_1D").board.replace(horizon=7, windows=2)
    monkeypatch.setitem(TASKS, "rossmann_1D", BatteryTask(board, 1))
    job = Job("rossmann_1D", "mqt", "mqt", mode="judged", settings=TINY, data=str(tmp_path))
    with pytest.warns(SeriesLeftOutWarning, match="'0002'"):
        record = run(job.begin(tmp_path / "out"))
    assert [window["cutoff"] for window in record.details["windows"]] == [str(days[95]), str(days[102])]
    assert record.details["filled"] == 2 / 23  # days 101 and 102 of 7 + 2 + 14


def test_a_finished_job_is_kept_and_another_of_its_name_is_refused(data, tmp_path):
    record, _ = done(tmp_path, data)
    again, _ = done(tmp_path, data)
    assert again == record
    with pytest.raises(ConfigError, match=r"was begun otherwise .minutes: None, now 2.0.; name another --label"):
        done(tmp_path, data, minutes=2.0)


def test_minutes_limit_a_fit(data, tmp_path):
    record, _ = done(tmp_path, data, minutes=0.05)
    assert record.config["settings"]["train"]["max_minutes"] == 0.05


def keep(out: Path, task: str, label: str, seed: int, loss: float) -> None:
    job = Job(task, label, label, seed, "judged")
    metrics = dict.fromkeys(("SQL", "WQL", "P50", "P90"), loss) | {"bias": 0.1}
    details = {"coverage": {"q0.1": 0.1, "q0.5": 0.5, "q0.9": 0.9}, "filled": 0.0, "published": {"SQL": 0.5}}
    record = Record(task, label, seed, metrics, {"job": asdict(job)}, 60.0, 120.0, details)
    folder = job.begin(out)
    (folder / RECORD).write_text(json.dumps(asdict(record)))


def test_the_table_relates_losses_and_takes_geometric_means(tmp_path):
    for task, naive, mine in (
        ("rossmann_1D", 1.0, (0.4, 0.6)),
        ("rossmann_1W", 2.0, (0.25, 0.25)),
        ("m5", 1.0, (1, 1)),
    ):
        keep(tmp_path, task, SEASONAL_NAIVE, 0, naive)
        keep(tmp_path, task, "mqcnn", 0, 2 * naive)
        for seed, loss in enumerate(mine):
            keep(tmp_path, task, "mqt", seed, loss)
    results = Results(tmp_path, "judged")
    row = next(row for row in results.rows() if (row["task"], row["model"]) == ("rossmann_1D", "mqt"))
    assert (row["÷ naive"], row["÷ MQ-CNN"], row["÷ LightGBM"], row["÷ published"]) == (0.5, 0.25, None, 1.0)
    assert row["spread"] == pytest.approx(np.std([0.4, 0.6], ddof=1) / 0.5)
    assert (row["seeds"], row["CPU-min"]) == (2, 2.0)
    mqt = next(row for row in results.summary() if row["model"] == "mqt")
    assert mqt["skill, fev"] == pytest.approx(1 - (0.5 * 0.125) ** 0.5)
    assert mqt["÷ MQ-CNN"] == pytest.approx((0.25 * 0.0625 * 0.5) ** (1 / 3))
    last = [row for row in results.against("mqcnn") if row["model"] == "mqt"][-1]
    assert (last["task"], last["P90"]) == ("all 3", pytest.approx(mqt["÷ MQ-CNN"]))
    assert geometric_mean([None]) is None
    assert "| rossmann_1D | mqt " in markdown(results.rows())
    with pytest.raises(ConfigError, match=r"no results of 'mqtt' .did you mean 'mqt'"):
        results.against("mqtt")


def test_the_command_runs_jobs_in_processes_of_their_own_and_shows_the_table_again(data, tmp_path):
    out, results = tmp_path / "out", tmp_path / "results"
    settings = ["--set", "model.hidden_dim=4", "--set", "train.max_steps=2", "--set", "train.warmup_steps=0"]
    told = ["battery", "--data", str(data), "--out", str(out), "--task", TASK, "--label", "tiny", "--processes", "2"]
    ran = CliRunner().invoke(app, [*told, *settings])
    assert ran.exit_code == 0, ran.output
    assert f"{TASK}, tiny, seed 0: SQL" in ran.output
    again = ["battery", "table", "--out", str(out), "--against", SEASONAL_NAIVE, "--results", str(results), "--json"]
    tables = json.loads(CliRunner().invoke(app, again).output)
    assert [row["model"] for row in tables["tasks"]] == [SEASONAL_NAIVE, "tiny"]
    assert tables["against seasonal-naive"][0]["SQL"] == tables["tasks"][1]["÷ naive"]
    assert (results / "table-validation.md").read_text().startswith("# The battery: validation windows")
    assert Record.read(results / f"{TASK}-validation" / "tiny-0.json").model == "tiny"


def test_records_that_are_kept_stand_beside_new_ones(tmp_path):
    keep(tmp_path / "early", "m5", SEASONAL_NAIVE, 0, 1.0)
    keep(tmp_path / "early", "m5", "mqt", 0, 0.6)
    for record in Results(tmp_path / "early", "judged").records:
        record.write(tmp_path / "results")
    keep(tmp_path / "late", "m5", "mqt", 0, 0.5)
    keep(tmp_path / "late", "m5", "mqt", 1, 0.7)
    rows = Results(tmp_path / "late", "judged", tmp_path / "results").rows()
    assert [(row["model"], row["SQL"], row["seeds"]) for row in rows] == [(SEASONAL_NAIVE, 1.0, 1), ("mqt", 0.6, 2)]
    assert Results(tmp_path / "late", "judged").rows()[0]["÷ naive"] is None


def test_what_fails_is_told_with_its_folder_and_the_rest_is_shown(data, tmp_path, monkeypatch):
    def run_here(command, **_):
        folder = Path(command[-1])
        if folder.name.startswith(SEASONAL_NAIVE):
            run(folder)
        return subprocess.CompletedProcess(command, int(not (folder / RECORD).exists()))

    monkeypatch.setattr(subprocess, "run", run_here)
    ran = CliRunner().invoke(app, ["battery", "--data", str(data), "--out", str(tmp_path), "--task", TASK])
    assert f"1 of the jobs failed; the first, {tmp_path}/validation/{TASK}/mqt-0" in str(ran.exception)
    assert f"| {TASK} | seasonal-naive" in ran.output
    two = ["battery", "--out", str(tmp_path), "--system", "mqt", "--system", "mqcnn", "--label", "both"]
    assert "for the results of one --system" in str(CliRunner().invoke(app, two).exception)


def test_records_tell_the_command_without_the_folders_of_a_machine():
    told = command_line(["battery", "--data", "../some/data", "--out", "../runs/mine", "--set", "train.max_steps=5"])
    assert told == "python -m lab battery --data data --out mine --set train.max_steps=5"
