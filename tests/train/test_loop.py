"""The loop against what its settings promise."""

import gc
import json
import math
import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from train_samples import CONFIG, HORIZON, MODEL, TRAIN, WINDOW, config, digest, sample_panel, sample_world

from mqcast import ConfigError, Panel
from mqcast.data.batch import Assembler
from mqcast.data.windows import WindowPlan
from mqcast.errors import ArtifactError, Interrupted, TrainingError
from mqcast.nn.loss import quantile_loss
from mqcast.run import Run
from mqcast.settings import SplitConfig, TrainConfig
from mqcast.train import loop, memory
from mqcast.train.distributed import Ranks
from mqcast.train.loop import Training, fit
from mqcast.train.memory import PEAK, kept_bytes, pick_micro_batch
from mqcast.train.optimiser import learning_rate
from mqcast.train.records import Message, Step, read_metrics
from mqcast.train.spans import training_spans

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")


def training(folder, settings=CONFIG, **changes) -> Training:
    return Training(sample_panel(), settings, folder, Ranks(), **changes)


def epochs(run: Run) -> list[dict]:
    return [line for line in read_metrics(run.metrics) if line["record"] == "epoch"]


def test_the_loss_falls_and_the_same_settings_give_the_same_weights(tmp_path):
    one, other = (fit(sample_panel(), CONFIG, tmp_path / name) for name in ("one", "other"))
    losses = [line["train_loss"] for line in epochs(one)]
    assert losses[-1] < 0.95 * losses[0]
    assert digest(one) == digest(other)
    assert digest(fit(sample_panel(), config(seed=1), tmp_path / "third")) != digest(one)


@pytest.mark.parametrize("frozen", [False, True])
def test_training_leaves_the_garbage_collection_of_its_caller_alone(tmp_path, frozen):
    gc.unfreeze()  # a command that a test ran in this process may have left it so
    if frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    fit(sample_panel(), config(max_steps=1), tmp_path / "run")
    after = gc.get_freeze_count()
    gc.unfreeze()
    assert (after > 0) == (before > 0) == frozen


def test_training_leaves_the_random_numbers_and_threads_of_its_caller_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    fit(sample_panel(), config(max_steps=2), tmp_path / "run")
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads


def test_a_step_is_adam_on_the_mean_loss_of_the_whole_batch(tmp_path):
    """Micro-batches change nothing but rounding: one plain step on all windows at once gives the same weights."""
    settings = CONFIG.replace(
        model=MODEL.replace(dropout=0.0), train=TRAIN.replace(max_steps=1, average=None, clip_norm=0.05)
    )
    run = training(tmp_path / "run", settings)
    network = run.run.new_network()
    batch = run.assemble(run.plan.batch(0, 0))
    n = WINDOW.num_fcts
    loss, count = quantile_loss(network(batch, n), batch.targets(n), batch.is_scored(n), network.levels)
    (loss / count).backward()
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 0.05)
    assert norm > 0.05
    torch.optim.Adam(network.parameters(), lr=TRAIN.learning_rate).step()
    run.run_to_end()
    for name, parameter in network.named_parameters():
        assert torch.allclose(run.parameters[name], parameter, atol=2e-5), name


def test_masked_targets_and_their_number_do_not_count(tmp_path):
    run = training(tmp_path / "run")
    steps = []
    run.listeners = (steps.append,)
    _, leaves, batches = next(run._steps())
    with torch.no_grad():
        parts = [run._loss(batches[i], i, *run.network.members) for i in range(len(leaves))]
    expected = sum(loss for loss, _ in parts) / sum(count for _, count in parts)
    run._run_step(leaves, batches)
    assert steps[0].loss == pytest.approx(float(expected), rel=1e-6)
    scored = sum(int(batch.is_fct.sum()) for batch in batches.values())
    assert steps[0].trajectories == scored


