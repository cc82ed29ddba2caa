"""Frames and objects of the layouts that the other libraries were seen to give, without those libraries.

Seen with NeuralForecast 3.3.0, StatsForecast 2.0.1, MLForecast 1.0.2, Darts 0.41.0, GluonTS 0.17.0, AutoGluon 1.6.3
and Chronos 2.3.2.
"""

import datetime as dt
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from mqcast import errors
from mqcast.evaluation.converters import from_autogluon, from_chronos, from_darts, from_gluonts, from_neuralforecast

SUNDAYS = pd.date_range("2023-01-08", periods=8, freq="W-SUN")


def cross_validation(
    dates: Any = SUNDAYS, h: int = 3, ids: tuple[str, ...] = ("a", "b"), names: tuple[str, ...] = ("NHITS-median",)
) -> pd.DataFrame:
    """As NeuralForecast lays it out, every cutoff that has `h` dates after it; the values number the rows."""
    windows = range(len(dates) - h)
    rows = [(id, dates[i + k], dates[i]) for id in ids for i in windows for k in range(1, h + 1)]
    frame = pd.DataFrame(rows, columns=["unique_id", "ds", "cutoff"])
    for number, name in enumerate(names):
        frame[name] = np.arange(len(frame), dtype=np.float32) + 1000 * number
    return frame.assign(y=-1.0)


def from_cutoff(frame: pd.DataFrame, cutoff: pd.Timestamp) -> pd.DataFrame:
    """As `predict` lays it out."""
    return frame[frame["cutoff"] == cutoff].drop(columns=["cutoff", "y"])


def levels(frame: Any) -> list[str]:
    return [name for name in frame.columns if name.startswith("q")]


# -- Nixtla -----------------------------------------------------------------------------------------------------------


def test_a_neuralforecast_frame_becomes_a_forecast_frame():
    given = cross_validation(names=("NHITS-lo-80.0", "NHITS-median", "NHITS-hi-80.0"))
    found = from_neuralforecast(given)
    assert list(found.columns) == ["unique_id", "cutoff", "ds", "horizon", "q0.1", "q0.5", "q0.9"]
    assert found["horizon"].dtype == np.int32
    assert found["horizon"].tolist() == [1, 2, 3] * 10
    for old, new in (("ds", "ds"), ("cutoff", "cutoff"), ("NHITS-lo-80.0", "q0.1"), ("NHITS-hi-80.0", "q0.9")):
        assert found[new].tolist() == given[old].tolist()


def test_polars_in_polars_out_whatever_the_order_of_rows():
    given = cross_validation(names=("NHITS-median", "NHITS-hi-80.0"))
    shuffled = pl.from_pandas(given).sample(fraction=1, shuffle=True, seed=1)
    found = from_neuralforecast(shuffled)
    assert isinstance(found, pl.DataFrame)
    assert found.equals(pl.from_pandas(from_neuralforecast(given)))


def test_ids_in_the_index_are_found_there():
    given = cross_validation()
    assert from_neuralforecast(given.set_index("unique_id")).equals(from_neuralforecast(given))


def test_a_filtered_pandas_frame_keeps_its_rows_together():
    given = cross_validation()
    found = from_neuralforecast(given[given["unique_id"] == "b"])
    assert found["q0.5"].tolist() == given.loc[given["unique_id"] == "b", "NHITS-median"].tolist()
    assert found.index.tolist() == list(range(15))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("M",), {"q0.5": "M"}),
        (("M", "M-median"), {"q0.5": "M-median"}),
        (("M", "M-lo-95", "M-lo-80", "M-hi-80", "M-hi-95"), {"q0.025": "M-lo-95", "q0.5": "M", "q0.9": "M-hi-80"}),
        (("M-lo-80.0", "M-hi-99.8"), {"q0.1": "M-lo-80.0", "q0.999": "M-hi-99.8"}),
        (("M_ql0.1", "M_ql0.5"), {"q0.1": "M_ql0.1", "q0.5": "M_ql0.5"}),
        (("M_q0.9_d1.0",), {"q0.9": "M_q0.9_d1.0"}),
        (("TimeGPT", "TimeGPT-q-10", "TimeGPT-q-2.5"), {"q0.1": "TimeGPT-q-10", "q0.025": "TimeGPT-q-2.5"}),
        (("M", "M-median", "M-df", "M-loc", "M-scale"), {"q0.5": "M-median"}),
        (("M-median", "M-mu-1", "M-std-1", "M-weight-1"), {"q0.5": "M-median"}),
    ],
)
def test_every_way_of_naming_a_level_is_understood(names, expected):
    given = cross_validation(names=names)
    found = from_neuralforecast(given)
    for level, name in expected.items():
        assert found[level].tolist() == given[name].tolist()
    assert levels(found) == sorted(levels(found))


