"""Calendar categories against the standard library; holidays against the calendar on the wall."""

import datetime as dt
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcast import Panel, Schema
from mqcast.data.axis import TimeAxis
from mqcast.data.calendar import Calendar, fitting_features
from mqcast.data.frequency import Frequency
from mqcast.data.schema import CALENDAR_FEATURES
from mqcast.errors import ConfigError, SchemaError


def micros(*dates: str) -> np.ndarray:
    return np.array(dates, "M8[us]").astype(np.int64)


def calendar(freq: str, holidays=(), **settings) -> Calendar:
    anchor = micros(*pd.date_range("2024-01-01", periods=3, freq=freq).astype(str))
    return Calendar(Schema(**settings), TimeAxis(Frequency.parse(freq).anchored(anchor)), holidays)


@given(st.datetimes(dt.datetime(1950, 1, 1), dt.datetime(2100, 1, 1)))
def test_categories_are_those_of_the_standard_library(moment):
    (codes,) = calendar("min", calendar=CALENDAR_FEATURES).categories(micros(moment.isoformat()))
    expected = (
        *(moment.minute, moment.hour, moment.weekday(), moment.day - 1),
        *(moment.isocalendar().week - 1, moment.month - 1, (moment.month - 1) // 3),
    )
    assert tuple(codes) == expected


@pytest.mark.parametrize(
    ("freq", "features"),
    [
        ("15min", ("minute_of_hour", "hour_of_day", "day_of_week", "year_wave")),
        ("h", ("hour_of_day", "day_of_week", "year_wave")),
        ("D", ("day_of_week", "year_wave")),
        ("B", ("day_of_week", "year_wave")),
        ("W", ("year_wave",)),
        ("MS", ("month",)),
        ("QS", ("quarter",)),
        ("YS", ()),
    ],
)
def test_the_features_fit_the_frequency(freq, features):
    assert fitting_features(Frequency.parse(freq)) == features


@pytest.mark.parametrize(
    ("freq", "features"),
    [
        ("h", ("hour_of_day", "day_of_week")),
        ("D", ("day_of_week", "week_of_year", "month")),
        ("W", ("week_of_year", "month")),
        ("MS", ("month",)),
    ],
)
def test_a_raw_calendar_has_indicators_of_week_and_month_instead_of_waves(freq, features):
    raw = calendar(freq).as_indicators()
    assert (raw.features, raw.num_waves) == (features, 0)
    named = calendar(freq, calendar=("quarter", "year_wave")).as_indicators()
    assert (named.features, named.num_waves) == (("quarter",), 4)  # what the schema names, stays


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_waves_follow_the_time_of_year_on_the_wall_clock(zone):
    axis = TimeAxis(Frequency.parse("h").anchored(np.array([0])), zone)
    calendar = Calendar(Schema(freq="h", calendar=("year_wave",)), axis, ())
    assert (calendar.features, calendar.num_values, calendar.num_waves) == ((), (), 4)
    moment = dt.datetime(2023, 4, 10, 18)
    there = moment + dt.timedelta(hours=9 if zone else 0)
    share = (there - dt.datetime(2023, 1, 1)) / dt.timedelta(days=365.25)
    expected = [
        np.cos(2 * np.pi * share),
        np.cos(4 * np.pi * share),
        np.sin(2 * np.pi * share),
        np.sin(4 * np.pi * share),
    ]
    times = np.array([moment], "M8[us]").astype(np.int64)
    np.testing.assert_allclose(calendar.waves(times)[0], expected, atol=1e-12)
    without = Calendar(Schema(freq="h", calendar=("hour_of_day",)), axis, ())
    assert without.waves(times).shape == (1, 0)


def test_an_unknown_calendar_category_is_refused():
    with pytest.raises(SchemaError, match="did you mean 'day_of_week'"):
        Schema(calendar=("day_of_weak",))


def test_an_unknown_region_is_refused(sales):
    with pytest.raises(ConfigError, match="no holidays for 'Atlantis'"):
        Panel.from_frame(sales, Schema(holidays="Atlantis"))
    with pytest.raises(ConfigError, match="no holidays for 'DE-XX'"):
        Panel.from_frame(sales, Schema(holidays=("DE-XX",)))


def test_a_holiday_is_a_flag_on_its_day_and_in_all_its_hours():
    christmas = (("US", "Christmas Day"),)
    days = calendar("D", christmas).flags(micros("2031-12-24", "2031-12-25", "2031-12-26"))
    assert days[:, 0].tolist() == [False, True, False]
    hours = calendar("h", christmas).flags(micros("2031-12-24T23:00", "2031-12-25T00:00", "2031-12-25T23:00"))
    assert hours[:, 0].tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("stamp", "weeks"),
    [(None, [False, True, False]), ("end", [False, True, False]), ("start", [True, False, False])],
)
def test_a_weeks_date_names_its_end_unless_said_otherwise(stamp, weeks):
    thanksgiving = (("US", "Thanksgiving Day"),)  # Thursday 2024-11-28
    flags = calendar("W-SUN", thanksgiving, stamp=stamp).flags(micros("2024-11-24", "2024-12-01", "2024-12-08"))
    assert flags[:, 0].tolist() == weeks


@pytest.mark.parametrize(
    ("freq", "dates"), [("MS", ["2024-11-01", "2024-12-01"]), ("ME", ["2024-11-30", "2024-12-31"])]
)
def test_months_hold_their_holidays(freq, dates):
    flags = calendar(freq, (("US", "Thanksgiving Day"),)).flags(micros(*dates))
    assert flags[:, 0].tolist() == [True, False]


def test_only_holidays_that_occurred_have_a_flag():
    days = pl.datetime_range(pl.datetime(2024, 6, 1), pl.datetime(2024, 7, 10), "1d", eager=True)
    panel = Panel.from_frame(pl.DataFrame({"unique_id": "a", "ds": days, "y": 1.0}), Schema(holidays=("US", "DE-BY")))
    assert panel.holidays == (("US", "Independence Day"), ("US", "Juneteenth National Independence Day"))


def test_names_do_not_follow_the_machines_locale():
    code = "from mqcast.data.calendar import _holidays; print(sorted(_holidays('DE', 2024, 2025)))"
    names = {
        subprocess.run([sys.executable, "-c", code], env={"LANG": lang}, capture_output=True, check=True).stdout
        for lang in ("C", "de_DE.UTF-8", "en_US.UTF-8")
    }
    assert len(names) == 1
    assert b"Good Friday" in names.pop()


def test_regional_holidays_differ():
    days = pl.datetime_range(pl.datetime(2023, 1, 1), pl.datetime(2024, 12, 31), "1d", eager=True)
    frame = pl.DataFrame({"unique_id": "a", "ds": days, "y": 1.0})
    bavaria, berlin = (Panel.from_frame(frame, Schema(holidays=(region,))).holidays for region in ("DE-BY", "DE-BE"))
    assert {name for _, name in bavaria} > {"Corpus Christi"}
    assert "Corpus Christi" not in {name for _, name in berlin}
