"""Eight retail tasks of fev-bench, with exactly its targets: Rossmann and Favorita by day, week and month."""

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.rossmann import DAILY, STATIC
from lab.datasets.rossmann import SOURCE as ROSSMANN
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Kind, Schema
from mqcast.errors import ConfigError
from mqcast.settings import nearest

PERIODS = {"1D": ("D", "1d"), "1W": ("W-SUN", "1w"), "1M": ("MS", "1mo")}
TARGET = {"unique_id": "series", "ds": "date", "y": "target"}
SALES, STORES = "store_sales_train.parquet", "favorita_static.parquet"
OIL, HOLIDAYS = "favorita_oil.parquet", "favorita_holidays.parquet"
TASKS = (
    "rossmann_1D",
    "rossmann_1W",
    *(f"favorita_{kind}_{period}" for kind in ("stores", "transactions") for period in PERIODS),
)
SOURCE = SourceFiles(
    "fev",
    "Kaggle's 'Rossmann Store Sales', 'Store Sales' and 'Corporación Favorita', prepared as fev-bench's tasks are",
    columns={f"fev/{task}.parquet": TARGET for task in TASKS[1:]}
    | dict(ROSSMANN.columns)
    | {
        SALES: {"unique_id": "store and family", "ds": "date", "onpromotion": "items on promotion"}
        | {"store_nbr": "store", "family": "of products", "city": "of the store", "state": "of the store"}
        | {"type": "of store", "cluster": "of stores"},
        STORES: {"unique_id": "store, two digits", "city": "its city", "state": "its state"}
        | {"store_type": "its type", "cluster": "of similar stores"},
        OIL: {"ds": "date", "oil_wti": "price of oil"},
        HOLIDAYS: {"ds": "date", "holiday_type": "Holiday, Event …", "locale": "National …", "transferred": "1: moved"},
    },
)
OF_STORES = ("competition_open_since_month", "competition_open_since_year", "promo2_since_week", "promo2_since_year")
FREE_DAYS = ("Holiday", "Transfer", "Additional", "Bridge")  # events, such as the earthquake, are not known ahead


def load(folder: str | Path, task: str = "rossmann_1D") -> Dataset:
    """One task's target with its covariates, as anyone would pass them: none is derived, and none is chosen by score.

    Promotions, opening days and holidays are known ahead, as sums of the week or month; customers and the price of oil
    are known afterwards; the stores' tables are static. Days without a row stay missing in rossmann_1D alone.
    """
    if task not in TASKS:
        raise ConfigError(f"fev has no task {task!r}{nearest(task, TASKS)}; there are {', '.join(TASKS)}")
    name, _, period = task.rpartition("_")
    return {"rossmann": _rossmann, "favorita_stores": _stores, "favorita_transactions": _transactions}[name](
        folder, task, period
    )


def _target(folder: str | Path, task: str) -> pl.DataFrame:
    rows = SOURCE.read(folder, f"fev/{task}.parquet")
    return rows.with_columns(pl.col("ds").cast(pl.Datetime("us"))).sort("unique_id", "ds")


def _by_period(rows: pl.DataFrame, period: str, totals: Mapping[str, pl.Expr], *keys: str) -> pl.DataFrame:
    """Daily rows gathered by week, which its Sunday names, or by month, which its first day names."""
    start = pl.col("ds").cast(pl.Datetime("us")).dt.truncate(PERIODS[period][1])
    date = start + pl.duration(days=6 if period == "1W" else 0)
    return rows.group_by(*keys, date.alias("ds")).agg(**totals)


def _schema(period: str, static: tuple[str, ...], past: tuple[str, ...], known: tuple[str, ...]) -> Schema:
    kinds: dict[str, Kind] = {"store_nbr": "category", "cluster": "category", "promo2": "flag"}
    if period == "1D":
        kinds |= {"open": "flag", "promo": "flag", "school_holiday": "flag"}
    kinds = {name: kind for name, kind in kinds.items() if name in (*static, *known)}
    return Schema(freq=PERIODS[period][0], static=static, past=past, known=known, kinds=kinds)