def test_a_frame_with_two_models_asks_which_one():
    given = cross_validation(names=("NHITS-median", "NHITS-hi-80", "TFT", "TFT-small"))
    with pytest.raises(
        errors.SchemaError, match="several models, 'NHITS', 'TFT', 'TFT-small'; choose one, such as model='NHITS'"
    ):
        from_neuralforecast(given)
    assert levels(from_neuralforecast(given, "NHITS")) == ["q0.5", "q0.9"]
    assert from_neuralforecast(given, "TFT-small")["q0.5"].tolist() == given["TFT-small"].tolist()


def test_a_misspelt_model_suggests_the_nearest():
    with pytest.raises(
        errors.MissingColumnError, match=r"no model 'NHIT' \(did you mean 'NHITS'\?\); there are 'NHITS'"
    ):
        from_neuralforecast(cross_validation(), "NHIT")


def test_a_frame_without_a_model_is_refused():
    with pytest.raises(errors.MissingColumnError, match="no column of a model"):
        from_neuralforecast(cross_validation(names=()))


@pytest.mark.parametrize(
    "cutoff", ["2023-01-22", dt.date(2023, 1, 22), pd.Timestamp("2023-01-22"), SUNDAYS[2].to_numpy()]
)
def test_a_predict_frame_takes_its_cutoff_as_a_date(cutoff):
    given = from_cutoff(cross_validation(), SUNDAYS[2])
    found = from_neuralforecast(given, cutoff=cutoff)
    assert set(found["cutoff"]) == {SUNDAYS[2]}
    assert found["cutoff"].dtype == found["ds"].dtype
    assert found["horizon"].tolist() == [1, 2, 3] * 2


def test_a_predict_frame_without_a_cutoff_says_what_to_do():
    with pytest.raises(
        errors.MissingColumnError, match=r"no cutoff column 'cutoff'.*the result of predict.*cutoff='2024-01-07'"
    ):
        from_neuralforecast(cross_validation().drop(columns="cutoff"))


def test_a_given_cutoff_off_the_grid_is_refused():
    given = from_cutoff(cross_validation(), SUNDAYS[2])
    with pytest.raises(errors.OffGridError, match=r"series 'a', at 2023-01-29.*W-SUN.*2023-01-25"):
        from_neuralforecast(given, cutoff="2023-01-25")


def test_columns_may_have_other_names():
    given = cross_validation().rename(columns={"unique_id": "sku", "ds": "week", "cutoff": "origin"})
    found = from_neuralforecast(given, id="sku", time="week", cutoff="origin")
    assert found.equals(from_neuralforecast(cross_validation()))
    with pytest.raises(errors.MissingColumnError, match="no column 'unique_id'"):
        from_neuralforecast(given)


# -- horizons ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freq", ["D", "h", "15min", "W-WED", "MS", "ME", "QE", "YS", "B", "2D", "14D"])
def test_horizons_are_counted_on_the_grid(freq):
    given = cross_validation(pd.date_range("2021-11-03", periods=14, freq=freq), h=4)
    assert from_neuralforecast(given)["horizon"].tolist() == [1, 2, 3, 4] * 20


