"""`python -m lab rossmann …`: leaderboards and the paper's comparisons on real data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.table import Table

from lab.commands.options import Data, Models, Out, Seeds, app
from mqcast.cli.app import (
    AsJson,
    Changes,
    Config,
    Device,
    console,
    in_processes,
    listening,
    said_tables,
    tell,
)
from mqcast.defaults import MODELS
from mqcast.durable import write_file
from mqcast.errors import ConfigError
from mqcast.launch import is_first

Processes = Annotated[int, typer.Option(min=1, help="How many share each step; minutes are of each.")]
Results = Annotated[Path | None, typer.Option(help="Where records are written too, such as results.")]
Windows = Annotated[int | None, typer.Option(min=1, help="Only the first so many windows.")]
FirstMinutes = Annotated[float | None, typer.Option(help="Training before the first window; left out: the settings'.")]
Minutes = Annotated[float | None, typer.Option(help="Training of each network; left out: the settings' steps.")]
Others = Annotated[list[str] | None, typer.Option("--forecasts", help="NAME=FILE: another system's; repeat for more.")]
Label = Annotated[str | None, typer.Option(help="Of records and tables, when other systems leave only some series.")]
RefitMinutes = Annotated[float | None, typer.Option(help="And before each later one.")]


@app.command("rossmann")
def rossmann_command(
    data: Data,
    out: Out,
    model: Models = None,
    seed: Seeds = None,
    config: Config = None,
    set: Changes = None,
    first_minutes: FirstMinutes = None,
    refit_minutes: RefitMinutes = None,
    windows: Windows = None,
    results: Results = None,
    processes: Processes = 1,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """fev-bench's rossmann_1D: ten windows of 48 days, networks that go on learning before each.

    Interrupted, the same command goes on where it was.

    Example: [bold]python -m lab rossmann --data data --out runs --model mqt --seed 0[/bold]
    """
    leaderboard_command(
        "rossmann_1D", data, out, model, seed, config, set, first_minutes, refit_minutes, windows, results, processes,
        device, as_json,
    )  # fmt: skip


@app.command("leaderboard")
def leaderboard_command(
    task: Annotated[str, typer.Argument(help="A task: a name, or a TOML file; see docs/evidence_howto.md.")],
    data: Data,
    out: Out,
    model: Models = None,
    seed: Seeds = None,
    config: Config = None,
    set: Changes = None,
    first_minutes: FirstMinutes = None,
    refit_minutes: RefitMinutes = None,
    windows: Windows = None,
    results: Results = None,
    processes: Processes = 1,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Any leaderboard's task of fev-bench's form, by its TOML file.

    Example: [bold]python -m lab leaderboard my_task.toml --data data --out runs[/bold]
    """
    from lab.experiments.leaderboard import SEASONAL_NAIVE, Budget, Settled, naive_record, record_of, run_windows
    from lab.experiments.scores import Grid
    from lab.experiments.task import Task

    models = model or [SEASONAL_NAIVE, "mqt"]
    if strange := [name for name in models if name not in (*MODELS, SEASONAL_NAIVE)]:
        raise ConfigError(f"no model {', '.join(strange)}; there are {', '.join((*MODELS, SEASONAL_NAIVE))}")
    said, tables = Task.open(task), said_tables(config, set or [])
    if any(name != SEASONAL_NAIVE for name in models):
        in_processes(processes, device, 64)
    loaded, records = said.load(data), []
    grid = Grid(loaded) if is_first() else None
    for name in models:
        for number in (seed or [0]) if name != SEASONAL_NAIVE else [0]:
            if name == SEASONAL_NAIVE:
                found = naive_record(loaded, grid, windows) if grid is not None else None
            else:
                folder = out / said.name / f"{name}-{number}"
                settled = Settled(loaded, name, number, tables, folder, device)
                with listening(settled.config(), said.name, False, quiet=as_json) as listeners:
                    settled = Settled(loaded, name, number, tables, folder, device, listeners)
                    paths = run_windows(settled, Budget(first_minutes, refit_minutes), windows)
                found = record_of(settled, grid, paths) if grid is not None else None
            if found is not None:
                records.append(found)
                for place in {out / said.name / "records", *([results] if results else [])}:
                    found.write(place)
    if is_first():
        _show(said, records, as_json)


