"""The dependence of steps ahead, learnt from where past outcomes were within past forecasts.

An outcome's place within its forecast, between 0 and 1, is the chance that the forecast gave to no more demand. Where
that is a range, because several quantiles are equal or demand is counted in units, a place in it is drawn. Places are
ranked among all of the same step ahead, so that a forecaster that is too high or too narrow is no dependence; the ranks
become normal scores. Their correlations between steps are noisy. As far as cutoffs differ, they are drawn towards a
smooth function of the two steps, and this one towards one half.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrame

from mqcast.data.schema import Schema
from mqcast.data.source import read_table
from mqcast.errors import DataError, MissingColumnError, TooFewRevisionsError
from mqcast.evaluation.columns import distinct, places
from mqcast.evaluation.reading import Actuals, Forecasts, actuals_table, forecast_table, names_in
from mqcast.evaluation.tables import ForecastTable, Missing, actuals_of
from mqcast.joint.dependence import DECIMALS, Dependence, as_correlation
from mqcast.joint.marginals import Marginals
from mqcast.settings import nearest

LEAST_DATES, LEAST_CUTOFFS = 8, 3
USUAL, WORTH = 0.5, 5.0  # the correlation without evidence, and how many forecasts that guess is worth
LARGEST_SHARE = 0.99
MOST_PRODUCTS = 2**24  # of pairs of steps and cutoffs; for more, fewer cutoffs are looked at


def fit_dependence(
    forecasts: Forecasts[IntoDataFrame],
    actuals: Actuals,
    *,
    static: Any = None,
    groups: Sequence[str] = (),
    missing: Missing = "drop",
    seed: int = 0,
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Dependence:
    """Learn from the forecasts of any forecaster from several cutoffs, and the demand that followed.

    groups: columns of `static`, a frame of one row a series; how far series with the same value go together is learnt
    as well. Raises `TooFewRevisionsError` if there are fewer than 8 target dates or 3 cutoffs.

    >>> from mqcast.joint import fit_dependence
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> past = world.oracle_forecasts((0.1, 0.5, 0.9), first=30, last=55)
    >>> fit_dependence(past, world.actuals)
    Dependence(4 steps, learnt from 520 forecasts of 26 cutoffs)
    """
    names = names_in(forecasts, schema, id=id, time=time, target=target)
    rows = forecast_table(forecasts, names)
    actual = actuals_of(rows, actuals_table(actuals, names), missing)[rows.trajectory]
    horizon, known = int(rows.lead.max()), ~np.isnan(actual)
    rows, actual = rows.where(known), actual[known]
    _require_enough(rows)
    not_negative = bool(rows.quantiles.min() >= 0 and actual.min() >= 0)
    scores, item, cutoff = _grid(rows, _scores(rows, actual, not_negative, seed), horizon)
    correlation = as_correlation(_correlation(scores, cutoff))
    shares = {name: _share(scores, item, cutoff, _codes(static, name, names.id, rows.ids)) for name in groups}
    return Dependence(correlation, not_negative, len(scores), int(cutoff.max()) + 1, shares)


def _require_enough(rows: ForecastTable) -> None:
    num_dates, num_cutoffs = len(distinct(rows.time)), len(distinct(rows.cutoff))
    for found, needed, what in ((num_dates, LEAST_DATES, "target dates"), (num_cutoffs, LEAST_CUTOFFS, "cutoffs")):
        if found < needed:
            raise TooFewRevisionsError(
                f"the forecasts to learn the dependence of steps from have {found} {what} with demand, and {needed} "
                "are needed",
                "give forecasts from more cutoffs",
            )


def _scores(rows: ForecastTable, actual: np.ndarray, not_negative: bool, seed: int) -> np.ndarray:
    """The normal score of each outcome's rank among those of its step ahead."""
    from scipy.special import ndtri  # slow to import

    marginals = Marginals.of(rows.levels, rows.quantiles, not_negative)
    in_units = not_negative and bool((actual == np.round(actual)).all())
    low, high = (actual - 0.5, actual + 0.5) if in_units else (actual, actual)
    below, at = marginals.chances(low)[0], marginals.chances(high)[1]
    place = below + np.random.default_rng(seed).random(len(actual)) * (at - below)
    order = np.lexsort((place, rows.lead))
    counts = np.bincount(rows.lead)[rows.lead[order]]
    first = np.searchsorted(rows.lead[order], rows.lead[order])
    scores = np.empty(len(actual))
    scores[order] = ndtri((np.arange(len(order)) - first + 0.5) / counts)
    return scores


