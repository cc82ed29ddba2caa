"""The compiled kernels are taken where they can be, and what is said when they are not."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from model_samples import PAPER, SMALL, WIDE, distance, sample_batch, sample_network

import build_kernels
from mqcast.nn import encoder, kernels, library
from mqcast.nn.networks import Network

ROOT = Path(__file__).parents[2]
SOURCE = library.FOLDER / library.SOURCE
OTHERS = (
    {"head_dim": 4},
    {"context_dim": 12},
    {"feedback_heads": "per_horizon"},
    {**PAPER, "feedback_heads": "per_horizon"},
    {"model": "mqt-all"},
)
compiled = pytest.mark.skipif(kernels.status() != "compiled", reason=kernels.status())


@pytest.fixture
def afresh():
    """The library is looked for again, and once more after the test."""
    kernels._kernels.cache_clear()
    yield
    kernels._kernels.cache_clear()


def is_by_kernels(network: Network) -> bool:
    """Do the kernels make its forecasts? They never call what makes contexts in PyTorch."""
    calls = []
    handle = network.contexts.register_forward_hook(lambda *_: calls.append(1))
    network(sample_batch(2))
    handle.remove()
    return not calls


def test_where_there_is_a_compiler_there_are_kernels():
    has_compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    assert kernels.status() == "compiled" or not has_compiler, "run build_kernels.py"


@compiled
@pytest.mark.parametrize("change", [{}, PAPER, {"block": "bare"}, {"horizon_code": False}], ids=str)
@pytest.mark.parametrize("model", ["mqt", "mqt-nods"])
def test_networks_of_the_default_and_of_the_paper_go_by_kernels(model, change):
    assert is_by_kernels(sample_network(SMALL.replace(model=model, **WIDE | change)))


@compiled
@pytest.mark.parametrize("model", ["mqt", "mqt-all", "mqcnn"])
def test_convolutions_above_the_first_go_by_kernels(model, monkeypatch):
    calls = []
    monkeypatch.setattr(encoder, "stacked_convolutions", lambda x, *_: calls.append(1) or x)
    sample_network(SMALL.replace(model=model, **WIDE | {"hidden_dim": 8}))(sample_batch(2))
    assert calls
    sample_network(SMALL.replace(model=model, **WIDE | {"hidden_dim": 12}))(sample_batch(2))
    assert len(calls) == 1


@compiled
@pytest.mark.parametrize("change", OTHERS, ids=str)
def test_others_go_by_pytorch(change):
    assert not is_by_kernels(sample_network(SMALL.replace(**WIDE | change)))


@compiled
def test_other_precisions_go_by_pytorch():
    network = sample_network(SMALL.replace(**WIDE))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_by_kernels(network)
    assert not kernels.use_kernels(torch.zeros(1, dtype=torch.float64))


@compiled
def test_forecasts_with_and_without_kernels_agree(afresh, monkeypatch):
    network = sample_network(SMALL.replace(**WIDE))
    by_kernels = network(sample_batch())
    kernels._kernels.cache_clear()
    monkeypatch.setenv(kernels.ENV_VAR, "off")
    assert kernels.status() == "plain PyTorch: MQCAST_KERNELS=off"
    assert not is_by_kernels(network)
    assert distance(network(sample_batch()).detach(), by_kernels.detach()) < 1e-5


@compiled
def test_the_kernels_compile_without_a_warning(tmp_path):
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")))
    command = [compiler, "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command += build_kernels.MACHINE_FLAGS.get(platform.machine(), ())
    done = subprocess.run([*command, SOURCE, "-o", tmp_path / "k.so"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@compiled
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the sanitizer's library is found by gcc")
def test_kernels_touch_no_memory_that_is_not_theirs(tmp_path):
    """Compiled with checks of every address, in a process of its own."""
    shutil.copy(SOURCE, tmp_path)
    if why := build_kernels.build(SOURCE, tmp_path, build_kernels.SANITIZED, ("gcc",)):
        pytest.skip(f"no sanitizer: {why}")
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    script = ROOT / "tests" / "nn" / "kernel_walk.py"
    environment = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "walked" in done.stdout


@compiled
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the sanitizers are gcc's")
def test_random_configurations_agree_with_pytorch_under_the_sanitizers():
    """The beginning of the campaign."""
    command = [sys.executable, "-m", "lab.campaigns.kernels", "--count", "60"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "60 tried, 0 failed" in done.stdout
