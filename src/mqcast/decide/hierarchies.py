"""Totals of items by any of their attributes, from paths, so that they add up; and forecasts of totals taken in.

The totals of bottom values b are A b, for a sparse matrix A of zeros and ones with a row a total. Independent forecasts
of totals â and of items b̂, with diagonal variances U and V of their errors, are reconciled by

    b̃ = b̂ + V Aᵀ (U + A V Aᵀ)⁻¹ (â − A b̂)

which is the minimum-trace estimate with diagonal weights (MinT), written so that the system has one row a total.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl

from mqcast.arguments import levels_of
from mqcast.decide.demand import PathsLike
from mqcast.errors import ConfigError, DataError, DuplicateRowsError, MissingColumnError, quoted
from mqcast.evaluation.columns import one_of
from mqcast.levels import quantile_column
from mqcast.settings import nearest

Weights = Literal["variance", "structure", "equal"]
SomePaths = TypeVar("SomePaths", bound=PathsLike)
TOTAL = "total"
LEAST_VARIANCE = 1e-6  # of the mean variance, for items and totals that never vary


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Which items each total adds up: `matrix` (totals, items), sparse, of zeros and ones.

    >>> from mqcast import Hierarchy
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> hierarchy = Hierarchy.of(world.static, by=["price_band"])
    >>> hierarchy.totals
    ('total', 'price_band=high', 'price_band=middle', 'price_band=low')
    """

    items: tuple[str, ...]
    totals: tuple[str, ...]
    matrix: Any

    @classmethod
    def of(cls, static: Any, by: Sequence[str | Sequence[str]], id: str = "unique_id") -> "Hierarchy":
        """Totals by columns of a frame of one row an item, and of all items.

        Each entry of `by` is one level: a column, or several together, ("store", "category"). The total of store S1 is
        named store=S1, that of its category A store=S1/category=A, and that of all items total.
        """
        from scipy.sparse import csr_matrix

        table = static if isinstance(static, pl.DataFrame) else pl.DataFrame(static)
        levels = [(one,) if isinstance(one, str) else tuple(one) for one in by]
        for name in (id, *(name for level in levels for name in level)):
            if name not in table.columns:
                near, listed = nearest(name, table.columns), ", ".join(table.columns)
                raise MissingColumnError(f"the items have no column {name!r}{near}; there are {listed}")
        items = tuple(table[id].cast(pl.String).to_list())
        if len(set(items)) < len(items):
            twice = table.filter(pl.col(id).is_duplicated())[id][0]
            raise DuplicateRowsError("an item has two rows", "give one row an item", series=str(twice), column=id)
        totals, rows = [TOTAL], [np.zeros(len(items), int)]
        for level in levels:
            texts = [pl.format("{}={}", pl.lit(name), pl.col(name)) for name in level]
            names = table.select(pl.concat_str(texts, separator="/").alias("name"))["name"]
            if names.null_count():
                lost = items[int(np.argmax(names.is_null().to_numpy()))]
                raise DataError("belongs to no group", "fill the column", series=lost, column=" and ".join(level))
            groups = names.unique(maintain_order=True)
            place = {name: len(totals) + i for i, name in enumerate(groups)}
            rows.append(np.array([place[name] for name in names]))
            totals += groups.to_list()
        if len(set(totals)) < len(totals):
            raise ConfigError(f"by is {quoted(by)}; name each level once")
        row, column = np.concatenate(rows), np.tile(np.arange(len(items)), len(rows))
        matrix = csr_matrix((np.ones(len(row)), (row, column)), shape=(len(totals), len(items)))
        return cls(items, tuple(totals), matrix)

    def places(self, ids: Iterable[Any]) -> np.ndarray:
        known = {name: i for i, name in enumerate(self.items)}
        names = [str(one) for one in ids]
        for name in names:
            if name not in known:
                raise DataError("is in no group of the hierarchy", "add it to the items, or leave it out", series=name)
        return np.array([known[name] for name in names], int)


