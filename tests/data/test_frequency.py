"""Dates ↔ steps, against pandas."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcast.data.axis import TimeAxis, utc_times
from mqcast.data.frequency import DAY, WEEK, Frequency, show_time
from mqcast.errors import ConfigError, DataError

ALIASES = [
    "s",
    "15min",
    "h",
    "6h",
    "D",
    "2D",
    "B",
    "W-SUN",
    "W-WED",
    "2W",
    "MS",
    "ME",
    "QS-JAN",
    "QE-DEC",
    "QS-FEB",
]
ALIASES += ["YS-JAN", "YE-DEC", "YS-APR", "2MS"]


def micros(dates: pd.DatetimeIndex) -> np.ndarray:
    return dates.as_unit("us").asi8


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("start", ["1958-03-17", "2023-11-20"])
def test_consecutive_pandas_dates_are_consecutive_steps(alias, start):
    times = micros(pd.date_range(start, periods=50, freq=alias))
    frequency = Frequency.parse(alias).anchored(times)
    steps, on_grid = frequency.steps(times)
    assert on_grid.all()
    assert (np.diff(steps) == 1).all()
    assert (frequency.times(steps) == times).all()
    assert Frequency.parse(str(frequency)).anchored(times) == frequency


@pytest.mark.parametrize("alias", ALIASES)
def test_the_frequency_is_told_from_the_dates(alias):
    times = micros(pd.date_range("2019-05-06", periods=40, freq=alias))
    assert Frequency.infer(times).anchored(times) == Frequency.parse(alias).anchored(times)


def test_gaps_do_not_hide_the_frequency():
    times = micros(pd.date_range("2024-01-01", periods=60, freq="W-SUN"))[[0, 1, 2, 5, 6, 9, 10, 11, 20, 21, 40]]
    assert str(Frequency.infer(times).anchored(times)) == "W-SUN"


def test_one_date_does_not_tell_a_frequency():
    with pytest.raises(DataError, match="give Schema"):
        Frequency.infer(np.array([DAY]))


@pytest.mark.parametrize(
    "text", ["", "fortnight", "0D", "W-XYZ", "D-MON", "-1h", "1.5h", "2W-WED", "MS-FEB", "2QS-FEB"]
)
def test_unknown_frequencies_are_refused(text):
    with pytest.raises(ConfigError, match="is not known"):
        Frequency.parse(text)


@given(st.sampled_from(ALIASES), st.integers(-(10**6), 10**6), st.integers(0, 10**12))
def test_floor_is_the_last_step_not_after_a_time(alias, step, offset):
    frequency = Frequency.parse(alias).anchored(micros(pd.date_range("2020-01-01", periods=3, freq=alias)))
    if frequency.size > 3600 * 10**6 or frequency.unit == "month":
        step %= 1000
    time = int(frequency.times(np.array([step]))[0]) + offset
    floor = frequency.floor(np.array([time]))
    assert frequency.times(floor)[0] <= time < frequency.times(floor + 1)[0]


def test_dates_off_the_grid_are_seen():
    sundays = Frequency.parse("W-SUN")
    _, on_grid = sundays.steps(micros(pd.DatetimeIndex(["2024-01-07", "2024-01-08", "2024-01-07 00:01"])))
    assert on_grid.tolist() == [True, False, False]


def test_the_phase_of_most_rows_wins():
    times = np.array([3 * DAY, 3 * DAY + WEEK, 3 * DAY + 2 * WEEK, 5 * DAY])
    assert str(Frequency.parse("W").anchored(times)) == "W-SUN"


def test_times_are_shown_as_people_write_them():
    assert show_time(0) == "1970-01-01"
    assert show_time(DAY + 13 * 3600 * 10**6) == "1970-01-02 13:00"


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+02:00", "+05:30"])
@pytest.mark.parametrize("freq", ["h", "D"])
def test_dates_are_the_moments_that_the_axis_counts(zone, freq):
    axis = TimeAxis(Frequency.parse(freq), zone)
    times = np.array([1_704_067_200_000_000])  # 2024-01-01, of UTC for hours and of the zone's wall for days
    utc = times if freq == "h" else utc_times(times, zone)
    assert axis.dates(times).dt.epoch("us").to_list() == utc.tolist()
