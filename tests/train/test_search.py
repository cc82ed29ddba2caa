"""Search: the least validation loss wins, nothing is run twice, and an interrupted search ends as any other."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mqcast import Panel, pack
from mqcast.cli import app
from mqcast.errors import ArtifactError, ConfigError, Interrupted, TrainingError
from mqcast.settings import PAPER_SPACE, ModelConfig, Range, RunConfig, SearchConfig, TrainConfig, WindowConfig
from mqcast.simulate import lognormal_world
from mqcast.train import proposals, search
from mqcast.train.loop import fit
from mqcast.train.records import Begin, Epoch, Message, Step, read_metrics

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")
CONFIG = RunConfig(
    window=WindowConfig(horizon=4, history=8, num_fcts=12, batch_size=32),
    model=ModelConfig(model="mqcnn", hidden_dim=4, encoder_dilations=(1, 2)),
    train=TrainConfig(max_epochs=2, micro_batch=16, log_every=1),
)
SPACE = {"model.hidden_dim": (2, 6), "train.learning_rate": (1e-4, 1e-2)}
GRID = SearchConfig(space=SPACE)
OPTUNA = SearchConfig(
    method="optuna",
    num_trials=4,
    space={"model.hidden_dim": {"low": 2, "high": 6}, "train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
)


@cache
def panel() -> Panel:
    world = lognormal_world(16, 40, 4)
    return Panel.from_frame(world.frame, world.schema, world.static, world.events)


class Witness:
    """Hears what is trained; may raise at the n-th record of a kind."""

    def __init__(self, kind: type | None = None, number: int = 0, error: BaseException | None = None):
        self.begun: list[str] = []
        self.num_steps = self.num_seen = 0
        self.kind, self.number, self.error = kind, number, error

    def __call__(self, record):
        if isinstance(record, Message) and record.text.startswith("trial "):
            self.begun.append(record.text.split(": ")[1])
        self.num_steps += isinstance(record, Step)
        if self.kind is not None and isinstance(record, self.kind):
            self.num_seen += 1
            if self.num_seen == self.number and self.error is not None:
                raise self.error


class Killed(BaseException):
    """Ends a search as `kill -9` would: nobody catches it."""


def run_search(folder, settings=GRID, config=CONFIG, listener=None):
    listeners = (listener,) if listener else ()
    return search.search(panel(), config, settings, folder, listeners=listeners, device="cpu")


def told(folder) -> dict:
    return json.loads((folder / "search.json").read_text())


def outcomes(folder) -> list[tuple]:
    return [(t["name"], t["state"], t["valid_loss"], t["num_epochs"]) for t in told(folder)["trials"]]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A whole grid, searched once."""
    folder = tmp_path_factory.mktemp("grid") / "search"
    return folder, run_search(folder)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A search by Optuna, never interrupted."""
    folder = tmp_path_factory.mktemp("optuna") / "search"
    return folder, run_search(folder, OPTUNA)


def test_the_default_space_is_the_papers_grid_of_nine():
    points = proposals.grid(SearchConfig())
    pairs = [tuple(point.values()) for point in points]
    assert pairs == list(itertools.product((32, 64, 128), (1e-4, 1e-3, 1e-2)))
    assert list(PAPER_SPACE) == ["model.hidden_dim", "train.learning_rate"]


def test_the_trial_with_the_least_validation_loss_wins(done):
    folder, best = done
    losses = {}
    for trial in best.trials:
        lines = read_metrics(folder / "trials" / trial.name / "metrics.jsonl")
        losses[trial.name] = min(line["valid_loss"] for line in lines if line["record"] == "epoch")
        assert trial.valid_loss == losses[trial.name]
        assert trial.state == "complete"
        assert trial.num_epochs == 2
        assert trial.seconds > 0
    assert len(losses) == 4
    assert best.name == min(losses, key=losses.get) == told(folder)["best"]
    assert best.run.folder == folder / "trials" / best.name
    assert best.run.is_trained
    assert best.config == best.run.config


def test_a_trial_is_the_run_that_fit_makes_of_the_same_settings(done, tmp_path):
    best = done[1]
    alone = fit(panel(), best.config, tmp_path / "alone", device="cpu")
    weights = [run / "model.safetensors" for run in (alone.folder, best.run.folder)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_names_are_readable(done):
    assert [trial.name for trial in done[1].trials] == [
        "hidden_dim=2,learning_rate=0.0001",
        "hidden_dim=2,learning_rate=0.01",
        "hidden_dim=6,learning_rate=0.0001",
        "hidden_dim=6,learning_rate=0.01",
    ]
    assert search.trial_name({"model.encoder_dilations": [1, 2, 4]}) == "encoder_dilations=1-2-4"
    assert search.trial_name({"model.model": "mqt-all", "model.dropout": 0.1}) == "model=mqt-all,dropout=0.1"
    long = [search.trial_name({"model.encoder_dilations": [1] * 200 + [last]}) for last in (1, 2)]
    assert long[0] != long[1]
    assert max(map(len, long)) < 140


def test_widths_follow_the_searched_width_unless_they_were_set():
    changed = search.changed_config(CONFIG, {"model.hidden_dim": 6}).model
    assert (changed.hidden_dim, changed.static_dim, changed.head_dim) == (6, 12, 3)
    fixed = CONFIG.replace(model=ModelConfig(hidden_dim=4, static_dim=5))
    changed = search.changed_config(fixed, {"model.hidden_dim": 6}).model
    assert (changed.hidden_dim, changed.static_dim, changed.head_dim) == (6, 5, 3)


def test_an_interrupted_search_goes_on_where_it_was_and_ends_alike(done, tmp_path):
    per_trial = sum(line["record"] == "step" for line in read_metrics(done[1].run.metrics))
    first = Witness(Epoch, 4, Killed())  # the second trial's last epoch
    with pytest.raises(Killed):
        run_search(tmp_path, listener=first)
    assert len(outcomes(tmp_path)) == 1
    second = Witness()
    best = run_search(tmp_path, listener=second)
    assert first.begun + second.begun == [t.name for i, t in enumerate(best.trials) for _ in range(1 + (i == 1))]
    assert first.num_steps + second.num_steps == 4 * per_trial + per_trial // 2  # the epoch that was not saved
    assert outcomes(tmp_path) == outcomes(done[0])
    assert best.name == done[1].name


def test_a_search_that_is_done_trains_nothing(done):
    witness = Witness()
    assert run_search(done[0], listener=witness) == done[1]
    assert (witness.begun, witness.num_steps) == ([], 0)


def test_a_grid_may_grow(done, tmp_path):
    run_search(tmp_path, SearchConfig(space=SPACE | {"train.learning_rate": (1e-2,)}))
    witness = Witness()
    run_search(tmp_path, listener=witness)
    assert witness.begun == ["hidden_dim=2,learning_rate=0.0001", "hidden_dim=6,learning_rate=0.0001"]
    assert sorted(outcomes(tmp_path)) == sorted(outcomes(done[0]))


def test_some_points_of_a_grid_are_drawn_and_more_of_them_contain_the_fewer():
    few, more = ([str(point) for point in proposals.grid(SearchConfig(num_trials=n, seed=1))] for n in (3, 7))
    assert more[:3] == few
    assert len(set(more)) == 7
    assert more != [str(point) for point in proposals.grid(SearchConfig(num_trials=7, seed=2))]
    assert proposals.num_trials(SearchConfig(num_trials=70)) == 9


def test_other_settings_or_data_than_the_trials_had_are_refused(done):
    with pytest.raises(ConfigError, match=r"other settings \(train.max_epochs\)"):
        run_search(done[0], config=CONFIG.replace(train=TrainConfig(max_epochs=3, micro_batch=16, log_every=1)))
    world = lognormal_world(16, 40, 4, seed=1)
    other = Panel.from_frame(world.frame, world.schema, world.static, world.events)
    with pytest.raises(ConfigError, match="other data"):
        search.search(other, CONFIG, GRID, done[0])


def test_a_trial_that_diverges_counts_as_failed_and_the_others_go_on(tmp_path):
    problem = TrainingError("the loss of step 1 is not finite", 1, ("a",))
    best = run_search(tmp_path, listener=Witness(Step, 1, problem))
    assert [trial.state for trial in best.trials] == ["failed", "complete", "complete", "complete"]
    assert best.trials[0].valid_loss is None
    assert best.trials[0].error == str(problem)
    witness = Witness()
    assert run_search(tmp_path, listener=witness).trials == best.trials
    assert witness.begun == []


def test_a_search_in_which_all_fail_says_so(tmp_path):
    def fail(record):
        if isinstance(record, Step):
            raise TrainingError("the loss is not finite", 1, ())

    with pytest.raises(ConfigError, match=r"no trial .* lower learning rates"):
        run_search(tmp_path, SearchConfig(space={"train.learning_rate": (1.0,)}), listener=fail)
    assert told(tmp_path)["best"] is None


def test_a_signal_that_comes_after_a_trials_last_step_is_not_lost(tmp_path):
    def ask(record):
        if isinstance(record, Epoch) and record.epoch == CONFIG.train.max_epochs - 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped after trial"):
        run_search(tmp_path, listener=ask)
    assert len(told(tmp_path)["trials"]) == 1


def test_a_signal_stops_the_search_and_the_same_call_goes_on(done, tmp_path):
    def ask(record):
        if isinstance(record, Step) and record.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="same command") as stopped:
        run_search(tmp_path, listener=ask)
    assert stopped.value.signal == signal.SIGTERM
    assert not (tmp_path / "search.json").exists()
    assert run_search(tmp_path).name == done[1].name
    assert outcomes(tmp_path) == outcomes(done[0])


def test_what_a_trial_killed_at_birth_left_is_cleared(tmp_path):
    torn = tmp_path / "trials" / "learning_rate=0.01"
    torn.mkdir(parents=True)
    (torn / "config.toml").write_text("[window]")
    assert run_search(tmp_path, SearchConfig(space={"train.learning_rate": (1e-2,)})).run.is_trained


def test_a_search_without_validation_is_refused(tmp_path):
    config = CONFIG.replace(train=TrainConfig(patience=None))
    with pytest.raises(ConfigError, match=r"there is no validation span; set train.patience"):
        run_search(tmp_path, config=config)
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_choice_is_refused_before_anything_is_trained(tmp_path):
    for method in ("grid", "optuna"):
        settings = SearchConfig(method=method, space={"train.learning_rate": (1e-3, -1.0)})
        with pytest.raises(ConfigError, match=r"learning_rate: .*greater than 0"):
            run_search(tmp_path, settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({"model.hiden_dim": [1]}, "did you mean 'model.hidden_dim'"),
        ({"hidden_dim": [1]}, "table.setting"),
        ({"window.horizon": [1, 2]}, "cannot be compared"),
        ({"scaling.by": ["past", "series"]}, "cannot be compared"),
        ({"model.hidden_dim": 32}, "a list of choices"),
        ({"model.hidden_dim": []}, "a list of choices"),
        ({"model.hidden_dim": [32, 32]}, "each once"),
        ({"model.hidden_dim": {"low": 8, "high": 64}}, "method = 'optuna'"),
        ({"model.dropout": {"low": 0.5, "high": 0.1}}, "low must be less than high"),
        ({"model.dropout": {"low": 0, "high": 0.1, "log": True}}, "above 0"),
        ({}, "give settings"),
    ],
)
def test_an_impossible_space_is_refused_by_name(space, says):
    with pytest.raises(ConfigError, match=says):
        SearchConfig(space=space)


def test_a_space_may_be_written_as_tables(tmp_path):
    path = tmp_path / "search.toml"
    path.write_text(
        '[search]\nmethod = "optuna"\n[search.space]\nmodel.hidden_dim = [8, 16]\n'
        '"train.learning_rate" = {low = 1e-4, high = 1e-2, log = true}\n'
    )
    space = SearchConfig.from_toml(path, table="search").space
    assert space == {"model.hidden_dim": (8, 16), "train.learning_rate": Range(low=1e-4, high=1e-2, log=True)}


def test_a_damaged_record_is_refused(tmp_path):
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"search.json is damaged"):
        run_search(tmp_path)


@pytest.mark.slow
def test_two_processes_search_a_grid_as_one_does(done, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, __file__, str(tmp_path / "search")]
    for _ in range(2):  # the second time there is nothing to do
        subprocess.run(command, check=True, timeout=200, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert outcomes(tmp_path / "search") == outcomes(done[0])


# -- optuna ------------------------------------------------------------------------------------------------------------


def test_optuna_draws_within_ranges_and_whole_numbers_stay_whole(drawn):
    best = drawn[1]
    assert len(best.trials) == 4
    for trial in best.trials:
        width, rate = trial.settings.values()
        assert type(width) is int
        assert 2 <= width <= 6
        assert 1e-4 <= rate <= 1e-2
    assert best.config.model.static_dim == 2 * best.config.model.hidden_dim
    assert best.name == min(best.trials, key=lambda trial: trial.valid_loss).name


def test_an_interrupted_optuna_search_takes_up_its_trial_and_ends_alike(drawn, tmp_path):
    first, second = Witness(Epoch, 4, Killed()), Witness()
    with pytest.raises(Killed):
        run_search(tmp_path / "cut", OPTUNA, listener=first)
    with (tmp_path / "cut" / "optuna.log").open("ab") as journal:
        journal.write(b'{"op_code":')  # a line that its writer did not end
    run_search(tmp_path / "cut", OPTUNA, listener=second)
    assert outcomes(tmp_path / "cut") == outcomes(drawn[0])
    assert second.begun[0] == first.begun[-1]
    again = Witness()
    run_search(tmp_path / "cut", OPTUNA, listener=again)
    assert again.begun == []


def test_a_hopeless_trial_is_pruned_and_stays_so(tmp_path, monkeypatch):
    monkeypatch.setattr(proposals, "NUM_UNPRUNED", 1)
    settings = SearchConfig(method="optuna", num_trials=8, space={"train.learning_rate": (1e-7, 1e-2, 1e-1)})
    config = CONFIG.replace(train=TrainConfig(max_epochs=4, micro_batch=16))
    best = run_search(tmp_path, settings, config)
    pruned = [trial for trial in best.trials if trial.state == "pruned"]
    assert pruned
    for trial in pruned:
        assert trial.num_epochs < 4
        assert trial.valid_loss > min(other.valid_loss for other in best.trials)
        assert not (tmp_path / "trials" / trial.name / "model.safetensors").exists()
    witness = Witness()
    assert run_search(tmp_path, settings.replace(num_trials=12), config, witness).trials == best.trials
    assert not {trial.name for trial in pruned} & set(witness.begun)


def test_an_outcome_that_was_written_but_not_told_is_told_and_not_run_again(tmp_path, monkeypatch):
    settings = OPTUNA.replace(num_trials=2)
    write_trials = search._write_trials

    def write_and_die(*arguments):
        write_trials(*arguments)
        raise Killed

    monkeypatch.setattr(search, "_write_trials", write_and_die)
    with pytest.raises(Killed):
        run_search(tmp_path, settings)
    monkeypatch.undo()
    witness = Witness()
    run_search(tmp_path, settings, listener=witness)
    assert len(outcomes(tmp_path)) == 2
    assert len(witness.begun) == 1


def test_another_space_in_the_same_folder_is_refused(tmp_path):
    run_search(tmp_path, OPTUNA.replace(num_trials=1))
    with pytest.raises(ConfigError, match="another space"):
        run_search(tmp_path, SearchConfig(method="optuna", space={"train.learning_rate": [1e-3]}))


def test_optuna_with_several_processes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one process"):
        run_search(tmp_path, OPTUNA)


def test_without_optuna_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install mqcast\[search\]"):
        run_search(tmp_path, OPTUNA)
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_trial_begins_after_its_checkpoint(tmp_path):
    settings = SearchConfig(space={"train.learning_rate": (1e-2,)})
    with pytest.raises(Killed):
        run_search(tmp_path, settings, listener=Witness(Epoch, 2, Killed()))
    begun = []
    run_search(tmp_path, settings, listener=lambda record: begun.append(record) if isinstance(record, Begin) else None)
    assert begun[0].step > 0


# -- the command line --------------------------------------------------------------------------------------------------


def command(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "120"})


def test_search_from_the_command_line(done, tmp_path):
    world = lognormal_world(16, 40, 4)
    pack(world.frame, tmp_path / "panel", world.schema, world.static, world.events)
    derived = ("static_dim", "head_dim", "context_dim")  # left out, so that they follow hidden_dim
    lines = [line for line in CONFIG.to_toml().splitlines(keepends=True) if not line.startswith(derived)]
    space = "[search.space]\nmodel.hidden_dim = [2, 6]\ntrain.learning_rate = [1e-4, 1e-2]\n"
    (tmp_path / "search.toml").write_text("".join(lines) + space)
    folder = shutil.copytree(done[0], tmp_path / "search")
    shutil.rmtree(folder / "trials" / done[1].name)  # one of the four is left to do
    options = ("--config", tmp_path / "search.toml", "--device", "cpu")
    printed = json.loads(command("search", tmp_path / "panel", folder, *options, "--json").stdout)
    assert printed["best"] == done[1].name
    assert sorted(outcomes(folder)) == sorted(outcomes(done[0]))
    shown = command("search", tmp_path / "panel", folder, *options).stdout
    assert "4 trials by validation loss" in shown
    assert f"the best run is in {folder / 'trials' / done[1].name}" in shown
    losses = [float(loss) for loss in re.findall(r"(0\.\d{4}) │ complete", shown)]
    assert losses == sorted(losses)
    assert len(losses) == 4


def test_a_search_without_a_horizon_is_refused(tmp_path):
    world = lognormal_world(8, 40, 4)
    pack(world.frame, tmp_path / "panel", world.schema, world.static, world.events)
    refused = command("search", tmp_path / "panel", tmp_path / "out", "--set", "search.num_trials=2")
    assert isinstance(refused.exception, ConfigError)
    assert "--horizon" in str(refused.exception)


def test_curve_from_the_command_line(done, tmp_path):
    runs = sorted((done[0] / "trials").iterdir())
    drawn = command("curve", *runs, "--out", tmp_path / "curve.html", "--json")
    assert json.loads(drawn.stdout)["runs"] == [run.name for run in runs]
    assert (tmp_path / "curve.html").read_text().count("best validation") == len(runs)


def test_a_curve_of_something_that_is_no_run_is_refused(tmp_path):
    refused = command("curve", tmp_path, "--out", tmp_path / "none.html")
    assert isinstance(refused.exception, ArtifactError)
    assert "give the folder of a run" in str(refused.exception)
    assert not (tmp_path / "none.html").exists()


if __name__ == "__main__":
    run_search(Path(sys.argv[1]))