def test_early_stopping_restores_the_best_weights(tmp_path, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.4, 2.6])
    seen = []

    def validate(self: Training):
        seen.append(self._copy(self.average))
        return next(losses), {}

    monkeypatch.setattr(Training, "_validate", validate)
    run = fit(sample_panel(), config(max_epochs=100, patience=3), tmp_path / "run")
    assert len(epochs(run)) == 5
    assert [line["is_best"] for line in epochs(run)] == [True, True, False, False, False]
    for name, weight in run.network().named_parameters():
        assert torch.equal(weight, seen[1][name])


def test_a_gain_below_min_gain_is_none(tmp_path, monkeypatch):
    losses = iter([1.0, 0.95, 0.91])
    monkeypatch.setattr(Training, "_validate", lambda self: (next(losses), {}))
    run = fit(sample_panel(), config(max_epochs=100, patience=2, min_gain=0.1), tmp_path / "run")
    assert [line["is_best"] for line in epochs(run)] == [True, False, False]


def test_without_patience_the_final_weights_are_kept_and_everything_is_trained_on(tmp_path):
    settings = config(patience=None, max_epochs=2, average=None)
    run = training(tmp_path / "run", settings)
    assert run.valid_plan is None
    assert run.plan.num_trajectories > training(tmp_path / "other").plan.num_trajectories
    run.run_to_end()
    assert epochs(run.run)[-1]["valid_loss"] is None
    for name, weight in run.run.network().named_parameters():
        assert torch.equal(weight, run.parameters[name])


def test_validation_is_the_mean_loss_on_targets_that_training_never_saw(tmp_path):
    run = training(tmp_path / "run", config(average=None))
    loss, by_level = run._validate()
    network, n = run.network.eval(), WINDOW.num_fcts
    plan = run.valid_plan
    batch = run.assemble(plan.batch(0, 0).take(np.arange(0)))
    total = count = demand = pinball = 0.0
    for step in range(plan.num_batches(0)):
        batch = run.assemble(plan.batch(0, step))
        with torch.no_grad():
            forecasts = network(batch, n)
        one, terms = quantile_loss(forecasts, batch.targets(n), batch.is_scored(n), network.levels)
        total, count = total + one.item(), count + terms.item()
        scored = batch.is_scored(n)
        loc, scale = batch.loc[:, None, -n:], batch.scale[:, None, -n:]
        y = torch.expm1(loc + scale * batch.targets(n))[scored].double()
        q = torch.expm1(loc + scale * forecasts[..., 1])[scored].double()
        demand += float(y.abs().sum())
        pinball += float(torch.maximum(0.9 * (y - q), 0.1 * (q - y)).sum())
    assert loss == pytest.approx(total / count, rel=1e-5)
    assert by_level["P90"] == pytest.approx(2 * pinball / demand, rel=1e-4)
    train_until = run.plan.last_target.max()
    assert plan.first_fct.min() >= train_until
    assert plan.last_target.max() == train_until + HORIZON


def test_the_average_follows_the_weights_and_is_what_is_saved(tmp_path):
    run = training(tmp_path / "run", config(average=0.5, patience=None, max_steps=1))
    start = run._copy()
    run.run_to_end()
    decay = min(0.5, 1 / 10)
    for name, weight in run.run.network().named_parameters():
        expected = start[name] * decay + run.parameters[name] * (1 - decay)
        assert torch.allclose(weight, expected, atol=1e-7)


def test_the_learning_rate_rises_and_falls_as_set():
    settings = TrainConfig(learning_rate=1.0, schedule="cosine", warmup_steps=10)
    rates = [learning_rate(settings, step, 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1, rel=1e-3)
    assert rates[9] == pytest.approx(0.5 + 0.5 * math.cos(math.pi * 0.09))
    assert rates[50] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0)
    assert learning_rate(settings, 1000, 100) == pytest.approx(0)
    assert {learning_rate(TrainConfig(learning_rate=0.3), step, 100) for step in (0, 5, 500)} == {0.3}


class Clock:
    """A clock that training reads, and that moves on by some seconds a step."""

    def __init__(self, seconds_a_step: float):
        self.now, self.seconds_a_step = 1000.0, seconds_a_step

    def monotonic(self) -> float:
        return self.now

    def __call__(self, record) -> None:
        self.now += self.seconds_a_step if isinstance(record, Step) else 0.0


