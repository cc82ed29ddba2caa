"""Zeros that say nothing of demand: not on sale yet, closed, out of the range. And zeros that do."""

import datetime as dt

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mqcast import Panel, Schema
from mqcast.data.batch import FAR_INPUT, Assembler
from mqcast.data.covariates import FAR, NumberScaler
from mqcast.data.on_sale import zeros_told_apart
from mqcast.data.recent import MANY, MANY_SERIES, MOST_LOOPED, UNIT_SHARE, decayed_sum, recent_level
from mqcast.data.scaling import TargetScaler
from mqcast.data.windows import WindowPlan
from mqcast.settings import ScalingConfig, WindowConfig

TOLD_APART = ScalingConfig(by="recent", log1p=True, zeros="told_apart")
FIRST = dt.datetime(2024, 1, 1)
DEMAND = st.one_of(st.none(), st.just(0.0), st.floats(0.125, 1e6, width=32))


def panel_of(**series: list[float | None]) -> Panel:
    rows = [
        {"unique_id": name, "ds": FIRST + dt.timedelta(days=i), "y": value}
        for name, y in series.items()
        for i, value in enumerate(y)
    ]
    return Panel.from_frame(pl.DataFrame(rows, schema_overrides={"y": pl.Float64}), Schema(freq="D"))


def batch_of(panel: Panel, config: ScalingConfig, num_fcts: int):
    window = WindowConfig(horizon=2, history=1, num_fcts=num_fcts)
    plan = WindowPlan(panel, window, shuffle=False)
    return Assembler.fit(panel, window, config)(plan.batch(0, 0))


def mean_of(values: list[tuple[int, float]], t: int, half_life: float) -> float:
    """The mean of (row, value) up to row t, weights halving every `half_life` rows."""
    weights = [(0.5 ** ((t - s) / half_life), value) for s, value in values if s <= t]
    return sum(w * v for w, v in weights) / sum(w for w, _ in weights) if weights else np.nan


def test_short_and_long_series_have_the_same_bits():
    values = np.random.default_rng(0).lognormal(3, 2, MOST_LOOPED + 1)
    assert decayed_sum(values, 0.84)[:-1].tobytes() == decayed_sum(values[:-1], 0.84).tobytes()


@pytest.mark.parametrize("num_series", [2, MANY_SERIES])
@pytest.mark.parametrize("num_rows", [0, 1, 40, MOST_LOOPED + 1])
def test_many_series_at_once_have_the_bits_of_each_alone(num_series, num_rows):
    rng = np.random.default_rng(num_rows)
    y = rng.choice([0.0, np.nan, 3.0, 40.0, 500.0], (num_series, num_rows)) * rng.choice(
        [1, 1.5], (num_series, num_rows)
    )
    together = recent_level(y, TOLD_APART)
    for i, row in enumerate(y):
        for name, values in vars(recent_level(row, TOLD_APART)).items():
            assert vars(together)[name][i].tobytes() == values.tobytes(), name


@settings(deadline=None, max_examples=60)
@given(st.lists(DEMAND, min_size=1, max_size=30))
def test_the_recent_level_is_what_a_plain_loop_finds(values):
    y = np.array([np.nan if value is None else value for value in values])
    sold = [(s, np.log1p(v)) for s, v in enumerate(y) if v > 0]
    closed = {s for s in range(1, len(y)) if y[s] == 0 and np.expm1(mean_of(sold, s - 1, 4)) > MANY}
    counted = [(s, np.log1p(v)) for s, v in enumerate(y) if not np.isnan(v) and s not in closed]
    found = recent_level(y, TOLD_APART)
    for t in range(len(y)):
        level = np.expm1(mean_of(counted, t, 4))
        unit = max(1.0, UNIT_SHARE * level) if level == level else 1.0
        np.testing.assert_allclose(found.unit[t], unit, rtol=1e-9)
        np.testing.assert_allclose(found.loc[t], np.log1p(level / unit), rtol=1e-9, atol=1e-9)
        if t + 1 < len(y) and t + 1 in dict(counted) and level == level:
            surprise = np.log1p(y[t + 1] / unit) - np.log1p(level / unit)
            np.testing.assert_allclose(found.surprise[t + 1], surprise, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.lists(DEMAND, min_size=4, max_size=30).filter(lambda y: any(y)), st.sampled_from([None, 3.0, 24.0]))