def _rossmann(folder: str | Path, task: str, period: str) -> Dataset:
    rows, static = SOURCE.read(folder, DAILY), SOURCE.read(folder, STATIC).drop("state")
    known = ("open", "promo", "school_holiday", "state_holiday")
    if period != "1D":
        totals = {name: pl.col(name).cast(pl.Float64).sum() for name in ("customers", *known[:3])}
        totals["state_holiday"] = (pl.col("state_holiday") != "0").cast(pl.Float64).sum()
        weeks = _by_period(rows, period, totals, "unique_id").with_columns(_plain_number())
        rows = _target(folder, task).join(weeks, on=["unique_id", "ds"], how="left", maintain_order="left")
        rows = rows.with_columns(pl.col("customers", *known).fill_null(0))  # no row of a day is a closed day
        static = static.with_columns(_plain_number())
    columns = ("unique_id", "store_type", "assortment", "competition_distance_m", "promo2", *OF_STORES)
    schema = _schema(period, static=(*columns, "promo2_interval"), past=("customers",), known=known)
    return Dataset(rows.lazy(), schema, static.select(schema.static), promotions=("promo",) * (period == "1D"))


def _plain_number() -> pl.Expr:
    """The id without leading zeros."""
    return pl.col("unique_id").cast(pl.Int64).cast(pl.String)


def _stores(folder: str | Path, task: str, period: str) -> Dataset:
    sales, of_series = SOURCE.read(folder, SALES), ("store_nbr", "family", "city", "state", "type", "cluster")
    rows = _target(folder, task)
    static = sales.select("unique_id", *of_series).unique("unique_id").sort("unique_id")
    static = static.join(rows.select("unique_id").unique(), on="unique_id", how="semi", maintain_order="left")
    promoted = _by_period(sales, period, {"onpromotion": pl.col("onpromotion").cast(pl.Float64).sum()}, "unique_id")
    rows = rows.join(promoted, on=["unique_id", "ds"], how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("onpromotion").fill_null(0))
    return _with_calendar(folder, rows, period, static, of_series, ("onpromotion",))


def _transactions(folder: str | Path, task: str, period: str) -> Dataset:
    rows, static = _target(folder, task), SOURCE.read(folder, STORES).with_columns(_plain_number())
    static = static.join(rows.select("unique_id").unique(), on="unique_id", how="semi", maintain_order="left")
    return _with_calendar(folder, rows, period, static, ("unique_id", "city", "state", "store_type", "cluster"), ())


def _with_calendar(
    folder: str | Path,
    rows: pl.DataFrame,
    period: str,
    static: pl.DataFrame,
    of_series: tuple[str, ...],
    known: tuple[str, ...],
) -> Dataset:
    """The last price of oil, as a mean of the period, and by day whether all Ecuador has a holiday."""
    prices = SOURCE.read(folder, OIL).sort("ds").upsample("ds", every="1d")
    oil = _by_period(prices.with_columns(pl.col("oil_wti").forward_fill()), period, {"oil": pl.col("oil_wti").mean()})
    rows = rows.join(oil, on="ds", how="left", maintain_order="left")
    if period == "1D":
        free = pl.col("holiday_type").is_in(FREE_DAYS) & (pl.col("locale") == "National") & (pl.col("transferred") == 0)
        dates = SOURCE.read(folder, HOLIDAYS, free)["ds"].unique()
        rows, known = rows.with_columns(holiday=pl.col("ds").is_in(dates.implode())), (*known, "holiday")
    schema = _schema(period, static=of_series, past=("oil",), known=known)
    return Dataset(rows.lazy(), schema, static.select("unique_id", *(n for n in of_series if n != "unique_id")))
