"""Both worlds: the oracle is calibrated, its revisions are a martingale, and it never sees the future.

A trajectory follows the forecasts of one week from lead H to its sale: p_j = F_j(τ), where τ is the quantile announced
at lead H, and p_H = 1{Y <= τ}. V_j = Σ_m<=j (p_m - p_m-1)² - (p_j - p_0)² has mean 0 for a martingale, is positive
where revisions revert (over-reaction) and negative where they continue (under-reaction).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import polars as pl
import pytest
from scipy.special import ndtr, ndtri

from mqcast.errors import ConfigError
from mqcast.simulate import World, count_world, lognormal_world
from mqcast.simulate.counts import CountOracle
from mqcast.simulate.lognormal import LognormalOracle
from mqcast.simulate.world import Oracle

LEVELS = (0.5, 0.9)
MAKERS: dict[str, Callable[..., World]] = {"lognormal": lognormal_world, "counts": count_world}
both_worlds = pytest.mark.parametrize("name", MAKERS)
with_and_without_item_lifts = pytest.mark.parametrize("item_lifts", [True, False])
each_level = pytest.mark.parametrize("level", LEVELS)


@dataclass(frozen=True)
class Study:
    """A world, an oracle, and the forecasts made in weeks first..last."""

    world: World
    oracle: Oracle
    first: int
    last: int

    @cached_property
    def quantiles(self) -> np.ndarray:
        return self.oracle.quantiles(LEVELS, self.first, self.last)

    @cached_property
    def targets(self) -> np.ndarray:
        """The weeks forecast at every lead."""
        return np.arange(self.first + self.world.horizon, self.last + 2)

    def announced(self, level: float) -> np.ndarray:
        """(items, targets): τ."""
        horizon = self.world.horizon
        return self.quantiles[:, horizon - 1, self.targets - horizon - self.first, LEVELS.index(level)]

    @cache  # noqa: B019
    def trajectories(self, level: float) -> np.ndarray:
        """(items, targets, steps 0..H): p."""
        horizon, tau = self.world.horizon, self.announced(level)
        values = np.zeros(self.quantiles.shape[:3])
        for lead in range(1, horizon + 1):
            values[:, lead - 1, self.targets - lead - self.first] = tau
        chances = self.oracle.cdf(values, self.first, self.last)
        steps = [chances[:, lead - 1, self.targets - lead - self.first] for lead in range(horizon, 0, -1)]
        return np.stack([*steps, self.world.demand[:, self.targets] <= tau], axis=2)


@cache
def study(name: str, item_lifts: bool = True) -> Study:
    if name == "lognormal":
        world = lognormal_world(2000, 110, 12, item_lifts=item_lifts)
        return Study(world, world.oracle, 60, 109)
    world = count_world(900, 56, 8, num_categories=2, item_lifts=item_lifts)
    return Study(world, world.oracle, 32, 55)


def volatility(p: np.ndarray) -> np.ndarray:
    """V at every step, the last axis."""
    revisions = np.diff(p, axis=2, prepend=p[..., :1])
    return np.cumsum(revisions**2, axis=2) - (p - p[..., :1]) ** 2


def clustered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over items, whose own forecasts overlap and are no independent draws."""
    items = values.reshape(len(values), -1, values.shape[-1]).mean(axis=1)
    return items.mean(axis=0), items.std(axis=0, ddof=1) / np.sqrt(len(items))


def is_flat(p: np.ndarray) -> bool:
    mean, error = clustered(volatility(p))
    return bool(np.all(np.abs(mean) <= 3 * error + 1e-12))


def terminal_score(p: np.ndarray) -> float:
    """V_H in standard errors."""
    mean, error = clustered(volatility(p))
    return float(mean[-1] / error[-1])


@both_worlds
@with_and_without_item_lifts
def test_demand_falls_below_each_oracle_quantile_as_often_as_the_oracle_says(name: str, item_lifts: bool):
    case = study(name, item_lifts)
    weeks = np.arange(case.first, case.last + 1) + np.arange(1, case.world.horizon + 1)[:, None]
    demand = case.world.demand[:, weeks]
    for i, level in enumerate(LEVELS):
        quantile = case.quantiles[..., i]
        chance = case.oracle.cdf(quantile, case.first, case.last)
        mean, error = clustered(((demand <= quantile) - chance)[..., None])
        assert abs(mean[0]) <= 3 * error[0]
        assert error[0] < 0.01
        excess = chance - level if name == "lognormal" else np.minimum(chance - level, 0)
        np.testing.assert_allclose(excess, 0, atol=1e-9)


