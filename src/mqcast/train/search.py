"""Search for settings: each trial is a run, and the lowest validation loss wins.

    trials/hidden_dim=64,learning_rate=0.001/    an ordinary run
    search.json                                  every trial that has ended, and the best
    optuna.log                                   Optuna's journal, with method = "optuna"

The same call continues an interrupted search: trials that have ended are not run again, and an unfinished one resumes
from its checkpoint. To run a trial of a grid again, delete its folder.
"""

import hashlib
import json
import math
import os
import re
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from mqcast.data.panel import Panel
from mqcast.durable import claimed, write_file
from mqcast.errors import ArtifactError, ConfigError, Interrupted, TrainingError
from mqcast.run import Run, exists
from mqcast.settings import Range, RunConfig, SearchConfig
from mqcast.settings.merge import Layer, Origin, assigned_values, merge
from mqcast.train.distributed import Ranks, joined
from mqcast.train.loop import train
from mqcast.train.proposals import Proposal, grid, import_optuna, num_trials, proposals
from mqcast.train.records import Epoch, Listener, Message, Record, kept_line, read_metrics
from mqcast.train.signals import stop_requests
from mqcast.train.spans import training_spans

FORMAT, FORMAT_VERSION = "mqcast-search", 1
LONGEST_NAME = 120


@dataclass(frozen=True)
class Trial:
    """A trial that has ended: "complete", "pruned" or "failed". The loss is that of the weights it kept."""

    name: str
    settings: dict[str, Any]
    state: str
    valid_loss: float | None
    num_epochs: int
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class Best:
    """The trial with the lowest validation loss, and all trials in the order in which they ended."""

    name: str
    config: RunConfig
    run: Run
    trials: tuple[Trial, ...]


def trials_table(best: Best) -> Table:
    """A table of all trials for the terminal, the best first."""
    by_loss = sorted(best.trials, key=lambda trial: (trial.state != "complete", trial.valid_loss or 0.0))
    names = list(dict.fromkeys(name for trial in by_loss for name in trial.settings))
    table = Table(title=f"{len(by_loss)} trials by validation loss", title_justify="left")
    for heading in (*names, "validation", "state", "epochs", "minutes"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    for trial in by_loss:
        loss = "" if trial.valid_loss is None else f"{trial.valid_loss:.4f}"
        row = [*(str(trial.settings.get(name, "")) for name in names), loss, trial.state, str(trial.num_epochs)]
        table.add_row(*row, f"{trial.seconds / 60:.1f}", style="bold" if trial.name == best.name else None)
    return table


class _HopelessError(Exception):
    """Raised inside a trial to end it."""


def search(
    panel: Panel,
    config: RunConfig,
    settings: SearchConfig,
    folder: str | Path,
    *,
    listeners: tuple[Listener, ...] = (),
    device: str = "auto",
) -> Best:
    """Start or continue a search: each trial changes some settings of `config`, and its defaults follow the change.

    With the method "grid", several processes can train each trial together, as with `fit`.
    """
    folder = Path(folder)
    _check(panel, config, settings)
    with joined(device, config.train.num_threads) as ranks, stop_requests() as stop, ExitStack() as stack:
        if ranks.is_first:
            stack.enter_context(claimed(folder, "searching in", make_parents=True))
        ranks.agree(1)  # no process reads the folder before it is claimed
        trials = _read_trials(folder, config, panel)
        for proposal in proposals(settings, folder):
            name, changed = trial_name(proposal.settings), changed_config(config, proposal.settings)
            if name not in trials:
                _notify(listeners, f"trial {len(trials) + 1} of {num_trials(settings)}: {name}")
                trials[name] = _run_trial(panel, changed, _folder_of(folder, name), proposal, listeners, ranks)
                _notify(listeners, _summary(trials[name]))
                if ranks.is_first:
                    _write_trials(folder, settings, trials)
            proposal.tell(trials[name].state, trials[name].valid_loss)
            if number := ranks.agree(stop.signal):
                raise Interrupted(
                    f"search stopped after trial {name}, saved in {folder}; continue with the same command", number
                )
    best = _best(trials)
    if best is None:
        raise ConfigError(f"no trial in {folder} was completed; see search.json there, and try lower learning rates")
    run = Run.open(_folder_of(folder, best.name))
    return Best(best.name, changed_config(config, best.settings), run, tuple(trials.values()))


def changed_config(config: RunConfig, settings: dict[str, Any]) -> RunConfig:
    """The settings with some of them changed; defaults, such as widths, follow from the changed ones."""
    base = Layer(Origin.FILE, config.model_dump(exclude_unset=True))
    return merge(base, assigned_values(settings)).config


def trial_name(settings: dict[str, Any]) -> str:
    """The folder name of a trial, which is unique to its settings."""
    texts = {name.split(".")[-1]: re.sub(r'[\[\]" ]', "", json.dumps(value)) for name, value in settings.items()}
    name = ",".join(key + "=" + re.sub(r"[^\w.+-]", "-", text) for key, text in texts.items())
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]}"