def _study(name: str, what: str) -> None:
    """A command of its own for a study."""

    def command(
        data: Data,
        out: Out,
        model: Models = None,
        seed: Seeds = None,
        minutes: Minutes = None,
        config: Config = None,
        set: Changes = None,
        forecasts: Others = None,
        label: Label = None,
        results: Results = None,
        processes: Processes = 1,
        device: Device = "auto",
    ) -> None:
        from lab.experiments.study import Study

        study = Study.open(name)
        _run_study(
            study, lambda: study.load(data), out, model, seed, minutes=minutes, config=config, changes=set,
            forecasts=forecasts, label=label, results=results, processes=processes, device=device,
        )  # fmt: skip

    command.__doc__ = f"""{what}

    Each network is trained for the same time and judged from every cutoff; interrupted, the same command goes on.

    Example: [bold]python -m lab {name} --data data --out runs --minutes 4 --model mqt --model mqt-nods[/bold]
    """
    app.command(name)(command)


_study("m5", "The paper's ablations on M5: units of items, with prices, events and food stamps.")
_study("frat", "The paper's ablations on Breakfast at the Frat: weekly units, promotions by kind.")
_study("eia", "The paper's public table on hourly electricity demand of the US.")
_study("oxford-man-rk", "The paper's public table on the variance of stock indices.")
_study("rossmann-ablation", "The paper's ablations on Rossmann's daily sales.")


@app.command("private")
def private_command(
    out: Out,
    items: Annotated[int, typer.Option(min=10, help="How many are simulated.")] = 2000,
    epochs: Annotated[int, typer.Option(min=1, help="Of training; the final weights count.")] = 30,
    model: Models = None,
    seed: Seeds = None,
    config: Config = None,
    set: Changes = None,
    results: Results = None,
    processes: Processes = 1,
    device: Device = "auto",
) -> None:
    """The like of the paper's private data: a simulated retailer, three years to train, one to test, a year ahead.

    Example: [bold]python -m lab private --out runs --items 2000 --epochs 5[/bold]
    """
    from lab.experiments.private import PRIVATE, best_possible, private_study, private_world

    said = [f"train.max_epochs={epochs}", *(set or [])]
    loaded, world = private_world(items)
    study = private_study(PRIVATE, loaded)
    _run_study(
        study, lambda: loaded, out, model, seed, config=config, changes=said, results=results,
        processes=processes, device=device, oracle=lambda: best_possible(world, study),
    )  # fmt: skip


def _run_study(
    study: Any,
    load: Callable[[], Any],
    out: Path,
    model: list[str] | None,
    seed: list[int] | None,
    *,
    config: Path | None,
    changes: list[str] | None,
    results: Path | None,
    processes: int,
    device: str,
    minutes: float | None = None,
    forecasts: list[str] | None = None,
    label: str | None = None,
    oracle: Callable[[], pl.DataFrame] | None = None,
) -> None:
    from lab.experiments.ablation import (
        ORACLE,
        SEASONAL_NAIVE,
        Harness,
        judge,
        naive_forecasts,
        records_of,
        run_system,
        write_judgement,
    )
    from lab.experiments.study import BASELINE, NETWORKS

    tables, models = said_tables(config, changes or []), list(dict.fromkeys([BASELINE, *(model or NETWORKS)]))
    others = dict(_named(text) for text in forecasts or [])
    for name in models:
        study.config(name, 0, tables)  # what is wrong shows before anything is trained
    in_processes(processes, device, 64)
    loaded = load()
    with listening(study.config(BASELINE, 0, tables), study.name, False, quiet=False) as listeners:
        harness = Harness(study, loaded, loaded.panel(), out, tables, minutes, device, listeners, label)
        for number in seed or [0]:
            paths = {name: run_system(harness, name, number) for name in models}
            if not is_first():
                continue
            frames = {name: pl.read_parquet(path) for name, path in (paths | others).items()}
            frames[SEASONAL_NAIVE] = naive_forecasts(harness)
            if oracle is not None:
                frames[ORACLE] = oracle()
            judged = judge(study, loaded, frames)
            for record in records_of(judged, harness, number):
                for place in {out / study.name / "records", *([results] if results else [])}:
                    record.write(place)
            console.print(judged.comparison.to_markdown(), soft_wrap=True, markup=False)
            page = write_judgement(judged, harness, number)
            if results is not None:
                tables_json = (page.parent / "tables.json").read_bytes()
                write_file(results / f"{harness.title}-tables-{number}.json", tables_json)
            tell(False, {}, f"all tables: {page}")


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or not Path(path).is_file():
        raise ConfigError(f"--forecasts {text}: write it as NAME=FILE, a Parquet file of forecasts")
    return name, Path(path)


