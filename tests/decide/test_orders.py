"""Orders: textbook answers, what a loop over draws gives, and refusals of one line."""

import numpy as np
import polars as pl
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from mqcast import ConfigError, DataError, Policy, orders
from mqcast.cli import app
from mqcast.simulate import lognormal_world
from tests.decide.drawn import drawn

STOCK = pl.DataFrame({"unique_id": ["item_000000"], "on_hand": [0.0]})


def normal_draws(mean: float, sd: float, num: int = 20_001) -> np.ndarray:
    return norm.ppf((np.arange(num) + 0.5) / num, mean, sd)


def test_base_stock_for_normal_demand_is_the_mean_plus_z_standard_deviations():
    total = normal_draws(400, 30)
    paths = drawn(np.stack([total / 4] * 4)[None])
    found = orders(paths, STOCK, Policy(lead_time=3, service_level=0.95))
    assert found["base_stock"][0] == pytest.approx(400 + norm.ppf(0.95) * 30, abs=0.02)


def test_expected_shortage_and_fill_rate_for_normal_demand_are_the_loss_function():
    found = orders(drawn(normal_draws(100, 20)[None, None]), STOCK, Policy(service_level=0.9))
    z = norm.ppf(0.9)
    loss = 20 * (norm.pdf(z) - z * 0.1)
    assert found["expected_shortage"][0] == pytest.approx(loss, rel=1e-3)
    assert found["expected_fill_rate"][0] == pytest.approx(1 - loss / 100, rel=1e-4)


@pytest.mark.parametrize(("holding", "shortage"), [(1.0, 1.0), (1.0, 9.0), (0.5, 2.0)])
def test_the_newsvendor_orders_the_critical_fractile_and_no_quantity_is_cheaper(holding, shortage):
    draws = np.random.default_rng(0).gamma(2.0, 10.0, 999)
    policy = Policy(holding_cost=holding, shortage_cost=shortage)
    found = orders(drawn(draws[None, None]), STOCK, policy)
    assert found["order"][0] == np.quantile(draws, shortage / (holding + shortage), method="inverted_cdf")
    costs = [np.mean(holding * np.maximum(q - draws, 0) + shortage * np.maximum(draws - q, 0)) for q in draws]
    assert found["expected_cost"][0] == pytest.approx(min(costs), rel=1e-12)


@pytest.mark.parametrize(("lead_time", "review_period"), [(1, 1), (5, 1), (3, 2)])
def test_no_level_has_a_smaller_expected_cost_whatever_the_lead_time(lead_time, review_period):
    values = np.random.default_rng(lead_time).gamma(2.0, 10.0, (3, lead_time + review_period, 400))
    before, total = values[:, :lead_time].sum(axis=1), values.sum(axis=1)
    stock = pl.DataFrame({"unique_id": drawn(values).ids, "on_hand": 0.0})
    found = orders(drawn(values), stock, Policy(lead_time, review_period, holding_cost=1, shortage_cost=9))

    def cost(item: int, level: float) -> float:
        left = np.maximum(level - total[item], 0).mean()
        short = np.maximum(total[item] - level, 0).mean() - np.maximum(before[item] - level, 0).mean()
        return review_period * left + 9 * short

    for item, row in enumerate(found.rows(named=True)):
        assert row["expected_cost"] == pytest.approx(cost(item, row["base_stock"]), rel=1e-9)
        assert row["expected_cost"] <= min(cost(item, level) for level in np.linspace(0, 400, 1000)) + 1e-9
        assert row["base_stock"] < np.quantile(total[item], 9 / (9 + review_period))


def test_totals_over_the_lead_time_tell_what_no_order_can_serve():
    values = np.random.default_rng(3).gamma(2.0, 10.0, (1, 6, 4000))
    levels = (0.05, 0.25, 0.5, 0.75, 0.9, 0.99)
    rows = []
    for span in (5, 6):
        quantiles = np.quantile(values[0, :span].sum(axis=0), levels)
        named = {f"q{level}": value for level, value in zip(levels, quantiles, strict=True)}
        rows.append({"unique_id": "item_000000", "cutoff": "2024-01-07", "span": span} | named)
    spans, policy = pl.DataFrame(rows), Policy(5, holding_cost=1, shortage_cost=9)
    level = {name: orders(one, STOCK, policy)["base_stock"][0] for name, one in (("both", spans), ("one", spans[1:]))}
    assert level["both"] == pytest.approx(orders(drawn(values), STOCK, policy)["base_stock"][0], rel=0.02)
    assert level["one"] == spans["q0.9"][1]


def test_a_level_among_the_quantiles_of_the_total_is_ordered_exactly():
    spans = pl.DataFrame({"unique_id": ["item_000000"], "cutoff": ["2024-01-07"], "span": [3], "q0.5": [30.0]})
    spans = pl.concat(
        [
            spans.with_columns(pl.lit(47.0).alias("q0.9")),
            spans.with_columns(pl.lit(1, pl.Int64).alias("span"), pl.lit(20.0).alias("q0.9")),
        ]
    )
    assert orders(spans, STOCK, Policy(2, service_level=0.9))["order"][0] == pytest.approx(47.0, abs=1e-9)


