"""`python -m lab score`: anyone's forecasts of a leaderboard's windows."""

from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from lab.commands.options import Name, Results, app
from lab.commands.run import show
from mqcast.cli.app import AsJson
from mqcast.errors import ConfigError


@app.command("score")
def score_command(
    experiment: Name,
    forecasts: Annotated[
        list[Path], typer.Argument(help="Folders of forecasts, or Parquet files; several are averaged.")
    ],
    data: Annotated[Path, typer.Option(help="The folder with the data set's files.")],
    name: Annotated[str, typer.Option(help="Name of the forecaster.")] = "forecasts",
    results: Results = None,
    as_json: AsJson = False,
) -> None:
    """Score anyone's forecasts of a leaderboard's windows: columns unique_id, cutoff, ds, q0.1 … q0.9.

    Example: [bold]python -m lab score rossmann_1D runs/rossmann_1D/mqt-0 runs/rossmann_1D/mqt-1 --data data[/bold]
    """
    from lab.experiments.experiment import Outcome, open_experiment
    from lab.experiments.fev_scores import Grid
    from lab.experiments.leaderboard import Leaderboard, member_facts, windows_record
    from mqcast.models.ensemble import mean_of_frames

    task = open_experiment(experiment)
    if not isinstance(task, Leaderboard):
        raise ConfigError(f"{task.name} has no windows; judge its forecasts with `run {task.name} --forecasts`")
    loaded, members = task.load(data), [member_facts(path) for path in forecasts]
    frames = [pl.concat([pl.read_parquet(file) for file in _files(path)], how="vertical_relaxed") for path in forecasts]
    grid = Grid(loaded)
    for path, frame in zip(forecasts, frames, strict=True):
        grid.check(frame, str(path))
    columns = [loaded.id, loaded.time, "cutoff", *task.quantile_names]
    mean = mean_of_frames([frame.select(columns) for frame in frames], task.levels)
    parts = mean.sort("cutoff").partition_by("cutoff", maintain_order=True)
    windows = [{"cutoff": str(part["cutoff"][0])} | grid.scores(part) for part in parts]
    cost = {name: sum(member[name] for member in members) for name in ("wall_seconds", "cpu_seconds")}
    record = windows_record(loaded, name, 0, windows, config={"mean_of": members}, **cost)
    if results is not None:
        record.write(results)
    show(task, [Outcome([record])], as_json)


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("window-*/forecasts.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ConfigError(f"no forecasts at {path}; give a Parquet file, or a model's folder of windows")
    return files
