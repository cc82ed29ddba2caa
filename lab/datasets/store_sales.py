"""Kaggle's Store Sales: Favorita, the retailer of the paper's retail task, by store and family of products."""

import datetime as dt
from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.favorita import EDGE, END, FIRST, NONE
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema
from mqcast.errors import DataError

SALES, TRANSACTIONS = "store_sales_train.parquet", "favorita_transactions_daily.parquet"
OIL, HOLIDAYS = "favorita_oil.parquet", "favorita_holidays.parquet"
OIL_SINCE = dt.date(2013, 1, 1)
EARTHQUAKE = "Terremoto"  # of April 2016, and the days after: in the table of holidays, but not known ahead
OF_DATE = ("day_of_month", "month")
STATIC = ("store_nbr", "family", "city", "state", "type", "cluster")
SOURCE = SourceFiles(
    "store_sales",
    "Kaggle's 'Store Sales' and 'Corporación Favorita'",
    columns={
        SALES: {"unique_id": "store and family", "ds": "date", "y": "sales", "onpromotion": "items on promotion"}
        | {"store_nbr": "store", "family": "of products", "city": "of the store", "state": "of the store"}
        | {"type": "of store", "cluster": "of stores"},
        TRANSACTIONS: {"unique_id": "store, two digits", "ds": "date", "y": "transactions"},
        OIL: {"ds": "date", "oil_wti": "price of oil"},
        HOLIDAYS: {"ds": "date", "locale": "National …", "locale_name": "country, state or city"}
        | {"description": "its name", "transferred": "1: moved to another day"},
    },
)
SCHEMA = Schema(
    freq="D",
    static=STATIC,
    past=("transactions", "oil"),
    known=("onpromotion", "regional_hol", "local_hol"),
    events=("national_hol", *OF_DATE),
    kinds={**dict.fromkeys(OF_DATE, "number"), **dict.fromkeys(STATIC, "category")},
    calendar=("day_of_week",),
)


def load(folder: str | Path) -> Dataset:
    """log(sales) by store, family and day from 2015-01-01 to 2016-05-31, missing on days without a sale.

    A series begins with its first sale and has a row for every day from then on, as in TFT's code (the file has none of
    Christmas). Whether a day will have a sale is not known ahead: there is no column `open`.
    """
    day = pl.col("ds").dt.date()
    sales = SOURCE.read(folder, SALES, day.is_between(FIRST, END, closed="left")).with_columns(day)
    begun = pl.col("ds") >= pl.col("ds").filter(pl.col("y") > 0).min().over("unique_id")
    sales = _every_day(sales.filter(begun))
    if sales.is_empty():
        raise DataError(f"{SALES} has no sale from {FIRST} to {END}", "write the whole of the data")
    static = sales.select("unique_id", *STATIC).unique("unique_id").sort("unique_id")
    planned = (pl.col("transferred") == 0) & ~pl.col("description").str.starts_with(EARTHQUAKE)
    holidays = SOURCE.read(folder, HOLIDAYS, planned).with_columns(day)
    regional, local = _holidays(holidays, "Regional", "regional_hol"), _holidays(holidays, "Local", "local_hol")
    rows = (
        sales.select(
            "unique_id", "ds", "state", "city", pl.col("onpromotion").cast(pl.Float64),
            store=pl.col("store_nbr").cast(pl.String).str.zfill(2), y=pl.when(pl.col("y") > 0).then(pl.col("y").log()),
        )
        .join(_transactions(folder), on=["store", "ds"], how="left")
        .join(_oil(folder), on="ds", how="left")
        .join(regional.rename({"locale_name": "state"}), on=["state", "ds"], how="left")
        .join(local.rename({"locale_name": "city"}), on=["city", "ds"], how="left")
        .with_columns(pl.col("transactions", "oil").fill_null(-1.0))
        .with_columns(pl.col("regional_hol", "local_hol").fill_null(NONE))
        .drop("store", "state", "city")
        .sort("unique_id", "ds")
    )  # fmt: skip
    static = static.with_columns(pl.col(STATIC).cast(pl.String))
    return Dataset(rows.lazy(), SCHEMA, static, _events(holidays), of_date=OF_DATE)


def _every_day(sales: pl.DataFrame) -> pl.DataFrame:
    """With the days that the file lacks, on which nothing is sold or on promotion."""
    span = pl.date_range(pl.col("ds").min(), pl.col("ds").max())
    days = sales.group_by("unique_id", maintain_order=True).agg(span.alias("ds")).explode("ds")
    whole = days.join(sales, on=["unique_id", "ds"], how="left", maintain_order="left")
    return whole.with_columns(
        pl.col(STATIC).forward_fill().over("unique_id"), pl.col("onpromotion").fill_null(0), pl.col("y").fill_null(0.0)
    )


def _transactions(folder: str | Path) -> pl.DataFrame:
    read = SOURCE.read(folder, TRANSACTIONS)
    return read.select(store="unique_id", ds=pl.col("ds").dt.date(), transactions=pl.col("y").cast(pl.Float64))


def _oil(folder: str | Path) -> pl.DataFrame:
    """The last known price on every day; there is none on weekends."""
    prices = SOURCE.read(folder, OIL).with_columns(pl.col("ds").dt.date())
    days = pl.DataFrame({"ds": pl.date_range(OIL_SINCE, END, eager=True)})
    known = days.join(prices, on="ds", how="left", maintain_order="left")
    return known.select("ds", oil=pl.col("oil_wti").forward_fill().cast(pl.Float64))


def _holidays(holidays: pl.DataFrame, locale: str, name: str) -> pl.DataFrame:
    """The names of a day's holidays as one text, by place and day."""
    names = pl.col("description").unique().sort().str.join("; ").alias(name)
    return holidays.filter(locale=locale).group_by("locale_name", "ds").agg(names)


def _events(holidays: pl.DataFrame) -> pl.DataFrame:
    days = pl.date_range(FIRST - EDGE, END + EDGE, eager=True)
    calendar = pl.DataFrame({"ds": days, "day_of_month": days.dt.day(), "month": days.dt.month()})
    national = _holidays(holidays, "National", "national_hol").drop("locale_name")
    return calendar.join(national, on="ds", how="left").with_columns(pl.col("national_hol").fill_null(NONE)).sort("ds")
