"""Forecast frames and actuals: what is accepted, and what bad ones are told."""

from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
from judged import random_frames, weeks

from mqcast import Schema, compare, evaluate, implausible, rank_revisions, volatility
from mqcast.errors import (
    ColumnTypeError,
    ConfigError,
    DataError,
    DuplicateRowsError,
    EmptyFrameError,
    MissingColumnError,
    MissingKeyError,
    NonFiniteError,
    SchemaError,
    TargetsLeftOutWarning,
    TimeZoneError,
)
from mqcast.evaluation import (
    MartingaleFilter,
    Names,
    ensemble,
    loss_by_lead,
    read_actuals,
    read_forecasts,
    trade_off,
)
from mqcast.evaluation.slices import demand_deciles


def changed(frame: pl.DataFrame, column: str, value, *, where: int = 3) -> pl.DataFrame:
    """The frame with one value of one column set."""
    values = frame[column].to_list()
    values[where] = value
    return frame.with_columns(pl.Series(column, values, strict=False))


def test_rows_stand_by_series_target_and_cutoff_whatever_their_order():
    frame, _ = random_frames()
    rows = read_forecasts(frame, Names())
    keys = list(zip(rows.item, rows.time, rows.cutoff, strict=True))
    assert keys == sorted(keys)
    again = read_forecasts(frame.sort("unique_id", "ds", "cutoff"), Names())
    assert again.order is None
    np.testing.assert_array_equal(rows.quantiles, again.quantiles)
    np.testing.assert_array_equal(rows.to_frame(rows.quantiles)[:, 0], frame["q0.5"])


def test_leads_are_counted_where_the_frame_has_no_horizon():
    frame, _ = random_frames()
    own, counted = (read_forecasts(each, Names()).lead for each in (frame, frame.drop("horizon")))
    np.testing.assert_array_equal(own, counted)


def test_leads_off_the_grid_ask_for_a_horizon():
    frame, _ = random_frames(num_cutoffs=60)
    late = frame["ds"].to_list()
    late[0] += np.timedelta64(1, "D").item()
    with pytest.raises(DataError, match=r"leads cannot be counted: .*add a column 'horizon'"):
        read_forecasts(frame.drop("horizon").with_columns(ds=pl.Series(late)), Names())


def test_leads_are_counted_by_steps_of_the_targets_whatever_weekday_the_cutoff_or_the_series_has():
    frame, _ = random_frames(num_items=2)
    own = frame.sort("unique_id", "ds", "cutoff")["horizon"].to_list()
    early = frame.drop("horizon").with_columns(pl.col("cutoff") + pl.duration(days=5))
    assert read_forecasts(early, Names()).lead.tolist() == own
    shifted = pl.when(pl.col("unique_id") == "item 1").then(pl.duration(days=3)).otherwise(pl.duration(days=0))
    mixed = frame.drop("horizon").with_columns(pl.col("ds", "cutoff") + shifted)
    assert read_forecasts(mixed, Names()).lead.tolist() == own
    thin = frame.drop("horizon").filter(pl.col("ds").dt.week() % 2 == 0)
    expected = frame.filter(pl.col("ds").dt.week() % 2 == 0).sort("unique_id", "ds", "cutoff")["horizon"].to_list()
    assert read_forecasts(thin, Names()).lead.tolist() == expected
    trading = frame.filter(horizon=4, unique_id="item 0").filter(pl.col("cutoff").dt.week() % 4 == 0)
    assert set(read_forecasts(trading, Names()).lead) == {4}


def test_a_horizon_that_contradicts_the_dates_is_told():
    frame, _ = random_frames()
    for wrong in (pl.col("horizon") + 1, pl.lit(2), pl.col("horizon") + 0.5):
        with pytest.raises(DataError, match=r"series 'item \d', column 'horizon', at .*; correct or leave out"):
            read_forecasts(frame.with_columns(horizon=wrong), Names())


def test_hours_of_two_zones_are_the_same_moments_and_days_are_days_of_one_zone():
    hours = pl.datetime_range(
        pl.datetime(2024, 10, 26), pl.datetime(2024, 10, 28, 12), "1h", time_zone="UTC", eager=True
    )
    actuals = pl.DataFrame({"unique_id": "a", "ds": hours, "y": pl.arange(len(hours), eager=True).cast(float)})
    forecasts = actuals.tail(30).select("unique_id", "ds", cutoff=hours[len(hours) - 31], **{"q0.5": "y"})
    local = forecasts.with_columns(pl.col("ds", "cutoff").dt.convert_time_zone("Europe/Berlin"))  # clocks go back
    for frame in (forecasts, local):
        found = evaluate(frame, actuals, by="horizon")
        assert found["wape"].max() == 0
        assert found["horizon"].to_list() == list(range(1, 31))
    assert evaluate(local, actuals, by="ds")["ds"].dtype == pl.Datetime("us", "Europe/Berlin")
    with pytest.raises(TimeZoneError, match="have a time zone, those of the actuals have none"):
        evaluate(local, actuals.with_columns(pl.col("ds").dt.replace_time_zone(None)))
    frame, days = random_frames()
    zoned = days.with_columns(pl.col("ds").dt.replace_time_zone("UTC"))
    with pytest.raises(TimeZoneError, match="in Europe/Berlin, the actuals in UTC"):
        evaluate(frame.with_columns(pl.col("ds", "cutoff").dt.replace_time_zone("Europe/Berlin")), zoned)


