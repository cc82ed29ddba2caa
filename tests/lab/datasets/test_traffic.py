"""UCI's PEMS-SF: the shuffle undone, ten minutes to hours, 173 nominal days."""

import datetime as dt

import polars as pl
import pytest
from raw_samples import write_traffic, zipped

from lab.datasets.traffic import FILES, load
from mqcast.errors import SourceError


def test_days_are_in_order_again_and_hours_are_means_of_six_values(tmp_path):
    values, weekdays = write_traffic(tmp_path)
    frames = load(tmp_path)
    rows, events = frames.frame, frames.events
    assert events is not None
    for sensor, day, hour in ((0, 0, 1), (1, 17, 0), (0, 172, 23)):
        at = dt.datetime(2008, 1, 1) + dt.timedelta(days=day, hours=hour)
        row = rows.filter(unique_id=str(400000 + sensor), ds=at)
        assert row["y"].item() == pytest.approx(values[day, sensor, 6 * hour : 6 * hour + 6].mean())
        assert row["hours_from_start"].item() == 24 * day + hour
        assert events.filter(ds=at).row(0)[1:] == (hour, weekdays[day])


def test_each_sensor_has_173_days_without_the_first_hour(tmp_path):
    write_traffic(tmp_path)
    rows = load(tmp_path).frame
    of_each = rows.group_by("unique_id").agg(pl.len(), first=pl.col("ds").min(), last=pl.col("ds").max())
    assert of_each["len"].to_list() == [173 * 24 - 1] * 2
    assert set(of_each["first"]) == {dt.datetime(2008, 1, 1, 1)}
    assert set(of_each["last"]) == {dt.datetime(2008, 6, 21, 23)}  # day 172; day 166 is 2008-06-15 by name


def test_a_gap_has_the_value_of_the_hour_before(tmp_path):
    write_traffic(tmp_path)
    lines = (tmp_path / "PEMS_train").read_text().splitlines()
    order = [int(number) for number in (tmp_path / "randperm").read_text()[1:-2].split()]
    first = lines[0].split(" ")
    (tmp_path / "PEMS_train").write_text("\n".join([" ".join([*first[:60], *["nan"] * 6, *first[66:]]), *lines[1:]]))
    rows = load(tmp_path).frame.filter(unique_id="400000")
    at = dt.datetime(2008, 1, 1) + dt.timedelta(days=order[0] - 1, hours=10)
    around = rows.filter(pl.col("ds").is_between(at - dt.timedelta(hours=1), at))["y"]
    assert around[0] == around[1]


def test_the_zip_as_downloaded_is_read_alike(tmp_path):
    write_traffic(tmp_path)
    plain = load(tmp_path).frame
    zipped(tmp_path, "PEMS-SF.zip", *FILES)
    assert load(tmp_path).frame.equals(plain)


BREAKS = {
    "PEMS_test": lambda text: text[: len(text) - 500],
    "PEMS_train": lambda text: text.replace(";", " 0.1;", 1),
    "PEMS_trainlabels": lambda text: text.replace("[", "[1 "),
    "randperm": lambda text: text.replace("[", "[1 "),
    "stations_list": lambda text: "400000 400001",
    "PEMS_testlabels": None,
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_not_the_file_is_said_in_one_line_with_its_source(name, tmp_path):
    write_traffic(tmp_path)
    path, change = tmp_path / name, BREAKS[name]
    path.unlink() if change is None else path.write_text(change(path.read_text()))
    with pytest.raises(SourceError, match=r"archive\.ics\.uci\.edu/dataset/204") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_too_few_days_are_refused(tmp_path):
    write_traffic(tmp_path, num_days=100)
    with pytest.raises(SourceError, match="more than 173"):
        load(tmp_path)
