"""Protocol "windows", a leaderboard's: before each window a model learns from what is known by then.

OUT/<name>/<model>-<seed>/
    steps.json          how many steps the first window trains, and the others
    window-01/run       the run of a network; the next window starts from its weights
    window-01/model     files of a registered model, which is fitted from scratch before each window
    window-01/forecasts.parquet, done.json

A finished window is not run again; an interrupted one is resumed.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from lab import datasets
from lab.datasets import Dataset
from lab.experiments.experiment import Experiment, Outcome, RunSpec
from lab.experiments.fev_scores import METRICS, Grid, mean_scores
from lab.experiments.records import Record
from lab.experiments.registered import run_registered
from lab.experiments.systems import SEASONAL_NAIVE
from lab.experiments.training import GIVEN, agreed, budgeted_steps, read_json, train, write_frame, write_json
from lab.experiments.window_data import Neighbours, WindowData, ZeroRule
from mqcast.data.panel import Panel
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, SourceError
from mqcast.forecast.predict import forecast
from mqcast.launch import is_first
from mqcast.run import Run, exists
from mqcast.settings import RunConfig, Settings, nearest

FOREVER = 2**31  # a series may not have been observed for months, and is scored nevertheless


class Refit(Settings):
    """How training continues before each window after the first."""

    share: float = Field(default=0.2, gt=0, description="steps, as a share of the first window's")
    rate: float = Field(default=0.5, gt=0, description="learning rate, as a share of the first window's")


class Leaderboard(Experiment):
    """The last `windows` × `horizon` steps; models may be refitted before each window, on what was known then."""

    default_models: ClassVar = (SEASONAL_NAIVE, "mqt")
    metrics: ClassVar = METRICS

    protocol: Literal["windows"] = "windows"
    rows: str | None = Field(default=None, description="without a data set: the Parquet file of sales")
    static: str | None = Field(default=None, description="and that of the series' attributes")
    columns: Schema | None = Field(default=None, description="and what their columns mean")
    windows: int = Field(ge=1)
    levels: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    season: int = Field(ge=1, description="steps; errors are scaled by those of this season's naive forecast")
    zero_when: ZeroRule | None = None
    calendar: tuple[str, ...] | None = Field(default=None, description="of the date; left out: the data set's")
    neighbours: tuple[Neighbours, ...] = ()
    close_gaps: int | None = Field(
        default=None, ge=1, description="forecasting: rows before a gap move up to its end, by multiples of this"
    )
    refit: Refit = Refit()

    @model_validator(mode="after")
    def _data_are_named(self) -> Self:
        if (self.dataset is None) == (self.rows is None):
            raise ValueError("name either a dataset, or rows and columns")
        if self.dataset is not None and self.dataset not in datasets.names():
            near = nearest(self.dataset, datasets.names())
            raise ValueError(f"no data set {self.dataset!r}{near}; there are {', '.join(datasets.names())}")
        if self.rows is not None and (self.columns is None or self.columns.freq is None):
            raise ValueError("rows need a table [columns] that says what they mean, with their freq")
        if 0.5 not in self.levels or list(self.levels) != sorted(set(self.levels)):
            raise ValueError("levels rise, and 0.5 is among them: it is judged by MASE and WAPE")
        return self

    def load(self, folder: Path | None, out: Path | None = None, on_progress: Any = None) -> WindowData:
        if self.rows is None or self.columns is None:
            return WindowData(self, self.load_dataset(folder))
        static = None if self.static is None else _read(folder, self.static)
        return WindowData(self, Dataset(_read(folder, self.rows).lazy(), self.columns, static))

    def record_name(self, num_windows: int) -> str:
        """Scores of only some windows have a name of their own."""
        return self.name if num_windows == self.windows else f"{self.name}-first-{num_windows}"

    def train(self, data: WindowData, spec: RunSpec) -> None:
        if spec.model != SEASONAL_NAIVE:
            run_windows(data, spec)

    def judge(
        self, data: WindowData, specs: Sequence[RunSpec], others: Mapping[str, Path], label: str | None = None
    ) -> Outcome:
        if others or label:
            raise ConfigError(f"{self.name} scores other systems' forecasts with `python -m lab score`")
        grid = Grid(data)
        naive = [naive_record(data, grid, spec.options.num_windows) for spec in specs if spec.model == SEASONAL_NAIVE]
        return Outcome(naive + [record_of(data, grid, spec) for spec in specs if spec.model != SEASONAL_NAIVE])


def _read(folder: str | Path | None, file: str) -> pl.DataFrame:
    path = Path(folder or ".") / file
    if not path.is_file():
        raise SourceError(f"there is no {path}", "check the folder and the file names of the experiment")
    frame = pl.read_parquet(path)
    texts = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Categorical | pl.Enum)]
    return frame.with_columns(pl.col(texts).cast(pl.String))


# -- training and forecasting ------------------------------------------------------------------------------------------


def window_folder(spec: RunSpec, number: int) -> Path:
    return spec.folder / f"window-{number + 1:02}"


def window_folders(data: WindowData, spec: RunSpec) -> list[Path]:
    return [window_folder(spec, number) for number in range(len(data.cutoffs[: spec.options.num_windows]))]


def run_windows(data: WindowData, spec: RunSpec) -> list[Path]:
    """Train, forecast and keep the forecasts of each window; every process calls this."""
    folders = window_folders(data, spec)
    if spec.is_registered:
        return [_run_registered(data, spec, number) for number in range(len(folders))]
    done = [number for number, folder in enumerate(folders) if agreed((folder / "done.json").exists())]
    steps: tuple[int, int] | None = None
    for number, folder in enumerate(folders):
        if steps is not None and number in done[:-1]:  # the data are checked with the first and the last
            Run.open(folder / "run").check_settings(_config(spec, number, steps))
            continue
        known = data.known_at(data.cutoffs[number])
        panel = _panel(data, spec, known, number)
        steps = steps or _steps(spec, panel)
        if number in done:
            config = _config(spec, number, steps)
            Run.open(folder / "run").check_resumable(config, panel, _previous(spec, number))
        else:
            _run_window(data, spec, number, panel, known, steps)
    return [folder / "forecasts.parquet" for folder in folders]


def _panel(data: WindowData, spec: RunSpec, rows: pl.DataFrame, number: int) -> Panel:
    """What is known at a cutoff, read as at the first one: categories that come later are unknown."""
    tables = data.dataset.tables
    if number == 0:
        return Panel.from_frame(rows, data.schema, **tables)
    return Panel.from_frame(rows, like=Run.open(window_folder(spec, 0) / "run").layout, **tables)


def _steps(spec: RunSpec, panel: Panel) -> tuple[int, int]:
    first, later = budgeted_steps(spec, panel, spec.config(), spec.experiment.refit.share)
    if first is None or later is None:
        raise ConfigError("set train.max_steps, over which the learning rate falls to zero, or --minutes")
    return first, later


def _config(spec: RunSpec, number: int, steps: tuple[int, int]) -> RunConfig:
    if number == 0:
        return spec.config(max_steps=steps[0])
    rate = spec.config().train.learning_rate * spec.experiment.refit.rate
    return spec.config(max_steps=steps[1], learning_rate=rate)


def _previous(spec: RunSpec, number: int) -> Run | None:
    """The run that provides the initial weights of a window."""
    return Run.open(window_folder(spec, number - 1) / "run") if number > 0 else None


def _run_window(
    data: WindowData, spec: RunSpec, number: int, panel: Panel, known: pl.DataFrame, steps: tuple[int, int]
) -> None:
    cutoff, folder = data.cutoffs[number], window_folder(spec, number)
    run, facts = train(spec, panel, _config(spec, number, steps), folder / "run", _previous(spec, number))
    recent = _panel(data, spec, data.without_gaps(known, cutoff), number)
    raw = folder / "raw.parquet"
    forecast(run, recent, raw, first=cutoff, last=cutoff, max_unobserved_steps=FOREVER, device=spec.options.device)
    if is_first():
        write_frame(folder / "forecasts.parquet", data.with_zeros(pl.read_parquet(raw), known))
        raw.unlink()
        write_json(folder / "done.json", {"cutoff": str(cutoff)} | facts)
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    agreed(1)


def _run_registered(data: WindowData, spec: RunSpec, number: int) -> Path:
    """Fit a registered model from scratch before a window, on what is known at its cutoff."""
    cutoff, tables = data.cutoffs[number], data.dataset.tables
    known = data.known_at(cutoff)
    panel = Panel.from_frame(known, data.schema, **tables)
    recent = Panel.from_frame(data.without_gaps(known, cutoff), like=panel, **tables)
    folder, minutes = window_folder(spec, number), spec.options.refit_minutes if number else None
    return run_registered(
        spec, folder, panel, recent, cutoff, cutoff, lambda forecasts: data.with_zeros(forecasts, known), minutes
    )


# -- scores ------------------------------------------------------------------------------------------------------------


def windows_record(data: WindowData, model: str, seed: int, windows: list[dict[str, Any]], **rest: Any) -> Record:
    """A record of some windows' scores, with the cost of each."""
    name = data.task.record_name(len(windows))
    return Record(name, model, seed, mean_scores(windows), **rest, details={"windows": windows})


