"""What a search tries next: the points of a grid, or the draws of Optuna's sampler."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mqcast.durable import cannot_write
from mqcast.errors import ArtifactError, ConfigError
from mqcast.settings import Range, SearchConfig

NUM_TRIALS = 20  # with Optuna, by default
NUM_UNPRUNED = 5  # trials that must be complete before any is pruned
DIGITS = 4  # significant digits of numbers drawn from a range
STUDY = "mqcast"


@dataclass(frozen=True)
class Proposal:
    """Settings to try. If `is_hopeless(epoch, validation loss)` is true, the trial is stopped early.

    `tell(state, validation loss)` receives the outcome: "complete", "pruned", or "failed" without a loss.
    """

    settings: dict[str, Any]
    is_hopeless: Callable[[int, float], bool] = lambda epoch, loss: False
    tell: Callable[[str, float | None], None] = lambda state, loss: None


def num_trials(search: SearchConfig) -> int:
    if search.method == "optuna":
        return search.num_trials or NUM_TRIALS
    size = int(np.prod([len(choices) for choices in search.space.values() if isinstance(choices, tuple)]))
    return min(size, search.num_trials or size)


def proposals(search: SearchConfig, folder: Path) -> Iterator[Proposal]:
    """One proposal after the other; call `tell` with the outcome of each before taking the next."""
    return _drawn(search, folder) if search.method == "optuna" else iter([Proposal(point) for point in grid(search)])


def grid(search: SearchConfig) -> list[dict[str, Any]]:
    """The whole grid in order, or the first `num_trials` points of it in a random order."""
    axes = [choices for choices in search.space.values() if isinstance(choices, tuple)]
    points = [dict(zip(search.space, point, strict=True)) for point in itertools.product(*axes)]
    if search.num_trials is None:
        return points
    order = np.random.default_rng(search.seed).permutation(len(points))
    return [points[i] for i in order[: search.num_trials]]


def _drawn(search: SearchConfig, folder: Path) -> Iterator[Proposal]:
    """Optuna's proposals; a trial without an outcome is proposed again, with the same settings.

    Each is a function of the seed, its number and the outcomes before it, so that an interrupted search continues as
    if it had not been interrupted.
    """
    optuna = import_optuna()
    storage = _journal(folder / "optuna.log")
    study = _study(optuna, search, storage, folder)
    study_id = storage.get_study_id_from_name(STUDY)
    unfinished = [trial.number for trial in study.trials if not trial.state.is_finished()]
    for number in [*unfinished, *range(len(study.trials), num_trials(search))]:
        study.sampler = optuna.samplers.TPESampler(seed=_seed(search.seed, number))
        if number in unfinished:
            trial = optuna.trial.Trial(study, storage.get_trial_id_from_study_id_trial_number(study_id, number))
        else:
            trial = study.ask()
        yield _proposal(optuna, study, trial, search)


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "optuna is not installed; `pip install mqcast[search]`, or search with method = 'grid'"
        ) from None
    return optuna


def _journal(path: Path) -> Any:
    """Optuna's storage in a file; an incomplete last line, left by a killed process, is dropped."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        return JournalStorage(JournalFileBackend(str(path)))
    except OSError as error:
        raise cannot_write(path, error) from error
    except (ValueError, KeyError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); restore it, or search in a new folder") from None


def _study(optuna: Any, search: SearchConfig, storage: Any, folder: Path) -> Any:
    """The study in the journal; a new one if there is none."""
    pruner = optuna.pruners.MedianPruner(NUM_UNPRUNED) if search.prune else optuna.pruners.NopPruner()
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(storage=storage, study_name=STUDY, pruner=pruner, load_if_exists=True)
    finally:
        optuna.logging.set_verbosity(verbosity)
    space = search.model_dump(mode="json")["space"]
    if study.user_attrs.get("space", space) != space:
        raise ConfigError(f"{folder} was searched with another space; keep that space, or search in a new folder")
    study.set_user_attr("space", space)
    return study


def _seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _proposal(optuna: Any, study: Any, trial: Any, search: SearchConfig) -> Proposal:
    reported: dict[int, float] = dict(study.trials[trial.number].intermediate_values)

    def is_hopeless(epoch: int, loss: float) -> bool:
        if epoch not in reported:  # after an interruption, epochs may be repeated
            trial.report(loss, epoch)
            reported[epoch] = loss
        return bool(trial.should_prune())

    def tell(state: str, loss: float | None) -> None:
        states = {"pruned": optuna.trial.TrialState.PRUNED, "failed": optuna.trial.TrialState.FAIL}
        study.tell(trial, loss if state == "complete" else None, states.get(state))

    settings = {name: _draw(trial, name, choices) for name, choices in search.space.items()}
    return Proposal(settings, is_hopeless, tell)


def _draw(trial: Any, name: str, choices: tuple[Any, ...] | Range) -> Any:
    """The value of one setting; choices are passed as JSON, because they may be lists."""
    if isinstance(choices, tuple):
        return json.loads(trial.suggest_categorical(name, [json.dumps(choice) for choice in choices]))
    low, high, log = choices.low, choices.high, choices.log
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, log=log)
    value = float(f"{trial.suggest_float(name, low, high, log=log):.{DIGITS}g}")
    return min(max(value, float(low)), float(high))
