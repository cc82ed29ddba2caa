"""Transforms: fitted only on what training may see, invertible, causal where they follow a series' own past."""

import datetime as dt

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcast import Panel, Schema
from mqcast.data.covariates import CategoryFilter, NumberScaler, moving_sum
from mqcast.data.scaling import TargetScaler
from mqcast.data.windows import as_time
from mqcast.errors import DataError
from mqcast.settings import ScalingConfig

FIRST = dt.datetime(2024, 1, 1)
WAYS = [
    ScalingConfig(by=by, log1p=log1p)
    for by in ("recent", "series", "global", "past", "past_mean", "none")
    for log1p in (False, True)
]


def panel_of(like: Panel | None = None, **series) -> Panel:
    frames = [
        pl.DataFrame(
            {"unique_id": name, "ds": [FIRST + dt.timedelta(days=i) for i in range(len(y))], "y": y},
            schema_overrides={"y": pl.Float64},
        )
        for name, y in series.items()
    ]
    return Panel.from_frame(pl.concat(frames), None if like else Schema(freq="D"), like=like)


def scales(scaler: TargetScaler, panel: Panel, name: str, width: int) -> tuple[np.ndarray, np.ndarray]:
    i = np.array([panel.index_of(name)])
    found = scaler.on(panel).at(i, panel.first_step[i], width)
    return found.loc[0], found.scale[0]


def test_per_series_scaling_is_mean_and_spread_of_the_training_part():
    panel = panel_of(a=[1.0, 2.0, 3.0, 1000.0], b=[10.0, None, 30.0, 7.0])
    until = as_time("2024-01-03", panel.axis)
    scaler = TargetScaler.fit(panel, ScalingConfig(), until)
    for name, seen in (("a", [1, 2, 3]), ("b", [10, 30])):
        loc, scale = scales(scaler, panel, name, 4)
        assert loc == pytest.approx(np.mean(seen))
        assert scale == pytest.approx(np.std(seen))


def test_global_scaling_pools_all_series():
    panel = panel_of(a=[1.0, 2.0, 3.0], b=[10.0, None, 30.0])
    loc, scale = scales(TargetScaler.fit(panel, ScalingConfig(by="global")), panel, "b", 3)
    assert loc == pytest.approx(np.mean([1, 2, 3, 10, 30]))
    assert scale == pytest.approx(np.std([1, 2, 3, 10, 30]))


@pytest.mark.parametrize("config", WAYS, ids=str)
def test_what_comes_after_training_changes_no_fitted_scale(config):
    until = as_time("2024-01-03", panel_of(a=[1.0]).axis)
    one = TargetScaler.fit(panel_of(a=[1.0, 2.0, 3.0, 4.0], b=[5.0, 6.0, 7.0, 8.0]), config, until)
    other = TargetScaler.fit(panel_of(a=[1.0, 2.0, 3.0, 9e9], b=[5.0, 6.0, 7.0, None]), config, until)
    for part in ("loc", "scale", "default_loc", "default_scale"):
        np.testing.assert_array_equal(getattr(one, part), getattr(other, part))


@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=1, max_size=20), st.sampled_from(WAYS))
def test_whatever_was_sold_is_finite_on_its_scale(values, config):
    panel = panel_of(a=values)
    scaler = TargetScaler.fit(panel, config)
    loc, scale = scales(scaler, panel, "a", len(values))
    y = np.float32(values)
    scaled = (scaler.forward(y) - loc) / scale
    assert np.isfinite(scaled).all()


@pytest.mark.parametrize("config", WAYS, ids=str)
@pytest.mark.parametrize(
    "values", [[7.0], [5.0] * 9, [0.0] * 9, [1e30, 2e30, 3e30], [1e-30, 2e-30, 3e-30], [0.1] * 1000]
)
def test_odd_series_get_a_usable_scale(config, values):
    panel = panel_of(a=values)
    scaler = TargetScaler.fit(panel, config)
    loc, scale = scales(scaler, panel, "a", len(values))
    scaled = (scaler.forward(np.float32(values)) - loc) / scale
    assert (scale > 0).all()
    assert np.isfinite(scaled).all()
    if config.by in ("series", "past_mean") and not config.log1p:
        assert np.abs(scaled).max() < 10


def naive_level(y: list[float | None], t: int) -> float:
    weights = {s: 0.5 ** ((t - s) / 4) for s in range(t + 1) if y[s] is not None}
    return sum(weight * y[s] for s, weight in weights.items()) / sum(weights.values())


def naive_surprises(y: list[float | None], t: int) -> list[float]:
    return [y[s] - naive_level(y, s - 1) for s in range(1, t + 1) if y[s] is not None]


