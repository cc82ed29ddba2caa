"""Checks of the forecasts themselves: shape, finite values, order of the quantiles, size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from mqcast.checks.battery import check
from mqcast.checks.candidate import Candidate, FailedError, NotApplicableError, difference
from mqcast.checks.data import Data
from mqcast.forecast.limits import LARGEST_MULTIPLE, YOUNG

ROUNDING = 1e-6


@check
def output_has_the_right_shape(candidate: Candidate) -> str:
    """Every series is forecast once for each step of the horizon, from its last observation, on the right dates."""
    try:
        forecasts = candidate.forecasts
    except NotApplicableError as error:
        raise FailedError(str(error)) from None
    data, schema = candidate.data, candidate.data.schema
    wanted = _right_dates(data, data.ending_last, candidate.horizon)
    keys = [schema.id, "cutoff", schema.time, "horizon"]
    latest = forecasts.filter(pl.col("cutoff") == pl.col("cutoff").max().over(schema.id)).select(keys)
    if doubled := len(latest) - len(latest.unique()):
        raise FailedError(f"{doubled} rows are duplicates")
    if absent := sorted(set(wanted[schema.id]) - set(forecasts[schema.id])):
        raise FailedError(f"{len(absent)} of {wanted[schema.id].n_unique()} series are not forecast ({absent[0]!r})")
    if len(short := wanted.join(latest, on=[schema.id, "horizon"], how="anti")):
        raise FailedError(f"series {short[0, schema.id]!r} is not forecast {short[0, 'horizon']} steps ahead")
    if len(wrong := wanted.join(latest, on=keys, how="anti")):
        row = wrong.row(0, named=True)
        given = latest.filter(pl.col(schema.id) == row[schema.id], pl.col("horizon") == row["horizon"])
        raise FailedError(
            f"series {row[schema.id]!r}, {row['horizon']} ahead: from {given[0, 'cutoff']} of {given[0, schema.time]}, "
            f"not from {row['cutoff']} of {row[schema.time]}"
        )
    others = [name for name in data.ids if name not in set(data.ending_last)]
    allowed = [_right_dates(data, others, candidate.horizon, from_last_of_all=each) for each in (False, True)]
    if len(strange := latest.join(pl.concat([wanted, *allowed]), on=keys, how="anti")):
        raise FailedError(f"{len(strange)} rows too many, such as {strange.row(0)}")
    return f"{wanted[schema.id].n_unique()} series, {candidate.horizon} steps, {len(forecasts.columns) - 4} levels"


def _right_dates(data: Data, ids: Sequence[Any], horizon: int, *, from_last_of_all: bool = False) -> pl.DataFrame:
    """The rows, without quantiles, that forecasts of series should have: from their own last observation, or from that
    of all, which may be later."""
    panel, schema = data.panel, data.schema
    index = np.array([panel.index_of(name) for name in ids], int)
    last = panel.steps_until(panel.last_observed_time()) if from_last_of_all else panel.last_observed
    times = panel.times_at(index, last[index], horizon + 1)
    rows: dict[str, Any] = {
        schema.id: pl.Series(np.repeat([str(name) for name in ids], horizon), dtype=pl.String),
        "cutoff": panel.axis.dates(np.repeat(times[:, 0], horizon)),
        schema.time: panel.axis.dates(times[:, 1:].reshape(-1)),
        "horizon": np.tile(np.arange(1, horizon + 1), len(index)),
    }
    return pl.DataFrame(rows)


@check
def forecasts_are_finite(candidate: Candidate) -> str:
    """Every quantile is a number: none is missing, none infinite."""
    forecasts = candidate.forecasts
    return _require_none(forecasts, ~np.isfinite(candidate.levels(forecasts)), "not finite")


@check
def quantiles_do_not_cross(candidate: Candidate) -> str:
    """A higher level has a quantile that is not lower."""
    forecasts = candidate.forecasts
    values = candidate.levels(forecasts)
    if values.shape[1] < 2:
        raise NotApplicableError("there is only one level")
    crosses = values[:, 1:] < values[:, :-1]
    if crosses.any():
        raise FailedError(
            f"{int(crosses.any(axis=1).sum())} of {len(forecasts)} rows cross, such as {_place(forecasts, crosses)}"
        )
    return f"{len(forecasts)} rows of {values.shape[1]} levels"


@check
def forecasts_are_of_sane_size(candidate: Candidate) -> str:
    """No forecast reaches 10 times the most that its series has sold; hardly sold: that any series has."""
    worst = 0.0
    for data in (candidate.data, with_constant_series(candidate.data)):
        try:
            forecasts = candidate.forecasts if data is candidate.data else candidate.forecast(data)
        except NotApplicableError:
            raise
        except Exception:  # a check of its own is about constant series
            continue
        largest = max([*candidate.data.largest.values(), *data.largest.values()]) or 1.0
        sold = {name: largest if data.num_sold[name] < YOUNG else most for name, most in data.largest.items()}
        bound = np.array([sold.get(name, largest) for name in forecasts[data.schema.id]])
        times = np.abs(np.nan_to_num(candidate.levels(forecasts))) / bound[:, None]
        # A forecaster that clips its forecasts to the limit is no saner than one that exceeds it.
        worst = max(worst, float(times.max(initial=0)))
        _require_none(forecasts, times >= LARGEST_MULTIPLE * (1 - ROUNDING), f"{worst:.3g} times as much")
    return f"at most {worst:.2g} times as much"


@check
def forecasts_are_not_negative(candidate: Candidate) -> str:
    """Where nothing negative was ever observed, nothing negative is forecast."""
    forecasts = candidate.forecasts
    if not candidate.data.is_never_negative:
        raise NotApplicableError("the data have negative values")
    return _require_none(forecasts, candidate.levels(forecasts) < 0, "negative")


@check
def same_input_gives_the_same_forecasts(candidate: Candidate) -> str:
    """The same call gives the same forecasts, and so does the same training."""
    first = candidate.forecasts
    for how, again in candidate.repeated.items():
        if problem := difference(first, again, candidate.tolerance):
            raise FailedError(f"{how}: {problem}")
    return f"equal when {' and '.join(candidate.repeated)}"


def with_constant_series(data: Data) -> Data:
    """Half of the series constant: one at zero, the others at the most that they have sold."""
    ids = data.ids[: max(1, len(data.ids) // 2)]
    return data.constant({name: 0.0 if i == 0 else data.largest[str(name)] for i, name in enumerate(ids)})


def _require_none(forecasts: pl.DataFrame, is_wrong: np.ndarray, what: str) -> str:
    if is_wrong.any():
        raise FailedError(f"{int(is_wrong.sum())} of {is_wrong.size} quantiles: {what}: {_place(forecasts, is_wrong)}")
    return f"{is_wrong.size} quantiles"


def _place(forecasts: pl.DataFrame, is_wrong: np.ndarray) -> str:
    row, level = (int(axis[0]) for axis in np.nonzero(is_wrong))
    values = forecasts.row(row)
    where = f"series {values[0]!r} at {values[1]}, {values[3]} ahead, {forecasts.columns[4 + level]}"
    return f"{values[4 + level]:.6g} ({where})"