@pytest.mark.parametrize("freq", ["D", "W-SUN", "MS", "B"])
def test_a_date_left_out_counts(freq):
    dates = pd.date_range("2022-06-01", periods=14, freq=freq)
    given = cross_validation(dates, h=4)
    kept = given[given["ds"] != dates[6]]
    expected = from_neuralforecast(given)
    expected = expected[expected["ds"] != dates[6]].reset_index(drop=True)
    assert from_neuralforecast(kept).equals(expected)


@pytest.mark.parametrize("weekday", range(5))
def test_few_business_days_are_no_days(weekday):
    given = cross_validation(pd.bdate_range("2024-01-01", periods=12)[weekday : weekday + 6], h=5)
    assert from_neuralforecast(given)["horizon"].tolist() == [1, 2, 3, 4, 5] * 2


def test_dates_on_no_grid_are_counted_as_they_come():
    dates = [pd.Timestamp(2023, month, 15) for month in range(1, 13)]
    given = cross_validation(dates, h=3)
    assert from_neuralforecast(given)["horizon"].tolist() == [1, 2, 3] * 18
    once_missing = from_neuralforecast(given[~((given["cutoff"] == dates[4]) & (given["ds"] == dates[5]))])
    assert once_missing.loc[once_missing["cutoff"] == dates[4], "horizon"].tolist() == [2, 3] * 2


def test_series_may_have_weekdays_of_their_own():
    mondays = cross_validation(SUNDAYS + pd.Timedelta(days=1), ids=("c",))
    found = from_neuralforecast(pd.concat([cross_validation(), mondays]))
    assert found["horizon"].tolist() == [1, 2, 3] * 15


def test_a_thinned_out_frame_needs_its_frequency():
    given = cross_validation(pd.date_range("2024-01-01", periods=40, freq="D"), h=3)
    thin = given[(given["cutoff"].dt.day_of_week == 0) & (given["ds"] - given["cutoff"] == pd.Timedelta(days=3))]
    assert set(from_neuralforecast(thin, freq="D")["horizon"]) == {3}
    with pytest.raises(errors.OffGridError, match=r"not a whole number of steps \(W-THU\)"):
        from_neuralforecast(thin, freq="W")


def test_days_with_a_time_zone_are_counted_by_its_clock():
    dates = pd.date_range("2024-03-27", periods=10, freq="D", tz="Europe/Berlin")
    given = cross_validation(dates, h=4)
    assert from_neuralforecast(given)["horizon"].tolist() == [1, 2, 3, 4] * 12
    found = from_neuralforecast(from_cutoff(given, dates[3]), cutoff="2024-03-30")
    assert found["cutoff"].tolist() == [dates[3]] * 8
    assert found["ds"].dtype == found["cutoff"].dtype == given["ds"].dtype


def test_polars_dates_stay_dates():
    given = pl.from_pandas(cross_validation()).with_columns(pl.col("ds", "cutoff").cast(pl.Date))
    assert from_neuralforecast(given).schema["cutoff"] == pl.Date
    one = given.filter(pl.col("cutoff") == SUNDAYS[2].date()).drop("cutoff")
    assert from_neuralforecast(one, cutoff=SUNDAYS[2].date()).schema["cutoff"] == pl.Date


# -- what is wrong with a frame ---------------------------------------------------------------------------------------


def test_a_date_not_after_its_cutoff_is_refused():
    given = cross_validation()
    given.loc[3, "ds"] = given.loc[3, "cutoff"]
    with pytest.raises(
        errors.DataError, match="series 'a', at 2023-01-15: the date is not after its cutoff 2023-01-15"
    ):
        from_neuralforecast(given)


def test_two_rows_of_one_forecast_are_refused():
    given = cross_validation()
    with pytest.raises(errors.DuplicateRowsError, match=r"series 'a', at 2023-01-15.*two forecasts of the same date"):
        from_neuralforecast(pd.concat([given, given.head(1)]))


@pytest.mark.parametrize("kind", ["int64", "str"])
def test_times_that_are_no_dates_are_refused(kind):
    given = cross_validation()
    for name in ("ds", "cutoff"):
        given[name] = given[name].astype(kind)
    with pytest.raises(errors.ColumnTypeError, match="not dates; convert"):
        from_neuralforecast(given)


