"""Where rows come from: a frame in memory or files, read as Arrow batches in original or in sorted order."""

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import narwhals as nw
import numpy as np
import polars as pl
import pyarrow as pa
from narwhals.typing import IntoFrame

from mqcast import process
from mqcast.data.csv_files import CSV_ENDINGS, EXCEL_ENDING, TEXT_ENDINGS, CsvSource
from mqcast.data.parquet_files import (
    PARQUET_ENDINGS,
    ParquetSource,
    TypedRows,
    batch_rows,
    files_at,
    first_line,
    refuse_repeated,
)
from mqcast.data.values import as_codes, as_microseconds, as_text
from mqcast.errors import ColumnTypeError, SchemaError, SourceError, TimeZoneError, quoted

AN_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|level_\d+|index|")  # that pandas wrote along
MOST_PLACES = 3  # that an error names
FrameLike = IntoFrame | str | Path | list[str] | list[Path]  # pandas, polars or Arrow; or paths of Parquet or CSV files


class Source(Protocol):
    """Rows of named columns, larger than memory or not."""

    what: str
    num_rows: int
    names: list[str]
    index_names: list[str]  # of a pandas index, which often has the column that seems to be missing

    def type_of(self, name: str) -> pa.DataType: ...

    def column(self, name: str) -> pa.Array:
        """One complete column."""
        ...

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows in their original order."""
        ...

    def sorted_batches(self, names: Sequence[str], id: str, time: str) -> Iterator[pa.RecordBatch]:
        """All rows, sorted by (id as text, time)."""
        ...

    def place(self, row: int) -> str:
        """Where a row stands, for an error."""
        ...

    def oddity(self, name: str) -> str:
        """The place of the value that made a column of a CSV file text; empty for all others."""
        ...

    def is_mixed(self, name: str) -> bool:
        """Whether a column of a CSV file is text, though its first values are not."""
        ...


def open_source(frame: "FrameLike | Source", what: str = "the frame", *, made_from: Source | None = None) -> Source:
    """A source from a frame (pandas, polars, Arrow), Parquet or CSV files (a path, a folder, a glob or a list), or
    from one file of Excel.

    A source that is open already is returned as it is. `made_from`: the source of the same rows, as the user knows it.
    """
    process.use()
    if isinstance(frame, MemorySource | ParquetSource):
        return frame
    if isinstance(frame, str | Path):
        return _open_files([frame], str(frame))
    if isinstance(frame, list) and frame and all(isinstance(path, str | Path) for path in frame):
        return _open_files(frame, f"{frame[0]} …")
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    given: Any = frame
    try:
        native: Any = nw.from_native(given)
        return MemorySource(native.collect() if isinstance(native, nw.LazyFrame) else native, what, made_from)
    except nw.exceptions.DuplicateError:
        names = list(getattr(given, "column_names", None) or given.columns)
        refuse_repeated([str(name) for name in names], what)
        raise SchemaError(f"{what} has two columns with the same name; rename one of them") from None
    except UnicodeDecodeError:
        raise SchemaError(f"{what} has a column with a name that is not UTF-8; rename it") from None
    except TypeError:
        pass
    except nw.exceptions.NarwhalsError as error:
        raise SourceError(
            f"{what} cannot be computed ({first_line(error)})", "call collect() to find the cause"
        ) from None
    try:
        return MemorySource(nw.from_native(pa.table(frame)), what)
    except (TypeError, ValueError, pa.ArrowException):
        raise ColumnTypeError(
            f"{what} is a {type(frame).__name__}; give a pandas, polars or Arrow table, or a path"
        ) from None


def places_of(source: Source, rows: Sequence[int]) -> str:
    """The places of the first few rows: `sales.csv, rows 3 and 9`, or both places if they differ in more than a row."""
    places = [source.place(row) for row in rows[:MOST_PLACES]]
    parts = [re.split(r"\brow (\d+)", place) for place in places]
    more = [f"{len(rows) - len(places)} more"] * (len(rows) > len(places))
    if len({(part[0], part[-1]) for part in parts}) == 1:
        before, _, after = parts[0]
        return f"{before}rows {_listed([*(part[1] for part in parts), *more])}{after}"
    return _listed([*places, *more])


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def read_table(frame: FrameLike | Source, what: str = "the table") -> pl.DataFrame:
    """All columns of a frame or of files in memory, text as text."""
    source = open_source(frame, what)
    columns = {name: pl.Series(name, source.column(name)) for name in source.names}
    texts = [name for name, column in columns.items() if column.dtype in (pl.Categorical, pl.Enum)]
    return pl.DataFrame(columns).with_columns(pl.col(texts).cast(pl.String))


def _open_files(paths: Sequence[str | Path], what: str) -> Source:
    if len(paths) == 1 and str(paths[0]).lower().endswith(EXCEL_ENDING):
        from mqcast.data.excel_files import read_excel

        return read_excel(Path(paths[0]))
    files = [file for path in paths for file in files_at(path, (*PARQUET_ENDINGS, *CSV_ENDINGS))]
    is_csv = [file.name.lower().endswith((*CSV_ENDINGS, *TEXT_ENDINGS)) for file in files]
    if all(is_csv):
        return CsvSource(files, what)
    if any(is_csv):
        both = f"{files[is_csv.index(True)].name} and {files[is_csv.index(False)].name}"
        raise SourceError(f"{what} has CSV and other files, such as {both}", "name those to read")
    return ParquetSource(files, what)


class MemorySource(TypedRows):
    """A frame in memory; each column is converted to Arrow when it is first used."""

    def __init__(self, frame: nw.DataFrame[Any], what: str, made_from: Source | None = None):
        self.what, self._made_from = what, made_from
        self._frame = frame
        self._columns: dict[str, pa.Array] = {}
        self.num_rows = len(frame)
        self.names = list(frame.columns)
        refuse_repeated(self.names, what)
        index = getattr(frame.to_native(), "index", None)
        self.index_names = [str(name) for name in getattr(index, "names", [])]

    def place(self, row: int) -> str:
        return super().place(row) if self._made_from is None else self._made_from.place(row)

    def type_of(self, name: str) -> pa.DataType:
        return self.column(name).type

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        size = batch_rows(len(names))
        for start in range(0, self.num_rows, size):
            yield pa.RecordBatch.from_arrays([self.column(name).slice(start, size) for name in names], list(names))

    def sorted_batches(self, names: Sequence[str], id: str, time: str) -> Iterator[pa.RecordBatch]:
        order = _order(self.column(id), self.column(time))
        size = batch_rows(len(names))
        for start in range(0, self.num_rows, size):
            rows = pa.array(order[start : start + size])
            yield pa.RecordBatch.from_arrays([self.column(name).take(rows) for name in names], list(names))

    def column(self, name: str) -> pa.Array:
        if name not in self._columns:
            series = self._frame.get_column(name)
            _refuse_mixed_dates(series, name)
            try:
                array = series.to_arrow()
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise ColumnTypeError(
                    f"{self.what}, column {name!r}: the values have no common type that can be stored "
                    f"({_odd_one_out(series.to_list()) or first_line(error)}); convert them to one type"
                ) from None
            try:
                array.validate(full=True)  # an Arrow table may come from unchecked bytes
            except pa.ArrowException as error:
                raise ColumnTypeError(
                    f"{self.what}, column {name!r} is damaged ({first_line(error)}); create it again"
                ) from None
            array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
            self._columns[name] = array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array
        return self._columns[name]


def _order(ids: pa.Array, times: pa.Array) -> np.ndarray:
    codes, distinct = as_codes(ids)
    keys = [(text or "").encode() for text in as_text(distinct)]
    rank = np.empty(len(keys), dtype=np.int64)
    rank[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
    ranks, moments = rank[codes], as_microseconds(times)
    first, last = int(moments.min()), int(moments.max())
    if (last - first + 1) * (len(keys) + 1) < 2**62:
        return np.argsort(ranks * (last - first + 1) + (moments - first), kind="stable")
    return np.lexsort((moments, ranks))


def _refuse_mixed_dates(series: nw.Series[Any], name: str) -> None:
    """Check a pandas object column first, since Arrow would use the zone and type of the first value for all."""
    native = series.to_native()
    if str(getattr(native, "dtype", "")) != "object":
        return
    of_numpy = {isinstance(value, np.datetime64) for value in native if isinstance(value, np.generic)}
    if len(of_numpy) > 1:  # Arrow would crash
        raise ColumnTypeError(f"column {name!r} mixes dates and other values of numpy; convert it to one type")
    dates = [value for value in native if isinstance(value, dt.date) and value == value]
    zones = {str(getattr(value, "tzinfo", None)) for value in dates}
    if len(zones) > 1:
        raise TimeZoneError(
            f"dates in {len(zones)} time zones or offsets ({', '.join(sorted(zones)[:3])})",
            "convert them to one, for example with pd.to_datetime(column, utc=True).dt.tz_convert('Europe/Berlin')",
            column=name,
        )
    if len({isinstance(value, dt.datetime) for value in dates}) > 1:
        raise ColumnTypeError(f"column {name!r} mixes dates and date-times; convert it with pd.to_datetime")


def _odd_one_out(values: list[Any]) -> str | None:
    """The first value that is text while others are not, or the other way round, and its row."""
    present = [(row, value) for row, value in enumerate(values) if not _is_missing(value)]
    odd = next(
        ((row, value) for row, value in present if isinstance(value, str) != isinstance(present[0][1], str)), None
    )
    return None if odd is None else f"row {odd[0]} holds {quoted(odd[1])}, row {present[0][0]} {quoted(present[0][1])}"


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA is neither; an array is many
        return True
