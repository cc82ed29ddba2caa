"""What training tells: the metrics file, log lines, a progress bar, MLflow."""

import logging
import re
import sys
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from mqcast.errors import ConfigError
from mqcast.settings import ModelConfig, RunConfig, TrainConfig, WindowConfig
from mqcast.train.records import (
    Begin,
    Epoch,
    LogLines,
    Message,
    MetricsFile,
    MlflowTracker,
    ProgressBar,
    Step,
    read_metrics,
    summary,
)

CONFIG = RunConfig(
    window=WindowConfig(horizon=4, history=6, num_fcts=8), model=ModelConfig(hidden_dim=8), train=TrainConfig(seed=7)
)
EPOCH = Epoch(4, 0, 0.5, 0.25, {"P50": 0.1234, "P90": 0.0567}, True, 4000, 2.0)


def step(number: int, **changes) -> Step:
    record = Step(number, 0, 1 / number, 1e-3, 2.0, 1000 * number, number / 2)
    return replace(record, **changes)


# -- the metrics file --------------------------------------------------------------------------------------------------


def test_every_so_many_steps_and_every_epoch_have_a_line(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", log_every=3)
    for record in (Begin(0, 9), *map(step, range(1, 8)), Message("hello"), EPOCH):
        file(record)
    file.close()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["record"], line["step"]) for line in lines] == [("step", 3), ("step", 6), ("epoch", 4)]
    assert lines[0]["loss"] == 1 / 3
    assert lines[-1]["valid_quantile_loss"] == {"P50": 0.1234, "P90": 0.0567}


def test_what_came_after_the_checkpoint_is_cut_off_on_resuming(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, log_every=1)
    file(step(1))
    size = file.sync()
    assert size == path.stat().st_size
    file(step(2))
    file.close()
    resumed = MetricsFile(path, log_every=1, size=size)
    assert resumed.sync() == size
    resumed(step(2, loss=0.125))
    resumed.close()
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [(1, 1.0), (2, 0.125)]


def test_a_new_run_begins_with_an_empty_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("left by a run that was never saved\n")
    MetricsFile(path, log_every=1).close()
    assert read_metrics(path) == []


def test_a_last_line_that_is_cut_off_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, log_every=1)
    file(step(1))
    file(step(2))
    file.close()
    path.write_bytes(path.read_bytes()[:-5])
    assert [line["step"] for line in read_metrics(path)] == [1]


# -- lines for people --------------------------------------------------------------------------------------------------


def test_log_lines_are_messages_and_one_an_epoch(caplog):
    caplog.set_level(logging.INFO, logger="mqcast.train")
    for record in (Begin(0, 9), Message("resuming from step 4"), step(1), EPOCH):
        LogLines()(record)
    assert caplog.messages == ["resuming from step 4", summary(EPOCH)]
    assert summary(EPOCH) == (
        "epoch 1, step 4: loss 0.5000, validation 0.2500, P50 0.1234, P90 0.0567 (best), 2,000 trajectories/s"
    )


def test_an_epoch_without_validation_says_nothing_of_it():
    record = replace(EPOCH, valid_loss=None, valid_quantile_loss={}, is_best=False)
    assert summary(record) == "epoch 1, step 4: loss 0.5000, 2,000 trajectories/s"


class Terminal:
    """A wide terminal that remembers what was drawn."""

    def __init__(self):
        self.file = StringIO()
        self.bar = ProgressBar(Console(file=self.file, force_terminal=True, width=80, legacy_windows=False))

    def shows_after(self, *records) -> str:
        for record in records:
            self.bar(record)
        self.bar.progress.refresh()
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.file.getvalue())
        return text.replace("\r", "\n").strip().splitlines()[-1]


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    terminal.bar.close()


def test_the_bar_shows_epoch_loss_validation_and_speed(terminal):
    shown = terminal.shows_after(Begin(0, 40), step(1), step(2))
    assert "epoch 1 loss 0.5000 2,000 traj./s" in shown
    assert "2/40" in shown
    shown = terminal.shows_after(EPOCH, step(5, epoch=1, loss=0.2))
    assert "epoch 2 loss 0.2000 P50 0.1234 P90 0.0567 2,000 traj./s" in shown
    assert "5/40" in shown
    assert summary(EPOCH) in terminal.file.getvalue()


def test_the_bar_shows_the_speed_of_late(terminal):
    slow, fast = step(1, trajectories=100, seconds=100.0), step(2, trajectories=10_100, seconds=110.0)
    assert "1,000 traj./s" in terminal.shows_after(Begin(0, 40), slow, fast)


def test_messages_stand_above_the_bar_as_they_are(terminal):
    terminal.shows_after(Message("checkpoint [3] is damaged"))
    assert "checkpoint [3] is damaged" in terminal.file.getvalue()


def test_the_bar_begins_anew_with_another_run(terminal):
    terminal.shows_after(Begin(0, 40), step(30, trajectories=9_000, seconds=90.0), EPOCH)
    shown = terminal.shows_after(Begin(0, 20), step(1), step(2))
    assert "epoch 1 loss 0.5000 2,000 traj./s" in shown
    assert "2/20" in shown
    shown = terminal.shows_after(step(3, seconds=100.0, trajectories=10_950))
    assert "100 traj./s" in shown


# -- MLflow ------------------------------------------------------------------------------------------------------------


def test_settings_and_metrics_arrive_at_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes ten seconds to set up
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    try:
        tracker = MlflowTracker(CONFIG, "first")
        for record in (Begin(0, 40), Message("hello"), step(9), step(10), EPOCH):
            tracker(record)
        tracker.close()
        (run,) = mlflow.MlflowClient().search_runs(["0"])
        steps = [point.step for point in mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")]
    finally:
        mlflow.set_tracking_uri(before)
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert (run.data.params["train.seed"], run.data.params["model.hidden_dim"]) == ("7", "8")
    assert steps == [10]
    expected = {"train_loss": 0.5, "valid_loss": 0.25, "valid_P50": 0.1234, "valid_P90": 0.0567, "loss": 0.1}
    assert {name: run.data.metrics[name] for name in expected} == expected


def test_without_mlflow_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"pip install mqcast\[track\]"):
        MlflowTracker(CONFIG, "first")


def test_a_log_has_a_line_a_tenth_of_the_way(caplog):
    caplog.set_level("INFO", logger="mqcast.train")
    listen = LogLines()
    listen(Begin(100, 400))
    for step in range(101, 401):
        listen(Step(step, 0, 0.25, 1e-3, 1.0, 10 * step, step / 10))
    assert [record.message.split(",")[0] for record in caplog.records] == [
        f"step {n} of 400" for n in range(120, 401, 40)
    ]
    assert caplog.records[0].message == "step 120 of 400, 12 s: loss 0.2500"
