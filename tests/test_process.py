"""Forked processes, temporary folders, and Ctrl-C from Python."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import polars as pl
import pytest

from mqcast import Forecaster, process
from mqcast.errors import ForkedProcessError, Interrupted, MqcastError
from mqcast.train import loop

SMALL = {
    "window": {"history": 12, "num_fcts": 8},
    "model": {"hidden_dim": 8, "encoder_dilations": (1, 2, 4)},
    "train": {"log_every": 1},
}


@pytest.fixture
def weekly() -> pl.DataFrame:
    weeks = pl.datetime_range(pl.datetime(2022, 1, 2), pl.datetime(2023, 6, 25), "1w", eager=True)
    shops = [
        pl.DataFrame(
            {"unique_id": [shop] * len(weeks), "ds": weeks, "y": [float(3 + i % 5) for i in range(len(weeks))]}
        )
        for shop in "abc"
    ]
    return pl.concat(shops)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """A place for temporary folders of this test alone."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def _forecaster(**params) -> Forecaster:
    return Forecaster("mqt", 4, config=SMALL, max_steps=2, verbose=False, **params)


def test_a_new_fit_takes_the_place_of_the_old_temporary_folder(weekly, temporary):
    made = _forecaster().fit(weekly)
    first = made.predict()
    made.fit(weekly)
    assert len(list(temporary.glob("mqcast-*"))) == 1
    assert made.predict().equals(first)
    made.backtest(refit=8)
    made.backtest(refit=8)
    assert len(list(temporary.glob("mqcast-*"))) == 2
    del made
    assert not list(temporary.glob("mqcast-*"))


def test_a_fit_that_fails_leaves_no_temporary_folder_and_what_was_fitted_before(weekly, temporary, monkeypatch):
    made = _forecaster().fit(weekly)
    monkeypatch.setattr(loop.Training, "run_to_end", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.fit(weekly)
    assert len(list(temporary.glob("mqcast-*"))) == 1
    assert made.predict().height == 12


def test_ctrl_c_is_a_keyboard_interrupt_that_advises_only_what_can_be_done(weekly, temporary, tmp_path, monkeypatch):
    step = loop.Training._run_step

    def interrupted(self, leaves, batches):
        os.kill(os.getpid(), signal.SIGINT)
        return step(self, leaves, batches)

    monkeypatch.setattr(loop.Training, "_run_step", interrupted)
    assert not issubclass(Interrupted, Exception)
    with pytest.raises(KeyboardInterrupt, match="folder=") as stopped:
        _forecaster().fit(weekly)
    assert "resume=True" not in str(stopped.value)
    assert not list(temporary.glob("mqcast-*"))
    with pytest.raises(KeyboardInterrupt, match="resume=True"):
        _forecaster(folder=tmp_path / "run").fit(weekly)
    monkeypatch.undo()
    assert _forecaster(folder=tmp_path / "run").fit(weekly, resume=True).predict().height == 12


def test_ctrl_c_that_comes_too_late_is_not_swallowed(weekly, temporary, monkeypatch):
    end = loop.Training._end_with_validation

    def interrupted(self, reason):
        os.kill(os.getpid(), signal.SIGINT)
        return end(self, reason)

    monkeypatch.setattr(loop.Training, "_end_with_validation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _forecaster().fit(weekly)


def test_a_host_that_handles_signals_goes_on_doing_so(weekly, monkeypatch):
    heard, step = [], loop.Training._run_step

    def interrupted(self, leaves, batches):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(self, leaves, batches)

    monkeypatch.setattr(loop.Training, "_run_step", interrupted)
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        _forecaster().fit(weekly)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(heard) == {signal.SIGTERM}


def _outcome(function, *args) -> str:
    try:
        function(*args)
    except MqcastError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def _in_a_forked_process(function, *args) -> str:
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        return pool.apply_async(_outcome, (function, *args)).get(timeout=30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_is_told_to_spawn_and_deletes_nothing(weekly, temporary):
    global _fitted
    _fitted = _forecaster().fit(weekly)
    for use in (_predict, _fit):
        assert "spawn" in _in_a_forked_process(use, weekly)
    pid = os.fork()
    if pid == 0:
        _fitted = None  # as at the end of a program
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert _fitted.predict().height == 12, "its folder is there"
    _fitted = None


def _predict(frame) -> None:
    _fitted.predict()


def _fit(frame) -> None:
    _forecaster().fit(frame)


def test_a_forked_process_is_refused_by_the_pid_of_its_parent(monkeypatch):
    monkeypatch.setattr(process, "_user", os.getppid())
    with pytest.raises(ForkedProcessError, match="spawn"):
        process.use()


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError", "os.kill(os.getpid(), signal.SIGINT)"])
def test_no_temporary_folder_outlives_the_process(end, tmp_path):
    program = f"""
        import os, signal, sys, tempfile
        from mqcast import process
        tempfile.tempdir = {str(tmp_path)!r}
        class Owner: pass
        owner = Owner()
        folder = process.new_temporary_folder()
        process.keep_as_long_as(owner, folder)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        assert folder.exists(), "a forked process has removed it"
        {end}
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert "AssertionError" not in ended.stderr, ended.stderr
    assert not list(tmp_path.iterdir())
