"""Several networks in one run: each trains as it would alone, and their mean is the forecast."""

import signal

import polars as pl
import pytest
import torch
from train_samples import CONFIG, HORIZON, MODEL, config, digest, sample_panel, sample_world

from mqcast import ConfigError, Forecaster, models
from mqcast.data.inputs import Inputs
from mqcast.errors import Interrupted, TrainingError
from mqcast.forecast.predict import cutoff_plan, forecast, forecast_frame
from mqcast.nn.members import member_seeds
from mqcast.run import Run
from mqcast.run_diagnostics import trained
from mqcast.settings import RunConfig
from mqcast.train import loop
from mqcast.train.distributed import Ranks
from mqcast.train.loop import Training, fit
from mqcast.train.memory import require_memory
from mqcast.train.records import Step, read_metrics

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")
NUM_MEMBERS = 3


def members(number: int = NUM_MEMBERS, model: str = "mqt", **train) -> RunConfig:
    return config(**train).replace(model=MODEL.replace(members=number, model=model))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return fit(sample_panel(), members(max_steps=6), tmp_path_factory.mktemp("members") / "run")


def last_batch(run: Run):
    plan = cutoff_plan(run, sample_panel())
    windows = next(plan.batches())
    return run.assembler(sample_panel()).on_windows(plan.config)(windows), windows.num_fcts


@pytest.mark.parametrize("model", ["mqt", "mqrnn"])
def test_a_member_trains_as_it_would_alone_to_the_bit(model, tmp_path, monkeypatch):
    """Norms are clipped, so that a norm over all members would show."""
    fixed = {"max_steps": 5, "patience": None, "clip_norm": 0.05}
    together = fit(sample_panel(), members(2, model, **fixed), tmp_path / "together").network()
    plan = loop.WindowPlan
    monkeypatch.setattr(loop, "WindowPlan", lambda *args, **options: plan(*args, **options | {"seed": 0}))
    for number, seed in enumerate(member_seeds(0, 2)):
        alone = fit(sample_panel(), members(1, model, seed=seed, **fixed), tmp_path / f"alone {number}")
        assert max(line["gradient_norm"] for line in read_metrics(alone.metrics) if line["record"] == "step") > 0.05
        for name, weight in alone.network().state_dict().items():
            assert torch.equal(together.members[number].state_dict()[name], weight), name


def test_members_begin_with_weights_of_their_own_and_the_first_has_those_of_the_seed():
    assert member_seeds(5, 1) == [5]
    assert member_seeds(5, 4)[:3] == member_seeds(5, 3), "more members leave the others as they are"
    seeds = [seed for run_seed in (0, 1, 2**63 - 1) for seed in member_seeds(run_seed, 32)]
    assert len(set(seeds)) == 96
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_members_have_dropout_of_their_own(tmp_path):
    run = Training(sample_panel(), members(2), tmp_path / "run", Ranks())
    first, second = run.network.members
    second.load_state_dict(first.state_dict())
    _, _, batches = next(run._steps())
    once, other, again = (float(run._loss(batches[0], 0, network)[0].detach()) for network in (first, second, first))
    assert once == again != other


def test_the_forecast_is_the_mean_of_the_members_and_never_crosses(run):
    network = run.network()
    batch, n = last_batch(run)
    each = [member.quantiles(batch, n) for member in network.members]
    assert len(each) == NUM_MEMBERS
    assert not torch.equal(each[0].values, each[1].values)
    found = network.quantiles(batch, n)
    torch.testing.assert_close(found.values, torch.stack([one.values for one in each]).mean(dim=0))
    torch.testing.assert_close(found.values, network(batch, n), rtol=0, atol=0)
    assert bool((found.values.diff(dim=-1) >= 0).all())
    assert torch.equal(found.crossed, torch.stack([one.crossed for one in each]).any(dim=0))


def test_an_explanation_is_the_mean_of_the_members(run):
    network = run.network()
    batch, n = last_batch(run)
    found, each = network.explain(batch, n), [member.explain(batch, n) for member in network.members]
    torch.testing.assert_close(found.history, torch.stack([one.history for one in each]).mean(dim=0))
    torch.testing.assert_close(found.history.sum(dim=-1), torch.ones(found.history.shape[:-1]))
    assert found.feedback is not None
    without = fit(sample_panel(), members(2, "mqt-nods", max_steps=1), run.folder.parent / "nods").network()
    assert without.explain(batch, n).feedback is None


