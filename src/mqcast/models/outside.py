"""Models from outside the package: their data end at the training date, and their forecasts are checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from mqcast.data.cutoffs import CutoffPlan
from mqcast.data.panel import Panel
from mqcast.data.views import known_at
from mqcast.data.windows import as_time
from mqcast.errors import ConfigError, quoted
from mqcast.forecast.frames import plan_cutoffs, rows_frame
from mqcast.levels import quantile_column
from mqcast.models.protocol import TrainOptions
from mqcast.settings import WindowConfig

Forecast = Callable[[np.ndarray], np.ndarray]


def forecast_each(
    panel: Panel, options: TrainOptions, function: Forecast, first: Any = None, last: Any = None
) -> pl.DataFrame:
    """A forecast frame from a function of one history: the targets up to a cutoff → (horizon, quantiles).

    Steps without a target are NaN. The function sees nothing after the cutoff, so that it cannot look ahead.

    >>> import numpy as np
    >>> from mqcast import Panel, models
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> panel = Panel.from_frame(world.frame, world.schema, world.static, world.events)
    >>> options = models.TrainOptions(horizon=4, quantiles=(0.5, 0.9))
    >>> recent = lambda y: np.tile(np.nanquantile(y[-8:], options.quantiles), (4, 1))
    >>> models.forecast_each(panel, options, recent).height
    80
    """
    plan: CutoffPlan = plan_cutoffs(WindowConfig(horizon=options.horizon, history=1, num_fcts=1), panel, first, last)
    series, cutoffs, values = [], [], []
    for one, begin, end in zip(plan.series, plan.first_fct, plan.last_fct, strict=True):
        start = panel.first_step[one]
        rows, exists = panel.rows_at(np.array([one]), np.array([start]), int(end - start) + 1)
        y = np.where(exists[0], panel.target[rows[0]], np.nan).astype(float)
        for cutoff in range(int(begin), int(end) + 1):
            series.append(one)
            cutoffs.append(cutoff)
            values.append(function(y[: cutoff - start + 1].copy()))
    shape = (len(series), options.horizon, len(options.quantiles))
    array = np.asarray(values, dtype=float)
    if array.shape != shape:
        raise ConfigError(f"a forecast has the shape {array.shape[1:]}; return {shape[1:]}: (horizon, quantiles)")
    return rows_frame(panel, np.array(series), np.array(cutoffs), array, options.quantiles)


class FittedOutsideModel:
    """A fitted model from outside; its forecasts are checked, and errors name the model."""

    def __init__(self, name: str, model: Any, options: TrainOptions):
        self.name, self.model, self.options = name, model, options

    @property
    def context(self) -> int | None:
        return getattr(self.model, "context", None)

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        return self._checked(self.model.forecast(panel, first, last), panel)

    def files(self) -> dict[str, bytes]:
        if not hasattr(self.model, "files"):
            raise ConfigError(
                f"model {self.name!r} cannot be saved; give its class files(), which maps file names to contents, and "
                "load(folder, options)"
            )
        return self.model.files()

    def _checked(self, given: Any, panel: Panel) -> pl.DataFrame:
        schema, levels = panel.schema, [quantile_column(level) for level in self.options.quantiles]
        columns = [schema.id, "cutoff", schema.time, "horizon", *levels]
        try:
            frame = pl.DataFrame(nw.from_native(given, eager_only=True).to_arrow())
        except TypeError:
            raise self._wrong(f"forecast returns {quoted(type(given).__name__)}; return a frame") from None
        if missing := [name for name in columns if name not in frame.columns]:
            raise self._wrong(f"forecast returns no column {', '.join(missing)}; return {', '.join(columns)}")
        frame = frame.select(columns).sort(schema.id, "cutoff", "horizon")
        values = frame.select(pl.col(levels).cast(pl.Float64)).to_numpy()
        for what, rows in (
            ("is not finite", ~np.isfinite(values).all(axis=1)),
            ("has quantiles that cross", (np.diff(values, axis=1) < 0).any(axis=1)),
        ):
            if rows.any():
                at = frame.row(int(np.argmax(rows)), named=True)
                raise self._wrong(f"the forecast of series {at[schema.id]!r} from {at['cutoff']} {what}")
        if frame.select(columns[:4]).is_duplicated().any():
            raise self._wrong("forecast returns more than one row for the same series, cutoff and horizon")
        if not frame["horizon"].is_between(1, self.options.horizon).all():
            raise self._wrong(f"forecast returns horizons outside 1 to {self.options.horizon}")
        return frame

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"model {self.name!r}: {what}")


class OutsideModel:
    """Adapts a registered class to the protocol of models."""

    def __init__(self, name: str, kind: Callable[[], Any]):
        self.name, self.kind = name, kind

    def fit(self, panel: Panel, options: TrainOptions) -> FittedOutsideModel:
        known = panel if options.until is None else known_at(panel, as_time(options.until, panel.axis))
        model = self.kind()
        fitted = model.fit(known, options)
        return FittedOutsideModel(self.name, model if fitted is None else fitted, options)

    def load(self, folder: Path, options: TrainOptions) -> FittedOutsideModel:
        if not hasattr(self.kind, "load"):
            raise ConfigError(f"model {self.name!r} cannot be loaded; give its class load(folder, options)")
        return FittedOutsideModel(self.name, self.kind.load(folder, options), options)  # type: ignore[attr-defined]
