# pyright: strict
"""Recalibrated quantiles: each level is moved by what the errors of earlier forecasts say, as far as they are evidence.

The error of a quantile is counted in spreads of its own forecast, so that large and small series share what they tell.
If demand was below the 0.9-quantile in only 80 % of the cases, the level is raised to where it would have been below it
in 90 % of them. Errors of the same date go together across series, and so do those of the same cutoff: what counts as
evidence is how much coverage differs between dates and between cutoffs, not the number of rows.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrame, IntoDataFrameT

from mqcast.data.schema import Schema
from mqcast.errors import ArtifactError, TooFewRevisionsError
from mqcast.evaluation.reading import Actuals, Forecasts, actuals_table, forecast_table, names_in
from mqcast.evaluation.stabilise import with_quantiles
from mqcast.evaluation.tables import ForecastTable, Missing, actuals_of
from mqcast.levels import pinball, quantile_column
from mqcast.shifts import Shifts, groups, spreads

LEAST_DATES, LEAST_CUTOFFS = 8, 3
LEAST_BEYOND = 5  # forecasts whose demand should be on the rarer side of a level
CONSISTENT = 1.5  # standard errors between the coverage and the level that are no evidence


class Calibrator(Shifts):
    """Shifts of quantiles, for frames of forecasts.

    >>> from mqcast.calibration import Calibrator, fit_calibrator
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> earlier = world.oracle_forecasts((0.5, 0.9), first=30, last=49)
    >>> calibrator = fit_calibrator(earlier, world.actuals)
    >>> calibrator.apply(forecasts).columns == forecasts.columns
    True
    """

    @property
    def shifts(self) -> pl.DataFrame:
        """level, first_lead, last_lead, shift."""
        rows = [
            {"level": level, "first_lead": 2**group, "last_lead": 2 ** (group + 1) - 1, "shift": float(shift)}
            for level, of_level in zip(self.levels, self.shift, strict=True)
            for group, shift in enumerate(of_level)
        ]
        return pl.DataFrame(rows)

    def apply(
        self,
        forecasts: Forecasts[IntoDataFrameT],
        *,
        id: str | None = None,
        time: str | None = None,
        schema: Schema | None = None,
    ) -> IntoDataFrameT:
        """The frame with recalibrated quantiles, which do not cross; a forecast depends on its own row alone."""
        rows = forecast_table(forecasts, names_in(forecasts, schema, id=id, time=time))
        if missing := [quantile_column(level) for level in self.levels if level not in rows.levels]:
            raise ArtifactError(
                f"the calibrator was fitted to {', '.join(missing)}, which these forecasts do not have; fit it to "
                "forecasts of the same levels"
            )
        quantiles = rows.quantiles.copy()
        places = [rows.place_of(level) for level in self.levels]
        quantiles[:, places] = self.moved(quantiles[:, places], rows.lead)
        return with_quantiles(rows, np.sort(quantiles, axis=1))


def fit_calibrator(
    forecasts: Forecasts[IntoDataFrame],
    actuals: Actuals,
    levels: Sequence[float] | None = None,
    *,
    missing: Missing = "drop",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Calibrator:
    """Fit to forecasts from several cutoffs and the demand that followed; levels: all those of the frame, or some.

    The forecaster must not have been trained on these targets. Raises `TooFewRevisionsError` if there are fewer than
    8 target dates or 3 cutoffs, from which nothing can be told. A level stays as it is where its coverage is consistent
    with it, and where a change would have raised the summed loss.

    >>> from mqcast.calibration import fit_calibrator
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> earlier = world.oracle_forecasts((0.5, 0.9), first=20, last=55)
    >>> low = earlier.with_columns(earlier["q0.9"] * 0.6)
    >>> repaired = fit_calibrator(low, world.actuals).apply(low)
    >>> repaired["q0.9"].mean() > low["q0.9"].mean()
    True
    """
    names = names_in(forecasts, schema, id=id, time=time, target=target)
    rows = forecast_table(forecasts, names)
    rows = rows if levels is None else rows.at_levels(tuple(levels))
    actual = actuals_of(rows, actuals_table(actuals, names), missing)[rows.trajectory]
    rows, actual = rows.where(~np.isnan(actual)), actual[~np.isnan(actual)]
    spread = spreads(rows.quantiles)
    not_negative = bool(rows.quantiles.min() >= 0 and actual.min() >= 0)
    num_dates = _require_enough(rows)
    shift = np.zeros((len(rows.levels), int(groups(rows.lead).max()) + 1))
    middle = int(np.argmin(np.abs(np.array(rows.levels) - 0.5)))
    centre = (actual - rows.quantiles[:, middle]) / np.maximum(spread, np.finfo(float).tiny)
    for i, level in enumerate(rows.levels):
        quantile = rows.quantiles[:, i]
        can_move = (spread > 0) & ~((quantile == 0) & not_negative)
        if can_move.any():
            score = (actual - quantile)[can_move] / spread[can_move]
            shift[i] = _shifts(rows.where(can_move), score, centre[can_move], level)
    calibrator = Calibrator(rows.levels, shift, not_negative, num_dates)
    return _without_losses(calibrator, rows, actual)


def error_of_mean(values: np.ndarray, clusters: np.ndarray, reach: int) -> float:
    """The standard error of a mean whose values go together in clusters.

    Clusters are numbered in the order of time. Those up to `reach` apart may go together too, as far as they do.
    """
    counts = np.bincount(clusters)
    sums = np.bincount(clusters, values - values.mean())[counts > 0] / counts[counts > 0].mean()
    num = len(sums)
    own = float(sums @ sums) / num
    together = sum((1 - k / (reach + 1)) * float(sums[k:] @ sums[:-k]) / num for k in range(1, reach + 1))
    return float(np.sqrt(max(own, own + 2 * together) / max(num - 1, 1)))


def _require_enough(rows: ForecastTable) -> int:
    num_dates, num_cutoffs = len(np.unique(rows.time)), len(np.unique(rows.cutoff))
    for found, needed, what in ((num_dates, LEAST_DATES, "target dates"), (num_cutoffs, LEAST_CUTOFFS, "cutoffs")):
        if found < needed:
            raise TooFewRevisionsError(
                f"the forecasts to calibrate with have {found} {what} with demand, and {needed} are needed",
                "give forecasts from more cutoffs",
            )
    return num_dates


def _shifts(rows: ForecastTable, score: np.ndarray, centre: np.ndarray, level: float) -> np.ndarray:
    """The shift of all leads together, and of each group of leads what it shows beyond that."""
    group = groups(rows.lead)
    common = _shift(rows, score, centre, level)
    shifts = np.full(int(group.max()) + 1, common)
    for number in np.unique(group) if np.ptp(group) else ():
        mine = group == number
        shifts[number] += _shift(rows.where(mine), score[mine] - common, centre[mine], level)
    return shifts


def _shift(rows: ForecastTable, score: np.ndarray, centre: np.ndarray, level: float) -> float:
    """The level's quantile of the scores, less what chance explains; 0 where the coverage is consistent with it.

    Where few dates are beyond a level, how much these go together is told by `centre`, the scores of the median.
    """
    best = float(np.quantile(score, level, method="inverted_cdf"))
    if best == 0 or len(score) * min(level, 1 - level) < LEAST_BEYOND:
        return 0.0
    covered = (score <= 0 if best > 0 else score < 0).astype(float)
    is_low, chance, longest = (centre <= np.median(centre)).astype(float), 0.0, int(rows.lead.max())
    for times in (rows.time, rows.cutoff):
        distinct, cluster = np.unique(times, return_inverse=True)
        reach = min(longest, int(np.sqrt(len(distinct))))
        of_median = error_of_mean(is_low, cluster, reach) * np.sqrt(level * (1 - level)) / max(is_low.std(), 1e-9)
        doubt = 1 + 1.5 * (1 + reach) / len(distinct)  # of an error that is estimated from so few
        chance = max(chance, CONSISTENT * doubt * max(of_median, error_of_mean(covered, cluster, reach)))
    off = abs(float(covered.mean()) - level)
    return best * (1 - (chance / off) ** 2) if off > chance else 0.0


def _without_losses(calibrator: Calibrator, rows: ForecastTable, actual: np.ndarray) -> Calibrator:
    """The calibrator without the changes of those levels whose summed loss they raise."""
    group, spread = groups(rows.lead), spreads(rows.quantiles)
    shift = calibrator.shift.copy()
    for i, level in enumerate(rows.levels):
        before = rows.quantiles[:, i]
        moved = calibrator.within_bounds(before, before + shift[i][group] * spread)
        if pinball(actual, moved, level).sum() > pinball(actual, before, level).sum():
            shift[i] = 0.0
    return Calibrator(calibrator.levels, shift, calibrator.not_negative, calibrator.num_dates)
