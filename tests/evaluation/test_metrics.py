"""Accuracy: against loops, against utilsforecast, by group and slice."""

import numpy as np
import polars as pl
import pytest
from judged import random_frames
from utilsforecast import losses

from mqcast import evaluate
from mqcast.errors import ConfigError, MissingColumnError
from mqcast.evaluation.slices import promotions, short_horizons

LEVELS = (0.1, 0.5, 0.9)


def joined(frame: pl.DataFrame, actuals: pl.DataFrame) -> pl.DataFrame:
    return frame.join(actuals, on=["unique_id", "ds"]).sort("unique_id", "cutoff", "ds")


def naive_pinball(y: float, q: float, level: float) -> float:
    return level * (y - q) if y >= q else (1 - level) * (q - y)


def test_pooled_and_per_horizon_risk_are_the_sums_of_their_formulas():
    frame, actuals = random_frames(levels=LEVELS)
    found = evaluate(frame, actuals).row(0, named=True)
    rows = joined(frame, actuals).rows(named=True)
    risks = []
    for level in LEVELS:
        loss = {h: [] for h in range(1, 5)}
        size = {h: [] for h in range(1, 5)}
        for row in rows:
            loss[row["horizon"]].append(naive_pinball(row["y"], row[f"q{level:g}"], level))
            size[row["horizon"]].append(abs(row["y"]))
        pooled = 2 * sum(map(sum, loss.values())) / sum(map(sum, size.values()))
        by_horizon = np.mean([2 * np.mean(loss[h]) / np.mean(size[h]) for h in loss])
        assert found[f"qrisk_pooled_q{level:g}"] == pytest.approx(pooled, rel=1e-12)
        assert found[f"qrisk_tft_code_q{level:g}"] == pytest.approx(by_horizon, rel=1e-12)
        assert abs(pooled - by_horizon) > 1e-4
        risks.append(pooled)
    assert found["wql"] == pytest.approx(np.mean(risks), rel=1e-12)
    assert found["rows"] == len(frame)


def test_metrics_equal_those_of_utilsforecast_by_series_and_cutoff():
    frame, actuals = random_frames(levels=LEVELS, num_items=6)
    found = evaluate(frame, actuals, by=("unique_id", "cutoff"), season=3)
    table = joined(frame, actuals)
    names = [f"q{level:g}" for level in LEVELS]
    interval = table.rename({"q0.1": "m-lo-80", "q0.9": "m-hi-80"})
    theirs = {
        "wape": losses.nd(table, ["q0.5"]),
        "bias": losses.bias(table, ["q0.5"]),
        "mase": losses.mase(table, ["q0.5"], 3, actuals),
        "wql": losses.scaled_crps(table, {"m": names}, np.array(LEVELS)),
        "inside_q0.1_q0.9": losses.coverage(interval, ["m"], 80),
        "sql": losses.scaled_mqloss(table, {"m": names}, np.array(LEVELS), 3, actuals).with_columns(pl.col("m") * 2),
    }
    for level, name in zip(LEVELS, names, strict=True):
        theirs[f"quantile_loss_{name}"] = losses.quantile_loss(table, {"m": name}, level)
        theirs[f"coverage_{name}"] = losses.calibration(table, {"m": name})
    for name, values in theirs.items():
        both = found.join(values.rename({values.columns[-1]: "theirs"}), on=["unique_id", "cutoff"], validate="1:1")
        assert len(both) == len(found) == 54
        np.testing.assert_allclose(both[name], both["theirs"], rtol=1e-9, atol=1e-12, err_msg=name)


def test_groups_are_the_same_as_the_frame_filtered():
    frame, actuals = random_frames()
    static = pl.DataFrame({"unique_id": [f"item {i}" for i in range(5)], "brand": list("abaab")})
    frame = frame.with_columns(region=pl.when(pl.col("unique_id") < "item 2").then(pl.lit("n")).otherwise(pl.lit("s")))
    branded = frame.join(static, on="unique_id")
    for by in ("horizon", "cutoff", "ds", "unique_id", "brand", "region"):
        found = evaluate(frame, actuals, by=by, static=static, season=2)
        assert found[by].is_sorted()
        assert found[by].n_unique() == len(found)
        for row in found.rows(named=True):
            part = branded.filter(pl.col(by) == row[by])
            alone = evaluate(part.drop("brand"), actuals, season=2).row(0, named=True)
            assert {key: row[key] for key in alone} == pytest.approx(alone, rel=1e-12)
    both = evaluate(frame, actuals, by=("brand", "lead"), static=static)
    assert both.columns[:2] == ["brand", "lead"]
    assert len(both) == 8
    assert both["rows"].sum() == len(frame)


