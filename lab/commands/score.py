"""`python -m lab score`: anyone's forecasts of a task of the battery."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from lab.commands.options import Results, app, shown
from mqcast.cli.app import AsJson
from mqcast.cli.output import console
from mqcast.errors import ConfigError

PUBLISHED = "fev_published.csv"


@app.command("score")
def score_command(
    task: Annotated[str, typer.Argument(help="A task of the battery, such as rossmann_1D.")],
    forecasts: Annotated[
        list[Path], typer.Argument(help="Folders of forecasts, or Parquet files; several are averaged.")
    ],
    data: Annotated[Path, typer.Option(help="The folder with the data set's files.")],
    name: Annotated[str, typer.Option(help="Name of the forecaster.")] = "forecasts",
    results: Results = None,
    as_json: AsJson = False,
) -> None:
    """Score anyone's forecasts of the judged windows of a task of the battery: unique_id, cutoff, ds, q0.1 … q0.9.

    Example: [bold]python -m lab score rossmann_1D runs/battery/judged/rossmann_1D/mqt-0 mine.parquet --data data[/bold]
    """
    from lab.battery.tasks import task_of
    from lab.experiments.fev_scores import METRICS, Grid
    from lab.experiments.records import beside_published
    from mqcast.models.ensemble import mean_of_frames

    windows = task_of(task).windows("judged", data)
    board, grid = windows.task, Grid(windows)
    frames = [pl.concat([pl.read_parquet(file) for file in _files(path)], how="vertical_relaxed") for path in forecasts]
    for path, frame in zip(forecasts, frames, strict=True):
        grid.check(frame, str(path))
    columns = [windows.id, windows.time, "cutoff", *board.quantile_names]
    mean = mean_of_frames([frame.select(columns) for frame in frames], board.levels)
    parts = mean.sort("cutoff").partition_by("cutoff", maintain_order=True)
    scores = [{"cutoff": str(part["cutoff"][0])} | grid.scores(part) for part in parts]
    record = board.record(name, 0, scores, {"mean_of": [path.name for path in forecasts]})
    if results is not None:
        record.write(results)
    if as_json:
        typer.echo(json.dumps(asdict(record), default=str))
        return
    console.print(
        shown(beside_published(_published(data, task), [record], METRICS), f"{task}: {board.horizon} steps ahead")
    )


def _published(folder: Path, task: str) -> dict[str, dict[str, float]]:
    """What fev-bench publishes of a task, by model; nothing without its file."""
    if not (path := folder / PUBLISHED).is_file():
        return {}
    rows = pl.read_csv(path).filter(task=task).sort("SQL").to_dicts()
    return {row.pop("model"): {name: value for name, value in row.items() if isinstance(value, float)} for row in rows}


def _files(path: Path) -> list[Path]:
    """Of a folder: those of a job of the battery, or of another library's windows."""
    files = sorted(path.glob("**/forecasts.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ConfigError(f"no forecasts at {path}; give a Parquet file, or a folder that has forecasts.parquet")
    return files
