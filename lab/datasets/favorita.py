"""Kaggle's Favorita: daily sales of items in stores, prepared as TFT's published code does, a store at a time."""

import atexit
import datetime as dt
import functools
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema

FILES = ("train.csv", "stores.csv", "items.csv", "oil.csv", "holidays_events.csv", "transactions.csv")
SOURCE = SourceFiles(
    "favorita",
    "https://www.kaggle.com/c/favorita-grocery-sales-forecasting/data",
    "train.csv (id, date, store_nbr, item_nbr, unit_sales, onpromotion), stores.csv, items.csv, oil.csv, "
    "holidays_events.csv and transactions.csv, unpacked from their .7z",
)
FIRST, END = dt.date(2015, 1, 1), dt.date(2016, 6, 1)
EDGE = dt.timedelta(days=60)  # of calendar, beyond both ends
NONE = "none"
OF_STORES, OF_ITEMS = ("city", "state", "type", "cluster"), ("family", "class", "perishable")
OF_DATE = ("day_of_month", "month")
STATIC = ("item_nbr", "store_nbr", *OF_STORES, *OF_ITEMS)
SCHEMA = Schema(
    freq="D",
    static=STATIC,
    past=("transactions", "oil"),
    known=("onpromotion", "regional_hol", "local_hol", "open"),
    events=("national_hol", *OF_DATE),
    kinds={**dict.fromkeys(OF_DATE, "number"), **dict.fromkeys(STATIC, "category")},
    calendar=("day_of_week",),
)