def _grid(rows: ForecastTable, scores: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(forecasts, horizon) scores, NaN where there is none, and the series and the cutoff of each forecast."""
    cutoffs = distinct(rows.cutoff)
    keys, row = np.unique(rows.item * np.int64(len(cutoffs)) + places(rows.cutoff, cutoffs), return_inverse=True)
    grid = np.full((len(keys), horizon), np.nan)
    grid[row, rows.lead - 1] = scores
    return grid, keys // len(cutoffs), keys % len(cutoffs)


def _correlation(scores: np.ndarray, cutoff: np.ndarray) -> np.ndarray:
    """(horizon, horizon): as seen, drawn towards what is smooth as far as cutoffs differ."""
    horizon = scores.shape[1]
    one, other = np.triu_indices(horizon, 1)
    if not one.size:
        return np.eye(horizon)
    products, counts, squares = [], [], np.zeros((2, len(one)))
    num_cutoffs = int(cutoff.max()) + 1
    num_seen = min(num_cutoffs, max(LEAST_CUTOFFS, MOST_PRODUCTS // len(one)))
    for number in np.linspace(0, num_cutoffs - 1, num_seen).astype(int):
        mine = scores[cutoff == number]
        seen, filled = (~np.isnan(mine)).astype(float), np.nan_to_num(mine)
        products.append((filled.T @ filled)[one, other])
        counts.append((seen.T @ seen)[one, other])
        squared = (filled**2).T @ seen
        squares += np.stack([squared[one, other], squared[other, one]])
    total, size = np.sum(products, axis=0), np.sum(counts, axis=0)
    is_seen = size > 0
    seen = np.divide(total, np.sqrt(squares[0] * squares[1]), where=is_seen, out=np.zeros(len(one)))
    spread = np.sqrt(squares[0] * squares[1]) / np.maximum(size, 1)  # near 1: of scores
    apart = np.array(products) - np.array(counts) * seen * spread
    variance = np.maximum(
        _variance(apart, horizon) / np.maximum(size, 1) ** 2, (1 - seen**2) ** 2 / np.maximum(size, 1)
    )
    smooth = _smooth(one + 1, other + 1, np.where(is_seen, seen, 0.0), size)
    gap = np.sum((seen - smooth)[is_seen] ** 2)
    kept = max(0.0, 1 - variance[is_seen].sum() / gap) if gap > 0 else 0.0
    found = smooth + np.where(is_seen, kept * (seen - smooth), 0.0)
    evidence = float(np.median(((1 - seen**2) ** 2 / variance)[is_seen])) if is_seen.any() else 0.0
    matrix = np.eye(horizon)
    matrix[one, other] = matrix[other, one] = (evidence * found + WORTH * USUAL) / (evidence + WORTH)
    return matrix


def _variance(apart: np.ndarray, horizon: int) -> np.ndarray:
    """The variance of sums over cutoffs (cutoffs, pairs), those of overlapping forecasts going together."""
    num = len(apart)
    reach = min(horizon, int(np.sqrt(num)))
    own = np.sum(apart**2, axis=0)
    together = sum(
        (1 - k / (reach + 1)) * np.sum(apart[k:] * apart[:-k], axis=0) for k in range(1, reach + 1) if k < num
    )
    return np.maximum(own, own + 2 * together) * (1 + 1.5 * (1 + reach) / num)


def _smooth(one: np.ndarray, other: np.ndarray, seen: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The mixture of smooth correlations that is nearest to what was seen.

    What stays the same at all steps, a random walk from the cutoff on, what fades within 1, 2, 4 … steps, what changes
    its sign from step to step, and noise of each step.
    """
    from scipy.optimize import nnls  # slow to import

    gap, horizon = other - one, int(other.max())
    kinds = [np.ones(len(gap)), np.sqrt(one / other), (-1.0) ** gap * np.exp(-gap)]
    kinds += [np.exp(-gap / 2.0**power) for power in range(int(np.log2(horizon)) + 2)]
    design, weight = np.stack(kinds, axis=1), np.sqrt(size / max(size.max(), 1.0))
    shares = nnls(design * weight[:, None], seen * weight)[0]
    return design @ (shares / max(shares.sum(), 1.0))


def _codes(static: Any, column: str, id: str, ids: list[str]) -> np.ndarray:
    """The group of each series, as a number."""
    table = read_table(static, "the static columns") if static is not None else pl.DataFrame()
    for name in (id, column):
        if name not in table.columns:
            near, listed = nearest(name, table.columns), ", ".join(table.columns) or "none"
            raise MissingColumnError(f"there is no static column {name!r}{near}; there are: {listed}")
    labels = dict(zip(table[id].cast(pl.String).to_list(), table[column].cast(pl.String).to_list(), strict=True))
    for name in ids:
        if labels.get(name) is None:
            raise DataError("belongs to no group", "fill the column", series=name, column=column)
    return np.unique([labels[name] for name in ids], return_inverse=True)[1]


def _share(scores: np.ndarray, item: np.ndarray, cutoff: np.ndarray, group: np.ndarray) -> float:
    """The mean correlation of the scores of one step and date between series of one group."""
    key = cutoff * np.int64(group.max() + 1) + group[item]
    _, place = np.unique(key, return_inverse=True)
    filled, seen = np.nan_to_num(scores), ~np.isnan(scores)
    sums, squares, counts = (np.zeros((int(place.max()) + 1, scores.shape[1])) for _ in range(3))
    for to, values in ((sums, filled), (squares, filled**2), (counts, seen)):
        np.add.at(to, place, values)
    pairs = (counts * (counts - 1)).sum()
    return round(float(np.clip((sums**2 - squares).sum() / pairs, 0, LARGEST_SHARE)), DECIMALS) if pairs else 0.0
