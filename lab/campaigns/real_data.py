"""On real demand with default settings, does any P90 exceed ten times the largest value of its series so far?

    python -m lab campaign real_data --data FOLDER [--only NAME …]

Each file is backtested (`Forecaster.backtest`: trained once, on what was known at the first cutoff) over the last two
horizons, given only horizon, frequency and columns. A trial is a series, with its forecasts from all cutoffs.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from lab.campaigns.campaign import Campaign
from mqcast import Forecaster, Schema
from mqcast.errors import ForecastLimitedWarning

MULTIPLE, FEW_SALES = 10.0, 3


@dataclass(frozen=True)
class Source:
    """A file of ids, dates and values, and what is known ahead."""

    horizon: int
    freq: str
    known: tuple[str, ...] = ()
    target: str = "y"
    folder: str = ""
    time_grid: str = "calendar"
    since: str | None = None  # rows before this date are left out: hours are many


SOURCES = {
    "favorita_stores_1D": Source(28, "D", folder="fev"),
    "favorita_stores_1W": Source(13, "W", folder="fev"),
    "favorita_stores_1M": Source(12, "MS", folder="fev"),
    "favorita_transactions_1D": Source(28, "D", folder="fev"),
    "favorita_transactions_1W": Source(13, "W", folder="fev"),
    "favorita_transactions_1M": Source(12, "MS", folder="fev"),
    "rossmann_1W": Source(13, "W", folder="fev"),
    "rossmann_daily": Source(48, "D", ("open", "promo", "school_holiday")),
    "favorita_transactions_daily": Source(28, "D"),
    "frat_weekly": Source(8, "W-WED"),
    "m5_item_daily": Source(28, "D"),
    "m5_sample1000": Source(28, "D"),
    "m5_store_dept_daily": Source(28, "D"),
    "store_sales_train": Source(16, "D", ("onpromotion",)),
    "eia_hourly": Source(24, "h", since="2024-01-01"),
    "oxfordman_rk_daily": Source(5, "B", time_grid="rows"),
    "volatility_omi_rv5": Source(5, "B", target="log_rv5", time_grid="rows"),
}


def read(path: Path, source: Source) -> pl.DataFrame:
    names = [pl.col(name).cast(pl.Float64) for name in (source.target, *source.known)]
    frame = pl.read_parquet(path).select(pl.col("unique_id").cast(pl.String), "ds", *names)
    frame = (
        frame.drop_nulls()
        if source.since is None
        else frame.filter(pl.col("ds") >= pl.lit(source.since).str.to_datetime())
    )
    return frame.sort("unique_id", "ds")


def multiples(frame: pl.DataFrame, forecasts: pl.DataFrame, target: str) -> pl.DataFrame:
    """The largest multiple of each series: its P90 over the largest value up to the cutoff.

    With fewer than three sales so far, over the median of the series' largest values, if that is more.
    """
    size = pl.col(target).abs()
    sold = frame.select(
        "unique_id",
        pl.col("ds").alias("cutoff"),
        size.cum_max().forward_fill().over("unique_id").alias("largest"),
        (size > 0).cum_sum().over("unique_id").alias("sales"),
    )
    before = sold.filter(pl.col("cutoff") <= forecasts["cutoff"].min(), pl.col("largest") > 0)
    typical = before.group_by("unique_id").agg(pl.max("largest"))["largest"].median()
    seen = forecasts.sort("cutoff").join_asof(sold.sort("cutoff"), on="cutoff", by="unique_id", check_sortedness=False)
    is_young = pl.col("sales").fill_null(0) < FEW_SALES
    allowed = pl.when(is_young).then(pl.max_horizontal("largest", pl.lit(typical))).otherwise(pl.col("largest"))
    return (
        seen.with_columns((pl.col("q0.9").abs() / allowed).alias("multiple"))
        .group_by("unique_id")
        .agg(pl.col("multiple").max(), pl.all_horizontal(pl.col("q0.5", "q0.9").is_finite()).all().alias("finite"))
    )


def main() -> None:
    def arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--data", type=Path, required=True, help="folder of the Parquet files")
        parser.add_argument("--only", nargs="*", choices=list(SOURCES), help="left out: all of them")

    campaign = Campaign(
        "On real demand with default settings, no P90 exceeds ten times what was sold.", 10**9, arguments
    )
    by_file = {}
    for name in campaign.options.only or SOURCES:
        source = SOURCES[name]
        frame = read(campaign.options.data / source.folder / f"{name}.parquet", source)
        schema = Schema(target=source.target, freq=source.freq, known=source.known, time_grid=source.time_grid)
        dates = frame["ds"].unique().sort()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            forecasts = Forecaster(horizon=source.horizon, schema=schema, verbose=False).backtest(
                frame, start=dates[-1 - 2 * source.horizon], end=dates[-1 - source.horizon]
            )
        largest = multiples(frame, forecasts, source.target)
        for row in largest.iter_rows(named=True):
            is_sane = row["finite"] and row["multiple"] <= MULTIPLE * (1 + 1e-6)
            campaign.check(is_sane, name, f"{row['unique_id']}: {row['multiple']:.3g} times")
        limited = [str(w.message) for w in caught if issubclass(w.category, ForecastLimitedWarning)]
        by_file[name] = {"series": largest.height, "largest_multiple": largest["multiple"].max(), "limited": limited}
        print(name, by_file[name], flush=True)
    campaign.finish(files=by_file)


if __name__ == "__main__":
    main()
