"""What each kind of bad input gets: a typed error that says where, what and the remedy, or the stated treatment."""

import datetime as dt
import decimal
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mqcast import Panel, Schema, errors

WEEKLY = Schema(freq="W", known=("promo", "price"))


def with_row(frame: pl.DataFrame, **values) -> pl.DataFrame:
    """The frame with one more row, a copy of its first but for `values`."""
    row = frame.head(1).with_columns(
        [pl.lit(value).cast(frame.schema[name]).alias(name) for name, value in values.items()]
    )
    return pl.concat([frame, row])


def change(frame: pl.DataFrame, row: int, column: str, value) -> pl.DataFrame:
    values = frame[column].to_list()
    values[row] = value
    return frame.with_columns(pl.Series(column, values, dtype=frame.schema[column]))


# -- columns and types ------------------------------------------------------------------------------------------------


def test_a_misspelt_column_suggests_the_nearest(sales):
    with pytest.raises(errors.MissingColumnError, match=r"known column 'prce' .*did you mean 'price'"):
        Panel.from_frame(sales, Schema(known=("prce",)))


def test_a_column_in_the_index_is_found_there(sales):
    with pytest.raises(errors.MissingColumnError, match="reset_index"):
        Panel.from_frame(sales.to_pandas().set_index("ds"))


@pytest.mark.parametrize(
    ("column", "values", "match"),
    [
        ("y", ["many"] * 16, r"target column 'y' holds text \(series .*, row 0: 'many'\); convert it to numbers"),
        ("y", ["1", "2.5", "n/a", "4"] * 4, r"holds text \(series .*, at .*, row 2: 'n/a'\)"),
        ("y", ["1", "2.5"] * 8, "target column 'y' holds text; convert it to numbers"),
        ("ds", ["2024-01-07"] * 16, "time column 'ds' holds text.*pd.to_datetime"),
        ("ds", list(range(16)), "time column 'ds' holds whole numbers"),
        ("unique_id", [0.5] * 16, "id column 'unique_id' holds numbers"),
        ("promo", [dt.timedelta(1)] * 16, "known column 'promo' holds durations"),
        ("price", [[1.0]] * 16, "known column 'price' holds lists"),
    ],
)
def test_wrong_types_are_named(sales, column, values, match):
    with pytest.raises(errors.ColumnTypeError, match=match):
        Panel.from_frame(sales.with_columns(pl.Series(column, values)), WEEKLY)


def test_a_pandas_column_of_mixed_types_is_named(sales):
    frame = sales.to_pandas().assign(price=["cheap", 1.5] * 8)
    with pytest.raises(errors.ColumnTypeError, match=r"column 'price': .* \(row 1 holds 1.5, row 0 'cheap'\)"):
        Panel.from_frame(frame, WEEKLY)


def test_a_column_without_a_role_may_hold_anything(sales):
    frame = sales.to_pandas().assign(note=["text", 1.5] * 8)
    assert Panel.from_frame(frame, WEEKLY).num_rows == 16


@pytest.mark.parametrize("frame", [None, 3, object(), [1, 2]])
def test_what_is_no_frame_is_refused(frame):
    with pytest.raises(errors.ColumnTypeError, match="pandas, polars or Arrow"):
        Panel.from_frame(frame)


def test_two_columns_of_one_name_are_refused(sales):
    frame = pd.concat([sales.to_pandas(), sales.to_pandas()[["y"]]], axis=1)
    with pytest.raises(errors.SchemaError, match="two columns"):
        Panel.from_frame(frame, WEEKLY)


def test_an_empty_frame_is_refused(sales):
    columns = pd.DataFrame(columns=["unique_id", "ds", "y"])
    for empty in (sales.clear(), sales.to_pandas().iloc[:0], columns, pd.DataFrame(), pl.DataFrame()):
        with pytest.raises(errors.EmptyFrameError, match="the frame has no row"):
            Panel.from_frame(empty, WEEKLY)


def test_an_event_table_must_be_of_the_frames_time_zone(sales):
    table = events("2024-01-21").with_columns(pl.col("ds").dt.replace_time_zone("UTC"))
    with pytest.raises(errors.TimeZoneError, match="dates with a time zone next to dates without one"):
        Panel.from_frame(sales, FAIR, events=table)


@pytest.mark.parametrize("offset", ["+02:00", "-05:30"])
def test_a_fixed_offset_is_a_time_zone(sales, offset):
    frame = sales.to_pandas()
    frame["ds"] = pd.to_datetime([f"{ds:%Y-%m-%d}T00:00:00{offset}" for ds in frame["ds"]])
    assert Panel.from_frame(frame, WEEKLY).first_step[0] == Panel.from_frame(sales, WEEKLY).first_step[0]


