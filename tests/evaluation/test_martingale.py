"""Volatility: against loops, against oracles, and on the paper's own examples."""

from functools import cache

import numpy as np
import polars as pl
import pytest
from judged import random_frames, revisions_of, week, weeks
from scipy.special import gammainc, gammaincinv, ndtr, ndtri

from mqcast import volatility
from mqcast.errors import ConfigError, DataError, SeriesLeftOutWarning
from mqcast.evaluation.martingale_sums import martingale
from mqcast.evaluation.slices import peaks, short_horizons
from mqcast.evaluation.trajectories import CASES
from mqcast.simulate import World, count_world, lognormal_world
from mqcast.simulate.lognormal import LognormalOracle

LEVELS = (0.5, 0.9)


def naive_process(frame: pl.DataFrame, actuals: pl.DataFrame, level: float, weight=None) -> list[float]:
    """V by step, averaged over the targets that have every lead, as sums over one target after another."""
    demand = {(row["unique_id"], row["ds"]): row["y"] for row in actuals.rows(named=True)}
    horizon, found = frame["horizon"].max(), []
    for (series, date), rows in frame.sort("cutoff").group_by(["unique_id", "ds"], maintain_order=True):
        if len(rows) < horizon:
            continue
        pairs = [sorted(pair) for pair in rows.select("q0.5", "q0.9").rows()]
        tau = pairs[0][LEVELS.index(level)]
        p = [gamma_cdf(low, high, tau) for low, high in pairs] + [float(demand[series, date] <= tau)]
        moved, v = 0.0, [0.0]
        for j in range(1, len(p)):
            moved += (p[j] - p[j - 1]) ** 2
            v.append(moved - (p[j] - p[0]) ** 2)
        found.append((1.0 if weight is None else weight[series], v))
    total = sum(w for w, _ in found)
    return [sum(w * v[j] for w, v in found) / total for j in range(horizon + 1)]


def gamma_cdf(low: float, high: float, at: float) -> float:
    """By bisection on the shape."""
    small, large = 1e-2, 1e6
    for _ in range(200):
        shape = np.sqrt(small * large)
        ratio = gammaincinv(shape, 0.9) / gammaincinv(shape, 0.5)
        small, large = (shape, large) if ratio > high / low else (small, shape)
    return gammainc(shape, at / low * gammaincinv(shape, 0.5))


def test_the_process_is_the_loop_over_targets_and_steps():
    frame, actuals = random_frames(num_items=4, num_cutoffs=7, horizon=4)
    found = volatility(frame, actuals, resamples=10)
    for level in LEVELS:
        mine = found.process.filter(level=level)
        assert mine["step"].to_list() == [0, 1, 2, 3, 4]
        assert mine["lead"].to_list() == [4, 3, 2, 1, 0]
        np.testing.assert_allclose(mine["V"], naive_process(frame, actuals, level), atol=1e-8)
        assert (mine["targets"] == 16).all()
    np.testing.assert_allclose(found.summary["excess"], found.process.filter(lead=0)["V"])


def test_demand_weights_are_the_mean_up_to_the_first_cutoff():
    frame, actuals = random_frames(num_items=4, num_cutoffs=7, horizon=4)
    early = actuals.filter(pl.col("ds") <= frame["cutoff"].min())
    weight = dict(early.group_by("unique_id").agg(pl.mean("y")).rows())
    found = volatility(frame, actuals, weights="demand", resamples=3)
    for level in LEVELS:
        expected = naive_process(frame, actuals, level, weight)
        np.testing.assert_allclose(found.process.filter(level=level)["V"], expected, atol=1e-8)
    table = pl.DataFrame({"unique_id": list(weight), "weight": list(weight.values())})
    for same in (weight, table):
        again = volatility(frame, actuals, weights=same, resamples=3)
        np.testing.assert_allclose(again.summary["excess"], found.summary["excess"])


