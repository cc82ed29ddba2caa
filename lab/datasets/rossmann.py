"""Rossmann: daily sales of 1,115 German drug stores with opening days, promotions and holidays (Kaggle, 2015)."""

from pathlib import Path

import polars as pl

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema

DAILY, STATIC = "rossmann_daily.parquet", "rossmann_static.parquet"
SOURCE = SourceFiles(
    "rossmann",
    "train.csv, store.csv and store_states.csv of Kaggle's 'Rossmann Store Sales'",
    columns={
        DAILY: {
            "unique_id": "store",
            "ds": "date",
            "y": "sales",
            "customers": "customers",
            "open": "1: open",
            "promo": "1: promotion",
            "state_holiday": "0, a, b or c",
            "school_holiday": "1: school holiday",
        },
        STATIC: {
            "unique_id": "store",
            "store_type": "a … d",
            "assortment": "a … c",
            "state": "of Germany",
            "competition_distance_m": "to the nearest competitor",
            "competition_open_since_month": "month",
            "competition_open_since_year": "year",
            "promo2": "1: takes part",
            "promo2_since_week": "week",
            "promo2_since_year": "year",
            "promo2_interval": "such as Jan,Apr,Jul,Oct",
        },
    },
)
SCHEMA = Schema(
    freq="D",
    static=("unique_id", "store_type", "assortment", "state", "competition_distance_m", "promo2"),
    past=("customers",),
    known=("open", "promo", "school_holiday", "promo2_round", "competition_open", "state_holiday"),
    kinds={
        "promo2": "flag",
        "open": "flag",
        "promo": "flag",
        "school_holiday": "flag",
        "promo2_round": "flag",
        "competition_open": "flag",
        "state_holiday": "category",
    },
    holidays=("DE",),
    calendar=("day_of_week", "day_of_month", "year_wave"),
)


def load(folder: str | Path) -> Dataset:
    """Sales, and what is known ahead: opening days, promotions, holidays; customers are known afterwards only.

    From the stores' table come two flags of every day: a round of the yearly promotion has begun in this month
    (promo2_round), and the nearest competitor is there (competition_open). Distances are in logarithms.
    """
    static = SOURCE.read(folder, STATIC)
    dates = static.select(
        "unique_id",
        "promo2_interval",
        promo2_start=_monday("promo2_since_year", "promo2_since_week"),
        competition_start=pl.date(pl.col("competition_open_since_year"), pl.col("competition_open_since_month"), 1),
    )
    day, month = pl.col("ds").dt.date(), pl.col("ds").dt.strftime("%b")
    months = pl.col("promo2_interval").str.replace("Sept", "Sep").str.split(",")
    in_round = (day >= pl.col("promo2_start")) & months.list.contains(month)
    rows = (
        SOURCE.read(folder, DAILY)
        .join(dates, on="unique_id", how="left", maintain_order="left")
        .with_columns(
            promo2_round=in_round.fill_null(False),
            competition_open=(day >= pl.col("competition_start")).fill_null(True),
        )
        .drop("promo2_interval", "promo2_start", "competition_start")
    )
    static = static.with_columns(pl.col("competition_distance_m").log1p())
    return Dataset(rows.lazy(), SCHEMA, static.select(SCHEMA.static), promotions=("promo", "promo2_round"))


def _monday(year: str, week: str) -> pl.Expr:
    """The Monday of an ISO week."""
    fourth = pl.date(pl.col(year), 1, 4)  # is in week 1
    return fourth - pl.duration(days=fourth.dt.weekday() - 1) + pl.duration(days=7 * (pl.col(week).cast(pl.Int64) - 1))