def test_keys_come_back_in_the_types_they_came_in():
    frame, actuals = random_frames()
    number = pl.col("unique_id").str.tail(1).cast(pl.Int32)
    typed = frame.with_columns(number, pl.col("ds", "cutoff").cast(pl.Date), big=pl.col("q0.5") > 20)
    found = evaluate(typed, actuals.with_columns(number, pl.col("ds").cast(pl.Date)), by=("unique_id", "cutoff"))
    assert found.schema["unique_id"] == pl.Int64
    assert found.schema["cutoff"] == pl.Date
    by_flag = evaluate(typed, actuals.with_columns(number, pl.col("ds").cast(pl.Date)), by="big")
    assert by_flag["big"].to_list() == [False, True]


@pytest.mark.parametrize("kind", ["pandas", "arrow", "integer ids", "categories", "text dates", "zoned", "path"])
def test_the_same_is_found_whatever_the_frames_kind(kind: str, tmp_path):
    frame, actuals = random_frames()
    expected = evaluate(frame, actuals)
    if kind == "pandas":
        found = pl.from_pandas(evaluate(frame.to_pandas(), actuals.to_pandas()))
    elif kind == "arrow":
        found = pl.DataFrame(evaluate(frame.to_arrow(), actuals.to_arrow()))
    elif kind == "integer ids":
        as_number = pl.col("unique_id").str.tail(1).cast(pl.Int64)
        found = evaluate(frame.with_columns(as_number), actuals.with_columns(as_number.cast(pl.String)))
    elif kind == "categories":
        found = evaluate(frame.with_columns(pl.col("unique_id").cast(pl.Categorical)), actuals)
    elif kind == "text dates":
        found = evaluate(frame.with_columns(pl.col("ds", "cutoff").dt.to_string("%Y-%m-%d")), actuals)
    elif kind == "zoned":
        zoned = pl.col("ds", "cutoff").dt.replace_time_zone("Europe/Berlin")
        found = evaluate(
            frame.with_columns(zoned), actuals.with_columns(pl.col("ds").dt.replace_time_zone("Europe/Berlin"))
        )
    else:
        frame.write_parquet(tmp_path / "f.parquet", row_group_size=50)
        actuals.write_parquet(tmp_path / "a.parquet")
        found = evaluate(tmp_path / "f.parquet", str(tmp_path / "a.parquet"))
    assert found.equals(expected)


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_tables_that_are_read_already_say_the_same_as_their_frames(library: str):
    frame, actuals = random_frames()
    if library == "pandas":
        frame, actuals = frame.to_pandas(), actuals.to_pandas()
    table, observed = read_forecasts(frame), read_actuals(actuals)

    def judged(forecasts, known) -> list:
        models = {"one": forecasts, "other": forecasts}
        return [
            evaluate(models, known, by="horizon", slices=demand_deciles(known, 2)),
            compare(models, known, "other").losses,
            volatility(forecasts, known, resamples=5, weights="demand").summary,
            rank_revisions(forecasts, known),
            loss_by_lead(models, known),
            trade_off(models, known, resamples=5),
            implausible(models, known).counts,
            ensemble(forecasts),
            MartingaleFilter.fit(forecasts, known).apply(forecasts),
        ]

    for of_table, of_frame in zip(judged(table, observed), judged(frame, actuals), strict=True):
        assert type(of_table) is type(of_frame)
        assert of_table.equals(of_frame)


def test_a_table_keeps_the_names_it_was_read_with():
    frame, actuals = random_frames()
    names = {"unique_id": "sku", "ds": "week", "y": "units"}
    called = Names(id="sku", time="week", target="units")
    table = read_forecasts(frame.rename(names, strict=False), called)
    observed = read_actuals(actuals.rename(names), called)
    expected = evaluate(frame, actuals, by="unique_id").rename({"unique_id": "sku"})
    assert evaluate(table, observed, by="sku").equals(expected)
    assert evaluate(table, observed, by="sku", id="sku").equals(expected)
    with pytest.raises(ConfigError, match="id is 'item', but the table was read with 'sku'; leave id= out"):
        evaluate(table, observed, id="item")


