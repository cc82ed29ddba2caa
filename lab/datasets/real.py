"""Data sets on disk, as frames with a schema: what their readers share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mqcast.data.panel import Panel
from mqcast.data.schema import Schema
from mqcast.errors import MissingColumnError, SourceError
from mqcast.settings import nearest


@dataclass(frozen=True)
class Loaded:
    """Rows of sales with what is known ahead, tables with a row a series and a row a date, and what they mean.

    `promotions` are the known flags that say that one runs, by kind.
    """

    rows: pl.DataFrame
    schema: Schema
    static: pl.DataFrame | None = None
    events: pl.DataFrame | None = None
    promotions: tuple[str, ...] = ()

    def panel(self) -> Panel:
        return Panel.from_frame(self.rows, self.schema, self.static, self.events)


@dataclass(frozen=True)
class Origin:
    """Where a data set comes from, and the layout of its files: {file: {column: what it is}}."""

    name: str
    source: str
    files: Mapping[str, Mapping[str, str]]

    def read(self, folder: str | Path, file: str, *where: pl.Expr) -> pl.DataFrame:
        """A Parquet file of the folder, its columns checked, ids and categories as text; perhaps some rows alone."""
        path, wanted = Path(folder) / file, self.files[file]
        if not path.is_file():
            columns = ", ".join(f"{name} ({what})" for name, what in wanted.items())
            raise SourceError(
                f"{self.name}: there is no {path}", f"write it with the columns {columns}; the data are {self.source}"
            )
        try:
            lazy = pl.scan_parquet(path)
            found = lazy.collect_schema()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise SourceError(f"{path} cannot be read as Parquet: {error}", "write it again") from None
        for name, what in wanted.items():
            if name not in found:
                near = nearest(name, list(found))
                raise MissingColumnError(
                    f"{path} has no column {name!r} ({what}){near}; {self.name} is read with {', '.join(wanted)}"
                )
        lazy = lazy.select([_text(name, found[name]) for name in wanted])
        return lazy.filter(*where).collect() if where else lazy.collect()


def _text(name: str, kind: pl.DataType) -> pl.Expr:
    return pl.col(name).cast(pl.String) if isinstance(kind, pl.Categorical | pl.Enum) else pl.col(name)
