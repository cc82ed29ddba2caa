"""Replays of policies: beside a plain loop, on the simulated retailer, and without looking ahead."""

import numpy as np
import polars as pl
import pytest

from mqcast import DataError, Policy, replay
from mqcast.decide.replays import run
from mqcast.simulate import lognormal_world
from mqcast.simulate.world import _dates
from tests.decide.drawn import drawn

COSTS = {"holding_cost": 1.0, "shortage_cost": 9.0}


def loop(levels: np.ndarray, demand: np.ndarray, policy: Policy) -> tuple[list[float], list[float], list[float]]:
    """One item, day by day: orders, what was short, what was left."""
    on_hand, owed, due, orders, short, left = levels[0], 0.0, {}, [], [], []
    for step, wanted in enumerate(demand):
        if step % policy.review_period == 0:
            missing = levels[step // policy.review_period] - (on_hand - owed + sum(due.values()))
            order = max(missing, policy.min_order) if missing > 1e-9 else 0.0
            if policy.pack_size:
                order = np.ceil(order / policy.pack_size - 1e-9) * policy.pack_size
            orders.append(order)
            due[step + policy.lead_time] = order
        on_hand += due.pop(step, 0.0)
        paid = min(on_hand, owed)
        on_hand, owed = on_hand - paid, owed - paid
        sold = min(on_hand, wanted)
        on_hand -= sold
        short.append(wanted - sold)
        owed += (wanted - sold) if policy.unmet == "backordered" else 0.0
        left.append(on_hand)
    return orders, short, left


@pytest.mark.parametrize("unmet", ["lost", "backordered"])
@pytest.mark.parametrize(("lead", "period", "pack"), [(0, 1, None), (2, 1, 5.0), (3, 4, None), (1, 3, 6.0)])
def test_all_items_at_once_are_as_one_after_another(unmet, lead, period, pack):
    rng = np.random.default_rng(lead)
    policy = Policy(lead, period, **COSTS, pack_size=pack, min_order=3.0, unmet=unmet)
    levels, demand = rng.uniform(20, 60, (7, 6)), rng.poisson(8, (7, 6 * period)).astype(float)
    ledger = run(levels, demand, policy)
    for item in range(7):
        one = loop(levels[item], demand[item], policy)
        for ours, theirs in zip((ledger.orders, ledger.short, ledger.stock), one, strict=True):
            np.testing.assert_allclose(ours[item], theirs, atol=1e-9)


def oracle_paths(world, first: int, last: int, num_paths: int = 300) -> list:
    weeks = _dates(world.num_weeks)
    return [drawn(world.oracle.paths(t, num_paths, seed=t), cutoff=str(weeks[t])) for t in range(first, last + 1)]


def test_the_oracles_paths_have_its_quantiles():
    world = lognormal_world(20, 60, 4)
    quantiles = world.oracle.quantiles((0.25, 0.9), 50, 50)[:, :, 0]
    drawn_below = (world.oracle.paths(50, 4000)[..., None] <= quantiles[:, :, None]).mean(axis=2)
    assert np.abs(drawn_below - np.array([0.25, 0.9])).max() < 5 * np.sqrt(0.25 / 4000)


def test_orders_from_the_oracles_paths_cost_less_than_from_summed_quantiles():
    world = lognormal_world(150, 100, 6)
    levels = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
    models = {"paths": oracle_paths(world, 60, 92), "summed": world.oracle_forecasts(levels, 60, 92)}
    policy = Policy(5, 1, **COSTS, service_level=0.9, unmet="backordered")
    found = replay(models, world.actuals, policy, baseline="summed", correlation=1.0, resamples=200)
    of_cost = found.differences.row(by_predicate=pl.col("measure") == "cost", named=True)
    assert of_cost["difference"] < 0
    assert of_cost["hi"] < 0
    paths, summed = found.summary.rows(named=True)
    assert paths["service_level"] == pytest.approx(0.9, abs=0.02)
    assert summed["service_level"] > 0.93


def test_measures_are_those_of_the_ledger_and_the_seed_decides_the_interval():
    world = lognormal_world(12, 60, 4)
    frame = world.oracle_forecasts((0.5, 0.9), 40, 50)
    models = {"one": frame, "high": frame.with_columns(pl.col("^q.*$") * 1.3)}
    options = {"resamples": 50, "seed": 3}
    found = replay(models, world.actuals, Policy(1, 2, **COSTS), **options)
    assert found.differences.equals(replay(models, world.actuals, Policy(1, 2, **COSTS), **options).differences)
    one, high = found.summary.rows(named=True)
    assert high["mean_stock"] > one["mean_stock"]
    assert high["fill_rate"] >= one["fill_rate"]
    assert one["cost"] == pytest.approx(found.items.filter(forecaster="one")["cost"].mean())


def test_constant_demand_that_is_known_costs_nothing_and_orders_never_change():
    dates = pl.date_range(pl.date(2024, 1, 7), pl.date(2024, 6, 30), "7d", eager=True).cast(pl.Datetime("us"))
    actuals = pl.DataFrame({"unique_id": "item_000000", "ds": dates, "y": 5.0})
    paths = [drawn(np.full((1, 3, 4), 5.0), cutoff=str(date)) for date in dates.to_list()[:-1]]
    row = replay(paths, actuals, Policy(2, **COSTS, unmet="backordered")).summary.row(0, named=True)
    assert (row["cost"], row["fill_rate"], row["service_level"], row["mean_stock"]) == (0, 1, 1, 0)
    assert row["order_change"] == 0


def test_sales_after_a_review_never_change_the_order_of_that_review():
    rng = np.random.default_rng(0)
    levels, demand = rng.uniform(20, 60, (3, 8)), rng.poisson(8, (3, 8)).astype(float)
    policy = Policy(1, **COSTS)
    later = demand.copy()
    later[:, 5:] += 100
    assert np.array_equal(run(levels, demand, policy).orders[:, :6], run(levels, later, policy).orders[:, :6])
    assert not np.array_equal(run(levels, demand, policy).orders, run(levels, later, policy).orders)


def test_items_without_sales_are_named_or_left_out():
    world = lognormal_world(4, 60, 4)
    frame = world.oracle_forecasts((0.5, 0.9), 40, 50)
    actuals = world.actuals.with_columns(y=pl.when(pl.col("unique_id") == "item_000002").then(None).otherwise("y"))
    with pytest.raises(DataError, match=r"series 'item_000002', at .*: sales are missing or negative"):
        replay(frame, actuals, Policy(**COSTS))
    assert replay(frame, actuals, Policy(**COSTS), missing="drop").items.height == 3


def test_a_cutoff_that_is_missing_when_an_order_is_due_is_named():
    world = lognormal_world(2, 60, 4)
    frame = world.oracle_forecasts((0.5, 0.9), 40, 50).filter(pl.col("cutoff") != _dates(60)[45])
    with pytest.raises(DataError, match="'forecast' has no forecast from 2019-11-17, when an order is due"):
        replay(frame, world.actuals, Policy(**COSTS))


def test_too_few_cutoffs_and_too_short_a_horizon_are_refused_in_one_line():
    world = lognormal_world(2, 60, 4)
    frame = world.oracle_forecasts((0.5, 0.9), 40, 41)
    with pytest.raises(DataError, match=r"there are 2 reviews from .* on, and none of their orders arrives in time"):
        replay(frame, world.actuals, Policy(2, **COSTS))
    with pytest.raises(DataError, match="reaches 4 steps ahead, but an order with lead_time 3 and review_period 2"):
        replay(world.oracle_forecasts((0.5, 0.9), 40, 50), world.actuals, Policy(3, 2, **COSTS))
