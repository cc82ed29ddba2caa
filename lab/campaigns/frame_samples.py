"""Random frames for the campaign `frames`: clean rows, ways to hand them over, and the panel to expect.

`Sample.rows` are plain Python values; `expected` reads them with loops, without using mqcast.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from mqcast import Schema

NUMBERS, TEXTS = ("y", "visits", "price"), ("unique_id", "kind", "city")
COLUMNS = ("unique_id", "ds", "y", "visits", "promo", "price", "kind", "city")
STEPS = {"h": dt.timedelta(hours=1), "D": dt.timedelta(days=1), "W-SUN": dt.timedelta(weeks=1)}
ODD_IDS = [
    "",
    " ",
    "\u200b",
    "\u202eabc",
    "a\nb",
    "a\tb",
    "é",
    "e\u0301",
    "ß",
    "'",
    '"',
    "🛒",
    "NaN",
    "None",
    "0",
    "x" * 300,
]
TYPES = {
    "unique_id": pl.String,
    "ds": pl.Datetime("us"),
    "y": pl.Float64,
    "visits": pl.Float64,
    "promo": pl.Boolean,
    "price": pl.Float64,
    "kind": pl.String,
    "city": pl.String,
}


@dataclass(frozen=True)
class Sample:
    """Clean rows by id and date, and what their columns mean."""

    rows: list[dict[str, Any]]
    freq: str

    @property
    def schema(self) -> Schema:
        return Schema(freq=self.freq, past=("visits",), known=("promo", "price", "kind"), static=("city",))

    @property
    def frame(self) -> pl.DataFrame:
        return pl.DataFrame(self.rows, schema=TYPES)

    @property
    def ids(self) -> list[str]:
        return sorted({row["unique_id"] for row in self.rows}, key=str.encode)


def draw(rng: np.random.Generator, freq: str | None = None, ids: list[str] | None = None, most: int = 12) -> Sample:
    """A few ragged series with gaps, of at most `most` rows each."""
    freq = freq or str(rng.choice(list(STEPS)))
    names = [f"{prefix}{i}" for i, prefix in enumerate(rng.choice(["a", "Z", "item ", "é"], rng.integers(1, 5)))]
    if ids is None and rng.random() < 0.3:
        names += [ODD_IDS[i] for i in rng.choice(len(ODD_IDS), 2, replace=False)]
    rows = []
    for name in dict.fromkeys(ids or names):
        city, start = rng.choice(["Ulm", "Bonn"]), int(rng.integers(0, 20))
        for step in sorted({start, *map(int, start + rng.integers(0, 2 * most, rng.integers(1, most)))}):
            rows.append(
                {
                    "unique_id": name,
                    "ds": dt.datetime(2023, 1, 1) + step * STEPS[freq],
                    "y": _number(rng, missing=step != start),
                    "visits": _number(rng, missing=True),
                    "promo": bool(rng.random() < 0.3),
                    "price": _number(rng, missing=False),
                    "kind": str(rng.choice(["x", "y", ""])),
                    "city": str(city),
                }
            )
    return Sample(sorted(rows, key=lambda row: (row["unique_id"].encode(), row["ds"])), freq)


def _number(rng: np.random.Generator, missing: bool) -> float | None:
    if missing and rng.random() < 0.15:
        return None if rng.random() < 0.5 else math.nan
    return float(rng.choice([0.0, -0.0, 3.0, 1e-30, 1e30, rng.normal(), rng.integers(0, 1000)]))


def expected(sample: Sample) -> dict[str, Any]:
    """Ids, rows and codes of the panel, by plain loops."""
    kinds, cities = (sorted({row[name] for row in sample.rows}, key=str.encode) for name in ("kind", "city"))

    def floats(*names: str) -> np.ndarray:
        table = [[math.nan if row[name] is None else row[name] + 0.0 for name in names] for row in sample.rows]
        return np.array(table, np.float32)

    first = {name: next(row for row in sample.rows if row["unique_id"] == name) for name in sample.ids}
    return {
        "ids": sample.ids,
        "ds": [row["ds"] for row in sample.rows],
        "offsets": np.cumsum([0, *(sum(row["unique_id"] == name for row in sample.rows) for name in sample.ids)]),
        "target": floats("y")[:, 0],
        "past_number": floats("visits"),
        "known_number": floats("promo", "price"),
        "known_category": np.array([[1 + kinds.index(row["kind"])] for row in sample.rows]),
        "static_category": np.array([[1 + cities.index(first[name]["city"])] for name in sample.ids]),
    }


# -- ways to hand a frame over -----------------------------------------------------------------------------------------


def mixed_up(rng: np.random.Generator, frame: pl.DataFrame) -> pl.DataFrame:
    """The same rows and columns in another order."""
    order = rng.permutation(frame.height)
    return frame.select(rng.permutation(frame.columns).tolist())[order]


def handed_over(rng: np.random.Generator, frame: pl.DataFrame, folder: Path) -> Any:
    """The frame in a random library, with random column types of those in use."""
    way = str(rng.choice(["pandas", "pandas", "polars", "pyarrow", "parquet", "parquet of pandas", "lazy", "batches"]))
    if rng.random() < 0.3 and "ds" in frame.columns and frame.schema["ds"] == pl.Datetime("us"):
        unit = "ms" if rng.random() < 0.5 else "ns"
        frame = frame.with_columns(pl.col("ds").dt.cast_time_unit(unit))
    texts = [name for name in TEXTS if name in frame.columns and frame.schema[name] == pl.String]
    if rng.random() < 0.3:
        frame = frame.with_columns(pl.col(texts).cast(pl.Categorical))
    if way == "polars":
        return frame
    if way == "lazy":
        return frame.lazy()
    if way == "parquet":
        return _written(folder, lambda path: frame.write_parquet(path, row_group_size=int(rng.integers(1, 50))))
    if way == "batches":
        cut = frame.to_arrow().to_batches(max_chunksize=max(1, frame.height // 3))
        return pa.Table.from_batches(cut, frame.to_arrow().schema) if cut else frame.to_arrow()
    if way == "pyarrow":
        return frame.to_arrow()
    is_arrow = bool(rng.random() < 0.2)
    table = frame.to_pandas(use_pyarrow_extension_array=is_arrow)
    if rng.random() < 0.3:
        table.index = pd.Index(rng.integers(0, 3, len(table)), name="row")
    if not is_arrow and rng.random() < 0.2:
        table = table.convert_dtypes()
    return table if way == "pandas" else _written(folder, table.to_parquet)


def _written(folder: Path, write: Any) -> Path:
    path = folder / "frame.parquet"
    write(path)
    return path
