"""UCI PEMS-SF: hourly lane occupancy of 963 sensors, prepared as TFT's published code does.

The file's 440 days are those without public holidays, so dates are nominal: day i is 2008-01-01 plus i days.
"""

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema

FILES = ("PEMS_train", "PEMS_test", "PEMS_trainlabels", "PEMS_testlabels", "randperm", "stations_list")
SOURCE = SourceFiles(
    "traffic",
    "https://archive.ics.uci.edu/dataset/204/pems+sf",
    "PEMS-SF.zip or its files PEMS_train and PEMS_test (a line a day: [1 2 …;3 4 …], a row a sensor, 144 values), "
    "PEMS_trainlabels, PEMS_testlabels, randperm and stations_list (one line each: [1 2 …])",
)
START = dt.datetime(2008, 1, 1)
NUM_DAYS, VALUES_A_DAY = 173, 144
SCHEMA = Schema(
    freq="h",
    static=("sensor",),
    known=("hours_from_start",),
    events=("time_on_day", "day_of_week"),
    kinds={"time_on_day": "number", "day_of_week": "number"},
    calendar=(),
)


def load(folder: str | Path) -> Dataset:
    """Hourly means of the first 173 days, in the order of time."""
    sensors = [str(number) for number in _numbers(folder, "stations_list")]
    if len(set(sensors)) < len(sensors):
        raise SOURCE.error("stations_list names a sensor twice")
    order = np.argsort(_order(folder))
    days = [_days(folder, name, len(sensors)) for name in ("PEMS_train", "PEMS_test")]
    labels = [_numbers(folder, name) for name in ("PEMS_trainlabels", "PEMS_testlabels")]
    for name, of_file, weekdays in zip(("PEMS_train", "PEMS_test"), days, labels, strict=True):
        if len(of_file) != len(weekdays):
            raise SOURCE.error(f"{name} has {len(of_file)} days and {name}labels {len(weekdays)}")
    hourly, weekday = np.concatenate(days), np.concatenate(labels)
    if len(hourly) != len(order) or len(order) <= NUM_DAYS:
        raise SOURCE.error(
            f"randperm orders {len(order)} days, and there are {len(hourly)}; more than {NUM_DAYS} are needed"
        )
    hourly, weekday = hourly[order], weekday[order]
    return _dataset(sensors, hourly.reshape(-1, len(sensors)), np.repeat(weekday, 24))


def _dataset(sensors: list[str], hourly: np.ndarray, weekday: np.ndarray) -> Dataset:
    """The first hour of all is left out: TFT's code needs a value before it."""
    num_hours = NUM_DAYS * 24
    hours = pl.datetime_range(START, START + dt.timedelta(hours=len(hourly) - 1), "1h", eager=True)
    events = pl.DataFrame({"ds": hours, "time_on_day": hours.dt.hour(), "day_of_week": weekday})
    wide = pl.DataFrame(hourly, schema=sensors).fill_nan(None).fill_null(strategy="forward").with_columns(ds=hours)
    rows = (
        wide.slice(1, num_hours - 1)
        .unpivot(sensors, index="ds", variable_name="unique_id", value_name="y")
        .select("unique_id", "ds", "y", hours_from_start=(pl.col("ds") - START).dt.total_hours().cast(pl.Float64))
        .drop_nulls()
        .sort("unique_id", "ds")
    )
    static = rows.select("unique_id", sensor="unique_id").unique(maintain_order=True)
    return Dataset(rows.lazy(), SCHEMA, static, events, of_date=("hours_from_start", "time_on_day"))


def _order(folder: str | Path) -> np.ndarray:
    """Which day each line of the two files is, from 0."""
    order = _numbers(folder, "randperm") - 1
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise SOURCE.error("randperm is not an order of the days 1, 2, …")
    return order


def _numbers(folder: str | Path, name: str) -> np.ndarray:
    with SOURCE.file(folder, name) as path:
        return _parsed(path.read_text().strip(), name).astype(np.int64)


def _days(folder: str | Path, name: str, num_sensors: int) -> np.ndarray:
    """(days, 24, sensors): hourly means of a file's matrices."""
    days = []
    with SOURCE.file(folder, name) as path, path.open() as lines:
        for i, line in enumerate(lines, start=1):
            if not (text := line.strip()):
                continue
            values = _parsed(text, f"{name}, line {i}")
            if values.size != num_sensors * VALUES_A_DAY:
                raise SOURCE.error(
                    f"{name}, line {i} has {values.size} values, not {num_sensors} sensors × {VALUES_A_DAY}"
                )
            days.append(values.reshape(num_sensors, 24, VALUES_A_DAY // 24).mean(axis=2).T)
    if not days:
        raise SOURCE.error(f"{name} is empty")
    return np.stack(days)


def _parsed(text: str, where: str) -> np.ndarray:
    if not text.startswith("[") or not text.endswith("]"):
        raise SOURCE.error(f"{where} is not in brackets or is cut off: {text[:20]!r} … {text[-20:]!r}")
    try:
        return np.array(text[1:-1].replace(";", " ").split(), dtype=np.float64)
    except ValueError as error:
        raise SOURCE.error(f"{where}: {error}") from None
