"""`python -m lab run`: any experiment of the lab, from its data to records beside the published numbers."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from lab.commands.options import Name, Results, app, shown
from mqcast.cli.app import AsJson, Changes, Config, Device, console, in_processes, listening, progress, said_layers
from mqcast.durable import write_file
from mqcast.errors import ConfigError
from mqcast.launch import is_first
from mqcast.settings.merge import tables_of


@app.command("list")
def list_command() -> None:
    """List the experiments, with what each is about."""
    from lab.experiments.experiment import FOLDERS, LAB

    for folder in FOLDERS:
        for path in sorted((LAB / folder).glob("*.toml")):
            about = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            console.print(f"[bold]{path.stem}[/bold]: {about}", highlight=False, soft_wrap=True)


@app.command("run")
def run_command(
    experiment: Name,
    out: Annotated[Path, typer.Option(help="Where runs and forecasts are written.")],
    data: Annotated[Path | None, typer.Option(help="The folder with the data set's files.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A network, also NETWORK-unforked or NETWORK-mean-of-3; repeat for more."),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed; repeat for more.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Training of each network, before the first window; left out: the settings'.")
    ] = None,
    refit_minutes: Annotated[float | None, typer.Option(help="Training before each later window.")] = None,
    windows: Annotated[int | None, typer.Option(min=1, help="Only the first so many windows.")] = None,
    config: Config = None,
    set: Changes = None,
    search: Annotated[bool, typer.Option(help="Search the paper's grid of 9, by validation loss.")] = False,
    revisions: Annotated[
        bool, typer.Option(help="Of retail, judge also how forecasts of March and April 2016 evolve.")
    ] = False,
    forecasts: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE: another system's forecasts, in a study; repeat for more.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Name of records and tables, when other systems have only some series.")
    ] = None,
    results: Results = None,
    processes: Annotated[int, typer.Option(min=1, help="How many share each step; minutes are of each.")] = 1,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train the systems of an experiment, judge them, and write a record of each.

    Interrupted, the same command goes on. Options of the data set are settings of the table `dataset`.

    Examples: [bold]python -m lab run rossmann_1D --data data --out runs --model mqt --results lab/results[/bold],
    [bold]python -m lab run private --out runs --set dataset.num_items=500 --set train.max_epochs=5[/bold]
    """
    from lab.experiments.experiment import RunSpec, TrainOptions, open_experiment
    from lab.experiments.systems import SEASONAL_NAIVE

    task, tables = open_experiment(experiment), tables_of(said_layers(config, set))
    task = task.replace(options=task.options | tables.pop("dataset", {}), name=task.name + "-search" * search)
    models = list(dict.fromkeys([*task.required_models, *(model or task.default_models)]))
    others = dict(_named(text) for text in forecasts or [])
    task.check_models(models, tables)
    if any(name != SEASONAL_NAIVE for name in models):
        in_processes(processes, device, processes)
    with progress(f"preparing {task.name}", quiet=as_json) as bar:
        prepared = task.load(data, out, bar)
    records, pages, more = [], [], {}
    with listening(as_json) as listeners:
        options = TrainOptions(tables, minutes, refit_minutes, windows, search, revisions, device, listeners)
        for number in dict.fromkeys(seed or [0]):
            specs = [RunSpec(task, name, number, out, options) for name in models]
            for spec in specs:
                task.train(prepared, spec)
            if is_first():
                outcome = task.judge(prepared, specs, others, label)
                _write(outcome, number, [out / "records", *([results] if results else [])])
                records, pages, more = records + outcome.records, pages + outcome.pages, outcome.tables
    if is_first():
        show(task, records, pages, more, as_json)


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or not Path(path).is_file():
        raise ConfigError(f"--forecasts {text}: write it as NAME=FILE, a Parquet file of forecasts")
    return name, Path(path)


def _write(outcome: Any, seed: int, places: list[Path]) -> None:
    for place in places:
        for record in outcome.records:
            record.write(place)
        if outcome.tables:
            path = place / outcome.records[0].task / f"tables-{seed}.json"
            write_file(path, json.dumps(outcome.tables, indent=1, default=str))


def show(task: Any, records: list[Any], pages: list[Path], tables: dict[str, Any], as_json: bool) -> None:
    """Our scores beside the published ones."""
    from lab.experiments.records import beside_published

    table = beside_published(task.published, records, task.metrics)
    if as_json:
        facts = {"experiment": task.name, "table": table.to_dicts(), "records": [asdict(record) for record in records]}
        typer.echo(json.dumps(facts | {"tables": tables, "pages": [str(page) for page in pages]}, default=str))
        return
    console.print(shown(table, f"{task.name}: {task.horizon} steps ahead"))
    for note in [*task.notes(records), *(f"all tables: {page}" for page in pages)]:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