def test_v_is_minus_twice_the_products_of_position_and_revision():
    p = np.random.default_rng(0).random((3, 50, 9))
    v, q, u = martingale(p)
    products = (p[..., :-1] - p[..., :1]) * np.diff(p, axis=-1)
    np.testing.assert_allclose(v[..., 1:], -2 * np.cumsum(products, axis=-1), atol=1e-12)
    np.testing.assert_allclose(v[..., :2], 0, atol=1e-12)
    spread = p * (1 - p)
    np.testing.assert_allclose(u, q + spread - spread[..., :1], atol=1e-12)


# The paper's motivating examples.


def test_forecasts_of_40_and_60_in_turn_under_constant_demand_of_50_are_excess_volatility():
    paths = [[40, 60] * 4, [60, 40] * 4] * 20
    found = volatility(*revisions_of(paths, [50.0] * 40), resamples=200).summary.filter(level=0.5)
    assert found["lo"][0] > 0.5
    assert found["reading"][0] == "over-reaction"
    assert found["direction_changes"][0] == 6
    assert found["mqc"][0] == pytest.approx(20)
    assert found["sqpc"][0] == pytest.approx(0.4)


def test_forecasts_that_go_to_40_or_60_as_demand_itself_does_are_not():
    """Demand jumps to 40 or 60, each as likely as not, and the forecaster learns which one week ahead."""
    jumps = np.random.default_rng(0).choice([40.0, 60.0], 400)
    frame, actuals = revisions_of([[50, 50, 50, jump] for jump in jumps], [*jumps], spread=1.0)
    known = frame.with_columns(pl.Series("spread", np.where(frame["q0.5"] == 50, 10.0, 0.0)))

    def chances(rows, values):  # 40 and 60 with equal chance, or the one that it will be
        middle, spread = rows["q0.5"].to_numpy(), rows["spread"].to_numpy()
        return ((middle - spread <= values) * 1.0 + (middle + spread <= values)) / 2

    found = volatility(known, actuals, levels=0.5, cdf=chances).summary
    assert found["excess"][0] == pytest.approx(0, abs=1e-12)
    assert found["coverage"][0] == pytest.approx(0.5, abs=0.1)
    assert found["mqc"][0] > 3  # it moved, and with cause
    plain = known.with_columns(pl.when(pl.col("spread") > 0).then(60.0).otherwise("q0.9").alias("q0.9"))
    assert volatility(plain, actuals).summary["excess"].abs().max() < 1e-9


# Oracles.


@cache
def world_of(name: str) -> tuple[World, int, int]:
    if name == "lognormal":
        return lognormal_world(1500, 110, 12), 60, 109
    return count_world(900, 56, 8, num_categories=2), 32, 55


@pytest.mark.parametrize("weights", [None, "demand"])
@pytest.mark.parametrize("name", ["lognormal", "counts"])
def test_the_oracle_with_its_exact_chances_has_no_excess_volatility(name: str, weights):
    world, first, last = world_of(name)
    frame = world.oracle_forecasts(LEVELS, first, last)
    found = volatility(frame, world.actuals, cdf=world.oracle_chances, weights=weights, resamples=400)
    for row in found.process.filter(pl.col("step") > 1).rows(named=True):
        error = (row["hi"] - row["lo"]) / (2 * 1.96)
        assert abs(row["V"]) < 3 * error
        assert error < 0.005
    for row in found.summary.rows(named=True):
        assert row["coverage"] == pytest.approx(row["announced"], abs=0.02)
        assert sum(row[case] for case in CASES) == 0


def test_weights_of_realised_demand_are_biased_even_for_the_oracle():
    world, first, last = world_of("lognormal")
    frame = world.oracle_forecasts(LEVELS, first, last)
    found = volatility(frame, world.actuals, cdf=world.oracle_chances, weights="realised", resamples=200).summary
    assert found.filter(level=0.9)["reading"][0] == "under-reaction"
    assert found.filter(level=0.9)["excess"][0] < -0.01


