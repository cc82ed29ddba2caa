"""One job of the battery: a system is fitted before the first window, forecasts each window, and is scored.

FOLDER/job.json           what to do; `python -m lab.battery.job FOLDER` does it
FOLDER/log.txt            what the process printed
FOLDER/fit-1/             the run of a network, which is resumed after an interruption
FOLDER/cost.json          CPU and wall seconds of all sessions
FOLDER/forecasts.parquet, revisions.parquet, record.json     when it is done
"""

import datetime as dt
import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.battery.tasks import Mode, task_of
from lab.experiments.fev_scores import Grid, mean_scores
from lab.experiments.records import Record
from lab.experiments.systems import SEASONAL_NAIVE, import_models
from lab.experiments.training import read_json, write_frame, write_json
from lab.experiments.window_data import WindowData
from mqcast.data.panel import Panel
from mqcast.errors import ConfigError
from mqcast.evaluation import volatility
from mqcast.forecaster import Forecaster
from mqcast.levels import pinball, quantile_column
from mqcast.models.auto import FittedAuto

JOB, RECORD, COST, PUBLISHED = "job.json", "record.json", "cost.json", "fev_published.csv"
MOST_REVISED = 200  # series whose revisions are judged
MAY_CHANGE = ("command", "data", "modules")


@dataclass(frozen=True)
class Job:
    """A system on a task with a seed; `windows` and `minutes` are limits, and `settings` changes of the defaults."""

    task: str
    system: str
    label: str
    seed: int = 0
    mode: Mode = "validation"
    windows: int | None = None
    minutes: float | None = None
    refit: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    data: str | None = None
    command: str = ""

    def folder(self, out: Path) -> Path:
        return out / self.mode / self.task / f"{self.label}-{self.seed}"

    @property
    def name(self) -> str:
        return f"{self.task}, {self.label}, seed {self.seed}"

    def begin(self, out: Path) -> Path:
        """Its folder; a job of other settings that has the same name is refused."""
        folder, mine = self.folder(out), json.loads(json.dumps(asdict(self), default=str))
        before = read_json(folder / JOB)
        changed = [
            f"{name}: {before.get(name)}, now {value}"
            for name, value in mine.items()
            if before and name not in MAY_CHANGE and before.get(name) != value
        ]
        if changed:
            raise ConfigError(f"{folder} was begun otherwise ({'; '.join(changed)}); name another --label or --out")
        if not (folder / RECORD).exists():
            write_json(folder / JOB, mine)
        return folder


class Naive:
    """fev-bench's seasonal naive forecast."""

    facts: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, grid: Grid):
        self.grid = grid

    def learn(self, number: int) -> None:
        pass

    def forecast(self, cutoff: dt.datetime) -> pl.DataFrame:
        return self.grid.seasonal_naive(cutoff)

    def members(self, cutoff: dt.datetime) -> dict[str, pl.DataFrame]:
        return {}

    def revisions(self, ids: pl.Series, cutoffs: pl.Series) -> pl.DataFrame:
        chosen = pl.col(self.grid.data.id).is_in(ids.implode())
        return pl.concat([self.forecast(cutoff).filter(chosen) for cutoff in cutoffs])