def test_missing_keys_zones_and_rows_are_refused():
    given = cross_validation()
    with pytest.raises(errors.MissingKeyError, match="column 'cutoff'"):
        from_neuralforecast(given.assign(cutoff=given["cutoff"].where(given.index > 0)))
    with pytest.raises(errors.TimeZoneError, match="different time zones"):
        from_neuralforecast(given.assign(ds=given["ds"].dt.tz_localize("UTC")))
    with pytest.raises(errors.EmptyFrameError, match="no forecast"):
        from_neuralforecast(given.head(0))
    with pytest.raises(errors.ColumnTypeError, match="are a dict"):
        from_neuralforecast({"unique_id": [1]})


# -- AutoGluon and Chronos --------------------------------------------------------------------------------------------


def autogluon(
    dates: Any, ids: tuple[str, ...] = ("a", "b"), names: tuple[str, ...] = ("mean", "0.1", "0.5")
) -> pd.DataFrame:
    index = pd.MultiIndex.from_product([ids, dates], names=["item_id", "timestamp"])
    return pd.DataFrame({name: np.arange(len(index)) + 100.0 * i for i, name in enumerate(names)}, index)


def test_autogluon_predictions_start_one_step_after_their_cutoff():
    given = autogluon(SUNDAYS[3:6])
    found = from_autogluon(given)
    assert list(found.columns) == ["unique_id", "cutoff", "ds", "horizon", "q0.1", "q0.5"]
    assert set(found["cutoff"]) == {SUNDAYS[2]}
    assert found["horizon"].tolist() == [1, 2, 3] * 2
    assert found["q0.5"].tolist() == given["0.5"].tolist()


@pytest.mark.parametrize("freq", ["D", "h", "MS", "ME", "QE", "B"])
def test_cutoffs_are_found_on_every_grid(freq):
    dates = pd.date_range("2024-01-31", periods=10, freq=freq)
    found = from_autogluon(autogluon(dates[1:9]))
    assert set(found["cutoff"]) == {dates[0]}


def test_several_windows_are_several_cutoffs():
    windows = {SUNDAYS[i]: autogluon(SUNDAYS[i + 1 : i + 4]) for i in range(3)}
    found = from_autogluon(windows)
    assert found.equals(from_autogluon(list(windows.values())))
    assert found.equals(from_autogluon({str(cutoff)[:10]: frame for cutoff, frame in windows.items()}))
    assert found["cutoff"].nunique() == 3
    with pytest.raises(errors.ConfigError, match="one cutoff= for 3 frames; give a dictionary"):
        from_autogluon(list(windows.values()), cutoff="2023-01-08")
    with pytest.raises(errors.ConfigError, match="'Naive' is not a date"):
        from_autogluon({"Naive": windows[SUNDAYS[0]]})
    with pytest.raises(errors.SchemaError, match="have different quantile levels"):
        from_autogluon([windows[SUNDAYS[0]], autogluon(SUNDAYS[2:5], names=("mean", "0.9"))])


def test_a_mean_stands_in_for_a_median_that_is_not_there():
    found = from_autogluon(autogluon(SUNDAYS[:3], names=("mean", "0.9")))
    assert found["q0.5"].tolist() == [0, 1, 2, 3, 4, 5]


def test_one_date_asks_for_the_frequency():
    given = autogluon(SUNDAYS[3:4])
    with pytest.raises(errors.DataError, match="one date per series does not show the frequency; give freq="):
        from_autogluon(given)
    assert set(from_autogluon(given, freq="W")["cutoff"]) == {SUNDAYS[2]}
    assert set(from_autogluon(given, freq="W", cutoff="2022-12-25")["horizon"]) == {5}


