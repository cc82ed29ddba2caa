"""Checks of data that are unlike the usual: gaps, constant series, newcomers."""

import warnings
from typing import Any

import numpy as np
import polars as pl

from mqcast.checks.adapters import Subject
from mqcast.checks.battery import check
from mqcast.checks.candidate import Candidate, FailedError, described, refuses_clearly
from mqcast.checks.data import Data
from mqcast.checks.forecasts import with_constant_series

GAPS = 0.15  # share of targets that are missing


@check
def missing_values_are_forecast_or_refused(candidate: Candidate) -> str:
    """With targets missing the forecasts are complete and finite, or the error is typed or names a series."""
    candidate.sound()
    holed = candidate.data.with_gaps(GAPS)
    try:
        _survives(candidate, holed)
    except FailedError:
        raise
    except Exception as error:
        if any(refuses_clearly(error, name) for name in candidate.data.ids):
            return f"refused: {described(error)}"
        raise FailedError(f"refused without a series' name: {described(error)}") from None
    return f"{GAPS:.0%} of the targets missing"


@check
def constant_series_are_forecast(candidate: Candidate) -> str:
    """Series that never change, and series of zeros, have forecasts that are complete and finite."""
    candidate.sound()
    _survives(candidate, with_constant_series(candidate.data))
    return f"{max(1, len(candidate.data.ids) // 2)} of {len(candidate.data.ids)} series constant"


@check
def newcomers_are_forecast_or_refused(candidate: Candidate) -> str:
    """A series with one observation or none is forecast, or refused by a typed error or a message that names it."""
    candidate.sound()
    outcomes = [f"{words}: {_newcomer(candidate, num)}" for num, words in ((1, "one observation"), (0, "none"))]
    return ", ".join(outcomes)


def _survives(candidate: Candidate, data: Data) -> None:
    """Trained on such data, where there is training, and forecast from them."""
    subjects: list[Subject] = [candidate.fitted]
    if candidate.subject.has_training:
        subjects.append(candidate.quietly(lambda: candidate.subject.fit(data)))
    expected = set(candidate.forecasts[data.schema.id])
    for subject in subjects:
        forecasts = candidate.forecast(data, by=subject)
        if absent := sorted(expected - set(forecasts[data.schema.id])):
            raise FailedError(f"{len(absent)} series are not forecast ({absent[0]!r})")
        _require_finite(candidate, forecasts)


def _newcomer(candidate: Candidate, num_observed: int) -> str:
    name = candidate.data.new_id
    data = candidate.data.joined_by_young(num_observed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            forecasts = candidate.read(candidate.fitted.forecast(data))
        except Exception as error:
            if refuses_clearly(error, name):
                return f"refused ({type(error).__name__})"
            raise FailedError(f"refused without its name: {described(error)}") from None
    own = forecasts.filter(pl.col(data.schema.id) == str(name))
    if len(own) == 0:
        if any(str(name) in str(warning.message) for warning in caught):
            return "left out, with a warning"
        raise FailedError(f"a series with {num_observed} observations is left out without a word")
    _require_finite(candidate, own)
    return "forecast"


def _require_finite(candidate: Candidate, forecasts: pl.DataFrame) -> None:
    values: Any = candidate.levels(forecasts)
    if len(forecasts) == 0 or not np.isfinite(values).all():
        raise FailedError(f"{int((~np.isfinite(values)).sum())} of {values.size} quantiles are not finite")
