"""Less volatile forecasts from the frame of any forecaster, and what this costs in accuracy.

A forecast can be combined with earlier forecasts of the same target. This helps if forecasts over-react; otherwise it
makes them worse. `trade_off` shows which is the case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrame, IntoDataFrameT

from mqcast.data.schema import Schema
from mqcast.data.source import read_table
from mqcast.errors import ArtifactError, ConfigError
from mqcast.evaluation.comparison import on_common_rows
from mqcast.evaluation.martingale import Settings, volatility_of
from mqcast.evaluation.metrics import accuracy, scored_models, warn_of_implausible
from mqcast.evaluation.reading import (
    Actuals,
    Forecasts,
    Models,
    actuals_table,
    forecast_table,
    forecast_tables,
    names_in,
)
from mqcast.evaluation.tables import ForecastTable, Missing, actuals_of
from mqcast.evaluation.trajectories import Cdf, Leads, levels_of
from mqcast.levels import pinball, quantile_column

LARGEST_GAIN = 2.0


def ensemble(
    revisions: Forecasts[IntoDataFrameT],
    over: int = 4,
    *,
    id: str | None = None,
    time: str | None = None,
    schema: Schema | None = None,
) -> IntoDataFrameT:
    """Replace each quantile by the mean of the last `over` forecasts of its target, including itself.

    If a target has fewer earlier forecasts, all of them are used. No later forecast is used.
    """
    if not isinstance(over, int | np.integer) or over < 1:
        raise ConfigError(f"over is {over!r}; give a whole number, 1 or more")
    rows = forecast_table(revisions, names_in(revisions, schema, id=id, time=time))
    since = np.arange(rows.num_rows) - rows.begins[rows.trajectory]
    total, count = rows.quantiles.copy(), np.minimum(since + 1, over)
    for back in range(1, over):
        later = np.flatnonzero(since >= back)
        total[later] += rows.quantiles[later - back]
    return with_quantiles(rows, total / count[:, None])


@dataclass(frozen=True, eq=False)
class MartingaleFilter:
    """Each published forecast moves from the previous one towards the new one by a gain g: f̃ ← f̃ + g (f - f̃).

    The gain of each level and lead minimises the quantile loss in the period of the fit, with each series scaled by its
    size. At that optimum, errors are uncorrelated with revisions, as for a martingale: g < 1 damps a forecaster that
    over-reacts, g > 1 speeds up one that under-reacts, g = 1 changes nothing.
    """

    levels: tuple[float, ...]
    gain: np.ndarray  # (levels, leads): at index lead - 1

    @classmethod
    def fit(
        cls,
        revisions: Forecasts[IntoDataFrame],
        actuals: Actuals,
        *,
        missing: Missing = "warn",
        id: str | None = None,
        time: str | None = None,
        target: str | None = None,
        schema: Schema | None = None,
    ) -> "MartingaleFilter":
        """Fit on a validation period, with forecasts and targets before those that the filter is applied to."""
        names = names_in(revisions, schema, id=id, time=time, target=target)
        rows = forecast_table(revisions, names)
        actual = actuals_of(rows, actuals_table(actuals, names), missing)[rows.trajectory]
        gain = np.ones((len(rows.levels), int(rows.lead.max())))
        filtered, size = rows.quantiles.copy(), _sizes(rows)
        for lead, now, before in _revisions(rows):
            known = ~np.isnan(actual[now])
            for i, level in enumerate(rows.levels):
                old, step = filtered[before, i], rows.quantiles[now, i] - filtered[before, i]
                if known.any() and np.abs(step[known]).max() > 0:
                    scored = now[known]
                    gain[i, lead - 1] = _best_gain(actual[scored], old[known], step[known], 1 / size[scored], level)
                filtered[now, i] = old + gain[i, lead - 1] * step
        return cls(rows.levels, gain)

    @property
    def gains(self) -> pl.DataFrame:
        """level, lead, gain."""
        leads = range(1, self.gain.shape[1] + 1)
        return pl.DataFrame(
            [
                {"level": level, "lead": lead, "gain": self.gain[i, lead - 1]}
                for i, level in enumerate(self.levels)
                for lead in leads
            ]
        )

    def apply(
        self,
        revisions: Forecasts[IntoDataFrameT],
        *,
        id: str | None = None,
        time: str | None = None,
        schema: Schema | None = None,
    ) -> IntoDataFrameT:
        """The frame with filtered quantiles, sorted within each row. No later forecast is used."""
        rows = forecast_table(revisions, names_in(revisions, schema, id=id, time=time))
        if rows.levels != self.levels or rows.lead.max() > self.gain.shape[1]:
            raise ArtifactError(
                f"the filter was fitted to levels {self.levels} and {self.gain.shape[1]} leads; these forecasts have "
                f"{rows.levels} and {rows.lead.max()}; fit it to forecasts with the same levels and leads"
            )
        filtered = rows.quantiles.copy()
        for lead, now, before in _revisions(rows):
            filtered[now] = filtered[before] + self.gain[:, lead - 1] * (rows.quantiles[now] - filtered[before])
        return with_quantiles(rows, np.sort(filtered, axis=1))


def trade_off(
    forecasts: Models[IntoDataFrameT],
    actuals: Actuals,
    levels: float | Sequence[float] = (0.5, 0.9),
    *,
    cdf: Cdf = "gamma",
    resamples: int = 1000,
    seed: int = 0,
    leads: Leads = "auto",
    missing: Missing = "warn",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> IntoDataFrameT:
    """Accuracy and volatility: name, level, loss, relative (to the first), excess, lo, hi, mqc, direction_changes.

    Gives one warning about implausible forecasts: see `implausible`.
    """
    if not isinstance(forecasts, Mapping) or not forecasts:
        raise ConfigError("trade_off compares several forecasts; give {name: frame}, with the baseline first")
    names, levels = names_in(forecasts, schema, id=id, time=time, target=target), levels_of(levels)
    observed, tables = actuals_table(actuals, names), forecast_tables(forecasts, names)
    scored = scored_models(tables, observed, missing)
    on_common_rows(scored)
    warn_of_implausible(scored, observed)
    settings = Settings(levels, cdf, None, resamples, seed, leads, missing="drop")
    rows = []
    for name, table in tables.items():
        metrics = accuracy({name: scored[name]}, observed).row(0, named=True)
        for row in volatility_of(table, observed, settings).polars_summary.iter_rows(named=True):
            loss = metrics[f"qrisk_pooled_{quantile_column(row['level'])}"]
            kept = {key: row[key] for key in ("excess", "lo", "hi", "reading", "mqc", "direction_changes")}
            rows.append({"name": name, "level": row["level"], "loss": loss} | kept)
    relative = (pl.col("loss") / pl.first("loss").over("level")).alias("relative")
    columns = ("name", "level", "loss", "relative")
    table = pl.DataFrame(rows).with_columns(relative).select(*columns, pl.exclude(columns))
    return next(iter(tables.values())).frame_types.to_native(table)


def _revisions(rows: ForecastTable) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """By lead, longest first: the rows that revise an earlier forecast of their target, and the rows they revise."""
    follows = np.flatnonzero(np.diff(rows.trajectory) == 0) + 1
    order = follows[np.argsort(-rows.lead[follows], kind="stable")]
    bounds = np.flatnonzero(np.diff(rows.lead[order])) + 1
    return [(int(rows.lead[part[0]]), part, part - 1) for part in np.split(order, bounds) if part.size]


def _sizes(rows: ForecastTable) -> np.ndarray:
    """For each row, the mean absolute forecast of its series; 1 where it is 0."""
    size = np.abs(rows.quantiles).mean(axis=1)
    mean = np.bincount(rows.item, size) / np.maximum(np.bincount(rows.item), 1)
    return np.where(mean > 0, mean, 1)[rows.item]


def _best_gain(actual: np.ndarray, old: np.ndarray, step: np.ndarray, weight: np.ndarray, level: float) -> float:
    """The gain with the lowest loss; the loss is convex in the gain."""
    from scipy.optimize import minimize_scalar  # slow to import

    def loss(gain: float) -> float:
        return float(pinball(actual, old + gain * step, level) @ weight)

    minimum: Any = minimize_scalar(loss, bounds=(0, LARGEST_GAIN), method="bounded")
    best = float(minimum.x)
    return best if loss(best) < loss(1.0) else 1.0


def with_quantiles(rows: ForecastTable, quantiles: np.ndarray) -> Any:
    """The caller's frame with new quantiles and everything else unchanged."""
    is_path = isinstance(rows.frame, str | Path)
    frame: Any = nw.from_native(read_table(rows.frame) if is_path else rows.frame)
    frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    values, library = rows.to_frame(quantiles), frame.implementation
    columns = (nw.new_series(name, values[:, i], backend=library) for i, name in enumerate(rows.columns))
    return frame.with_columns(*columns).to_native()