def _check(panel: Panel, config: RunConfig, settings: SearchConfig) -> None:
    """Raise before training starts, rather than hours later."""
    if settings.method == "optuna":
        import_optuna()
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ConfigError("method = 'optuna' runs in one process only; start one, or search a grid")
        ends = {name: (c.low, c.high) if isinstance(c, Range) else c for name, c in settings.space.items()}
        points = [{name: value} for name, values in ends.items() for value in values]
    else:
        points = grid(settings)
    for point in points:
        if training_spans(panel, changed_config(config, point))[1] is None:
            raise ConfigError(
                "a search needs a validation loss, but there is no validation span; set train.patience, or "
                "split.train_until before split.valid_until"
            )


# -- one trial ---------------------------------------------------------------------------------------------------------


def _run_trial(
    panel: Panel, config: RunConfig, folder: Path, proposal: Proposal, listeners: tuple[Listener, ...], ranks: Ranks
) -> Trial:
    def watch(record: Record) -> None:
        if not isinstance(record, Epoch) or record.valid_loss is None:
            return
        every = config.train.validate_every
        number = record.epoch if every is None else record.step // every
        if proposal.is_hopeless(number, record.valid_loss):
            raise _HopelessError

    state, error = "complete", None
    try:  # not `fit`, since processes can join only once
        train(panel, config, folder, ranks, resume=True, listeners=(*listeners, watch))
    except _HopelessError:
        state = "pruned"
    except TrainingError as problem:
        state, error = "failed", str(problem)
    except Interrupted as stopped:
        text = f"search stopped in trial {folder.name}, saved in {folder.parent.parent}; continue with the same command"
        raise Interrupted(text, stopped.signal) from None
    lines = read_metrics(folder / "metrics.jsonl")
    epochs = [line for line in lines if line["record"] == "epoch"]
    loss = kept_line(lines, config.train.patience)["valid_loss"] if state != "failed" else None
    if loss is not None and not math.isfinite(loss):
        state, loss, error = "failed", None, "the validation loss is not finite; use a lower learning_rate"
    seconds = lines[-1]["seconds"] if lines else 0.0
    num_epochs = epochs[-1]["epoch"] + 1 if epochs else 0
    return Trial(folder.name, proposal.settings, state, loss, num_epochs, seconds, error)


def _notify(listeners: tuple[Listener, ...], text: str) -> None:
    for listener in listeners:
        listener(Message(text))


def _summary(trial: Trial) -> str:
    outcome = f"validation {trial.valid_loss:.4f}" if trial.valid_loss is not None else trial.error
    return f"{trial.name}: {trial.state}, {outcome}"


# -- all trials --------------------------------------------------------------------------------------------------------


def _folder_of(folder: Path, name: str) -> Path:
    return folder / "trials" / name


def _best(trials: dict[str, Trial]) -> Trial | None:
    losses = {t.name: t.valid_loss for t in trials.values() if t.state == "complete" and t.valid_loss is not None}
    return trials[min(losses, key=lambda name: losses[name])] if losses else None


def _write_trials(folder: Path, settings: SearchConfig, trials: dict[str, Trial]) -> None:
    best = _best(trials)
    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "search": settings.model_dump(mode="json"),
        "best": best and best.name,
        "trials": [asdict(trial) for trial in trials.values()],
    }
    write_file(folder / "search.json", json.dumps(content, indent=1))


def _read_trials(folder: Path, config: RunConfig, panel: Panel) -> dict[str, Trial]:
    """The trials that have ended and still have a run; their data and other settings must be the same."""
    path = folder / "search.json"
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"format {content['format']} {content['version']}")
        trials = [Trial(**values) for values in content["trials"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); restore it, or search in a new folder") from None
    done = {trial.name: trial for trial in trials if exists(_folder_of(folder, trial.name))}
    for name, trial in done.items():
        Run.open(_folder_of(folder, name)).check_resumable(changed_config(config, trial.settings), panel)
    return done
