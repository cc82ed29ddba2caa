"""Models beside a baseline, as in the paper's tables, and losses by lead."""

import numpy as np
import polars as pl
import pytest
from judged import random_frames

from mqcast import compare, evaluate
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation import loss_by_lead
from mqcast.evaluation.slices import peaks, short_horizons

FRAME, ACTUALS = random_frames(num_items=4, num_cutoffs=8)
OTHER = random_frames(num_items=4, num_cutoffs=8, seed=5)[0]
MODELS = {"MQT": FRAME, "MQ-CNN": OTHER}


def test_relative_losses_are_ratios_of_quantile_losses_with_the_best_marked():
    found = compare(MODELS, ACTUALS, baseline="MQ-CNN", slices=short_horizons(2))
    assert found.table.columns == ["dimension", "MQ-CNN P50", "MQ-CNN P90", "MQT P50", "MQT P90"]
    assert found.table["dimension"].to_list() == ["Overall", "Leads 1-2"]
    losses = {name: evaluate(frame, ACTUALS).row(0, named=True) for name, frame in MODELS.items()}
    for level in ("0.5", "0.9"):
        ratio = losses["MQT"][f"quantile_loss_q{level}"] / losses["MQ-CNN"][f"quantile_loss_q{level}"]
        assert found.table[f"MQT P{float(level) * 100:g}"][0] == pytest.approx(ratio)
    for (_, _), rows in found.losses.group_by("dimension", "level"):
        assert rows.filter("best")["loss"].to_list() == [rows["loss"].min()]


def test_the_text_is_a_table_with_the_best_in_bold():
    lines = compare(MODELS, ACTUALS, baseline="MQ-CNN").to_markdown().splitlines()
    assert lines[0] == "| dimension | MQ-CNN P50 | MQ-CNN P90 | MQT P50 | MQT P90 |"
    assert lines[2].count("**") == 4
    assert "1.000" in lines[2]


def test_short_horizons_are_a_table_of_their_own():
    short = compare(MODELS, ACTUALS, baseline="MQ-CNN", horizons=2).losses
    filtered = {name: frame.filter(pl.col("horizon") <= 2) for name, frame in MODELS.items()}
    assert short.equals(compare(filtered, ACTUALS, baseline="MQ-CNN").losses)


def test_models_are_compared_on_the_same_forecasts_only():
    fewer = {"MQT": FRAME.filter(pl.col("unique_id") != "item 2"), "MQ-CNN": OTHER}
    with pytest.raises(DataError, match=r"series 'item 2'.*do not forecast the same: 32 rows .*rows='common'"):
        compare(fewer, ACTUALS, baseline="MQ-CNN")
    common = compare(fewer, ACTUALS, baseline="MQ-CNN", rows="common")
    without = {name: frame.filter(pl.col("unique_id") != "item 2") for name, frame in MODELS.items()}
    assert common.losses.equals(compare(without, ACTUALS, baseline="MQ-CNN").losses)


def test_a_baseline_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"no model 'MQCNN' \(did you mean 'MQ-CNN'\?\)"):
        compare(MODELS, ACTUALS, baseline="MQCNN")


def test_losses_by_lead_are_means_over_the_same_targets_and_centred():
    found = loss_by_lead(MODELS, ACTUALS)
    complete = FRAME.filter(pl.len().over("unique_id", "ds") == 4)
    expected = evaluate(complete, ACTUALS, by="lead")
    mine = found.filter(model="MQT", level=0.9).sort("lead")
    np.testing.assert_allclose(mine["loss"], expected["quantile_loss_q0.9"])
    np.testing.assert_allclose(mine["centred"], mine["loss"] - mine["loss"].mean())
    assert mine["targets"].unique().to_list() == [len(complete) // 4]


def test_losses_by_lead_of_unlike_rows_are_refused():
    with pytest.raises(DataError, match="do not forecast the same"):
        loss_by_lead({"a": FRAME, "b": OTHER.filter(pl.col("unique_id") != "item 2")}, ACTUALS)


def test_an_empty_slice_and_a_perfect_baseline_have_no_figure():
    found = compare(MODELS, ACTUALS, baseline="MQT", slices=peaks({"never": "2030-01-01"}))
    assert found.table.filter(dimension="never").select(pl.exclude("dimension")).null_count().sum_horizontal()[0] == 4
    assert "| never | - | - | - | - |" in found.to_markdown()
    exact = FRAME.join(ACTUALS, on=["unique_id", "ds"]).with_columns(**{"q0.5": "y", "q0.9": "y"}).drop("y")
    assert "nan" not in compare({"exact": exact, "MQT": FRAME}, ACTUALS, baseline="exact").to_markdown()
