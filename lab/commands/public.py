"""The paper's four public tasks: reproduce electricity, traffic, volatility, retail."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from lab.commands.options import Data, Models, Out, Seeds, app
from lab.experiments.public import (
    BATCH_SIZE,
    ELECTRICITY,
    OXFORD_MAN,
    RETAIL,
    RETAIL_WITHOUT_OPEN,
    TRAFFIC,
    PublicTask,
)
from lab.experiments.public_panels import Panels, panels_of
from lab.experiments.public_runs import (
    COLUMNS,
    MODEL_NAMES,
    Asked,
    PublicRun,
    judge_volatility,
    table_notes,
    table_rows,
)
from lab.experiments.record import Record
from mqcast.cli.app import AsJson, Device, Processes, console, in_processes, listening, progress
from mqcast.defaults import MODELS
from mqcast.errors import ConfigError
from mqcast.launch import is_first
from mqcast.levels import percentile
from mqcast.settings import nearest

NoForking = Annotated[
    bool, typer.Option("--no-forking", help="Train on 450,000 drawn blocks, one creation time each, as TFT does.")
]
Search = Annotated[bool, typer.Option("--search", help="Search the paper's grid of 9, by validation loss.")]
MaxSteps = Annotated[int | None, typer.Option(min=1, help="Steps of training, for a trial.")]
MaxMinutes = Annotated[float | None, typer.Option(help="Minutes of training, for a trial.")]


def _add_command(task: PublicTask, text: str) -> None:
    def command(
        data: Data,
        out: Out = Path("reproduced"),
        model: Models = None,
        seed: Seeds = None,
        no_forking: NoForking = False,
        search: Search = False,
        max_steps: MaxSteps = None,
        max_minutes: MaxMinutes = None,
        processes: Processes = None,
        device: Device = "auto",
        as_json: AsJson = False,
    ) -> None:
        asked = Asked(not no_forking, search, max_steps, max_minutes, device)
        _reproduce(task, data, out, model, seed, asked, processes, as_json)

    app.command(task.name, help=text)(command)


_add_command(
    ELECTRICITY,
    "Hourly load of 369 customers, 24 hours ahead; --data holds UCI's LD2011_2014.txt or its .zip.\n\n"
    "Example: [bold]python -m lab electricity --data uci --model mqt --model mqcnn --seed 0 --seed 1[/bold]",
)
_add_command(
    TRAFFIC,
    "Hourly occupancy at 963 sensors, 24 hours ahead; --data holds UCI's PEMS-SF.zip or its files.\n\n"
    "Example: [bold]python -m lab traffic --data uci[/bold]",
)
_add_command(
    OXFORD_MAN,
    "Realized volatility of 31 indices, 5 trading days ahead; --data holds oxfordmanrealizedvolatilityindices.csv or "
    "its .zip.\n\nExample: [bold]python -m lab oxford-man --data oxford-man --search[/bold]",
)


@app.command("retail")
def retail_command(
    data: Data,
    out: Out = Path("reproduced"),
    model: Models = None,
    seed: Seeds = None,
    open: Annotated[
        bool,
        typer.Option("--open/--no-open", help="With the column that tells of future days without sales, or without."),
    ] = True,
    volatility: Annotated[
        bool, typer.Option("--volatility", help="Also judge how forecasts of March and April 2016 evolve.")
    ] = False,
    no_forking: NoForking = False,
    search: Search = False,
    max_steps: MaxSteps = None,
    max_minutes: MaxMinutes = None,
    processes: Processes = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Daily sales of items in stores, 30 days ahead; --data holds Kaggle's Favorita files, unpacked.

    Examples: [bold]python -m lab retail --data favorita --no-forking[/bold],
    [bold]python -m lab retail --data favorita --no-open --model mqt --model mqcnn --volatility[/bold]
    """
    task = RETAIL if open else RETAIL_WITHOUT_OPEN
    asked = Asked(not no_forking, search, max_steps, max_minutes, device)
    _reproduce(task, data, out, model, seed, asked, processes, as_json, is_volatile=volatility)


def _reproduce(
    task: PublicTask,
    data: Path,
    out: Path,
    models: list[str] | None,
    seeds: list[int] | None,
    asked: Asked,
    processes: int | None,
    as_json: bool,
    is_volatile: bool = False,
) -> None:
    from mqcast.train.memory import most_windows

    for model in models or ():
        if model not in MODELS:
            raise ConfigError(f"model is {model!r}{nearest(model, MODELS)}; there are {', '.join(MODELS)}")
    with progress(f"preparing {task.name}", quiet=as_json) as bar:
        panels = panels_of(task, data, out / "panels" / task.name, bar)
    in_processes(processes, asked.device, -(-BATCH_SIZE // most_windows(BATCH_SIZE)))
    both = [(model, seed) for model in dict.fromkeys(models or ["mqt"]) for seed in dict.fromkeys(seeds or [0])]
    runs = [PublicRun(panels, model, seed, asked, out) for model, seed in both]
    records = [_record(run, as_json) for run in runs]
    judged = _volatility(panels, runs, out, as_json) if is_volatile else []
    if is_first():
        _show(task, [record for record in records if record is not None], judged, as_json)


def _record(run: PublicRun, as_json: bool) -> Record | None:
    if (record := run.found()) is not None:
        return record
    name = f"{run.name}, {run.model}, seed {run.seed}"
    with listening(run.config, name, mlflow=False, quiet=as_json) as listeners:
        trained = run.train(listeners)
    with progress(f"{name}: forecasting", quiet=as_json) as bar:
        return run.judge(trained, bar)


def _volatility(panels: Panels, runs: list[PublicRun], out: Path, as_json: bool) -> list[dict[str, Any]]:
    found = {}
    for run in runs:
        with progress(f"{run.name}, {run.model}, seed {run.seed}: revisions", quiet=as_json) as bar:
            found[f"{MODEL_NAMES[run.model]}, seed {run.seed}"] = run.revised(bar)
    if not is_first():
        return []
    page = out / f"{runs[0].name}-volatility.html"
    rows = judge_volatility(panels, {name: frame for name, frame in found.items() if frame is not None}, page)
    return [row | {"page": str(page)} for row in rows]


def _show(task: PublicTask, records: list[Record], volatile: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        facts = {"task": task.name, "published": task.published, "records": [asdict(record) for record in records]}
        typer.echo(json.dumps(facts | {"volatility": volatile}, default=str))
        return
    table = Table(title=f"{task.name}: quantile risk", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in table_rows(task, records):
        table.add_row(*row, style="bold" if row[-1] else None)
    console.print(table)
    for note in table_notes(task, records):
        console.print(note, highlight=False)
    if volatile:
        console.print(_volatility_table(volatile))
        console.print(f"its figures are in {volatile[0]['page']}", highlight=False)


def _volatility_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="V at the outcome: 0 is best (95 % interval)", title_justify="left")
    for column in ("model", "level", "V", "low", "high"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        table.add_row(row["model"], percentile(row["level"]), *(f"{row[key]:.4f}" for key in ("excess", "lo", "hi")))
    return table