def rates(run: Run) -> list[float]:
    return [line["rate"] for line in read_metrics(run.metrics) if line["record"] == "step"]


def test_the_learning_rate_reaches_zero_when_time_runs_out_and_rises_with_more_of_it(tmp_path, monkeypatch):
    clock = Clock(6.0)
    monkeypatch.setattr(loop, "time", clock)
    settings = {"schedule": "cosine", "max_epochs": 1000, "patience": None}

    def train(minutes: float) -> list[float]:
        changed = config(max_minutes=minutes, **settings)
        return rates(fit(sample_panel(), changed, tmp_path / "run", resume=True, listeners=(clock,)))

    def expected(steps: range, minutes: float) -> list[float]:
        shares = [min(max(6 * step / (60 * minutes) - 0.1, 0) / 0.9, 1) for step in steps]
        return [TRAIN.learning_rate * (0.5 + 0.5 * math.cos(math.pi * share)) for share in shares]

    found = train(1.0)
    assert found == pytest.approx(expected(range(12), 1.0), abs=1e-7)
    assert found[5] > 0 == found[-1]
    clock.now += 1e6  # a pause does not count
    assert train(2.0)[12:] == pytest.approx(expected(range(12, 22), 2.0), abs=1e-7)


def test_only_the_first_process_reads_the_clock_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "time", clock := Clock(0.0))
    run = training(tmp_path / "run")
    clock.now += 7
    told = []
    for rank in range(2):
        run.ranks = Ranks(rank, 2)
        told.append(run._stop_requests()[:, 1].tolist())
    assert told == [[7.0, 0.0], [0.0, 0.0]]


def test_time_that_is_not_short_changes_nothing(tmp_path, monkeypatch):
    settings = {"schedule": "cosine", "max_steps": 6, "patience": None}
    plain = fit(sample_panel(), config(**settings), tmp_path / "plain")
    monkeypatch.setattr(loop, "time", clock := Clock(9.0))
    timed = fit(sample_panel(), config(max_minutes=1.0, **settings), tmp_path / "timed", listeners=(clock,))
    assert rates(timed) == rates(plain)
    assert digest(timed) == digest(plain)


def test_queries_and_keys_learn_at_a_rate_of_their_own(tmp_path):
    runs = {
        share: training(tmp_path / str(share), config(alignment_rate=share, max_steps=1, average=None))
        for share in (1.0, 0.1)
    }
    moved = {}
    for share, run in runs.items():
        before = run._copy()
        run.run_to_end()
        moved[share] = {name: (run.parameters[name] - before[name]).detach() for name in before}
    for name in moved[1.0]:
        part = 0.1 if name.startswith(("contexts.cell", "feedback.")) and "value" not in name else 1.0
        assert torch.allclose(moved[0.1][name], part * moved[1.0][name], atol=1e-7), name


def test_without_forking_a_fixed_number_of_trajectories_is_drawn_once(tmp_path):
    settings = CONFIG.replace(window=WINDOW.without_forking(30), train=TRAIN.replace(max_epochs=2))
    run = training(tmp_path / "run", settings)
    assert settings.window.num_steps == WINDOW.num_steps

    def drawn(epoch):
        batches = [run.plan.batch(epoch, step) for step in range(run.plan.num_batches(epoch))]
        return [(int(s), int(t)) for b in batches for s, t in zip(b.series, b.first_fct, strict=True)]

    assert len(set(drawn(0))) == 30
    assert sorted(drawn(0)) == sorted(drawn(1))
    assert drawn(0) != drawn(1), "their order changes"
    assert len({t for _, t in drawn(0)}) > 10, "at many dates"
    run.run_to_end()
    assert [line["trajectories"] for line in epochs(run.run)] == [30, 60]


def test_more_trajectories_than_there_are_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="but there are 420"):
        training(tmp_path / "run", CONFIG.replace(window=WINDOW.without_forking(10**6)))
    with pytest.raises(ConfigError, match=r"use WindowConfig.without_forking"):
        WINDOW.replace(num_trajectories=5)