def totals(
    paths: SomePaths | Iterable[SomePaths], hierarchy: Hierarchy, quantiles: Sequence[float] | None = None
) -> Any:
    """Paths of all totals: in every path, each is the sum of its items. With `quantiles`, a forecast frame of them.

    Paths may come in parts, each of some items, all with the same cutoff, dates and number of paths; only one part is
    in memory at a time. Totals depend on each other, and spread, as the paths of items do.

    >>> from mqcast import Hierarchy, totals
    >>> from mqcast.joint import Dependence, paths_of
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.1, 0.5, 0.9), first=59, last=59)
    >>> paths = paths_of(forecasts, Dependence.constant(4, 0.5), num=50)  # or forecaster.predict(paths=50)
    >>> hierarchy = Hierarchy.of(world.static, by=["price_band"])
    >>> totals(paths, hierarchy, quantiles=(0.5, 0.9)).columns
    ['unique_id', 'cutoff', 'ds', 'horizon', 'q0.5', 'q0.9']
    """
    levels = None if quantiles is None else levels_of("quantiles", quantiles)
    parts: Iterable[SomePaths] = [paths] if hasattr(paths, "values") else paths  # type: ignore[list-item]
    seen, sums, first = np.zeros(len(hierarchy.items), bool), None, None
    for part in parts:
        place, values = hierarchy.places(part.ids), np.asarray(part.values, float)
        first = part if first is None else first
        _refuse_other_times(part, first)
        again = np.flatnonzero(seen[place] | (np.bincount(place, minlength=len(seen))[place] > 1))
        if again.size:
            raise DuplicateRowsError(
                "its paths were given twice", "give each item once", series=str(part.ids[again[0]])
            )
        seen[place] = True
        added = hierarchy.matrix[:, place] @ values.reshape(len(values), -1)
        sums = added if sums is None else sums + added
    if first is None or sums is None:
        raise ConfigError("there are no paths; give one part or more")
    if not seen.all():
        lost = hierarchy.items[int(np.argmin(seen))]
        raise DataError(f"has no paths (nor have {(~seen).sum() - 1} more items)", "forecast all items", series=lost)
    count, (_, horizon, num_paths) = len(hierarchy.totals), np.shape(first.values)
    cutoffs, dates = ([one[0]] * count for one in (list(first.cutoffs), list(first.dates)))
    added = sums.reshape(count, horizon, num_paths)
    if levels is None:
        times = {"cutoffs": np.asarray(cutoffs), "dates": np.asarray(dates)}
        return replace(first, ids=list(hierarchy.totals), **times, values=added)  # type: ignore[type-var]
    values = np.quantile(added, levels, axis=2)
    keys = {
        "unique_id": np.repeat(np.array(hierarchy.totals, object), horizon).tolist(),
        "cutoff": pl.Series(np.repeat(np.asarray(cutoffs), horizon)),
        "ds": pl.Series(np.asarray(dates).reshape(-1)),
        "horizon": np.tile(np.arange(1, horizon + 1, dtype=np.int32), count),
    }
    return pl.DataFrame(keys | {quantile_column(q): values[i].reshape(-1) for i, q in enumerate(levels)})


def _refuse_other_times(part: PathsLike, first: PathsLike) -> None:
    """All series of all parts have one cutoff, one set of dates and as many paths."""
    if np.shape(part.values)[1:] != np.shape(first.values)[1:]:
        ours, theirs = np.shape(part.values)[1:], np.shape(first.values)[1:]
        raise DataError(
            f"has {ours} steps and paths, others have {theirs}", "forecast all alike", series=str(part.ids[0])
        )
    cutoffs, dates = np.asarray(part.cutoffs), np.asarray(part.dates)
    other = (cutoffs != np.asarray(first.cutoffs)[0]) | (dates != np.asarray(first.dates)[0]).any(axis=1)
    if other.any():
        odd = str(part.ids[int(other.argmax())])
        raise DataError(
            "has another cutoff or other dates than the first series", "add up one cutoff at a time", series=odd
        )


