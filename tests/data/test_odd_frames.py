"""Odd frames that once raised raw exceptions, or ended the process; found by lab/campaigns/frames.py."""

import datetime as dt
import decimal
from functools import cache

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mqcast import Forecaster, Panel, Schema, errors, evaluate

DAYS = pl.datetime_range(dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 30), eager=True)
FRAME = pl.DataFrame({"unique_id": ["a"] * 30, "ds": DAYS, "y": np.arange(30.0)})


@cache
def fitted() -> Forecaster:
    return Forecaster("seasonal-naive", 2).fit(FRAME)


def refusals(frame, match: str) -> None:
    """The gate, predict and the judging functions refuse it in words."""
    forecasts = fitted().predict()
    for call in (
        lambda: Panel.from_frame(frame, Schema(freq="D")),
        lambda: fitted().predict(frame),
        lambda: evaluate(forecasts, frame),
    ):
        with pytest.raises(errors.MqcastError, match=match) as caught:
            call()
        assert len(str(caught.value)) <= errors.LONGEST


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_two_columns_of_one_name_are_named(library):
    table = FRAME.to_arrow() if library == "pyarrow" else FRAME.to_pandas()
    twice = table.append_column("y", table["y"]) if library == "pyarrow" else pd.concat([table, table[["y"]]], axis=1)
    refusals(twice, "two columns named 'y'; rename")


def test_columns_of_several_levels_are_told():
    table = FRAME.to_pandas()
    table.columns = pd.MultiIndex.from_product([["a"], table.columns])
    refusals(table, "'unique_id'")
    with pytest.raises(errors.MissingColumnError, match="no column of quantiles"):
        evaluate(table, FRAME)


@pytest.mark.parametrize(
    ("column", "value"), [("ds", [1.0]), ("ds", {"a": 1}), ("ds", b"x"), ("unique_id", [1.0]), ("unique_id", {"a": 1})]
)
def test_nested_keys_are_told(column, value):
    refusals(FRAME.with_columns(pl.Series(column, [value] * 30)), f"column '{column}'")


def test_objects_that_are_neither_equal_nor_unequal_are_told():
    refusals(FRAME.to_pandas().assign(y=pd.Series([pd.NA, decimal.Decimal(1), "x"] * 10, dtype=object)), "'y'")


def test_dates_and_numbers_of_numpy_in_one_column_do_not_end_the_process():
    mixed = pd.Series([np.datetime64("NaT"), np.float16(1)] * 15, dtype=object)
    refusals(FRAME.to_pandas().assign(y=mixed), "column 'y' mixes dates and other values")


def test_a_missing_date_is_named_by_its_row_in_predict_too():
    frame = FRAME.with_columns(pl.when(pl.int_range(pl.len()) != 7).then("ds").alias("ds"))
    with pytest.raises(errors.MissingKeyError, match=r"column 'ds': the frame: row 7 has no value; fill it"):
        fitted().predict(frame)


@pytest.mark.parametrize("zone", ["Mars/Base", "utc+x"])
def test_a_time_zone_that_there_is_not_is_told(zone):
    table = FRAME.to_arrow()
    refusals(table.set_column(1, "ds", table["ds"].cast(pa.timestamp("us", zone))), "zone")


@pytest.mark.parametrize("minutes", [330, -210, 120])
def test_days_of_any_offset_can_be_forecast_from_a_new_frame(minutes):
    zone = dt.timezone(dt.timedelta(minutes=minutes))
    frame = FRAME.to_pandas().assign(ds=pd.date_range("2024-01-01", periods=30, tz=zone))
    made = Forecaster("seasonal-naive", 2).fit(frame)
    assert made.predict(frame).equals(made.predict())


@pytest.mark.parametrize("digits", [2, 40])
def test_decimals_are_numbers_in_predict_too(digits):
    values = [decimal.Decimal(i) + decimal.Decimal(10) ** (digits - 2) for i in range(30)]
    frame = FRAME.to_pandas().assign(y=pd.Series(values, dtype=object))
    plain = FRAME.to_pandas().assign(y=[float(value) for value in values])
    if digits > 38:
        assert fitted().predict(frame).columns[-1] == "q0.9"
    else:
        assert fitted().predict(frame).equals(fitted().predict(plain))


@pytest.mark.parametrize("told", [b"", b"null", b"[]", b"\xff", b'{"columns": null}', b'{"columns": [1]}'])
def test_damaged_notes_of_pandas_in_a_file_do_not_matter(told, tmp_path, same_arrays):
    pq.write_table(FRAME.to_arrow().replace_schema_metadata({b"pandas": told}), tmp_path / "f.parquet")
    same_arrays(Panel.from_frame(FRAME), Panel.from_frame(tmp_path / "f.parquet"))


def test_a_missing_category_in_a_dictionary_is_missing():
    kinds = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 15, pa.int8()), pa.array([None, "x"]))
    panel = Panel.from_frame(FRAME.to_arrow().append_column("kind", kinds), Schema(past=("kind",)))
    assert panel.vocabularies["kind"] == ("x",)
    assert panel.arrays["past_category"][:3, 0].tolist() == [0, 1, 0]


def test_new_items_without_sales_are_left_out_with_a_warning_alone():
    with pytest.warns(errors.SeriesLeftOutWarning, match="1 series have no observation"):
        found = fitted().predict(FRAME.with_columns(unique_id=pl.lit("new"), y=pl.lit(None, pl.Float64)))
    assert found.is_empty()


def test_dates_as_categories_of_text_are_read_when_judging():
    forecasts = fitted().backtest(FRAME, "2024-01-20", "2024-01-27")
    texts = FRAME.with_columns(pl.col("ds").dt.strftime("%Y-%m-%d").cast(pl.Categorical))
    assert evaluate(forecasts, texts).equals(evaluate(forecasts, FRAME))
