"""`mqcast doctor` says what an installation is, what it lacks, and how to add it."""

import json
import platform
from importlib import metadata

import pytest
import torch
from typer.testing import CliRunner

import mqcast
from mqcast import doctor
from mqcast.cli import app
from mqcast.launch import num_cores
from mqcast.nn import kernels

REQUIREMENTS = ["numpy>=1", 'torch>=2; extra == "fast"', "no-such-package>1; extra == 'search'", 'ruff; extra == "dev"']


def printed(*options: str) -> str:
    outcome = CliRunner().invoke(app, ["doctor", *options])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_the_report_has_the_facts_of_this_process():
    facts = doctor.report()
    assert (facts["version"], facts["python"]) == (mqcast.__version__, platform.python_version())
    assert (facts["torch"], facts["threads"]) == (torch.__version__, torch.get_num_threads())
    assert (facts["kernels"], facts["cores"]) == (kernels.status(), num_cores())
    assert facts["devices"][-1] == "cpu"
    assert json.loads(printed("--json")) == facts | {"warnings": []}


def test_the_table_names_every_fact():
    text = printed()
    assert all(name in text for name in doctor.report())


def test_extras_are_named_with_their_version_or_the_command_that_installs_them(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIREMENTS)
    facts = doctor.report()
    command = "pip install 'mqcast[search]'"
    assert facts["extras"] == {"fast": f"torch {metadata.version('torch')}", "search": command}
    assert f"extra search: {command}" in facts["missing"]
    assert command in printed()


@pytest.mark.parametrize("kernels_off", [True, False])
def test_kernels_that_are_off_are_missing_with_the_reason(monkeypatch, kernels_off):
    if kernels_off:
        monkeypatch.setenv(kernels.ENV_VAR, "off")
    kernels._kernels.cache_clear()
    try:
        facts = doctor.report()
    finally:
        monkeypatch.undo()
        kernels._kernels.cache_clear()
    if kernels_off:
        assert "compiled kernels (plain PyTorch: MQCAST_KERNELS=off)" in facts["missing"]
    else:
        assert (facts["kernels"] == "compiled") == (not any("kernels" in what for what in facts["missing"]))


def test_a_package_that_is_not_installed_has_no_extras(monkeypatch):
    def none(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", none)
    assert doctor.report()["extras"] == {}
