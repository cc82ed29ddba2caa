"""Raw files as they are downloaded, zipped or not; and what a loader makes of them."""

import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mqcast.data.schema import Schema
from mqcast.errors import SourceError

CHUNK_BYTES = 2**22


@dataclass(frozen=True)
class TaskFrames:
    """One row a series and step, by id and time; static columns and events in tables of their own.

    The target is in its own units, missing where nothing was recorded.
    """

    rows: pl.LazyFrame
    static: pl.DataFrame
    events: pl.DataFrame | None
    schema: Schema


@dataclass(frozen=True)
class Download:
    """A data set that has to be fetched by hand: where it is to be had, and how its files look."""

    source: str
    layout: str

    def error(self, problem: str) -> SourceError:
        return SourceError(problem, f"get it from {self.source}. Expected: {self.layout}")

    @contextmanager
    def file(self, folder: str | Path, name: str) -> Iterator[Path]:
        """A file of the data set: that in the folder, or that in a .zip there, unpacked as long as it is used."""
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
                found = [
                    member for member in members.namelist() if Path(member).name == name and "__MACOSX" not in member
                ]
            if found:
                with tempfile.TemporaryDirectory(prefix="mqcast-") as room:
                    self._unpack(archive, found[0], Path(room) / name)
                    yield Path(room) / name
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

    def facts(self, folder: str | Path, names: tuple[str, ...]) -> list[tuple[str, int, int]]:
        """Name, size and time of the files that a loader would read: they change when the data do."""
        folder = Path(folder)
        found = [path for path in (folder / name for name in names) if path.is_file()]
        found += sorted(folder.glob("*.zip")) if len(found) < len(names) else []
        return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found]

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
