"""UCI ElectricityLoadDiagrams20112014: the hourly load of 370 customers, prepared as TFT's published code does."""

import datetime as dt
from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema

FILE = "LD2011_2014.txt"
SOURCE = SourceFiles(
    "electricity",
    "https://archive.ics.uci.edu/dataset/321/electricityloaddiagrams20112014",
    f"{FILE} or its .zip, with semicolons and decimal commas: a first column without a name that holds stamps every 15 "
    'minutes ("2011-01-01 00:15:00"), then MT_001 … MT_370',
)
START = dt.datetime(2011, 1, 1)
FIRST_DAY, END_DAY = 1096, 1346  # 2014-01-01, and the day after 2014-09-07
EDGE = dt.timedelta(days=7)  # of calendar, beyond both ends
SCHEMA = Schema(
    freq="h",
    static=("customer",),
    known=("hours_from_start",),
    events=("hour", "day_of_week"),
    kinds={"hour": "number", "day_of_week": "number"},
    calendar=(),
)


def load(folder: str | Path) -> Dataset:
    """Hourly means of the days 1096 … 1345, from each customer's first load that is not 0 to its last."""
    with SOURCE.file(folder, FILE) as path:
        hourly = _hourly(path)
    if (first := hourly["ds"][0]) != START or hourly["ds"][-1] < START + dt.timedelta(days=END_DAY):
        raise SOURCE.error(f"{FILE} goes from {first} to {hourly['ds'][-1]}, not from 2011-01-01 to after 2014-09-07")
    names = hourly.columns[1:]
    hourly = hourly.with_columns(pl.when(pl.col(names) != 0).then(pl.col(names)))
    lives = _lives(hourly, names)
    first, last = START + dt.timedelta(days=FIRST_DAY), START + dt.timedelta(days=END_DAY, hours=-1)
    grid = pl.DataFrame({"ds": pl.datetime_range(first, last, "1h", eager=True)})
    rows = (
        grid.join(hourly, on="ds", how="left", maintain_order="left")
        .unpivot(names, index="ds", variable_name="unique_id", value_name="y")
        .join(lives, on="unique_id", maintain_order="left")
        .filter(pl.col("ds").is_between("first", "last"))
        .select("unique_id", "ds", pl.col("y").fill_null(0.0))
        .with_columns(hours_from_start=(pl.col("ds") - START).dt.total_hours().cast(pl.Float64))
        .sort("unique_id", "ds")
    )
    return Dataset(
        rows.lazy(),
        SCHEMA,
        rows.select("unique_id", customer="unique_id").unique(maintain_order=True),
        _calendar(first - EDGE, last + EDGE),
        of_date=("hours_from_start", "hour", "day_of_week"),
    )


def _hourly(path: Path) -> pl.DataFrame:
    """`ds` and a column a customer: the mean of each hour's values."""
    names = SOURCE.header(path, ";")
    if len(names) < 2 or names[0] or not all(name.startswith("MT_") for name in names[1:]):
        raise SOURCE.error(f"{path.name} begins with {';'.join(names)[:60]!r}")
    types = {"stamp": pl.String} | dict.fromkeys(names[1:], pl.Float64)
    stamp = pl.col("stamp").str.to_datetime("%Y-%m-%d %H:%M:%S").dt.truncate("1h")
    lines = pl.scan_csv(path, separator=";", decimal_comma=True, has_header=False, skip_rows=1, schema=types)
    hourly = lines.group_by(ds=stamp).agg(pl.col(names[1:]).mean())
    return SOURCE.collected(hourly.sort("ds"), path)


def _lives(hourly: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """First and last hour with a load, of the customers that ever had one."""
    lives = [
        hourly.select(
            first=pl.col("ds").filter(pl.col(name).is_not_null()).min(),
            last=pl.col("ds").filter(pl.col(name).is_not_null()).max(),
        )
        for name in names
    ]
    return pl.concat(lives).with_columns(unique_id=pl.Series(names)).drop_nulls()


def _calendar(first: dt.datetime, last: dt.datetime) -> pl.DataFrame:
    hours = pl.datetime_range(first, last, "1h", eager=True)
    return pl.DataFrame({"ds": hours, "hour": hours.dt.hour(), "day_of_week": hours.dt.weekday() - 1})