def record_of(data: WindowData, grid: Grid, spec: RunSpec) -> Record:
    """The scores of one model, with its cost."""
    folders = window_folders(data, spec)
    facts = [read_json(folder / "done.json") for folder in folders]
    frames = [pl.read_parquet(folder / "forecasts.parquet") for folder in folders]
    given = [one.pop(GIVEN, None) for one in facts]
    windows = [one | grid.scores(frame) for one, frame in zip(facts, frames, strict=True)]
    task = data.task.model_dump(mode="json", exclude={"published", "network"})
    config = {"task": task} | (given[0] or spec.config(max_steps=facts[0]["steps"]).model_dump(mode="json"))
    cost = {name: sum(one[name] for one in facts) for name in ("wall_seconds", "cpu_seconds")}
    return windows_record(data, spec.model, spec.seed, windows, config=config, **cost)


def naive_record(data: WindowData, grid: Grid, num_windows: int | None = None) -> Record:
    """Scores of fev-bench's seasonal naive forecast, which is not the registry's: see `Grid.seasonal_naive`."""
    wall, cpu = time.monotonic(), time.process_time()
    cutoffs = data.cutoffs[:num_windows]
    windows = [{"cutoff": str(cutoff)} | grid.scores(grid.seasonal_naive(cutoff)) for cutoff in cutoffs]
    cost = {"wall_seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - cpu}
    return windows_record(data, SEASONAL_NAIVE, 0, windows, config={"season": data.task.season}, **cost)


def member_facts(path: Path) -> dict[str, Any]:
    """The origin and the cost of forecasts, as far as known: from the files that `run_windows` wrote to the folder."""
    done = [read_json(file) for file in sorted(path.glob("window-*/done.json"))]
    run = path / "window-01" / "run"
    config = {"config": Run.open(run).config.model_dump(mode="json")} if exists(run) else {}
    cost = {name: sum(facts.get(name, 0.0) for facts in done) for name in ("wall_seconds", "cpu_seconds")}
    return {"forecasts": str(path), **cost, **config}
