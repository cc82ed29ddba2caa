"""The input gate: every frame of a user is read here.

There are two passes over the rows. The first, in the original order, finds the ids, the categories and whether the rows
are sorted. The second, in the order (id, time), checks every value and writes it to the arrays of the panel
(`mqcast.data.writer`). Memory holds the arrays, which may be files, and one batch of rows.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NoReturn

import numpy as np
import pyarrow as pa

from mqcast.data.axis import TimeAxis
from mqcast.data.frequency import show_time
from mqcast.data.parallel import ordered_map
from mqcast.data.schema import Schema, is_numeric, is_text, plain_type, words_for
from mqcast.data.source import FrameLike, Source, open_source
from mqcast.data.unplanned import without_unplanned
from mqcast.data.values import FLAG_OF, as_codes, as_microseconds, as_text, folded, words_of_flag
from mqcast.data.writer import Allocate, ColumnSources, Contents, Encoding, Vocabularies, Writer
from mqcast.errors import (
    ColumnTypeError,
    EmptyFrameError,
    KnownValuesError,
    MissingColumnError,
    MissingKeyError,
    MixedColumnWarning,
    SchemaError,
    UnseenCategoryWarning,
    quoted,
    warn,
)
from mqcast.settings import nearest

MOST_TIMES = 2_000_000


def read_frame(
    frame: FrameLike | Source,
    schema: Schema,
    static: FrameLike | None = None,
    events: FrameLike | None = None,
    *,
    allocate: Allocate,
    like: Encoding | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Contents:
    """Validate, sort, convert and pack a frame; with `like`, it is read in the same way as an earlier frame.

    `on_progress(rows written, total rows)` is called from time to time. Rows after the last sale with an empty known
    column are no part of the plan.
    """
    source = open_source(frame)
    side = {
        "static": None if static is None else open_source(static, "the static table"),
        "events": None if events is None else open_source(events, "the event table"),
    }
    options = {"allocate": allocate, "like": like, "on_progress": on_progress}
    try:
        return _read(source, schema, side, **options)
    except KnownValuesError:
        if (planned := without_unplanned(source, schema)) is None:
            raise
    return _read(planned, schema, side, **options)


def _read(
    source: Source,
    schema: Schema,
    side: dict[str, Source | None],
    *,
    allocate: Allocate,
    like: Encoding | None,
    on_progress: Callable[[int, int], None] | None,
) -> Contents:
    if source.num_rows == 0:
        raise EmptyFrameError(f"{source.what} has no rows", "give at least one row per series")
    column_sources = _find_columns(source, schema, side)
    _check_keys(schema, source, side)
    types = {name: column_sources[name].type_of(name) for name in schema.covariates()}
    types |= {schema.id: pa.string()}
    if like is None:
        _warn_of_mixed(schema, column_sources)
    said, schema = schema, (like.schema if like else schema).resolved(types)
    scan = _scan(source, schema, column_sources)
    if like is None:
        schema = _with_flags(schema, said, scan.counts)
        zone = getattr(source.type_of(schema.time), "tz", None)
        axis = TimeAxis.of(schema.freq, zone, *scan.times)
        encoding = Encoding(schema.replace(freq=str(axis.frequency)), axis, scan.vocabularies())
        is_inferred = schema.freq is None
    else:
        encoding, is_inferred = like, False
        _warn_of_unseen(scan.counts, like)
    writer = Writer(source, side, column_sources, encoding, scan.ids, allocate, is_new=like is None)
    columns = writer.frame_columns
    in_order = source.batches(columns) if scan.is_sorted else source.sorted_batches(columns, schema.id, schema.time)
    for rows in ordered_map(writer.check, (batch for batch in in_order if batch.num_rows)):
        writer.add(rows)
        if on_progress:
            on_progress(writer.row, source.num_rows)
    return writer.finish(is_frequency_inferred=is_inferred)


def _find_columns(source: Source, schema: Schema, side: dict[str, Source | None]) -> ColumnSources:
    """The source of each column: the frame, or the side table of its role."""
    column_sources: ColumnSources = {}
    for role, name in schema.roles():
        table = side.get(role)
        if name in column_sources:  # the id as a static category
            continue
        if table is not None and (role == "events" or name in table.names):
            column_sources[name] = table
        else:
            column_sources[name] = source
        if name not in column_sources[name].names:
            expected = column_sources[name]
            places = [expected] + ([table] if table is not None and table is not expected else [])
            _refuse_missing(role, name, places)
    for role, key in (("static", schema.id), ("events", schema.time)):
        if (table := side[role]) is None:
            continue
        if key not in table.names:
            _refuse_missing("key", key, [table])
        if not getattr(schema, role):
            others = _some([name for name in table.names if name != key])
            raise SchemaError(f"the schema uses no column of the {role} table; list some of {others} in {role}=")
    return column_sources


def _refuse_missing(role: str, name: str, places: list[Source]) -> NoReturn:
    available = [column for place in places for column in place.names]
    in_index = any(name in place.index_names for place in places)
    hint = " (it is in the index: call reset_index() first)" if in_index else nearest(name, available)
    where = " or ".join(place.what for place in places)
    raise MissingColumnError(f"{role} column {name!r} is not in {where}{hint}; there are {_some(available)}")


def _check_keys(schema: Schema, source: Source, side: dict[str, Source | None]) -> None:
    for table, what in ((source, ""), (side["static"], "static table, ")):
        if table is None:
            continue
        kind = table.type_of(schema.id)
        if not is_text(kind) and not pa.types.is_integer(plain_type(kind)):
            raise ColumnTypeError(
                f"{what}id column {schema.id!r} holds {words_for(kind)}; make it text or whole numbers"
            )
    for table, what in ((source, ""), (side["events"], "event table, ")):
        if table is None:
            continue
        kind = table.type_of(schema.time)
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            odd = f" ({where})" if (where := table.oddity(schema.time)) else ""
            hint = "parse it first, for example with pd.to_datetime" if is_text(kind) else "make it a date or timestamp"
            hint = "write dates as 2024-01-31" if odd else hint
            hint += "; CSV files may have 2024-05 or 2024-W05" if pa.types.is_integer(kind) else ""
            hint = "convert it with .dt.to_timestamp()" if "period" in str(kind) else hint
            raise ColumnTypeError(f"{what}time column {schema.time!r} holds {words_for(kind)}{odd}, not dates; {hint}")
    for role, name, remedy in (("target", schema.target, "numbers"), ("observed", schema.observed, "True and False")):
        if (
            name is not None
            and not is_numeric(kind := source.type_of(name))
            and not (role == "observed" and is_text(kind))
        ):
            example = _first_words(source, schema, name) if is_text(kind) else ""
            raise ColumnTypeError(f"{role} column {name!r} holds {words_for(kind)}{example}; convert it to {remedy}")


def _first_words(source: Source, schema: Schema, name: str) -> str:
    """The place of the first text that is not a number, if a column of numbers was read as text; empty if none."""
    if odd := source.oddity(name):
        return f" ({odd})"
    before = 0
    for batch in source.batches([schema.id, schema.time, name]):
        for row, text in enumerate(batch.column(name).to_pylist()):
            if text is not None and not _is_number(text):
                series, time = (as_text(batch.column(key).slice(row, 1))[0] for key in (schema.id, schema.time))
                at = "" if time is None else f" at {time.removesuffix(' 00:00:00')},"
                return f" (series {series!r},{at} row {before + row}: {text!r})"
        before += batch.num_rows
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


@dataclass
class _Scan:
    """The result of the first pass: sorted ids and distinct times, and the counts of each time and category."""

    ids: list[str]
    times: tuple[np.ndarray, np.ndarray]
    counts: dict[str, Counter[str]]
    is_sorted: bool

    def vocabularies(self) -> Vocabularies:
        return {name: tuple(sorted(counted, key=str.encode)) for name, counted in self.counts.items()}


def _scan(source: Source, schema: Schema, column_sources: ColumnSources) -> _Scan:
    categories = [name for name, kind in schema.kinds.items() if kind == "category"]
    names = [name for name in categories if column_sources[name] is source and name != schema.id]
    counts: dict[str, Counter[str]] = {name: Counter() for name in categories}
    ids: set[str] = set()
    times = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    last: tuple[bytes, int] | None = None
    is_sorted, row = True, 0
    batches = (batch for batch in source.batches([schema.id, schema.time, *names]) if batch.num_rows)
    for look in ordered_map(partial(_look, schema, names), batches):
        if look.missing_key is not None:
            column, at, known = look.missing_key
            problem = f"{source.place(row + at)} has no value"
            raise MissingKeyError(problem, "fill it or drop the row", column=column, **known)
        ids |= look.ids
        times = _merged_times(times, look.times)
        is_sorted = is_sorted and look.is_sorted and (last is None or last <= look.first)
        last = look.last
        for name in names:
            counts[name].update(look.counts[name])
        row += look.num_rows
    for name in set(categories) - {*names, schema.id}:
        key = [schema.id] if name in schema.static else []
        for batch in column_sources[name].batches([name, *key]):
            rows = [text in ids for text in as_text(batch.column(schema.id))] if key else None
            counts[name].update(_count(batch.column(name).filter(rows) if rows else batch.column(name)))
    if schema.id in categories:
        counts[schema.id].update(ids)
    for name in set(schema.fill) & set(categories):
        counts[name].update([str(schema.fill[name])])
    return _Scan(sorted(ids, key=str.encode), times, counts, is_sorted)


@dataclass
class _Look:
    """The same for one batch."""

    num_rows: int
    missing_key: tuple[str, int, dict[str, str]] | None = None
    ids: set[str] = field(default_factory=set)
    times: tuple[np.ndarray, np.ndarray] = field(default_factory=lambda: (np.zeros(0, int), np.zeros(0, int)))
    is_sorted: bool = True
    first: tuple[bytes, int] = (b"", 0)
    last: tuple[bytes, int] = (b"", 0)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)


def _look(schema: Schema, names: list[str], batch: pa.RecordBatch) -> _Look:
    codes, distinct = as_codes(batch.column(schema.id))
    texts = [text or "" for text in as_text(distinct)]
    if (missing := _missing_key(schema, batch, codes, texts)) is not None:
        return _Look(batch.num_rows, missing)
    times = as_microseconds(batch.column(schema.time))
    time_counts = batch.column(schema.time).value_counts()
    return _Look(
        num_rows=batch.num_rows,
        ids={texts[code] for code in np.flatnonzero(np.bincount(codes, minlength=len(texts)))},
        times=(
            as_microseconds(time_counts.field("values")),
            time_counts.field("counts").to_numpy(zero_copy_only=False),
        ),
        is_sorted=_is_sorted(codes, texts, times),
        first=(texts[codes[0]].encode(), int(times[0])),
        last=(texts[codes[-1]].encode(), int(times[-1])),
        counts={name: _count(batch.column(name)) for name in names},
    )


def _is_sorted(codes: np.ndarray, texts: list[str], times: np.ndarray) -> bool:
    changes = codes[1:] != codes[:-1]
    begins = np.flatnonzero(np.append(True, changes))
    if len(begins) > len(texts):  # an id occurs again after others
        return False
    keys = [texts[code].encode() for code in codes[begins]]
    return all(a < b for a, b in pairwise(keys)) and bool(np.all(changes | (times[1:] >= times[:-1])))


def _merged_times(*parts: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct times and their counts; if there are very many, only the earliest, which show the frequency as well."""
    times, counts = (np.concatenate([part[i] for part in parts]) for i in range(2))
    distinct, index = np.unique(times, return_inverse=True)
    return distinct[:MOST_TIMES], np.bincount(index, counts).astype(np.int64)[:MOST_TIMES]


