"""M5 (Walmart): daily units of items in ten stores, with prices, named events and days of food stamps (SNAP)."""

from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError

ITEMS, STATIC, CALENDAR, PRICES = (f"m5_{name}.parquet" for name in ("item_daily", "static", "calendar", "prices"))
SOURCE = SourceFiles(
    "m5",
    "sales_train_evaluation.csv, calendar.csv and sell_prices.csv of Kaggle's 'M5 Forecasting - Accuracy'",
    columns={
        ITEMS: {"unique_id": "item and store", "ds": "date", "y": "units"},
        STATIC: {
            "unique_id": "item and store",
            "item_id": "item",
            "dept_id": "department",
            "cat_id": "category",
            "store_id": "store",
            "state_id": "state",
        },
        CALENDAR: {
            "ds": "date",
            "wm_yr_wk": "week of prices",
            "event_name_1": "event",
            "event_name_2": "second event",
            "snap_ca": "1: SNAP in California",
            "snap_tx": "in Texas",
            "snap_wi": "in Wisconsin",
        },
        PRICES: {"store_id": "store", "item_id": "item", "wm_yr_wk": "week", "sell_price": "price"},
    },
)
CHEAPER = 0.95  # of the highest price so far: a price cut
SCHEMA = Schema(
    freq="D",
    static=("item_id", "dept_id", "cat_id", "store_id", "state_id"),
    known=("price", "price_ratio", "price_cut", "snap"),
    events=("event_1", "event_2"),
    kinds={"price_cut": "flag", "snap": "flag", "event_1": "category", "event_2": "category"},
    calendar=("day_of_week", "day_of_month", "year_wave"),
)


def load(folder: str | Path, every: int = 1) -> Dataset:
    """Units of every item in every store, or of each so-manyth series in their order.

    Known ahead: the price in logarithms, its ratio to the highest so far, whether that is a cut (below 95 %), and
    SNAP days of the store's state; the same for all: named events. Days before an item's first sale are not in the
    data.
    """
    if every < 1:
        raise ConfigError(f"every is {every}; give 1 for all series, 10 for each tenth")
    static = SOURCE.read(folder, STATIC).sort("unique_id")
    static = static.gather_every(every)
    chosen = pl.col("unique_id").is_in(static["unique_id"].implode())
    calendar = SOURCE.read(folder, CALENDAR).sort("ds")
    keys = static.select("unique_id", "item_id", "store_id", "state_id")
    prices = SOURCE.read(folder, PRICES).join(keys, on=["store_id", "item_id"], how="inner")
    rows = SOURCE.read(folder, ITEMS, chosen).sort("unique_id", "ds").with_columns(pl.col("y").cast(pl.Float32))
    snap = calendar.select(
        "ds", "wm_yr_wk", *[pl.col(f"snap_{state}").alias(state.upper()) for state in ("ca", "tx", "wi")]
    )
    snap = snap.unpivot(index=["ds", "wm_yr_wk"], variable_name="state_id", value_name="snap")
    rows = (
        rows.join(keys.select("unique_id", "state_id"), on="unique_id", how="left", maintain_order="left")
        .join(snap, on=["ds", "state_id"], how="left", maintain_order="left")
        .join(
            prices.select("unique_id", "wm_yr_wk", pl.col("sell_price").alias("price")),
            on=["unique_id", "wm_yr_wk"],
            how="left",
            maintain_order="left",
        )
        .drop("state_id", "wm_yr_wk")
    )
    price = pl.col("price").forward_fill().backward_fill().over("unique_id").fill_null(1.0)
    rows = rows.with_columns(price=price)
    rows = rows.with_columns(price_ratio=pl.col("price") / pl.col("price").cum_max().over("unique_id"))
    rows = rows.with_columns(price_cut=pl.col("price_ratio") < CHEAPER, price=pl.col("price").log1p())
    events = calendar.select("ds", event_1="event_name_1", event_2="event_name_2")
    return Dataset(rows.lazy(), SCHEMA, static, events, promotions=("price_cut", "snap"))
