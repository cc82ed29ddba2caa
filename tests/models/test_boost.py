"""Boosted trees: they learn, never look ahead, never cross, and come back from disk bit for bit."""

import datetime as dt
import importlib.util
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from look_ahead_samples import CHANGES, CUTOFF, HORIZON, Sales, sales

from mqcast import Forecaster, Panel, models
from mqcast.errors import ArtifactError, ConfigError, DataError
from mqcast.models import boost_training
from mqcast.models.boost_features import matrix
from mqcast.models.boost_training import horizon_groups
from mqcast.models.histories import Histories
from mqcast.models.protocol import TrainOptions
from mqcast.models.target_scale import Facts, Origins, Scale
from mqcast.simulate import lognormal_world

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.MqcastWarning")
LEVELS = (0.1, 0.5, 0.9)


def trees(panel: Panel, horizon: int, rounds: int = 5, **options):
    given = TrainOptions(horizon=horizon, quantiles=LEVELS, max_steps=rounds, verbose=False, **options)
    return models.get("lightgbm").fit(panel, given)


def promoted_days(num_series: int = 12, num_days: int = 200, seed: int = 0) -> pl.DataFrame:
    """Sales of each weekday, doubled by promotions, at levels that differ by a factor of a hundred."""
    rng, begin, parts = np.random.default_rng(seed), dt.datetime(2023, 1, 2), []
    for number in range(num_series):
        promo = rng.random(num_days) < 0.2
        week = np.array([1, 1.1, 1.2, 1.3, 1.8, 2.5, 0])[np.arange(num_days) % 7]
        mean = 10 ** rng.uniform(1, 3) * week * np.where(promo, 2.0, 1.0)
        parts.append(
            pl.DataFrame(
                {
                    "unique_id": f"s{number:02}",
                    "ds": [begin + dt.timedelta(days=day) for day in range(num_days)],
                    "y": np.round(mean * rng.lognormal(0, 0.1, num_days)),
                    "promo": promo,
                }
            )
        )
    return pl.concat(parts)


def new(rounds: int | None = 5, **arguments) -> Forecaster:
    given = {"model": "lightgbm", "schema": {"known": ["promo"], "freq": "D"}, "max_steps": rounds, "verbose": False}
    return Forecaster(horizon=7, quantiles=LEVELS, **given | arguments)


def test_it_learns_seasons_and_promotions():
    rows = promoted_days(8)
    dates = rows["ds"].unique().sort()
    losses = []
    for name in ("lightgbm", "seasonal-naive"):
        forecasts = new(50).set_params(model=name).backtest(rows, dates[-8], dates[-8])
        both = forecasts.join(rows, on=["unique_id", "ds"])
        over = both["y"].to_numpy()[:, None] - both.select("q0.5", "q0.9").to_numpy()
        losses.append(np.maximum(over * [0.5, 0.9], over * [-0.5, -0.1]).sum(axis=0))
    assert (losses[0] < 0.5 * losses[1]).all()


@cache
def rich() -> Sales:
    return sales(np.random.default_rng(3))


@pytest.mark.parametrize("number", range(4))
def test_nothing_that_happens_later_changes_a_forecast(number: int):
    rng, data = np.random.default_rng(number), rich()
    first, last = data.dates[CUTOFF - 2], data.cutoff
    before = trees(data.panel(), HORIZON, until=first).forecast(data.panel(), first, last)
    assert before["cutoff"].n_unique() == 3
    for name in list(CHANGES)[number::4]:
        panel = CHANGES[name](rng, data).panel()
        now = trees(panel, HORIZON, until=first).forecast(panel, first, last)
        assert now.equals(before), name


def test_forecasts_depend_on_the_plan_up_to_the_horizon():
    data = rich()
    fitted = trees(data.panel(), HORIZON, until=data.cutoff)
    other = data.rows.with_columns(price=pl.when(data.after()).then(pl.col("price") * 3).otherwise("price"))
    one, two = (fitted.forecast(found.panel(), data.cutoff, data.cutoff) for found in (data, replace(data, rows=other)))
    assert not one.equals(two)


def test_training_ends_at_the_date_that_it_is_given():
    rows = promoted_days()
    until = rows["ds"].unique().sort()[-20]
    whole = Panel.from_frame(rows, {"known": ["promo"], "freq": "D"})
    known = Panel.from_frame(rows.filter(pl.col("ds") <= until), {"known": ["promo"], "freq": "D"})
    one, two = trees(whole, 7, until=until), trees(known, 7)
    assert one.forecast(whole, until, until).equals(two.forecast(whole, until, until))