def test_bounds_on_steps_and_minutes_end_a_run(tmp_path):
    assert epochs(fit(sample_panel(), config(max_steps=5), tmp_path / "steps"))[-1]["step"] == 5
    run = fit(sample_panel(), config(max_minutes=1e-9, max_epochs=50), tmp_path / "minutes")
    assert epochs(run)[-1]["step"] == 1
    assert run.is_trained


def test_a_run_that_ran_out_of_time_goes_on_with_more_of_it_to_the_same_weights(tmp_path):
    whole = fit(sample_panel(), CONFIG, tmp_path / "whole")
    short = fit(sample_panel(), config(max_minutes=1e-9), tmp_path / "short")
    assert short.is_trained
    messages = []
    fit(sample_panel(), config(max_minutes=1e-9), tmp_path / "short", resume=True, listeners=(messages.append,))
    assert any("already done" in m.text for m in messages if isinstance(m, Message))
    assert digest(fit(sample_panel(), config(max_minutes=60.0), tmp_path / "short", resume=True)) == digest(whole)


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path):
    def again(record):
        if isinstance(record, Step):
            with pytest.raises(ArtifactError, match="another process or thread is training in"):
                fit(sample_panel(), config(max_steps=2), tmp_path / "run", resume=True)

    fit(sample_panel(), config(max_steps=2), tmp_path / "run", listeners=(again,))


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(tmp_path):
    whole = fit(sample_panel(), CONFIG, tmp_path / "whole")
    num_steps = epochs(whole)[-1]["step"]
    for stop in (1, num_steps // 2, num_steps - 1):
        run = training(tmp_path / f"at {stop}")

        def stop_there(record, run=run, stop=stop):
            if isinstance(record, Step) and record.step == stop:
                run.stop.signal = signal.SIGTERM

        run.listeners = (stop_there,)
        with pytest.raises(Interrupted, match="--resume"):
            run.run_to_end()
        messages = []
        resumed = fit(sample_panel(), CONFIG, run.run.folder, resume=True, listeners=(messages.append,))
        assert digest(resumed) == digest(whole)
        assert any("resuming from step" in m.text for m in messages if isinstance(m, Message))
        lines = [
            [{k: v for k, v in line.items() if k != "seconds"} for line in read_metrics(r.metrics)]
            for r in (whole, resumed)
        ]
        assert lines[0] == lines[1], "every step and epoch is in the metrics once"


def test_a_finished_run_is_not_trained_again(tmp_path):
    run = fit(sample_panel(), CONFIG, tmp_path / "run")
    before = run.metrics.read_bytes()
    (run.folder / "model.safetensors").unlink()
    again = fit(sample_panel(), CONFIG, tmp_path / "run", resume=True)
    assert again.is_trained
    assert again.metrics.read_bytes() == before


def test_signals_save_say_how_to_go_on_and_are_restored(tmp_path):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / str(number)

        def interrupt(record, number=number):
            if isinstance(record, Step) and record.step == 2:
                os.kill(os.getpid(), number)

        with pytest.raises(Interrupted, match=r"stopped after step [23], saved in .*--resume") as caught:
            fit(sample_panel(), config(checkpoint_minutes=99), folder, listeners=(interrupt,))
        assert caught.value.signal == number
        assert list((folder / "checkpoints").glob("*.json"))
        assert not (folder / "model.safetensors").exists()
        with pytest.raises(ArtifactError, match="not finished"):
            Run.open(folder).network()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    def insist(record):
        if isinstance(record, Step):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(sample_panel(), CONFIG, tmp_path / "run", listeners=(insist,))


def test_training_works_in_a_thread_where_signals_cannot_be_heard(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(sample_panel(), config(max_steps=1), tmp_path / "run")))
    thread.start()
    thread.join()
    assert found[0].is_trained


