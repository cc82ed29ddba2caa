"""Implausible forecasts: far larger than any sales, negative, always 0, or with badly calibrated quantiles.

A forecast is one row of a frame. It is implausible if

    too large   the absolute value of a quantile is more than `multiple` times the largest value of its series (over all
                actuals, before and after the cutoff; for a series without sales, the largest value of all series)
    negative    one of its quantiles is below 0, although no actual of any series is

A series is forecast to sell nothing if all its quantiles are 0 or less, although it sold on every one of at least
FEWEST dates. A level is far off if the share of actuals at or below its quantile differs from the level by more than
FAR's margin and number of standard errors; it is off, which a report says, if it does so by OFF's.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mqcast.evaluation.columns import distinct, places
from mqcast.evaluation.tables import ActualsTable, ForecastTable

MULTIPLE = 10.0  # of the largest value ever sold
ROUNDING = 1e-6  # of the largest value: forecasts this little below 0 do not count as negative
FEWEST = 8  # minimal number of series, dates and values to judge coverage, or a series that always sells


@dataclass(frozen=True)
class Strictness:
    """When the coverage of a level is called wrong.

    margin    near 0 and 1 the remaining share, but at least `tail`
    sure      standard errors
    fewest    series and dates, without which nothing is said
    generous  of whole numbers, take a quantile as its user may: rounded up
    """

    margin: float
    tail: float
    sure: float
    fewest: int
    generous: bool


FAR, OFF = Strictness(0.1, 0.03, 4.0, FEWEST, True), Strictness(0.05, 0.03, 2.0, 3, False)


@dataclass(frozen=True, eq=False)
class Sold:
    """What the actuals show about each series."""

    actuals: ActualsTable

    @cached_property
    def largest(self) -> np.ndarray:
        """The largest absolute value of each series; NaN where nothing was observed."""
        return self._of_series(np.fmax, np.abs(self.actuals.value))

    @cached_property
    def smallest(self) -> np.ndarray:
        return self._of_series(np.fmin, self.actuals.value)

    @cached_property
    def counts(self) -> np.ndarray:
        return np.bincount(self.actuals.item[~np.isnan(self.actuals.value)], minlength=len(self.actuals.ids))

    @property
    def is_ever_negative(self) -> bool:
        return bool(np.nanmin(self.smallest, initial=0) < 0)

    def measures(self, item: np.ndarray) -> np.ndarray:
        """The value that forecasts of each series (-1: without actuals) are compared with; NaN if nothing was sold."""
        of_all = np.nanmax(self.largest, initial=0)
        own = np.where(item >= 0, self.largest[item], np.nan)
        return np.where(own > 0, own, of_all if of_all > 0 else np.nan)

    def always_sells(self, item: np.ndarray) -> np.ndarray:
        return (item >= 0) & (self.smallest[item] > 0) & (self.counts[item] >= FEWEST)

    def _of_series(self, reduce: np.ufunc, values: np.ndarray) -> np.ndarray:
        begins = self.actuals.offsets[:-1]
        reduced = np.full(len(begins), np.nan)
        filled = self.actuals.offsets[1:] > begins
        if filled.any():
            reduced[filled] = reduce.reduceat(values, begins[filled])
        return reduced


@dataclass(frozen=True)
class Level:
    """A badly calibrated quantile: how often actuals were at or below it."""

    level: float
    coverage: float
    rows: int


@dataclass(frozen=True, eq=False)
class Verdict:
    """The implausible forecasts of one model: `rows` has their row numbers, worst first; other arrays are per row."""

    model: str
    forecasts: ForecastTable
    multiple: float
    rows: np.ndarray
    place: np.ndarray  # of the worst level
    measure: np.ndarray  # the largest value of the series
    is_negative: np.ndarray  # and not too large
    zeros: np.ndarray  # items that always sell and are forecast to sell nothing
    levels: tuple[Level, ...]

    @property
    def num_large(self) -> int:
        """The number of rows that are too large; they come first, then the negative ones."""
        return len(self.rows) - int(self.is_negative.sum())

    def num_series(self, rows: slice = slice(None)) -> int:
        """The number of distinct series in some of the rows."""
        return len(np.unique(self.forecasts.item[self.rows[rows]]))

    @property
    def value(self) -> np.ndarray:
        return self.forecasts.quantiles[self.rows, self.place]

    @property
    def times(self) -> np.ndarray:
        """The absolute value as a multiple of the largest value."""
        with np.errstate(over="ignore"):
            return np.abs(self.value) / self.measure

    def __bool__(self) -> bool:
        return bool(len(self.rows) or len(self.zeros) or self.levels)


def judge(model: str, rows: ForecastTable, sold: Sold, actual: np.ndarray, multiple: float = MULTIPLE) -> Verdict:
    """Find the implausible forecasts. actual: (rows,), NaN where there is none.

    Rows are sorted by series, so that one pass finds the extremes of each series. Single rows are inspected only for
    series with suspicious extremes.
    """
    begins = np.flatnonzero(np.diff(rows.item, prepend=-1))
    item, num_levels = rows.item[begins], len(rows.levels)
    if not len(begins):
        nothing = np.zeros(0, np.int64)
        return Verdict(model, rows, multiple, nothing, nothing, nothing, nothing, nothing, ())
    flat = np.ascontiguousarray(rows.quantiles).ravel()
    highest, lowest = (reduce.reduceat(flat, begins * num_levels) for reduce in (np.maximum, np.minimum))
    known = sold.actuals.items_of(rows.ids)[item]
    measure = sold.measures(known)
    with np.errstate(over="ignore"):
        limit = multiple * measure
    floor = -np.inf if sold.is_ever_negative else -ROUNDING * np.nan_to_num(measure)
    floor = np.broadcast_to(floor, len(item))
    suspicious = (highest > limit) | (lowest < -limit) | (lowest < floor)
    zeros = item[(highest <= 0) & sold.always_sells(known)]
    worst_first = _rows_of(rows, begins, np.flatnonzero(suspicious), measure, limit, floor)
    return Verdict(model, rows, multiple, *worst_first, zeros, levels_off(rows, actual, FAR))


def _rows_of(
    rows: ForecastTable,
    begins: np.ndarray,
    series: np.ndarray,
    measure: np.ndarray,
    limit: np.ndarray,
    floor: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The implausible rows of some series, worst first; their worst level, measure, and whether they are negative."""
    sizes = np.diff(begins, append=rows.num_rows)[series]
    place = np.repeat(series, sizes)
    row = np.repeat(begins[series] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    quantiles = rows.quantiles[row]
    worst, least = np.abs(quantiles).argmax(axis=1), quantiles.argmin(axis=1)
    at = np.arange(len(row))
    is_large = np.abs(quantiles[at, worst]) > limit[place]
    is_negative = ~is_large & (quantiles[at, least] < floor[place])
    worst = np.where(is_large, worst, least)
    kept = np.flatnonzero(is_large | is_negative)
    with np.errstate(over="ignore", invalid="ignore"):
        times = np.abs(quantiles[kept, worst[kept]]) / measure[place[kept]]
    kept = kept[np.lexsort((row[kept], -np.nan_to_num(times, nan=-1, posinf=np.inf), is_negative[kept]))]
    return row[kept], worst[kept], measure[place[kept]], is_negative[kept]


def levels_off(rows: ForecastTable, actual: np.ndarray, strictness: Strictness) -> tuple[Level, ...]:
    """Levels with a wrong coverage; the slow test runs only where a quick test fails."""
    number = len(actual) - int(np.isnan(actual).sum())
    levels = []
    for i, level in enumerate(rows.levels):
        quantile = rows.quantiles[:, i]
        margin = max(strictness.tail, min(strictness.margin, level, 1 - level))
        up_to = np.count_nonzero(actual <= quantile) / max(number, 1)
        if number and (up_to < level - margin or np.count_nonzero(actual < quantile) / number > level + margin):
            known = ~np.isnan(actual)
            if _is_surely_off(rows.where(known), actual[known], quantile[known], level, margin, strictness):
                levels.append(Level(level, float(up_to), number))
    return tuple(levels)


def _is_surely_off(
    rows: ForecastTable,
    actual: np.ndarray,
    quantile: np.ndarray,
    level: float,
    margin: float,
    strictness: Strictness,
) -> bool:
    """Whole numbers have ties: a quantile is correct if a share of at most `level` of the actuals is below it and at
    least `level` is at or below it, and it may be anywhere between two whole numbers."""
    is_whole = not np.any(actual % 1)
    up_to = actual <= (np.ceil(quantile) if is_whole and strictness.generous else quantile)
    below = actual < (np.floor(quantile) if is_whole else quantile)
    clusters = [places(part, distinct(part)) for part in (rows.item, rows.time, rows.cutoff)]
    if min(len(distinct(rows.item)), len(distinct(rows.time))) < strictness.fewest:
        return False
    for inside, gap in ((up_to, level - up_to.mean()), (below, below.mean() - level)):
        if gap > margin and gap > strictness.sure * max(_standard_error(inside, codes) for codes in clusters):
            return True
    return False


def _standard_error(inside: np.ndarray, cluster: np.ndarray) -> float:
    """The standard error of a share, if errors within a cluster (a series, a date, a cutoff) are correlated."""
    sums = np.bincount(cluster, inside - inside.mean())
    number = len(sums)
    return float(np.sqrt((sums**2).sum() * number / (number - 1)) / len(inside)) if number > 1 else 0.0
