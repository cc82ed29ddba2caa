"""Fitting and forecasting in somebody else's process: what was the host's stays as it was."""

import gc
import locale
import os
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from train_samples import CONFIG, MODEL, TRAIN, config, digest, sample_panel

from mqcast import Forecaster
from mqcast.data.inputs import Inputs
from mqcast.errors import TrainingError
from mqcast.forecast.predict import KEPT
from mqcast.nn.networks import Network
from mqcast.train.loop import fit
from mqcast.train.records import Step

FREE = {"micro_batch": None, "max_steps": 3, "checkpoint_minutes": 0.0}  # the micro-batch is measured
pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")


def _in_a_new_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _manners() -> dict[str, object]:
    """All that a host may have set, or counts on. (Python's random numbers are drawn by beartype, in tests.)"""
    return {
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "numpy's random state": repr(np.random.get_state()),  # noqa: NPY002
        "torch's threads here": torch.get_num_threads(),
        "torch's threads elsewhere": _in_a_new_thread(torch.get_num_threads),
        "threads": sorted(one.name for one in threading.enumerate() if not one.name.startswith(KEPT)),
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "warnings filters": list(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL),
        "environment": dict(os.environ),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "floating point errors": np.geterr(),
        "gradients": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()),
        "working folder": Path.cwd(),
    }


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@contextmanager
def _as_it_was():
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)
    gc.unfreeze()  # what a command, run by a test in this process, has frozen may end at any time
    before = _manners()
    yield
    changed = [name for name, state in _manners().items() if state != before[name]]
    assert not changed, f"not as before: {', '.join(changed)}"


def _forecaster(**settings) -> Forecaster:
    tables = {"window": {"history": 12, "num_fcts": 8}, "model": {"hidden_dim": 8, "encoder_dilations": (1, 2, 4)}}
    return Forecaster("mqt", 4, config=tables | {"train": settings}, max_steps=2, verbose=False)


def test_fitting_leaves_the_host_as_it_was(two_threads, tmp_path):
    with _as_it_was():
        fit(sample_panel(), config(**FREE), tmp_path / "run")


def test_a_fit_that_fails_leaves_the_host_as_it_was(two_threads, tmp_path):
    with _as_it_was(), pytest.raises(TrainingError):
        fit(sample_panel(), config(**FREE | {"learning_rate": 1e30, "max_steps": 20}), tmp_path / "run")


def test_forecasting_backtesting_and_saving_leave_the_host_as_it_was(two_threads, tmp_path):
    with _as_it_was():
        made = _forecaster().fit(sample_panel())
        made.predict()
        made.backtest()
        made.evaluate()
        made.save(tmp_path / "saved")
        Forecaster.load(tmp_path / "saved").predict()


def test_while_one_thread_fits_others_have_their_own_number_of_threads(two_threads, tmp_path):
    seen = []

    def look(record) -> None:
        if isinstance(record, Step):
            seen.append((torch.get_num_threads(), _in_a_new_thread(torch.get_num_threads)))

    fit(sample_panel(), config(**FREE), tmp_path / "run", listeners=(look,))
    assert set(seen) == {(1, 2)}


@pytest.mark.parametrize("model", ["mqt", "mqrnn"])
def test_fits_in_threads_give_the_weights_that_each_gives_alone(model, tmp_path):
    def weights(job: tuple[int, str]) -> str:
        seed, where = job
        settings = CONFIG.replace(model=MODEL.replace(model=model, dropout=0.2), train=TRAIN.replace(**FREE, seed=seed))
        return digest(fit(sample_panel(), settings, tmp_path / f"{where}-{seed}"))

    alone = [weights((seed, "alone")) for seed in range(3)]
    assert len(set(alone)) == 3
    with ThreadPoolExecutor(4) as pool:
        host = pool.submit(lambda: [torch.rand(100) for _ in range(2000)])
        together = list(pool.map(weights, [(seed, "together") for seed in range(3)]))
        host.result()
    assert together == alone


@pytest.mark.parametrize("model", ["mqt", "mqrnn", "mqt-all", "mqcnn"])
def test_a_seeded_network_starts_as_it_would_from_torch_s_own_generator(model):
    given = MODEL.replace(model=model), Inputs.of(sample_panel()), 4
    own = Network.seeded(*given, seed=5)
    torch.manual_seed(5)
    other = Network(*given).state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in own.state_dict().items())


def test_a_fit_keeps_nothing_in_memory(tmp_path):
    def things_after(number: int) -> int:
        fit(sample_panel(), config(**FREE | {"max_steps": 1}), tmp_path / str(number))
        gc.collect()
        return len(gc.get_objects())

    counts = [things_after(number) for number in range(4)]
    assert counts[3] - counts[1] < 100, "before, each fit left some 300"