@pytest.mark.parametrize("column", ["unique_id", "ds"])
def test_a_missing_key_is_named_by_its_row(sales, column):
    with pytest.raises(errors.MissingKeyError, match=rf"column '{column}'.*: row 5 of the frame has no value; fill it"):
        Panel.from_frame(change(sales, 5, column, None), WEEKLY)


# -- time -------------------------------------------------------------------------------------------------------------


def test_two_rows_of_one_date_are_refused(sales):
    with pytest.raises(
        errors.DuplicateRowsError,
        match=r"series 'a', .*at 2024-01-07: 2 rows \(rows 0 and 16 of the frame\); aggregate",
    ) as caught:
        Panel.from_frame(with_row(sales, y=3.0), WEEKLY)
    assert (caught.value.series, caught.value.column, caught.value.time) == ("a", "ds", "2024-01-07")


def test_a_date_off_the_grid_is_refused(sales):
    with pytest.raises(errors.OffGridError, match=r"series 'a', .*at 2024-01-09: not on the grid of frequency W-SUN"):
        Panel.from_frame(with_row(sales, ds=dt.datetime(2024, 1, 9)), WEEKLY)


def test_rows_can_be_declared_to_be_the_steps(sales):
    frame = with_row(sales, ds=dt.datetime(2024, 1, 9))
    panel = Panel.from_frame(frame, Schema(known=("promo", "price"), time_grid="rows", freq="D"))
    assert "steps" not in panel.arrays
    assert panel.last_step.tolist() == [8, 7]
    assert np.array(panel.arrays["times"][:3]).astype("M8[us]").astype("M8[D]").astype(str).tolist() == [
        "2024-01-07",
        "2024-01-09",
        "2024-01-14",
    ]


def test_dates_of_two_zones_are_refused():
    stamps = [pd.Timestamp("2024-01-07", tz="UTC"), pd.Timestamp("2024-01-08", tz="Europe/Berlin")]
    frame = pd.DataFrame({"unique_id": "a", "ds": pd.Series(stamps, dtype=object), "y": 1.0})
    with pytest.raises(errors.TimeZoneError, match=r"column 'ds': dates in 2 time zones.*utc=True"):
        Panel.from_frame(frame, Schema(freq="D"))


def test_files_of_two_zones_are_refused(sales, tmp_path):
    sales.write_parquet(tmp_path / "1.parquet")
    sales.with_columns(pl.col("ds").dt.replace_time_zone("UTC")).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(errors.TimeZoneError, match=r"1.parquet has time zone None, 2.parquet has UTC"):
        Panel.from_frame(tmp_path, WEEKLY)


def hourly(zone: str | None) -> pl.DataFrame:
    """Two days over the end of daylight saving in Berlin, 2024-10-27 03:00 → 02:00."""
    utc = pl.datetime_range(pl.datetime(2024, 10, 26), pl.datetime(2024, 10, 28), "1h", time_zone="UTC", eager=True)
    local = utc.dt.convert_time_zone("Europe/Berlin")
    ds = local if zone else local.dt.replace_time_zone(None)
    return pl.DataFrame({"unique_id": "a", "ds": ds, "y": np.arange(49.0)})


def test_the_hour_that_daylight_saving_repeats_is_a_duplicate_with_a_hint():
    with pytest.raises(errors.DuplicateRowsError, match=r"at 2024-10-27 02:00: 2 rows.*clocks went back.*time zone"):
        Panel.from_frame(hourly(None), Schema(freq="h"))


@pytest.mark.parametrize("freq", ["h", None])
def test_with_a_time_zone_no_hour_is_doubled_or_lost(freq):
    panel = Panel.from_frame(hourly("Europe/Berlin"), Schema(freq=freq))
    assert panel.num_rows == 49
    assert "steps" not in panel.arrays
    times = panel.times_at(np.array([0]), panel.first_step, 49)
    hours = panel.calendar.categories(times)[0, :, panel.calendar.features.index("hour_of_day")]
    assert hours[:4].tolist() == [2, 3, 4, 5]
    assert hours[23:27].tolist() == [1, 2, 2, 3]


@pytest.mark.parametrize("freq", ["D", None])
def test_days_with_a_time_zone_are_that_zones_days(freq):
    days = pl.datetime_range(
        pl.datetime(2024, 3, 25), pl.datetime(2024, 4, 5), "1d", time_zone="America/New_York", eager=True
    )
    frame = pl.DataFrame({"unique_id": "a", "ds": days.dt.convert_time_zone("America/New_York"), "y": 1.0})
    naive = frame.with_columns(pl.col("ds").dt.replace_time_zone(None))
    with_zone, without = Panel.from_frame(frame, Schema(freq=freq)), Panel.from_frame(naive, Schema(freq=freq))
    assert with_zone.first_step == without.first_step
    assert "steps" not in with_zone.arrays