def test_the_recent_spread_is_what_a_plain_loop_finds(values, half_life):
    config, panel = TOLD_APART.replace(spread_half_life=half_life), panel_of(a=values, b=[3.0, 9.0, 4.0, 11.0])
    scaler = TargetScaler.fit(panel, config)
    steps = int(panel.last_step[0] - panel.first_step[0]) + 1
    found = scaler.on(panel).at(np.array([0]), panel.first_step[:1], steps).scale[0]
    y = np.array([np.nan if value is None else value for value in values])
    first_sale = int(np.argmax(y > 0))
    y[:first_sale] = np.nan
    surprise = recent_level(y, config).surprise
    for t in range(first_sale, steps):
        weight = [0.5 ** ((t - s) / half_life) if half_life else 1.0 for s in range(t + 1)]
        pairs = [(w, x) for w, x in zip(weight, surprise, strict=False) if not np.isnan(x)]
        squares = sum(w * x**2 for w, x in pairs) + 26 * scaler.typical_spread**2
        np.testing.assert_allclose(found[t], np.sqrt(squares / (sum(w for w, _ in pairs) + 26)), rtol=1e-6)


def test_a_series_that_has_become_calm_is_measured_by_its_calm_weeks():
    wild_then_calm = [1000.0, 10.0] * 20 + [300.0, 310.0] * 40
    panel, config = panel_of(a=wild_then_calm, b=[300.0, 310.0] * 60), TOLD_APART.replace(spread_half_life=10)
    recent, ever = (
        TargetScaler.fit(panel, one).on(panel).at(np.array([0]), panel.first_step[:1], 120).scale[0, -1]
        for one in (config, TOLD_APART)
    )
    assert recent < 0.6 * ever


def test_a_closed_week_moves_neither_level_nor_scale():
    open_always, closed_once = ([5000.0 + i % 7 for i in range(40)] for _ in range(2))
    closed_once[20] = 0.0
    panel = panel_of(a=open_always, b=closed_once)
    found = TargetScaler.fit(panel, TOLD_APART).on(panel).at(np.array([0, 1]), panel.first_step, 40)
    np.testing.assert_allclose(found.loc[0, 25:], found.loc[1, 25:], atol=1e-3)
    np.testing.assert_allclose(found.scale[0, 25:], found.scale[1, 25:], rtol=0.05)


def test_above_the_largest_value_so_far_forecasts_grow_in_a_straight_line():
    batch = batch_of(panel_of(a=[20.0, 30.0, 25.0] * 10), TOLD_APART, 29)
    outputs = torch.linspace(-40, 40, 161).expand(1, 1, 1, -1)  # at the last creation time
    found = batch.unscaled(outputs)[0, 0, 0]
    assert (np.diff(found) > 0).all()
    above = found > 30
    steps = np.diff(found[above])
    np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
    below = np.diff(np.log(found[~above & (found > 0)] + float(batch.unit[0, -1])))
    np.testing.assert_allclose(below, below[0], rtol=1e-5)


@pytest.mark.parametrize("zeros", ["told_apart", "demand", "missing"])
@pytest.mark.parametrize("log1p", [False, True])
@pytest.mark.parametrize("by", ["recent", "series", "global", "past", "past_mean", "none"])
def test_what_the_network_is_to_say_of_a_target_is_that_target_in_units_again(by, log1p, zeros):
    y = [20.0, 0.0, 30.0, 5.0, 90.0, 25.0, 1.0, 300.0, 2.0]
    batch = batch_of(panel_of(a=y), ScalingConfig(by=by, log1p=log1p, zeros=zeros), 8)
    back = batch.unscaled(batch.targets()[..., None])[0, :, :, 0]
    for h in range(batch.horizon):
        for t in range(batch.loc.shape[1]):
            if batch.is_scored()[0, h, t]:
                assert back[h, t] == pytest.approx(float(batch.values[0, t + h + 1]), rel=1e-4, abs=1e-4)


def test_zeros_of_a_slow_mover_are_demand():
    y = np.array([3.0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1])
    told, demand = (recent_level(y, TOLD_APART.replace(zeros=zeros)) for zeros in ("told_apart", "demand"))
    np.testing.assert_array_equal(told.loc, demand.loc)
    np.testing.assert_array_equal(told.surprise, demand.surprise)