@cache
def reacting_world() -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """The oracle's log-normal forecasts, and those of two who react too much and too little to the same news."""
    horizon, first, last = 26, 84, 129
    world = lognormal_world(800, 130, horizon, num_categories=1, psi=0.0)
    assert isinstance(world.oracle, LognormalOracle)
    mean, sd = world.oracle.log_moments(first - 1, last)
    surprise = np.log(world.demand[:, first : last + 1]) - mean[:, 0, :-1]
    surprise *= world.oracle.settings.sigma_eps**2 / sd[:, 0, :-1] ** 2  # what is left of it after filtering
    mean, sd = mean[:, :, 1:], np.broadcast_to(sd[:, :, 1:], mean[:, :, 1:].shape)
    slow = mean.copy()
    for target in range(first + horizon, last + 2):
        for lead in range(1, horizon):
            slow[:, lead - 1, target - lead - first] += mean[:, -1, target - horizon - first]
            slow[:, lead - 1, target - lead - first] /= 2
    keys = world.oracle_forecasts((0.5,), first, last).drop("q0.5")
    frames = {}
    for name, center in {"oracle": mean, "jumpy": mean + surprise[:, None] / 4, "slow": slow}.items():
        m, s = (part.transpose(0, 2, 1).ravel() for part in (center, sd))
        values = {f"q{level:g}": np.exp(m + ndtri(level) * s) for level in LEVELS}
        frames[name] = keys.with_columns(**{"m": m, "s": s} | values)
    return world.actuals, frames


def normal_chances(rows: pl.DataFrame, values: np.ndarray) -> np.ndarray:
    return ndtr((np.log(values) - rows["m"].to_numpy()) / rows["s"].to_numpy())


@pytest.mark.parametrize(
    ("name", "expected"), [("oracle", (0, 0)), ("jumpy", (0.297, 0.095)), ("slow", (-0.046, -0.007))]
)
def test_over_and_under_reaction_have_the_sizes_that_are_known(name: str, expected):
    actuals, frames = reacting_world()
    found = volatility(frames[name], actuals, cdf=normal_chances, leads="complete", resamples=200).summary
    assert found["targets"][0] == 800 * 21
    for row, size in zip(found.rows(named=True), expected, strict=True):
        assert row["excess"] == pytest.approx(size, abs=0.1 * abs(size) + 0.006)
        assert row["reading"] == {"jumpy": "over-reaction", "slow": "under-reaction"}.get(name, "not significant")


def test_a_gamma_misfit_moves_the_oracle_by_little_and_keeps_the_order():
    actuals, frames = reacting_world()
    for cdf in ("gamma", "quantiles"):
        found = {
            name: volatility(frame, actuals, cdf=cdf, leads="complete", resamples=20).summary["excess"].to_numpy()
            for name, frame in frames.items()
        }
        assert (found["slow"] < found["oracle"]).all()
        assert (found["oracle"] < found["jumpy"] - 0.05).all()
        assert (np.abs(found["oracle"]) < 0.05).all()
    assert volatility(frames["oracle"], actuals, leads="complete", resamples=2).summary["excess"][0] == pytest.approx(
        -0.0136, abs=0.006
    )


def test_reduction_is_paired_and_null_where_the_baseline_has_nothing_to_reduce():
    actuals, frames = reacting_world()
    judged = {name: volatility(frame, actuals, cdf=normal_chances, resamples=200) for name, frame in frames.items()}
    found = judged["slow"].reduction(judged["jumpy"])
    for row in found.rows(named=True):
        assert row["reduction"] == pytest.approx(1 - abs(row["excess"]) / abs(row["baseline_excess"]))
        assert row["lo"] < row["reduction"] < row["hi"]
        assert 0 < row["difference_hi"] - row["difference_lo"] < 0.05
    nothing = judged["jumpy"].reduction(judged["oracle"])
    assert nothing["reduction"].null_count() == 2
    assert nothing["difference"].null_count() == 0
    same = judged["jumpy"].reduction(judged["jumpy"])
    assert same["difference_lo"].to_list() == same["difference_hi"].to_list() == [0.0, 0.0]


