"""Paths have the marginals of the forecasts and the dependence of the past; files hold what memory holds."""

import numpy as np
import polars as pl
import pytest

from mqcast import ConfigError, Hierarchy, Policy, orders, totals
from mqcast.joint import Dependence, paths_of
from mqcast.joint import paths as module
from mqcast.joint.marginals import Marginals
from mqcast.joint.paths import Grouping, write_in_blocks
from tests.joint.samples import LEVELS, correlation_of, frame_of

DEPENDENCE = Dependence(correlation_of(0.8, 5), True, 0, 0, {"store": 0.5})


def forecasts(series: int = 6, cutoffs: int = 2, seed: int = 0) -> pl.DataFrame:
    return frame_of(np.sort(np.random.default_rng(seed).gamma(1, 10, (series, cutoffs, 5, 5)), axis=-1))


def test_at_every_step_the_paths_are_the_distribution_of_the_forecast():
    frame = forecasts()
    paths = paths_of(frame, DEPENDENCE, 100)
    sorted_paths = np.sort(paths.values, axis=2).reshape(-1, 100)
    exact = Marginals.of(LEVELS, frame.select("^q.*$").to_numpy()).at((np.arange(100) + 0.5) / 100)
    np.testing.assert_allclose(sorted_paths, exact, rtol=1e-6)
    for level in LEVELS:
        found = np.quantile(sorted_paths, level, axis=1, method="hazen")
        np.testing.assert_allclose(found, frame[f"q{level:g}"], rtol=0.05, atol=0.5)


def test_paths_go_together_as_the_dependence_says():
    paths = paths_of(frame_of(np.broadcast_to(np.array(LEVELS) * 100, (1, 1, 5, 5))), DEPENDENCE, 5000).values[0]
    exact = 6 / np.pi * np.arcsin(DEPENDENCE.correlation / 2)
    np.testing.assert_allclose(np.corrcoef(paths.argsort(axis=1).argsort(axis=1)), exact, atol=0.04)


def test_paths_of_demand_are_never_negative_and_stay_zero_where_nothing_is_forecast():
    quantiles = np.sort(np.random.default_rng(0).poisson(0.5, (20, 1, 5, 5)), axis=-1).astype(float)
    quantiles[3] = 0
    values = paths_of(frame_of(quantiles), DEPENDENCE, 200).values
    assert values.min() == 0
    assert (values[3] == 0).all()


def test_what_may_be_negative_has_negative_paths():
    frame = forecasts().with_columns(pl.col("^q.*$") - 20)
    may_be = Dependence(DEPENDENCE.correlation, False, 0, 0)
    assert paths_of(frame, may_be, 50).values.min() < -20


def test_a_path_depends_on_the_seed_and_its_own_series_alone(monkeypatch):
    whole = paths_of(forecasts(), DEPENDENCE, 40)
    alone = paths_of(forecasts().filter(pl.col("unique_id") == "s003"), DEPENDENCE, 40)
    assert alone.values.tobytes() == whole.values[6:8].tobytes()
    monkeypatch.setattr(module, "VALUES_AT_A_TIME", 1)
    assert paths_of(forecasts(), DEPENDENCE, 40).values.tobytes() == whole.values.tobytes()
    assert paths_of(forecasts(), DEPENDENCE, 40, seed=1).values.tobytes() != whole.values.tobytes()


def test_the_order_of_rows_does_not_matter():
    one, other = (
        paths_of(frame, DEPENDENCE, 10) for frame in (forecasts(), forecasts().sample(fraction=1, shuffle=True))
    )
    assert one.values.tobytes() == other.values.tobytes()


def test_a_long_frame_has_a_row_a_path_and_leaves_out_what_is_not_forecast():
    frame = forecasts(2, 1).filter(~((pl.col("unique_id") == "s001") & (pl.col("horizon") == 2)))
    paths = paths_of(frame.to_pandas(), DEPENDENCE, 7)
    long = pl.from_pandas(paths.to_frame())
    assert long.columns == ["unique_id", "cutoff", "ds", "horizon", "path", "value"]
    assert long.height == 9 * 7
    assert long.filter(pl.col("unique_id") == "s001")["horizon"].unique().sort().to_list() == [1, 3, 4, 5]
    one = long.filter((pl.col("unique_id") == "s000") & (pl.col("path") == 3)).sort("horizon")
    assert one["value"].to_list() == paths.values[0, :, 2].tolist()
    assert one["ds"].to_list() == frame.filter(pl.col("unique_id") == "s000")["ds"].to_list()


def test_forecasts_that_reach_further_than_the_dependence_are_refused():
    with pytest.raises(ConfigError, match="reach 5 steps ahead, and the dependence was learnt for 3"):
        paths_of(forecasts(), Dependence.constant(3, 0.5), 10)


@pytest.mark.parametrize("from_file", [True, False])
def test_what_is_written_in_blocks_is_what_is_made_in_memory(tmp_path, from_file):
    frame, grouping = forecasts(9, 3), Grouping(0.5, {f"s{i:03}": str(i % 2) for i in range(9)})
    whole = paths_of(frame, DEPENDENCE, 20, grouping=grouping).to_polars()
    if from_file:
        frame.write_parquet(tmp_path / "forecasts.parquet", row_group_size=7)
    for rows in (1, 4, 1000):
        given = tmp_path / "forecasts.parquet" if from_file else frame
        made = lambda block: paths_of(block, DEPENDENCE, 20, grouping=grouping).to_polars()  # noqa: E731
        write_in_blocks(given, "unique_id", tmp_path / "paths.parquet", made, rows)
        assert pl.read_parquet(tmp_path / "paths.parquet").equals(whole)


def test_orders_and_totals_take_paths():
    paths = paths_of(forecasts(4, 1), DEPENDENCE, 50)
    stock = pl.DataFrame({"unique_id": paths.ids, "on_hand": [0.0] * 4})
    found = orders(paths, stock, Policy(lead_time=3, service_level=0.9))
    exact = np.quantile(paths.values[:, :4].astype(float).sum(axis=1), 0.9, axis=1, method="inverted_cdf")
    np.testing.assert_allclose(found["base_stock"], exact)
    static = pl.DataFrame({"unique_id": paths.ids, "store": ["a", "a", "b", "b"]})
    summed = totals(paths, Hierarchy.of(static, ["store"]))
    np.testing.assert_allclose(summed.values[0], paths.values.sum(axis=0), rtol=1e-5)
