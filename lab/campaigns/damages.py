"""Ways in which a frame can be wrong or odd, for the campaign `frames`.

Each takes random numbers and clean rows and returns a frame, and the words that the error must contain: `None` where
the frame may also be read.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lab.campaigns.frame_samples import COLUMNS, NUMBERS, TEXTS, Sample, handed_over, mixed_up

Frame = tuple[Any, tuple[str, ...] | None]
Damage = Callable[[np.random.Generator, Sample, Path], Frame]
DAMAGES: dict[str, Damage] = {}


def damage(function: Damage) -> Damage:
    DAMAGES[function.__name__.replace("_", " ")] = function
    return function


def _changed(rng: np.random.Generator, sample: Sample, column: str, value: Any) -> tuple[list[dict[str, Any]], str]:
    """The rows with one value changed, and the id of its series."""
    rows = [dict(row) for row in sample.rows]
    row = rows[int(rng.integers(len(rows)))]
    row[column] = value
    return rows, row["unique_id"]


def _frame(rng: np.random.Generator, rows: list[dict[str, Any]], sample: Sample, folder: Path) -> Any:
    return handed_over(rng, mixed_up(rng, pl.DataFrame(rows, schema=sample.frame.schema)), folder)


def _objects(sample: Sample, column: str, values: list[Any]) -> pd.DataFrame:
    table = sample.frame.to_pandas()
    table[column] = pd.Series(values, dtype=object, index=table.index)
    return table


def _column(rng: np.random.Generator, sample: Sample, names: tuple[str, ...] = COLUMNS) -> tuple[str, int]:
    return str(rng.choice(names)), len(sample.rows)


# -- keys and values ---------------------------------------------------------------------------------------------------


@damage
def rows_of_one_date(rng, sample, folder):
    row = sample.rows[int(rng.integers(len(sample.rows)))]
    return _frame(rng, [*sample.rows, dict(row)], sample, folder), ("series", "2 rows")


@damage
def a_date_off_the_grid(rng, sample, folder):
    rows, _ = _changed(rng, sample, "ds", dt.datetime(2023, 5, 3, 4, 5, 6))
    return _frame(rng, rows, sample, folder), ("series", "'ds'", "grid")


@damage
def a_missing_key(rng, sample, folder):
    column = str(rng.choice(["unique_id", "ds"]))
    rows, _ = _changed(rng, sample, column, None)
    return _frame(rng, rows, sample, folder), (f"'{column}'", "row")


@damage
def a_value_that_is_not_finite(rng, sample, folder):
    column = str(rng.choice(NUMBERS))
    rows, _ = _changed(rng, sample, column, float(rng.choice([np.inf, -np.inf, 1e39, -1e300])))
    return _frame(rng, rows, sample, folder), ("series", f"'{column}'", " at ")


@damage
def a_known_value_that_is_missing(rng, sample, folder):
    column = str(rng.choice(["promo", "price"]))
    rows, _ = _changed(rng, sample, column, None)
    return _frame(rng, rows, sample, folder), ("series", f"'{column}'", "known ahead")


@damage
def a_series_without_sales(rng, sample, folder):
    name = str(rng.choice(sample.ids))
    rows = [row | {"y": None} if row["unique_id"] == name else row for row in sample.rows]
    return _frame(rng, rows, sample, folder), ("series", "'y'", "no observed value")


@damage
def a_static_value_that_changes(rng, sample, folder):
    row = dict(sample.rows[0], ds=sample.rows[0]["ds"] - dt.timedelta(weeks=52), city="Rome")
    return _frame(rng, [row, *sample.rows], sample, folder), ("series", "'city'", "changes in time")


@damage
def a_flag_of_other_numbers(rng, sample, folder):
    frame = sample.frame.with_columns(promo=pl.Series(rng.integers(2, 9, len(sample.rows))))
    return handed_over(rng, frame, folder), None


@damage
def long_ids(rng, sample, folder):
    long = "".join(map(chr, rng.integers(32, 0x2FFF, 10_000)))
    rows = [row | {"unique_id": long + row["unique_id"]} for row in sample.rows]
    return _frame(rng, [*rows, rows[0]], sample, folder), ("series", "2 rows")


# -- columns -----------------------------------------------------------------------------------------------------------


@damage
def a_column_that_is_not_there(rng, sample, folder):
    column, _ = _column(rng, sample)
    return handed_over(rng, sample.frame.drop(column), folder), (f"'{column}'", "there are")


@damage
def a_column_of_another_name(rng, sample, folder):
    column, _ = _column(rng, sample)
    odd = str(rng.choice([column.upper(), f"{column} ", "", "x" * 10_000, "\u202e", column[:-1]]))
    return handed_over(rng, sample.frame.rename({column: odd}), folder), (f"'{column}'",)


@damage
def many_columns(rng, sample, folder):
    more = {f"{'x' * 50}{i}": [0.0] * len(sample.rows) for i in range(300)}
    return handed_over(rng, sample.frame.drop("price").with_columns(**more), folder), ("'price'",)


@damage
def two_columns_of_one_name(rng, sample, folder):
    column, _ = _column(rng, sample)
    if rng.random() < 0.5:
        table = sample.frame.to_arrow()
        return table.append_column(column, table[column]), (column,)
    table = sample.frame.to_pandas()
    return pd.concat([table, table[[column]]], axis=1), (column,)


@damage
def columns_of_several_levels(rng, sample, folder):
    table = sample.frame.to_pandas()
    table.columns = pd.MultiIndex.from_product([["a"], table.columns])
    return table, ("'unique_id'",)


@damage
def names_that_are_no_text(rng, sample, folder):
    table = sample.frame.to_pandas()
    extra = [1, 2.5, None, ("a", "b"), True, dt.date(2024, 1, 1), b"x"]
    return pd.concat(
        [table, pd.DataFrame({extra[int(rng.integers(7))]: [1] * len(table)}, index=table.index)], axis=1
    ), None


@damage
def a_column_in_the_index(rng, sample, folder):
    column, _ = _column(rng, sample)
    return sample.frame.to_pandas().set_index(column), (f"'{column}'", "reset_index")


@damage
def no_row(rng, sample, folder):
    frames = [sample.frame.clear(), pl.DataFrame(), pl.DataFrame(schema=["unique_id", "ds", "y"])]
    return handed_over(rng, frames[int(rng.integers(3))], folder), ("no row",)


@damage
def what_is_no_frame(rng, sample, folder):
    other = [
        None,
        3,
        "nowhere.parquet",
        b"bytes",
        [],
        [1, 2],
        {"a": 1},
        {},
        object(),
        np.zeros(3),
        sample.frame["y"],
        dict,
    ]
    return other[int(rng.integers(len(other)))], ()


# -- types -------------------------------------------------------------------------------------------------------------


@damage
def a_column_of_another_type(rng, sample, folder):
    column, n = _column(rng, sample)
    number, day = int(rng.integers(5)), dt.datetime(2024, 1, 1)
    others: list[list[Any]] = [
        ["n/a"] * n,
        [number] * n,
        [0.5] * n,
        [True] * n,
        [day] * n,
        [day.date()] * n,
        [dt.timedelta(1)] * n,
        [dt.time(1)] * n,
        [[1.0]] * n,
        [{"a": 1}] * n,
        [b"x"] * n,
        [None] * n,
    ]
    return handed_over(rng, sample.frame.with_columns(pl.Series(column, others[int(rng.integers(12))])), folder), None


@damage
def objects_of_several_types(rng, sample, folder):
    column, n = _column(rng, sample)
    pool = [
        "text",
        1,
        2.5,
        None,
        True,
        dt.date(2024, 1, 1),
        dt.datetime(2024, 1, 1),
        [1],
        {"a": 1},
        (1, 2),
        b"x",
        object(),
    ]
    pool += [
        decimal.Decimal(1),
        1 + 2j,
        10**30,
        -(10**400),
        pd.NaT,
        pd.NA,
        np.nan,
        np.float16(1),
        {1, 2},
        Ellipsis,
        int,
    ]
    pool += [
        pd.Timestamp("2024-01-01", tz="UTC"),
        pd.Period("2024-01"),
        pd.Interval(0, 1),
        np.datetime64("NaT"),
        "\ud800",
    ]
    return _objects(sample, column, [pool[i] for i in rng.integers(0, len(pool), n)]), None


@damage
def one_odd_object(rng, sample, folder):
    column, n = _column(rng, sample, (*NUMBERS, "unique_id"))
    values = sample.frame[column].to_list()
    pool = [
        "text",
        10**30,
        1j,
        [1],
        {"a": 1},
        dt.date(2024, 1, 1),
        decimal.Decimal("1e400"),
        decimal.Decimal("NaN"),
        object(),
    ]
    values[int(rng.integers(n))] = pool[int(rng.integers(len(pool)))]
    return _objects(sample, column, values), None


@damage
def decimals(rng, sample, folder):
    column, n = _column(rng, sample, NUMBERS)
    pool = [decimal.Decimal(text) for text in ("1.5", "1e30", "-0", "1e-20", "99999999999999999999999999999999999999")]
    pool += [decimal.Decimal(text) for text in ("NaN", "Infinity")] if rng.random() < 0.3 else []
    return _objects(sample, column, [pool[i] for i in rng.integers(0, len(pool), n)]), None


@damage
def whole_numbers_of_many_digits(rng, sample, folder):
    column, n = _column(rng, sample, (*NUMBERS, "unique_id", "kind"))
    pool = [10**18, 2**63, 2**64 - 1, 2**64, 10**40, -(2**63), -(10**30), 10**400]
    value = pool[int(rng.integers(len(pool)))]
    if rng.random() < 0.5 and 0 <= value < 2**64:
        return sample.frame.with_columns(pl.Series(column, [value] * n, dtype=pl.UInt64)), None
    return _objects(sample, column, [value] * n), None


@damage
def rare_types_of_arrow(rng, sample, folder):
    column, n = _column(rng, sample)
    kinds = [
        lambda: pa.array([1.0] * n, pa.float16()) if rng.random() < 0.5 else pa.nulls(n),
        lambda: pa.array([[1]] * n, pa.large_list(pa.int8())),
        lambda: pa.array([[("a", 1)]] * n, pa.map_(pa.string(), pa.int8())),
        lambda: pa.array(["a"] * n, pa.string_view()),
        lambda: pa.array([b"a"] * n, pa.binary_view()),
        lambda: pa.array([b"\xff"] * n, pa.large_binary()),
        lambda: pa.array([1] * n, pa.duration("ns")),
        lambda: pa.array([1] * n, pa.time64("ns")),
        lambda: pa.array([decimal.Decimal(1)] * n, pa.decimal256(76, 10)),
        lambda: pa.RunEndEncodedArray.from_arrays(pa.array([n], pa.int32()), pa.array([1.0])),
        lambda: pa.DictionaryArray.from_arrays(pa.array([0] * n, pa.int8()), pa.array([None, "a"])),
        lambda: pa.DictionaryArray.from_arrays(pa.array([0] * n, pa.uint8()), pa.array([1.5, 2.5])),
        lambda: pa.DictionaryArray.from_arrays(pa.array([0, 1] * n, pa.int32())[:n], pa.array(["a", "a"])),
        lambda: pa.array([(1, 2, 3)] * n, pa.month_day_nano_interval()),
        lambda: pa.UnionArray.from_sparse(pa.array([0] * n, pa.int8()), [pa.array([1] * n)]),
        lambda: pa.array([1] * n, pa.date64()),
    ]
    table = sample.frame.to_arrow()
    made = kinds[int(rng.integers(len(kinds)))]()
    return table.set_column(table.column_names.index(column), column, made), None


@damage
def rare_types_of_polars(rng, sample, folder):
    column, n = _column(rng, sample)
    made = [
        lambda: pl.Series(column, [object()] * n, dtype=pl.Object),
        lambda: pl.Series(column, ["a"] * n, dtype=pl.Enum(["a", "b"])),
        lambda: pl.Series(column, [1] * n, dtype=pl.Int128),
        lambda: pl.Series(column, [1] * n, dtype=pl.Decimal(38, 0)),
        lambda: pl.Series(column, [[1, 2]] * n, dtype=pl.Array(pl.Int8, 2)),
        lambda: pl.Series(column, [{"a": 1}] * n),
        lambda: pl.Series(column, [None] * n, dtype=pl.Null),
        lambda: pl.Series(column, [1] * n, dtype=pl.Duration("ns")),
    ]
    frame = sample.frame.with_columns(made[int(rng.integers(len(made)))]())
    return (frame.lazy() if rng.random() < 0.3 else frame), None


@damage
def rare_types_of_pandas(rng, sample, folder):
    column, n = _column(rng, sample)
    made = [
        lambda: pd.arrays.SparseArray(np.zeros(n)),
        lambda: pd.period_range("2024-01", periods=n, freq="M"),
        lambda: pd.arrays.IntervalArray.from_tuples([(0, 1)] * n),
        lambda: pd.array([1, None] * n, dtype="Int64")[:n],
        lambda: pd.Categorical([None, 1, "a"] * n)[:n],
        lambda: pd.Categorical([None] * n, categories=["a"]),
        lambda: np.full(n, 1 + 2j),
        lambda: np.full(n, np.datetime64("NaT"), "M8[ns]"),
        lambda: np.full(n, np.longdouble(1)),
        lambda: np.full(n, "a", "S1"),
        lambda: pd.array(["a"] * n, dtype="string"),
    ]
    return sample.frame.to_pandas().assign(**{column: made[int(rng.integers(len(made)))]()}), None


@damage
def a_lazy_frame_that_fails(rng, sample, folder):
    if rng.random() < 0.5:
        return sample.frame.lazy().select("nothing"), ()
    return sample.frame.lazy().with_columns(y=pl.col("kind").cast(pl.Float64)), ()


# -- dates -------------------------------------------------------------------------------------------------------------


@damage
def dates_out_of_range(rng, sample, folder):
    n, table = len(sample.rows), sample.frame.to_arrow()
    made = [
        lambda: pa.array([10**13 + i for i in range(n)], pa.timestamp("s")),
        lambda: pa.array([-(10**15)] * n, pa.timestamp("ms")),
        lambda: pa.array([2**63 - 1 - i for i in range(n)], pa.timestamp("us")),
        lambda: pa.array([-(2**63) + 1 + i for i in range(n)], pa.timestamp("us")),
        lambda: pa.array([2**31 - 1 - i for i in range(n)], pa.date32()),
        lambda: pa.array([dt.date(1 + i, 1, 1) for i in range(n)]),
        lambda: pa.array([dt.datetime(9999, 12, 31 - i % 28) for i in range(n)]),
        lambda: pa.array([2**63 - 1] * n, pa.timestamp("ns", "UTC")),
    ]
    return table.set_column(table.column_names.index("ds"), "ds", made[int(rng.integers(len(made)))]()), None


@damage
def dates_of_several_zones(rng, sample, folder):
    zones = [None, "UTC", "Europe/Berlin", "+02:00"]
    dates = [pd.Timestamp(row["ds"], tz=zones[int(rng.integers(4))]) for row in sample.rows]
    return _objects(sample, "ds", dates), None


@damage
def a_time_zone(rng, sample, folder):
    zone = str(
        rng.choice(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", "+05:30", "Mars/Base", "utc", ""])
    )
    table = sample.frame.to_arrow()
    dates = table["ds"].cast(pa.int64()).cast(pa.timestamp("us", zone or None))
    return table.set_column(table.column_names.index("ds"), "ds", dates), None


# -- files -------------------------------------------------------------------------------------------------------------


@damage
def a_file_with_other_bytes(rng, sample, folder):
    path = folder / "damaged.parquet"
    sample.frame.to_pandas().to_parquet(path)
    content = bytearray(path.read_bytes())
    if rng.random() < 0.3:
        content = content[: int(rng.integers(len(content)))]
    for place in rng.integers(0, max(1, len(content)), int(rng.integers(0, 5))):
        if len(content):
            content[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)
    return path, None


@damage
def damaged_metadata_of_pandas(rng, sample, folder):
    path = folder / "damaged.parquet"
    texts = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"columns": null}',
        b'{"columns": [1]}',
        b'{"columns": {"a": 1}}',
    ]
    texts += [
        b'{"columns": [{"pandas_type": "categorical"}]}',
        b'{"columns": [{"pandas_type": "categorical", "name": [1]}]}',
    ]
    table = sample.frame.to_arrow().replace_schema_metadata({b"pandas": texts[int(rng.integers(len(texts)))]})
    pq.write_table(table, path)
    return path, None


@damage
def categories_with_nulls(rng, sample, folder):
    table = sample.frame.to_pandas()
    column = str(rng.choice(TEXTS))
    values = table[column].astype("category")
    values.iloc[int(rng.integers(len(table)))] = None
    return table.assign(**{column: values}), ("'unique_id'", "row") if column == "unique_id" else None
