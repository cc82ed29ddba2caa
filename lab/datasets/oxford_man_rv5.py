"""Oxford-Man: the logarithm of daily realised variance of the paper's 31 indices, from five-minute returns."""

import datetime as dt
from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema

DAILY = "volatility_omi_rv5.parquet"
SOURCE = SourceFiles(
    "oxford_man_rv5",
    "rv5 of the Oxford-Man Institute's realised library, as the R package MDSV has it",
    columns={
        DAILY: {"unique_id": "index", "ds": "trading day", "log_rv5": "log of the realised variance"}
        | {"ret_cc": "log return from the last close", "region": "of the world"}
    },
)
END, SATURDAY = dt.date(2019, 6, 28), 6
SCHEMA = Schema(freq="B", static=("unique_id", "region"), past=("ret_cc",))


def load(folder: str | Path) -> Dataset:
    """Business days up to the end of the paper's data, without the few sessions on weekends; holidays are missing days.

    Returns are known afterwards.
    """
    chosen = (pl.col("ds") <= END) & (pl.col("ds").dt.weekday() < SATURDAY)
    rows = SOURCE.read(folder, DAILY, chosen).rename({"log_rv5": "y"}).sort("unique_id", "ds")
    static = rows.select("unique_id", "region").unique("unique_id", maintain_order=True)
    return Dataset(rows.drop("region").lazy(), SCHEMA, static)


def read_daily(folder: str | Path) -> pl.DataFrame:
    """Every session as it is: unique_id, ds, close_to_close, variance."""
    daily = SOURCE.read(folder, DAILY)
    return daily.select("unique_id", pl.col("ds").dt.date(), close_to_close="ret_cc", variance=pl.col("log_rv5").exp())
