"""Killed without warning at any moment, training goes on to the same weights."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from train_samples import STAGES, config, digest, sample_panel

from mqcast.train.loop import fit

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")
PROGRAM = Path(__file__).parent / "train_samples.py"
NUM_STEPS = 14  # of an uninterrupted run, at least; each is saved


def start(folder: Path, **accidents: object) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in accidents.items()}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def killed_while_saving(folder: Path, rng: random.Random) -> bool:
    """Start, or go on, and die at some stage of one of the next saves; was it so?"""
    process = start(folder, DIE_WHILE_SAVING=f"{rng.choice(STAGES)} {rng.randint(1, 3)}")
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode != 0


def killed_at_some_moment(folder: Path, rng: random.Random) -> bool:
    """Start, or go on, and be killed from outside at any time, the start included; was it in time?"""
    process = start(folder)
    assert process.stdout is not None
    if rng.random() < 0.8:
        process.stdout.readline()  # training has begun
    time.sleep(rng.uniform(0, 0.5))
    process.kill()
    process.communicate(timeout=120)
    return process.returncode != 0


def survives(folder: Path, num_kills: int, num_while_saving: int, expected: str, seed: int) -> None:
    """So many kills, spread over runs of a few each; every run that is let go on ends with the expected weights."""
    rng = random.Random(seed)
    left = {killed_while_saving: num_while_saving, killed_at_some_moment: num_kills - num_while_saving}
    number = 0
    while any(left.values()):
        number += 1
        for _ in range(rng.randint(2, 3)):
            kill = rng.choice([kind for kind, count in left.items() for _ in range(count)] or [None])
            if kill is not None:
                left[kill] -= kill(folder / str(number), rng)
        process = start(folder / str(number))
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        assert digest(folder / str(number)) == expected


@pytest.fixture
def expected(tmp_path) -> str:
    run = fit(sample_panel(), config(checkpoint_minutes=0.0), tmp_path / "uninterrupted")
    assert (run.checkpoints / f"00002-{NUM_STEPS:09}.json").exists() or list(run.checkpoints.iterdir())
    return digest(run)


def test_two_kills_one_of_them_during_a_save(tmp_path, expected):
    survives(tmp_path, 2, 1, expected, seed=1)


@pytest.mark.slow
def test_fifty_kills_twenty_of_them_during_a_save(tmp_path, expected):
    survives(tmp_path, 50, 20, expected, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_at_each_stage_of_a_save(tmp_path, expected, stage):
    process = start(tmp_path / "run", DIE_WHILE_SAVING=f"{stage} 2")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    process = start(tmp_path / "run")
    process.communicate(timeout=120)
    assert digest(tmp_path / "run") == expected