class System:
    """A model of the registry, used as anyone would: by a Forecaster that is told nothing but the task."""

    def __init__(self, job: Job, data: WindowData, folder: Path):
        self.job, self.data, self.folder = job, data, folder
        self.tables = data.dataset.tables

    def learn(self, number: int) -> None:
        """Fit on what is known at a window's cutoff."""
        folder = self.folder / f"fit-{number + 1}"
        self.panel = Panel.from_frame(self.data.known_at(self.data.cutoffs[number]), self.data.schema, **self.tables)
        self.forecaster = Forecaster(
            self.job.system,
            self.data.task.horizon,
            self.data.task.levels,
            self.data.schema,
            config=self.job.settings or None,
            seed=self.job.seed,
            folder=folder,
            max_minutes=self.job.minutes,
        ).fit(self.panel, resume=True)

    @property
    def facts(self) -> dict[str, Any]:
        config = self.forecaster.config_
        return {} if config is None else config.model_dump(mode="json")

    def forecast(self, cutoff: dt.datetime) -> pl.DataFrame:
        return self.forecaster.predict(self.data.known_at(cutoff), cutoff=cutoff, **self.tables)

    def members(self, cutoff: dt.datetime) -> dict[str, pl.DataFrame]:
        """What each member of a blend forecasts."""
        fitted = self.forecaster.fitted_
        if not isinstance(fitted, FittedAuto):
            return {}
        panel = Panel.from_frame(self.data.known_at(cutoff), like=self.panel, **self.tables)
        return {name: member.forecast(panel, cutoff, cutoff) for name, member in fitted.members.items()}

    def revisions(self, ids: pl.Series, cutoffs: pl.Series) -> pl.DataFrame:
        known = self.data.known_at(cutoffs[-1])
        chosen = known.filter(pl.col(self.data.id).is_in(ids.implode()))
        return self.forecaster.revisions(chosen, cutoffs[0], cutoffs[-1], **self.tables)