def test_gaps_are_missing_steps_not_zeros(sales):
    panel = Panel.from_frame(sales.filter(pl.col("ds") != dt.datetime(2024, 1, 21)), WEEKLY)
    assert panel.num_rows == 14
    rows, exists = panel.rows_at(np.array([0]), panel.first_step[:1], 8)
    assert exists[0].tolist() == [True, True, False, True, True, True, True, True]
    assert panel.target[rows[0][exists[0]]][:3].tolist() == [10, 11, 13]


def test_storage_does_not_grow_with_the_gaps():
    days = [dt.datetime(1970, 1, 1), dt.datetime(2024, 1, 1)]
    panel = Panel.from_frame(pl.DataFrame({"unique_id": "a", "ds": days, "y": [1.0, 2.0]}), Schema(freq="min"))
    assert panel.num_rows == 2
    assert sum(array.nbytes for array in panel.arrays.values()) < 200
    assert panel.rows_at(np.array([0]), panel.last_step - 1, 3)[1].tolist() == [[False, True, False]]


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("column", "value"), [("y", np.inf), ("price", -np.inf), ("y", 1e39)])
def test_infinite_values_are_refused(sales, column, value):
    where = rf"series 'b', column '{column}', at 2024-01-14: (infinite value|1e\+39 is too large)"
    with pytest.raises(errors.NonFiniteError, match=where):
        Panel.from_frame(change(sales, 9, column, value), WEEKLY)


def test_a_series_without_one_observation_is_refused(sales):
    frame = sales.with_columns(y=pl.when(pl.col("unique_id") == "b").then(None).otherwise("y"))
    frame = sales.with_columns(y=pl.when(pl.col("unique_id") == "a").then(pl.col("y")))
    with pytest.raises(errors.AllMissingError, match=r"series 'b', column 'y': no observed value; drop"):
        Panel.from_frame(frame, WEEKLY)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_target_is_missing_not_zero(sales, missing):
    panel = Panel.from_frame(change(sales, 2, "y", missing), WEEKLY)
    assert np.isnan(panel.target[2])
    assert panel.last_observed[0] == panel.first_step[0] + 5


def test_a_closed_day_is_unobserved_demand(sales):
    frame = sales.with_columns(open=pl.Series([True] * 3 + [False] + [True] * 12))
    panel = Panel.from_frame(frame, WEEKLY.replace(observed="open"))
    assert np.isnan(panel.target[3])
    assert not np.isnan(panel.target[4])


def test_whether_demand_was_observed_must_be_said(sales):
    frame = sales.with_columns(open=pl.Series([True, None] * 8))
    with pytest.raises(errors.KnownValuesError, match=r"series 'a', column 'open', at 2024-01-14: missing"):
        Panel.from_frame(frame, WEEKLY.replace(observed="open"))


@pytest.mark.parametrize(("column", "value"), [("price", None), ("price", float("nan")), ("promo", None)])
def test_missing_known_values_list_the_first_series_and_dates(sales, column, value):
    with pytest.raises(errors.KnownValuesError, match=rf"column '{column}'.*'b' at 2024-02-11.*fill it"):
        Panel.from_frame(change(sales, 13, column, value), WEEKLY)


def test_known_values_must_reach_the_horizon(sales):
    panel = Panel.from_frame(sales, WEEKLY)
    panel.require_future(2)
    with pytest.raises(errors.KnownValuesError, match=r"series 'a'.*horizon of 3 steps: 2024-03-03 .*1 more series"):
        panel.require_future(3)


def test_flags_are_zero_or_one(sales):
    with pytest.raises(errors.FlagValuesError, match=r"series 'a', column 'price', at 2024-01-07: a flag holds 9.5"):
        Panel.from_frame(sales, WEEKLY.replace(kinds={"price": "flag"}))


def test_past_values_may_be_missing_anywhere(sales):
    frame = sales.with_columns(visits=pl.Series([None, 3.0] * 8))
    panel = Panel.from_frame(frame, WEEKLY.replace(past=("visits",)))
    assert np.isnan(panel.arrays["past_number"][0, 0])


def test_odd_but_valid_series_pass(tmp_path, same_arrays):
    days = pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 4), "1d", eager=True)
    values = {"one": [7.0], "constant": [5.0] * 4, "zero": [0.0] * 4, "huge": [1e30] * 4, "tiny": [1e-30] * 4}
    frame = pl.concat(pl.DataFrame({"unique_id": k, "ds": days[: len(v)], "y": v}) for k, v in values.items())
    panel = Panel.from_frame(frame, Schema(freq="D"))
    assert panel.ids.to_pylist() == ["constant", "huge", "one", "tiny", "zero"]
    assert panel.target.tolist() == np.float32([5] * 4 + [1e30] * 4 + [7] + [1e-30] * 4 + [0] * 4).tolist()
    frame.write_parquet(tmp_path / "f.parquet")
    same_arrays(panel, Panel.from_frame(tmp_path / "f.parquet", Schema(freq="D")))


