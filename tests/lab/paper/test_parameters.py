"""The parameter table, in Python and on the command line."""

import json
import subprocess
import sys

import pytest

from lab.paper.parameters import PAPER, parameter_table


@pytest.fixture(scope="module")
def shared() -> dict[str, int]:
    return parameter_table()


def run(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lab", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_models_are_in_the_papers_order(shared):
    assert shared.keys() == PAPER.keys()
    assert shared["mqt-nods"] < shared["mqcnn"] < shared["mqt"]
    assert 2 * shared["mqt"] < shared["mqt-all"]


def test_attention_over_earlier_forecasts_costs_what_the_paper_says(shared):
    assert 15_000 < shared["mqt"] - shared["mqt-nods"] < 17_000


def test_the_width_that_is_not_published_is_fitted_to_one_model(shared):
    assert abs(shared["mqt-nods"] - PAPER["mqt-nods"]) <= 32
    assert round(shared["mqt"], -3) - PAPER["mqt"] in (0, 1000)


def test_heads_per_horizon_are_far_larger_and_change_only_that_model(shared):
    per_horizon = parameter_table("per_horizon")
    assert per_horizon["mqt"] - per_horizon["mqt-nods"] > 15 * (shared["mqt"] - shared["mqt-nods"])
    assert {model: n for model, n in per_horizon.items() if model != "mqt"} == {
        model: n for model, n in shared.items() if model != "mqt"
    }


def test_the_command_line_prints_the_table_for_machines(shared):
    done = run("params", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"model": model, "parameters": n} for model, n in shared.items()]


def test_the_command_line_prints_the_table_for_people_beside_the_papers(shared):
    done = run("params", "--feedback-heads", "shared")
    assert done.returncode == 0, done.stderr
    for model, count in shared.items():
        (line,) = (line for line in done.stdout.splitlines() if f" {model} " in line and f"{count:,}" in line)
        assert f"{PAPER[model]:,}" in line


def test_a_bad_value_is_one_line_and_exit_code_2():
    done = run("params", "--feedback-heads", "many", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit_code"] == 2
    assert done.stderr.count("\n") == 1
    assert "ResearchConfig.feedback_heads" in done.stderr
    assert "'shared' or 'per_horizon'" in done.stderr