def test_zeros_before_the_first_sale_are_neither_seen_nor_learnt():
    panel = panel_of(late=[0.0] * 5 + [100.0, 0.0, 90.0, 110.0], early=[80.0] * 9)
    batch = batch_of(panel, TOLD_APART, 8)
    late = int(np.flatnonzero(batch.series.numpy() == panel.index_of("late"))[0])
    assert batch.observed[late, 1:10].tolist() == [False] * 5 + [True] * 4  # one step of history before the first row
    assert batch.is_fct[late].tolist() == [False] * 6 + [True] * 3
    assert not batch.is_scored()[late, :, :6].any()


def test_with_zeros_as_demand_all_of_them_are_seen():
    batch = batch_of(panel_of(late=[0.0] * 5 + [100.0, 0.0, 90.0]), TOLD_APART.replace(zeros="demand"), 7)
    assert batch.observed[0, 1:9].all()


def test_with_zeros_as_missing_none_is_seen():
    batch = batch_of(panel_of(a=[3.0, 0.0, 2.0, 0.0, 5.0]), TOLD_APART.replace(zeros="missing"), 4)
    assert batch.observed[0, 1:6].tolist() == [True, False, True, False, True]


def test_what_was_never_sold_has_the_level_none_and_not_that_of_others():
    panel = panel_of(never=[0.0] * 10, often=[1000.0] * 10)
    found = TargetScaler.fit(panel, TOLD_APART).on(panel).at(np.array([0]), panel.first_step[:1], 10)
    assert (found.loc == 0).all()
    assert np.isfinite(found.scale).all()


@settings(deadline=None, max_examples=30)
@given(st.lists(DEMAND, min_size=4, max_size=20).filter(lambda y: any(y)), st.integers(1, 3))
def test_no_later_row_changes_what_is_told_of_an_earlier_one(y, num_changed):
    changed = [*y[:-num_changed], *[7777.0] * num_changed]
    found = [
        recent_level(np.array([np.nan if v is None else v for v in values]), TOLD_APART) for values in (y, changed)
    ]
    for name in ("loc", "unit", "surprise"):
        one, other = (getattr(level, name)[: len(y) - num_changed] for level in found)
        np.testing.assert_array_equal(one, other)


def test_numbers_far_from_what_training_saw_come_nearer_and_keep_their_order():
    x = np.array([[-1e30], [-60.0], [-FAR], [-1.0], [0.0], [FAR], [60.0], [1e30]])
    found = NumberScaler({"known": np.zeros(1)}, {"known": np.ones(1)}).forward("known", x)[:, 0]
    assert (np.diff(found) > 0).all()
    assert np.abs(found).max() < 100
    np.testing.assert_array_equal(found[2:6], np.float32(x[2:6, 0]))


def test_a_jump_beyond_all_that_is_published_does_not_rule_the_loss():
    ordinary, jump = (
        batch_of(panel_of(a=[100.0 + i % 7 for i in range(30)] + last), TOLD_APART, 32)
        for last in ([1e4] * 3, [1e12] * 3)
    )
    sizes = [float(batch.targets()[batch.is_scored()].abs().max()) for batch in (ordinary, jump)]
    assert sizes[1] < 2 * sizes[0]


@pytest.mark.parametrize("jump", [1e3, 1e6, 1e12])
def test_a_jump_of_the_target_reaches_the_network_as_a_bounded_number(jump):
    batch = batch_of(panel_of(a=[100.0] * 30 + [jump] * 3), TOLD_APART, 32)
    assert batch.inputs().abs().max() < FAR_INPUT + 10


def test_what_was_made_of_zeros_is_told_with_the_way_to_change_it():
    panel = panel_of(late=[0.0] * 5 + [100.0, 0.0, 90.0, 110.0], slow=[1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.0, 3.0])
    said = zeros_told_apart(panel, TOLD_APART)
    assert "5 of series that had not sold yet" in said
    assert "of 6 others, 1 among" in said
    assert 'scaling.zeros = "demand"' in said
    assert zeros_told_apart(panel, TOLD_APART.replace(zeros="demand")) == ""
    assert zeros_told_apart(panel_of(a=[3.0, 4.0]), TOLD_APART) == ""