def test_series_and_cutoffs_are_those_of_other_models():
    data = rich()
    first, last = data.dates[CUTOFF - 8], data.dates[CUTOFF]
    keys = ["unique_id", "cutoff", "ds", "horizon"]
    ours = trees(data.panel(), HORIZON).forecast(data.panel(), first, last)
    naive = models.get("seasonal-naive").fit(data.panel(), TrainOptions(horizon=HORIZON, quantiles=LEVELS))
    theirs = naive.forecast(data.panel(), first, last)
    assert ours.select(keys).equals(theirs.select(keys))
    assert ours.schema == theirs.schema


def test_what_was_saved_forecasts_the_same(tmp_path: Path):
    made = new().fit(promoted_days())
    made.save(tmp_path / "saved")
    loaded = Forecaster.load(tmp_path / "saved")
    dates = promoted_days()["ds"].unique().sort()
    assert loaded.revisions(None, dates[-20], dates[-8]).equals(made.revisions(None, dates[-20], dates[-8]))
    file = next((tmp_path / "saved").glob("trees-*.txt"))
    file.write_text(file.read_text().replace("leaf_value=", "leaf_value=1", 1))
    with pytest.raises(ArtifactError, match=r"trees-.*damaged"):
        Forecaster.load(tmp_path / "saved")


def test_a_mean_with_trees_is_saved_too(tmp_path: Path):
    made = new(model="mean_of(lightgbm, seasonal-naive)").fit(promoted_days(4, 60))
    dates = promoted_days(4, 60)["ds"].unique().sort()
    made.save(tmp_path / "saved")
    again = Forecaster.load(tmp_path / "saved").revisions(None, dates[-9], dates[-8])
    assert again.equals(made.revisions(None, dates[-9], dates[-8]))


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "mqcast\[boost\]"'):
        new().fit(promoted_days(2, 40))


@pytest.mark.parametrize("kind", ["negative", "counts", "constant"])
def test_quantiles_never_cross_and_have_the_sign_of_the_data(kind: str):
    rng, rows = np.random.default_rng(1), promoted_days(6, 120)
    values = {
        "negative": rng.normal(-9, 1, rows.height),
        "counts": rng.poisson(0.2, rows.height).astype(float),
        "constant": np.full(rows.height, 3.0),
    }
    panel = Panel.from_frame(rows.with_columns(y=pl.Series(values[kind])), {"known": ["promo"], "freq": "D"})
    found = trees(panel, 7, 20).forecast(panel, rows["ds"][100], rows["ds"][112]).select("q0.1", "q0.5", "q0.9")
    quantiles = found.to_numpy()
    assert (np.diff(quantiles, axis=1) >= 0).all()
    if kind == "negative":
        assert np.abs(quantiles.mean(axis=0) - [-10.28, -9, -7.72]).max() < 0.4
    else:
        assert (quantiles >= 0).all()
    if kind == "constant":
        assert np.allclose(quantiles, 3)


def test_little_time_means_fewer_rows_and_larger_steps(monkeypatch):
    rows = [boost_training.rows_of_a_group(minutes) for minutes in (None, 5, 0.5, 0.01)]
    assert rows == [100_000, 100_000, 50_000, 20_000]
    lightgbm, rates = pytest.importorskip("lightgbm"), []
    train = lightgbm.train

    def noted(parameters, *given, **more):
        rates.append(parameters["learning_rate"])
        return train(parameters, *given, **more)

    monkeypatch.setattr(lightgbm, "train", noted)
    panel = Panel.from_frame(promoted_days(), {"known": ["promo"], "freq": "D"})
    trees(panel, 7, 60)
    assert set(rates) == {boost_training.RATE}
    rates.clear()
    trees(panel, 7, 60, max_minutes=1e-9)
    assert rates[-1] == boost_training.FASTEST


def test_training_keeps_to_its_minutes():
    panel = Panel.from_frame(promoted_days(), {"known": ["promo"], "freq": "D"})
    fitted = trees(panel, 7, 60, max_minutes=1e-9)
    assert {booster.num_trees() for group in fitted.groups for booster in group.boosters} == {1}


def test_the_seed_decides_the_trees_and_the_number_of_threads_does_not(monkeypatch):
    rows = promoted_days(4, 100)
    panel, cutoff = Panel.from_frame(rows, {"known": ["promo"], "freq": "D"}), rows["ds"][80]
    one, other = (trees(panel, 7, seed=seed) for seed in (1, 2))
    monkeypatch.setattr(boost_training, "num_threads", lambda num_rows: 2)
    same = trees(panel, 7, seed=1)
    of = [fitted.forecast(panel, cutoff, cutoff) for fitted in (one, same, other)]
    assert of[0].equals(of[1])
    assert not of[0].equals(of[2])