def test_integer_boolean_and_decimal_columns_are_numbers(sales, same_arrays):
    schema = Schema(freq="W", known=("promo", "price"), kinds={"promo": "flag"})
    plain = sales.with_columns(pl.col("price").round(1))
    odd = plain.with_columns(
        pl.col("promo").cast(pl.Int8), pl.col("price").cast(pl.Decimal(10, 1)), pl.col("y").cast(pl.Int32)
    )
    same_arrays(Panel.from_frame(plain, schema), Panel.from_frame(odd, schema))
    objects = plain.to_pandas().assign(price=[decimal.Decimal(str(p)) for p in plain["price"]])
    same_arrays(Panel.from_frame(plain, schema), Panel.from_frame(objects, schema))


def test_a_thousand_covariates_pass(sales):
    names = tuple(f"x{i}" for i in range(1000))
    wide = sales.with_columns(pl.lit(float(i)).alias(name) for i, name in enumerate(names))
    panel = Panel.from_frame(wide, Schema(freq="W", past=names[:500], known=names[500:]))
    assert panel.arrays["past_number"].shape == (16, 500)
    assert (panel.arrays["known_number"][3] == np.arange(500, 1000)).all()


# -- side tables ------------------------------------------------------------------------------------------------------

STATIC = pl.DataFrame({"unique_id": ["b", "a", "c"], "city": ["Ulm", None, "Bonn"], "size": [1, 2, 3]})


def test_static_values_come_from_a_table(sales):
    panel = Panel.from_frame(sales, Schema(static=("city", "size")), static=STATIC)
    assert panel.vocabularies["city"] == ("Ulm",)
    assert panel.arrays["static_category"].tolist() == [[0], [1]]
    assert panel.arrays["static_number"].tolist() == [[2], [1]]


def test_static_values_come_from_the_frame_too(sales, same_arrays):
    table = STATIC.head(2)
    joined = sales.join(table, on="unique_id")
    schema = Schema(static=("city", "size"))
    same_arrays(Panel.from_frame(sales, schema, static=table), Panel.from_frame(joined, schema))


def test_a_static_value_must_not_change(sales):
    with pytest.raises(errors.StaticValuesError, match=r"series 'a', column 'price', at 2024-01-14: .*changes in time"):
        Panel.from_frame(sales, Schema(static=("price",)))


@pytest.mark.parametrize("column", ["city", "size"])
def test_a_static_value_that_rows_of_a_plan_lack_is_told(sales, column):
    joined = sales.join(STATIC.head(2), on="unique_id")
    rows = joined.with_columns(pl.when(pl.col("y").is_not_null()).then(column).alias(column))
    with pytest.raises(errors.StaticValuesError, match=r"in some rows of the series only.*; give it in all rows, also"):
        Panel.from_frame(rows, Schema(static=("city", "size")))


def test_a_static_table_must_have_every_series_once(sales):
    schema = Schema(static=("city",))
    with pytest.raises(errors.StaticValuesError, match="series 'a': not in the static table; add its row"):
        Panel.from_frame(sales, schema, static=STATIC.head(1))
    with pytest.raises(errors.StaticValuesError, match=r"series .b., .*2 rows in the static table"):
        Panel.from_frame(sales, schema, static=pl.concat([STATIC, STATIC]))


@pytest.mark.parametrize(
    "table", [{"static": STATIC}, {"events": pl.DataFrame({"ds": [dt.date(2024, 1, 7)], "e": [1]})}]
)
def test_a_side_table_that_no_role_uses_is_refused(sales, table):
    with pytest.raises(errors.SchemaError, match="list some of"):
        Panel.from_frame(sales, Schema(), **table)


def events(*dates: str, end: str = "2024-02-25") -> pl.DataFrame:
    rows = dict.fromkeys(dates, True) | {end: end in dates}
    return pl.DataFrame({"ds": [dt.datetime.fromisoformat(d) for d in rows], "fair": list(rows.values())})


FAIR = Schema(events=("fair",))


def test_events_are_stored_once_for_all_series(sales):
    panel = Panel.from_frame(sales, FAIR, events=events("2024-01-21"))
    number, _ = panel.events_at(panel.times_at(np.array([0]), panel.first_step[:1], 9))
    assert number[0, :, 0].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert panel.arrays["event_number"].shape == (2, 1)


