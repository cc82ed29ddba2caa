"""Ids of several columns: `store+item` is the text of both, `1/soap`."""

import polars as pl

from mqcast.data.source import Source, open_source, read_table
from mqcast.errors import DataError

PLUS, BETWEEN = "+", "/"


def joined_name(id: str | None) -> str | None:
    """store,item → store+item, the name of the joined column."""
    return id if id is None else PLUS.join(part.strip() for part in id.split(","))


def id_columns(id: str, names: list[str]) -> list[str]:
    """The columns that an id such as `store+item` is made of; none if it is the name of a column."""
    parts = id.split(PLUS)
    return parts if id not in names and len(parts) > 1 and all(part in names for part in parts) else []


def with_joined_id(source: Source, id: str) -> Source:
    """The source with a column of the joined id, in memory; as it is if the id is one column.

    The columns that are joined become text: they name things.
    """
    parts = id_columns(id, source.names)
    if not parts:
        return source
    texts = [pl.col(name).cast(pl.String) for name in parts]
    rows = read_table(source).with_columns(texts).with_columns(pl.concat_str(parts, separator=BETWEEN).alias(id))
    if (bare := rows[id].null_count()) or rows.select(parts).n_unique() != rows[id].n_unique():
        what = f"{bare} rows lack a part of the id" if bare else f"two series have the same id, joined by {BETWEEN!r}"
        raise DataError(what, f"fill or rename values of {', '.join(parts)}, or join them yourself", column=id)
    return open_source(rows, source.what, made_from=source)
