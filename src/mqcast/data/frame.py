"""The input gate: the one way in for a user's frame.

Two passes over the rows. The first, in the original order, finds the ids, the categories and whether the rows are
sorted. The second, in the order (id, time), checks every value and writes it to its place in the panel's arrays
(`mqcast.data.writer`). Memory is that of the arrays, which may be files, and of one batch of rows.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mqcast.config import nearest
from mqcast.data.schema import Schema, is_number, is_text
from mqcast.data.source import Source, open_source
from mqcast.data.values import as_codes, as_microseconds, as_text
from mqcast.data.writer import Allocate, Contents, Encoding, Homes, Vocabularies, Writer
from mqcast.errors import (
    ColumnTypeError,
    EmptyFrameError,
    MissingColumnError,
    MissingKeyError,
    SchemaError,
    UnseenCategoryWarning,
)


def read_frame(
    frame: Any,
    schema: Schema,
    static: Any = None,
    events: Any = None,
    *,
    allocate: Allocate,
    like: Encoding | None = None,
) -> Contents:
    """Validate, sort, type and pack a frame; `like` has it read as an earlier frame was."""
    source = open_source(frame)
    side = {
        "static": None if static is None else open_source(static, "static table"),
        "events": None if events is None else open_source(events, "event table"),
    }
    homes = _find_columns(source, schema, side)
    _check_keys(schema, source, side)
    schema = _resolved(schema, homes, like)
    if source.num_rows == 0:
        raise EmptyFrameError("the frame has no row", "give at least one row a series")
    scan = _scan(source, schema, homes)
    vocabularies = _vocabularies(scan.counts, like)
    axis = like.axis if like else None
    writer = Writer(source, side, homes, schema, axis, vocabularies, scan.ids, allocate, is_new=like is None)
    columns = writer.frame_columns
    in_order = source.batches(columns) if scan.is_sorted else source.sorted_batches(columns, schema.id, schema.time)
    for batch in in_order:
        writer.add(batch)
    return writer.finish()


def _find_columns(source: Source, schema: Schema, side: dict[str, Source | None]) -> Homes:
    """Which source holds each column: the frame, or the side table of its role."""
    homes: Homes = {}
    for role, name in schema.roles():
        table = side.get(role)
        if table is not None and (role == "events" or name in table.names):
            homes[name] = table
        else:
            homes[name] = source
        if name not in homes[name].names:
            available = homes[name].names
            where = "the frame" if homes[name] is source else f"the {role} table"
            in_index = name in getattr(source, "index_names", ())
            hint = " (it is in the index: call reset_index() first)" if in_index else nearest(name, available)
            raise MissingColumnError(f"{role} column {name!r} is not in {where}{hint}; there are {_some(available)}")
    for role, key in (("static", schema.id), ("events", schema.time)):
        if (table := side[role]) is None:
            continue
        if key not in table.names:
            hint = nearest(key, table.names)
            raise MissingColumnError(f"the {role} table is keyed by {key!r}, which it does not have{hint}; rename it")
        if not getattr(schema, role):
            others = _some([name for name in table.names if name != key])
            raise SchemaError(f"the schema uses no column of the {role} table; name some of {others} in {role}=")
    return homes


def _check_keys(schema: Schema, source: Source, side: dict[str, Source | None]) -> None:
    for table, what in ((source, ""), (side["static"], "static table, ")):
        if table is None:
            continue
        kind = table.type_of(schema.id)
        if not is_text(kind) and not pa.types.is_integer(getattr(kind, "value_type", kind)):
            raise ColumnTypeError(f"{what}id column {schema.id!r} is {kind}; make it text or whole numbers")
    for table, what in ((source, ""), (side["events"], "event table, ")):
        if table is None:
            continue
        kind = table.type_of(schema.time)
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            hint = "parse it first, for example with pd.to_datetime" if is_text(kind) else "make it a date or timestamp"
            raise ColumnTypeError(f"{what}time column {schema.time!r} is {kind}, not dates; {hint}")
    for role, name in (("target", schema.target), ("observed", schema.observed)):
        if name is not None and not _is_numeric(source.type_of(name)):
            raise ColumnTypeError(f"{role} column {name!r} is {source.type_of(name)}; convert it to numbers")


def _resolved(schema: Schema, homes: Homes, like: Encoding | None) -> Schema:
    types = {name: homes[name].type_of(name) for name in schema.covariates()}
    if like is None:
        return schema.resolved(types)
    for name, kind in like.schema.kinds.items():
        if kind != "category" and not _is_numeric(types[name]):
            raise ColumnTypeError(f"column {name!r} was a {kind} in training and is {types[name]} now; convert it")
    return like.schema


def _is_numeric(kind: pa.DataType) -> bool:
    return is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


@dataclass
class _Scan:
    """What the first pass found: ids in their order, and how often each category occurs."""

    ids: list[str]
    counts: dict[str, dict[str, int]]
    is_sorted: bool


def _scan(source: Source, schema: Schema, homes: Homes) -> _Scan:
    categories = [name for name, kind in schema.kinds.items() if kind == "category"]
    names = [name for name in categories if homes[name] is source]
    counts: dict[str, dict[str, int]] = {name: {} for name in categories}
    ids: set[str] = set()
    last: tuple[bytes, int] | None = None
    is_sorted, row = True, 0
    for batch in source.batches([schema.id, schema.time, *names]):
        if batch.num_rows == 0:
            continue
        for key in (schema.id, schema.time):
            _refuse_missing_keys(batch.column(key), key, row)
        codes, distinct = as_codes(batch.column(schema.id))
        texts = [text or "" for text in as_text(distinct)]
        ids.update(texts[code] for code in np.unique(codes))
        if is_sorted:
            is_sorted, last = _follows(codes, texts, as_microseconds(batch.column(schema.time)), last)
        for name in names:
            _count(batch.column(name), counts[name])
        row += batch.num_rows
    for name in set(categories) - set(names):
        for batch in homes[name].batches([name]):
            _count(batch.column(name), counts[name])
    return _Scan(sorted(ids, key=str.encode), counts, is_sorted)


def _refuse_missing_keys(column: pa.Array, key: str, row: int) -> None:
    if column.null_count:
        first = row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise MissingKeyError(f"row {first} has no value", "fill it or drop the row", column=key)


def _follows(
    codes: np.ndarray, texts: list[str], times: np.ndarray, last: tuple[bytes, int] | None
) -> tuple[bool, tuple[bytes, int]]:
    """Whether a batch is sorted and follows the row `last`, and the batch's own last row."""
    keys = [text.encode() for text in texts]
    rank = np.empty(len(keys), dtype=np.int64)
    rank[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
    change = np.diff(rank[codes])
    in_order = bool(np.all((change > 0) | ((change == 0) & (np.diff(times) >= 0))))
    first = (keys[codes[0]], int(times[0]))
    return in_order and (last is None or last <= first), (keys[codes[-1]], int(times[-1]))


def _count(column: pa.Array, counts: dict[str, int]) -> None:
    codes, distinct = as_codes(column)
    found = np.bincount(codes[codes >= 0], minlength=len(distinct))
    for text, number in zip(as_text(distinct), found, strict=True):
        if text is not None and number > 0:
            counts[text] = counts.get(text, 0) + int(number)


def _vocabularies(counts: dict[str, dict[str, int]], like: Encoding | None) -> Vocabularies:
    """The categories' values in order; those of an earlier frame stay, and what it did not have is counted."""
    if like is None:
        return {name: tuple(sorted(found, key=str.encode)) for name, found in counts.items()}
    unseen = []
    for name, found in counts.items():
        if new := sorted(set(found) - set(like.vocabularies[name])):
            number = sum(found[text] for text in new)
            unseen.append(f"{name!r}: {len(new)} new in {number} rows ({', '.join(map(repr, new[:3]))})")
    if unseen:
        text = f"categories that training did not see are read as unknown: {'; '.join(unseen)}"
        warnings.warn(text, UnseenCategoryWarning, stacklevel=4)
    return like.vocabularies