class Judge:
    """The scores of forecasts and revisions of some windows."""

    def __init__(self, data: WindowData):
        self.data, self.grid = data, Grid(data)
        self.filled = self.judged = 0

    def complete(self, forecasts: pl.DataFrame, cutoff: dt.datetime) -> pl.DataFrame:
        """What a system leaves out, such as a series without recent sales, is seasonal naive's, and counted."""
        data, keys = self.data, [self.data.id, self.data.time]
        columns = [*keys, "cutoff", "horizon", *data.task.quantile_names]
        naive = self.grid.seasonal_naive(cutoff).select(columns)
        ours = forecasts.select(columns).cast(dict(naive.schema))  # pyright: ignore[reportArgumentType]
        actual = data.rows.filter(pl.col(data.target).is_not_null()).select(keys).cast({data.time: pl.Datetime("us")})
        lacking = naive.join(ours, on=keys, how="anti")
        self.filled += lacking.join(actual, on=keys, how="semi").height
        self.judged += naive.join(actual, on=keys, how="semi").height
        return pl.concat([ours, lacking]).sort(keys)

    def scores(self, forecasts: list[pl.DataFrame]) -> tuple[dict[str, float], dict[str, Any]]:
        """fev-bench's scores, losses of P50 and P90, and the bias; with the coverage, and all by window."""
        by_window = [self.grid.scores(frame) for frame in forecasts]
        windows = [{"cutoff": str(frame["cutoff"][0])} | one for frame, one in zip(forecasts, by_window, strict=True)]
        levels, parts = self.data.task.levels, []
        for frame in forecasts:
            _, y = self.grid.window(frame["cutoff"][0])
            values = self.grid.quantiles(frame, frame["cutoff"][0])
            there = ~np.isnan(y) & ~np.isnan(values[..., 0])
            parts.append((y[there], values[there]))
        y, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        size = np.abs(y).sum()
        losses = 2 * pinball(y[:, None], values, np.array(levels)).sum(axis=0) / size
        coverage = (y[:, None] <= values).mean(axis=0)
        metrics = mean_scores(by_window) | {
            "P50": float(losses[levels.index(0.5)]),
            "P90": float(losses[levels.index(0.9)]),
            "bias": float((values[:, levels.index(0.5)] - y).sum() / size),
        }
        covered = {quantile_column(level): float(share) for level, share in zip(levels, coverage, strict=True)}
        return metrics, {"windows": windows, "coverage": covered, "filled": self.filled / max(self.judged, 1)}

    def revised(self, since: dt.datetime) -> tuple[pl.Series, pl.Series] | None:
        """Series and cutoffs of the revisions: each of the horizon up to the last window's cutoff.

        None if the model was fitted at the last cutoff: it has seen what earlier ones would forecast.
        """
        data, dates = self.data, self.data.dates
        last = int(dates.search_sorted(data.cutoffs[-1]))
        first = max(last - data.task.horizon, int(dates.search_sorted(since)))
        if first == last:
            return None
        unknown = np.isnan(self.grid.y[:, first + 1 : last + 1 + data.task.horizon]).any(axis=1)
        ids = self.grid.ids.filter(pl.Series(np.logical_not(unknown)))
        return ids.gather_every(max(1, -(-len(ids) // MOST_REVISED))), dates[first : last + 1]

    def excess(self, revisions: pl.DataFrame) -> dict[str, float]:
        data = self.data
        rows = data.rows.select(data.id, data.time, data.target)
        judged = volatility(revisions, rows, (0.5, 0.9), "quantiles", resamples=1, schema=data.schema, missing="drop")
        return {quantile_column(row["level"]): row["excess"] for row in judged.polars_summary.to_dicts()}


def run(folder: Path) -> Record:
    """Do a job, unless it is done."""
    if (folder / RECORD).exists():
        return Record.read(folder / RECORD)
    job = Job(**read_json(folder / JOB))
    for module in job.modules:
        import_models(module)
    with _counted(folder / COST):
        data = task_of(job.task).windows(job.mode, None if job.data is None else Path(job.data), job.windows)
        judge = Judge(data)
        system = Naive(judge.grid) if job.system == SEASONAL_NAIVE else System(job, data, folder)
        frames, fitted = [], data.cutoffs[0]
        of_members: list[dict[str, pl.DataFrame]] = []
        for number, cutoff in enumerate(data.cutoffs):
            if number == 0 or (job.refit is not None and number % job.refit == 0):
                system.learn(number)
                fitted = cutoff
            frames.append(judge.complete(system.forecast(cutoff), cutoff))
            of_members.append(system.members(cutoff))
        write_frame(folder / "forecasts.parquet", pl.concat(frames))
        metrics, details = judge.scores(frames)
        details["members"] = _scores_of_members(data, of_members)
        if (revised := judge.revised(fitted)) is not None:
            revisions = system.revisions(*revised)
            write_frame(folder / "revisions.parquet", revisions)
            details["excess"] = judge.excess(revisions)
    cost = read_json(folder / COST)
    record = Record(
        job.task if job.mode == "judged" else f"{job.task}-{job.mode}",
        job.label,
        job.seed,
        metrics,
        {"job": asdict(job) | dict.fromkeys(("data", "command"))} | {"settings": system.facts},
        cost["wall_seconds"],
        cost["cpu_seconds"],
        details | {"published": _best_published(job)},
        command=job.command,
    )
    write_json(folder / RECORD, asdict(record))
    return record


def _scores_of_members(data: WindowData, forecasts: list[dict[str, pl.DataFrame]]) -> dict[str, dict[str, float]]:
    """The scores of the members that forecast all windows."""
    names, judge = set.intersection(*(set(frames) for frames in forecasts)), Judge(data)
    pairs = list(zip(forecasts, data.cutoffs, strict=True))
    completed = {name: [judge.complete(frames[name], cutoff) for frames, cutoff in pairs] for name in sorted(names)}
    return {name: judge.scores(frames)[0] for name, frames in completed.items()}


def _best_published(job: Job) -> dict[str, Any] | None:
    """The best published SQL of the task, with its model; other windows than the judged ones have none."""
    path = Path(job.data or ".") / PUBLISHED
    if job.mode != "judged" or not path.is_file():
        return None
    published = pl.read_csv(path).filter(task=job.task).sort("SQL")
    return published.select("model", "SQL").row(0, named=True) if published.height else None


@contextmanager
def _counted(path: Path) -> Iterator[None]:
    """Add the time of this session to that of those before, however it ends."""
    started = time.perf_counter()
    try:
        yield
    finally:
        before, used = (
            read_json(path),
            [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)],
        )
        cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
        spent = {"wall_seconds": time.perf_counter() - started, "cpu_seconds": cpu}
        write_json(path, {name: seconds + before.get(name, 0.0) for name, seconds in spent.items()})


if __name__ == "__main__":
    time.monotonic = time.process_time  # limits of time count this job's CPU: others on the machine take none of it
    run(Path(sys.argv[1]))
