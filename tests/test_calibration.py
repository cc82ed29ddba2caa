"""Recalibrated quantiles: what is miscalibrated is repaired on later dates, and what is not stays as it was."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy.stats import norm, poisson
from typer.testing import CliRunner

from mqcast import ConfigError, DataError, evaluate, volatility
from mqcast.calibration import Calibrator, calibrate
from mqcast.cli import app
from mqcast.errors import ArtifactError, MissingColumnError, TooFewRevisionsError
from mqcast.evidence import error_of_mean

LEVELS = (0.1, 0.5, 0.9)
COLUMNS = ["q0.1", "q0.5", "q0.9"]
WEEK = np.timedelta64(7, "D")
START = np.datetime64("2024-01-07", "us")
NUM_ITEMS, HORIZON = 60, 6


@dataclass(frozen=True)
class Sample:
    forecasts: pl.DataFrame
    actuals: pl.DataFrame


def columns(values: np.ndarray) -> dict[str, np.ndarray]:
    return {f"q{level:g}": values[:, i] for i, level in enumerate(LEVELS)}


def simulated(
    seed: int,
    num_cutoffs: int = 40,
    narrow: float = 1.0,
    bias: float = 0.0,
    shock: float = 0.0,
    num_items: int = NUM_ITEMS,
    horizon: int = HORIZON,
) -> Sample:
    """Normal demand of series of very unlike sizes: forecasts are too narrow by a factor and off by so many spreads.

    shock: the share of the variance that all series of a date have in common.
    """
    rng = np.random.default_rng(seed)
    num_dates = num_cutoffs + horizon
    level = 10 ** rng.uniform(0, 4, num_items)[:, None] * (1 + 0.3 * rng.random((num_items, num_dates)))
    common, own = rng.normal(size=num_dates), rng.normal(size=(num_items, num_dates))
    y = level * (1 + 0.2 * (np.sqrt(shock) * common + np.sqrt(1 - shock) * own))
    item, cutoff, lead = np.array(
        [(i, t, h) for i in range(num_items) for t in range(num_cutoffs) for h in range(1, horizon + 1)]
    ).T
    target = cutoff + lead
    centre = level[item, target]
    values = centre[:, None] * (1 + 0.2 * (bias + narrow * norm.ppf(LEVELS)))
    keys = {"unique_id": [f"s{i}" for i in item], "cutoff": START + cutoff * WEEK, "ds": START + target * WEEK}
    ids = np.repeat([f"s{i}" for i in range(num_items)], num_dates)
    actuals = {"unique_id": ids, "ds": np.tile(START + np.arange(num_dates) * WEEK, num_items), "y": y.ravel()}
    return Sample(pl.DataFrame(keys | {"horizon": lead} | columns(values)), pl.DataFrame(actuals))


def coverage(forecasts: pl.DataFrame, sample: Sample) -> np.ndarray:
    both = forecasts.join(sample.actuals, on=["unique_id", "ds"])
    return np.array([(both["y"] <= both[f"q{level:g}"]).mean() for level in LEVELS])


def change(calibrator: Calibrator, sample: Sample) -> float:
    """The largest change of a quantile, in widths of its forecast."""
    before = sample.forecasts
    after = calibrator.apply(before)
    width = before["q0.9"] - before["q0.1"]
    return max(float(((after[f"q{level:g}"] - before[f"q{level:g}"]).abs() / width).max()) for level in LEVELS)


@pytest.mark.parametrize("wrong", [{"narrow": 0.5}, {"narrow": 2.0}, {"bias": 0.6}, {"narrow": 0.6, "bias": -0.5}])
def test_known_miscalibration_is_repaired_on_later_dates(wrong):
    calibrator = calibrate(*vars(simulated(0, **wrong)).values(), levels=LEVELS)
    later = simulated(1, **wrong)
    before, after = coverage(later.forecasts, later), coverage(calibrator.apply(later.forecasts), later)
    assert np.abs(before - LEVELS).max() > 0.08
    assert np.abs(after - LEVELS).max() < 0.03


@pytest.mark.parametrize("seed", range(5))
def test_calibrated_forecasts_stay_as_they_are_within_noise(seed):
    sample = simulated(seed)
    calibrator = calibrate(sample.forecasts, sample.actuals)
    assert change(calibrator, sample) < 0.02
    assert (calibrator.shift == 0).mean() > 0.5


def test_a_common_shock_of_each_date_is_no_evidence_of_miscalibration():
    """With 12 dates, a shared shock moves the coverage of all series by far more than 700 rows a date would explain."""
    changes, rows_tell = [], []
    for seed in range(20):
        sample = simulated(seed, num_cutoffs=10, shock=0.8, horizon=2)
        changes.append(change(calibrate(sample.forecasts, sample.actuals), sample))
        rows_tell.append(np.abs(coverage(sample.forecasts, sample) - LEVELS).max())
    assert np.mean(rows_tell) > 0.08
    assert np.median(changes) < 0.03
    assert np.mean(changes) < 0.08


def test_a_bias_that_another_training_may_not_have_stays_and_a_width_that_it_has_is_put_right():
    biased, narrow = simulated(3, bias=0.25), simulated(4, narrow=0.5)
    moved, kept = (calibrate(biased.forecasts, biased.actuals, trained_again=again).shift for again in (False, True))
    assert np.abs(kept).mean() < 0.4 * np.abs(moved).mean()
    moved, kept = (calibrate(narrow.forecasts, narrow.actuals, trained_again=again).shift for again in (False, True))
    assert kept[0, [0, 2]].mean(axis=(1, 2)) == pytest.approx(moved[0, [0, 2]].mean(axis=(1, 2)), rel=0.1)


def test_what_happens_at_one_lead_moves_that_lead_alone():
    sample = simulated(3, horizon=8)
    late = pl.col("horizon") >= 4
    half = {q: pl.col("q0.5") + (pl.col(q) - pl.col("q0.5")) / 2 for q in ("q0.1", "q0.9")}
    narrow = [pl.when(late).then(width).otherwise(q).alias(q) for q, width in half.items()]
    sample = Sample(sample.forecasts.with_columns(narrow), sample.actuals)
    after = calibrate(sample.forecasts, sample.actuals).apply(sample.forecasts)
    for of_lead in (after.filter(late), after.filter(~late)):
        assert np.abs(coverage(of_lead, sample) - LEVELS).max() < 0.025


def test_quantiles_never_cross_and_stay_on_their_side_of_zero():
    sample = simulated(0, narrow=3.0, bias=1.0)
    low = sample.forecasts.with_columns(pl.col("q0.1").clip(0))
    after = calibrate(low, sample.actuals.with_columns(pl.col("y").clip(0))).apply(low)
    values = after.select("q0.1", "q0.5", "q0.9").to_numpy()
    assert (np.diff(values, axis=1) >= 0).all()
    assert (values >= 0).all()


def counts(seed: int, rates: np.ndarray, factor: float = 1.0) -> Sample:
    """Poisson demand, forecast by the quantiles of its law with `factor` times the rate."""
    rng = np.random.default_rng(seed)
    num_dates, num = 44, len(rates)
    y = rng.poisson(rates[:, None], (num, num_dates)).astype(float)
    item, cutoff, lead = np.array([(i, t, h) for i in range(num) for t in range(40) for h in range(1, 5)]).T
    values = poisson.ppf(np.array(LEVELS), factor * rates[item][:, None])
    keys = {"unique_id": [f"s{i}" for i in item], "cutoff": START + cutoff * WEEK, "ds": START + (cutoff + lead) * WEEK}
    ids = np.repeat([f"s{i}" for i in range(num)], num_dates)
    dates = np.tile(START + np.arange(num_dates) * WEEK, num)
    actuals = pl.DataFrame({"unique_id": ids, "ds": dates, "y": y.ravel()})
    return Sample(pl.DataFrame(keys | {"horizon": lead} | columns(values)), actuals)


def test_counts_that_are_often_zero_keep_the_mass_there():
    sample = counts(0, np.geomspace(0.05, 3, NUM_ITEMS))
    assert_frame_equal(calibrate(sample.forecasts, sample.actuals).apply(sample.forecasts), sample.forecasts)
    wrong = counts(0, np.geomspace(0.05, 30, NUM_ITEMS), factor=2.0)
    after = calibrate(wrong.forecasts, wrong.actuals).apply(wrong.forecasts)
    assert not after.equals(wrong.forecasts)
    for name in ("q0.1", "q0.5", "q0.9"):
        assert (after[name] >= 0).all()
        assert (after.filter(wrong.forecasts[name] == 0)[name] == 0).all()


def test_demand_that_may_be_negative_may_be_forecast_so():
    sample = simulated(0, narrow=0.5)
    moved = [pl.col(f"q{level:g}") - pl.col("q0.5").mean().over("unique_id") for level in LEVELS]
    forecasts = sample.forecasts.with_columns(moved)
    mean = sample.forecasts.group_by("unique_id").agg(mean=pl.col("q0.5").mean())
    actuals = sample.actuals.join(mean, on="unique_id").with_columns(y=pl.col("y") - pl.col("mean"))
    after = calibrate(forecasts, actuals).apply(forecasts)
    assert np.abs(coverage(after, Sample(forecasts, actuals)) - LEVELS).max() < 0.02


def test_a_level_whose_change_would_cost_more_than_it_brings_stays():
    """Many small series whose coverage is off must not move the few large ones that have most of the demand."""
    small, large = simulated(0, narrow=0.5), simulated(1)
    lower = lambda frame, names: frame.with_columns(pl.col(names) / 1e6, pl.col("unique_id") + " small")  # noqa: E731
    names = [f"q{level:g}" for level in LEVELS]
    forecasts = pl.concat([lower(small.forecasts, names), large.forecasts])
    actuals = pl.concat([lower(small.actuals, ["y"]), large.actuals])
    after = calibrate(forecasts, actuals).apply(forecasts)
    both = [frame.join(actuals, on=["unique_id", "ds"]) for frame in (forecasts, after)]
    for level in LEVELS:
        error = [frame["y"] - frame[f"q{level:g}"] for frame in both]
        loss = [np.maximum(level * e, (level - 1) * e).sum() for e in error]
        assert loss[1] <= loss[0]


def test_too_few_dates_or_cutoffs_are_refused_with_the_number_needed():
    few = simulated(0, num_cutoffs=3, horizon=3)
    with pytest.raises(TooFewRevisionsError, match="have 5 target dates with demand, and 8 are needed"):
        calibrate(few.forecasts, few.actuals)
    one = simulated(0, num_cutoffs=2, horizon=7)
    with pytest.raises(TooFewRevisionsError, match="have 2 cutoffs with demand, and 3 are needed"):
        calibrate(one.forecasts, one.actuals)
    long = simulated(0, num_cutoffs=5, horizon=13)
    with pytest.raises(TooFewRevisionsError, match="have 5 cutoffs with demand, and 6 are needed"):
        calibrate(long.forecasts, long.actuals)
    nine = simulated(0, num_cutoffs=9, horizon=1, num_items=1)
    with pytest.raises(TooFewRevisionsError, match="have 9 forecasts with demand, and 10 are needed"):
        calibrate(nine.forecasts, nine.actuals)
    unknown = simulated(0)
    last = unknown.actuals.filter(pl.col("ds") < START + 6 * WEEK)
    with pytest.raises(TooFewRevisionsError, match="have 5 target dates"):
        calibrate(unknown.forecasts, last)


def test_a_calibrator_reads_back_bit_by_bit():
    sample = simulated(0, narrow=0.7, bias=0.2)
    made = calibrate(sample.forecasts, sample.actuals)
    again = Calibrator.from_json(made.to_json())
    assert again.shift.tobytes() == made.shift.tobytes()
    assert_frame_equal(again.apply(sample.forecasts), made.apply(sample.forecasts), check_exact=True)
    assert again.shifts.equals(made.shifts)


@pytest.mark.parametrize("text", ["{}", "[]", "no", json.dumps({"format": "mqcast-calibrator", "version": 9})])
def test_what_is_no_calibrator_is_refused(text, tmp_path: Path):
    with pytest.raises(ArtifactError, match="no calibrator"):
        Calibrator.from_json(text)
    with pytest.raises(ArtifactError, match="there is no calibrator at"):
        Calibrator.load(tmp_path / "calibrator.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("levels", [0.9, 0.5, 0.1]),
        ("levels", "0.1"),
        ("sizes", [2.0, 1.0]),
        ("sizes", [1.0]),
        ("shift", [[1.0]]),
        ("shift", [[[[float("nan")]]] * 3]),
        ("by", ["category"]),
        ("by", "x"),
        ("slices", [["a"], ["a"]]),
        ("not_negative", 1),
        ("num_dates", True),
        ("run", "rm"),
    ],
)
def test_a_calibrator_with_one_impossible_field_is_refused(field, value):
    facts = {
        "levels": LEVELS,
        "shift": np.zeros((2, 3, 1, 1)).tolist(),
        "sizes": [],
        "by": ["brand"],
        "slices": [["a"]],
    }
    facts |= {"format": "mqcast-calibrator", "version": 1, "not_negative": True, "num_dates": 9}
    assert Calibrator.from_json(json.dumps(facts)).slices == (("a",),)
    whole = field != "by" or value != ["category"]
    facts |= {field: value} if whole else {"by": ["brand", "category"]}
    with pytest.raises(ArtifactError, match="no calibrator"):
        Calibrator.from_json(json.dumps(facts))


def test_a_frame_keeps_its_names_order_library_and_other_columns():
    sample = simulated(0, narrow=0.5, num_items=8)
    names = {"unique_id": "sku", "ds": "week"}
    frame = sample.forecasts.rename(names).sample(fraction=1, shuffle=True, seed=1).with_columns(note=pl.lit("x"))
    actuals = sample.actuals.rename(names | {"y": "sold"})
    calibrator = calibrate(frame, actuals, id="sku", time="week", target="sold")
    after = calibrator.apply(frame.to_pandas(), id="sku", time="week")
    assert list(after.columns) == frame.columns
    expected = calibrator.apply(sample.forecasts).rename(names)
    both = pl.from_pandas(after).join(expected, on=["sku", "cutoff", "week"])
    assert (both["q0.9"] == both["q0.9_right"]).all()
    with pytest.raises(ArtifactError, match=r"fitted to q0\.9"):
        calibrator.apply(frame.drop("q0.9"), id="sku", time="week")


def in_slices(seed: int, num_items: int = NUM_ITEMS) -> tuple[Sample, pl.DataFrame]:
    """Forecasts that are too narrow for half of the items, brand a; brand c has a single item, like those of b."""
    sample = simulated(seed, num_items=num_items)
    brand = ["c" if i == 1 else "ab"[i % 2] for i in range(num_items)]
    static = pl.DataFrame({"unique_id": [f"s{i}" for i in range(num_items)], "brand": brand})
    is_a = pl.col("unique_id").is_in(static.filter(brand="a")["unique_id"].implode())
    half = [pl.col("q0.5") + (pl.col(q) - pl.col("q0.5")) * pl.when(is_a).then(0.5).otherwise(1.0) for q in COLUMNS]
    return Sample(sample.forecasts.with_columns(half[0].alias("q0.1"), half[2].alias("q0.9")), sample.actuals), static


def test_a_slice_that_is_off_moves_and_the_others_stay():
    (sample, static), (later, _) = in_slices(0), in_slices(1)
    calibrator = calibrate(sample.forecasts, sample.actuals, by="brand", static=static)
    after = calibrator.apply(later.forecasts, static=static).join(static, on="unique_id")
    for brand in ("a", "b"):
        assert np.abs(coverage(after.filter(brand=brand), later) - LEVELS).max() < 0.03
    plain = calibrate(sample.forecasts, sample.actuals).apply(later.forecasts).join(static, on="unique_id")
    assert np.abs(coverage(plain.filter(brand="a"), later) - LEVELS).max() > 0.05
    assert set(calibrator.shifts["brand"].unique()) == {None, "a", "b", "c"}


def test_slices_may_be_columns_of_the_forecasts_and_unknown_ones_move_as_all():
    (sample, static), named = in_slices(0), {}
    for name, frame in (("of forecasts", sample.forecasts.join(static, on="unique_id")), ("static", sample.forecasts)):
        made = calibrate(frame, sample.actuals, by=["brand"], static=None if name == "of forecasts" else static)
        named[name] = made.apply(frame, static=static).select(COLUMNS)
    assert_frame_equal(named["static"], named["of forecasts"])
    made = calibrate(sample.forecasts, sample.actuals, by="brand", static=static)
    other = static.with_columns(brand=pl.when(pl.col("unique_id") == "s3").then(pl.lit("new")).otherwise("brand"))
    moved = made.apply(sample.forecasts, static=other).filter(unique_id="s3")
    rows = sample.forecasts.filter(unique_id="s3")
    expected = made.moved(rows.select(COLUMNS).to_numpy(), rows["horizon"].to_numpy(), 0)
    np.testing.assert_allclose(moved.select(COLUMNS).to_numpy(), expected)
    with pytest.raises(DataError, match="no forecast is of a slice that the calibrator was fitted to: brand are"):
        made.apply(sample.forecasts, static=static.with_columns(brand=pl.lit("z")))
    with pytest.raises(ConfigError, match="by names 'cutoff', whose values do not come again"):
        calibrate(sample.forecasts, sample.actuals, by="cutoff")
    with pytest.raises(MissingColumnError, match="nothing to group by called 'brandt'"):
        calibrate(sample.forecasts, sample.actuals, by="brandt", static=static)


def test_forecasts_of_each_size_are_moved_as_their_own_errors_say():
    """Small series are forecast too narrowly, and large ones well: one shift for both would serve neither."""
    small, large = simulated(0, narrow=0.4, num_items=40), simulated(1)
    lower = lambda frame, names: frame.with_columns(pl.col(names) / 1e6, pl.col("unique_id") + " small")  # noqa: E731
    forecasts = pl.concat([lower(small.forecasts, COLUMNS), large.forecasts])
    both = Sample(forecasts, pl.concat([lower(small.actuals, ["y"]), large.actuals]))
    after = calibrate(both.forecasts, both.actuals).apply(both.forecasts)
    is_small = pl.col("unique_id").str.ends_with("small")
    for part in (after.filter(is_small), after.filter(~is_small)):
        assert np.abs(coverage(part, both) - LEVELS).max() < 0.03


def test_a_level_that_cannot_be_judged_does_not_keep_the_others_from_moving():
    sample = simulated(0, narrow=0.5)
    plain = calibrate(sample.forecasts, sample.actuals)
    rare = sample.forecasts.with_columns(pl.lit(0.0).alias("q0.01"))  # never moved: demand is often 0 there
    found = calibrate(rare, sample.actuals)
    assert (found.shift[:, 0] == 0).all()
    after = found.apply(rare)
    assert np.abs(coverage(after, sample) - LEVELS).max() < 0.02
    assert (plain.shift[:, 0] != 0).any()


def test_the_effect_on_later_cutoffs_is_what_evaluating_both_frames_tells():
    sample, later = simulated(0, narrow=0.5), simulated(1, narrow=0.5)
    calibrator = calibrate(sample.forecasts, sample.actuals)
    effect = calibrator.effect(later.forecasts, later.actuals)
    assert effect["coverage_before"].to_list() == pytest.approx(coverage(later.forecasts, later).tolist())
    after = calibrator.apply(later.forecasts)
    assert effect["coverage_after"].to_list() == pytest.approx(coverage(after, later).tolist())
    loss = evaluate(after, later.actuals)["quantile_loss_q0.9"][0]
    assert effect["loss_after"][2] == pytest.approx(loss)
    assert effect["loss_change"][2] == pytest.approx(loss / effect["loss_before"][2] - 1)
    assert effect["excess_after"].to_list() == volatility(after, later.actuals, LEVELS).summary["excess"].to_list()
    by_lead = calibrator.effect(later.forecasts, later.actuals, by="horizon")
    assert by_lead.columns[:3] == ["horizon", "level", "rows"]
    assert len(by_lead) == 3 * HORIZON


def test_later_demand_changes_no_calibrated_forecast():
    """What the calibrator was fitted to ends where the forecasts begin; each row is moved by itself."""
    sample = simulated(0, narrow=0.5)
    calibrator = calibrate(sample.forecasts, sample.actuals)
    whole, part = calibrator.apply(sample.forecasts), calibrator.apply(sample.forecasts[7:8])
    assert_frame_equal(whole[7:8], part, check_exact=True)


def test_the_commands_calibrate_and_recalibrate_files(tmp_path: Path):
    (sample, static), (later, _) = in_slices(0, num_items=20), in_slices(1, num_items=20)
    frames = {"backtest": sample.forecasts, "actuals": sample.actuals, "static": static, "later": later.forecasts}
    for name, frame in frames.items():
        frame.write_parquet(tmp_path / f"{name}.parquet")
    made, files = tmp_path / "calibrator.json", {name: str(tmp_path / f"{name}.parquet") for name in frames}
    options = ["--out", str(made), "--by", "brand", "--static", files["static"], "--json"]
    done = CliRunner().invoke(app, ["calibrate", files["backtest"], files["actuals"], *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["moved"] == 3
    wanted = calibrate(sample.forecasts, sample.actuals, by="brand", static=static)
    assert made.read_text() == wanted.to_json()
    out = str(tmp_path / "moved.parquet")
    done = CliRunner().invoke(app, ["recalibrate", files["later"], str(made), out, "--static", files["static"]])
    assert done.exit_code == 0, done.output
    assert_frame_equal(pl.read_parquet(out), wanted.apply(later.forecasts, static=static))
    done = CliRunner().invoke(
        app, ["calibrate", files["backtest"], files["actuals"], *options, "--judge", files["later"]]
    )
    assert [row["level"] for row in json.loads(done.output)["effect"]] == list(LEVELS)


def test_longer_leads_than_those_fitted_move_like_the_longest():
    short, long = simulated(0, narrow=0.5, horizon=3), simulated(0, narrow=0.5, horizon=9)
    after = calibrate(short.forecasts, short.actuals).apply(long.forecasts)
    assert np.abs(coverage(after.filter(pl.col("horizon") == 9), long) - LEVELS).max() < 0.04


def test_the_error_of_a_mean_counts_what_goes_together_once():
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(400), 5)
    assert error_of_mean(rng.normal(size=2000), clusters, 0) == pytest.approx(2000**-0.5, rel=0.1)
    assert error_of_mean(np.repeat(rng.normal(size=400), 5), clusters, 0) == pytest.approx(400**-0.5, rel=0.1)
    assert error_of_mean(np.repeat(rng.normal(size=100), 20), clusters, 20) == pytest.approx(100**-0.5, rel=0.3)
