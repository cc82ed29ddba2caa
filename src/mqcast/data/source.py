"""Where rows come from: a frame in memory or Parquet files, read as Arrow batches in original or in sorted order."""

import contextlib
import datetime as dt
import json
import tempfile
from collections.abc import Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import narwhals as nw
import numpy as np
import pyarrow as pa
from narwhals.typing import IntoFrame

from mqcast import process
from mqcast.arguments import path_of
from mqcast.data.values import as_codes, as_microseconds, as_text
from mqcast.errors import ColumnTypeError, SchemaError, SourceError, TimeZoneError, quoted

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FrameLike = IntoFrame | str | Path | list[str] | list[Path]  # pandas, polars or Arrow; or paths of Parquet files
BATCH_BYTES = 32 * 2**20
SORT_MEMORY = "512MB"
PARQUET_ENDINGS = (".parquet", ".pq", ".parq")


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


def open_source(frame: FrameLike, what: str = "the frame") -> Source:
    """A source from a pandas, polars or Arrow frame, or from Parquet: a path, a folder, a glob or a list of paths."""
    process.use()
    if isinstance(frame, str | Path):
        return ParquetSource([frame], str(frame))
    if isinstance(frame, list) and frame and all(isinstance(path, str | Path) for path in frame):
        return ParquetSource(frame, f"{frame[0]} …")
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    given: Any = frame
    try:
        native: Any = nw.from_native(given)
        return MemorySource(native.collect() if isinstance(native, nw.LazyFrame) else native, what)
    except nw.exceptions.DuplicateError:
        names = list(getattr(given, "column_names", None) or given.columns)
        _refuse_repeated([str(name) for name in names], what)
        raise SchemaError(f"{what} has two columns with the same name; rename one of them") from None
    except UnicodeDecodeError:
        raise SchemaError(f"{what} has a column with a name that is not UTF-8; rename it") from None
    except TypeError:
        pass
    except nw.exceptions.NarwhalsError as error:
        raise SourceError(
            f"{what} cannot be computed ({_first_line(error)})", "call collect() to find the cause"
        ) from None
    try:
        return MemorySource(nw.from_native(pa.table(frame)), what)
    except (TypeError, ValueError, pa.ArrowException):
        raise ColumnTypeError(
            f"{what} is a {type(frame).__name__}; give a pandas, polars or Arrow table, or a Parquet path"
        ) from None


class MemorySource:
    """A frame in memory; each column is converted to Arrow when it is first used."""

    def __init__(self, frame: nw.DataFrame[Any], what: str):
        self.what = what
        self._frame = frame
        self._columns: dict[str, pa.Array] = {}
        self.num_rows = len(frame)
        self.names = list(frame.columns)
        _refuse_repeated(self.names, what)
        index = getattr(frame.to_native(), "index", None)
        self.index_names = [str(name) for name in getattr(index, "names", [])]

    def type_of(self, name: str) -> pa.DataType:
        return self.column(name).type

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        size = _batch_rows(len(names))
        for start in range(0, self.num_rows, size):
            yield pa.RecordBatch.from_arrays([self.column(name).slice(start, size) for name in names], list(names))

    def sorted_batches(self, names: Sequence[str], id: str, time: str) -> Iterator[pa.RecordBatch]:
        order = _order(self.column(id), self.column(time))
        size = _batch_rows(len(names))
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
                    f"({_odd_one_out(series.to_list()) or _first_line(error)}); convert them to one type"
                ) from None
            try:
                array.validate(full=True)  # an Arrow table may come from unchecked bytes
            except pa.ArrowException as error:
                raise ColumnTypeError(
                    f"{self.what}, column {name!r} is damaged ({_first_line(error)}); create it again"
                ) from None
            array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
            self._columns[name] = array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array
        return self._columns[name]


