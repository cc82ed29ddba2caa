"""Results in the library and with the types of the user's frame."""

from dataclasses import asdict, dataclass
from typing import Any

import narwhals as nw
import polars as pl
import pyarrow as pa

from mqcast.data.source import Source, open_source


@dataclass(frozen=True)
class FrameTypes:
    """The library of a user's frame, and the types of its ids and dates."""

    library: str = "polars"
    id_type: str = "text"
    time_type: str = "us"  # or "date", "ms", "ns"

    @classmethod
    def of(cls, frame: Any, id: str, time: str, source: Source | None = None) -> "FrameTypes":
        """source: the frame, if it is already open."""
        source = open_source(frame) if source is None else source
        try:
            kind = nw.from_native(frame).implementation
            library = "pandas" if kind.is_pandas_like() else "pyarrow" if kind.is_pyarrow() else "polars"
        except TypeError:
            library = "polars"
        id_type, time_type = (source.type_of(name) if name in source.names else pa.null() for name in (id, time))
        plain = id_type.value_type if pa.types.is_dictionary(id_type) else id_type
        unit = "date" if pa.types.is_date(time_type) else getattr(time_type, "unit", "us")
        return cls(library, "integer" if pa.types.is_integer(plain) else "text", {"s": "ms"}.get(unit, unit))

    def facts(self) -> dict[str, str]:
        return asdict(self)

    def to_native(self, table: pl.DataFrame, id: str | None = None) -> Any:
        """The table in the user's library, with ids and dates of the user's types."""
        unit: Any = self.time_type if self.time_type in ("ms", "us", "ns") else "us"
        as_dates = self.time_type == "date" and self.library != "pandas"
        dates = {name: kind.time_unit for name, kind in table.schema.items() if isinstance(kind, pl.Datetime)}
        if dates and as_dates:
            table = table.with_columns(pl.col(list(dates)).cast(pl.Date))
        elif others := [name for name in dates if dates[name] != unit]:
            table = table.with_columns(pl.col(others).dt.cast_time_unit(unit))
        if self.id_type == "integer" and id in table.columns:
            table = table.with_columns(pl.col(id).cast(pl.Int64))
        if self.library == "pandas":
            return table.to_pandas()
        return table.to_arrow() if self.library == "pyarrow" else table
