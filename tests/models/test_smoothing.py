"""Exponential smoothing: equal to a plain loop, it finds weekdays and years, never looks ahead, and is saved whole."""

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from look_ahead_samples import CHANGES, CUTOFF, HORIZON, sales

from mqcast import Forecaster, Panel, models
from mqcast.checks import check_forecaster, sample_frame
from mqcast.errors import ArtifactError, ConfigError, DataError
from mqcast.models.histories import Histories
from mqcast.models.protocol import TrainOptions
from mqcast.models.smoothing_states import CLOSED, CYCLE_PACE, MISS_PACE, PACES, SLOWEST, YEARLY, States
from mqcast.models.target_scale import Facts, Origins

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.MqcastWarning")
LEVELS = (0.1, 0.5, 0.9)
QUANTILES = ["q0.1", "q0.5", "q0.9"]


def smoothing(panel: Panel, horizon: int, **options):
    return models.get("smoothing").fit(panel, TrainOptions(horizon=horizon, quantiles=LEVELS, **options))


def frame(values: np.ndarray, step: str = "1d") -> pl.DataFrame:
    """(series, steps) as rows."""
    num, length = values.shape
    dates = pl.datetime_range(dt.datetime(2021, 1, 1), dt.datetime(2060, 1, 1), step, eager=True)[:length]
    ids = np.repeat([f"s{i:02}" for i in range(num)], length)
    return pl.DataFrame({"unique_id": ids, "ds": pl.concat([dates] * num), "y": values.reshape(-1)})


def panel_of(values: np.ndarray, step: str = "1d", freq: str = "D") -> Panel:
    return Panel.from_frame(frame(values, step), {"freq": freq})