def test_events_may_stand_in_the_frame_if_series_agree(sales, same_arrays):
    table = pl.DataFrame({"ds": sales["ds"].unique(), "fair": [False, True] * 4})
    joined = sales.join(table, on="ds")
    same_arrays(Panel.from_frame(sales, FAIR, events=table), Panel.from_frame(joined, FAIR))
    with pytest.raises(errors.EventTableError, match=r"series 'b', column 'fair', at 2024-01-07: series disagree"):
        Panel.from_frame(change(joined, 8, "fair", not joined["fair"][8]), FAIR)


def test_the_event_table_must_reach_the_last_target_date(sales):
    with pytest.raises(errors.EventTableError, match=r"at 2024-02-25: the event table ends at 2024-02-18.*extend it"):
        Panel.from_frame(sales, FAIR, events=events("2024-01-21", end="2024-02-18"))
    panel = Panel.from_frame(sales, FAIR, events=events("2024-01-21"))
    panel.require_future(2)
    with pytest.raises(errors.EventTableError, match=r"at 2024-03-03: the events end at 2024-02-25"):
        panel.require_future(3)


def test_an_event_table_must_have_each_date_once_and_on_the_grid(sales):
    with pytest.raises(errors.EventTableError, match="at 2024-01-21: 2 rows in the event table"):
        Panel.from_frame(sales, FAIR, events=pl.concat([events("2024-01-21"), events("2024-01-21").head(1)]))
    with pytest.raises(
        errors.OffGridError, match=r"at 2024-01-22: a date of the event table is not on the grid W-SUN.*group the days"
    ):
        Panel.from_frame(sales, FAIR, events=events("2024-01-22"))


# -- forecast time ----------------------------------------------------------------------------------------------------


