"""Breakfast at the Frat (dunnhumby): weekly units of 55 products in 77 stores, with prices, features and displays."""

from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema

WEEKLY, STORES, PRODUCTS = "frat_weekly.parquet", "frat_stores.parquet", "frat_products.parquet"
SOURCE = SourceFiles(
    "frat",
    "dunnhumby's 'Breakfast at the Frat' source files",
    columns={
        WEEKLY: {
            "unique_id": "store and product",
            "ds": "week's end, a Wednesday",
            "y": "units",
            "store_id": "store",
            "upc_id": "product",
            "visits": "baskets with it",
            "households": "households that bought it",
            "price": "paid",
            "base_price": "without promotion",
            "feature": "1: in the circular",
            "display": "1: on display",
            "tpr_only": "1: price reduced, neither feature nor display",
        },
        STORES: {"store_id": "store", "address_state_prov_code": "state", "seg_value_name": "price segment"},
        PRODUCTS: {"upc_id": "product", "manufacturer": "maker", "category": "kind", "sub_category": "kind, finer"},
    },
)
YEAR = 52
PROMOTIONS = ("feature", "display", "tpr_only")
SCHEMA = Schema(
    freq="W-WED",
    static=("store_id", "upc_id", "address_state_prov_code", "seg_value_name", "manufacturer", "sub_category"),
    past=("visits", "households"),
    known=("price", "discount", *PROMOTIONS),
    kinds=dict.fromkeys(PROMOTIONS, "flag"),
    holidays=("US",),
)


def load(folder: str | Path) -> Dataset:
    """Units, prices beside those of the year before, discounts from the base price, and promotions by kind, all known
    ahead.

    A week without a row between a series' first and last is one without a recorded sale: 0 units, at the price of
    before and without promotion.
    """
    rows = SOURCE.read(folder, WEEKLY).sort("unique_id", "ds")
    ends = rows.group_by("unique_id", maintain_order=True).agg(pl.min("ds").alias("first"), pl.max("ds").alias("last"))
    weeks = ends.select("unique_id", pl.datetime_ranges("first", "last", "1w").alias("ds")).explode("ds")
    of_series = rows.select("unique_id", "store_id", "upc_id").unique("unique_id", maintain_order=True)
    rows = weeks.with_columns(pl.col("ds").cast(rows.schema["ds"])).join(
        rows.drop("store_id", "upc_id"), on=["unique_id", "ds"], how="left", maintain_order="left"
    )
    price, base = (_carried(name) for name in ("price", "base_price"))
    rows = rows.with_columns(price=price, base_price=base).with_columns(
        pl.col("y", "visits", "households", *PROMOTIONS).fill_null(0),
        price=pl.col("price").fill_null(pl.col("base_price")).fill_null(1.0),
        base_price=pl.col("base_price").fill_null(pl.col("price")).fill_null(1.0),
    )
    rows = rows.with_columns(
        price=pl.max_horizontal("price", pl.lit(0.01)).log(),
        discount=(1 - pl.col("price") / pl.max_horizontal("base_price", pl.lit(0.01))).clip(0, 1),
    )
    usual = pl.col("price").rolling_mean(YEAR, min_samples=1).over("unique_id")
    rows = rows.with_columns(price=pl.col("price") - usual)
    static = of_series.join(SOURCE.read(folder, STORES), on="store_id", how="left").join(
        SOURCE.read(folder, PRODUCTS), on="upc_id", how="left"
    )
    return Dataset(
        rows.drop("base_price").lazy(), SCHEMA, static.select("unique_id", *SCHEMA.static), promotions=PROMOTIONS
    )


def _carried(name: str) -> pl.Expr:
    """The last value, or the first one to come."""
    return pl.col(name).forward_fill().backward_fill().over("unique_id")
