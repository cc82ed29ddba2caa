"""Oxford-Man Institute's realized library: daily realized variance of 31 indices, as TFT's published code has it."""

import datetime as dt
from pathlib import Path

import polars as pl

from lab.datasets import oxford_man_rv5
from lab.datasets.dataset import Dataset
from lab.datasets.oxford_man_rv5 import END
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError

FILE = "oxfordmanrealizedvolatilityindices.csv"
SOURCE = SourceFiles(
    "oxford_man",
    "a copy of the Oxford-Man Institute's realized library 0.3 (its site closed in 2022; repositories on econometrics "
    "keep copies)",
    f"{FILE} or its .zip, with commas: a first column without a name that holds dates (2000-01-03 00:00:00+00:00), "
    "Symbol, open_to_close, rv5_ss and others",
)
RETURNS = ("open_to_close", "close_to_close")
START = dt.date(2000, 1, 3)
REGIONS = {  # as in TFT's code: .RUT is not in America, and the blank makes a fourth region of .N225
    "AMER": (".BVSP", ".DJI", ".GSPTSE", ".IXIC", ".MXX", ".SPX"),
    "APAC": (".AORD", ".BSESN", ".HSI", ".KS11", ".KSE", ".NSEI", ".SSEC", ".STI"),
    "APAC ": (".N225",),
    "EMEA": (
        *(".AEX", ".BFX", ".BVLG", ".FCHI", ".FTMIB", ".FTSE", ".GDAXI", ".IBEX", ".OMXC20", ".OMXHPI", ".OMXSPI"),
        *(".OSEAX", ".RUT", ".SMSI", ".SSMI", ".STOXX50E"),
    ),
}
REGION_OF = {symbol: region for region, symbols in REGIONS.items() for symbol in symbols}


def load(folder: str | Path, returns: str = "open_to_close") -> Dataset:
    """The logarithm of realised variance by trading day up to 2019-06-28; a day without one has that of the day before.

    With returns from close to close the rows are those of `oxford_man_rv5`, a file that has no opening prices.
    """
    if returns not in RETURNS:
        raise ConfigError(f"oxford_man has no returns {returns!r}; there are {', '.join(RETURNS)}")
    if returns == "open_to_close":
        with SOURCE.file(folder, FILE) as path:
            read, source, name = _read(path), SOURCE, FILE
    else:
        read, source, name = oxford_man_rv5.read_daily(folder), oxford_man_rv5.SOURCE, oxford_man_rv5.DAILY
    if strange := sorted(set(read["unique_id"]) - set(REGION_OF)):
        raise source.error(f"{name} has symbols that the task does not know: {', '.join(strange[:3])}")
    if not (read["ds"] >= END).any():
        raise source.error(f"{name} ends before {END}")
    rows = (
        read.filter(pl.col("ds") <= END)
        .sort("unique_id", "ds")
        .with_columns(y=pl.when(pl.col("variance") > 0).then(pl.col("variance").log()).forward_fill().over("unique_id"))
        .with_columns(days_from_start=(pl.col("ds") - START).dt.total_days().cast(pl.Float64))
        .drop("variance")
    )
    symbols = rows["unique_id"].unique(maintain_order=True)
    regions = [REGION_OF[symbol] for symbol in symbols]
    static = pl.DataFrame({"unique_id": symbols, "region": regions})
    return Dataset(rows.lazy(), _schema(returns), static, of_date=("days_from_start",))


def _schema(returns: str) -> Schema:
    return Schema(
        freq="B",
        time_grid="rows",
        static=("region",),
        past=(returns,),
        known=("days_from_start",),
        calendar=("day_of_week", "day_of_month", "week_of_year", "month"),
    )


def _read(path: Path) -> pl.DataFrame:
    names = SOURCE.header(path, ",")
    missing = [name for name in ("Symbol", "open_to_close", "rv5_ss") if name not in names]
    if names[0] or missing:
        first = f"a first column {names[0]!r}" if names[0] else f"no column {missing[0]!r}"
        raise SOURCE.error(f"{path.name} has {first}")
    types = {"stamp": pl.String} | {
        name: pl.Float64 if name in ("open_to_close", "rv5_ss") else pl.String for name in names[1:]
    }
    lines = pl.scan_csv(path, has_header=False, skip_rows=1, schema=types)
    date = pl.col("stamp").str.slice(0, 10).str.to_date("%Y-%m-%d")
    return SOURCE.collected(
        lines.select(unique_id="Symbol", ds=date, open_to_close="open_to_close", variance="rv5_ss"), path
    )