def load(folder: str | Path) -> Dataset:
    """log(unit_sales) by store, item and day, missing on days without a sale between the first and the last one.

    A store and an item with any return (negative sales) between 2015-01-01 and 2016-05-31 are left out. The rows are
    read from temporary files, about a gigabyte, which are deleted when Python ends.
    """
    scratch = Path(tempfile.mkdtemp(prefix="mqcast-favorita-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    with ExitStack() as stack:
        paths = {name: stack.enter_context(SOURCE.file(folder, name)) for name in FILES}
        tables = _Tables.read(paths)
        sales = _filtered(paths["train.csv"], scratch / "sales.parquet")
    dates = sales.select(pl.col("ds").unique().sort()).collect()["ds"]
    if not len(dates) or dates[-1] < END - dt.timedelta(days=1):
        raise SOURCE.error(f"train.csv ends before {END}, at {dates[-1] if len(dates) else 'once'}")
    oil = tables.oil_on(dates)
    stores = sales.select(pl.col("store_nbr").unique().sort()).collect()["store_nbr"].to_list()
    files = []
    for store in stores:
        rows = _of_store(sales, store, tables, oil)
        if rows.height:
            files.append(scratch / f"store-{store:02}.parquet")
            rows.write_parquet(files[-1])
    if not files:
        raise SOURCE.error("train.csv has no item without returns")
    rows = pl.scan_parquet(files)
    static, rows = tables.static(rows), rows.drop("store_nbr", "item_nbr")
    return Dataset(rows, SCHEMA, static, tables.events(), of_date=OF_DATE)


def _filtered(path: Path, kept: Path) -> pl.LazyFrame:
    """The rows of the task's days, without trajectories that have returns."""
    types = {"date": pl.String, "store_nbr": pl.Int32, "item_nbr": pl.Int32, "unit_sales": pl.Float64}
    inside = (pl.col("date") >= str(FIRST)) & (pl.col("date") < str(END))
    lines = SOURCE.table(path, types | {"onpromotion": pl.String}).filter(inside)
    day = pl.col("date").str.to_date("%Y-%m-%d").alias("ds")
    with SOURCE.reading(path):
        lines.select(day, "store_nbr", "item_nbr", "unit_sales", "onpromotion").sink_parquet(kept)
    sales, keys = pl.scan_parquet(kept), ["store_nbr", "item_nbr"]
    returns = sales.filter(pl.col("unit_sales") < 0).select(keys).unique().collect(engine="streaming")
    return sales.join(returns.lazy(), on=keys, how="anti")


def _of_store(sales: pl.LazyFrame, store: int, tables: "_Tables", oil: pl.DataFrame) -> pl.DataFrame:
    """A row each day from an item's first sale to its last."""
    sold = (
        sales.filter(pl.col("store_nbr") == store)
        .group_by("item_nbr", "ds", maintain_order=True)
        .agg(pl.col("unit_sales", "onpromotion").last())
        .collect()
    )
    lives = sold.group_by("item_nbr").agg(first=pl.col("ds").min(), last=pl.col("ds").max())
    days = lives.select("item_nbr", ds=pl.date_ranges("first", "last")).explode("ds")
    calendar = tables.days_of(store)
    amount = pl.col("unit_sales")
    promoted = pl.col("onpromotion").forward_fill().over("item_nbr").fill_null("unknown")
    return (
        days.join(sold, on=["item_nbr", "ds"], how="left", maintain_order="left")
        .sort("item_nbr", "ds")
        .with_columns(store_nbr=pl.lit(store), y=pl.when(amount > 0).then(amount.log()), open=amount.is_not_null())
        .with_columns(onpromotion=promoted, unique_id=series_name("store_nbr", "item_nbr"))
        .join(calendar, on="ds", how="left", maintain_order="left")
        .join(oil, on="ds", how="left", maintain_order="left")
        .with_columns(
            pl.col("transactions", "oil").fill_null(-1.0), pl.col("regional_hol", "local_hol").fill_null(NONE)
        )
        .drop("unit_sales")
    )


def series_name(store: str, item: str) -> pl.Expr:
    """Padded, so that the order of the names is that of the stores and items."""
    padded = (pl.col(name).cast(pl.String).str.zfill(width) for name, width in ((store, 2), (item, 7)))
    return pl.concat_str(*padded, separator="_")


@dataclass(frozen=True)
class _Tables:
    """The small files."""

    stores: pl.DataFrame
    items: pl.DataFrame
    oil: pl.DataFrame
    holidays: pl.DataFrame  # those that were not moved to another day
    transactions: pl.DataFrame

    @classmethod
    def read(cls, paths: dict[str, Path]) -> "_Tables":
        def read(name: str, columns: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
            day = pl.col("date").str.to_date("%Y-%m-%d").alias("ds")
            lines = SOURCE.table(paths[name], columns)
            return SOURCE.collected(lines.with_columns(day) if "date" in columns else lines, paths[name])

        texts = ("date", "locale", "locale_name", "description", "transferred")
        holidays = read("holidays_events.csv", dict.fromkeys(texts, pl.String))
        return cls(
            stores=read("stores.csv", {"store_nbr": pl.Int32} | dict.fromkeys(OF_STORES, pl.String)),
            items=read("items.csv", {"item_nbr": pl.Int32} | dict.fromkeys(OF_ITEMS, pl.String)),
            oil=read("oil.csv", {"date": pl.String, "dcoilwtico": pl.Float64}),
            holidays=holidays.filter(pl.col("transferred").str.to_lowercase() != "true"),
            transactions=read(
                "transactions.csv", {"date": pl.String, "store_nbr": pl.Int32, "transactions": pl.Float64}
            ),
        )

    def oil_on(self, dates: pl.Series) -> pl.DataFrame:
        """The last known price on days with any sale; days without one have none in TFT's code."""
        known = pl.DataFrame({"ds": dates}).join(self.oil, on="ds", how="left", maintain_order="left")
        return known.select("ds", oil=pl.col("dcoilwtico").forward_fill())

    def days_of(self, store: int) -> pl.DataFrame:
        """A store's transactions and the holidays of its state and city by day."""
        of_store = self.stores.filter(store_nbr=store)
        if of_store.height != 1:
            raise SOURCE.error(f"stores.csv has {of_store.height} rows for store {store}")
        days = pl.DataFrame({"ds": pl.date_range(FIRST, END, eager=True)})
        moved = self.transactions.filter(store_nbr=store).select("ds", "transactions")
        parts = [moved, self._holidays("Regional", "regional_hol", of_store[0, "state"])]
        parts.append(self._holidays("Local", "local_hol", of_store[0, "city"]))
        return functools.reduce(lambda one, other: one.join(other, on="ds", how="left"), parts, days)

    def _holidays(self, locale: str, name: str, place: str | None = None) -> pl.DataFrame:
        """Descriptions by day; several on one day are one text."""
        holidays = self.holidays.filter(pl.col("locale") == locale)
        holidays = holidays if place is None else holidays.filter(pl.col("locale_name") == place)
        return holidays.group_by("ds").agg(pl.col("description").unique().sort().str.join("; ").alias(name))

    def events(self) -> pl.DataFrame:
        """What is the same in all stores."""
        days = pl.date_range(FIRST - EDGE, END + EDGE, eager=True)
        calendar = pl.DataFrame({"ds": days, "day_of_month": days.dt.day(), "month": days.dt.month()})
        national = self._holidays("National", "national_hol")
        return (
            calendar.join(national, on="ds", how="left").with_columns(pl.col("national_hol").fill_null(NONE)).sort("ds")
        )

    def static(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """One row a store and item; what the tables do not know is unknown."""
        named = rows.select("unique_id", "store_nbr", "item_nbr").unique().collect(engine="streaming")
        joined = named.join(self.stores, on="store_nbr", how="left").join(self.items, on="item_nbr", how="left")
        return joined.sort("unique_id").select("unique_id", pl.col(STATIC).cast(pl.String).fill_null("unknown"))
