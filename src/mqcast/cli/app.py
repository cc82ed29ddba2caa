"""The skeleton of the command line: the app, the options that commands share, output, errors and exit codes."""

import gc
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typer.core import TyperGroup

from mqcast.arguments import levels_of, whole_number
from mqcast.cli.output import console, logging_lines, print_error, tell_error, wants_json
from mqcast.cli.unforeseen import in_words, is_of_the_user
from mqcast.errors import ConfigError, Interrupted, MqcastError, PeerLostError
from mqcast.launch import is_first, is_worker, keep_pages, leave, leave_with_parent, num_cores, run_processes, say_why
from mqcast.models import DEFAULT, names
from mqcast.models.protocol import TrainOptions
from mqcast.settings import LARGEST_SEED, MOST_PERIODS, PRESETS, RunConfig
from mqcast.settings.merge import Layer, assigned, user_layers, without
from mqcast.version import __version__

_UsageError: Any = typer.BadParameter.__mro__[1]  # click's, or typer's own copy of it


class _StoppedError(Exception):
    """Training was asked to stop. Typer would turn a bare KeyboardInterrupt into an exit without a message."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Interrupted as stopped:
            raise _StoppedError from stopped
        except _UsageError as error:  # typer prints it as text
            if wants_json() and is_first():
                print_error(error.format_message(), "UsageError", error.exit_code)
            raise


app = typer.Typer(
    cls=_Commands,
    help="Quantile demand forecasts from every creation time in one pass.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@dataclass
class _Program:
    """The running command line: its commands, and the module that `python -m` starts."""

    commands: typer.Typer
    module: str


_program = _Program(app, "mqcast")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for use in scripts.")]
Packed = Annotated[Path, typer.Argument(help="A packed panel.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, such as train.learning_rate=0.003; repeat the option for more."),
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="Number of processes on this machine; left out: one per core, or one per GPU.")
]
Config = Annotated[Path | None, typer.Option(help="TOML file with the tables \\[window], \\[model], \\[train] …")]
Horizon = Annotated[int | None, typer.Option(min=1, help="Steps ahead; left out: window.horizon from the settings.")]
MODELS = f"{', '.join(names())}, or several of them: mean_of(mqt, 3), auto(mqt, seasonal-naive), calibrated(mqt)."
Model = Annotated[str | None, typer.Option(help=f"{MODELS} Left out: {DEFAULT}.")]
Quantile = Annotated[
    list[float] | None,
    typer.Option(help="Quantile level; repeat the option for more. Left out: as the settings say, or 0.5 and 0.9."),
]
Preset = Annotated[
    str | None, typer.Option(help=f"{', '.join(PRESETS)}: settings in place of those that fit the data.")
]
Device = Annotated[str, typer.Option(help="'auto', 'cpu', 'cuda' …")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass  # `main` reads debug from the arguments, because it needs it even when parsing fails


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command("reproduce", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def reproduce_command() -> None:
    """The experiments are in the repository, not in the package."""
    raise ConfigError("the experiments are not part of the package: in a clone of mqcast, run `python -m lab --help`")


def said_layers(
    config: Path | None,
    changes: list[str] | None,
    *,
    horizon: int | None = None,
    model: str | None = None,
    quantiles: list[float] | None = None,
) -> tuple[Layer, ...]:
    """The settings of a file and those of the command line, whose options replace what the file says of the same."""
    options = {"window.horizon": horizon, "model.model": model, "model.quantiles": quantiles}
    replaced = [name for name, value in options.items() if value]
    return without((*user_layers(config), assigned(changes or [])), *replaced)


def setting_of(layers: tuple[Layer, ...], name: str, default: Any = None) -> Any:
    """The value of a setting in the user's layers; the last layer that has it counts."""
    return {one: value for layer in layers for one, value in layer.items()}.get(name, default)


def train_options(
    layers: tuple[Layer, ...], horizon: int | None, quantiles: list[float] | None = None, **options: Any
) -> TrainOptions:
    """The options of a fit; horizon, quantiles and seed may come from the settings."""
    wanted = setting_of(layers, "window.horizon") if horizon is None else horizon
    if wanted is None:
        raise ConfigError(
            "the number of steps ahead is missing; give --horizon, or window.horizon in a settings file (--config)"
        )
    return TrainOptions(
        horizon=whole_number("horizon", wanted, 1, MOST_PERIODS),
        quantiles=levels_of("quantiles", quantiles or setting_of(layers, "model.quantiles", (0.5, 0.9))),
        seed=whole_number("seed", setting_of(layers, "train.seed", 0), 0, LARGEST_SEED),
        layers=layers,
        **options,
    )


