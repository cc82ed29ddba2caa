"""The last dates before the end of training, held out: models are fitted before them, and their forecasts judged there.

All of it depends only on what is known at the end of training.
"""

import contextlib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mqcast.calibration import Calibrator, calibrate
from mqcast.data.export import categories_of, some_series
from mqcast.data.frequency import year_of
from mqcast.data.panel import Panel
from mqcast.data.views import known_at
from mqcast.data.windows import as_time
from mqcast.errors import MqcastWarning, NotCalibratedWarning, TooFewRevisionsError, warn
from mqcast.evaluation.reading import actuals_table
from mqcast.evaluation.spans import by_span
from mqcast.evaluation.tables import Names
from mqcast.joint.dependence import Dependence
from mqcast.joint.learning import fit_dependence
from mqcast.levels import quantile_column
from mqcast.models.protocol import FittedModel, TrainOptions

LARGEST_SHARE, SMALLEST_SHARE = 4, 16  # one in so many steps of history, at most and at least
MOST_HORIZONS, FEWEST_STEPS = 3, 26  # at most so many horizons, or so many steps, or the smallest share if that is more
LEAST_BEFORE = 3  # steps before the held-out ones, in addition to a horizon
MOST_ROWS = 500_000  # of the forecasts of one model; for more, fewer series are forecast


@dataclass(frozen=True)
class Holdout:
    """The cutoffs to judge models at; the first is the last date of targets that they may be fitted on."""

    panel: Panel  # as it is known at the end, all series or some of them
    first: Any
    last: Any
    actuals: pl.DataFrame
    knows_a_year: bool  # before them most series have a year and a horizon, so that last year's sales can be judged
    year_is_new: bool = False  # most series have them at the end alone

    def revisions(self, fitted: FittedModel) -> pl.DataFrame:
        """The forecasts of a fitted model from these cutoffs; what it warns of is said when it forecasts in earnest."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MqcastWarning)
            return fitted.forecast(self.panel, self.first, self.last)


def history_length(panel: Panel) -> int:
    """Steps from the first row of a series to its last observation, in the median."""
    return int(np.median(panel.last_observed - panel.first_step + 1))


def least_to_hold_out(horizon: int) -> int:
    """Steps of history without which nothing can be held out."""
    return 2 * horizon + LEAST_BEFORE


def hold_out(panel: Panel, options: TrainOptions) -> Holdout:
    """The last horizons before the end of training: at most a quarter of the history, and at least one horizon."""
    known = panel if options.until is None else known_at(panel, as_time(options.until, panel.axis))
    horizon, length = options.horizon, history_length(known)
    if length < (needed := least_to_hold_out(horizon)):
        raise TooFewRevisionsError(
            f"most series have only {length} steps, and {needed} are needed to hold out a horizon of {horizon}",
            "give more history, or fit a single model",
        )
    most = max(MOST_HORIZONS * horizon, FEWEST_STEPS, length // SMALLEST_SHARE)
    num_steps = int(np.clip(length // LARGEST_SHARE, horizon, most))
    begin = known.last_observed_time(num_steps)
    first, last = known.axis.dates(np.array([begin, _last_cutoff(known, horizon, num_steps)])).to_list()
    num_series = max(1, MOST_ROWS // (horizon * (num_steps - horizon + 1)))
    if known.num_series > num_series:
        known = some_series(known, np.unique(np.linspace(0, known.num_series - 1, num_series).astype(int)))
    whole_year = year_of(known.axis.frequency) + horizon
    knows_a_year = length - num_steps >= whole_year
    year_is_new = length >= whole_year and not knows_a_year
    return Holdout(known, first, last, actuals_after(known, begin), knows_a_year, year_is_new)


def calibrator_of(frame: pl.DataFrame, holdout: Holdout, options: TrainOptions) -> Calibrator | None:
    """The calibrator of forecasts of the held-out dates; None, with a warning, if these are too few."""
    try:
        known = {"levels": options.quantiles, "schema": holdout.panel.schema}
        return calibrate(frame, holdout.actuals, trained_again=True, **known)
    except TooFewRevisionsError as error:
        tell_not_calibrated(error)
        return None


def span_calibrators_of(totals: pl.DataFrame, holdout: Holdout) -> dict[tuple[int, int], Calibrator]:
    """The calibrators of forecasts of totals over the held-out dates, by span; none for spans with too few."""
    found, schema = dict[tuple[int, int], Calibrator](), holdout.panel.schema
    names = Names.of(schema)
    for span in by_span(totals, actuals_table(holdout.actuals, names), names):
        with contextlib.suppress(TooFewRevisionsError):
            made = calibrate(span.forecasts, span.actuals, schema=schema, trained_again=True)
            found[span.first, span.last] = made
    return found


def calibrated(frame: pl.DataFrame, calibrator: Calibrator | None) -> pl.DataFrame:
    """A frame of forecasts as models make them, recalibrated; without a calibrator, as it is."""
    if calibrator is None:
        return frame
    columns = [quantile_column(level) for level in calibrator.levels]
    values = calibrator.moved(frame.select(columns).to_numpy().astype(float), frame["horizon"].to_numpy())
    return frame.with_columns(pl.Series(name, values[:, i]) for i, name in enumerate(columns))


def learnt_dependence(frame: pl.DataFrame, holdout: Holdout) -> Dependence | None:
    """How steps go together in forecasts of the held-out dates; None if these are too few."""
    try:
        return dependence_of(frame, holdout.panel, holdout.actuals)
    except TooFewRevisionsError:
        return None


def dependence_of(frame: pl.DataFrame, panel: Panel, actuals: pl.DataFrame) -> Dependence:
    """How the steps of these forecasts go together, and series with the same category in a static column."""
    static, schema = categories_of(panel), panel.schema
    return fit_dependence(frame, actuals, static=static, groups=static.columns[1:], schema=schema)


def tell_not_calibrated(error: TooFewRevisionsError) -> None:
    warn(f"quantiles are not calibrated: {error.problem}; give more history", NotCalibratedWarning)


def _last_cutoff(panel: Panel, horizon: int, num_steps: int) -> int:
    """The last time whose targets are not after the last observation, of whichever series.

    On a grid of rows, a series with few rows of late has a horizon that is longer than that of others.
    """
    series, end = np.arange(panel.num_series), panel.last_observed_time()
    for steps_before in range(horizon, num_steps):
        time = panel.last_observed_time(steps_before)
        if panel.times_at(series, panel.steps_until(time) + horizon, 1).max() <= end:
            return time
    return panel.last_observed_time(num_steps)


def actuals_after(panel: Panel, after: int) -> pl.DataFrame:
    """The observed demand after a time: id, date, target."""
    series, start = np.arange(panel.num_series), panel.steps_until(after) + 1
    width = max(1, int((panel.last_step - start).max()) + 1)
    rows, exists = panel.rows_at(series, start, width)
    target = np.where(exists, panel.target[rows], np.nan)
    seen = ~np.isnan(target)
    ids = pl.Series(panel.names_of(np.repeat(series, seen.sum(axis=1))))
    dates = panel.axis.dates(panel.times_at(series, start, width)[seen])
    schema = panel.schema
    return pl.DataFrame({schema.id: ids, schema.time: dates, schema.target: target[seen].astype(float)})
