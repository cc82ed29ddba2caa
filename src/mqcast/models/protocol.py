# pyright: strict
"""What a model is to everything above it: it is fitted on a panel, and then forecasts panels between two cutoffs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import polars as pl

from mqcast.data.panel import Panel
from mqcast.settings.merge import Layer, Merged

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What a model is asked for.

    until       the last date whose targets training may know; None: all of them
    layers      the user's settings, for models that have any
    folder      where training keeps its files, to be resumed; None: a temporary one
    start_from  a fitted model to go on from
    listeners   who hears of the progress; None: a bar or log lines, if `verbose`
    """

    horizon: int
    quantiles: tuple[float, ...]
    seed: int = 0
    max_steps: int | None = None
    max_minutes: float | None = None
    until: Any = None
    layers: tuple[Layer, ...] = ()
    folder: Path | None = None
    resume: bool = False
    start_from: "FittedModel | None" = None
    device: str = "auto"
    verbose: bool = True
    listeners: tuple[Any, ...] | None = None


class FittedModel(Protocol):
    """A model that can forecast. What else it can do it shows by having the methods of `CanExplain` and the others."""

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        """id, cutoff, time, horizon, q0.5 …, from every cutoff between two dates; left out: the last observation."""
        ...


class Model(Protocol):
    """A kind of model, registered under a name."""

    def fit(self, panel: Panel, options: TrainOptions) -> FittedModel: ...


# -- what a model may have beside that ---------------------------------------------------------------------------------


@runtime_checkable
class CanSave(FittedModel, Protocol):
    def files(self) -> dict[str, bytes]:
        """All that `load` needs, by file name."""
        ...


@runtime_checkable
class CanLoad(Model, Protocol):
    def load(self, folder: Path, options: TrainOptions) -> FittedModel: ...


@runtime_checkable
class CanExplain(FittedModel, Protocol):
    def explain(self, panel: Panel, ids: Sequence[Any], cutoff: Any, above: float) -> pl.DataFrame:
        """Which dates, and which earlier forecasts, the forecasts of some series rest on."""
        ...


@runtime_checkable
class CanDescribe(FittedModel, Protocol):
    def describe(self, panel: Panel, first: Any, last: Any) -> Any:
        """What a report may say of it: a `mqcast.report.sources.Trained`."""
        ...


@runtime_checkable
class HasContext(FittedModel, Protocol):
    @property
    def context(self) -> int | None:
        """Steps of history before a cutoff that its forecast looks at; None: all of them."""
        ...


@runtime_checkable
class CanWrite(FittedModel, Protocol):
    def write(self, panel: Panel, path: Path, first: Any, last: Any, on_progress: Progress | None) -> Path:
        """Forecasts straight to a Parquet file, by any number of processes, resumable."""
        ...


@runtime_checkable
class HasSettings(Model, Protocol):
    def settings(self, panel: Panel, options: TrainOptions) -> Merged:
        """All settings that a fit would take, and where each comes from."""
        ...


@runtime_checkable
class ChecksOptions(Model, Protocol):
    def check(self, options: TrainOptions) -> None:
        """Raise at once if these options cannot be met."""
        ...