def test_a_table_with_crossing_quantiles_is_refused_where_that_is_asked():
    frame, actuals = random_frames()
    with pytest.raises(DataError, match="quantiles cross"):
        evaluate(read_forecasts(frame), actuals, crossing="raise")


def test_tables_come_back_in_the_callers_library():
    frame, actuals = random_frames()
    assert isinstance(evaluate(frame, actuals), pl.DataFrame)
    assert isinstance(evaluate(frame.to_pandas(), actuals), pd.DataFrame)
    found = volatility(frame.to_pandas(), actuals.to_pandas(), resamples=5)
    assert isinstance(found.process, pd.DataFrame)
    assert isinstance(found.summary, pd.DataFrame)
    assert isinstance(found.reduction(found), pd.DataFrame)


def test_other_names_are_said_or_come_with_a_schema():
    frame, actuals = random_frames()
    expected = evaluate(frame, actuals)
    names = {"unique_id": "sku", "ds": "week", "y": "units"}
    renamed, sold = frame.rename(names, strict=False), actuals.rename(names)
    assert evaluate(renamed, sold, id="sku", time="week", target="units").equals(expected)
    schema = Schema(id="sku", time="week", target="units")
    assert evaluate(renamed, sold, schema=schema).equals(expected)
    assert volatility(renamed, sold, schema=schema, resamples=3).summary.shape[0] == 2


def test_levels_are_read_from_the_columns_names():
    frame, _ = random_frames(levels=(0.9, 0.05, 0.5))
    rows = read_forecasts(frame.rename({"q0.5": "q.50"}), Names())
    assert rows.levels == (0.05, 0.5, 0.9)
    assert rows.columns == ("q0.05", "q.50", "q0.9")


def test_bad_forecasts_are_told_where_and_what_to_do():
    frame, _ = random_frames()
    names, first = Names(), frame.row(3, named=True)
    at = rf"series '{first['unique_id']}'.*at {first['ds']:%Y-%m-%d}"
    with pytest.raises(DuplicateRowsError, match=at + r".*two forecasts from cutoff .*; keep one"):
        read_forecasts(pl.concat([frame, frame[3:4]]), names)
    with pytest.raises(DataError, match=rf"column 'ds'.*not after the cutoff, {first['ds']:%Y-%m-%d}.*correct"):
        read_forecasts(changed(frame, "cutoff", first["ds"]), names)
    with pytest.raises(NonFiniteError, match=rf"series '{first['unique_id']}', column 'q0.9', at .*; fill it"):
        read_forecasts(changed(frame, "q0.9", None), names)
    with pytest.raises(DataError, match=r"column 'horizon'.*lead 0 from cutoff .*; leads are whole numbers from 1"):
        read_forecasts(changed(frame, "horizon", 0), names)
    with pytest.raises(MissingKeyError, match=r"column 'unique_id': .*without an id; fill it"):
        read_forecasts(changed(frame, "unique_id", None), names)
    with pytest.raises(MissingKeyError, match=r"column 'cutoff': .*without a date"):
        read_forecasts(changed(frame, "cutoff", None), names)
    with pytest.raises(ColumnTypeError, match=r"column 'q0.5': holds text, not numbers"):
        read_forecasts(frame.with_columns(pl.col("q0.5").cast(pl.String)), names)
    with pytest.raises(ColumnTypeError, match=r"column 'ds': holds whole numbers, not dates"):
        read_forecasts(frame.with_columns(ds=1), names)
    with pytest.raises(ColumnTypeError, match=r"column 'ds': text that is no date"):
        read_forecasts(frame.with_columns(ds=pl.lit("soon")), names)
    with pytest.raises(MissingColumnError, match=r"no column of quantiles.*converter"):
        read_forecasts(frame.drop("q0.5", "q0.9"), names)
    with pytest.raises(MissingColumnError, match=r"no column 'cutoff'"):
        read_forecasts(frame.drop("cutoff"), names)
    with pytest.raises(MissingColumnError, match=r"reset_index\(\)"):
        read_forecasts(frame.to_pandas().set_index("unique_id"), names)
    with pytest.raises(ColumnTypeError, match=r"column 'ds': text that is no date as 2024-01-31"):
        read_forecasts(frame.with_columns(pl.col("ds").dt.to_string("%d/%m/%Y")), names)
    with pytest.raises(SchemaError, match=r"two columns of one level, q0.5 and q0.50"):
        read_forecasts(frame.with_columns(pl.col("q0.5").alias("q0.50")), names)
    with pytest.raises(EmptyFrameError, match="no row"):
        read_forecasts(frame.head(0), names)