def test_a_week_from_monday_may_be_of_days_or_business_days():
    given = autogluon(pd.date_range("2024-01-08", periods=3))
    with pytest.raises(errors.DataError, match=r"days or business days.*give cutoff= or freq="):
        from_autogluon(given)
    assert set(from_autogluon(given, freq="D")["cutoff"]) == {pd.Timestamp("2024-01-07")}
    assert set(from_autogluon(given, freq="B")["cutoff"]) == {pd.Timestamp("2024-01-05")}
    for cutoff in ("2024-01-05", "2024-01-07"):
        assert from_autogluon(given, cutoff=cutoff)["horizon"].tolist() == [1, 2, 3] * 2


def test_irregular_dates_ask_for_the_cutoff():
    given = autogluon([pd.Timestamp(2024, month, 15) for month in range(1, 5)])
    with pytest.raises(errors.DataError, match=r"no regular grid.*give cutoff="):
        from_autogluon(given)
    assert from_autogluon(given, cutoff="2023-12-15")["horizon"].tolist() == [1, 2, 3, 4] * 2


def chronos(dates: Any, targets: tuple[str, ...] = ("target",)) -> pd.DataFrame:
    rows = [(id, date, target) for id in ("a", "b") for target in targets for date in dates]
    frame = pd.DataFrame(rows, columns=["item_id", "timestamp", "target_name"])
    for i, name in enumerate(("predictions", "0.1", "0.5", "0.9")):
        frame[name] = np.arange(len(frame), dtype=np.float32) + 100 * i
    return frame


def test_chronos_frames_are_read_in_pandas_and_polars():
    given = chronos(SUNDAYS[3:6])
    found = from_chronos(given)
    assert levels(found) == ["q0.1", "q0.5", "q0.9"]
    assert set(found["cutoff"]) == {SUNDAYS[2]}
    assert from_chronos(pl.from_pandas(given)).equals(pl.from_pandas(found))
    renamed = given.rename(columns={"item_id": "sku", "timestamp": "week"})
    assert from_chronos(renamed, id="sku", time="week").equals(found)
    with pytest.raises(errors.MissingColumnError, match="no column of a quantile"):
        from_chronos(given[["item_id", "timestamp"]])


def test_each_of_several_targets_is_a_series():
    found = from_chronos(chronos(SUNDAYS[3:6], ("sold", "returned")))
    assert found["unique_id"].unique().tolist() == ["a/returned", "a/sold", "b/returned", "b/sold"]


# -- Darts ------------------------------------------------------------------------------------------------------------


@dataclass
class DartsSeries:
    """What is used of `darts.TimeSeries`: values are (date, component, sample)."""

    time_index: Any
    values: np.ndarray
    components: Any = ("y",)
    static_covariates: pd.DataFrame | None = None

    @property
    def freq(self) -> Any:
        return self.time_index.freq if isinstance(self.time_index, pd.DatetimeIndex) else self.time_index.step

    def all_values(self, copy: bool = True) -> np.ndarray:
        return self.values


def darts(
    start: int, n: int = 3, id: str | None = None, components: tuple[str, ...] = ("y",), samples: int = 1
) -> DartsSeries:
    shape = (n, len(components), samples)
    static = None if id is None else pd.DataFrame({"unique_id": [id]}, index=["global_components"])
    values = np.arange(np.prod(shape), dtype=float).reshape(shape) + 1000 * start
    return DartsSeries(SUNDAYS[start : start + n], values, pd.Index(components), static)


def test_darts_windows_of_several_series():
    found = from_darts([[darts(i, id=id) for i in range(1, 4)] for id in ("b", "a")])
    assert list(found.columns) == ["unique_id", "cutoff", "ds", "horizon", "q0.5"]
    assert found["unique_id"].tolist() == ["a"] * 9 + ["b"] * 9
    assert found["horizon"].tolist() == [1, 2, 3] * 6
    assert found["cutoff"].tolist() == [SUNDAYS[i] for i in (0, 1, 2) for _ in range(3)] * 2
    assert found["q0.5"].tolist() == [1000, 1001, 1002, 2000, 2001, 2002, 3000, 3001, 3002] * 2