def test_series_without_a_later_observation_cannot_be_learnt_from():
    rows = promoted_days(3, 40).with_columns(y=pl.lit(0.0))
    with pytest.raises(DataError, match="no series has a sale and a later observation"):
        new().fit(rows)


def test_groups_cover_every_horizon_once():
    for horizon in range(1, 100):
        steps = [step for first, last in horizon_groups(horizon) for step in range(first, last + 1)]
        assert steps == list(range(1, horizon + 1))


def test_the_scale_goes_back_and_forth():
    y = np.array([[0.0, 1.0, 250.0]] * 2)
    for in_logs in (True, False):
        scale = Scale(np.array([3.0, 80.0]), np.array([1.5, 40.0]), in_logs)
        assert np.allclose(scale.backward(scale.forward(y)), y)


def test_features_are_those_of_a_plain_loop():
    rows = promoted_days(3, 80)
    panel = Panel.from_frame(rows, {"known": ["promo"], "freq": "D"})
    histories = Histories(panel, 0, 3, Facts.of(panel, 7))
    series, cutoff, ahead = 1, int(panel.first_step[1]) + 60, 3
    origins = Origins(np.array([series]), np.array([cutoff]))
    values, names = matrix(histories, origins, np.array([ahead]))
    found = dict(zip(names, values[0].tolist(), strict=True))
    y = rows.filter(pl.col("unique_id") == "s01")["y"].to_numpy()
    promo = rows.filter(pl.col("unique_id") == "s01")["promo"].to_numpy()
    recent = y[60 - 55 : 61]
    level = np.sqrt(recent[recent > 0]).mean() ** 2

    def scaled(value: float) -> float:
        return np.log1p(value / (0.5 * level)) - np.log1p(2)

    assert found["level"] == pytest.approx(np.log(level), rel=1e-5)
    assert found["lag 1"] == pytest.approx(scaled(y[59]))
    assert found["mean 28"] == pytest.approx(scaled(y[61 - 28 : 61].mean()))
    assert found["cycle 7 0"] == pytest.approx(scaled(y[63 - 7]))
    assert found["plan promo"] == promo[63]
    assert found["plan promo +2"] == promo[65]
    assert found["zeros 7"] == pytest.approx((y[54:61] == 0).mean())
    alike = [s for s in range(61) if promo[s] == promo[63] and s % 7 == 63 % 7][::-1][:4]
    ratios = []
    for step in alike:
        before = y[max(0, step - 56) : step]
        past = np.sqrt(before[before > 0]).mean() ** 2 if (before > 0).any() else None
        ratios.append(0.0 if past is None else np.log1p(y[step] / (0.5 * past)) - np.log1p(2))
    assert found["alike plan and season 4"] == pytest.approx(np.mean(ratios))


def test_a_world_with_every_kind_of_column_is_learnt_from():
    world = lognormal_world(8, 90, 4)
    made = Forecaster("lightgbm", 4, LEVELS, world.schema, max_steps=3, verbose=False)
    found = made.fit(world.frame, static=world.static, events=world.events).predict()
    assert found.height == 8 * 4


def test_listeners_are_told_of_every_group():
    told = []
    trees(Panel.from_frame(promoted_days(3, 60), {"known": ["promo"], "freq": "D"}), 7, 2, listeners=(told.append,))
    assert [message.text.split(":")[0] for message in told] == [f"horizons {a} to {b}" for a, b in horizon_groups(7)]


def test_the_last_horizon_decides_how_long_to_train(monkeypatch):
    monkeypatch.setattr(boost_training, "LEAST_VALID", 5)
    rows = promoted_days(6, 120)
    panel = Panel.from_frame(rows, {"known": ["promo"], "freq": "D"})
    fitted = trees(panel, 3, boost_training.USUAL_ROUNDS)
    rounds = {booster.num_trees() for group in fitted.groups for booster in group.boosters}
    assert len(rounds) > 1
    assert min(rounds) >= boost_training.LEAST_ROUNDS
    forecasts = fitted.forecast(panel, rows["ds"][110], rows["ds"][110])
    both = forecasts.join(rows, on=["unique_id", "ds"])
    assert (both["q0.5"] - both["y"]).abs().sum() < 0.2 * both["y"].sum()
