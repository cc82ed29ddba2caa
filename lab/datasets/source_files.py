"""The files of a data set: where they come from, how they look, and readers that say what is wrong with them."""

import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from mqcast.errors import MissingColumnError, SourceError
from mqcast.settings import nearest

CHUNK_BYTES = 2**22


@dataclass(frozen=True)
class SourceFiles:
    """A data set that has to be fetched by hand: its name, where it can be had, and how its files look.

    `columns` describes the Parquet files: {file: {column: what it is}}; `layout` describes files of other kinds.
    """

    name: str
    source: str
    layout: str = ""
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def read(self, folder: str | Path, file: str, *where: pl.Expr) -> pl.DataFrame:
        """A Parquet file with its columns checked and categories as text; `where` selects rows."""
        path, expected = Path(folder) / file, self.columns[file]
        if not path.is_file():
            columns = ", ".join(f"{name} ({what})" for name, what in expected.items())
            raise SourceError(
                f"{self.name}: there is no {path}", f"write it with the columns {columns}; the data are {self.source}"
            )
        try:
            lazy = pl.scan_parquet(path)
            kinds = lazy.collect_schema()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise SourceError(f"{path} cannot be read as Parquet: {error}", "write it again") from None
        for name, what in expected.items():
            if name not in kinds:
                near = nearest(name, list(kinds))
                raise MissingColumnError(
                    f"{path} has no column {name!r} ({what}){near}; {self.name} is read with {', '.join(expected)}"
                )
        lazy = lazy.select([_as_text(name, kinds[name]) for name in expected])
        return lazy.filter(*where).collect() if where else lazy.collect()

    def error(self, problem: str) -> SourceError:
        return SourceError(problem, f"get it from {self.source}. Expected: {self.layout}")

    @contextmanager
    def file(self, folder: str | Path, name: str) -> Iterator[Path]:
        """A file of the folder, or of a .zip there, which is unpacked for as long as the file is used."""
        folder = Path(folder)
        if not folder.is_dir():
            raise self.error(f"no folder {folder}")
        if (path := folder / name).is_file():
            if not os.access(path, os.R_OK):
                raise self.error(f"{path} may not be read")
            yield path
            return
        for archive in sorted(folder.glob("*.zip")):
            with self._readable(archive), zipfile.ZipFile(archive) as members:
                matches = [
                    member for member in members.namelist() if Path(member).name == name and "__MACOSX" not in member
                ]
            if matches:
                with tempfile.TemporaryDirectory(prefix="mqcast-") as scratch:
                    self._unpack(archive, matches[0], Path(scratch) / name)
                    yield Path(scratch) / name
                return
        hint = f" ({name}.7z is there: unpack it with 7-Zip)" if (folder / f"{name}.7z").exists() else ""
        raise self.error(f"no {name} in {folder}, nor in a .zip there{hint}")

    def _unpack(self, archive: Path, member: str, path: Path) -> None:
        with self._readable(archive), zipfile.ZipFile(archive) as members, path.open("wb") as plain:
            shutil.copyfileobj(members.open(member), plain, CHUNK_BYTES)

    @contextmanager
    def _readable(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise self.error(f"{path} is damaged or cut off ({error})") from None

    def header(self, path: Path, separator: str) -> list[str]:
        """The names in a file's first line."""
        try:
            with path.open(encoding="utf-8-sig") as file:
                line = file.readline()
        except UnicodeDecodeError:
            raise self.error(f"{path.name} is not a text file") from None
        return [name.strip().strip('"') for name in line.rstrip("\r\n").split(separator)]

    def table(self, path: Path, columns: Mapping[str, type[pl.DataType]]) -> pl.LazyFrame:
        """Some columns of a .csv file with commas, as given types."""
        names = self.header(path, ",")
        if missing := [name for name in columns if name not in names]:
            raise self.error(f"{path.name} has no column {missing[0]!r}; its first line is {', '.join(names)[:80]!r}")
        types = {name: columns.get(name, pl.String) for name in names}
        return pl.scan_csv(path, schema_overrides=types, encoding="utf8-lossy").select(*columns)

    def collected(self, frame: pl.LazyFrame, path: Path) -> pl.DataFrame:
        with self.reading(path):
            return frame.collect(engine="streaming")

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """What polars cannot read is an error of the file."""
        try:
            yield
        except pl.exceptions.PolarsError as error:
            text = str(error).splitlines()[0][:150]
            raise self.error(f"{path.name} cannot be read as it should ({text})") from None


def file_stamps(folder: str | Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of the files in a folder: they change when the data do."""
    paths = sorted(path for path in Path(folder).glob("*") if path.is_file())
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def _as_text(name: str, kind: pl.DataType) -> pl.Expr:
    return pl.col(name).cast(pl.String) if isinstance(kind, pl.Categorical | pl.Enum) else pl.col(name)