def test_crossing_quantiles_are_an_error_where_that_is_asked_for():
    frame, actuals = random_frames()
    crossed = frame.filter(pl.col("q0.9") < pl.col("q0.5"))
    assert len(crossed)
    assert evaluate(frame, actuals)["crossing"][0] == pytest.approx(len(crossed) / len(frame))
    with pytest.raises(DataError, match=rf"quantiles cross: q0.5 .*\(and in {len(crossed) - 1} more rows\); sort them"):
        evaluate(frame, actuals, crossing="raise")


def test_bad_actuals_are_told_where_and_what_to_do():
    frame, actuals = random_frames()
    with pytest.raises(DuplicateRowsError, match=r"series 'item 2'.*two rows for one date"):
        read_actuals(pl.concat([actuals, actuals.filter(unique_id="item 2").head(1)]), Names())
    with pytest.raises(NonFiniteError, match=r"series 'item 0', column 'y'.*infinite"):
        read_actuals(changed(actuals, "y", float("inf")), Names())
    last = actuals["ds"].max()
    for short in (actuals.filter(pl.col("ds") < last), changed(actuals, "y", None, where=len(actuals) - 1)):
        with pytest.raises(DataError, match=r"series 'item \d', column 'y', at 2024.* has no actual .*missing='drop'"):
            evaluate(frame, short, missing="raise")
        with pytest.raises(DataError, match="has no actual"):
            volatility(frame, short, missing="raise")
    with pytest.raises(DataError, match=r"no id of the forecasts, such as 'item 0', .* such as 'xitem 0'"):
        evaluate(frame, actuals.with_columns(unique_id=pl.lit("x") + pl.col("unique_id")), missing="drop")


def test_targets_without_an_actual_are_left_out_and_counted():
    frame, actuals = random_frames()
    last, num_ids = actuals["ds"].max(), frame["unique_id"].n_unique()
    short = actuals.filter(pl.col("ds") < last)
    kept = evaluate(frame, short, missing="drop")
    assert kept["rows"][0] == len(frame.filter(pl.col("ds") < last))
    told = rf"{num_ids} of \d+ pairs .* have no actual .*\({num_ids} of them after 2024.*; series 'item 0'"
    for judge in (evaluate, partial(volatility, resamples=2)):
        with pytest.warns(TargetsLeftOutWarning, match=told) as caught:
            found = judge(frame, short)
        assert len(caught) == 1
        assert judge is not evaluate or found.equals(kept)
    models, options = {"a": frame, "b": frame}, {"baseline": "a"}
    with pytest.warns(TargetsLeftOutWarning, match=told):
        compare(models, short, **options)
    with pytest.raises(DataError, match="no forecast has an actual: the targets go from"):
        evaluate(frame, actuals.filter(pl.col("ds") < frame["ds"].min()))


def test_ids_that_are_mostly_others_are_an_error():
    frame, actuals = random_frames()
    first, most = actuals.filter(unique_id="item 0"), actuals.filter(pl.col("unique_id") != "item 0")
    others = frame["unique_id"].n_unique() - 1
    with pytest.raises(DataError, match=rf"{others} of {others + 1} ids of the forecasts, such as 'item 1', are not "):
        evaluate(frame, first)
    assert evaluate(frame, first, missing="drop")["rows"][0] == len(frame.filter(unique_id="item 0"))
    with pytest.warns(TargetsLeftOutWarning, match="series 'item 0'"):
        evaluate(frame, most)


def test_levels_that_are_not_there_are_told():
    frame, actuals = random_frames()
    with pytest.raises(ConfigError, match=r"the forecasts have no level 0.7, only q0.5, q0.9"):
        volatility(frame, actuals, levels=(0.7,))
    with pytest.raises(ConfigError, match="between 0 and 1"):
        volatility(frame, actuals, levels=(0.5, 90))


def test_the_mean_known_up_to_a_date_takes_no_later_demand():
    _, actuals = random_frames(num_items=2)
    table = read_actuals(actuals, Names())
    until = weeks(np.array([3, 7])).astype("M8[us]").astype(np.int64)
    expected = [actuals.filter(unique_id=f"item {i}")["y"][: end + 1].mean() for i, end in enumerate((3, 7))]
    np.testing.assert_allclose(table.known_mean(table.ids, until), expected)
    assert np.isnan(table.known_mean(["stranger"], until[:1])).all()


def test_misspelt_options_are_told():
    frame, actuals = random_frames()
    for setting in ({"missing": "ignore"}, {"crossing": "error"}):
        with pytest.raises(ConfigError, match=rf"{next(iter(setting))} is '"):
            evaluate(frame, actuals, **setting)
    for season in (0.5, -3, 7.0):
        with pytest.raises(ConfigError, match="season is"):
            evaluate(frame, actuals, season=season)
