"""Training that begins with another run's weights."""

import polars as pl
import pytest
import torch
from train_samples import CONFIG, WINDOW, config, digest, sample_panel, sample_world

from mqcast import ConfigError, Panel
from mqcast.errors import ArtifactError
from mqcast.run import Run
from mqcast.train.loop import fit

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")


@pytest.fixture(scope="module")
def before(tmp_path_factory) -> Run:
    return fit(sample_panel(), config(max_steps=24), tmp_path_factory.mktemp("before") / "run")


def less(weeks: int) -> Panel:
    """The sample's first weeks, read as all of them were."""
    world = sample_world()
    dates = world.frame["ds"].unique().sort()
    rows = world.frame.filter(pl.col("ds") <= dates[weeks - 1])
    return Panel.from_frame(rows, like=sample_panel(), static=world.static, events=world.events)


def test_a_run_begins_with_the_weights_it_starts_from(before, tmp_path):
    run = fit(
        sample_panel(), config(max_steps=1, learning_rate=1e-12, average=None), tmp_path / "run", start_from=before
    )
    for name, weight in before.network().state_dict().items():
        torch.testing.assert_close(run.network().state_dict()[name], weight, rtol=0, atol=1e-9)
    assert run.facts["start_from"] == digest(before)


def test_it_is_ahead_of_one_that_begins_anew_and_has_the_scales_of_its_own_data(before, tmp_path):
    def losses(name: str, start_from: Run | None):
        run = fit(less(30), config(max_steps=2, patience=None), tmp_path / name, start_from=start_from)
        lines = run.metrics.read_text().splitlines()
        return run, float(lines[0].split('"loss": ')[1].split(",")[0])

    warm, first_loss = losses("warm", before)
    anew, loss_anew = losses("anew", None)
    assert first_loss < 0.9 * loss_anew
    scales = [(run.folder / "scaling.safetensors").read_bytes() for run in (warm, anew, before)]
    assert scales[0] == scales[1] != scales[2]


def test_resumed_it_goes_on_to_the_same_weights_and_refuses_other_beginnings(before, tmp_path):
    whole = fit(sample_panel(), config(seed=4, max_steps=3), tmp_path / "whole", start_from=before)
    folder = tmp_path / "cut"
    fit(sample_panel(), config(seed=4, max_steps=3, max_minutes=1e-6), folder, start_from=before)
    with pytest.raises(ConfigError, match="started from other weights"):
        fit(sample_panel(), config(seed=4, max_steps=3), folder, resume=True)
    assert digest(fit(sample_panel(), config(seed=4, max_steps=3), folder, resume=True, start_from=before)) == digest(
        whole
    )


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(before, tmp_path):
    wider = CONFIG.replace(model=CONFIG.model.replace(hidden_dim=12))
    with pytest.raises(ConfigError, match="another hidden_dim"):
        fit(sample_panel(), wider, tmp_path / "run", start_from=before)
    with pytest.raises(ConfigError, match="another horizon"):
        fit(sample_panel(), CONFIG.replace(window=WINDOW.replace(horizon=5)), tmp_path / "run", start_from=before)
    world = sample_world()
    fewer = world.frame.filter(pl.col("unique_id") != world.frame["unique_id"][0])
    other = Panel.from_frame(fewer, world.schema, world.static, world.events)
    if other.layout.signature != sample_panel().layout.signature:
        with pytest.raises(ArtifactError, match="--like and the training panel"):
            fit(other, CONFIG, tmp_path / "run", start_from=before)
    assert not (tmp_path / "run").exists()