class ParquetSource:
    """Parquet files, streamed; if they are not sorted, DuckDB sorts them on disk."""

    def __init__(self, paths: Sequence[str | Path], what: str):
        import pyarrow.dataset as pads  # slow to import

        self.what = what
        self.index_names: list[str] = []
        self._files = [file for path in paths for file in _parquet_files(path)]
        schemas = [self._schema_of(file) for file in self._files]
        self._refuse_different_zones(schemas)
        try:
            unified = pa.unify_schemas([_decoded(schema) for schema in schemas], promote_options="permissive")
        except pa.ArrowException as error:
            reason = _first_line(error)
            raise ColumnTypeError(
                f"{what}: the columns of the files have different types ({reason}); write them with the same types"
            ) from None
        keys = [key for key in _folder_keys(self._files) if key not in unified.names]
        by_folder = pa.schema([(key, pa.string()) for key in keys])
        files, hive = [str(file) for file in self._files], pads.partitioning(by_folder, flavor="hive")
        unified = pa.unify_schemas([unified, by_folder])
        texts = [field.name for field in unified if pa.types.is_string(field.type)]
        # Text stays as compact as it is in the file; whole row groups are not read ahead.
        encoded = pads.ParquetFileFormat(dictionary_columns=texts, pre_buffer=False, use_buffered_stream=True)
        self._data = pads.dataset(files, schema=_encoded(unified, texts), format=encoded, partitioning=hive)
        self._categorical = {name for schema in schemas for name in _pandas_categoricals(schema)}
        self.names = unified.names
        self.num_rows = self._data.count_rows()

    def type_of(self, name: str) -> pa.DataType:
        plain = self._data.schema.field(name).type
        return (
            pa.dictionary(pa.int32(), plain)
            if name in self._categorical and not pa.types.is_dictionary(plain)
            else plain
        )

    def column(self, name: str) -> pa.Array:
        column = pa.Table.from_batches(list(self.batches([name]))).unify_dictionaries().column(0)
        return column.combine_chunks()

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        settings = {"batch_size": _batch_rows(len(names)), "batch_readahead": 1, "fragment_readahead": 1}
        try:
            num_rows = 0
            for batch in self._data.to_batches(columns=list(names), **settings):
                batch.validate(full=True)  # Parquet files may have invalid text, and codes without a value
                num_rows += batch.num_rows
                yield batch
            if num_rows != self.num_rows:
                raise pa.ArrowInvalid(f"{num_rows:,} rows of {', '.join(names[:3])}, not {self.num_rows:,}")
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{self.what} cannot be read ({_first_line(error)})", "write it again") from None

    def sorted_batches(self, names: Sequence[str], id: str, time: str) -> Iterator[pa.RecordBatch]:
        import duckdb

        types = [self._data.schema.field(name).type for name in names]
        plain = [f"c{i}" for i in range(len(names))]  # DuckDB does not distinguish Price and price
        schema = pa.schema(list(zip(plain, types, strict=True)))
        rows = pa.RecordBatchReader.from_batches(schema, (b.rename_columns(plain) for b in self.batches(names)))
        key, moment = plain[names.index(id)], plain[names.index(time)]
        with tempfile.TemporaryDirectory(prefix="mqcast-sort-") as spill, duckdb.connect() as connection:
            connection.execute("SET temp_directory = ?", [spill])
            connection.execute(f"SET memory_limit = '{SORT_MEMORY}'")
            connection.execute("SET preserve_insertion_order = false")
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("rows", rows)
            try:
                query = f"SELECT {', '.join(plain)} FROM rows ORDER BY CAST({key} AS VARCHAR), {moment}"
                for batch in connection.sql(query).to_arrow_reader(_batch_rows(len(names))):
                    columns = [_as_type(column, type_) for column, type_ in zip(batch.columns, types, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, list(names))
            except duckdb.Error as error:
                raise SourceError(
                    f"{self.what} cannot be sorted ({_first_line(error)})", "fix this and try again"
                ) from None

    def _schema_of(self, file: Path) -> pa.Schema:
        import pyarrow.parquet as pq  # slow to import

        try:
            footer = pq.read_metadata(file)
            _check_footer(footer)
            schema = footer.schema.to_arrow_schema()
            _refuse_repeated(schema.names, str(file))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            reason, is_text = _first_line(error), file.suffix.lower() in (".csv", ".tsv", ".txt", ".json")
            remedy = "read it into a frame first, and write that as Parquet" if is_text else "write it again"
            raise SourceError(f"{file} is not a readable Parquet file ({reason})", remedy) from None
        return schema

    def _refuse_different_zones(self, schemas: list[pa.Schema]) -> None:
        first: dict[str, tuple[Path, Any]] = {}
        for file, schema in zip(self._files, schemas, strict=True):
            for field in schema:
                if not pa.types.is_timestamp(field.type):
                    continue
                other, zone = first.setdefault(field.name, (file, field.type.tz))
                if zone != field.type.tz:
                    raise TimeZoneError(
                        f"{other.name} has time zone {zone}, {file.name} has {field.type.tz}",
                        "convert them to one time zone",
                        column=field.name,
                    )


def _check_footer(footer: "pq.FileMetaData") -> None:
    """Raise ArrowInvalid if the counts contradict each other, since Arrow would allocate memory for missing rows.

    The columns are not inspected, because Arrow crashes if their part of a footer is damaged.
    """
    rows = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    if sum(rows) != footer.num_rows or min(rows, default=0) < 0:
        raise pa.ArrowInvalid("its numbers of rows contradict each other")


def _parquet_files(path: str | Path) -> list[Path]:
    place = path_of("path", path)
    with contextlib.suppress(RuntimeError):  # if there is no home folder
        place = place.expanduser()
    if place.is_dir():
        inside = [file for file in place.rglob("*") if file.suffix in PARQUET_ENDINGS and file.is_file()]
        hidden = [file for file in inside if any(part[0] in "._" for part in file.relative_to(place).parts)]
        files = sorted(set(inside) - set(hidden))
    elif has_magic(str(place)) and not place.exists():
        fixed = place
        while has_magic(str(fixed)):
            fixed = fixed.parent
        try:
            files = sorted(file for file in fixed.glob(str(place.relative_to(fixed))) if file.is_file())
        except (ValueError, OSError) as error:
            raise SourceError(f"no Parquet file at {path} ({_first_line(error)})", "correct the glob") from None
    else:
        files = [place] if place.is_file() else []
    if not files:
        raise SourceError(f"no Parquet file at {path}", "check the path; it may also be a folder or a glob")
    return files


def _folder_keys(files: list[Path]) -> list[str]:
    """Columns in the names of folders: `store=3/part.parquet`."""
    parts = [part for file in files for part in file.parts[:-1]]
    return list(dict.fromkeys(part.partition("=")[0] for part in parts if "=" in part))


def _decoded(schema: pa.Schema) -> pa.Schema:
    """Files may differ in whether a column is dictionary-encoded."""
    plain = [(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in schema]
    texts = (pa.types.is_large_string, pa.types.is_string_view)
    return pa.schema([(name, pa.string() if any(is_(t) for is_ in texts) else t) for name, t in plain])


def _encoded(schema: pa.Schema, names: list[str]) -> pa.Schema:
    return pa.schema([(f.name, pa.dictionary(pa.int32(), f.type) if f.name in names else f.type) for f in schema])


def _pandas_categoricals(schema: pa.Schema) -> list[str]:
    """Columns that pandas wrote as categorical; Parquet itself does not store this for numbers."""
    try:
        stored = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        return [str(c["name"]) for c in stored.get("columns", []) if c.get("pandas_type") == "categorical"]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return []  # the metadata of pandas are damaged; the types of the columns are used


def _as_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """DuckDB returns all dates with a time zone in UTC."""
    return column.cast(type_) if pa.types.is_timestamp(type_) and column.type != type_ else column


def _batch_rows(num_columns: int) -> int:
    return max(1024, BATCH_BYTES // (12 * max(1, num_columns)))


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


def _refuse_repeated(names: list[str], what: str) -> None:
    repeated = [name for i, name in enumerate(names) if name in names[:i]] if len(set(names)) < len(names) else []
    if repeated:
        raise SchemaError(f"{what} has two columns named {repeated[0]!r}; rename one of them")


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


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
