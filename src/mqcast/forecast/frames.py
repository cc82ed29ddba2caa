"""What every forecaster needs: the cutoffs at which each series is forecast, and the frame of the forecasts."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.cutoffs import CutoffPlan
from mqcast.data.frequency import show_time
from mqcast.data.panel import Panel
from mqcast.data.windows import as_time
from mqcast.errors import (
    ConfigError,
    EventTableError,
    FutureMissingWarning,
    IncompletePlanWarning,
    KnownValuesError,
    NonFiniteError,
    SeriesLeftOutWarning,
    TargetsLeftOutWarning,
    quoted,
    warn,
)
from mqcast.evaluation.tables import FIRST, LAST, SPAN, START
from mqcast.levels import quantile_column
from mqcast.settings import WindowConfig

STEPS_AT_A_TIME = 2**22  # checked for rows
Spans = tuple[tuple[int, int], ...]
Place = tuple[int, int]  # a series and a step of it


def first_and_last_cutoff(panel: Panel, start: Any, end: Any, horizon: int) -> tuple[Any, Any]:
    """The given dates; default: the last 3 horizons."""
    dates = panel.axis.dates(np.array(last_cutoffs(panel, horizon))).to_list()
    start, end = (dates[0] if start is None else start), (dates[1] if end is None else end)
    if as_time(start, panel.axis) > as_time(end, panel.axis):
        raise ConfigError(f"the first cutoff, {start}, is after the last, {end}; give earlier ones")
    return start, end


def last_cutoffs(panel: Panel, horizon: int) -> tuple[int, int]:
    """The last 3 horizons, up to the last cutoff with an observed target.

    If known columns or events do not reach its horizon, they end at the last cutoff whose horizon they reach.
    """
    first, last = panel.last_cutoffs(3 * horizon - 1)
    ends = [panel.span[1]] if panel.schema.known else []
    ends += [int(panel.arrays["event_times"][-1])] if panel.schema.events else []
    series = np.array([panel.last_observed_series])
    times = panel.times_at(series, panel.last_step[series] - horizon, 2 * horizon + 1)[0]
    for end in ends:
        place = int(np.searchsorted(times, end, side="right")) - 1 - horizon
        last = min(last, int(times[max(0, place)]))
    return first, max(first, last)


def check_cutoffs(panel: Panel, start: Any, end: Any, horizon: int) -> None:
    """Raise what forecasting from these cutoffs would raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeriesLeftOutWarning)
        plan_cutoffs(WindowConfig(horizon=horizon, history=1, num_fcts=1), panel, start, end)


def warn_of_future(panel: Panel, horizon: int, *, is_packed: bool = False) -> None:
    """Say what `predict` will need if known columns or events do not reach a horizon after the last observation.

    is_packed: the command line reads them from the panel alone.
    """
    lacking, names = int((~are_planned(panel, horizon)).sum()), panel.schema.known
    whose, verb = "", "mqcast forecast" if is_packed else "predict"
    then = f"{verb} will need them"
    where = "packed with --future" if is_packed else "in rows without a target, or by predict(future=…)"
    try:
        check_cutoffs(panel, None, None, horizon)
        if not lacking:
            return
        whose, then = f" for {lacking} series", f"{verb} leaves these out unless it is given them"
    except EventTableError:
        names, where = panel.schema.events, "packed with --events" if is_packed else "by predict(events=…)"
    except KnownValuesError:
        pass
    warn(
        f"{', '.join(names[:4])} of the coming {horizon} steps are not in the data{whose}; the fit goes on, but {then} "
        f"up to {show_time(panel.last_observed_time(-horizon))}, {where}",
        FutureMissingWarning,
    )


def are_planned(panel: Panel, horizon: int) -> np.ndarray:
    """Of the series that are forecast from the last observation, whether their plan reaches the horizon."""
    time = panel.last_observed_time()
    plan = CutoffPlan.between(panel, WindowConfig(horizon=horizon, history=1, num_fcts=1), time, time)
    if not panel.schema.known:
        return np.ones(len(plan.series), bool)
    lacks = panel.unplanned(plan.series, plan.last_fct, horizon)
    return np.asarray(~lacks.any(axis=1))


def are_published(panel: Panel, series: np.ndarray, cutoff: np.ndarray, horizon: int, spans: Spans = ()) -> np.ndarray:
    """(cutoffs, horizon): which targets have known columns; none of a cutoff whose plan lacks a row.

    (cutoffs, spans), if there are spans: those of which all targets have.
    """
    if spans:
        first, last = np.array(spans, np.int32).T
        steps = np.arange(1, int(last.max()) + 1)
        of_span = (steps[:, None] >= first) & (steps[:, None] <= last)
        return ~((~are_published(panel, series, cutoff, len(steps))) @ of_span)
    if not panel.schema.known or not len(series):
        return np.ones((len(series), horizon), bool)
    _, exists = panel.rows_at(series, cutoff + 1, horizon)
    if exists.all():
        return exists
    return exists & ~panel.unplanned(series, cutoff, horizon).any(axis=1, keepdims=True)