def test_a_group_that_is_not_there_is_told_with_the_nearest_name():
    frame, actuals = random_frames()
    with pytest.raises(MissingColumnError, match=r"called 'horizn' \(did you mean 'horizon'\?\)"):
        evaluate(frame, actuals, by="horizn")


def test_slices_stand_beside_all_and_equal_the_frame_filtered():
    frame, actuals = random_frames()
    flags = actuals.select("unique_id", "ds", promo=pl.col("ds").dt.week() % 2 == 0)
    found = evaluate(frame, actuals, slices=[promotions(flags, ["promo"]), short_horizons(2)], season=2)
    assert found["slice"].to_list() == ["Overall", "promo", "Leads 1-2"]
    parts = {
        "Overall": frame,
        "promo": frame.join(flags.filter("promo"), on=["unique_id", "ds"], how="semi"),
        "Leads 1-2": frame.filter(pl.col("horizon") <= 2),
    }
    for row in found.rows(named=True):
        alone = evaluate(parts[row["slice"]], actuals, season=2).row(0, named=True)
        assert {key: row[key] for key in alone} == pytest.approx(alone, rel=1e-12)


def test_several_models_get_a_column_that_names_them():
    frame, actuals = random_frames()
    other, _ = random_frames(seed=1)
    found = evaluate({"a": frame, "b": other}, actuals, by="horizon")
    assert found["model"].to_list() == ["a"] * 4 + ["b"] * 4
    with pytest.raises(ConfigError, match="no model"):
        evaluate({}, actuals)


def test_what_cannot_be_divided_is_null_and_never_infinite():
    frame, actuals = random_frames()
    found = evaluate(frame, actuals.with_columns(y=0.0)).row(0, named=True)
    assert found["wape"] is None
    assert found["mase"] is None
    assert found["wql"] is None
    assert found["coverage_q0.9"] == 1.0
    assert all(value is None or np.isfinite(value) for value in found.values())


def test_the_scale_of_mase_takes_no_demand_after_the_cutoff():
    frame, actuals = random_frames(num_cutoffs=1)
    late = pl.col("ds") > frame["cutoff"][0]
    wild = actuals.with_columns(pl.when(late).then(pl.col("y")).otherwise(pl.col("y") * 2))
    one, two = (evaluate(frame, each, season=2)["mase"][0] for each in (actuals, wild))
    assert one == pytest.approx(2 * two)


def test_seasons_are_told_from_the_dates():
    frame, actuals = random_frames(num_cutoffs=2)
    assert evaluate(frame, actuals)["mase"][0] is None  # 52 weeks, of which there are not enough
    daily = {"ds": pl.datetime(2024, 1, 1) + (pl.col("ds") - pl.datetime(2024, 1, 7)) / 7}
    by_day = actuals.with_columns(**daily)
    forecasts = frame.with_columns(
        **daily, cutoff=pl.datetime(2024, 1, 1) + (pl.col("cutoff") - pl.datetime(2024, 1, 7)) / 7
    )
    assert evaluate(forecasts, by_day)["mase"][0] == pytest.approx(evaluate(forecasts, by_day, season=7)["mase"][0])


def test_the_scale_of_a_series_does_not_depend_on_the_others():
    frame, actuals = random_frames(num_items=2, num_cutoffs=2)
    is_late = pl.col("ds") > frame["cutoff"].min()
    gaps = actuals.filter((pl.col("unique_id") != "item 0") | (pl.col("ds").dt.week() % 3 != 0) | is_late)
    alone, together = (
        evaluate(frame.filter(unique_id="item 0"), table, season=2)["mase"][0]
        for table in (gaps.filter(unique_id="item 0"), gaps)
    )
    assert alone == pytest.approx(together)


def test_columns_of_the_answer_are_not_grouped_by():
    frame, actuals = random_frames()
    with pytest.raises(ConfigError, match="by='slice' is a column of the answer"):
        evaluate(frame.with_columns(slice=1), actuals, by="slice", slices=short_horizons(2))