def test_darts_windows_of_one_series_are_named_by_id_covariate_or_component():
    windows = [darts(1), darts(2)]
    assert set(from_darts(windows)["unique_id"]) == {"y"}
    assert set(from_darts([darts(1, id="a")])["unique_id"]) == {"a"}
    assert set(from_darts(windows, ids="shop")["unique_id"]) == {"shop"}
    assert set(from_darts([windows, windows], ids=["s", "t"])["unique_id"]) == {"s", "t"}


def test_darts_series_without_names_ask_for_them():
    with pytest.raises(errors.ConfigError, match="two series are named 'y'; give different names with ids="):
        from_darts([[darts(1)], [darts(2)]])
    with pytest.raises(errors.ConfigError, match="1 ids for 2 series"):
        from_darts([[darts(1)], [darts(2)]], ids=["a"])


def test_darts_samples_give_their_quantiles():
    one = darts(1, samples=101)
    found = from_darts([one], quantiles=(0.25, 0.9))
    assert found["q0.25"].tolist() == np.quantile(one.values[:, 0], 0.25, axis=1).tolist()
    assert found["q0.9"].tolist() == [1090, 1191, 1292]
    assert levels(from_darts([one])) == ["q0.1", "q0.5", "q0.9"]


@pytest.mark.parametrize("name", ["y_q0.1", "y_q0.10", "y_q0.100"])
def test_darts_quantile_components_are_levels(name):
    one = darts(1, components=(name, "y_q0.500"))
    found = from_darts([one])
    assert found["unique_id"].unique().tolist() == ["y"]
    assert found["q0.1"].tolist() == one.values[:, 0, 0].tolist()
    assert levels(from_darts([one], quantiles=[0.5])) == ["q0.5"]
    with pytest.raises(errors.DataError, match=r"series 'y': there is no level 0.9"):
        from_darts([one], quantiles=[0.5, 0.9])


def test_darts_components_are_series():
    components = ("u_q0.500", "u_q0.900", "v_q0.500", "v_q0.900")
    assert from_darts([darts(1, components=components)])["unique_id"].unique().tolist() == ["u", "v"]
    found = from_darts([darts(1, id="a", components=components)])
    assert found["unique_id"].unique().tolist() == ["a/u", "a/v"]
    assert found["q0.9"].tolist() == [1001, 1005, 1009, 1003, 1007, 1011]


def test_darts_last_points_need_their_horizon():
    lasts = darts(3, n=4, id="a")
    with pytest.raises(errors.ConfigError, match=r"give forecast_horizon=.*last_points_only=True"):
        from_darts(lasts)
    found = from_darts(lasts, forecast_horizon=3)
    assert set(found["horizon"]) == {3}
    assert found["cutoff"].tolist() == list(SUNDAYS[:4])
    assert len(from_darts([lasts, darts(3, n=4, id="b")], forecast_horizon=3)) == 8


def test_darts_last_points_with_a_stride_need_it_too():
    lasts = DartsSeries(SUNDAYS[3:8:2], np.zeros((3, 1, 1)))
    with pytest.raises(errors.ConfigError, match=r"last points are 2W-SUN apart.*stride="):
        from_darts(lasts, forecast_horizon=3)
    assert from_darts(lasts, forecast_horizon=3, stride=2)["cutoff"].tolist() == list(SUNDAYS[[0, 2, 4]])
    assert from_darts(lasts, forecast_horizon=1, stride=1)["cutoff"].tolist() == list(SUNDAYS[[1, 3, 5]])


def test_darts_numbered_steps_and_nothing_are_refused():
    with pytest.raises(errors.ColumnTypeError, match="not dates"):
        from_darts([DartsSeries(pd.RangeIndex(54, 57), np.zeros((3, 1, 1)))])
    with pytest.raises(errors.EmptyFrameError, match="no forecast"):
        from_darts([])


# -- GluonTS ----------------------------------------------------------------------------------------------------------


