"""Records of a training in progress, and their listeners: the metrics file, a progress bar, log lines, MLflow."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from mqcast.artifact import ArtifactFolder, open_to_append
from mqcast.durable import cannot_write
from mqcast.errors import ConfigError
from mqcast.settings import RunConfig

logger = logging.getLogger("mqcast.train")


@dataclass(frozen=True)
class Begin:
    """Training starts or resumes after `step` of at most `total_steps`."""

    step: int
    total_steps: int


@dataclass(frozen=True)
class Step:
    """One step of the optimiser. `seconds` count from the start, without the pauses between sessions."""

    step: int
    epoch: int
    loss: float
    rate: float
    gradient_norm: float
    trajectories: int
    seconds: float


@dataclass(frozen=True)
class Epoch:
    """A validation, by default at the end of an epoch; `train_loss` is the mean since the one before.

    `valid_quantile_loss` is 2·Σ loss / Σ |demand| in units of demand, by level, such as "P50".
    """

    step: int
    epoch: int
    train_loss: float
    valid_loss: float | None
    valid_quantile_loss: dict[str, float]
    is_best: bool
    trajectories: int
    seconds: float


@dataclass(frozen=True)
class Message:
    """A message for the user."""

    text: str


Record = Begin | Step | Epoch | Message
Listener = Callable[[Record], None]


class MetricsFile:
    """`metrics.jsonl`: one line per validation and per `log_every` steps; none is repeated when training resumes."""

    def __init__(self, path: Path, log_every: int, size: int = 0):
        self.path, self.log_every = path, log_every
        self.file = open_to_append(path)
        self.file.seek(self.file.truncate(size))

    def __call__(self, record: Record) -> None:
        if isinstance(record, Epoch) or (isinstance(record, Step) and record.step % self.log_every == 0):
            line = {"record": type(record).__name__.lower()} | asdict(record)
            try:
                self.file.write(json.dumps(line).encode() + b"\n")
                self.file.flush()
            except OSError as error:
                raise cannot_write(self.path, error) from error

    def sync(self) -> int:
        """Write everything to disk, and return the size of the file."""
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, without an incomplete last line."""
    path = Path(path)
    files = ArtifactFolder(path.parent, "restore it, or train again")
    lines = files.read(path.name).split(b"\n")[:-1]
    try:
        return [json.loads(line.decode()) for line in lines]
    except (ValueError, RecursionError) as error:
        raise files.damaged(path.name, error) from None


def kept_line(lines: list[dict[str, Any]], patience: int | None) -> dict[str, Any]:
    """The validation of the weights that a run keeps: the best with early stopping, otherwise the last.

    Its `step` is how long training took to find them.
    """
    epochs = [line for line in lines if line["record"] == "epoch"]
    best = [line for line in epochs if line["is_best"]] if patience is not None else []
    return (best or epochs)[-1]


class LogLines:
    """Messages, one line per validation and one per tenth of the steps, to the logger `mqcast.train`."""

    def __init__(self) -> None:
        self.total, self.tenths = 0, 0

    def __call__(self, record: Record) -> None:
        if isinstance(record, Message):
            logger.info(record.text)
        elif isinstance(record, Begin):
            self.total, self.tenths = record.total_steps, 10 * record.step // max(record.total_steps, 1)
        elif isinstance(record, Epoch):
            logger.info(summary(record))
        elif self.total and (tenths := 10 * record.step // self.total) > self.tenths:
            self.tenths = tenths
            logger.info(f"step {record.step:,} of {self.total:,}, {record.seconds:.0f} s: loss {record.loss:.4f}")


class ProgressBar:
    """A progress bar in the terminal: epoch, loss, validation, trajectories per second, time left."""

    def __init__(self, console: Console, *, shows_epochs: bool = True):
        self.shows_epochs = shows_epochs
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
        )
        self.progress = Progress(*columns, console=console, transient=True)
        self.task: TaskID = self.progress.add_task("starting", total=None)
        self.validation = ""
        self.before: Step | None = None
        self.progress.start()

    def __call__(self, record: Record) -> None:
        if isinstance(record, Message):
            self.progress.console.print(record.text, highlight=False, markup=False, soft_wrap=True)
        elif isinstance(record, Begin):
            self.validation, self.before = "", None
            self.progress.update(self.task, completed=record.step, total=record.total_steps)
        elif isinstance(record, Epoch):
            if self.shows_epochs:
                self.progress.console.print(summary(record), highlight=False, markup=False, soft_wrap=True)
            self.validation = "".join(f" {level} {loss:.4f}" for level, loss in record.valid_quantile_loss.items())
        else:
            rate = _rate(self.before, record)
            text = f"epoch {record.epoch + 1} loss {record.loss:.4f}{self.validation} {rate:,.0f} traj./s"
            self.progress.update(self.task, completed=record.step, description=text)
            self.before = record if self.before is None or record.seconds > self.before.seconds + 30 else self.before

    def close(self) -> None:
        self.progress.stop()


@contextmanager
def progress(quiet: bool) -> Iterator[tuple[Listener, ...]]:
    """A progress bar in a terminal or notebook, removed when training is done; elsewhere lines to the logger."""
    console = Console(stderr=True)
    if quiet or not (console.is_terminal or console.is_jupyter):
        yield () if quiet else (LogLines(),)
        return
    bar = ProgressBar(console, shows_epochs=False)
    try:
        yield (bar,)
    finally:
        bar.close()


class MlflowTracker:
    """Sends settings and metrics to MLflow, as set in its environment; needs `pip install mqcast[track]`."""

    def __init__(self, config: RunConfig, name: str):
        try:
            import mlflow
        except ImportError:
            raise ConfigError(
                "mlflow is not installed; `pip install mqcast[track]`, or train without tracking"
            ) from None
        self.mlflow = mlflow
        mlflow.start_run(run_name=name)
        settings = config.model_dump(mode="json")
        mlflow.log_params({f"{table}.{key}": value for table, part in settings.items() for key, value in part.items()})

    def __call__(self, record: Record) -> None:
        if isinstance(record, Message | Begin):
            return
        values = asdict(record)
        values |= {f"valid_{level}": loss for level, loss in values.pop("valid_quantile_loss", {}).items()}
        if isinstance(record, Epoch) or record.step % 10 == 0:
            numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
            self.mlflow.log_metrics(numbers, step=record.step)

    def close(self) -> None:
        self.mlflow.end_run()


def summary(record: Epoch) -> str:
    """One line about a validation."""
    text = f"epoch {record.epoch + 1}, step {record.step:,}: loss {record.train_loss:.4f}"
    if record.valid_loss is not None:
        text += f", validation {record.valid_loss:.4f}"
        text += "".join(f", {level} {loss:.4f}" for level, loss in record.valid_quantile_loss.items())
        text += " (best)" if record.is_best else ""
    return f"{text}, {record.trajectories / max(record.seconds, 1e-9):,.0f} trajectories/s"


def _rate(before: Step | None, now: Step) -> float:
    """Recent trajectories per second."""
    if before is None or now.seconds <= before.seconds:
        return now.trajectories / max(now.seconds, 1e-9)
    return (now.trajectories - before.trajectories) / (now.seconds - before.seconds)
