"""Commands about training: fit, search, curve, bench."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.table import Table

from mqcast.arguments import path_of
from mqcast.cli.app import (
    MODELS,
    AsJson,
    Changes,
    Config,
    Device,
    Horizon,
    Model,
    Packed,
    Preset,
    Processes,
    Quantile,
    app,
    in_processes,
    listening,
    said_layers,
    setting_of,
    train_options,
)
from mqcast.cli.output import console, facts_of_panel, print_json, tell
from mqcast.data.panel import Panel
from mqcast.durable import make_parent, write_file
from mqcast.errors import ArtifactError, ConfigError
from mqcast.forecast.frames import warn_of_future
from mqcast.launch import is_first, was_restarted
from mqcast.models import DEFAULT, get
from mqcast.models.files import open_model, write_model
from mqcast.models.protocol import HasLeaderboard, HasSettings
from mqcast.models.registry import check
from mqcast.settings import MOST_MEMBERS, SearchConfig
from mqcast.settings.merge import Merged, tables_of

METRICS = "metrics.jsonl"


@app.command("fit")
def fit_command(
    panel: Packed,
    run: Annotated[Path, typer.Argument(help="Where to write the run.")],
    horizon: Horizon = None,
    model: Model = None,
    quantile: Quantile = None,
    preset: Preset = None,
    config: Config = None,
    set: Changes = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that is already there.")] = False,
    start_from: Annotated[Path | None, typer.Option(help="A trained run; training starts from its weights.")] = None,
    members: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_MEMBERS, help="Networks to train together; their mean is the forecast."),
    ] = None,
    processes: Processes = None,
    device: Device = "auto",
    explain_settings: Annotated[
        bool, typer.Option("--explain-settings", help="Print every setting and its origin, without training.")
    ] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Send settings and metrics to MLflow.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on a packed panel.

    Ctrl-C saves; the same command with [bold]--resume[/bold] continues with bit-identical results. On several machines:
    [bold]torchrun --nnodes 2 --nproc-per-node 8 … -m mqcast fit …[/bold] with a folder that all of them share.

    Examples: [bold]mqcast fit panel runs/first --horizon 13[/bold],
    [bold]mqcast fit panel runs/first --config run.toml --set train.max_epochs=20[/bold]
    """
    from mqcast.train.memory import most_windows
    from mqcast.train.records import kept_line, read_metrics

    layers = said_layers(config, set, horizon=horizon, model=model, quantiles=quantile)
    name = model or setting_of(layers, "model.model", DEFAULT)
    data, wanted = Panel.open(panel), get(name)
    before = None if start_from is None else open_model(start_from)
    options = train_options(
        layers,
        horizon,
        quantile,
        preset=preset,
        members=members,
        folder=run,
        resume=resume or was_restarted(),
        start_from=before,
        device=device,
    )
    check(name, wanted, options)
    settings = wanted.settings(data, options) if isinstance(wanted, HasSettings) else None
    if explain_settings:
        _explain(name, settings, as_json)
        return
    if settings is not None:
        window, train = settings.config.window, settings.config.train
        in_processes(processes, device, -(-window.batch_size // (train.micro_batch or most_windows(window.batch_size))))
    tracked = settings.config if mlflow and settings is not None else None
    warn_of_future(data, options.horizon, is_packed=True)
    with listening(as_json, tracked, run.name) as listeners:
        fitted = wanted.fit(data, replace(options, listeners=listeners))
    if is_first():
        write_model(fitted, name, options, run)
        facts: dict[str, Any] = {"run": str(run), "model": name, **facts_of_panel(data)}
        if (run / METRICS).exists():
            facts |= kept_line(read_metrics(run / METRICS), settings and settings.config.train.patience)
        if isinstance(fitted, HasLeaderboard):
            facts["leaderboard"] = fitted.leaderboard
            if not as_json:
                console.print(_leaderboard(fitted.leaderboard))
        steps = f"trained {facts['step']:,} steps; " if "step" in facts else ""
        tell(as_json, facts, f"{steps}the run is in {run}")


def _leaderboard(members: pl.DataFrame) -> Table:
    """The members of a blend, best first."""
    table = Table(title="Loss on held-out dates, relative to seasonal naive", title_justify="left")
    columns = ("member", "loss", "weight", "minutes", "note")
    for heading in columns:
        table.add_column(heading, no_wrap=heading != "note")
    for row in members.select(columns).iter_rows():
        table.add_row(*("" if value is None else value if isinstance(value, str) else f"{value:.2f}" for value in row))
    return table


def _explain(name: str, settings: Merged | None, as_json: bool) -> None:
    """Every setting of a fit, and where it comes from."""
    if settings is None:
        raise ConfigError(f"model {name} has no settings of its own")
    if as_json:
        print_json({"model": name, "settings": settings.table()})
        return
    table = Table(title=f"Settings of {name}", title_justify="left")
    for heading in ("setting", "value", "origin"):
        table.add_column(heading, overflow="fold")
    for row in settings.rows():
        table.add_row(*row)
    console.print(table)


@app.command("search")
def search_command(
    panel: Packed,
    folder: Annotated[Path, typer.Argument(help="Where to write the trials and their results.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the same tables as for fit, and \\[search].")
    ] = None,
    horizon: Horizon = None,
    quantile: Quantile = None,
    preset: Preset = None,
    set: Changes = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train with many settings and find those with the lowest validation loss; by default, the paper's grid of nine.

    After an interruption, the same command continues where it stopped.

    Example: [bold]mqcast search panel searches/first --config search.toml[/bold]
    """
    from mqcast.train.search import search, trials_table

    layers, data = said_layers(config, set, horizon=horizon, quantiles=quantile), Panel.open(panel)
    wanted = SearchConfig(**tables_of(layers).get("search", {}))
    model = get(setting_of(layers, "model.model", DEFAULT))
    if not isinstance(model, HasSettings):
        raise ConfigError("only networks have settings to search")
    settings = model.settings(data, train_options(layers, horizon, quantile, preset=preset, device=device)).config
    with listening(as_json) as listeners:
        best = search(data, settings, wanted, folder, listeners=listeners, device=device)
    if is_first():
        if not as_json:
            console.print(trials_table(best))
        facts = {"best": best.name, "run": str(best.run.folder), "trials": [asdict(trial) for trial in best.trials]}
        tell(as_json, facts, f"the best run is in {best.run.folder}")


@app.command("curve")
def curve_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, finished or not.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("curve.html"),
    as_json: AsJson = False,
) -> None:
    """Draw the learning curves of one or several runs as a page that works offline.

    Example: [bold]mqcast curve searches/first/trials/* --out curve.html[/bold]
    """
    from mqcast.report.figures import learning_curve
    from mqcast.report.page import figure_page
    from mqcast.train.records import read_metrics

    names = [run.name for run in runs]
    metrics = {}
    for run in runs:
        if not (run / METRICS).exists():
            raise ArtifactError(f"there is no metrics.jsonl in {run}; give the folder of a run that has started")
        metrics[run.name if names.count(run.name) == 1 else str(run)] = read_metrics(run / METRICS)
    make_parent(path_of("out", out))
    write_file(out, figure_page(learning_curve(metrics)))
    tell(as_json, {"curve": str(out), "runs": list(metrics)}, f"the learning curve is in {out}")


@app.command("bench")
def bench_command(
    model: Annotated[str, typer.Option(help=MODELS)] = DEFAULT,
    items: Annotated[int, typer.Option(min=2, help="Simulated items.")] = 200,
    horizon: Annotated[int, typer.Option(min=1, help="Weeks ahead.")] = 13,
    steps: Annotated[int, typer.Option(min=6, help="Training steps; the first five are not timed.")] = 30,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the speed of this machine: trajectories per second in training and forecasts per second, by one process.

    Example: [bold]mqcast bench --model mqcnn --horizon 26[/bold]
    """
    from mqcast.bench import measure

    speed = measure(model, items, horizon, steps, device)
    text = f"{model}: {speed['trajectories_per_second']:,.0f} trajectories/s in training, "
    tell(as_json, speed, f"{text}{speed['forecasts_per_second']:,.0f} forecasts/s of {horizon} weeks each")