def days(num: int = 6, length: int = 200, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    week = np.array([1.0, 1.1, 1.2, 1.3, 1.8, 2.5, 0.0])[np.arange(length) % 7]
    return np.round(10 ** rng.uniform(1, 3, (num, 1)) * week * rng.lognormal(0, 0.1, (num, length)))


def by_a_plain_loop(y: np.ndarray, t: int, horizon: int, cycle: int, year: int) -> np.ndarray:
    """(candidates, horizon) of one series that is never negative, from the column t, by the definitions."""
    levels, raw, effects, plain = [{} for _ in PACES], {}, {}, {}
    sums, weights, total, weight = np.zeros(4), np.zeros(4), 0.0, 0.0
    seen = dict.fromkeys(range(cycle), 0)
    for step in range(t + 1):
        usual = effects.get(step - cycle, 1.0)
        effects[step] = usual
        before = total / weight if weight else np.nan
        if not np.isnan(y[step]):
            if cycle > 1 and before > 0:
                seen[step % cycle] += 1
                gain = max(CYCLE_PACE, 1 / (seen[step % cycle] + 1))
                effects[step] = usual + gain * (min(y[step] / before, 20.0) - usual)
            if usual >= CLOSED:
                plain[step] = y[step] / max(usual, CLOSED)
                sums += np.array(PACES) * (plain[step] - sums)
                weights += np.array(PACES) * (1 - weights)
            total += SLOWEST / cycle * (y[step] - total)
            weight += SLOWEST / cycle * (1 - weight)
        raw[step] = total
        for k in range(len(PACES)):
            levels[k][step] = sums[k] / weights[k] if weights[k] else np.nan
    found = np.empty((len(PACES) * len(YEARLY), horizon))
    for k in range(len(PACES)):
        for ahead in range(1, horizon + 1):
            ratios = []
            for years in (1, 2, 3):
                then, around = t - years * year, year // 52
                same = then + (ahead - 1) % year + 1
                last = min(same + around, t)
                near = [plain[step] for step in range(last - 2 * around, last + 1) if step in plain]
                if then >= 0 and near and levels[k][then] > 0:
                    mean = np.mean(near)
                    ratios.append(min((mean + plain.get(same, mean)) / 2 / levels[k][then], 20.0))
            own = np.mean(ratios) if ratios else 1.0
            place = t + ahead - cycle * -(-ahead // cycle)
            for j, (own_share, _) in enumerate(YEARLY):
                found[k * len(YEARLY) + j, ahead - 1] = levels[k][t] * own**own_share * effects.get(place, 1.0)
    return found


def test_candidates_are_those_of_a_plain_loop():
    values = days(4, 420)
    values[1, :200] = 0  # not on sale yet
    values[2, 50:90] = np.nan
    panel = panel_of(values)
    histories = Histories(panel, 0, 4, Facts.of(panel, 10))
    origins = Origins(np.repeat(np.arange(4), 3), np.tile([40, 380, 410], 4))
    origins = Origins(origins.series, origins.cutoff + panel.first_step[origins.series])
    ours = States(histories, None).candidates(origins)
    for n, (series, t) in enumerate(zip(*histories.places(origins), strict=True)):
        if not np.isnan(histories.y[series, : t + 1]).all():
            assert np.allclose(ours[:, n], by_a_plain_loop(histories.y[series], t, 10, 7, 364))


def test_the_usual_miss_is_a_mean_of_misses_beside_the_mean_level():
    values = np.random.default_rng(0).poisson(20, (1, 60)).astype(float)
    panel = panel_of(values, "1w", "W")
    histories = Histories(panel, 0, 1, Facts.of(panel, 4))
    level, misses, sizes, weight = None, 0.0, 0.0, 0.0
    for step, y in enumerate(values[0]):
        if level is not None:
            misses += MISS_PACE * (abs(y - level) - misses)
            sizes += MISS_PACE * (level - sizes)
        seen = values[0, : step + 1][::-1]
        shares = PACES[1] * (1 - PACES[1]) ** np.arange(len(seen))
        level = (shares * seen).sum() / shares.sum()
        weight = misses / sizes if sizes else np.nan
    assert np.isclose(States(histories, None).misses[0, 60], weight)


def test_weekdays_and_closed_days_are_found():
    values = days(6, 210)
    found = smoothing(panel_of(values[:, :196]), 14).forecast(panel_of(values[:, :196]))
    median = found.sort("unique_id", "ds")["q0.5"].to_numpy().reshape(6, 14)
    week = np.array([1.0, 1.1, 1.2, 1.3, 1.8, 2.5, 0.0, 1.0, 1.1, 1.2, 1.3, 1.8, 2.5, 0.0])
    assert np.abs(median / median[:, :1] - week).max() < 0.25
    assert (median[:, [6, 13]] < 0.05 * median[:, :1]).all()


def test_the_course_of_a_year_is_found():
    rng, month = np.random.default_rng(1), np.arange(60)
    course = 1 + 0.6 * np.sin(2 * np.pi * month / 12)
    values = rng.uniform(50, 500, (8, 1)) * course * rng.lognormal(0, 0.05, (8, 60))
    known = panel_of(values[:, :48], "1mo", "MS")
    found = smoothing(known, 12).forecast(known)
    median = found.sort("unique_id", "ds")["q0.5"].to_numpy().reshape(8, 12)
    assert np.abs(median / values[:, 48:] - 1).mean() < 0.12


def test_quantiles_cover_what_they_say():
    values = np.random.default_rng(2).lognormal(3, 0.4, (60, 120))
    known = panel_of(values[:, :112], "1w", "W")
    found = smoothing(known, 8).forecast(known).sort("unique_id", "ds").select(QUANTILES).to_numpy()
    covered = (values[:, 112:].reshape(-1, 1) <= found).mean(axis=0)
    assert np.abs(covered - LEVELS).max() < 0.05


@pytest.mark.parametrize(
    ("step", "freq", "length"), [("1h", "h", 400), ("1d", "D", 90), ("1w", "W", 60), ("1mo", "MS", 20), ("1y", "YS", 9)]
)
@pytest.mark.parametrize("kind", ["negative", "counts", "constant", "zero", "spiky"])
def test_quantiles_never_cross_and_have_the_sign_of_the_data(kind: str, step: str, freq: str, length: int):
    rng, shape = np.random.default_rng(3), (5, length)
    values = {
        "negative": rng.normal(-9, 1, shape),
        "counts": rng.poisson(0.2, shape).astype(float),
        "constant": np.full(shape, 3.0),
        "zero": np.zeros(shape),
        "spiky": np.where(rng.random(shape) < 0.1, 1e4, 1.0),
    }[kind]
    values[0, : length // 2] = np.nan
    panel = panel_of(values, step, freq)
    quantiles = smoothing(panel, 3).forecast(panel).select(QUANTILES).to_numpy()
    assert (np.diff(quantiles, axis=1) >= 0).all()
    if kind == "negative":
        assert np.abs(quantiles.mean(axis=0) - [-10.28, -9, -7.72]).max() < 1.5
    else:
        assert (quantiles >= 0).all()
        assert quantiles.max() <= {"constant": 3 + 1e-9, "zero": 0}.get(kind, 10 * np.nanmax(values))


@pytest.mark.parametrize("number", range(4))
def test_nothing_that_happens_later_changes_a_forecast(number: int):
    rng, data = np.random.default_rng(number), sales(np.random.default_rng(3))
    first, last = data.dates[CUTOFF - 2], data.cutoff
    before = smoothing(data.panel(), HORIZON, until=first).forecast(data.panel(), first, last)
    assert before["cutoff"].n_unique() == 3
    for name in list(CHANGES)[number::4]:
        panel = CHANGES[name](rng, data).panel()
        assert smoothing(panel, HORIZON, until=first).forecast(panel, first, last).equals(before), name


def test_a_forecast_does_not_depend_on_other_series():
    values = days()
    fitted, all_of_them, one = smoothing(panel_of(values), 7), panel_of(values), panel_of(values[:1])
    alone = fitted.forecast(one)
    assert fitted.forecast(all_of_them).filter(unique_id="s00").equals(alone)


def test_training_ends_at_the_date_that_it_is_given():
    rows = frame(days())
    until = rows["ds"].unique().sort()[-20]
    whole, known = (Panel.from_frame(part, {"freq": "D"}) for part in (rows, rows.filter(pl.col("ds") <= until)))
    assert smoothing(whole, 7, until=until).forecast(whole, until, until).equals(smoothing(known, 7).forecast(known))


def test_it_passes_the_battery_of_checks():
    assert not check_forecaster(Forecaster("smoothing", 3, LEVELS, verbose=False).fit(sample_frame(None, 3))).failures


def test_what_was_saved_forecasts_the_same(tmp_path: Path):
    rows = frame(days(4, 400))
    made = Forecaster("smoothing", 7, LEVELS, {"freq": "D"}, verbose=False).fit(rows)
    made.save(tmp_path / "saved")
    dates = rows["ds"].unique().sort()
    loaded = Forecaster.load(tmp_path / "saved")
    assert loaded.revisions(None, dates[-20], dates[-8]).equals(made.revisions(None, dates[-20], dates[-8]))
    file = tmp_path / "saved" / "smoothing.json"
    file.write_text(file.read_text().replace('"typical": ', '"typical": 1', 1))
    with pytest.raises(ArtifactError, match=r"smoothing.json.*damaged"):
        Forecaster.load(tmp_path / "saved")


def test_it_cannot_start_from_another_forecaster():
    panel = panel_of(days())
    options = TrainOptions(horizon=7, quantiles=LEVELS, start_from=smoothing(panel, 7))
    with pytest.raises(ConfigError, match="cannot start from another"):
        models.get("smoothing").fit(panel, replace(options, seed=1))


def test_too_little_history_is_told():
    with pytest.raises(DataError, match="no series has more than 3 steps to learn from; give more history"):
        Forecaster("smoothing", 2).fit(frame(np.array([[1.0, 2.0, 3.0]])))