def naive_own_past(y: list[float], t: int, by: str) -> tuple[float, float]:
    if by == "recent":  # 26 observations' worth of the surprise that training found, relative to the mean size
        typical = np.sqrt(np.mean(np.square(naive_surprises([1.0, 2.0, 3.0], 2)))) / 2
        prior = typical * np.mean([v for v in y[: t + 1] if v is not None])
        found = naive_surprises(y, t)
        return naive_level(y, t), float(np.sqrt((np.sum(np.square(found)) + 26 * prior**2) / (len(found) + 26)))
    seen = [v for v in y[: t + 1] if v is not None]
    if by == "past":  # four observations' worth of the spread that training found, relative to the mean
        typical = np.std([1, 2, 3]) / 2 * np.mean(seen)
        return float(np.mean(seen)), float(np.sqrt((len(seen) * np.var(seen) + 4 * typical**2) / (len(seen) + 4)))
    if by == "past_mean":
        return 0.0, float(np.mean(np.abs(seen)))
    spread = float(np.std(seen))
    return float(np.mean(seen)), spread if spread > 1e-6 * abs(np.mean(seen)) else abs(float(np.mean(seen)))


@pytest.mark.parametrize("by", ["recent", "series", "past", "past_mean"])
def test_an_unseen_series_is_scaled_from_its_own_past(by):
    train = panel_of(a=[1.0, 2.0, 3.0])
    scaler = TargetScaler.fit(train, ScalingConfig(by=by))
    y = [50.0, None, 70.0, 10.0, 90.0, 40.0]
    new = panel_of(like=train, z=y)
    loc, scale = scales(scaler, new, "z", len(y))
    for t in range(len(y)):
        assert (loc[t], scale[t]) == pytest.approx(naive_own_past(y, t, by))
    changed = panel_of(like=train, z=[*y[:3], 1e6, None, 7.0])
    later = scales(scaler, changed, "z", len(y))
    np.testing.assert_array_equal(loc[:3], later[0][:3])
    np.testing.assert_array_equal(scale[:3], later[1][:3])


@pytest.mark.parametrize("by", ["past", "recent"])
def test_under_past_scaling_no_later_sale_changes_a_scale_of_training(by):
    one, other = (panel_of(a=[3.0, 4.0, 5.0, last], b=[30.0, 10.0, 20.0, 5.0]) for last in (6.0, 600.0))
    scalers = [TargetScaler.fit(panel, ScalingConfig(by=by), as_time("2024-01-03", one.axis)) for panel in (one, other)]
    found = [scales(scaler, panel, "a", 3) for scaler, panel in zip(scalers, (one, other), strict=True)]
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("by", ["series", "recent"])
def test_where_a_window_starts_does_not_change_the_scales(by):
    train = panel_of(a=[1.0, 2.0, 3.0])
    new = panel_of(like=train, z=[float(i * i % 37) for i in range(60)])
    bound = TargetScaler.fit(train, ScalingConfig(by=by)).on(new)
    whole = bound.at(np.array([0]), new.first_step - 5, 65)
    late = bound.at(np.array([0]), new.first_step + 30, 30)
    for name in ("loc", "scale", "unit"):
        np.testing.assert_array_equal(getattr(whole, name)[:, 35:], getattr(late, name))