@dataclass
class GluonForecast:
    """What is used of a GluonTS `Forecast`."""

    item_id: str | None
    start_date: pd.Period
    prediction_length: int = 3
    dims: int = 1
    keys: tuple[float, ...] = (0.1, 0.5, 0.9)

    def quantile(self, q: float) -> np.ndarray:
        value = 10 * q + np.arange(self.prediction_length, dtype=np.float32) if q in self.keys else np.nan
        value = np.broadcast_to(value, self.prediction_length)
        return value if self.dims == 1 else np.stack([value + 100 * k for k in range(self.dims)], axis=1)


def test_gluonts_forecasts_of_one_item_are_several_cutoffs():
    start = pd.Period("2024-01-01", "D")
    found = from_gluonts(GluonForecast(id, start + i) for id in ("b", "a") for i in range(2))
    assert list(found.columns) == ["unique_id", "cutoff", "ds", "horizon", "q0.1", "q0.5", "q0.9"]
    assert found["unique_id"].tolist() == ["a"] * 6 + ["b"] * 6
    assert found["cutoff"].dt.day.tolist() == [31, 31, 31, 1, 1, 1] * 2
    assert found["ds"].dt.day.tolist() == [1, 2, 3, 2, 3, 4] * 2
    assert found["horizon"].tolist() == [1, 2, 3] * 4
    assert found["q0.1"].tolist() == [1, 2, 3] * 4
    with pytest.raises(errors.DuplicateRowsError, match="two forecasts"):
        from_gluonts([GluonForecast("a", start)] * 2)


@pytest.mark.parametrize(
    ("freq", "stamp", "dates"),
    [
        ("W-SUN", None, pd.date_range("2024-01-07", periods=4, freq="W-SUN")),
        ("W-WED", None, pd.date_range("2024-01-10", periods=4, freq="W-WED")),
        ("W-SUN", "start", pd.date_range("2024-01-01", periods=4, freq="W-MON")),
        ("M", None, pd.date_range("2024-01-01", periods=4, freq="MS")),
        ("M", "end", pd.date_range("2024-01-31", periods=4, freq="ME")),
        ("Q-DEC", "end", pd.date_range("2024-03-31", periods=4, freq="QE")),
        ("h", "end", pd.date_range("2024-01-01 10:00", periods=4, freq="h")),
        ("D", "end", pd.date_range("2024-01-31", periods=4, freq="D")),
    ],
)
def test_gluonts_periods_become_the_dates_of_the_data(freq, stamp, dates):
    found = from_gluonts([GluonForecast("a", pd.Period(dates[1], freq))], stamp=stamp)
    assert found["ds"].tolist() == list(dates[1:])
    assert set(found["cutoff"]) == {dates[0]}


def test_gluonts_dimensions_are_series():
    found = from_gluonts([GluonForecast("a", pd.Period("2024-01-01", "D"), dims=2)], quantiles=[0.5])
    assert found["unique_id"].tolist() == ["a/0"] * 3 + ["a/1"] * 3
    assert found["q0.5"].tolist() == [5, 6, 7, 105, 106, 107]


def test_gluonts_forecasts_without_a_name_or_a_level_are_refused():
    with pytest.raises(errors.DataError, match="forecast 0, from 2024-01-01, has no item_id; give each entry"):
        from_gluonts([GluonForecast(None, pd.Period("2024-01-01", "D"))])
    with pytest.raises(errors.DataError, match=r"series 'a': there is no level 0.95"):
        from_gluonts([GluonForecast("a", pd.Period("2024-01-01", "D"))], quantiles=[0.5, 0.95])


def test_a_polars_frame_needs_neither_torch_nor_pandas():
    code = """
import sys, datetime as dt, importlib.abc, polars as pl
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "pandas"):
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Absent())
from mqcast.evaluation.converters import from_neuralforecast
days = [dt.date(2024, 1, day) for day in (6, 7, 8)]
frame = pl.DataFrame({"unique_id": ["a"] * 3, "ds": days, "M": [1.0, 2.0, 3.0]})
assert from_neuralforecast(frame, cutoff="2024-01-05")["horizon"].to_list() == [1, 2, 3]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
