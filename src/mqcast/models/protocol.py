# pyright: strict
"""The protocol of models: a model is fitted on a panel, and then forecasts panels between two cutoffs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import polars as pl

from mqcast.data.panel import Panel
from mqcast.joint.dependence import Dependence
from mqcast.settings.merge import Layer, Merged, preset_layers

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a fit.

    until       training may use targets up to this date; None: all of them
    members     networks that are trained together, each with its own weights; None: as the settings say
    preset      the name of settings that override those that fit the data, for models that have settings
    layers      the user's settings, which override the preset
    folder      where training keeps its files, so that it can be resumed; None: a temporary folder
    start_from  a fitted model to start from
    listeners   called with the records of progress; None: a bar or log lines, if `verbose`

    >>> from mqcast.models import TrainOptions
    >>> TrainOptions(horizon=13, quantiles=(0.5, 0.9), max_minutes=5).seed
    0
    """

    horizon: int
    quantiles: tuple[float, ...]
    seed: int = 0
    max_steps: int | None = None
    max_minutes: float | None = None
    members: int | None = None
    until: Any = None
    preset: str | None = None
    layers: tuple[Layer, ...] = ()
    folder: Path | None = None
    resume: bool = False
    start_from: "FittedModel | None" = None
    device: str = "auto"
    verbose: bool = True
    listeners: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        preset_layers(self.preset)  # raises if there is no such preset


class FittedModel(Protocol):
    """A model that can forecast. It may also have the methods of `CanExplain` and the other protocols below.

    >>> from mqcast import Panel, models
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> panel = Panel.from_frame(world.frame, world.schema, world.static, world.events)
    >>> fitted = models.get("seasonal-naive").fit(panel, models.TrainOptions(horizon=4, quantiles=(0.5, 0.9)))
    >>> fitted.forecast(panel).columns
    ['unique_id', 'cutoff', 'ds', 'horizon', 'q0.5', 'q0.9']
    """

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        """id, cutoff, time, horizon, q0.5 … from every cutoff between two dates; default: the last observation."""
        ...


class Model(Protocol):
    """A kind of model, registered under a name.

    >>> from mqcast import models
    >>> models.get(models.DEFAULT).fit.__name__
    'fit'
    """

    def fit(self, panel: Panel, options: TrainOptions) -> FittedModel: ...


# -- what a model may have in addition ---------------------------------------------------------------------------------


@runtime_checkable
class CanSave(FittedModel, Protocol):
    def files(self) -> dict[str, bytes]:
        """All that `load` needs, by file name."""
        ...


@runtime_checkable
class CanRehearse(Model, Protocol):
    def rehearse(self, panel: Panel, options: TrainOptions) -> pl.DataFrame | None:
        """Forecasts of the held-out dates from a fit that `fit` with the same options goes on from; None if it cannot.

        The held-out dates are those of `mqcast.models.holdout.hold_out`.
        """
        ...


@runtime_checkable
class CanLoad(Model, Protocol):
    def load(self, folder: Path, options: TrainOptions) -> FittedModel: ...


@runtime_checkable
class CanExplain(FittedModel, Protocol):
    def explain(self, panel: Panel, ids: Sequence[Any], cutoff: Any, above: float) -> pl.DataFrame:
        """The dates and the earlier forecasts that the forecasts of some series depend on."""
        ...


@runtime_checkable
class CanDescribe(FittedModel, Protocol):
    def describe(self, panel: Panel, first: Any, last: Any) -> Any:
        """Details for a report: a `mqcast.report.sources.Trained`."""
        ...


@runtime_checkable
class HasLeaderboard(FittedModel, Protocol):
    @property
    def leaderboard(self) -> pl.DataFrame:
        """Its members, with how good each was on dates that it had not seen, and its weight."""
        ...


@runtime_checkable
class HasDependence(FittedModel, Protocol):
    @property
    def dependence(self) -> Dependence | None:
        """How steps ahead go together, learnt from dates that it had not seen; None if there were too few."""
        ...


@runtime_checkable
class HasSpans(FittedModel, Protocol):
    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First and last steps of the totals that it forecasts itself."""
        ...

    def forecast_spans(
        self, panel: Panel, spans: tuple[tuple[int, int], ...], first: Any = None, last: Any = None
    ) -> pl.DataFrame:
        """id, cutoff, start, time, first, last, span, q0.5 … from every cutoff between two dates."""
        ...


@runtime_checkable
class HasContext(FittedModel, Protocol):
    @property
    def context(self) -> int | None:
        """Steps of history before a cutoff that its forecast uses; None: all of them."""
        ...


@runtime_checkable
class CanWrite(FittedModel, Protocol):
    def write(self, panel: Panel, path: Path, first: Any, last: Any, on_progress: Progress | None) -> Path:
        """Write forecasts directly to a Parquet file, by any number of processes, resumable."""
        ...


@runtime_checkable
class HasSettings(Model, Protocol):
    def settings(self, panel: Panel, options: TrainOptions) -> Merged:
        """All settings that a fit would use, with their origins."""
        ...


@runtime_checkable
class ChecksOptions(Model, Protocol):
    def check(self, options: TrainOptions) -> None:
        """Raise if a fit with these options is not possible."""
        ...
