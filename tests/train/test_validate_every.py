"""Validation after a number of steps instead of after each epoch."""

import signal

import numpy as np
import pytest
import torch
from train_samples import CONFIG, HORIZON, WINDOW, config, digest, sample_panel

from mqcast.data.windows import WindowPlan
from mqcast.errors import Interrupted
from mqcast.report.figures import learning_curve
from mqcast.run import Run
from mqcast.train.checkpoint import Checkpoints
from mqcast.train.distributed import Ranks
from mqcast.train.loop import State, Training, fit
from mqcast.train.records import Step, kept_line, read_metrics
from mqcast.train.spans import training_spans

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")


def lines(run: Run, record: str = "epoch") -> list[dict]:
    return [line for line in read_metrics(run.metrics) if line["record"] == record]


def without_seconds(run: Run) -> list[dict]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_metrics(run.metrics)]


@pytest.fixture(scope="module")
def by_epoch(tmp_path_factory) -> Run:
    return fit(sample_panel(), config(patience=100), tmp_path_factory.mktemp("run") / "by epoch")


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_validations_are_so_many_steps_apart_and_the_last_is_at_the_end(every, by_epoch, tmp_path):
    run = fit(sample_panel(), config(validate_every=every, patience=100), tmp_path / "run")
    num_steps = lines(by_epoch)[-1]["step"]
    assert [line["step"] for line in lines(run)] == [*range(every, num_steps, every), num_steps]
    assert lines(run, "step")[-1]["step"] == num_steps, "as many epochs as before"
    assert [(line["step"], line["epoch"], line["loss"]) for line in lines(run, "step")] == [
        (line["step"], line["epoch"], line["loss"]) for line in lines(by_epoch, "step")
    ]
    of_epoch = {line["step"]: line["epoch"] for line in lines(run, "step")}
    assert all(line["epoch"] == of_epoch[line["step"]] for line in lines(run))
    assert lines(run)[-1]["valid_loss"] == lines(by_epoch)[-1]["valid_loss"]


def test_patience_counts_validations_and_the_best_step_is_known(tmp_path, monkeypatch):
    losses, seen = iter([3.0, 2.0, 2.5, 2.4, 2.6]), []

    def validate(self: Training):
        seen.append(self._copy(self.average))
        return next(losses), {}

    monkeypatch.setattr(Training, "_validate", validate)
    run = fit(sample_panel(), config(max_epochs=100, patience=3, validate_every=2), tmp_path / "run")
    assert [line["step"] for line in lines(run)] == [2, 4, 6, 8, 10]
    for name, weight in run.network().named_parameters():
        assert torch.equal(weight, seen[1][name])
    assert kept_line(read_metrics(run.metrics), patience=3)["step"] == 4
    assert kept_line(read_metrics(run.metrics), patience=None)["step"] == 10
    checkpoint = Checkpoints(run.checkpoints).newest()
    assert checkpoint is not None
    assert checkpoint.state["best_step"] == 4
    assert checkpoint.state["finished"] == "no improvement in 3 validations"


def test_an_interrupted_run_goes_on_to_the_bit_at_a_validation_and_over_epochs(by_epoch, tmp_path):
    settings, every = config(validate_every=5, max_steps=14), 5
    whole = fit(sample_panel(), settings, tmp_path / "whole")
    end_of_epoch = lines(by_epoch)[0]["step"]
    assert every < end_of_epoch < 14
    for stop in (every, end_of_epoch):
        cut = Training(sample_panel(), settings, tmp_path / f"cut {stop}", Ranks())

        def stop_there(record, cut=cut, stop=stop):
            if isinstance(record, Step) and record.step == stop:
                cut.stop.signal = signal.SIGTERM

        cut.listeners = (stop_there,)
        with pytest.raises(Interrupted):
            cut.run_to_end()
        resumed = fit(sample_panel(), settings, cut.run.folder, resume=True)
        assert digest(resumed) == digest(whole)
        assert without_seconds(resumed) == without_seconds(whole)


def test_a_run_that_ran_out_of_time_goes_on_as_if_it_had_not(tmp_path):
    limits = {"validate_every": 4, "max_steps": 6}
    whole = fit(sample_panel(), config(**limits), tmp_path / "whole")
    fit(sample_panel(), config(max_minutes=1e-9, **limits), tmp_path / "short")
    assert [line["step"] for line in lines(Run.open(tmp_path / "short"))] == [1]
    resumed = fit(sample_panel(), config(**limits), tmp_path / "short", resume=True)
    assert digest(resumed) == digest(whole)
    assert without_seconds(resumed) == without_seconds(whole)


def test_the_state_of_a_run_of_the_first_version_is_read():
    numbers = {"epoch": 2, "step_in_epoch": 3, "step": 27, "trajectories": 90, "seconds": 1.5, "epoch_loss": 0.5}
    more = {"epoch_count": 9.0, "best_loss": 0.25, "epochs_without_gain": 1, "finished": None, "metrics_size": 10}
    assert State(**numbers, **more).best_step is None


def test_the_learning_curve_has_a_point_per_validation(tmp_path):
    run = fit(sample_panel(), config(validate_every=2, max_steps=6), tmp_path / "run")
    figure = learning_curve({"run": read_metrics(run.metrics)})
    assert next(list(trace.x) for trace in figure.data if trace.name == "validation") == [2, 4, 6]


def test_a_limit_of_windows_draws_the_same_ones_each_time_from_all_series(tmp_path):
    panel, valid = sample_panel(), training_spans(sample_panel(), CONFIG)[1]
    short = WINDOW.replace(num_fcts=1)

    def windows(most: int | None, seed: int = 0) -> set[tuple[int, int]]:
        plan = WindowPlan(panel, short, valid, seed=seed, shuffle=False, max_windows=most)
        batches = [plan.batch(0, step) for step in range(plan.num_batches(0))]
        assert all(len(np.unique(batch.start)) == 1 for batch in batches), "windows of a batch share their dates"
        return {(int(s), int(t)) for batch in batches for s, t in zip(batch.series, batch.start, strict=True)}

    every = windows(None)
    assert len(every) == panel.num_series * HORIZON
    some = windows(10)
    assert len(some) == 10
    assert some < every
    assert some == windows(10) != windows(10, seed=1)
    assert len({series for series, _ in some}) > 4
    assert len({start for _, start in some}) > 1
    assert windows(1000) == every
    with_limit = Training(panel, config(max_validation_windows=5), tmp_path / "run", Ranks())
    assert sum(len(with_limit.valid_plan.batch(0, i)) for i in range(with_limit.valid_plan.num_batches(0))) == 5
    assert with_limit._validate() == with_limit._validate()