def test_validation_scores_the_mean(run, tmp_path):
    training = Training(sample_panel(), run.config, tmp_path / "run", Ranks())
    both, _ = training._validate()
    each = []
    for number in range(NUM_MEMBERS):
        training.average = {
            f"member.{other}.{name}": weight
            for other in range(NUM_MEMBERS)
            for name, weight in training.network.members[number].named_parameters()
        }
        each.append(training._validate()[0])
    assert len({*each, both}) == NUM_MEMBERS + 1
    assert both < sum(each) / NUM_MEMBERS, "the loss is convex"


@pytest.mark.parametrize("spans", [(), ((1, 2),)])
def test_an_interrupted_run_goes_on_to_the_same_weights(spans, tmp_path):
    settings = members(2, max_steps=6)
    settings = settings.replace(model=settings.model.replace(spans=spans))
    whole = fit(sample_panel(), settings, tmp_path / "whole")
    cut = Training(sample_panel(), settings, tmp_path / "cut", Ranks())

    def stop(record):
        if isinstance(record, Step) and record.step == 3:
            cut.stop.signal = signal.SIGTERM

    cut.listeners = (stop,)
    with pytest.raises(Interrupted):
        cut.run_to_end()
    assert digest(fit(sample_panel(), settings, tmp_path / "cut", resume=True)) == digest(whole)
    other = settings.replace(model=settings.model.replace(members=3))
    with pytest.raises(ConfigError, match=r"other settings \(model.members\)"):
        fit(sample_panel(), other, tmp_path / "cut", resume=True)


def test_files_frames_and_the_report_need_nothing_special(run, tmp_path):
    again, panel = Run.open(run.folder), sample_panel()
    frame = forecast_frame(again, panel)
    assert pl.read_parquet(forecast(again, panel, tmp_path / "forecasts.parquet")).equals(frame)
    cutoff = frame["cutoff"].max()
    facts = trained(again, panel, cutoff, cutoff)
    one = sum(parameter.numel() for parameter in again.network().members[0].parameters())
    assert (facts.facts["members"], facts.facts["parameters"]) == ("3", f"{3 * one:,}")
    assert facts.encodings is not None
    assert facts.explain is not None
    assert facts.explain([panel.ids[0].as_py()]).height


def test_a_loss_that_is_not_finite_is_told_if_only_one_member_has_it(tmp_path):
    run = Training(sample_panel(), members(2), tmp_path / "run", Ranks())
    with torch.no_grad():
        next(run.network.members[1].parameters()).fill_(torch.nan)
    with pytest.raises(TrainingError, match="the loss of step 1 is not finite"):
        run.run_to_end()


def test_a_run_starts_from_as_many_members(run, tmp_path):
    again = fit(
        sample_panel(), run.config.replace(train=run.config.train.replace(seed=1)), tmp_path / "run", start_from=run
    )
    assert again.facts["start_from"] == digest(run)
    with pytest.raises(ConfigError, match="another members, so its weights do not fit"):
        fit(sample_panel(), CONFIG, tmp_path / "other", start_from=run)


def test_the_members_share_the_memory_of_the_machine(monkeypatch):
    monkeypatch.setattr("mqcast.train.memory._memory", lambda: 4.5e8)
    wide = MODEL.replace(hidden_dim=512)
    inputs = Inputs.of(sample_panel())
    require_memory(wide, inputs, HORIZON)
    with pytest.raises(ConfigError, match="more than this machine has"):
        require_memory(wide.replace(members=32), inputs, HORIZON)


def test_the_forecaster_takes_their_number_and_keeps_it(tmp_path):
    world = sample_world()
    given = {"horizon": HORIZON, "schema": world.schema, "max_steps": 2, "verbose": False}
    small = {"model": {"hidden_dim": 4}}
    made = Forecaster(**given, config=small, members=2).fit(world.frame, world.static, world.events)
    assert made.config_.model.members == 2
    assert made.settings_.filter(pl.col("setting") == "model.members")["origin"].to_list() == ["arguments"]
    again = Forecaster.load(made.save(tmp_path / "made"))
    assert again.members == 2
    assert again.predict().equals(made.predict())
    then = Forecaster(**given, seed=1).fit(world.frame, world.static, world.events, start_from=made)
    assert then.config_.model.members == 2, "it keeps the network that it starts from"


def test_small_data_have_five_and_a_file_may_say_another_number(tmp_path):
    world, file = sample_world(), tmp_path / "run.toml"
    file.write_text("[model]\nmembers = 4\n")

    def number(**arguments):
        made = Forecaster(horizon=HORIZON, schema=world.schema, **arguments)
        return models.get("mqt").settings(sample_panel(), made._options()).config.model.members

    assert (number(), number(config=file), number(config=file, members=2)) == (5, 4, 2)
