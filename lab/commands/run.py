"""`python -m lab run`: any experiment of the lab, from its data to records beside the published numbers."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.commands.options import Name, Results, app, shown
from mqcast.cli.app import (
    AsJson,
    Changes,
    Config,
    Device,
    in_processes,
    listening,
    progress,
    said_layers,
)
from mqcast.cli.output import console
from mqcast.durable import write_file
from mqcast.errors import ConfigError
from mqcast.launch import is_first
from mqcast.settings.merge import tables_of

if TYPE_CHECKING:
    from lab.experiments.experiment import Experiment, Outcome

MODELS = "A model of the registry, or a network under a preset, such as mqt@paper; repeat for more."
MODULE = "A Python file or a dotted name, imported first: it registers models of your own; repeat for more."
MINUTES = "The longest training time of each model. Left out: as the recipe or the preset says."
REVISIONS = "For retail, also judge how forecasts of March and April 2016 evolve."
SEARCH = "Search settings by validation loss first: a small grid in a study, the paper's grid of 9 in its tasks."
FORECASTS = "NAME=FILE: another system's forecasts; repeat for more."
LABEL = "Another name for records and tables, for use when --forecasts has only some of the series."

Out = Annotated[Path, typer.Option(help="Where runs and forecasts are written.")]
Data = Annotated[Path | None, typer.Option(help="The folder with the data set's files.")]
Models = Annotated[list[str] | None, typer.Option(help=MODELS)]
Modules = Annotated[list[str] | None, typer.Option(help=MODULE)]
Seeds = Annotated[list[int] | None, typer.Option(help="A seed; repeat for more.")]
Minutes = Annotated[float | None, typer.Option(help=MINUTES)]
Search = Annotated[bool, typer.Option(help=SEARCH)]
Revisions = Annotated[bool, typer.Option(help=REVISIONS)]
Forecasts = Annotated[list[str] | None, typer.Option(help=FORECASTS)]
Label = Annotated[str | None, typer.Option(help=LABEL)]
Processes = Annotated[int, typer.Option(min=1, help="Processes that share each training step.")]


@app.command("list")
def list_command() -> None:
    """List the experiments, with a line about each."""
    from lab.experiments.experiment import FOLDERS, LAB

    for folder in FOLDERS:
        for path in sorted((LAB / folder).glob("*.toml")):
            about = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            console.print(f"[bold]{path.stem}[/bold]: {about}", highlight=False, soft_wrap=True)


@app.command("run")
def run_command(
    experiment: Name,
    out: Out,
    data: Data = None,
    model: Models = None,
    module: Modules = None,
    seed: Seeds = None,
    minutes: Minutes = None,
    config: Config = None,
    set: Changes = None,
    search: Search = False,
    revisions: Revisions = False,
    forecasts: Forecasts = None,
    label: Label = None,
    results: Results = None,
    processes: Processes = 1,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train the systems of an experiment, judge them, and write a record of each.

    After an interruption, the same command continues where it stopped. Options of the data set are settings of the
    table `dataset`.

    Examples: [bold]python -m lab run volatility --data data --out runs --model mqt --model mqt@paper[/bold],
    [bold]python -m lab run private --out runs --minutes 5 --set dataset.num_items=500[/bold]
    """
    from lab.experiments.experiment import RunSpec, TrainOptions, open_experiment
    from lab.experiments.systems import System, import_models

    for name in module or []:
        import_models(name)
    task, tables = open_experiment(experiment), tables_of(said_layers(config, set))
    task = task.replace(options=task.options | tables.pop("dataset", {}))
    task = task.replace(name=task.name + "-search" * search)
    models, others = task.models_of(model), dict(_named(text) for text in forecasts or [])
    task.check_models(models, tables)
    if any(System.parse(name).is_network for name in models):
        in_processes(processes, device, processes)
    with progress(f"preparing {task.name}", quiet=as_json) as bar:
        prepared = task.load(data, out, bar)
    outcomes = []
    with listening(as_json) as listeners:
        options = TrainOptions(tables, minutes, search, revisions, device, listeners)
        for number in dict.fromkeys(seed or [0]):
            specs = [RunSpec(task, name, number, out, options) for name in models]
            for spec in specs:
                task.train(prepared, spec)
            if is_first():
                outcomes.append(task.judge(prepared, specs, others, label))
                _write(outcomes[-1], number, [out / "records", *([results] if results else [])])
    if is_first():
        show(task, outcomes, as_json)


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or not Path(path).is_file():
        raise ConfigError(f"--forecasts {text}: write it as NAME=FILE, a Parquet file of forecasts")
    return name, Path(path)


def _write(outcome: "Outcome", seed: int, folders: list[Path]) -> None:
    for folder in folders:
        for record in outcome.records:
            record.write(folder)
        if outcome.tables:
            path = folder / outcome.records[0].task / f"tables-{seed}.json"
            write_file(path, json.dumps(outcome.tables, indent=1, default=str))


def show(task: "Experiment", outcomes: "list[Outcome]", as_json: bool) -> None:
    """Our scores beside the published ones; of several seeds, the last one's tables."""
    from lab.experiments.records import beside_published

    records = [record for outcome in outcomes for record in outcome.records]
    pages = [str(page) for outcome in outcomes for page in outcome.pages]
    table = beside_published(task.published, records, task.metrics)
    if as_json:
        facts = {"experiment": task.name, "table": table.to_dicts(), "records": [asdict(record) for record in records]}
        typer.echo(json.dumps(facts | {"tables": outcomes[-1].tables, "pages": pages}, default=str))
        return
    console.print(shown(table, f"{task.name}: {task.horizon} steps ahead"))
    for note in [*task.notes(records), *(f"all tables: {page}" for page in pages)]:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