def test_a_run_is_resumed_only_with_its_own_settings_and_data(tmp_path):
    fit(sample_panel(), config(max_steps=2), tmp_path / "run")
    with pytest.raises(ArtifactError, match="already contains a run; resume it"):
        fit(sample_panel(), config(max_steps=2), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"other settings \(train.learning_rate, train.max_steps\)"):
        fit(sample_panel(), config(max_steps=3, learning_rate=1e-4), tmp_path / "run", resume=True)
    world = sample_world()
    other = Panel.from_frame(world.frame.with_columns(y=world.frame["y"] + 1), world.schema, world.static, world.events)
    with pytest.raises(ConfigError, match="started with other data"):
        fit(other, config(max_steps=2), tmp_path / "run", resume=True)
    assert fit(sample_panel(), config(max_steps=2, max_minutes=5.0), tmp_path / "run", resume=True).is_trained


def test_a_start_that_was_cut_off_is_begun_anew(tmp_path):
    (tmp_path / "config.toml").write_text("half")
    (tmp_path / ".scaling.safetensors.7.part").write_bytes(b"half")
    assert fit(sample_panel(), config(max_steps=1), tmp_path, resume=True).is_trained


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("the only copy")
    with pytest.raises(ArtifactError, match="neither empty nor a run"):
        fit(sample_panel(), CONFIG, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_loss_that_is_not_finite_names_step_series_and_dates(tmp_path, monkeypatch):
    folder, panel = tmp_path / "run", sample_panel()
    victim = panel.index_of("item_000007")
    assemble = Assembler.__call__
    steps = []

    def poisoned(self, windows):
        batch = assemble(self, windows)
        if len(steps) >= 3 and (batch.series == victim).any():
            values = batch.values.clone()
            values[batch.series == victim] = torch.inf
            return replace(batch, values=values)
        return batch

    monkeypatch.setattr(Assembler, "__call__", poisoned)
    with pytest.raises(TrainingError, match=r"the loss of step \d+ is not finite for 1 of 10 windows") as caught:
        fit(panel, CONFIG, folder, listeners=(lambda r: steps.append(r) if isinstance(r, Step) else None,))
    assert caught.value.series == ("item_000007",)
    assert caught.value.step == len(steps) + 1
    plan = WindowPlan(panel, WINDOW, training_spans(panel, CONFIG)[0], seed=0)
    windows = plan.batch(0, len(steps))
    at = int(np.flatnonzero(windows.series == victim)[0])
    first = panel.times_at(windows.series[at : at + 1], windows.first_fct[at : at + 1], 1)[0, 0]
    assert str(np.datetime64(int(first), "us"))[:10] in str(caught.value)
    monkeypatch.undo()
    resumed = fit(panel, CONFIG, folder, resume=True)
    assert digest(resumed) == digest(fit(panel, CONFIG, tmp_path / "clean"))


def test_weights_that_run_away_are_told_too(tmp_path):
    with pytest.raises(TrainingError, match="use a lower learning_rate"):
        fit(sample_panel(), config(learning_rate=1e30, clip_norm=None, max_epochs=5), tmp_path / "run")


def test_micro_batches_follow_the_memory_allowed(tmp_path):
    run = training(tmp_path / "run")
    one = run.assemble(run.plan.batch(0, 0).take(np.arange(1)))
    two = run.assemble(run.plan.batch(0, 0).take(np.arange(2)))
    network = run.network
    a, b = kept_bytes(network, one), kept_bytes(network, two)
    assert 1.2 * a < b < 2.3 * a
    assert pick_micro_batch(network, one, 64, TRAIN) == 16
    assert pick_micro_batch(network, one, 16, TRAIN) == 8
    tight = TRAIN.replace(memory_gib=5 * PEAK * a / 2**30)
    assert pick_micro_batch(network, one, 64, tight) == 4
    assert pick_micro_batch(network, one, 3, TRAIN) == 2
    with pytest.raises(ConfigError, match="a step of one window takes about"):
        pick_micro_batch(network, one, 64, TRAIN.replace(memory_gib=1e-6))
    chosen = Training(sample_panel(), config(micro_batch=None), tmp_path / "auto", Ranks())
    assert chosen.run.micro_batch == json.loads((tmp_path / "auto" / "run.json").read_text())["micro_batch"] == 8


def test_bfloat16_trains_and_keeps_float32_weights(tmp_path):
    run = fit(sample_panel(), config(precision="bfloat16", max_epochs=2), tmp_path / "run")
    assert all(weight.dtype == torch.float32 for weight in run.network().parameters())
    assert all(math.isfinite(line["train_loss"]) for line in epochs(run))


def test_spans_are_told_from_the_end_unless_they_are_set():
    panel = sample_panel()
    train, valid = training_spans(panel, CONFIG)
    week = 7 * 24 * 3600 * 10**6
    assert valid is not None
    assert valid.until - train.until == HORIZON * week
    assert train.until == train.last == valid.first
    dates = SplitConfig(train_until="2019-09-01", valid_until="2019-10-06")
    train, valid = training_spans(panel, CONFIG.replace(split=dates))
    assert valid is not None
    assert str(np.datetime64(train.until, "us"))[:10] == "2019-09-01"
    assert str(np.datetime64(valid.until, "us"))[:10] == "2019-10-06"
    only_valid = SplitConfig(valid_until="2019-10-06")
    train, _ = training_spans(panel, CONFIG.replace(split=only_valid))
    assert str(np.datetime64(train.until, "us"))[:10] == "2019-09-08"
    with pytest.raises(ConfigError, match="both must be inside the panel, in this order"):
        training_spans(panel, CONFIG.replace(split=SplitConfig(train_until="2019-10-06", valid_until="2019-09-01")))
    with pytest.raises(ConfigError, match="early stopping needs a validation span"):
        training_spans(panel, CONFIG.replace(split=SplitConfig(train_until="2019-10-06", valid_until="2019-10-06")))


def test_a_trained_run_gives_back_its_network_and_transforms(tmp_path):
    panel = sample_panel()
    for by in ("series", "global", "recent"):
        settings = config(max_steps=3).replace(scaling=CONFIG.scaling.replace(by=by))
        one = Training(panel, settings, tmp_path / by, Ranks())
        one.run_to_end()
        run = Run.open(tmp_path / by)
        windows = one.plan.batch(0, 0)
        mine, theirs = one.assemble(windows), run.assembler(panel)(windows)
        for name, tensor in mine.tensors().items():
            assert torch.equal(tensor, getattr(theirs, name)), name
        weights = one.weights()
        for name, weight in run.network().named_parameters():
            assert torch.equal(weight, weights[name])


def test_a_damaged_run_says_what_is_wrong(tmp_path):
    panel = sample_panel()
    run = fit(panel, config(max_steps=1), tmp_path / "run")
    world = sample_world()
    other = Panel.from_frame(world.frame, world.schema.replace(known=()), world.static, world.events)
    with pytest.raises(ArtifactError, match="pack it with --like and the training panel"):
        run.assembler(other)
    (run.folder / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ArtifactError, match=r"model.safetensors is missing or damaged"):
        run.network()
    (run.folder / "run.json").write_text(json.dumps({"format": "mqcast-run", "version": 99}))
    with pytest.raises(ArtifactError, match="run format 99"):
        Run.open(run.folder)
    (run.folder / "run.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"run.json is missing or damaged"):
        Run.open(run.folder)
    with pytest.raises(ArtifactError, match="no run at"):
        Run.open(tmp_path / "nowhere")


def test_an_unusable_device_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be used"):
        fit(sample_panel(), CONFIG, tmp_path / "run", device="no-such-device")


def test_a_switch_that_is_gone_is_read_where_it_was_off_and_refused_where_it_was_on():
    assert TrainConfig(compile=False) == TrainConfig()
    with pytest.raises(ConfigError, match=r"train\.compile was removed"):
        TrainConfig(compile=True)


@pytest.mark.parametrize("model", ["mqt", "mqcnn", "mqrnn"])
def test_a_network_that_no_memory_holds_is_refused_before_it_is_made(tmp_path, model, monkeypatch):
    monkeypatch.setattr(memory, "_memory", lambda: 2.0**34)
    wide = CONFIG.replace(model=MODEL.replace(model=model, hidden_dim=16_384))
    with pytest.raises(ConfigError, match=r"parameters, for which training needs [\d,]+ GiB"):
        fit(sample_panel(), wide, tmp_path / "run")
    assert not (tmp_path / "run").exists()
