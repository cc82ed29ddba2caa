"""UCI's electricity file: hourly means, lives without zeros at their ends, days counted from 2011."""

import datetime as dt
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from raw_samples import load_at, write_electricity, zipped

from lab.datasets.electricity import FILE, load
from mqcast.errors import SourceError

LATE = dt.datetime(2014, 8, 1)
LIVES = {
    "MT_001": (dt.datetime(2013, 12, 31, 10), dt.datetime(2014, 12, 1)),
    "MT_002": (dt.datetime(2014, 8, 3, 5), dt.datetime(2014, 8, 20, 7)),
    "MT_003": (dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1)),
}


def load_of(customer: int, stamp: dt.datetime) -> float:
    """The second customer has no load for a day inside its life."""
    return 0 if customer == 1 and stamp.date() == dt.date(2014, 8, 10) else load_at(customer, stamp)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("electricity")
    write_electricity(folder, dt.datetime(2013, 12, 30), LIVES, load_of, dt.timedelta(minutes=30))
    return folder


@pytest.fixture(scope="module")
def rows(folder) -> pl.DataFrame:
    return load(folder).frame


def test_an_hour_is_the_mean_of_the_stamps_that_begin_in_it(rows):
    for hour in (dt.datetime(2014, 3, 5, 0), dt.datetime(2014, 9, 7, 23)):
        load = rows.filter(unique_id="MT_001", ds=hour)["y"].item()
        assert load == pytest.approx(np.mean([load_of(0, hour + dt.timedelta(minutes=m)) for m in (0, 30)]))


def test_days_are_counted_from_the_first_of_january_2011(rows):
    days = rows.filter(unique_id="MT_001").select("ds", day=pl.col("hours_from_start") // 24)
    assert days.row(0) == (dt.datetime(2014, 1, 1), 1096)
    assert days.row(-1) == (dt.datetime(2014, 9, 7, 23), 1345)
    for day, date in ((1308, (8, 1)), (1315, (8, 8)), (1332, (8, 25)), (1339, (9, 1))):
        assert days.filter(day=day)["ds"][0] == dt.datetime(2014, *date)
    assert days.height == 250 * 24


def test_a_life_goes_from_the_first_load_to_the_last_with_zeros_between(rows):
    second = rows.filter(unique_id="MT_002")
    assert second["ds"][0] == dt.datetime(2014, 8, 3, 5)
    assert second["ds"][-1] == dt.datetime(2014, 8, 20, 7)
    assert second["ds"].diff().drop_nulls().unique().to_list() == [dt.timedelta(hours=1)]
    silent = second.filter(pl.col("ds").dt.date() == dt.date(2014, 8, 10))
    assert silent["y"].to_list() == [0.0] * 24
    assert (second.filter(pl.col("ds").dt.date() != dt.date(2014, 8, 10))["y"] > 0).all()


def test_a_customer_without_any_load_is_left_out(folder, rows):
    frames = load(folder)
    assert rows["unique_id"].unique().sort().to_list() == ["MT_001", "MT_002"]
    assert frames.static["customer"].to_list() == ["MT_001", "MT_002"]


def test_the_calendar_reaches_beyond_both_ends(folder):
    events = load(folder).events
    assert events is not None
    assert events["ds"][0] < dt.datetime(2013, 12, 31)
    assert events["ds"][-1] > dt.datetime(2014, 9, 8, 23)
    assert events.filter(ds=dt.datetime(2014, 9, 1, 13)).row(0)[1:] == (13, 0)  # a Monday


def test_the_zip_as_downloaded_is_read_alike(tmp_path):
    write_electricity(tmp_path, LATE)
    plain = load(tmp_path).frame
    zipped(tmp_path, "LD2011_2014.txt.zip", FILE)
    assert load(tmp_path).frame.equals(plain)


def broken(kind: str, folder: Path) -> None:
    path = write_electricity(folder, LATE)
    text = path.read_text()
    if kind == "nothing":
        path.unlink()
    elif kind == "commas":
        path.write_text(text.replace(",", ".").replace(";", ","))
    elif kind == "cut off":
        path.write_text(text[: len(text) // 2])
    elif kind == "other start":
        path.write_text(text.replace("2011-01-01", "2012-01-01"))
    elif kind == "words":
        path.write_text(text.replace('"2014-08-02 00:15:00";', '"2014-08-02 00:15:00";none'))
    elif kind == "dates":
        path.write_text(text.replace('"2014-08-02 ', '"02.08.2014 '))
    elif kind == "bytes":
        path.write_bytes(b"\xff\xfe\x00PK" * 50)
    else:
        zipped(folder, "LD.zip", FILE)
        packed = (folder / "LD.zip").read_bytes()
        (folder / "LD.zip").write_bytes(packed[: len(packed) // 2])


KINDS = ("nothing", "commas", "cut off", "other start", "words", "dates", "bytes", "half a zip")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_the_file_is_said_in_one_line_with_its_source(kind, tmp_path):
    broken(kind, tmp_path)
    with pytest.raises(SourceError, match=re.escape("archive.ics.uci.edu/dataset/321")) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert "MT_001 … MT_370" in str(caught.value)