def in_processes(wanted: int | None, device: str, most: int) -> None:
    """Start several processes, unless this is already one of them or one is enough."""
    if is_worker():
        leave_with_parent()
        gc.freeze()
        return
    num = wanted
    if num is None:
        import torch

        on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        num = (
            min(torch.cuda.device_count() if on_gpu else num_cores(), most) if device in ("auto", "cpu", "cuda") else 1
        )
    if num > 1:
        said: list[tuple[str, str]] = []
        code = run_processes(num, _program.module, sys.argv[1:], lambda *one: said.append(one))
        if said:
            tell_error("; ".join(text for text, _ in said), said[0][1], code)
        sys.exit(code)
    gc.freeze()  # the garbage collector then skips everything that was imported before


@contextmanager
def listening(quiet: bool, mlflow: RunConfig | None = None, name: str = "") -> Iterator[tuple[Any, ...]]:
    """Listeners of a training: a progress bar in a terminal, otherwise one line per epoch; MLflow on request."""
    from mqcast.train.records import LogLines, MlflowTracker, ProgressBar

    listeners: list[Any] = []
    if is_first() and not quiet:
        logging.getLogger("mqcast").setLevel(logging.INFO)
        listeners.append(ProgressBar(console) if console.is_terminal else LogLines())
    if is_first() and mlflow is not None:
        listeners.append(MlflowTracker(mlflow, name))
    with ExitStack() as stack:
        for listener in listeners:
            if hasattr(listener, "close"):
                stack.callback(listener.close)
        yield tuple(listeners)


@contextmanager
def progress(title: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def main(commands: typer.Typer = app, module: str = "mqcast") -> None:
    """Run a command line. An MqcastError is printed as one line, by one process only, and ends with exit code 2."""
    keep_pages()
    _program.commands, _program.module = commands, module
    try:
        _main()
    except SystemExit as ending:
        if is_worker() and isinstance(ending.code, int | None):
            leave(ending.code or 0)
        raise


def _main() -> None:
    with logging_lines(_with_options):
        try:
            _program.commands()
        except (MqcastError, _StoppedError) as error:
            if isinstance(error.__cause__, Interrupted):
                error = error.__cause__
            if "--debug" in sys.argv:
                raise error
            code = 128 + error.signal if isinstance(error, Interrupted) else 2
            if not (
                is_worker()
                and say_why(str(error), type(error).__name__, isinstance(error, Interrupted | PeerLostError))
            ):
                tell_error(str(error), type(error).__name__, code)
            sys.exit(code)
        except KeyboardInterrupt:
            if wants_json() and is_first():
                print_error("stopped by Ctrl-C; run the command again to go on", "Interrupted", 130)
            sys.exit(130)
        except Exception as error:
            _tell_unforeseen(error)
            raise


def _tell_unforeseen(error: Exception) -> None:
    """Say what the user can help in one line, and end; with --json, all in words, beside a bug's traceback."""
    text, kind, detail = in_words(error), type(error).__name__, f"{type(error).__name__}: {error}"
    if is_of_the_user(error) and "--debug" not in sys.argv:
        if not (is_worker() and say_why(text, kind, False)):
            tell_error(text, kind, 2, detail)
        sys.exit(2)
    if wants_json() and is_first():
        print_error(text, kind, 1, detail)


def _with_options(text: str) -> str:
    """Rewrite arguments that are options of the command: missing='drop' becomes --missing drop, id=… --id."""
    commands = typer.main.get_command(_program.commands).commands  # type: ignore[attr-defined]
    command = next((commands[word] for word in sys.argv[1:] if word in commands), None)
    names = {} if command is None else {option.name: option.opts[0] for option in command.params}

    def option(match: re.Match[str]) -> str:
        return f"{names[match[1]]} {match[2] or ''}".rstrip() if match[1] in names else match[0]

    return re.sub(r"\b(\w+)=(?:'([^']*)'|…)", option, text)
