"""Where rows come from: a frame in memory or Parquet files, read as Arrow batches in original or in sorted order."""

import tempfile
from collections.abc import Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any, Protocol

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from mqcast.data.values import as_codes, as_microseconds, as_text
from mqcast.errors import ColumnTypeError, SchemaError, SourceError, TimeZoneError

BATCH_BYTES = 32 * 2**20


class Source(Protocol):
    """Rows of named columns, larger than memory or not."""

    num_rows: int
    names: list[str]

    def type_of(self, name: str) -> pa.DataType: ...

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows in their original order."""
        ...

    def sorted_batches(self, names: Sequence[str], id: str, time: str) -> Iterator[pa.RecordBatch]:
        """All rows by (id as text, time)."""
        ...


def open_source(frame: Any, what: str = "frame") -> Source:
    """A source from a pandas, polars or Arrow frame, or from Parquet: a path, a folder or a glob."""
    if isinstance(frame, str | Path):
        return ParquetSource(frame)
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    try:
        native = nw.from_native(frame)
    except TypeError:
        if not hasattr(frame, "__arrow_c_stream__"):
            raise ColumnTypeError(
                f"{what} is a {type(frame).__name__}; give a pandas, polars or Arrow table, or a Parquet path"
            ) from None
        native = nw.from_native(pa.table(frame))
    except nw.exceptions.DuplicateError as error:
        raise SchemaError(f"{what} has two columns of one name; rename one of them ({error})") from None
    return MemorySource(native.collect() if isinstance(native, nw.LazyFrame) else native, what)


class MemorySource:
    """A frame in memory; each column is converted to Arrow when it is first asked for."""

    def __init__(self, frame: nw.DataFrame[Any], what: str):
        self.what = what
        self._frame = frame
        self._columns: dict[str, pa.Array] = {}
        self.num_rows = len(frame)
        try:
            self.names = list(frame.columns)
            repeated = {name for name in self.names if self.names.count(name) > 1}
        except Exception as error:
            raise SchemaError(f"{what} has columns that cannot be named: {error}") from None
        if repeated:
            raise SchemaError(f"{what} has two columns named {sorted(map(str, repeated))[0]!r}; rename one of them")

    @property
    def index_names(self) -> list[str]:
        """Names of a pandas index: a frequent place for a column that seems to be missing."""
        return [str(name) for name in getattr(getattr(self._frame.to_native(), "index", None), "names", [])]

    def type_of(self, name: str) -> pa.DataType:
        return self._column(name).type

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        size = _batch_rows([self.type_of(name) for name in names])
        for start in range(0, self.num_rows, size):
            yield pa.RecordBatch.from_arrays([self._column(name).slice(start, size) for name in names], list(names))

    def sorted_batches(self, names: Sequence[str], id: str, time: str) -> Iterator[pa.RecordBatch]:
        order = _order(self._column(id), self._column(time))
        size = _batch_rows([self.type_of(name) for name in names])
        for start in range(0, self.num_rows, size):
            rows = pa.array(order[start : start + size])
            yield pa.RecordBatch.from_arrays([self._column(name).take(rows) for name in names], list(names))

    def _column(self, name: str) -> pa.Array:
        if name not in self._columns:
            series = self._frame.get_column(name)
            _refuse_mixed_zones(series, name)
            try:
                array = series.to_arrow()
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
                reason = str(error).splitlines()[0]
                raise ColumnTypeError(
                    f"{self.what}, column {name!r}: the values have no common type ({reason}); convert them to one"
                ) from None
            self._columns[name] = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        return self._columns[name]


class ParquetSource:
    """Parquet files, streamed; sorted out of core by DuckDB where they are not sorted already."""

    def __init__(self, path: str | Path):
        self.what = str(path)
        self._files = _parquet_files(path)
        schemas = [self._schema_of(file) for file in self._files]
        base = pads.dataset([str(file) for file in self._files], format="parquet", partitioning="hive")
        try:
            unified = pa.unify_schemas([base.schema, *schemas], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            self._refuse_different_zones(schemas)
            reason = str(error).splitlines()[0]
            raise ColumnTypeError(f"{path}: the files' columns differ in type ({reason}); write them alike") from None
        self._refuse_different_zones(schemas)
        self._data = base.replace_schema(unified)
        self.names = unified.names
        self.num_rows = base.count_rows()
        self.index_names: list[str] = []

    def type_of(self, name: str) -> pa.DataType:
        return self._data.schema.field(name).type

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        size = _batch_rows([self.type_of(name) for name in names])
        yield from self._data.to_batches(
            columns=list(names), batch_size=size, batch_readahead=1, fragment_readahead=1, use_threads=True
        )

    def sorted_batches(self, names: Sequence[str], id: str, time: str) -> Iterator[pa.RecordBatch]:
        import duckdb

        size = _batch_rows([self.type_of(name) for name in names])
        with tempfile.TemporaryDirectory(prefix="mqcast-sort-") as spill, duckdb.connect() as connection:
            connection.execute("SET temp_directory = ?", [spill])
            connection.execute("SET memory_limit = '1GB'")
            connection.execute("SET preserve_insertion_order = false")
            connection.execute("SET TimeZone = 'UTC'")
            columns = ", ".join(_quoted(name) for name in names)
            sorted_rows = connection.sql(
                f"SELECT {columns} FROM read_parquet(?, hive_partitioning = true, union_by_name = true) "
                f"ORDER BY CAST({_quoted(id)} AS VARCHAR), {_quoted(time)}",
                params=[[str(file) for file in self._files]],
            )
            yield from sorted_rows.to_arrow_reader(size)

    def _schema_of(self, file: Path) -> pa.Schema:
        try:
            return pq.read_schema(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(f"{file} is not a readable Parquet file ({error})", "write it again") from None

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


def _parquet_files(path: str | Path) -> list[Path]:
    text = str(path)
    if has_magic(text) and not Path(text).exists():
        fixed = Path(text)
        while has_magic(str(fixed)):
            fixed = fixed.parent
        files = sorted(file for file in fixed.glob(str(Path(text).relative_to(fixed))) if file.is_file())
    elif Path(text).is_dir():
        files = sorted(file for file in Path(text).rglob("*.parquet") if file.is_file())
    else:
        files = [Path(text)] if Path(text).is_file() else []
    if not files:
        raise SourceError(f"no Parquet file at {path}", "check the path; a folder or a glob of files will do too")
    return files


def _batch_rows(types: list[pa.DataType]) -> int:
    return max(1024, BATCH_BYTES // (12 * max(1, len(types))))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _order(ids: pa.Array, times: pa.Array) -> np.ndarray:
    codes, distinct = as_codes(ids)
    texts = as_text(distinct)
    rank = np.empty(len(texts), dtype=np.int64)
    rank[sorted(range(len(texts)), key=lambda i: (texts[i] or "").encode())] = np.arange(len(texts))
    ranks, moments = rank[codes], as_microseconds(times)
    span = int(moments.max()) - int(moments.min()) + 1
    if span * (len(texts) + 1) < 2**62:
        return np.argsort(ranks * span + (moments - moments.min()), kind="stable")
    return np.lexsort((moments, ranks))


def _refuse_mixed_zones(series: nw.Series[Any], name: str) -> None:
    """Arrow would take the first value's zone for all: look at a pandas object column before that."""
    native = series.to_native()
    if str(getattr(native, "dtype", "")) != "object":
        return
    zones = {str(value.tzinfo) for value in native if hasattr(value, "tzinfo")}
    if len(zones) > 1:
        raise TimeZoneError(
            f"dates of {len(zones)} time zones or offsets ({', '.join(sorted(zones)[:3])})",
            "convert them to one, for example with pd.to_datetime(column, utc=True)",
            column=name,
        )