def test_models_of_unlike_rows_are_not_paired():
    frame, actuals = random_frames(num_cutoffs=7)
    whole = volatility(frame, actuals, resamples=5)
    with pytest.raises(DataError, match="series 'item 3': only one of the two"):
        volatility(frame.filter(pl.col("unique_id") != "item 3"), actuals, resamples=5).reduction(whole)
    cut = frame.filter((pl.col("unique_id") != "item 1") | (pl.col("ds") != frame["ds"].sort()[40]))
    with pytest.raises(DataError, match=r"series 'item 1': .* targets here, .* in the baseline"):
        volatility(cut, actuals, resamples=5, leads="available").reduction(
            volatility(frame, actuals, resamples=5, leads="available")
        )
    for setting in ({"seed": 1}, {"cdf": "quantiles"}, {"weights": "realised"}, {"leads": "complete"}):
        with pytest.raises(ConfigError, match=rf"other {next(iter(setting))}; judge both"):
            volatility(frame, actuals, resamples=5, **setting).reduction(whole)
    later = [table.with_columns(pl.col("ds") + pl.duration(days=7)) for table in (frame, actuals)]
    moved = later[0].with_columns(pl.col("cutoff") + pl.duration(days=7))
    with pytest.raises(DataError, match="other dates"):
        volatility(moved, later[1], resamples=5).reduction(whole)
    with pytest.raises(ConfigError, match="the baseline is a DataFrame"):
        whole.reduction(whole.summary)
    with pytest.raises(ConfigError, match="other levels, slices or resamples"):
        volatility(frame, actuals, resamples=6).reduction(whole)


def test_intervals_come_from_resampled_items_and_dates_and_repeat_with_the_seed():
    frame, actuals = random_frames(num_items=12, num_cutoffs=16)
    one, again, other = (volatility(frame, actuals, resamples=300, seed=seed).summary for seed in (1, 1, 2))
    assert one.equals(again)
    assert not one.equals(other)
    targets = volatility(frame, actuals, resamples=2).summary["targets"][0]
    dates = [ds for ds, rows in frame.group_by("ds") if rows["cutoff"].n_unique() == 4]
    groups = [[pl.col("unique_id") == f"item {i}" for i in range(12)], [pl.col("ds") == ds[0] for ds in dates]]
    variance = 0.0
    for parts in groups:
        means = [volatility(frame.filter(part), actuals, resamples=2, leads="complete").summary for part in parts]
        assert sum(found["targets"][0] for found in means) == targets
        excess = [found["excess"][0] for found in means]
        assert one["excess"][0] == pytest.approx(np.mean(excess))
        variance += np.var(excess) / len(excess)
    assert (one["hi"][0] - one["lo"][0]) / (2 * 1.96) == pytest.approx(np.sqrt(variance), rel=0.25)


def test_items_that_sell_together_are_no_independent_evidence():
    frame, actuals = random_frames(num_items=1, num_cutoffs=20)
    copies = [f"copy {i}" for i in range(30)]
    alike = [pl.concat([table.with_columns(unique_id=pl.lit(name)) for name in copies]) for table in (frame, actuals)]
    found = volatility(*alike, resamples=200).summary.row(0, named=True)
    assert found["hi"] - found["lo"] > 0.02


def test_a_single_item_has_no_interval():
    frame, actuals = random_frames(num_items=1, num_cutoffs=7)
    found = volatility(frame, actuals, resamples=10).summary
    assert found["lo"].null_count() == 2
    assert found["reading"][0] == "one item: no interval"


# Which targets count, and from when on.


def test_with_few_creation_times_each_target_begins_with_its_first_forecast():
    frame, actuals = random_frames(num_items=2, num_cutoffs=5, horizon=4)  # fewer than 2 x 4 - 1
    found = volatility(frame, actuals, levels=0.5, resamples=2).process
    assert found["targets"].to_list() == [8, 10, 12, 12, 12]  # the first and the last date have one forecast
    only = volatility(frame, actuals, levels=0.5, leads="complete", resamples=2).process
    assert only["targets"].to_list() == [4, 4, 4, 4, 4]


def test_forecasts_of_every_other_lead_are_judged_as_far_as_they_go():
    frame, actuals = random_frames(num_items=3, num_cutoffs=12, horizon=4)
    found = volatility(frame.filter(pl.col("horizon") % 2 == 0), actuals, levels=0.5, resamples=2).summary
    assert found["targets"][0] > 0
    assert found["gaps"][0] > 0


