"""Parquet files as a source of rows: streamed, and sorted on disk if need be."""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mqcast.arguments import path_of
from mqcast.errors import ColumnTypeError, SchemaError, SourceError, TimeZoneError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BATCH_BYTES = 32 * 2**20
SORT_MEMORY = "512MB"
PARQUET_ENDINGS = (".parquet", ".pq", ".parq")


class TypedRows:
    """Rows whose columns had types when they were read; those of CSV files are found."""

    what: str

    def place(self, row: int) -> str:
        return f"row {row} of {self.what}"

    def oddity(self, name: str) -> str:
        return ""

    def is_mixed(self, name: str) -> bool:
        return False


class ParquetSource(TypedRows):
    """Parquet files, streamed; if they are not sorted, DuckDB sorts them on disk."""

    def __init__(self, files: Sequence[Path], what: str):
        import pyarrow.dataset as pads  # slow to import

        self.what = what
        self.index_names: list[str] = []
        self._files = list(files)
        schemas = [self._schema_of(file) for file in self._files]
        self._refuse_different_zones(schemas)
        try:
            unified = pa.unify_schemas([_decoded(schema) for schema in schemas], promote_options="permissive")
        except pa.ArrowException as error:
            reason = first_line(error)
            raise ColumnTypeError(
                f"{what}: the columns of the files have different types ({reason}); write them with the same types"
            ) from None
        keys = [key for key in _folder_keys(self._files) if key not in unified.names]
        by_folder = pa.schema([(key, pa.string()) for key in keys])
        paths, hive = [str(file) for file in self._files], pads.partitioning(by_folder, flavor="hive")
        unified = pa.unify_schemas([unified, by_folder])
        texts = [field.name for field in unified if pa.types.is_string(field.type)]
        # Text stays as compact as it is in the file; whole row groups are not read ahead.
        encoded = pads.ParquetFileFormat(dictionary_columns=texts, pre_buffer=False, use_buffered_stream=True)
        self._data = pads.dataset(paths, schema=_encoded(unified, texts), format=encoded, partitioning=hive)
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
        settings = {"batch_size": batch_rows(len(names)), "batch_readahead": 1, "fragment_readahead": 1}
        try:
            num_rows = 0
            for batch in self._data.to_batches(columns=list(names), **settings):
                batch.validate(full=True)  # Parquet files may have invalid text, and codes without a value
                num_rows += batch.num_rows
                yield batch
            if num_rows != self.num_rows:
                raise pa.ArrowInvalid(f"{num_rows:,} rows of {', '.join(names[:3])}, not {self.num_rows:,}")
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{self.what} cannot be read ({first_line(error)})", "write it again") from None

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
                for batch in connection.sql(query).to_arrow_reader(batch_rows(len(names))):
                    columns = [_as_type(column, type_) for column, type_ in zip(batch.columns, types, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, list(names))
            except duckdb.Error as error:
                raise SourceError(
                    f"{self.what} cannot be sorted ({first_line(error)})", "fix this and try again"
                ) from None

    def _schema_of(self, file: Path) -> pa.Schema:
        import pyarrow.parquet as pq  # slow to import

        try:
            footer = pq.read_metadata(file)
            _check_footer(footer)
            schema = footer.schema.to_arrow_schema()
            refuse_repeated(schema.names, str(file))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            remedy = "write it again, or name a CSV file .csv"
            raise SourceError(f"{file} is not a readable Parquet file ({first_line(error)})", remedy) from None
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


def files_at(path: str | Path, endings: tuple[str, ...]) -> list[Path]:
    """The files at a path, which may be a glob, or a folder: then those with one of the endings."""
    place = path_of("path", path)
    with contextlib.suppress(RuntimeError):  # if there is no home folder
        place = place.expanduser()
    if place.is_dir():
        inside = [file for file in place.rglob("*") if file.name.lower().endswith(endings) and file.is_file()]
        hidden = [file for file in inside if any(part[0] in "._" for part in file.relative_to(place).parts)]
        files = sorted(set(inside) - set(hidden))
    elif has_magic(str(place)) and not place.exists():
        fixed = place
        while has_magic(str(fixed)):
            fixed = fixed.parent
        try:
            files = sorted(file for file in fixed.glob(str(place.relative_to(fixed))) if file.is_file())
        except (ValueError, OSError) as error:
            raise SourceError(f"no Parquet or CSV file at {path} ({first_line(error)})", "correct the glob") from None
    else:
        files = [place] if place.is_file() else []
    if not files:
        raise SourceError(f"no Parquet or CSV file at {path}", "check the path; it may also be a folder or a glob")
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


def batch_rows(num_columns: int) -> int:
    return max(1024, BATCH_BYTES // (12 * max(1, num_columns)))


def refuse_repeated(names: list[str], what: str) -> None:
    repeated = [name for i, name in enumerate(names) if name in names[:i]] if len(set(names)) < len(names) else []
    if repeated:
        raise SchemaError(f"{what} has two columns named {repeated[0]!r}; rename one of them")


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
