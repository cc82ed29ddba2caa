"""Series that end at different dates: who lags behind, and forecasts of each from its own end."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.export import some_series
from mqcast.data.frequency import show_time
from mqcast.data.panel import Panel
from mqcast.errors import ConfigError, LaggingSeriesWarning, quoted, warn
from mqcast.forecast.frames import warn_of_plans


def ids_of(ids: Any) -> list[Any]:
    """One id or several, as a list."""
    names: list[Any] = [ids] if isinstance(ids, str) or not isinstance(ids, Iterable) else list(ids)
    if not names:
        raise ConfigError("ids is empty; give the id of a series, or several")
    return names


def only(panel: Panel, ids: Any) -> Panel:
    """The panel of some series."""
    return some_series(panel, np.unique([panel.index_of(name) for name in ids_of(ids)]))


def by_end(panel: Panel, horizon: int, *, strictly: bool = False) -> Iterator[tuple[Any, Panel]]:
    """The series that were last observed at the same date, and that date; new items: the date of the latest.

    Series whose plan does not reach a horizon beyond it are left out, with one warning; `strictly`, or if no series
    were left, that is an error.
    """
    ends, whole = _ends(panel), _with_plan(panel, horizon, strictly)
    for end in np.unique(ends[whole]):
        yield panel.axis.dates(np.array([end])).to_list()[0], some_series(panel, whole[ends[whole] == end])


def _with_plan(panel: Panel, horizon: int, strictly: bool) -> np.ndarray:
    """The series whose plan reaches a horizon beyond their own end."""
    all_series, ends = np.arange(panel.num_series), _ends(panel)
    if not panel.schema.known:
        return all_series
    is_new = panel.last_observed < panel.first_step
    cutoffs = np.where(is_new, panel.steps_until(panel.last_observed_time()), panel.last_observed)
    lacks = panel.unplanned(all_series, cutoffs, horizon, ends)
    whole = np.flatnonzero(~lacks.any(axis=1))
    if strictly or not whole.size:
        panel.require_future(horizon, cutoffs, ends=ends)
    series, step = np.nonzero(lacks)
    lacking = set(zip(series.tolist(), (cutoffs[series] + 1 + step).tolist(), strict=True))
    warn_of_plans(panel, lacking, horizon, panel.num_series)
    return whole


def warn_of_lag(panel: Panel, forecast: pl.Series | Iterable[str]) -> None:
    """Say how many of the series that were forecast from the latest observation of all were last observed before it."""
    ends = _ends(panel)
    if (ends == ends.max()).all():
        return
    names = forecast.unique(maintain_order=True) if isinstance(forecast, pl.Series) else forecast
    series = np.array([panel.index_of(name) for name in names], int)
    behind, latest = series[ends[series] < ends.max()], show_time(int(ends.max()))
    if behind.size:
        first = f"{quoted(panel.ids[int(behind[0])].as_py())} at {show_time(int(ends[behind[0]]))}"
        warn(
            f"{behind.size} of {series.size} series were last observed before {latest}, the cutoff of all (series "
            f"{first} …); cutoff='each' forecasts each from its own end",
            LaggingSeriesWarning,
        )


def _ends(panel: Panel) -> np.ndarray:
    """The time of the last observation of each series."""
    times = panel.times_at(np.arange(panel.num_series), panel.last_observed, 1)[:, 0]
    return np.where(panel.last_observed < panel.first_step, panel.last_observed_time(), times)