def test_a_step_without_a_forecast_is_no_revision():
    paths = [[40.0, 60.0, 50.0, 45.0]] * 2
    frame, actuals = revisions_of(paths, [44.0, 44.0])
    without = frame.filter(pl.col("cutoff") != week(1)).with_columns(
        horizon=4 - (pl.col("cutoff") - week(0)).dt.total_days() // 7
    )
    found = volatility(without, actuals, levels=0.5, leads="available", resamples=2)
    assert found.summary["gaps"][0] == 2
    assert found.process["V"][1] == 0
    straight, _ = revisions_of([[40.0, 50.0, 45.0]] * 2, [44.0, 44.0])
    later = actuals.with_columns(pl.col("ds") - pl.duration(days=7))
    expected = volatility(straight, later, levels=0.5, resamples=2)
    assert found.summary["excess"][0] == pytest.approx(expected.summary["excess"][0])
    assert found.summary["mqc"][0] == pytest.approx(expected.summary["mqc"][0])


def test_one_forecast_a_target_is_no_revision_and_is_told():
    frame, actuals = random_frames(num_cutoffs=1)
    with pytest.raises(DataError, match="no target has two forecasts and an actual; give forecasts of the same dates"):
        volatility(frame, actuals)


def test_slices_are_judged_as_the_frame_filtered():
    frame, actuals = random_frames(num_items=6, num_cutoffs=9)
    found = volatility(frame, actuals, slices=short_horizons(3), resamples=20)
    alone = volatility(frame.filter(pl.col("horizon") <= 3), actuals, resamples=20)
    assert found.summary["slice"].unique(maintain_order=True).to_list() == ["Overall", "Leads 1-3"]
    assert found.summary.filter(slice="Leads 1-3").drop("slice").equals(alone.summary)
    assert found.process.filter(slice="Leads 1-3").drop("slice").equals(alone.process)


# What is not as it should be.


def test_every_improper_case_is_counted():
    paths = {"a": [(5, 9), (9, 5)], "b": [(-1, 4), (2, 4)], "c": [(0, 0), (0, 3)], "d": [(7, 7), (7, 9)]}
    rows = [
        {"unique_id": name, "cutoff": week(j), "ds": week(2), "q0.5": float(low), "q0.9": float(high)}
        for name, path in paths.items()
        for j, (low, high) in enumerate(path)
    ]
    actuals = pl.DataFrame({"unique_id": list(paths), "ds": weeks(np.full(4, 2)), "y": [6.0, 1.0, 0.0, 8.0]})
    found = volatility(pl.DataFrame(rows), actuals, resamples=2).summary.row(0, named=True)
    counts = {case: found[case] for case in CASES if found[case]}
    assert counts == {"crossing": 1, "below_zero": 1, "at_zero": 1, "half_at_zero": 2, "no_spread": 1}


def test_logarithms_are_judged_as_the_demand_itself():
    frame, actuals = random_frames(num_items=4, num_cutoffs=7)
    logs = [table.with_columns(pl.col(pl.Float64).log() - 3) for table in (frame, actuals)]
    scaled = [table.with_columns(pl.col(pl.Float64) / np.exp(3)) for table in (frame, actuals)]
    assert logs[1]["y"].min() < 0
    one, other = (volatility(*pair, resamples=2).summary["excess"] for pair in (logs, scaled))
    np.testing.assert_allclose(one, other, atol=1e-9)
    large = [table.with_columns(pl.col(pl.Float64) * 1000 - 20_000) for table in (frame, actuals)]
    with pytest.raises(ConfigError, match="no gamma fits it; use cdf='quantiles'"):
        volatility(*large)
    assert volatility(*large, cdf="quantiles", resamples=2).summary["excess"].is_finite().all()