def reconcile(paths: SomePaths, forecasts: Any, hierarchy: Hierarchy, weights: Weights = "variance") -> SomePaths:
    """The items' paths, moved so that their means agree with independent forecasts of totals as well as can be.

    forecasts   (totals, horizon): the mean of each total of `hierarchy.totals`, or paths of them
    weights     how little each mean is trusted: "variance" is that over its paths, "structure" the number of items,
                "equal" the same for all

    Each item's paths are multiplied by the reconciled mean over their own (a mean below 0 is taken as 0), so that
    demand stays above 0, and totals of the result add up in every path.

    >>> from mqcast import Hierarchy, reconcile, totals
    >>> from mqcast.joint import Dependence, paths_of
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.1, 0.5, 0.9), first=59, last=59)
    >>> paths = paths_of(forecasts, Dependence.constant(4, 0.5), num=50)  # or forecaster.predict(paths=50)
    >>> hierarchy = Hierarchy.of(world.static, by=["price_band"])
    >>> higher = totals(paths, hierarchy).values * 1.1  # say, forecasts of the totals that are made apart
    >>> moved = reconcile(paths, higher.mean(axis=2), hierarchy, weights="structure")
    >>> bool(moved.values.sum() > paths.values.sum())
    True
    """
    one_of("weights", weights, Weights)
    order = hierarchy.places(paths.ids)
    if len(order) != len(hierarchy.items) or len(np.unique(order)) < len(order):
        raise DataError(
            f"there are paths of {len(order)} items, and {len(hierarchy.items)} in the hierarchy", "give all"
        )
    has_paths = hasattr(forecasts, "cutoffs")
    given = np.asarray(forecasts.values if has_paths else forecasts, float)
    matrix, values = hierarchy.matrix[:, order], np.asarray(paths.values, float)
    if given.shape[:2] != (len(hierarchy.totals), values.shape[1]):
        shape = (len(hierarchy.totals), values.shape[1])
        raise DataError(f"the forecasts of totals are {given.shape}", f"give {shape}, totals by horizon")
    if not np.isfinite(given).all():
        lost = hierarchy.totals[int(np.argmin(np.isfinite(given).reshape(len(given), -1).all(axis=1)))]
        raise DataError("its forecast is not finite", "fill it", series=lost)
    means, of_totals = values.mean(axis=2), given.mean(axis=2) if has_paths else given
    spread = _spread(values, given if has_paths else None, matrix, weights)
    wanted = np.maximum(mint(means, of_totals, matrix, *spread), 0)
    moved = np.where(means[..., None] > 0, values, 1.0) * (wanted / np.where(means > 0, means, 1))[..., None]
    return replace(paths, values=moved)  # type: ignore[type-var]


def _spread(
    values: np.ndarray, totals: np.ndarray | None, matrix: Any, weights: Weights
) -> tuple[np.ndarray, np.ndarray]:
    if weights == "equal":
        return np.ones(matrix.shape[1]), np.ones(matrix.shape[0])
    if weights == "structure":
        return np.ones(matrix.shape[1]), np.asarray(matrix.sum(axis=1)).ravel()
    if totals is None:
        raise ConfigError("means of totals have no variance; give paths of them, or weights='structure'")
    own, of_totals = (one.var(axis=2).mean(axis=1) for one in (values, totals))
    return np.maximum(own, LEAST_VARIANCE * own.mean()), np.maximum(of_totals, LEAST_VARIANCE * of_totals.mean())


def mint(
    items: np.ndarray, totals: np.ndarray, matrix: Any, item_variance: np.ndarray, total_variance: np.ndarray
) -> np.ndarray:
    """(items, columns): minimum-trace values of items, from those of items and of totals, each (…, columns)."""
    from scipy.sparse import csc_matrix, diags_array
    from scipy.sparse.linalg import splu

    spread = matrix.multiply(item_variance).tocsr()  # A V
    system = csc_matrix(spread @ matrix.T + diags_array(total_variance))
    solver = splu(system, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return items + spread.T @ solver.solve(totals - matrix @ items)