@both_worlds
@with_and_without_item_lifts
@each_level
def test_the_volatility_of_the_oracle_is_zero_at_every_step(name: str, item_lifts: bool, level: float):
    p = study(name, item_lifts).trajectories(level)
    assert np.all(volatility(p)[..., :2] == pytest.approx(0, abs=1e-12))
    assert clustered(volatility(p))[1][-1] < 0.005
    assert is_flat(p)


@each_level
def test_a_lognormal_forecaster_that_adds_a_quarter_of_the_last_surprise_over_reacts(level: float):
    case = study("lognormal")
    assert isinstance(case.oracle, LognormalOracle)
    mean, sd = case.oracle.log_moments(case.first - 1, case.last)
    surprise = np.log(case.world.demand[:, case.first : case.last + 1]) - mean[:, 0, :-1]
    jumpy = trajectories_of_normals(case, mean[:, :, 1:] + surprise[:, None] / 4, sd[:, :, 1:], level)
    assert terminal_score(jumpy) > 10


@each_level
def test_a_lognormal_forecaster_that_stays_half_with_its_first_forecast_under_reacts(level: float):
    case = study("lognormal")
    assert isinstance(case.oracle, LognormalOracle)
    mean, sd = case.oracle.log_moments(case.first, case.last)
    slow = mean.copy()
    for lead in range(1, case.world.horizon):
        first_mean = mean[:, -1, case.targets - case.world.horizon - case.first]
        slow[:, lead - 1, case.targets - lead - case.first] += first_mean
        slow[:, lead - 1, case.targets - lead - case.first] /= 2
    assert terminal_score(trajectories_of_normals(case, slow, sd, level)) < -10


def trajectories_of_normals(case: Study, mean: np.ndarray, sd: np.ndarray, level: float) -> np.ndarray:
    leads = [(lead - 1, case.targets - lead - case.first) for lead in range(case.world.horizon, 0, -1)]
    log_tau = mean[:, leads[0][0], leads[0][1]] + ndtri(level) * sd[:, leads[0][0], leads[0][1]]
    steps = [ndtr((log_tau - mean[:, h, times]) / sd[:, h, times]) for h, times in leads]
    return np.stack([*steps, np.log(case.world.demand[:, case.targets]) <= log_tau], axis=2)


@each_level
def test_count_forecasters_that_exaggerate_or_halve_revisions_are_told_apart(level: float):
    p = study("counts").trajectories(level)
    jumpy, slow = p.copy(), p.copy()
    jumpy[..., 1:-1] = np.clip(p[..., 1:-1] + np.diff(p, axis=2)[..., :-1], 0, 1)
    slow[..., 1:-1] = (p[..., 1:-1] + p[..., :1]) / 2
    assert terminal_score(jumpy) > 10
    assert terminal_score(slow) < -5


@both_worlds
@each_level
def test_an_oracle_fed_with_next_weeks_demand_is_found_out(name: str, level: float):
    p = leaking_study(name).trajectories(level)
    assert not is_flat(p)
    assert terminal_score(p) < -5


@cache
def leaking_study(name: str) -> Study:
    case = study(name)
    early = np.roll(case.world.demand, -1, axis=1)
    return replace(case, oracle=with_demand(case.oracle, early))


def with_demand(oracle: Oracle, demand: np.ndarray) -> Oracle:
    assert isinstance(oracle, LognormalOracle | CountOracle)
    return replace(oracle, demand=demand)


@both_worlds
@with_and_without_item_lifts
def test_later_demand_never_changes_earlier_oracle_forecasts(name: str, item_lifts: bool):
    world = MAKERS[name](30, 40, 5, seed=4, num_categories=2, item_lifts=item_lifts)
    changed = world.demand.copy()
    changed[:, 26:] = 3 * changed[:, 26:] + 2
    other = with_demand(world.oracle, changed)
    chances = [oracle.cdf(np.array(7.0), 10, 39) for oracle in (world.oracle, other)]
    quantiles = [oracle.quantiles(LEVELS, 10, 39)[..., 1] for oracle in (world.oracle, other)]
    for was, now in (chances, quantiles):
        np.testing.assert_array_equal(now[:, :, :16], was[:, :, :16])
        assert np.all(np.any(now[:, :, 16:] != was[:, :, 16:], axis=(1, 2)))


