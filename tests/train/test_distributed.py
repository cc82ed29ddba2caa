"""Any number of processes is as one."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore
from train_samples import WINDOW, config, digest, sample_panel

from mqcast.data.windows import WindowPlan
from mqcast.train.distributed import Ranks, _add_up, branches
from mqcast.train.loop import fit
from mqcast.train.spans import training_spans

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")
PROGRAM = Path(__file__).parent / "train_samples.py"
SETTINGS = config(checkpoint_minutes=0.0)


def torchrun(num: int, folder: Path, restarts: int = 0, *, succeeds: bool = True, **accidents: object) -> None:
    """Train with so many processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={num}"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--max-restarts={restarts}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in accidents.items()}
    done = subprocess.run(
        [*command, str(PROGRAM), str(folder)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == (0 if succeeds else 1), done.stdout + done.stderr


def every_trajectory() -> Counter:
    train, _ = training_spans(sample_panel(), SETTINGS)
    plan = WindowPlan(sample_panel(), WINDOW, train)
    windows = zip(plan.series, plan.first_fct, plan.last_fct, strict=True)
    return Counter(f"{series} {t}" for series, first, last in windows for t in range(first, last + 1))


@given(st.integers(1, 70), st.integers(1, 9))
def test_shares_are_the_whole_and_branches_are_whole_parts_of_the_tree(num_leaves, num_ranks):
    shares = [Ranks(rank, num_ranks).share(num_leaves) for rank in range(num_ranks)]
    assert [i for share in shares for i in share] == list(range(num_leaves))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    for share in shares:
        found = branches(share)
        assert [i for first, stop in found for i in range(first, stop)] == list(share)
        for first, stop in found:
            assert (stop - first).bit_count() == 1
            assert first % (stop - first) == 0


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**31))
def test_sums_do_not_depend_on_the_number_of_ranks(num_leaves, num_ranks, seed):
    """Numbers of very different size, so that another order of additions would show."""
    rng = np.random.default_rng(seed)
    leaves = torch.tensor(rng.normal(size=(num_leaves, 3)) * 10.0 ** rng.integers(-6, 6, (num_leaves, 3))).float()
    alone = _add_up(lambda i: leaves[i].clone(), {}, num_leaves)
    of_ranks = {}
    for rank in range(num_ranks):
        for branch in branches(Ranks(rank, num_ranks).share(num_leaves)):
            of_ranks[branch] = _add_up(lambda i: leaves[i].clone(), {}, num_leaves, branch)

    def no_leaf(i):
        raise AssertionError("every leaf is in some rank's branches")

    assert torch.equal(_add_up(no_leaf, of_ranks, num_leaves), alone)
    assert torch.allclose(alone.double(), leaves.double().sum(dim=0), rtol=1e-4, atol=1e-5 * float(leaves.abs().max()))


def test_whoever_is_free_gets_the_next_part_and_each_part_goes_to_one_rank():
    store = HashStore()
    fast, slow = (Ranks(rank, 2, store=store).claims(5) for rank in range(2))
    assert [next(fast), next(slow), next(fast), next(fast), next(slow)] == [0, 1, 2, 3, 4]
    assert [*fast, *slow] == []
    assert [*Ranks().claims(3)] == [0, 1, 2]


def test_two_processes_train_as_one_to_the_bit_and_so_do_one_that_goes_on_for_two(tmp_path):
    """Under torchrun. In all, every trajectory is seen once an epoch, also where one process takes over from two."""
    alone = fit(sample_panel(), SETTINGS, tmp_path / "alone")
    torchrun(2, tmp_path / "two", LOG_TO=folder(tmp_path / "seen by two"))
    assert digest(tmp_path / "two") == digest(alone)
    torchrun(2, tmp_path / "both", LOG_TO=folder(tmp_path / "seen"), STOP_AT=7, succeeds=False)
    assert not (tmp_path / "both" / "model.safetensors").exists()
    torchrun(1, tmp_path / "both", LOG_TO=folder(tmp_path / "seen"))
    assert digest(tmp_path / "both") == digest(alone)
    twice = Counter(dict.fromkeys(every_trajectory(), SETTINGS.train.max_epochs))
    for name in ("seen by two", "seen"):
        files = list((tmp_path / name).iterdir())
        assert len(files) == 2
        assert Counter(line for path in files for line in path.read_text().splitlines()) == twice


def folder(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.slow
def test_a_killed_rank_is_started_again_by_torchrun_and_ends_with_the_same_weights(tmp_path):
    alone = fit(sample_panel(), SETTINGS, tmp_path / "alone")
    torchrun(2, tmp_path / "run", restarts=1, KILL_RANK="1 5")
    assert digest(tmp_path / "run") == digest(alone)
    torchrun(2, tmp_path / "lost", restarts=0, KILL_RANK="1 5", succeeds=False)
