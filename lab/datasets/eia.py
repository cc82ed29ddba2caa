"""EIA: hourly electricity demand of US balancing authorities, 2020 to 2024 (Ruggles and others, 2020; CC BY 4.0)."""

import datetime as dt
from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema

HOURLY, STATIC = "eia_hourly.parquet", "eia_static.parquet"
SOURCE = SourceFiles(
    "eia",
    "cleaned demand at github.com/truggles/EIA_Cleaned_Hourly_Electricity_Demand_Data",
    columns={
        HOURLY: {
            "unique_id": "area",
            "ds": "hour in UTC",
            "y": "demand in MW",
            "imputed": "1: not measured",
        },
        STATIC: {"unique_id": "area", "time_zone": "of the area", "region": "of the US"},
    },
)
MOSTLY_IMPUTED = ("AEC", "PSEI")
SCHEMA = Schema(
    freq="h",
    static=("unique_id", "time_zone", "region"),
    observed="measured",
    holidays=("US",),
    calendar=("hour_of_day", "day_of_week", "year_wave"),
)


def load(folder: str | Path, since: dt.datetime | None = None) -> Dataset:
    """Measured demand; hours that the source imputed count as not observed, and two areas that mostly are, not at all.

    `since` leaves out what was before.
    """
    where = [~pl.col("unique_id").is_in(MOSTLY_IMPUTED)]
    where += [] if since is None else [pl.col("ds") >= since]
    rows = SOURCE.read(folder, HOURLY, *where)
    rows = rows.with_columns(measured=pl.col("imputed") == 0).drop("imputed").sort("unique_id", "ds")
    static = SOURCE.read(folder, STATIC).filter(~pl.col("unique_id").is_in(MOSTLY_IMPUTED))
    return Dataset(rows.lazy(), SCHEMA, static.select(SCHEMA.static))