def test_a_fill_rate_is_reached_and_not_by_more_than_is_needed():
    values = np.random.default_rng(1).gamma(2.0, 10.0, (1, 3, 500))
    level = orders(drawn(values), STOCK, Policy(2, service_level=0.95, service="fill"))["base_stock"][0]

    def fill(position: float) -> float:
        before, total = values[0, :2].sum(axis=0), values[0].sum(axis=0)
        short = np.maximum(total - position, 0).mean() - np.maximum(before - position, 0).mean()
        return 1 - short / values[0, 2].mean()

    assert fill(level) >= 0.95 - 1e-9
    assert fill(level * 0.999) < 0.95


def test_stock_on_hand_and_on_order_is_subtracted_and_packs_are_rounded_up():
    paths = drawn(np.full((4, 1, 10), 40.0))
    stock = pl.DataFrame(
        {"unique_id": paths.ids, "on_hand": [5.0, 30, 38, 50], "on_order": [5.0, 0, 0, 0], "pack_size": [12, 12, 1, 1]}
    )
    policy = Policy(service_level=0.5, min_order=6, unit_cost=2)
    found = orders(paths, stock, policy)
    assert found["order"].to_list() == [36, 12, 6, 0]
    assert not np.signbit(found["order"].to_numpy()).any()
    assert found["order_value"].to_list() == [72, 24, 12, 0]


def test_steps_fully_correlated_add_up_their_quantiles_and_independent_ones_need_less():
    world = lognormal_world(5, 60, 4)
    frame = world.oracle_forecasts((0.1, 0.5, 0.9), 50, 50)
    stock = pl.DataFrame({"unique_id": world.static["unique_id"], "on_hand": 0.0})
    policy = Policy(3, service_level=0.9)
    level = {rho: orders(frame, stock, policy, correlation=rho)["base_stock"].to_numpy() for rho in (0.0, 0.5, 1.0)}
    summed = frame.group_by("unique_id", maintain_order=True).agg(pl.col("q0.9").sum())["q0.9"].to_numpy()
    assert level[1.0] == pytest.approx(summed, rel=0.02)  # the nearest of 400 draws
    assert (level[0.0] < level[0.5]).all()
    assert (level[0.5] < level[1.0]).all()


@pytest.mark.parametrize(
    ("stock", "options", "said"),
    [
        ({"on_hand": [-1.0]}, {}, "on_hand is -1; give a number, 0 or more"),
        ({"on_hand": [1.0], "pack_size": [0.0]}, {}, "pack_size is 0; give a number above 0"),
        ({"unique_id": ["soap"], "on_hand": [1.0]}, {}, "series 'soap': is in stock, but there is no forecast of it"),
        ({"on_hand": [1.0]}, {"lead_time": 9}, "reaches 2 steps ahead, but an order with lead_time 9"),
        ({"on_hand": [None]}, {}, "on_hand is nan"),
    ],
)
def test_what_cannot_be_ordered_is_refused_in_one_line(stock, options, said):
    frame = pl.DataFrame({"unique_id": ["item_000000"]} | stock, strict=False)
    frame = frame.with_columns(pl.col("on_hand").cast(pl.Float64))
    with pytest.raises(DataError, match=said) as refused:
        orders(drawn(np.ones((1, 2, 5))), frame, Policy(**{"service_level": 0.9} | options))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "nothing says how much to order"),
        ({"holding_cost": 1.0}, "one of holding_cost and shortage_cost is missing"),
        ({"service_level": 1.0}, "service_level is 1"),
        ({"service_level": 0.9, "pack_size": 0}, "pack_size is 0; give a number above 0"),
        ({"service_level": 0.9, "lead_time": -1}, "lead_time is -1"),
        ({"service_level": 0.9, "service": "type-2"}, "service is 'type-2'; give 'cycle' or 'fill'"),
    ],
)
def test_an_impossible_policy_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        Policy(**options)


def test_the_command_writes_the_orders_that_the_function_gives(tmp_path):
    world = lognormal_world(3, 60, 4)
    frame = world.oracle_forecasts((0.5, 0.9), 50, 50)
    stock = pl.DataFrame({"unique_id": world.static["unique_id"], "on_hand": [0.0, 1e6, 3.0]})
    frame.write_parquet(tmp_path / "forecasts.parquet")
    stock.write_csv(tmp_path / "stock.csv")
    given = [str(tmp_path / "forecasts.parquet"), "--stock", str(tmp_path / "stock.csv"), "--lead-time", "1"]
    given += ["--service-level", "0.9", "--out", str(tmp_path / "orders.csv"), "--json"]
    done = CliRunner().invoke(app, ["orders", *given])
    assert done.exit_code == 0, done.output
    assert '"items": 3, "ordered": 2' in done.output
    wanted = orders(frame, stock, Policy(1, service_level=0.9))
    assert pl.read_csv(tmp_path / "orders.csv")["order"].to_list() == pytest.approx(wanted["order"].to_list())