def test_a_few_returns_among_demand_are_no_logarithms():
    frame, actuals = random_frames(num_items=4, num_cutoffs=9)
    returned = actuals.with_columns(y=pl.when(pl.arange(pl.len()) == 15).then(-1.0).otherwise(pl.col("y")))
    zero = actuals.with_columns(y=pl.when(pl.arange(pl.len()) == 15).then(0.0).otherwise(pl.col("y")))
    one, other = (volatility(frame, table, resamples=2).summary for table in (returned, zero))
    assert one.equals(other)
    assert one["logarithms"].to_list() == [0, 0]


def test_quantiles_of_zero_are_told_and_can_be_left_out():
    """Demand of 0, 1 or 2: even honest medians jump between 0 and 1, and two quantiles do not tell the chance of 0."""
    rng = np.random.default_rng(0)
    paths = [rng.integers(0, 2, 5).astype(float).tolist() for _ in range(60)]
    frame, actuals = revisions_of(paths, rng.integers(0, 3, 60).astype(float).tolist())
    frame = frame.with_columns(pl.lit(2.0).alias("q0.9"))
    kept = volatility(frame, actuals, levels=0.5, resamples=20).summary.row(0, named=True)
    zeros = sum(path[0] == 0 for path in paths)
    assert kept["announced_0"] == pytest.approx(zeros / 60)
    assert kept["reading"] == f"says little: {zeros / 60:.0%} announced 0"
    dropped = volatility(frame, actuals, levels=0.5, zeros="drop", resamples=20).summary.row(0, named=True)
    assert dropped["targets"] == 60 - zeros
    first = frame.filter(pl.col("cutoff") == week(0), pl.col("q0.5") > 0).select("unique_id")
    alone = volatility(frame.join(first, on="unique_id", how="semi"), actuals, levels=0.5, resamples=20).summary
    assert dropped["excess"] == pytest.approx(alone["excess"][0])


def test_a_slice_without_a_target_is_said_to_be_empty():
    frame, actuals = random_frames(num_items=6)
    found = volatility(frame, actuals, slices=[peaks({"never": week(99)}), short_horizons(3)], resamples=5).summary
    never = found.filter(slice="never")
    assert never["reading"].to_list() == ["no target", "no target"]
    assert never["excess"].null_count() == 2
    assert found.filter(slice="Leads 1-3")["targets"].min() > 0


def test_levels_may_come_from_arithmetic():
    frame, actuals = random_frames(levels=(0.3, 0.9), num_cutoffs=7)
    assert volatility(frame, actuals, levels=[0.1 * 3, 0.9], resamples=2).summary["level"][0] == pytest.approx(0.3)


def test_the_short_form_shows_the_reading():
    frame, actuals = random_frames(num_items=6)
    assert "reading" in repr(volatility(frame, actuals, resamples=5))


def test_impossible_settings_are_refused():
    frame, actuals = random_frames()
    for setting, problem in (
        ({"cdf": "normal"}, "cdf is 'normal'"),
        ({"weights": "sales"}, "weights is 'sales'"),
        ({"leads": "all"}, "leads is 'all'"),
        ({"resamples": 0}, "resamples is 0"),
        ({"cdf": lambda rows, values: np.zeros(3)}, r"shape \(3,\)"),
        ({"cdf": lambda rows, values: values * 0 + 2.0}, "no probability"),
    ):
        with pytest.raises(ConfigError, match=problem):
            volatility(frame, actuals, **setting)
    with pytest.raises(ConfigError, match="one quantile a forecast"):
        volatility(frame.drop("q0.9"), actuals, levels=0.5)
    with pytest.raises(DataError, match=r"series 'item \d': its weight is"):
        volatility(frame, actuals, weights={f"item {i}": float(i - 1) for i in range(5)})


def test_demand_weights_need_history_and_say_so():
    frame, actuals = random_frames(num_items=3)
    late = actuals.filter(pl.col("ds") > frame["cutoff"].min())
    with pytest.raises(DataError, match="reach back before the first cutoff"):
        volatility(frame, late, weights="demand")
    some = actuals.filter((pl.col("ds") > frame["cutoff"].min()) | (pl.col("unique_id") != "item 1"))
    with pytest.warns(SeriesLeftOutWarning, match="1 of 3 items .*weigh nothing: 'item 1'"):
        volatility(frame, some, weights="demand", resamples=2)
