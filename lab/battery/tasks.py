"""The battery's tasks, and their windows: those that are judged, and those before them, on which changes are tried."""

import datetime as dt
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from lab.datasets import Dataset
from lab.experiments.leaderboard import Leaderboard
from lab.experiments.window_data import WindowData
from mqcast.errors import ConfigError
from mqcast.settings import nearest

Mode = Literal["validation", "judged"]


@dataclass(frozen=True)
class BatteryTask:
    """The last `board.windows` blocks are judged; changes are tried on `validation` blocks before these."""

    board: Leaderboard
    validation: int

    @property
    def is_fev(self) -> bool:
        return self.board.dataset == "fev"

    def windows(self, mode: Mode, folder: Path | None, most: int | None = None) -> WindowData:
        """Of validation the last `most` windows, of data that end where the first judged window begins."""
        whole = WindowData(self.board, plain(self.board.load_dataset(folder)))
        if mode == "judged":
            return whole
        known = replace(whole.dataset, rows=whole.rows.filter(pl.col(whole.time) <= whole.cutoffs[0]).lazy())
        return WindowData(self.board.replace(windows=min(self.validation, most or self.validation)), known)


def plain(dataset: Dataset) -> Dataset:
    """Demand that was not observed is missing: it is neither known nor judged."""
    schema = dataset.schema
    if schema.observed is None:
        return dataset
    observed = pl.when(pl.col(schema.observed)).then(pl.col(schema.target)).alias(schema.target)
    rows = dataset.rows.with_columns(observed).drop(schema.observed)
    return replace(dataset, rows=rows, schema=schema.replace(observed=None))


def _task(
    name: str, dataset: str, horizon: int, windows: int, season: int, validation: int, **options: Any
) -> BatteryTask:
    board = Leaderboard(name=name, dataset=dataset, options=options, horizon=horizon, windows=windows, season=season)
    return BatteryTask(board, validation)


def _fev(name: str, horizon: int, windows: int, season: int, validation: int) -> BatteryTask:
    return _task(name, "fev", horizon, windows, season, validation, task=name)


_ALL = (
    _fev("rossmann_1D", 48, 10, 7, 3),
    _fev("rossmann_1W", 13, 8, 1, 1),  # 29 weeks are left before the judged windows
    _fev("favorita_stores_1D", 28, 10, 7, 3),
    _fev("favorita_stores_1W", 13, 10, 1, 3),
    _fev("favorita_stores_1M", 12, 2, 12, 1),  # 30 months
    _fev("favorita_transactions_1D", 28, 10, 7, 3),
    _fev("favorita_transactions_1W", 13, 10, 1, 3),
    _fev("favorita_transactions_1M", 12, 2, 12, 1),
    _task("frat", "frat", 13, 3, 1, 3),
    _task("m5", "m5_sample", 28, 5, 7, 3),
    _task("eia", "eia", 24, 14, 24, 7, since=dt.datetime(2023, 1, 1)),
    _task("volatility", "oxford_man_rv5", 5, 20, 1, 10),
    _task("lognormal", "lognormal", 13, 3, 52, 3, num_items=500, num_weeks=156),
    _task("counts", "counts", 13, 3, 52, 3, num_items=500, num_weeks=156),
)
TASKS = {task.board.name: task for task in _ALL}


def task_of(name: str) -> BatteryTask:
    if name not in TASKS:
        raise ConfigError(
            f"the battery has no task {name!r}{nearest(name, tuple(TASKS))}; there are {', '.join(TASKS)}"
        )
    return TASKS[name]
