"""`mqcast fit` and `mqcast forecast`, as a person runs them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from train_samples import CONFIG, HORIZON, digest, sample_world

from mqcast.cli import main
from mqcast.data.panel import pack
from mqcast.launch import REASONS, num_cores, say_why
from mqcast.run import Run
from mqcast.train.records import read_metrics

NUM_ITEMS = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a packed panel and settings."""
    folder, world = tmp_path_factory.mktemp("place"), sample_world()
    world.frame.write_parquet(folder / "sales.parquet")
    pack(folder / "sales.parquet", folder / "panel", world.schema, world.static, world.events)
    (folder / "run.toml").write_text(CONFIG.to_toml())
    return folder


def start(place: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-W", "ignore", "-m", "mqcast", *arguments]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def mqcast(place: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    process = start(place, *arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, out + err
    return out, err


def test_one_process_and_two_train_and_forecast_alike(place):
    fit = ("fit", "panel", "--config", "run.toml", "--set", "train.max_steps=6", "--members", "2")
    _, log = mqcast(place, *fit, "one", "--processes", "1")
    assert "epoch 1, step 6: loss" in log
    assert "validation" in log
    assert "P90" in log
    out, log = mqcast(place, *fit, "two", "--processes", "2", "--json")
    assert log == "", "JSON is for machines"
    told = json.loads(out)
    assert told["step"] == 6
    assert digest(place / "one") == digest(place / "two")
    assert Run.open(place / "one").config.model.members == 2
    for name, processes in (("alone", "1"), ("together", "2")):
        mqcast(place, "forecast", "one", "panel", f"{name}.parquet", "--first", "2019-08-04", "--processes", processes)
    one, other = (pl.read_parquet(place / f"{name}.parquet") for name in ("alone", "together"))
    assert one.equals(other)
    assert one.height == NUM_ITEMS * HORIZON * 10


@pytest.mark.parametrize(
    "signals",
    [
        [(signal.SIGINT, 2), (signal.SIGTERM, 2)],
        pytest.param([(signal.SIGINT, 1), (signal.SIGTERM, 1)], marks=pytest.mark.slow),
    ],
    ids=["two processes", "one process"],
)
def test_ctrl_c_saves_and_the_same_command_with_resume_goes_on(place, signals):
    """The process that was started passes each signal on to those that it has started."""
    settings = ("--config", "run.toml", "--set", "train.max_epochs=4")
    mqcast(place, "fit", "panel", "whole", *settings, "--processes", "1", "--resume")
    for number, processes in signals:
        run = f"{processes} stopped by {number}"
        process = start(place, "fit", "panel", run, *settings, "--processes", str(processes))
        metrics = place / run / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
            assert process.poll() is None, process.communicate()
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        if (place / run / "model.safetensors").exists():  # it was done before the signal came
            continue
        assert process.returncode == 128 + number, err
        assert "saved in" in err
        assert "--resume" in err
        assert "Traceback" not in err
        mqcast(place, "fit", "panel", run, *settings, "--resume", "--processes", "1")
        assert digest(place / run) == digest(place / "whole")
        steps = [line["step"] for line in read_metrics(metrics) if line["record"] == "step"]
        assert steps == sorted(set(steps))


def test_what_is_wrong_is_said_in_one_line(place, monkeypatch, capsys):
    cases = {
        ("fit", "panel", "x", "--processes", "1"): "the number of steps ahead is missing; give --horizon",
        ("fit", "panel", "x", "--config", "nowhere.toml"): "no settings file at nowhere.toml",
        ("fit", "panel", "x", "--config", "run.toml", "--set", "rate=1"): "write it as table.setting=value",
        ("fit", "panel", "x", "--config", "run.toml", "--set", "train.rate=1"): "TrainConfig has no setting 'rate'\n",
        ("fit", "nowhere", "x", "--config", "run.toml", "--processes", "1"): "no panel at nowhere",
        ("forecast", "nowhere", "panel", "x.parquet"): "no run at nowhere",
    }
    monkeypatch.chdir(place)
    for arguments, words in cases.items():
        monkeypatch.setattr(sys, "argv", ["mqcast", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert words in capsys.readouterr().err
        assert not (place / "x").exists()


def test_of_several_processes_that_fail_one_says_why(place):
    fit = ("fit", "panel", "twice", "--config", "run.toml", "--set", "train.max_steps=1")
    mqcast(place, *fit, "--processes", "1")
    for _ in range(3):
        _, err = mqcast(place, *fit, "--processes", "2", code=2)
        assert err.count("error:") == 1, err
        assert "resume" in err


def test_processes_leave_it_to_the_one_that_started_them_to_say_why(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert say_why("by torchrun", "DataError", follows=False), "the first rank says it"
    monkeypatch.setenv(REASONS, str(tmp_path))
    assert say_why("a full disk", "DataError", follows=False)
    monkeypatch.setenv("RANK", "0")
    assert say_why("lost another one", "DataError", follows=True)
    assert sorted(tmp_path.iterdir())[0].read_text() == "DataError\na full disk"
    monkeypatch.setenv(REASONS, str(tmp_path / "gone"))  # whoever started them is no more
    assert not say_why("a full disk", "DataError", follows=False)


def test_all_cores_are_used_unless_said_otherwise():
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


def begun(place: Path, run: str) -> tuple[subprocess.Popen, list[int]]:
    """Two processes that have begun to train for long, and their numbers."""
    settings = (
        "--config",
        "run.toml",
        "--processes",
        "2",
        "--set",
        "train.max_epochs=500",
        "--set",
        "train.patience=none",
    )
    process = start(place, "fit", "panel", run, *settings)
    metrics, deadline = place / run / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    return process, [int(child) for child in children]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the processes in /proc")
def test_processes_leave_when_the_one_that_started_them_is_killed(place):
    process, children = begun(place, "orphaned")
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list((place / "orphaned" / "checkpoints").glob("*.json")), "and save"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the processes in /proc")
def test_a_killed_process_takes_the_others_with_it_and_is_told(place):
    process, children = begun(place, "bereft")
    os.kill(children[1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGKILL, err
    assert "one of 2 processes was ended by SIGKILL" in err
    *spoken, _ = err.splitlines()  # the other one, unless it was ended before it could speak
    assert all("has lost another one" in line or "saved in" in line for line in spoken), err
    assert "Traceback" not in err