@pytest.mark.parametrize("zeros", ["told_apart", "demand"])
@pytest.mark.parametrize("config", WAYS, ids=lambda config: f"{config.by}-{config.log1p}")
def test_scales_that_are_kept_are_those_that_are_computed(config, zeros, monkeypatch):
    rng = np.random.default_rng(0)
    config, sales = config.replace(zeros=zeros, spread_half_life=5.0), rng.poisson(30, (4, 40)) * rng.integers(0, 2, 40)
    given = {f"s{i}": [None, *map(float, row[: 40 - 7 * i])] for i, row in enumerate(sales)}
    panel = panel_of(**given, late=[None, None, 5.0])
    keeps, computes = (TargetScaler.fit(panel, config, as_time("2024-01-20", panel.axis)).on(panel) for _ in range(2))
    monkeypatch.setattr("mqcast.data.scaling.MOST_KEPT", 0)
    computes.at(np.array([0]), panel.first_step[:1], 1)  # decides that nothing is kept
    monkeypatch.undo()
    for _ in range(12):
        series = rng.integers(0, 5, 6)
        start = panel.first_step[series] + rng.integers(-5, 30, 6)
        last = start + rng.integers(1, 20, 6)
        ours, theirs = (bound.at(series, start, 15, last) for bound in (keeps, computes))
        for one, other in zip(ours.parts(), theirs.parts(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_before_its_first_sale_a_series_has_the_scale_of_all():
    train = panel_of(a=[1.0, 2.0, 3.0])
    new = panel_of(like=train, z=[None, None, 50.0])
    loc, scale = scales(TargetScaler.fit(train, ScalingConfig()), new, "z", 3)
    assert loc.tolist() == [2.0, 2.0, 50.0]
    assert scale[:2] == pytest.approx(np.std([1, 2, 3]))


def test_a_series_that_training_did_not_reach_follows_its_own_past():
    panel = panel_of(a=[1.0, 2.0, 3.0, 4.0], late=[None, None, None, 9.0])
    scaler = TargetScaler.fit(panel, ScalingConfig(), until=as_time("2024-01-02", panel.axis))
    loc, _ = scales(scaler, panel, "late", 4)
    assert loc.tolist() == [1.5, 1.5, 1.5, 9.0]


def test_the_logarithm_of_minus_one_is_refused_by_name():
    with pytest.raises(DataError, match=r"series 'b', column 'y', at 2024-01-02: log1p needs values above −1"):
        TargetScaler.fit(panel_of(a=[1.0, 2.0], b=[0.0, -1.0]), ScalingConfig(log1p=True))


def test_numbers_are_standardised_on_the_training_rows_and_flags_left_alone():
    days = [FIRST + dt.timedelta(days=i) for i in range(4)]
    frame = pl.DataFrame({"unique_id": "a", "ds": days, "y": 1.0, "price": [1.0, 3.0, 5.0, 999.0], "promo": [True] * 4})
    visits = [None, 4.0, 8.0, 1e6]
    schema = Schema(freq="D", known=("price", "promo"), past=("visits",))
    panel = Panel.from_frame(frame.with_columns(visits=pl.Series(visits)), schema)
    scaler = NumberScaler.fit(panel, until=as_time("2024-01-03", panel.axis))
    known = scaler.forward("known", panel.arrays["known_number"])
    np.testing.assert_allclose(known[:3, 0], (np.array([1, 3, 5]) - 3) / np.std([1, 3, 5]), rtol=1e-6)
    assert known[:, 1].tolist() == [1, 1, 1, 1]
    assert scaler.forward("past", panel.arrays["past_number"])[:3, 0].tolist() == [0, -1, 1]


def test_a_clock_says_nothing_but_how_it_moves():
    days, numbers = [FIRST + dt.timedelta(days=i) for i in range(8)], np.arange(8.0)
    columns = ("number", "countdown", "age", "step", "price", "new_year")
    frames = []
    for name, born in (("a", 0), ("b", 3), ("c", 5)):
        values = [100 + numbers, -numbers, numbers - born, 2 + (numbers >= 4), np.cos(numbers), 2023 + (numbers >= 2)]
        both = {column: np.asarray(x, float)[born:] for column, x in zip(columns, values, strict=True)}
        frames.append(pl.DataFrame({"unique_id": name, "ds": days[born:], "y": 1.0} | both))
    panel = Panel.from_frame(pl.concat(frames), Schema(freq="D", known=columns))
    rows = panel.arrays["known_number"]
    for until in (None, as_time("2024-01-07", panel.axis)):
        scaler = NumberScaler.fit(panel, until, level_steps=3)
        silent = (scaler.forward("known", rows) == 0).all(axis=0)
        assert [name for name, is_silent in zip(columns, silent, strict=True) if is_silent] == ["number", "countdown"]
        assert {0, 1} <= set(scaler.own["known"].columns)
        assert (NumberScaler.fit(panel, until).forward("known", rows) != 0).any(axis=0).all()


def test_a_category_that_training_did_not_see_is_unknown():
    days = [FIRST + dt.timedelta(days=i) for i in range(4)]
    frame = pl.DataFrame({"unique_id": "a", "ds": days, "y": 1.0, "kind": ["x", "z", "y", "x"]})
    panel = Panel.from_frame(frame, Schema(freq="D", known=("kind",)))
    codes = panel.arrays["known_category"]
    assert codes[:, 0].tolist() == [1, 3, 2, 1]
    until = as_time("2024-01-02", panel.axis)
    assert CategoryFilter.fit(panel, until).forward("known", codes)[:, 0].tolist() == [1, 3, 0, 1]
    assert CategoryFilter.fit(panel).forward("known", codes)[:, 0].tolist() == [1, 3, 2, 1]


@pytest.mark.parametrize("width", [1, 2, 7, 8, 13, 52, 128, 129, 364])
def test_moving_sums_are_numpys_to_the_last_bit(width: int):
    x = np.exp(5 * np.random.default_rng(width).normal(size=(3, 20 + width - 1, 2)))
    windows = np.lib.stride_tricks.sliding_window_view(x, width, axis=1)
    assert np.array_equal(moving_sum(x, width), np.ascontiguousarray(windows).sum(axis=-1))
