"""Oxford-Man: the logarithm of daily realised variance of stock indices (Heber, Lunde, Shephard, Sheppard, 2009)."""

from pathlib import Path

from lab.datasets.dataset import Dataset
from lab.datasets.source_files import SourceFiles
from mqcast.data.schema import Schema

DAILY = "oxfordman_rk_daily.parquet"
SOURCE = SourceFiles(
    "oxford_man_rk",
    "realised kernels of the Oxford-Man Institute's realised library",
    columns={
        DAILY: {"unique_id": "index", "ds": "trading day", "y": "log of the realised kernel", "region": "of the world"}
    },
)
SCHEMA = Schema(
    freq="D",
    time_grid="rows",
    static=("unique_id", "region"),
    calendar=("day_of_week", "day_of_month", "week_of_year", "month"),
)


def load(folder: str | Path) -> Dataset:
    """Trading days are the steps, whatever lies between them; days without a value are left out."""
    rows = SOURCE.read(folder, DAILY).drop_nulls("y").sort("unique_id", "ds")
    static = rows.select("unique_id", "region").unique("unique_id", maintain_order=True)
    return Dataset(rows.drop("region").lazy(), SCHEMA, static)