def test_unseen_categories_are_unknown_with_one_warning_that_counts_them(sales):
    frame = sales.with_columns(kind=pl.Series(["x", "y"] * 8), shade=pl.Series(["dark"] * 16))
    panel = Panel.from_frame(frame, Schema(freq="W", known=("kind", "shade")))
    new = frame.with_columns(kind=pl.Series(["x", "new", "newer", "y"] * 4), shade=pl.lit("light"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = Panel.from_frame(new, like=panel)
    assert len(caught) == 1
    assert issubclass(caught[0].category, errors.UnseenCategoryWarning)
    assert "'kind': 2 new in 8 rows ('new', 'newer'); 'shade': 1 new in 16 rows" in str(caught[0].message)
    assert again.arrays["known_category"][:4].tolist() == [[1, 0], [0, 0], [0, 0], [2, 0]]


def test_unseen_series_and_series_without_history_can_be_forecast(sales):
    panel = Panel.from_frame(sales, WEEKLY)
    new = sales.filter(pl.col("unique_id") == "a").with_columns(unique_id=pl.lit("new"), y=pl.lit(None, pl.Float64))
    again = Panel.from_frame(new, like=panel)
    assert again.ids.to_pylist() == ["new"]
    assert again.last_observed[0] == again.first_step[0] - 1
    again.require_future(8)


def test_a_column_may_not_change_its_kind_at_forecast_time(sales):
    panel = Panel.from_frame(sales, WEEKLY)
    with pytest.raises(errors.ColumnTypeError, match="known column 'price' is a number but holds text"):
        Panel.from_frame(sales.with_columns(price=pl.lit("cheap")), like=panel)


# -- sources ----------------------------------------------------------------------------------------------------------


def test_a_path_that_holds_no_parquet_is_refused(tmp_path):
    for path in (tmp_path / "none.parquet", tmp_path, str(tmp_path / "*.parquet")):
        with pytest.raises(errors.SourceError, match="no Parquet or CSV file at"):
            Panel.from_frame(path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is none")
    with pytest.raises(errors.SourceError, match=r"broken\.parquet is not a readable Parquet file"):
        Panel.from_frame(tmp_path)


def test_every_way_to_hand_over_a_frame_gives_the_same_bits(sales, tmp_path, same_arrays):
    frame = sales.with_columns(kind=pl.Series(["x", "y", "z", "x"] * 4))
    schema = Schema(freq="W", known=("promo", "price", "kind"))
    panel = Panel.from_frame(frame, schema)
    shuffled = frame.sample(fraction=1, shuffle=True, seed=3)
    shuffled.write_parquet(tmp_path / "all.parquet")
    (tmp_path / "parts").mkdir()
    for i, part in enumerate(shuffled.iter_slices(5)):
        part.write_parquet(tmp_path / "parts" / f"{i}.parquet")
    shuffled.write_parquet(tmp_path / "hive", partition_by="kind")
    arrow = shuffled.to_arrow()
    ways = [
        frame.to_pandas(),
        shuffled.to_pandas().set_index("price", drop=False),
        shuffled.select(reversed(frame.columns)),
        shuffled.lazy(),
        shuffled.with_columns(pl.col("unique_id", "kind").cast(pl.Categorical)).to_pandas(),
        shuffled.to_pandas(use_pyarrow_extension_array=True),
        arrow,
        arrow.combine_chunks().to_batches()[0],
        pa.RecordBatchReader.from_batches(arrow.schema, arrow.to_batches()),
        arrow.set_column(1, "ds", arrow["ds"].cast(pa.timestamp("ns"))),
        tmp_path / "all.parquet",
        str(tmp_path / "parts"),
        str(tmp_path / "parts" / "*.parquet"),
        tmp_path / "hive",
    ]
    for way in ways:
        same_arrays(panel, Panel.from_frame(way, schema))


def test_whole_numbers_are_good_ids_and_categories(sales, same_arrays):
    numbers = sales.with_columns(
        unique_id=pl.col("unique_id").replace_strict({"a": 10, "b": 9}), kind=pl.Series([1, 2] * 8)
    )
    texts = numbers.with_columns(pl.col("unique_id", "kind").cast(pl.String))
    floats = numbers.with_columns(pl.col("kind").cast(pl.Float64))
    schema = Schema(freq="W", past=("kind",), kinds={"kind": "category"})
    panel = Panel.from_frame(numbers, schema)
    assert panel.ids.to_pylist() == ["10", "9"]
    same_arrays(panel, Panel.from_frame(texts, schema))
    same_arrays(panel, Panel.from_frame(floats, schema))


# -- what once went wrong ---------------------------------------------------------------------------------------------


def zoned(zone: str) -> pl.DataFrame:
    days = pl.datetime_range(pl.datetime(2024, 3, 20), pl.datetime(2024, 4, 10), "1d", eager=True)
    frame = pl.DataFrame({"unique_id": "a", "ds": days.dt.replace_time_zone(zone), "y": np.arange(22.0)})
    return frame.sample(fraction=1, shuffle=True, seed=1)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_unsorted_files_keep_their_time_zone(tmp_path, same_arrays, zone):
    zoned(zone).write_parquet(tmp_path / "zoned.parquet")
    panel = Panel.from_frame(zoned(zone))
    assert str(panel.axis.frequency) == "D"
    same_arrays(panel, Panel.from_frame(tmp_path / "zoned.parquet"))


def test_a_file_name_is_taken_literally(sales, tmp_path, same_arrays):
    shuffled = sales.sample(fraction=1, shuffle=True, seed=1)
    shuffled.write_parquet(tmp_path / "sales[1].parquet")
    shuffled.with_columns(y=pl.lit(99.0)).write_parquet(tmp_path / "sales1.parquet")
    same_arrays(Panel.from_frame(sales, WEEKLY), Panel.from_frame(tmp_path / "sales[1].parquet", WEEKLY))


def test_columns_that_differ_in_case_are_different(sales, tmp_path, same_arrays):
    frame = sales.with_columns((pl.col("price") * 2).alias("Price")).sample(fraction=1, shuffle=True, seed=1)
    frame.write_parquet(tmp_path / "case.parquet")
    schema = Schema(freq="W", known=("price", "Price"))
    same_arrays(Panel.from_frame(frame, schema), Panel.from_frame(tmp_path / "case.parquet", schema))


def test_an_empty_id_in_a_dictionary_is_missing():
    ids = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    table = pa.table({"unique_id": ids, "ds": [dt.datetime(2024, 1, 1)] * 2, "y": [1.0, 2.0]})
    with pytest.raises(
        errors.MissingKeyError, match=r"column 'unique_id', at 2024-01-01: row 1 of the frame has no value"
    ):
        Panel.from_frame(table, Schema(freq="D"))


def test_unused_categories_are_nothing(sales, same_arrays):
    frame = sales.to_pandas()
    frame["unique_id"] = pd.Categorical(frame["unique_id"], categories=["zz", "b", "a", "c"])
    same_arrays(Panel.from_frame(sales, WEEKLY), Panel.from_frame(frame, WEEKLY))


def test_whole_numbers_that_pandas_calls_categories_are_categories_from_files_too(sales, tmp_path, same_arrays):
    frame = sales.to_pandas().assign(kind=pd.Categorical([3, 1] * 8))
    frame.to_parquet(tmp_path / "kinds.parquet")
    schema = Schema(freq="W", known=("kind",))
    panel = Panel.from_frame(frame, schema)
    assert panel.vocabularies["kind"] == ("1", "3")
    same_arrays(panel, Panel.from_frame(tmp_path / "kinds.parquet", schema))
    Panel.from_frame(frame, like=panel)


@pytest.mark.parametrize("way", ["sorted", "shuffled", "small groups", "memory"])
def test_the_frequency_is_told_from_all_rows_not_from_the_first(tmp_path, way):
    """The first series has one row, the second is weekly: the third still makes the panel a daily one."""
    days = pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 3, 1), "1d", eager=True)
    parts = {"a": days[:1], "b": days[::7], "c": days, "d": days}
    frame = pl.concat(pl.DataFrame({"unique_id": k, "ds": v, "y": 1.0}) for k, v in parts.items())
    if way == "shuffled":
        frame = frame.sample(fraction=1, shuffle=True, seed=1)
    if way != "memory":
        frame.write_parquet(tmp_path / "f.parquet", row_group_size=1 if way == "small groups" else None)
        frame = tmp_path / "f.parquet"
    assert str(Panel.from_frame(frame).axis.frequency) == "D"


@pytest.mark.parametrize("dates", ["15th of the month", "local midnights in UTC", "weekdays that differ"])
def test_a_frequency_that_would_leave_mostly_gaps_has_to_be_said(dates):
    if dates == "15th of the month":
        times = {"a": pl.datetime_range(pl.datetime(2022, 1, 15), pl.datetime(2023, 12, 15), "1mo", eager=True)}
    elif dates == "local midnights in UTC":
        times = {"a": zoned("Europe/Berlin")["ds"].dt.convert_time_zone("UTC")}
    else:
        first = {"a": pl.datetime(2024, 1, 1), "b": pl.datetime(2024, 1, 3)}
        times = {k: pl.datetime_range(v, pl.datetime(2024, 6, 30), "1w", eager=True) for k, v in first.items()}
    frame = pl.concat(pl.DataFrame({"unique_id": k, "ds": v, "y": 1.0}) for k, v in times.items())
    with pytest.raises(
        errors.OffGridError,
        match=r"\d\d% of the steps would be missing \(series '.+' has \d+% .+, '.+' \d+%\)|not on the grid of",
    ):
        Panel.from_frame(frame)


def test_days_of_events_hold_for_all_their_hours():
    table = pl.DataFrame(
        {"ds": [dt.date(2024, 10, d) for d in range(25, 30)], "fair": [d == 27 for d in range(25, 30)]}
    )
    for zone in (None, "Europe/Berlin"):
        frame = hourly(zone).unique("ds", maintain_order=True)
        panel = Panel.from_frame(frame, Schema(freq="h", events=("fair",)), events=table)
        number, _ = panel.events_at(
            panel.times_at(np.array([0]), panel.first_step, int(panel.last_step[0] - panel.first_step[0]) + 1)
        )
        on_day = frame["ds"].dt.date() == dt.date(2024, 10, 27)
        assert number[0, :, 0].sum() == on_day.sum() == (25 if zone else 24)


def test_dates_and_date_times_do_not_mix():
    mixed = pd.Series([dt.date(2024, 1, 1), dt.datetime(2024, 1, 2, 13, 30)], dtype=object)
    with pytest.raises(errors.ColumnTypeError, match="mixes dates and date-times"):
        Panel.from_frame(pd.DataFrame({"unique_id": "a", "ds": mixed, "y": 1.0}), Schema(freq="D"))


def test_a_date_out_of_range_is_refused():
    ds = pa.array([10**13, 10**13 + 86400], pa.timestamp("s"))
    with pytest.raises(errors.DataError, match="out of range"):
        Panel.from_frame(pa.table({"unique_id": ["a", "a"], "ds": ds, "y": [1.0, 2.0]}), Schema(freq="D"))


def test_static_rows_of_other_series_do_not_matter(sales, same_arrays):
    others = pl.concat([STATIC, pl.DataFrame({"unique_id": ["x"], "city": ["Rome"], "size": [9]})])
    schema = Schema(freq="W", static=("city", "size"))
    panel = Panel.from_frame(sales, schema, static=STATIC.head(2))
    assert panel.vocabularies["city"] == ("Ulm",)
    same_arrays(panel, Panel.from_frame(sales, schema, static=others))
    with pytest.raises(errors.MissingKeyError, match="row 3 of the static table has no id"):
        Panel.from_frame(sales, schema, static=pl.concat([STATIC, STATIC.head(1).with_columns(unique_id=pl.lit(None))]))


def test_what_was_not_observed_may_be_infinite(sales):
    frame = change(sales, 3, "y", np.inf).with_columns(open=pl.Series([True] * 3 + [False] + [True] * 12))
    assert np.isnan(Panel.from_frame(frame, WEEKLY.replace(observed="open")).target[3])


def test_an_empty_event_table_is_refused(sales):
    with pytest.raises(errors.EventTableError, match="no row"):
        Panel.from_frame(sales, FAIR, events=events("2024-01-21").clear())


def test_odd_names_and_labels_pass_or_are_refused_in_words(sales, tmp_path, same_arrays):
    odd = sales.rename({"price": 'select "x"; --', "promo": ""}).sample(fraction=1, shuffle=True, seed=1)
    odd.write_parquet(tmp_path / "odd.parquet")
    schema = Schema(freq="W", known=('select "x"; --', ""))
    same_arrays(Panel.from_frame(odd, schema), Panel.from_frame(tmp_path / "odd.parquet", schema))
    with pytest.raises(errors.MissingColumnError, match="id column 'unique_id' is not in the frame; there are 0, 1"):
        Panel.from_frame(pd.DataFrame([[1, 2]]))
    with pytest.raises(errors.ColumnTypeError, match="frame is a Series"):
        Panel.from_frame(sales["y"])


def test_a_broken_page_is_a_typed_error(sales, tmp_path):
    file = tmp_path / "f.parquet"
    pl.concat([sales] * 50).with_columns(pl.int_range(pl.len()).cast(pl.String).alias("unique_id")).write_parquet(file)
    content = bytearray(file.read_bytes())
    content[100:400] = b"x" * 300
    file.write_bytes(content)
    with pytest.raises(errors.SourceError, match="cannot be read"):
        Panel.from_frame(file, Schema(freq="W"))


def test_a_text_that_cannot_be_stored_is_refused():
    frame = pd.DataFrame(
        {"unique_id": ["\ud800", "a"], "ds": pd.to_datetime(["2024-01-01"] * 2), "y": 1.0}, dtype=object
    )
    with pytest.raises(errors.ColumnTypeError, match="column 'unique_id'"):
        Panel.from_frame(frame, Schema(freq="D"))


def test_hidden_files_are_left_alone_and_lists_of_files_will_do(sales, tmp_path, same_arrays):
    (tmp_path / "_temporary").mkdir()
    sales.write_parquet(tmp_path / "_temporary" / "x.parquet")
    sales.head(5).write_parquet(tmp_path / "1.parquet")
    sales.tail(11).with_columns(pl.col("unique_id").cast(pl.Categorical)).write_parquet(tmp_path / "2.pq")
    panel = Panel.from_frame(sales, WEEKLY)
    same_arrays(panel, Panel.from_frame(tmp_path, WEEKLY))
    same_arrays(panel, Panel.from_frame([tmp_path / "2.pq", tmp_path / "1.parquet"], WEEKLY))


def test_a_misspelt_static_column_is_looked_for_in_both_places(sales):
    with pytest.raises(
        errors.MissingColumnError, match=r"static column 'cty' is not in the frame or the static table .*'city'"
    ):
        Panel.from_frame(sales, Schema(static=("cty", "size")), static=STATIC)


def test_a_horizon_is_at_least_one(sales):
    with pytest.raises(errors.ConfigError, match="horizon is 0"):
        Panel.from_frame(sales, WEEKLY).require_future(0)


def test_the_id_may_be_a_static_category(sales):
    panel = Panel.from_frame(sales, Schema(freq="W", static=("unique_id", "city")), static=STATIC)
    assert panel.vocabularies["unique_id"] == ("a", "b")
    assert panel.arrays["static_category"].tolist() == [[1, 0], [2, 1]]
    new = sales.with_columns(pl.col("unique_id").replace("a", "c"))
    with pytest.warns(errors.UnseenCategoryWarning, match="'unique_id': 1 new"):
        again = Panel.from_frame(new, static=STATIC, like=panel)
    assert again.arrays["static_category"][:, 0].tolist() == [2, 0]


def test_a_damaged_note_of_pandas_in_a_parquet_file_does_no_harm(sales, tmp_path):
    table = sales.to_arrow()
    for note in (b"{", b"[1]", b'{"columns": 3}', b'{"columns": [{}, 4]}', b"\xff", b"[" * 100_000):
        pq.write_table(table.replace_schema_metadata({b"pandas": note}), tmp_path / "sales.parquet")
        assert Panel.from_frame(tmp_path / "sales.parquet").num_rows == len(sales)


def test_text_that_is_not_utf8_is_refused(sales, tmp_path):
    ids = pa.array([b"\xff\xfe"] * len(sales), pa.binary())
    broken = pa.StringArray.from_buffers(len(ids), ids.buffers()[1], ids.buffers()[2])
    table = sales.to_arrow().set_column(0, "unique_id", broken)
    pq.write_table(table, tmp_path / "sales.parquet")
    for frame in (table, tmp_path / "sales.parquet"):
        with pytest.raises(errors.MqcastError, match=r"UTF-?8"):
            Panel.from_frame(frame)
