"""Totals that add up in every path, and reconciliation beside dense algebra."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from mqcast import ConfigError, DataError, Hierarchy, SchemaError, reconcile, totals
from mqcast.decide.hierarchies import mint
from tests.decide.drawn import drawn

STATIC = pl.DataFrame(
    {"unique_id": ["a", "b", "c", "d"], "store": ["S1", "S1", "S2", "S2"], "category": ["x", "y", "x", "x"]}
)
BY = ["store", "category", ("store", "category")]


def paths():
    return drawn(np.random.default_rng(0).gamma(2.0, 5.0, (4, 3, 50)), ids=["c", "a", "d", "b"])


def test_every_total_is_the_sum_of_its_items_in_every_path():
    items, hierarchy = paths(), Hierarchy.of(STATIC, BY)
    found = totals(items, hierarchy)
    of_item = dict(zip(items.ids, items.values, strict=True))
    for name, values in zip(found.ids, found.values, strict=True):
        wanted = dict(part.split("=") for part in name.split("/")) if name != "total" else {}
        members = [row for row in STATIC.rows(named=True) if all(row[key] == value for key, value in wanted.items())]
        np.testing.assert_allclose(values, sum(of_item[row["unique_id"]] for row in members), atol=1e-9)
    assert len(found.ids) == 1 + 2 + 2 + 3


def test_parts_give_the_totals_of_the_whole_and_quantiles_are_those_of_the_sums():
    items, hierarchy = paths(), Hierarchy.of(STATIC, BY)
    whole = totals(items, hierarchy)
    parts = (drawn(items.values[i : i + 2], items.ids[i : i + 2]) for i in (0, 2))
    np.testing.assert_allclose(totals(parts, hierarchy).values, whole.values, rtol=1e-12)
    frame = totals(items, hierarchy, (0.5, 0.9))
    assert frame.columns == ["unique_id", "cutoff", "ds", "horizon", "q0.5", "q0.9"]
    np.testing.assert_allclose(frame["q0.9"].to_numpy(), np.quantile(whole.values, 0.9, axis=2).ravel())


def test_mint_is_the_weighted_least_squares_of_the_whole_summing_matrix():
    rng, matrix = np.random.default_rng(1), Hierarchy.of(STATIC, BY).matrix
    items, given = rng.gamma(2.0, 5.0, (4, 6)), rng.gamma(2.0, 20.0, (8, 6))
    own, of_totals = rng.uniform(1, 3, 4), rng.uniform(1, 9, 8)
    summing, weight = np.vstack([matrix.toarray(), np.eye(4)]), np.diag(1 / np.concatenate([of_totals, own]))
    wanted = np.linalg.solve(summing.T @ weight @ summing, summing.T @ weight @ np.vstack([given, items]))
    np.testing.assert_allclose(mint(items, given, matrix, own, of_totals), wanted, rtol=1e-9)


@pytest.mark.parametrize("weights", ["variance", "structure", "equal"])
def test_reconciled_means_are_those_of_minimum_trace_by_its_dense_formula(weights):
    """hierarchicalforecast's MinTrace: b̃ = (J - J W U (Uᵀ W U)⁻¹ Uᵀ) ŷ with wls_var, wls_struct and ols for W."""
    rng, hierarchy = np.random.default_rng(2), Hierarchy.of(STATIC, BY)
    items = drawn(rng.gamma(9.0, 5.0, (4, 3, 60)), list(hierarchy.items))
    given = totals(drawn(items.values * rng.uniform(0.9, 1.2, (4, 1, 1)), items.ids), hierarchy)
    given = replace(given, values=given.values * rng.uniform(0.9, 1.1, (len(given.ids), 1, 1)))
    matrix = hierarchy.matrix.toarray()
    summing, select = np.vstack([matrix, np.eye(4)]), np.hstack([np.zeros((4, 8)), np.eye(4)])
    across, all_paths = np.hstack([np.eye(8), -matrix]).T, np.concatenate([given.values, items.values])
    weight = {"variance": all_paths.var(axis=2).mean(axis=1), "structure": summing.sum(axis=1), "equal": np.ones(12)}
    own = np.diag(weight[weights])
    projection = select - select @ own @ across @ np.linalg.solve(across.T @ own @ across, across.T)
    moved = reconcile(items, given, hierarchy, weights)
    np.testing.assert_allclose(moved.values.mean(axis=2), projection @ all_paths.mean(axis=2), rtol=1e-9)
    np.testing.assert_allclose(totals(moved, hierarchy).values, np.tensordot(matrix, moved.values, 1), rtol=1e-12)


@pytest.mark.parametrize("weights", ["variance", "structure", "equal"])
def test_reconciled_means_come_nearer_to_the_totals_and_agreeing_forecasts_stay(weights):
    items, hierarchy = paths(), Hierarchy.of(STATIC, BY)
    same = totals(items, hierarchy)
    np.testing.assert_allclose(reconcile(items, same, hierarchy, weights).values, items.values, rtol=1e-9)
    higher = totals(drawn(items.values * 1.5, items.ids), hierarchy)
    moved = reconcile(items, higher, hierarchy, weights)
    grand = [one.values.sum(axis=0).mean() for one in (items, moved)] + [higher.values[0].mean()]
    assert grand[0] < grand[1] < grand[2]
    assert (moved.values >= 0).all()


def test_unknown_items_groups_and_shapes_are_refused_in_one_line():
    hierarchy = Hierarchy.of(STATIC, BY)
    with pytest.raises(DataError, match="series 'e': is in no group of the hierarchy"):
        totals(drawn(np.ones((1, 2, 3)), ["e"]), hierarchy)
    with pytest.raises(DataError, match="series 'b': has no paths"):
        totals(drawn(np.ones((3, 2, 3)), ["a", "c", "d"]), hierarchy)
    with pytest.raises(DataError, match="series 'a': its paths were given twice"):
        totals(drawn(np.ones((2, 2, 3)), ["a", "a"]), hierarchy)
    with pytest.raises(SchemaError, match=r"no column 'stores' \(did you mean 'store'\?\)"):
        Hierarchy.of(STATIC, ["stores"])
    with pytest.raises(DataError, match="the forecasts of totals are"):
        reconcile(paths(), np.ones((2, 3)), hierarchy, "equal")
    with pytest.raises(ConfigError, match="means of totals have no variance"):
        reconcile(paths(), np.ones((8, 3)), hierarchy)