@both_worlds
def test_the_same_seed_gives_the_same_world_and_another_seed_another(name: str):
    one, again, other = (MAKERS[name](12, 30, 4, seed=seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one.demand, again.demand)
    assert one.frame.equals(again.frame)
    assert one.static.equals(again.static)
    assert one.events.equals(again.events)
    assert np.mean(one.demand != other.demand) > 0.5


@both_worlds
@with_and_without_item_lifts
def test_more_items_leave_the_earlier_ones_as_they_were(name: str, item_lifts: bool):
    few, many = (MAKERS[name](num_items, 30, 4, item_lifts=item_lifts) for num_items in (7, 50))
    np.testing.assert_array_equal(few.demand, many.demand[:7])
    np.testing.assert_array_equal(few.promotions, many.promotions[:7])
    assert few.frame.equals(many.frame.head(7 * 34))
    assert few.static.equals(many.static.head(7))
    assert few.events.equals(many.events)
    assert len(np.unique(many.demand[:, 0])) > 10


@both_worlds
def test_the_frame_hides_the_last_weeks_of_demand_but_shows_their_promotions(name: str):
    world = MAKERS[name](6, 30, 4, promo_rates=(0.5, 0.3))
    assert world.frame.columns == ["unique_id", "ds", "y", "promo_display", "promo_coupon"]
    assert world.frame.dtypes == [pl.String, pl.Datetime("us"), pl.Float64, pl.Boolean, pl.Boolean]
    assert world.frame["ds"].dt.weekday().unique().to_list() == [7]
    item = world.frame.filter(pl.col("unique_id") == "item_000003").sort("ds")
    np.testing.assert_array_equal(item["y"][:30].to_numpy(), world.demand[3, :30])
    assert item["y"].is_null().to_list() == [False] * 30 + [True] * 4
    np.testing.assert_array_equal(item.select("promo_display", "promo_coupon").to_numpy(), world.promotions[3])
    assert world.promotions[:, 30:].any()
    assert world.promotions.mean(axis=(0, 1)) == pytest.approx((0.5, 0.3), abs=0.15)


@both_worlds
def test_statics_and_events_cover_every_item_and_week(name: str):
    world = MAKERS[name](50, 120, 4)
    assert world.static["unique_id"].to_list() == world.frame["unique_id"].unique(maintain_order=True).to_list()
    assert world.static.dtypes == [pl.String] * 4
    assert world.static["category"].n_unique() == 8
    assert world.events["ds"][:124].to_list() == world.frame["ds"][:124].to_list()
    assert world.events.height == 120 + 3 * 4 + 1
    np.testing.assert_array_equal(world.events.drop("ds").to_numpy(), world.holidays)
    assert isinstance(world.oracle, Oracle)


@both_worlds
def test_the_schema_names_every_column_of_the_tables(name: str):
    world = MAKERS[name](2, 10, 2)
    schema = world.schema
    assert {schema.id, schema.time, schema.target, *schema.known} == set(world.frame.columns)
    assert {schema.id, *schema.static} == set(world.static.columns)
    assert {schema.time, *schema.events} == set(world.events.columns)


@pytest.mark.parametrize("seed", range(5))
def test_every_holiday_is_once_a_year_and_moves_between_years(seed: int):
    world = lognormal_world(1, 6 * 52, 1, seed=seed)
    full_years = world.events.filter(pl.col("ds").dt.year() < 2025)
    for holiday in world.schema.events:
        days = full_years.filter(holiday)["ds"]
        assert days.dt.year().to_list() == list(range(2019, 2019 + len(days)))
        assert len(days) >= 5
        assert 7 <= np.ptp(days.dt.ordinal_day().to_numpy()) <= 21
        assert days.dt.week().n_unique() >= 2


def test_more_weeks_leave_the_calendar_as_it_was():
    short, long = (lognormal_world(1, num_weeks, 3).holidays for num_weeks in (60, 300))
    np.testing.assert_array_equal(short, long[: len(short)])


@both_worlds
@pytest.mark.parametrize(
    "setting", [{"num_items": 0}, {"num_weeks": 1}, {"horizon": 0}, {"num_categories": 0}, {"promo_rates": (0.1, 1.5)}]
)
def test_impossible_sizes_are_refused_with_a_remedy(name: str, setting: dict):
    with pytest.raises(ConfigError, match=rf"{next(iter(setting))} is .*; give"):
        MAKERS[name](**setting)


@pytest.mark.parametrize("setting", ["sigma_eta", "sigma_eps", "sigma_0", "omega_beta", "omega_gamma"])
def test_negative_standard_deviations_are_refused(setting: str):
    with pytest.raises(ConfigError, match=setting):
        MAKERS["lognormal"](2, 10, 2, **{setting: -0.1})


@both_worlds
def test_forecasts_that_do_not_exist_are_refused(name: str):
    oracle = MAKERS[name](2, 10, 2).oracle
    for first, last in ((-1, 3), (4, 3), (0, 10)):
        with pytest.raises(ConfigError, match="creation times"):
            oracle.quantiles((0.5,), first, last)
        with pytest.raises(ConfigError, match="creation times"):
            oracle.cdf(np.array(1.0), first, last)
    with pytest.raises(ConfigError, match=r"level 1\.0"):
        oracle.quantiles((0.5, 1.0), 0, 3)
