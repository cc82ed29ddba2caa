# pyright: strict
"""Recalibrated quantiles: each level is moved by what the errors of earlier forecasts say, as far as they are evidence.

The error of a quantile is counted in spreads of its own forecast, so that large and small series share what they tell.
If demand was below the 0.9-quantile in only 80 % of the cases, the level is raised to where it would have been below it
in 90 % of them: for all rows together, and then for each group of leads, for each fifth of the forecasts by their size,
and for each slice, as far as these differ. `mqcast.evidence` says how far is far enough.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrame, IntoDataFrameT

from mqcast.arguments import levels_of, names_of, path_of
from mqcast.data.schema import Schema
from mqcast.durable import write_file
from mqcast.errors import ArtifactError, ConfigError, DataError, TooFewRevisionsError
from mqcast.evaluation.martingale import Settings, volatility_of
from mqcast.evaluation.metrics import Scored, accuracy, group_of
from mqcast.evaluation.reading import Actuals, Forecasts, actuals_table, forecast_table, names_in
from mqcast.evaluation.stabilise import with_quantiles
from mqcast.evaluation.tables import ActualsTable, ForecastTable, Missing
from mqcast.evidence import LEAST_BEYOND, Clusters, Evidence
from mqcast.levels import pinball, quantile_column
from mqcast.shifts import Shifts, groups, sizes, spreads

LEAST_DATES, LEAST_CUTOFFS = 8, 3
NUM_SIZES = 5  # groups of forecasts by their size
PASSING_BIAS = 0.3  # of a forecaster that is trained again, in standard deviations of demand: one season's, one seed's


class Calibrator(Shifts):
    """Shifts of quantiles, for frames of forecasts.

    >>> from mqcast.calibration import Calibrator, calibrate
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> earlier = world.oracle_forecasts((0.5, 0.9), first=30, last=49)
    >>> calibrator = calibrate(earlier, world.actuals)
    >>> calibrator.apply(forecasts).columns == forecasts.columns
    True
    """

    @property
    def shifts(self) -> pl.DataFrame:
        """level, first_lead, last_lead, above (the size that forecasts exceed), a column for each of `by`, and shift.

        A slice of nulls is that of all rows whose own slice was not among those of the fit.
        """
        bounds = [math.ceil(2 ** (group / 2) - 1e-9) for group in range(self.shift.shape[2] + 1)]
        leads = [(first, after - 1) for first, after in pairwise(bounds)]
        rows = [
            {"level": level, "first_lead": first, "last_lead": last, "above": above}
            | dict(zip(self.by, names, strict=True))
            | {"shift": float(self.shift[place, i, group, size])}
            for place, names in enumerate([(None,) * len(self.by), *self.slices])
            for i, level in enumerate(self.levels)
            for group, (first, last) in enumerate(leads)
            if first <= last
            for size, above in enumerate([0.0, *self.sizes])
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def apply(
        self,
        forecasts: Forecasts[IntoDataFrameT],
        *,
        static: Any = None,
        id: str | None = None,
        time: str | None = None,
        schema: Schema | None = None,
    ) -> IntoDataFrameT:
        """The frame with recalibrated quantiles, which do not cross; a forecast depends on its own row alone.

        static: the frame of items' columns, if slices are made of them.
        """
        rows = forecast_table(forecasts, names_in(forecasts, schema, id=id, time=time))
        return with_quantiles(rows, self._moved(rows, static))

    def effect(
        self,
        forecasts: Forecasts[IntoDataFrameT],
        actuals: Actuals,
        by: str | Sequence[str] = (),
        *,
        static: Any = None,
        missing: Missing = "drop",
        id: str | None = None,
        time: str | None = None,
        target: str | None = None,
        schema: Schema | None = None,
    ) -> IntoDataFrameT:
        """Each level before and after: coverage, loss and, for all rows together, excess volatility.

        Give forecasts of cutoffs that the calibrator was not fitted to. by: "horizon", "cutoff", the id, a column of
        `static` or of the forecasts: a row for each of their values, without volatility. That takes two levels or more,
        and targets with several forecasts.
        """
        names = names_in(forecasts, schema, id=id, time=time, target=target)
        rows, observed = forecast_table(forecasts, names), actuals_table(actuals, names)
        pair = {"before": rows, "after": replace(rows, quantiles=self._moved(rows, static))}
        scored = {when: Scored.of(table, observed, missing) for when, table in pair.items()}
        keys, has_revisions = names_of("by", by), len(rows.begins) < rows.num_rows
        metrics = {
            when: accuracy({when: one}, observed, keys, static=static, leading=()) for when, one in scored.items()
        }
        tables: list[pl.DataFrame] = []
        for level in self.levels:
            table = metrics["before"].select(*keys, pl.lit(level).alias("level"), "rows")
            for name, metric in (("coverage", "coverage"), ("loss", "quantile_loss")):
                column = f"{metric}_{quantile_column(level)}"
                table = table.with_columns(of[column].alias(f"{name}_{when}") for when, of in metrics.items())
            change = pl.when(pl.col("loss_before") > 0).then(pl.col("loss_after") / pl.col("loss_before") - 1)
            table = table.with_columns(change.alias("loss_change"))
            if not keys and has_revisions and len(rows.levels) > 1:
                excess = {when: _excess(of, observed, level, missing) for when, of in pair.items()}
                table = table.with_columns(pl.lit(value).alias(f"excess_{when}") for when, value in excess.items())
            tables.append(table)
        return rows.frame_types.to_native(pl.concat(tables), names.id if names.id in keys else None)

    def save(self, path: str | Path) -> None:
        """Write JSON."""
        write_file(path_of("path", path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        try:
            return cls.from_json(path_of("path", path).read_bytes())
        except OSError as error:
            raise ArtifactError(f"there is no calibrator at {path} ({error.strerror}); name the file of one") from None

    def _moved(self, rows: ForecastTable, static: Any) -> np.ndarray:
        if missing := [quantile_column(level) for level in self.levels if level not in rows.levels]:
            raise ArtifactError(
                f"the calibrator was fitted to {', '.join(missing)}, which these forecasts do not have; fit it to "
                "forecasts of the same levels"
            )
        quantiles, places = rows.quantiles.copy(), [rows.place_of(level) for level in self.levels]
        labels, label = _labels(rows, self.by, static)
        known = {names: i + 1 for i, names in enumerate(self.slices)}
        place = np.array([known.get(names, 0) for names in labels])
        if self.by and not place.any():
            raise DataError(
                f"no forecast is of a slice that the calibrator was fitted to: {', '.join(self.by)} are "
                f"{labels[0]} here, such as {self.slices[0]} there",
                "write their values alike in both",
            )
        quantiles[:, places] = self.moved(quantiles[:, places], rows.lead, place[label])
        return np.sort(quantiles, axis=1)


def calibrate(
    forecasts: Forecasts[IntoDataFrame],
    actuals: Actuals,
    by: str | Sequence[str] = (),
    *,
    levels: Sequence[float] | None = None,
    static: Any = None,
    missing: Missing = "drop",
    trained_again: bool = False,
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Calibrator:
    """Learn from forecasts of several cutoffs, and the demand that followed, how far to move their quantiles.

    by: columns of the forecasts or of `static`, a frame of one row an item: each combination of their values is a slice
    that is moved apart from all rows as far as it differs from them. levels: those to move; left out, all.
    trained_again: the calibrator is for a forecaster that has been trained anew since, whose bias may be another; only
    a bias that is larger than such ones are is then put right.

    The forecaster must not have been trained on these targets. Raises `TooFewRevisionsError` if there are fewer than
    8 target dates, 3 cutoffs or half as many cutoffs as leads, or too few forecasts of every level. A level stays as
    it is where its coverage is consistent with it, and among forecasts of a size whose loss a change would have raised.

    >>> from mqcast.calibration import calibrate
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> earlier = world.oracle_forecasts((0.5, 0.9), first=20, last=55)
    >>> low = earlier.with_columns(earlier["q0.9"] * 0.6)
    >>> repaired = calibrate(low, world.actuals).apply(low)
    >>> repaired["q0.9"].mean() > low["q0.9"].mean()
    True
    """
    names = names_in(forecasts, schema, id=id, time=time, target=target)
    rows = forecast_table(forecasts, names)
    rows = rows if levels is None else rows.at_levels(levels_of("levels", levels))
    scored = Scored.of(rows, actuals_table(actuals, names), missing)
    rows, actual = scored.rows, scored.actual
    num_dates = _require_enough(rows)
    labels, place = _labels(rows, by := _slice_columns(by, rows), static)
    not_negative = bool(rows.quantiles.min() >= 0 and actual.min() >= 0)
    group, size = groups(rows.lead), sizes(rows.quantiles)
    edges = np.unique(np.quantile(size, np.arange(1, NUM_SIZES) / NUM_SIZES))
    fifth = np.searchsorted(edges, size)
    evidence = _evidence(rows, actual, not_negative)
    of_lead = evidence.apart(group, int(group.max()) + 1)
    evidence = evidence.less(of_lead.T[group])
    of_size = evidence.apart(fifth, len(edges) + 1)
    evidence = evidence.less(of_size.T[fifth])
    of_slice = evidence.apart(place, len(labels))
    common = evidence.less(of_slice.T[place]).common(PASSING_BIAS if trained_again else 0.0)
    shift = common[None, :, None, None] + of_lead[None, :, :, None] + of_size[None, :, None, :]
    slices = tuple(labels) if by else ()
    shift = np.concatenate([shift, *([shift + of_slice.T[:, :, None, None]] if by else [])])
    calibrator = Calibrator(rows.levels, shift, tuple(edges.tolist()), by, slices, not_negative, num_dates)
    return _without_losses(calibrator, rows, actual, place + 1 if by else np.zeros_like(place))


def _require_enough(rows: ForecastTable) -> int:
    num_dates, num_cutoffs = len(np.unique(rows.time)), len(np.unique(rows.cutoff))
    nearest = min(rows.levels, key=lambda level: abs(level - 0.5))
    least_rows = int(np.ceil(LEAST_BEYOND / min(nearest, 1 - nearest) - 1e-9))
    least_cutoffs = max(LEAST_CUTOFFS, int(rows.lead.max()) // 2)  # fewer forecast much the same dates
    for found, needed, what in (
        (num_dates, LEAST_DATES, "target dates"),
        (num_cutoffs, least_cutoffs, "cutoffs"),
        (rows.num_rows, least_rows, "forecasts"),
    ):
        if found < needed:
            raise TooFewRevisionsError(
                f"the forecasts to calibrate with have {found} {what} with demand, and {needed} are needed",
                "give forecasts from more cutoffs",
            )
    return num_dates


def _slice_columns(by: str | Sequence[str], rows: ForecastTable) -> tuple[str, ...]:
    columns = names_of("by", by)
    for name in columns:
        if name in (rows.names.cutoff, rows.names.time):
            raise ConfigError(
                f"by names {name!r}, whose values do not come again; name what later forecasts have, such as a category"
            )
    return columns


def _labels(rows: ForecastTable, by: Sequence[str], static: Any) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """The slices that occur, as text, and the slice of each row."""
    if not by:
        return [()], np.zeros(rows.num_rows, int)
    of_columns = [group_of(name, rows, static) for name in by]
    code = np.stack([group.codes for group in of_columns], axis=1)
    present, place = np.unique(code, axis=0, return_inverse=True)
    texts = [group.labels.cast(pl.String).fill_null("(missing)").to_list() for group in of_columns]
    return [tuple(text[i] for text, i in zip(texts, one, strict=True)) for one in present], place.ravel()


def _evidence(rows: ForecastTable, actual: np.ndarray, not_negative: bool) -> Evidence:
    spread = spreads(rows.quantiles)[:, None]
    can_move = (spread > 0) & ~((rows.quantiles == 0) & not_negative)
    score = np.full(can_move.shape, np.nan)
    np.divide(actual[:, None] - rows.quantiles, spread, where=can_move, out=score)
    clusters = tuple(Clusters.of(times, int(rows.lead.max())) for times in (rows.time, rows.cutoff))
    return Evidence(np.array(rows.levels), score, clusters)


def _without_losses(calibrator: Calibrator, rows: ForecastTable, actual: np.ndarray, place: np.ndarray) -> Calibrator:
    """The calibrator without those changes that raise the loss of a level among forecasts of a size."""
    size = np.searchsorted(calibrator.sizes, sizes(rows.quantiles))
    moved, shift = calibrator.moved_unsorted(rows.quantiles, rows.lead, place), calibrator.shift.copy()
    for i, level in enumerate(rows.levels):
        added = pinball(actual, moved[:, i], level) - pinball(actual, rows.quantiles[:, i], level)
        shift[:, i, :, np.bincount(size, added, minlength=shift.shape[3]) > 0] = 0.0
    facts = {name: value for name, value in vars(calibrator).items() if name != "shift"}
    return Calibrator(shift=shift, **facts)


def _excess(rows: ForecastTable, observed: ActualsTable, level: float, missing: Missing) -> float:
    settings = Settings((level,), resamples=1, missing=missing)
    return float(volatility_of(rows, observed, settings).polars_summary["excess"][0])
