"""Weights of members: the better one counts more, alike ones count alike, and few dates say little."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy.stats import norm

from mqcast.errors import ArtifactError, ConfigError, DataError
from mqcast.levels import pinball
from mqcast.models.blend import Blend, fit_blend, judged

LEVELS = (0.1, 0.5, 0.9)
NAMES = [f"q{level:g}" for level in LEVELS]
WEEK = np.timedelta64(7, "D")
START = np.datetime64("2024-01-07", "us")


def simulated(noises: dict[str, float], num_items=20, num_cutoffs=30, horizon=4, seed=0):
    """Members that know demand up to an error of their own, so many spreads of demand large."""
    rng = np.random.default_rng(seed)
    num_dates = num_cutoffs + horizon
    size = 10 ** rng.uniform(0, 3, num_items)
    mean = size[:, None] * (1 + 0.3 * rng.random((num_items, num_dates)))
    y = mean + 0.2 * size[:, None] * rng.normal(size=mean.shape)
    item, cutoff, lead = np.indices((num_items, num_cutoffs, horizon)).reshape(3, -1) + np.array([[0], [0], [1]])
    target = cutoff + lead
    keys = {"unique_id": [f"s{i}" for i in item], "cutoff": START + cutoff * WEEK, "ds": START + target * WEEK}
    frames = {}
    for name, noise in noises.items():
        centre = mean[item, target] + noise * 0.2 * size[item] * rng.normal(size=len(item))
        width = 0.2 * size[item] * np.sqrt(1 + noise**2)
        values = centre[:, None] + width[:, None] * norm.ppf(LEVELS)
        frames[name] = pl.DataFrame(keys | {"horizon": lead} | dict(zip(NAMES, values.T, strict=True)))
    ids = np.repeat([f"s{i}" for i in range(num_items)], num_dates)
    dates = np.tile(START + np.arange(num_dates) * WEEK, num_items)
    return frames, pl.DataFrame({"unique_id": ids, "ds": dates, "y": y.ravel()})


def loss(frame: pl.DataFrame, actuals: pl.DataFrame) -> float:
    both = frame.join(actuals, on=["unique_id", "ds"])
    y = both["y"].to_numpy()
    size = both.select(pl.col("y").abs().mean().over("unique_id"))["y"].to_numpy()
    return float(sum((pinball(y, both[n].to_numpy(), tau) / size).mean() for n, tau in zip(NAMES, LEVELS, strict=True)))


def test_weights_are_a_mean_and_the_better_member_counts_more():
    frames, actuals = simulated({"good": 0.3, "bad": 2.0})
    blend = fit_blend(judged(frames, actuals))
    assert (blend.weight >= 0).all()
    assert np.allclose(blend.weight.sum(axis=1), 1)
    assert blend.weights["good"] > 0.85


def test_before_any_evidence_members_weigh_what_is_said():
    frames, actuals = simulated({"one": 1.0, "two": 1.0}, num_cutoffs=4)
    few = replace(judged(frames, actuals), num_dates=1e-6)
    assert np.allclose(fit_blend(few).weight, 0.5, atol=0.02)
    assert np.allclose(fit_blend(few, {"two": 0.5}).weight, [2 / 3, 1 / 3], atol=0.02)
    many = replace(few, num_dates=1e6)
    assert np.allclose(fit_blend(many).weight, fit_blend(many, {"two": 0.5}).weight, atol=0.02)


def test_the_blend_beats_its_members_on_other_dates():
    frames, actuals = simulated({"one": 1.0, "two": 1.2})
    blend = fit_blend(judged(frames, actuals))
    later, demand = simulated({"one": 1.0, "two": 1.2}, seed=1)
    blended = loss(blend.apply(later), demand)
    assert blended < 0.95 * min(loss(frame, demand) for frame in later.values())
    assert 0.5 < blend.weights["one"] < 0.75


def test_weights_are_near_the_best_there_are():
    frames, actuals = simulated({"one": 0.5, "two": 1.5}, num_cutoffs=60)
    found = judged(frames, actuals)
    blend = fit_blend(found)
    shares = np.linspace(0, 1, 201)
    for i, level in enumerate(LEVELS):
        of_share = [
            float(pinball(found.actual, found.quantiles[i] @ [w, 1 - w], level) @ found.row_weight) for w in shares
        ]
        assert blend.weight[i, 0] == pytest.approx(shares[int(np.argmin(of_share))], abs=0.08)


def test_few_dates_leave_weights_near_equal():
    found = judged(*simulated({"one": 1.0, "two": 1.6}))
    few, some, many = (fit_blend(replace(found, num_dates=n)).weights["one"] for n in (0.2, 2.0, 1000.0))
    assert 0.5 < few < 0.56
    assert few + 0.05 < some < many - 0.01


def test_dates_on_which_the_same_member_is_ahead_are_fewer():
    frames, actuals = simulated({"one": 1.0, "two": 1.0}, num_cutoffs=80)
    apart = judged(frames, actuals).num_dates
    week = (pl.col("ds") - pl.col("ds").min()).dt.total_days() // 7
    wave = [(pl.col(n) * (1 + 0.9 * (week / 8).sin())).alias(n) for n in NAMES]
    together = judged(frames | {"two": frames["two"].with_columns(wave)}, actuals).num_dates
    assert together < 0.6 * apart


def test_a_member_with_hardly_any_weight_is_left_out():
    frames, actuals = simulated({"good": 0.1, "other": 0.3, "absurd": 50.0})
    blend = fit_blend(judged(frames, actuals))
    assert "absurd" not in blend.members
    assert blend.apply(frames).height == frames["good"].height


def test_large_series_do_not_silence_the_small_ones():
    """One member knows the small series, another the large ones: neither is left out."""
    frames, actuals = simulated({"small": 0.2, "large": 0.2}, num_items=40)
    mean = actuals.group_by("unique_id").agg(size=pl.col("y").mean())
    middle = mean["size"].median()
    rng = np.random.default_rng(0)
    for name, is_bad in (("small", pl.col("size") > middle), ("large", pl.col("size") <= middle)):
        frame = frames[name].join(mean, on="unique_id", maintain_order="left")
        error = pl.Series(rng.normal(size=frame.height)) * frame["size"]
        frames[name] = frame.with_columns(pl.when(is_bad).then(pl.col(n) + error).otherwise(n).alias(n) for n in NAMES)
    weights = fit_blend(judged({n: f.drop("size") for n, f in frames.items()}, actuals)).weights
    assert 0.1 < weights["small"] < 0.9


def test_neighbouring_levels_have_similar_weights():
    frames, actuals = simulated({"one": 1.0, "two": 1.2}, num_cutoffs=6)
    weight = fit_blend(judged(frames, actuals)).weight
    assert np.abs(np.diff(weight, axis=0)).max() < 0.15


def test_blended_quantiles_are_sorted_and_do_not_depend_on_the_order_of_rows():
    frames, actuals = simulated({"one": 1.0, "two": 1.2})
    blend = fit_blend(judged(frames, actuals))
    shuffled = {name: frame.sample(fraction=1, shuffle=True, seed=3) for name, frame in frames.items()}
    assert_frame_equal(blend.apply(shuffled), blend.apply(frames), check_exact=True)
    assert (np.diff(blend.apply(frames).select(NAMES).to_numpy(), axis=1) >= 0).all()


def test_a_row_that_one_member_lacks_is_the_mean_of_the_others():
    frames, _ = simulated({"one": 1.0, "two": 1.2, "three": 1.0})
    blend = Blend(LEVELS, ("one", "two", "three"), np.tile([0.5, 0.25, 0.25], (3, 1)))
    less = frames["one"].filter(pl.col("unique_id") != "s3")
    blended = blend.apply(frames | {"one": less})
    is_s3 = pl.col("unique_id") == "s3"
    without = blend.only(["two", "three"]).apply(frames)
    assert np.allclose(blended.filter(is_s3)["q0.5"], without.filter(is_s3)["q0.5"])
    assert_frame_equal(blended.filter(~is_s3), blend.apply(frames).filter(~is_s3), check_exact=True)


def test_dates_and_ids_of_other_types_are_the_same_rows():
    frames, _ = simulated({"one": 1.0, "two": 1.2})
    blend = Blend(LEVELS, ("one", "two"), np.full((3, 2), 0.5))
    other = frames["two"].with_columns(
        pl.col("cutoff").dt.date(), pl.col("ds").dt.cast_time_unit("ns"), pl.col("horizon").cast(pl.Int64)
    )
    assert_frame_equal(blend.apply(frames | {"two": other}), blend.apply(frames), check_exact=True)


def test_a_blend_reads_back_bit_by_bit_and_what_is_none_is_refused():
    frames, actuals = simulated({"one": 1.0, "two": 1.2})
    blend = fit_blend(judged(frames, actuals))
    again = Blend.from_json(blend.to_json())
    assert again.weight.tobytes() == blend.weight.tobytes()
    assert_frame_equal(again.apply(frames), blend.apply(frames), check_exact=True)
    for text in ("{}", "no", "[]", '{"format": "mqcast-blend", "version": 1, "levels": [], "members": ["a"]}'):
        with pytest.raises(ArtifactError, match="no blend"):
            Blend.from_json(text)
    with pytest.raises(ConfigError, match="no forecasts of two"):
        blend.apply({"one": frames["one"]})


def test_members_without_a_common_row_are_refused():
    frames, actuals = simulated({"one": 1.0, "two": 1.2})
    early, late = (frames["one"].filter(pl.col("horizon") == lead) for lead in (1, 2))
    with pytest.raises(DataError, match="no forecast is of all members"):
        judged({"one": early, "two": late}, actuals)
