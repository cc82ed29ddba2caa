"""The command line: parse, call one verb, print."""

import json
import logging
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mqcast.config import RunConfig, SearchConfig
from mqcast.data.panel import Panel, pack
from mqcast.data.schema import Schema
from mqcast.data.summary import Summary, summarise
from mqcast.durable import write_file
from mqcast.errors import ArtifactError, ConfigError, Interrupted, MqcastError
from mqcast.launch import is_first, is_worker, leave_with_parent, num_cores, run_processes, was_restarted
from mqcast.version import __version__

app = typer.Typer(
    help="Quantile demand forecasts from every creation time in one pass.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
console = Console()
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Columns = Annotated[list[str] | None, typer.Option(help="Column; repeat for more.")]


@app.callback()
def _options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    pass  # read by `main`, which has to know it when parsing itself fails


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where to write.")] = Path("demo"),
    items: Annotated[int, typer.Option(help="How many items to simulate.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="Another seed, another world.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Build a synthetic retail world, pack it, and show what a network is given.

    Example: [bold]mqcast demo --items 2000[/bold]
    """
    from mqcast.demo import run_demo

    result = run_demo(folder, items, seed)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
        return
    console.print(f"\n[bold]A simulated retailer[/bold] in {result.panel_folder} ({result.seconds:.1f} s)\n")
    console.print(_summary_table(result.summary))
    table = Table(title="What a network is given: one batch", title_justify="left")
    for heading in ("part", "shape", "meaning"):
        table.add_column(heading)
    for row in result.batch:
        table.add_row(*row)
    console.print(table)
    table = Table(title=f"What there is to win: weighted quantile loss, {result.scored}", title_justify="left")
    for heading in ("forecaster", "P50", "P90", "P50 in promotion weeks", "P50 in holiday weeks"):
        table.add_column(heading, justify="left" if heading == "forecaster" else "right")
    for name, losses in result.losses.items():
        table.add_row(name, *(f"{loss:.3f}" for loss in losses.values()))
    console.print(table)


@app.command("pack")
def pack_command(
    frame: Annotated[str, typer.Argument(help="Parquet file, folder or glob (quoted) of long rows: id, date, target.")],
    folder: Annotated[Path, typer.Argument(help="Where to write the panel.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with a table \\[schema], instead of the options.")
    ] = None,
    target: Annotated[str, typer.Option(help="What is forecast.")] = "y",
    id: Annotated[str, typer.Option(help="Which series a row belongs to.")] = "unique_id",
    time: Annotated[str, typer.Option(help="The row's date.")] = "ds",
    freq: Annotated[str | None, typer.Option(help="'h', 'D', 'W-SUN', 'MS' …; left out: told from the dates.")] = None,
    static: Columns = None,
    past: Columns = None,
    known: Columns = None,
    event: Columns = None,
    category: Annotated[
        list[str] | None, typer.Option(help="Column of numbers that are names; repeat for more.")
    ] = None,
    holidays: Annotated[list[str] | None, typer.Option(help="Country or region: US, DE-BY; repeat for more.")] = None,
    observed: Annotated[str | None, typer.Option(help="Flag: false where demand was not observed.")] = None,
    time_grid: Annotated[str, typer.Option(help="'calendar', or 'rows': each row is the next step.")] = "calendar",
    like: Annotated[
        Path | None,
        typer.Option(help="A packed panel whose roles and categories to take: the one a run was trained on."),
    ] = None,
    static_table: Annotated[str | None, typer.Option(help="Parquet with one row a series.")] = None,
    event_table: Annotated[str | None, typer.Option(help="Parquet with one row a date.")] = None,
    as_json: AsJson = False,
) -> None:
    """Validate a frame of any size and pack it into a folder that trains from disk.

    Example: [bold]mqcast pack sales.parquet panel --freq W --known promo --known price --holidays US[/bold]
    """
    said: dict[str, Any] = {
        "target": target,
        "id": id,
        "time": time,
        "freq": freq,
        "observed": observed,
        "time_grid": time_grid,
        "static": static or (),
        "past": past or (),
        "known": known or (),
        "events": event or (),
        "holidays": holidays or (),
        "kinds": dict.fromkeys(category or (), "category"),
    }
    given = {name: value for name, value in said.items() if value != Schema.model_fields[name].default}
    ways = [way for way, is_given in {"--config": config, "--like": like}.items() if is_given is not None]
    if len(ways) + bool(given) > 1:
        raise ConfigError(f"give one of {', '.join(ways + ['--' + name for name in given])}, not all")
    schema = Schema(**said) if not ways else None if config is None else Schema.from_toml(config, table="schema")
    other = None if like is None else Panel.open(like)
    with _progress("packing", quiet=as_json) as on_progress:
        panel = pack(frame, folder, schema, static_table, event_table, like=other, on_progress=on_progress)
    _show_panel(panel, as_json)


@app.command()
def inspect(folder: Annotated[Path, typer.Argument(help="A packed panel.")], as_json: AsJson = False) -> None:
    """Say what a packed panel holds, after checking every byte of it.

    Example: [bold]mqcast inspect panel[/bold]
    """
    panel = Panel.open(folder)
    panel.verify()
    _show_panel(panel, as_json)


@app.command()
def params(
    feedback_heads: Annotated[
        str, typer.Option(help="'shared', as the paper's counts imply, or 'per_horizon', as its equations say.")
    ] = "shared",
    as_json: AsJson = False,
) -> None:
    """Count the networks' parameters in the paper's private setting, beside the paper's own numbers.

    Example: [bold]mqcast params --feedback-heads per_horizon[/bold]
    """
    from mqcast.model.parameters import PAPER, parameter_table

    counts = parameter_table(feedback_heads)
    if as_json:
        typer.echo(json.dumps([{"model": model, "parameters": count} for model, count in counts.items()]))
        return
    table = Table(title="Parameters: 52 weeks ahead, d_h = 32, one-hot static features", title_justify="left")
    for heading in ("model", "here", "paper", "here − mqt-nods", "paper − mqt-nods"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for model, count in counts.items():
        extra, papers = count - counts["mqt-nods"], PAPER[model] - PAPER["mqt-nods"]
        table.add_row(model, f"{count:,}", f"{PAPER[model]:,}", f"{extra:+,}", f"{papers:+,}")
    console.print(table)
    console.print("The width of the static input is not published: it is fitted to mqt-nods. See docs/paper.md.")


Packed = Annotated[Path, typer.Argument(help="A packed panel.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, such as train.learning_rate=0.003; repeat for more.")
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="How many work together here; left out: one a core, or one a GPU.")
]
Device = Annotated[str, typer.Option(help="'auto', 'cpu', 'cuda' …")]


@app.command("fit")
def fit_command(
    panel: Packed,
    run: Annotated[Path, typer.Argument(help="Where to write the run.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with tables \\[window], \\[model], \\[train] …")
    ] = None,
    set: Changes = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")] = False,
    processes: Processes = None,
    device: Device = "auto",
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Send settings and metrics to MLflow.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network on a packed panel.

    Ctrl-C saves; the same command with [bold]--resume[/bold] goes on, to the bit. On several machines:
    [bold]torchrun --nnodes 2 --nproc-per-node 8 … -m mqcast fit …[/bold] with a shared folder.

    Example: [bold]mqcast fit panel runs/first --config run.toml --set train.max_epochs=20[/bold]
    """
    from mqcast.train.loop import fit
    from mqcast.train.memory import most_windows
    from mqcast.train.records import read_metrics

    settings = _settings(config, set or [])
    at_a_time = settings.train.micro_batch or most_windows(settings.window.batch_size)
    _in_processes(processes, device, -(-settings.window.batch_size // at_a_time))
    with _listeners(settings, run.name, mlflow, quiet=as_json) as listeners:
        done = fit(
            Panel.open(panel), settings, run, resume=resume or was_restarted(), listeners=listeners, device=device
        )
    if is_first():
        epochs = [line for line in read_metrics(done.metrics) if line["record"] == "epoch"]
        kept = [line for line in epochs if line["is_best"]] if settings.train.patience else []
        last = (kept or epochs)[-1]
        _print(
            as_json, {"run": str(done.folder)} | last, f"trained {last['step']:,} steps; the run is in {done.folder}"
        )


@app.command("forecast")
def forecast_command(
    run: Annotated[Path, typer.Argument(help="A trained run.")],
    panel: Packed,
    out: Annotated[Path, typer.Argument(help="The Parquet file to write.")],
    first: Annotated[str | None, typer.Option(help="First cutoff; left out: the last one alone.")] = None,
    last: Annotated[str | None, typer.Option(help="Last cutoff; left out: the last observation.")] = None,
    processes: Processes = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Forecast from the panel's last observation, or from every cutoff between two dates.

    Interrupted, the same command goes on where it was.

    Example: [bold]mqcast forecast runs/first panel forecasts.parquet --first 2024-01-07 --last 2024-06-30[/bold]
    """
    from mqcast.forecast.predict import forecast
    from mqcast.run import Run

    trained, data = Run.open(run), Panel.open(panel)
    _in_processes(processes, device, data.num_series)
    with _progress("forecasting", quiet=as_json or not is_first()) as on_progress:
        forecast(trained, data, out, first=first, last=last, device=device, on_progress=on_progress)
    if is_first():
        _print(as_json, {"forecasts": str(out)}, f"forecasts are in {out}")


@app.command("search")
def search_command(
    panel: Packed,
    folder: Annotated[Path, typer.Argument(help="Where to write the trials and what they found.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the tables that fit takes, and \\[search].")
    ] = None,
    set: Changes = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train with many settings and say which has the least validation loss; left out: the paper's grid of nine.

    Interrupted, the same command goes on where it was.

    Example: [bold]mqcast search panel searches/first --config search.toml[/bold]
    """
    from mqcast.train.search import search, trials_table

    values = _values(config, set or [])
    wanted, settings = SearchConfig(**values.pop("search", {})), RunConfig(**values)
    with _listeners(settings, folder.name, mlflow=False, quiet=as_json) as listeners:
        best = search(Panel.open(panel), settings, wanted, folder, listeners=listeners, device=device)
    if is_first():
        if not as_json:
            console.print(trials_table(best))
        facts = {"best": best.name, "run": str(best.run.folder), "trials": [asdict(trial) for trial in best.trials]}
        _print(as_json, facts, f"the best run is in {best.run.folder}")


@app.command("curve")
def curve_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, done or not.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("curve.html"),
    as_json: AsJson = False,
) -> None:
    """Draw the learning curves of one or several runs as a page that works offline.

    Example: [bold]mqcast curve searches/first/trials/* --out curve.html[/bold]
    """
    from mqcast.report.figures import learning_curve
    from mqcast.train.records import read_metrics

    names = [run.name for run in runs]
    metrics = {}
    for run in runs:
        if not (run / "metrics.jsonl").exists():
            raise ArtifactError(f"no metrics.jsonl in {run}; name the folder of a run that has begun")
        metrics[run.name if names.count(run.name) == 1 else str(run)] = read_metrics(run / "metrics.jsonl")
    write_file(out, learning_curve(metrics).to_html(include_plotlyjs=True))
    _print(as_json, {"curve": str(out), "runs": list(metrics)}, f"the learning curve is in {out}")


def _settings(config: Path | None, changes: list[str]) -> RunConfig:
    """The settings of a TOML file, with those of the command line."""
    values = _values(config, changes)
    values.pop("search", None)
    return RunConfig(**values)


def _values(config: Path | None, changes: list[str]) -> dict[str, Any]:
    """Tables of a TOML file, with what the command line sets; its [schema] is for packing."""
    values = RunConfig.read_toml(config) if config else {}
    values.pop("schema", None)
    for change in changes:
        name, equals, text = change.partition("=")
        table, dot, field = name.partition(".")
        if not equals or not dot:
            raise ConfigError(f"--set {change}: write it as table.setting=value, such as train.learning_rate=0.003")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        values.setdefault(table, {})[field] = value
    if "window" not in values:
        raise ConfigError(
            "no settings of the windows; give --config with a table [window], or --set window.horizon=…, "
            "window.history=… and window.num_fcts=…"
        )
    return values


def _in_processes(wanted: int | None, device: str, most: int) -> None:
    """Become several processes, unless this is one of them or one is enough."""
    if is_worker():
        leave_with_parent()
        return
    num = wanted
    if num is None:
        import torch

        on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        num = (
            min(torch.cuda.device_count() if on_gpu else num_cores(), most) if device in ("auto", "cpu", "cuda") else 1
        )
    if num > 1:
        sys.exit(run_processes(num, sys.argv[1:]))


@contextmanager
def _listeners(config: RunConfig, name: str, mlflow: bool, quiet: bool) -> Iterator[tuple[Any, ...]]:
    """Who hears of the training: a bar in a terminal, else a line an epoch; MLflow if asked for."""
    from mqcast.train.records import LogLines, MlflowTracker, ProgressBar

    found: list[Any] = []
    if is_first() and not quiet:
        logging.basicConfig(format="%(message)s", level=logging.WARNING)
        logging.getLogger("mqcast").setLevel(logging.INFO)
        found.append(ProgressBar(console) if console.is_terminal else LogLines())
    if is_first() and mlflow:
        found.append(MlflowTracker(config, name))
    with ExitStack() as stack:
        for listener in found:
            if hasattr(listener, "close"):
                stack.callback(listener.close)
        yield tuple(found)


def _print(as_json: bool, facts: dict[str, Any], text: str) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _show_panel(panel: Panel, as_json: bool) -> None:
    summary = summarise(panel)
    if as_json:
        typer.echo(json.dumps(asdict(summary) | {"fingerprint": panel.fingerprint}))
    else:
        console.print(_summary_table(summary))
        console.print(f"fingerprint {panel.fingerprint}", highlight=False)


def _summary_table(summary: Summary) -> Table:
    table = Table(title="Panel", title_justify="left", show_header=False)
    table.add_row("series", f"{summary.num_series:,}, of {summary.shortest:,} to {summary.longest:,} steps")
    table.add_row("rows", f"{summary.num_rows:,} in {summary.num_bytes / 2**20:,.1f} MiB")
    table.add_row("dates", f"{summary.first} to {summary.last}, {summary.freq}")
    table.add_row(
        "target", f"{summary.missing_share:.1%} of steps missing, {summary.zero_share:.1%} of the others zero"
    )
    for role, names in summary.columns.items():
        table.add_row(role, ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else ""))
    return table


@contextmanager
def _progress(title: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def main() -> None:
    """Run the command line; an error of ours is one line and exit code 2. Of several processes the first one speaks."""
    debug = "--debug" in sys.argv
    try:
        app()
    except MqcastError as error:
        if debug:
            raise
        if is_first():
            Console(stderr=True).print(f"[red]error:[/red] {_escaped(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(128 + error.signal if isinstance(error, Interrupted) else 2)
    except KeyboardInterrupt:
        sys.exit(130)


def _escaped(text: str) -> str:
    return text.replace("[", "\\[").replace("\n", " ")