def _check_rows(panel: Panel, plan: CutoffPlan) -> None:
    """Warn of what is left out since it has no row, and so no known columns: single targets of the past, and forecasts
    whose plan is not complete; raise if no plan is from the last cutoff."""
    if not panel.schema.known:
        return
    horizon, widths = plan.config.horizon, plan.last_fct - plan.first_fct + plan.config.horizon
    longest, gaps, unplanned = int(widths.max()), set[Place](), set[Place]()
    size = max(1, STEPS_AT_A_TIME // longest)
    for part in (slice(start, start + size) for start in range(0, len(widths), size)):
        series, first = plan.series[part], plan.first_fct[part]
        _, exists = panel.rows_at(series, first + 1, longest)
        lacks = ~exists & (np.arange(longest) < widths[part][:, None])
        if lacks.any():
            is_plan = lacks & panel.unplanned(series, first, longest)
            gaps |= _places(series, first, lacks & ~is_plan)
            unplanned |= _places(series, first, is_plan)
    if unplanned:
        length = plan.last_fct - plan.origin
        latest = length == length.max()
        at = plan.series[latest], plan.last_fct[latest]
        if panel.unplanned(*at, horizon).any(axis=1).all():
            panel.require_future(horizon, at[1], at[0])
    _warn_of_gaps(panel, gaps)
    warn_of_plans(panel, unplanned, horizon, len(np.unique(plan.series)), plan.num_cutoffs > 1)


def _places(series: np.ndarray, first: np.ndarray, chosen: np.ndarray) -> set[Place]:
    row, step = np.nonzero(chosen)
    return set(zip(series[row].tolist(), (first[row] + 1 + step).tolist(), strict=True))


def _warn_of_gaps(panel: Panel, gaps: set[Place]) -> None:
    """Warn once of targets of the past that are left out."""
    if gaps and not panel.__dict__.get("_warned_of_gaps"):
        panel.__dict__["_warned_of_gaps"] = True
        warn(
            f"{len(gaps)} targets of {len({one for one, _ in gaps})} series are left out: they have no row in "
            f"the data, and so no {', '.join(panel.schema.known[:3])} ({_first(panel, gaps)} …)",
            TargetsLeftOutWarning,
        )


def warn_of_plans(panel: Panel, lacking: set[Place], horizon: int, num_series: int, several: bool = False) -> None:
    """Say how many series are left out, from some of `several` cutoffs, since their plan lacks rows."""
    if lacking:
        warn(
            f"{len({one for one, _ in lacking})} of {num_series} series are not forecast"
            f"{' from all cutoffs' if several else ''}, since their plan lacks rows within the horizon of {horizon} "
            f"steps, or has empty values ({_first(panel, lacking, panel.schema.known[:4])} …); add rows with "
            f"{', '.join(panel.schema.known[:4])} up to the last target date; fill={{…}} in the schema says what empty "
            "values mean",
            IncompletePlanWarning,
        )


def _first(panel: Panel, places: set[Place], columns: tuple[str, ...] = ()) -> str:
    """The first of some series and steps, in words."""
    series, step = np.array(min(places))[:, None]
    what = f", column {' or '.join(map(quoted, columns))}," if columns else ""
    name, time = panel.ids[int(series[0])].as_py(), int(panel.times_at(series, step, 1)[0, 0])
    return f"series {quoted(name)}{what} at {show_time(time)}"


def require_plans(panel: Panel, cutoff: Any, horizon: int) -> None:
    """Raise if one of these series has no complete plan from a cutoff."""
    time = as_time(cutoff, panel.axis)
    plan = CutoffPlan.between(panel, WindowConfig(horizon=horizon, history=1, num_fcts=1), time, time)
    panel.require_future(horizon, plan.last_fct, plan.series)


def refit_parts(panel: Panel, start: Any, end: Any, refit: int | None) -> Iterator[tuple[Any, Any]]:
    """The first and last cutoff of each part of a backtest: parts have `refit` cutoffs; None: there is one part."""
    if refit is None:
        yield start, end
        return
    first, last = (as_time(date, panel.axis) for date in (start, end))
    longest = int(np.argmax(panel.steps_until(first) - panel.first_step))
    begin, stop = (int(panel.steps_until(time)[longest]) for time in (first, last))
    cutoffs = panel.axis.dates(panel.times_at(np.array([longest]), np.array([begin]), stop - begin + 1)[0]).to_list()
    for i in range(0, len(cutoffs), refit):
        yield cutoffs[i], cutoffs[min(i + refit, len(cutoffs)) - 1]


def plan_cutoffs(
    window: WindowConfig, panel: Panel, first: Any, last: Any, max_unobserved_steps: int | None = None
) -> CutoffPlan:
    """Windows for the cutoffs from `first` to `last`, for each series at those where it can be forecast."""
    panel.require_verified()
    begin, end = (None if date is None else as_time(date, panel.axis) for date in (first, last))
    end = panel.last_observed_time() if end is None else end
    begin = end if begin is None else begin
    if begin > end:
        raise ConfigError(f"the first cutoff, {first}, is after the last, {last or show_time(end)}; give earlier ones")
    plan = CutoffPlan.between(panel, window, begin, end, max_unobserved_steps)
    panel.require_events(plan.last_fct + window.horizon, plan.series)
    _check_rows(panel, plan)
    _warn_of_unforecast(panel, plan, window.horizon if max_unobserved_steps is None else max_unobserved_steps)
    return plan


def _warn_of_unforecast(panel: Panel, plan: CutoffPlan, max_unobserved_steps: int) -> None:
    left_out = np.setdiff1d(np.arange(panel.num_series), plan.series)
    if left_out.size:
        names = ", ".join(repr(panel.ids[int(i)].as_py()) for i in left_out[:3]) + (" …" if left_out.size > 3 else "")
        warnings.warn(
            f"{left_out.size} of {panel.num_series} series are not forecast: at these cutoffs they have not started, "
            f"or have not been observed for {max_unobserved_steps} steps ({names})",
            SeriesLeftOutWarning,
            stacklevel=5,
        )


def rows_frame(
    panel: Panel, series: np.ndarray, cutoff: np.ndarray, values: np.ndarray, levels: tuple[float, ...]
) -> pl.DataFrame:
    """One row per series, cutoff and horizon, with the panel's names for id and time.

    Observed dates without a row in the panel are left out if it has known columns, since theirs are missing.
    """
    require_finite(panel, series, cutoff, values)
    horizon = values.shape[1]
    times = panel.times_at(series, cutoff, horizon + 1) if len(series) else np.zeros((0, horizon + 1), np.int64)
    columns = {
        panel.schema.id: pl.Series(panel.names_of(np.repeat(series, horizon))),
        "cutoff": panel.axis.dates(np.repeat(times[:, 0], horizon)),
        panel.schema.time: panel.axis.dates(times[:, 1:].reshape(-1)),
        "horizon": np.tile(np.arange(1, horizon + 1, dtype=np.int32), len(series)),
    }
    columns |= {quantile_column(level): values[..., i].reshape(-1) for i, level in enumerate(levels)}
    published = are_published(panel, series, cutoff, horizon)
    frame = pl.DataFrame(columns)
    return frame if published.all() else frame.filter(pl.Series(published.reshape(-1)))


def spans_frame(
    panel: Panel, series: np.ndarray, cutoff: np.ndarray, means: np.ndarray, levels: tuple[float, ...], spans: Spans
) -> pl.DataFrame:
    """Totals over spans from the quantiles of their means: one row per series, cutoff and span.

    As of single steps, those with an observed date that has no row are left out if the panel has known columns.
    """
    require_finite(panel, series, cutoff, means)
    first, last = np.array(spans, np.int32).T
    horizon, num = int(last.max()), len(series)
    times = panel.times_at(series, cutoff, horizon + 1) if num else np.zeros((0, horizon + 1), np.int64)
    published = are_published(panel, series, cutoff, horizon, spans)
    columns = {
        panel.schema.id: pl.Series(panel.names_of(np.repeat(series, len(spans)))),
        "cutoff": panel.axis.dates(np.repeat(times[:, 0], len(spans))),
        START: panel.axis.dates(times[:, first].reshape(-1)),
        panel.schema.time: panel.axis.dates(times[:, last].reshape(-1)),
        FIRST: np.tile(first, num),
        LAST: np.tile(last, num),
        SPAN: pl.Series(np.tile(np.where(first == 1, last, 0), num), dtype=pl.Int32).replace(0, None),
    }
    totals = means * (last - first + 1)[:, None]
    columns |= {quantile_column(level): totals[..., i].reshape(-1) for i, level in enumerate(levels)}
    return pl.DataFrame(columns).filter(pl.Series(published.reshape(-1)))


def require_finite(panel: Panel, series: np.ndarray, cutoff: np.ndarray, values: np.ndarray) -> None:
    """Raise if a forecast is NaN or infinite, so that no frame contains one."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
    if bad.size:
        at = slice(int(bad[0]), int(bad[0]) + 1)
        raise NonFiniteError(
            f"{bad.size} of {len(values)} forecasts are not finite",
            "look for extreme values in the history of this series; if there are none, train again",
            series=panel.ids[int(series[at][0])].as_py(),
            time=show_time(int(panel.times_at(series[at], cutoff[at], 1)[0, 0])),
        )
