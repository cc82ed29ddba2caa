"""M5: five years of daily units of a thousand items in their stores, with prices, events and food-stamp days."""

from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema

DAILY = "m5_sample1000.parquet"
OF_SERIES = ("item_id", "dept_id", "cat_id", "store_id", "state_id")
STATES = ("CA", "TX", "WI")
SOURCE = SourceFiles(
    "m5_sample",
    "a thousand series of Kaggle's 'M5 Forecasting - Accuracy', joined with its calendar and prices",
    columns={
        DAILY: {"unique_id": "item and store", "ds": "date", "y": "units", "sell_price": "price"}
        | {"item_id": "item", "dept_id": "department", "cat_id": "category", "store_id": "store", "state_id": "state"}
        | {"event_name_1": "event", "event_name_2": "second event"}
        | {f"snap_{state}": f"1: SNAP in {state}" for state in STATES}
    },
)
SCHEMA = Schema(
    freq="D",
    static=OF_SERIES,
    known=("sell_price", "snap"),
    events=("event_name_1", "event_name_2"),
    kinds={"snap": "flag", "event_name_1": "category", "event_name_2": "category"},
)


def load(folder: str | Path) -> Dataset:
    """Units of every day on which the item had a price, with that price and its state's SNAP days known ahead."""
    rows = SOURCE.read(folder, DAILY).sort("unique_id", "ds")
    snap = pl.coalesce(*(pl.when(pl.col("state_id") == state).then(f"snap_{state}") for state in STATES))
    static = rows.select("unique_id", *OF_SERIES).unique("unique_id", maintain_order=True)
    events = rows.select("ds", "event_name_1", "event_name_2").unique("ds").sort("ds")
    sold = rows.filter(pl.col("sell_price").is_not_null())
    return Dataset(
        sold.select("unique_id", "ds", pl.col("y").cast(pl.Float32), "sell_price", snap=snap).lazy(),
        SCHEMA,
        static,
        events,
        promotions=("snap",),
    )
