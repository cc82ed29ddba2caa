"""fev-bench's scores of a leaderboard's windows, and the seasonal naive forecast that it publishes."""

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from scipy.special import ndtri

from lab.experiments.window_data import WindowData
from mqcast.data.frequency import show_time
from mqcast.errors import ColumnTypeError, DataError
from mqcast.evaluation import Names, read_forecasts
from mqcast.levels import pinball, quantile_column

LEAST_DENOMINATOR = 1.0
NAIVE_CONTEXT = 1000  # steps that give the spread: inferred, since with all steps the published SQL is not reproduced
METRICS = ("SQL", "WQL", "MASE", "WAPE")


class Grid:
    """A task's target as a table of series and dates, NaN where there is no row."""

    def __init__(self, data: WindowData):
        self.data, self.task = data, data.task
        self.ids = data.rows[data.id].unique(maintain_order=True)
        self.y = np.full((len(self.ids), len(data.dates)), np.nan)
        self.y[self._place(data.rows)] = data.rows[data.target].to_numpy()

    @cached_property
    def _numbers(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        data = self.data
        series = pl.DataFrame({data.id: self.ids, "series": np.arange(len(self.ids))})
        return series, pl.DataFrame({data.time: data.dates, "step": np.arange(len(data.dates))})

    def check(self, forecasts: pl.DataFrame, what: str) -> None:
        """Raise unless these are forecasts of the task's windows, at its levels."""
        rows = read_forecasts(forecasts, Names.of(None, id=self.data.id, time=self.data.time), what=what)
        if texts := [name for name in ("cutoff", self.data.time) if not forecasts[name].dtype.is_temporal()]:
            raise ColumnTypeError(f"{what}, column {texts[0]!r}: holds no dates; parse it first")
        if lacking := [level for level in self.task.levels if level not in rows.levels]:
            raise DataError(
                f"{what} has no {quantile_column(lacking[0])}", f"the task judges {', '.join(self.task.quantile_names)}"
            )
        cutoffs = pl.Series(self.data.cutoffs).cast(pl.Datetime("us")).to_physical().to_numpy()
        if (unknown := np.setdiff1d(rows.cutoff, cutoffs)).size:
            known = ", ".join(show_time(int(cutoff)) for cutoff in cutoffs)
            raise DataError(f"{what}: cutoff {show_time(int(unknown[0]))} is not the task's", f"those are {known}")

    def _place(self, rows: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Series and step of each row."""
        data, (series, steps) = self.data, self._numbers
        keys = rows.select(pl.col(data.id).cast(pl.String), pl.col(data.time).cast(pl.Datetime("us")))
        keys = keys.join(series, on=data.id, how="left", maintain_order="left")
        keys = keys.join(steps, on=data.time, how="left", maintain_order="left")
        if keys["series"].null_count() or keys["step"].null_count():
            raise DataError("forecasts of series or dates that the task does not have", "keep to the task's own")
        return keys["series"].to_numpy(), keys["step"].to_numpy()

    def window(self, cutoff: dt.datetime) -> tuple[np.ndarray, np.ndarray]:
        """The target up to a cutoff, and after it."""
        end = int(self.data.dates.search_sorted(cutoff)) + 1
        return self.y[:, :end], self.y[:, end : end + self.task.horizon]

    def quantiles(self, forecasts: pl.DataFrame, cutoff: dt.datetime) -> np.ndarray:
        """(series, horizon, level) values of one cutoff's forecasts, NaN where there is none."""
        past, ahead = self.window(cutoff)
        values = np.full((*ahead.shape, len(self.task.levels)), np.nan)
        series, step = self._place(forecasts)
        if (far := (step < past.shape[1]) | (step >= past.shape[1] + ahead.shape[1])).any():
            i = int(np.flatnonzero(far)[0])
            time = str(forecasts[self.data.time][i])
            raise DataError(f"not within the {ahead.shape[1]} steps after {cutoff}", "leave it out", time=time)
        values[series, step - past.shape[1]] = forecasts.select(self.task.quantile_names).to_numpy()
        return values

    def scores(self, forecasts: pl.DataFrame) -> dict[str, float]:
        """SQL, WQL, MASE and WAPE of the forecasts from one cutoff; dates without an actual value are not scored.

        SQL and MASE leave out series without seasonal differences: they have no scale.
        """
        cutoff = forecasts["cutoff"][0]
        past, y = self.window(cutoff)
        values = self.quantiles(forecasts, cutoff)
        began = np.logical_not(np.isnan(past).all(axis=1))
        lacking = began[:, None] & ~np.isnan(y) & np.isnan(values).any(axis=2)
        if lacking.any():
            i, h = np.argwhere(lacking)[0]
            raise DataError(
                f"no forecast {h + 1} steps after {cutoff} (and of {lacking.sum() - 1} further values)",
                "forecast every series that has begun",
                series=self.ids[int(i)],
            )
        judged = began[:, None] & ~np.isnan(y)
        actual, levels = np.where(judged, y, np.nan), self.task.levels
        losses = 2 * pinball(actual[..., None], values, np.array(levels)).mean(axis=2)
        errors = np.abs(actual - values[..., levels.index(0.5)])
        scale = np.broadcast_to(seasonal_error(past, self.task.season)[:, None], y.shape)
        size = max(float(np.nanmean(np.abs(y[judged]))), LEAST_DENOMINATOR)
        can_scale = judged & (scale > 0)
        scale = np.where(can_scale, scale, 1.0)
        return {
            "SQL": float((losses / scale)[can_scale].mean()),
            "WQL": float(losses[judged].mean()) / size,
            "MASE": float((errors / scale)[can_scale].mean()),
            "WAPE": float(errors[judged].mean()) / size,
        }

    def seasonal_naive(self, cutoff: dt.datetime) -> pl.DataFrame:
        """As in fev-bench and StatsForecast: gaps filled with the last value, normal quantiles, not clipped at 0.

        The registry's `seasonal-naive`, which studies use, differs: where a season was not observed it looks further
        back, and it clips quantiles at 0.
        """
        past, _ = self.window(cutoff)
        season, horizon = self.task.season, self.task.horizon
        began = np.logical_not(np.isnan(past).all(axis=1))
        y = _filled(past[began])[:, -NAIVE_CONTEXT:]
        ahead = np.arange(horizon)
        point = y[:, y.shape[1] - season + ahead % season]
        spread = np.sqrt(((y[:, season:] - y[:, :-season]) ** 2).mean(axis=1))
        width = spread[:, None] * np.sqrt(1 + ahead // season)
        values = point[..., None] + width[..., None] * ndtri(self.task.levels)
        return self.frame(values, cutoff, began)

    def frame(self, values: np.ndarray, cutoff: dt.datetime, chosen: np.ndarray) -> pl.DataFrame:
        """(series, horizon, level) values of some series as a frame of forecasts."""
        data, horizon = self.data, self.task.horizon
        ids = self.ids.filter(pl.Series(chosen))
        columns = {
            data.id: ids.gather(np.repeat(np.arange(len(ids)), horizon)),
            "cutoff": [cutoff] * (len(ids) * horizon),
            data.time: pl.concat([data.horizon_of(cutoff)] * len(ids)),
            "horizon": np.tile(np.arange(1, horizon + 1, dtype=np.int32), len(ids)),
        }
        names = self.task.quantile_names
        return pl.DataFrame(columns | {name: values[..., i].ravel() for i, name in enumerate(names)})


def seasonal_error(past: np.ndarray, season: int) -> np.ndarray:
    """Each series' mean |y_t − y_{t−season}| over all observed pairs; 1 where there is none."""
    change = np.abs(past[:, season:] - past[:, :-season])
    count = (~np.isnan(change)).sum(axis=1)
    return np.where(count > 0, np.nansum(change, axis=1) / np.maximum(count, 1), 1.0)


def _filled(y: np.ndarray) -> np.ndarray:
    """Gaps filled with the last value before, and with 0 before the first."""
    latest = np.maximum.accumulate(np.where(np.isnan(y), -1, np.arange(y.shape[1])), axis=1)
    return np.where(latest >= 0, np.take_along_axis(y, np.maximum(latest, 0), axis=1), 0.0)


def mean_scores(by_window: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {name: float(np.mean([scores[name] for scores in by_window])) for name in METRICS}