@app.command("score")
def score_command(
    task: Annotated[str, typer.Argument(help="A task: a name, or a TOML file.")],
    forecasts: Annotated[
        list[Path], typer.Argument(help="Folders of forecasts, or Parquet files; several are averaged.")
    ],
    data: Data,
    name: Annotated[str, typer.Option(help="What the forecaster is called.")] = "forecasts",
    results: Results = None,
    as_json: AsJson = False,
) -> None:
    """Score anyone's forecasts of a task's windows: columns unique_id, cutoff, ds, q0.1 … q0.9.

    Example: [bold]python -m lab score rossmann_1D runs/rossmann_1D/mqt-0 runs/rossmann_1D/mqt-1 --data data[/bold]
    """
    from lab.experiments.coordination import averaged
    from lab.experiments.leaderboard import member_of, score_windows, task_name
    from lab.experiments.record import Record
    from lab.experiments.scores import Grid, mean_scores
    from lab.experiments.task import Task

    said = Task.open(task)
    loaded, members = said.load(data), [member_of(path) for path in forecasts]
    frames = [pl.concat([pl.read_parquet(file) for file in _files(path)], how="vertical_relaxed") for path in forecasts]
    grid = Grid(loaded)
    for path, frame in zip(forecasts, frames, strict=True):
        grid.check(frame, str(path))
    whole = averaged(frames, [loaded.id, loaded.time, "cutoff"], said.quantile_names)
    parts = whole.sort("cutoff").partition_by("cutoff", maintain_order=True)
    scores = score_windows(grid, parts)
    windows = [{"cutoff": str(part["cutoff"][0])} | found for part, found in zip(parts, scores, strict=True)]
    record = Record(
        task_name(said, len(parts)),
        name,
        0,
        mean_scores(scores),
        {"mean_of": members},
        sum(member["wall_seconds"] for member in members),
        sum(member["cpu_seconds"] for member in members),
        details={"windows": windows},
    )
    if results is not None:
        record.write(results)
    _show(said, [record], as_json)


def _files(path: Path) -> list[Path]:
    found = sorted(path.glob("window-*/forecasts.parquet")) if path.is_dir() else [path]
    if not found or not found[0].is_file():
        raise ConfigError(f"no forecasts at {path}; give a Parquet file, or a model's folder of windows")
    return found


def _show(task: Any, records: list[Any], as_json: bool) -> None:
    from lab.experiments.leaderboard import table_of

    found = table_of(task, records)
    if as_json:
        typer.echo(json.dumps(found.to_dicts()))
        return
    table = Table(title=f"{task.name}: {task.windows} windows, {task.horizon} steps ahead", title_justify="left")
    for heading in found.columns:
        table.add_column(heading, justify="left" if heading in ("model", "by") else "right")
    for row in found.iter_rows():
        table.add_row(*[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row])
    console.print(table)
