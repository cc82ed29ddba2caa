"""Seasonal naive: the last observed value of the same season, and the spread of past seasonal differences."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.frequency import season_of
from mqcast.data.panel import Panel
from mqcast.errors import SeriesLeftOutWarning
from mqcast.forecast.frames import plan_cutoffs, rows_frame
from mqcast.forecast.limits import within_limits
from mqcast.settings import WindowConfig

CHUNK_ROWS = 2**20
SEASONS_BACK = 4  # how many to look back for one that was observed


def seasonal_naive(
    panel: Panel,
    horizon: int,
    levels: Sequence[float],
    *,
    season: int | None = None,
    first: Any = None,
    last: Any = None,
) -> pl.DataFrame:
    """A forecast frame for the cutoffs from `first` to `last`, in the same form as that of a network.

    Quantiles are those of a normal distribution around the last value of the same season. Its spread is that of the
    seasonal differences up to the cutoff and grows with the square root of the number of seasons ahead. Quantiles are
    not negative if no target up to the cutoff was.
    """
    from scipy.special import ndtri  # a quarter of a second that other models do not need

    season = season or season_of(panel.axis.frequency)
    plan = plan_cutoffs(WindowConfig(horizon=horizon, history=1, num_fcts=1), panel, first, last)
    first_negative = _first_negative(panel)
    forecasts, unobserved = [], []
    for series, begin, end in zip(plan.series, plan.first_fct, plan.last_fct, strict=True):
        cutoffs = np.arange(begin, end + 1)
        point, spread = _of_series(panel, int(series), cutoffs, horizon, season)
        if np.isnan(point).any():
            unobserved.append(int(series))
        known = ~np.isnan(point).any(axis=1)
        values = point[..., None] + spread[..., None] * ndtri(np.asarray(levels))
        rows = np.full(known.sum(), series), cutoffs[known]
        times = panel.times_at(np.array([series]), cutoffs[:1], len(cutoffs))[0]
        lower_bound = np.where(times < first_negative, 0.0, -np.inf)[known, None, None]
        forecasts.append((*rows, within_limits(panel, *rows, values[known], 0.0, lower_bound)[0]))
    if unobserved:
        names = ", ".join(repr(panel.ids[i].as_py()) for i in unobserved[:3])
        warnings.warn(
            f"{len(unobserved)} series have no observation yet at some cutoffs and are not forecast there ({names} …)",
            SeriesLeftOutWarning,
            stacklevel=2,
        )
    series, cutoff, values = (np.concatenate(parts) for parts in zip(*forecasts, strict=True))
    return rows_frame(panel, series, cutoff, values, tuple(levels))


def _of_series(
    panel: Panel, series: int, cutoffs: np.ndarray, horizon: int, season: int
) -> tuple[np.ndarray, np.ndarray]:
    """(cutoffs, horizon): the value of the same season, NaN where nothing was observed, and the spread around it."""
    start, nothing = int(panel.first_step[series]), np.full((len(cutoffs), horizon), np.nan)
    if cutoffs[-1] < start:
        return nothing, nothing
    rows, exists = panel.rows_at(np.array([series]), np.array([start]), int(cutoffs[-1]) - start + 1)
    y = np.where(exists[0], panel.target[rows[0]], np.nan).astype(float)
    at, ahead = cutoffs - start, np.arange(1, horizon + 1)
    seasons = -(-ahead // season)
    point = nothing
    for back in range(SEASONS_BACK):
        place = at[:, None] + ahead - season * (seasons + back)
        value = np.where((place >= 0) & (place < len(y)), y[np.clip(place, 0, len(y) - 1)], np.nan)
        point = np.where(np.isnan(point), value, point)
    seen = np.where(np.isnan(y), -1, np.arange(len(y)))
    latest = np.where(at >= 0, np.maximum.accumulate(seen)[np.clip(at, 0, len(y) - 1)], -1)
    point = np.where(np.isnan(point), np.where(latest >= 0, y[latest], np.nan)[:, None], point)
    inside = np.clip(at, 0, len(y) - 1)
    spread = np.where(
        at >= season, _spread(y, season)[inside], _spread(y, 1)[inside]
    )  # step changes within the first season
    return point, spread[:, None] * np.sqrt(seasons)


def _spread(y: np.ndarray, lag: int) -> np.ndarray:
    """For each step, the root mean square of all changes over `lag` steps so far; 0 where there is none."""
    change = np.full(len(y), np.nan)
    change[lag:] = y[lag:] - y[:-lag]
    return np.sqrt(np.nancumsum(change**2) / np.maximum(np.cumsum(~np.isnan(change)), 1))


def _first_negative(panel: Panel) -> float:
    """The time of the earliest target below 0; infinite if there is none."""
    earliest = np.inf
    for start in range(0, panel.num_rows, CHUNK_ROWS):
        rows = start + np.flatnonzero(panel.target[start : start + CHUNK_ROWS] < 0)
        places = np.array([panel.place_of(int(row)) for row in rows]).reshape(-1, 2)
        if len(places):
            earliest = min(earliest, panel.times_at(places[:, 0], places[:, 1], 1).min())
    return float(earliest)