def _missing_key(
    schema: Schema, batch: pa.RecordBatch, codes: np.ndarray, texts: list[str]
) -> tuple[str, int, dict[str, str]] | None:
    """The column and row of the first missing id or date, and what is known about that row."""
    times = batch.column(schema.time)
    if (codes < 0).any():
        row = int(np.flatnonzero(codes < 0)[0])
        known = {} if times[row].as_py() is None else {"time": show_time(int(as_microseconds(times.slice(row, 1))[0]))}
        return schema.id, row, known
    if times.null_count:
        row = int(np.flatnonzero(times.is_null().to_numpy(zero_copy_only=False))[0])
        return schema.time, row, {"series": texts[codes[row]]}
    return None


def _count(column: pa.Array) -> dict[str, int]:
    codes, distinct = as_codes(column)
    numbers = np.bincount(codes[codes >= 0], minlength=len(distinct))
    counts: Counter[str] = Counter()
    for text, number in zip(as_text(distinct), numbers, strict=True):
        if text is not None and number > 0:
            counts[text] += int(number)
    return counts


def _with_flags(schema: Schema, said: Schema, counts: dict[str, Counter[str]]) -> Schema:
    """Texts that say yes and no become flags, unless their kind was said; static ones stay categories, for slices."""
    flags = [
        name
        for name in (*schema.past, *schema.known, *schema.events)
        if name in counts and name not in said.kinds and words_of_flag(counts[name])
    ]
    for name in flags:
        del counts[name]
    fill = {name: FLAG_OF[folded(str(value))] if name in flags else value for name, value in schema.fill.items()}
    return schema.replace(kinds=schema.kinds | dict.fromkeys(flags, "flag"), fill=fill) if flags else schema


def _warn_of_mixed(schema: Schema, column_sources: ColumnSources) -> None:
    """Warn of columns of CSV files that are categories only because of a text among numbers."""
    for name in schema.covariates():
        if name not in schema.kinds and column_sources[name].is_mixed(name):
            warn(
                f"column {quoted(name)} is read as categories, since it has a text among other values "
                f"({column_sources[name].oddity(name)}); correct it, or say kinds={{{quoted(name)}: 'category'}}",
                MixedColumnWarning,
            )


def _warn_of_unseen(counts: dict[str, Counter[str]], like: Encoding) -> None:
    """Give one warning that counts the categories not seen in training."""
    unseen = []
    for name, counted in counts.items():
        if new := sorted(set(counted) - set(like.vocabularies[name])):
            number = sum(counted[text] for text in new)
            unseen.append(f"{name!r}: {len(new)} new in {number} rows ({', '.join(map(repr, new[:3]))})")
    if unseen:
        text = f"categories not seen in training are treated as unknown: {'; '.join(unseen)}"
        warnings.warn(text, UnseenCategoryWarning, stacklevel=4)
