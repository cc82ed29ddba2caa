"""New history, new items and other plans, as frames that are read in the same way as the fitted one."""

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from mqcast.data.axis import wall_times, zone_of_polars
from mqcast.data.export import Frames, frames_of
from mqcast.data.joined import with_joined_id
from mqcast.data.panel import Panel
from mqcast.data.schema import Schema, is_numeric, is_text, plain_type, words_for
from mqcast.data.source import Source, open_source, places_of
from mqcast.data.values import Where, as_codes, as_microseconds, as_text, flags
from mqcast.errors import (
    ColumnTypeError,
    DataError,
    DuplicateRowsError,
    MissingColumnError,
    MissingKeyError,
    SeriesLeftOutWarning,
    quoted,
    warn,
)


def gathered(schema: Schema, fitted: Panel | None, frame: Any, static: Any, events: Any) -> Frames:
    """New tables, each completed by the fitted one, if there is one: rows, attributes of items, events."""
    known = Frames(pl.DataFrame(), None, None) if fitted is None else frames_of(fitted)
    rows = known.rows if frame is None else _rows(frame, schema)
    attributes = [name for name in schema.static if name != schema.id]
    of_rows = _drawn(rows, [schema.id], attributes)
    of_events = _drawn(rows, [schema.time], list(schema.events))
    rows = rows.drop([name for name in (*attributes, *schema.events) if name in rows.columns])
    tables = [_table(static, [schema.id, *attributes], schema, "the static table"), of_rows, known.static]
    dates = [_table(events, [schema.time, *schema.events], schema, "the event table"), of_events, known.events]
    return Frames(
        rows,
        _first_of(tables, schema.id) if attributes else None,
        _first_of(dates, schema.time) if schema.events else None,
    )


def with_future(frames: Frames, future: Any, schema: Schema, fitted: Panel | None = None) -> Frames:
    """The rows up to the last sale of each series, and the rows of the plan after it.

    A plan may have series of the `fitted` data that are not among the rows, and so not asked for; they are passed over.
    """
    rows = frames.rows
    zone = rows.schema[schema.time]
    plan = _of_asked(_plan(future, schema), frames, schema, fitted).with_columns(pl.col(schema.time).cast(zone))
    ends = _free_name("last sale", rows.columns)
    last = rows.filter(pl.col(schema.target).is_not_null()).group_by(schema.id).agg(pl.max(schema.time).alias(ends))
    start = rows[schema.time].min() if last.is_empty() else last[ends].max()
    plan = plan.join(last, on=schema.id, how="left").filter(
        (pl.col(schema.time) > pl.col(ends)).fill_null(pl.col(schema.time) > start)
    )
    if plan.is_empty():
        raise DataError("the future has no row after the last sale", "give later dates", column=schema.time)
    planned = plan.select(schema.id).unique()
    past = rows.join(planned, on=schema.id, how="anti")
    kept = rows.join(planned, on=schema.id, how="semi").join(last, on=schema.id, how="left")
    kept = kept.filter(pl.col(schema.time) <= pl.col(ends)).drop(ends)
    return Frames(pl.concat([past, kept, plan.drop(ends)], how="diagonal_relaxed"), frames.static, frames.events)


def _of_asked(plan: pl.DataFrame, frames: Frames, schema: Schema, fitted: Panel | None) -> pl.DataFrame:
    """The plan of the series in the rows and of new ones, but not of those whose static values nobody gave."""
    id, have = schema.id, frames.rows.select(schema.id).unique()
    of_rows, new = (plan.join(have, on=id, how=how) for how in ("semi", "anti"))
    if fitted is not None:
        new = new.filter(~pl.col(id).is_in(fitted.ids.to_pylist()))
    if frames.static is not None:
        unknown = new.join(frames.static, on=id, how="anti")
    else:  # nothing tells new items from ids that are written differently, unless others are the same
        unknown = new if of_rows.is_empty() else new.clear()
    if of_rows.height + new.height == unknown.height:
        raise _of_strangers(plan, have, id)
    if unknown.is_empty():
        return pl.concat([of_rows, new])
    names = unknown[id].unique(maintain_order=True)
    warn(
        f"{len(names)} series of the future have neither history nor static values and are left out "
        f"({quoted(names[0])} …); to forecast new items, add their rows to static=",
        SeriesLeftOutWarning,
    )
    return pl.concat([of_rows, new.join(unknown.select(id).unique(), on=id, how="anti")])


def _of_strangers(plan: pl.DataFrame, rows: pl.DataFrame, id: str) -> DataError:
    """The error of a plan of other series alone."""
    return DataError(
        f"the future has none of the series to forecast, such as {quoted(rows[id].min())}, but others, such as "
        f"{quoted(plan[id].min())}",
        "give their plan, with the ids written alike",
        column=id,
    )


def with_plan(rows: Source, plan: Any, schema: Schema) -> Source:
    """A history, in memory, and the rows of a plan after its last sale, such as a second file of promotions.

    A static column that the plan lacks has the value of the history; series that the history lacks are left out.
    """
    given: Any = with_joined_id(open_source(plan, "the future"), schema.id)
    others = [name for name in rows.names if name not in (schema.id, schema.time)]
    past = _read(rows, [schema.id, schema.time], schema, "the frame", others)
    keys, not_planned = [schema.id, schema.time], (schema.target, *schema.static)
    coming = _read(given, keys, schema, "the future", [name for name in others if name not in not_planned])
    coming = _complete(coming, schema)
    if len(coming.columns) == len(keys):
        raise MissingColumnError(
            f"the future has no column of the frame but {schema.id!r} and {schema.time!r}; give what is planned, such "
            "as promotions, by the same names"
        )
    for table in (past, coming):
        _refuse_text_dates(table, schema)
    coming = coming.with_columns(pl.col(schema.time).cast(past.schema[schema.time]))
    sold = past.filter(pl.col(schema.target).is_not_null())[schema.time].max()
    past = past.filter(pl.col(schema.time) <= sold)
    coming, strangers = (
        coming.filter(pl.col(schema.time) > sold).join(past, on=schema.id, how=how) for how in ("semi", "anti")
    )
    if coming.is_empty() and not strangers.is_empty():
        raise _of_strangers(strangers, past, schema.id)
    if coming.is_empty():
        raise DataError("the future has no row after the last sale", "give later dates", column=schema.time)
    if not strangers.is_empty():
        names = strangers[schema.id].unique(maintain_order=True)
        warn(
            f"{len(names)} series of the future have no sales and are left out ({quoted(names[0])} …)",
            SeriesLeftOutWarning,
        )
    if static := [name for name in schema.static if name in past.columns and name not in coming.columns]:
        coming = coming.join(past.select(schema.id, *static).unique(schema.id), on=schema.id, how="left")
    return open_source(pl.concat([past, coming], how="diagonal_relaxed"), "the history with its plan")


def changes_of(frame: Any, schema: Schema) -> pl.DataFrame:
    """Changed rows of a plan: id, date, and those known columns that change."""
    changes = _read(frame, [schema.id, schema.time], schema, "the future", list(schema.known))
    _refuse_text_dates(changes, schema)
    if not set(schema.known) & set(changes.columns):
        names = " or ".join(map(repr, schema.known[:4])) or "that is known"
        raise MissingColumnError(f"the future has no column {names}; give the known columns that change")
    _refuse_doubled(changes, frame, schema)
    return changes


def with_changes(rows: pl.DataFrame, changes: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """The rows, with the values of the changes after the last sale of each series; empty values change nothing."""
    keys, names = [schema.id, schema.time], [name for name in changes.columns if name in schema.known]
    for name in names:
        if (
            rows.schema[name].is_numeric()
            and not changes.schema[name].is_numeric()
            and changes[name].dtype != pl.Boolean
        ):
            kind = changes.schema[name]
            held = "text" if kind in (pl.String, pl.Categorical, pl.Enum) else kind
            raise ColumnTypeError(f"the future's column {name!r} holds {held}, not numbers; convert it")
    changes = changes.with_columns(pl.col(name).cast(rows.schema[name]) for name in (schema.time, *names))
    ends = _free_name("last sale", rows.columns)
    last = rows.filter(pl.col(schema.target).is_not_null()).group_by(schema.id).agg(pl.max(schema.time).alias(ends))
    is_late = (pl.col(schema.time) > pl.col(ends)).fill_null(True)
    changes = changes.join(last, on=schema.id, how="left").filter(is_late).drop(ends)
    if changes.is_empty():
        raise DataError("the future has no row after the last sale", "give later dates", column=schema.time)
    new = {name: _free_name(f"new {name}", rows.columns) for name in names}
    both = rows.join(changes.rename(new), on=keys, how="full", coalesce=True)
    return both.with_columns(pl.coalesce(new[name], name).alias(name) for name in names).drop(new.values())


def _free_name(name: str, taken: list[str]) -> str:
    while name in taken:
        name += " "
    return name


def _plan(future: Any, schema: Schema) -> pl.DataFrame:
    wanted = [schema.id, schema.time, *schema.known]
    table = _read(future, wanted, schema, "the future")
    _refuse_text_dates(table, schema)
    _refuse_doubled(table, future, schema)
    return _complete(table.select(wanted), schema)


def _refuse_doubled(plan: pl.DataFrame, given: Any, schema: Schema) -> None:
    """Raise if a series has two rows for one date, and say where they are in what was given."""
    keys = plan.select(schema.id, schema.time)
    if (again := keys.is_duplicated()).any():
        series, time = keys.filter(again).row(0)
        rows = keys.with_row_index("row").filter(pl.col(schema.id) == series, pl.col(schema.time) == time)["row"]
        places = places_of(open_source(given, "the future"), rows.to_list())
        raise DuplicateRowsError(
            f"the future has {len(rows)} rows ({places})", "keep one", series=str(series), time=str(time)
        )


def _complete(plan: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """The rows without an empty value, as others are as good as missing; all if there are none, for the input gate to
    refuse."""
    needed = [name for name in schema.known if name not in schema.fill and name in plan.columns]
    complete = plan.fill_nan(None).drop_nulls(needed) if needed else plan
    return plan if complete.is_empty() else complete


def _refuse_text_dates(table: pl.DataFrame, schema: Schema) -> None:
    if not table.schema[schema.time].is_temporal():
        raise ColumnTypeError(
            f"the future's time column {schema.time!r} holds {table.schema[schema.time]}, not dates; parse it first"
        )


def _rows(frame: Any, schema: Schema) -> pl.DataFrame:
    source = open_source(frame)
    wanted = [schema.id, schema.time, *schema.past, *schema.known]
    wanted += [schema.observed] if schema.observed else []
    rows = _read(source, wanted, schema, "the frame", [schema.target, *schema.static, *schema.events])
    if schema.target not in source.names:
        rows = rows.with_columns(pl.lit(None, pl.Float64).alias(schema.target))
    return rows


def _table(given: Any, columns: list[str], schema: Schema, what: str) -> pl.DataFrame | None:
    return None if given is None else _read(given, columns, schema, what).select(columns)


def _read(frame: Any, wanted: list[str], schema: Schema, what: str, may_be: list[str] | None = None) -> pl.DataFrame:
    """Columns of any frame, ids as text."""
    source: Source = with_joined_id(open_source(frame, what), schema.id)
    for name in wanted:
        if name not in source.names:
            raise MissingColumnError(f"{what} has no column {name!r}; there are {', '.join(map(repr, source.names))}")
    names = [*dict.fromkeys([*wanted, *(name for name in may_be or [] if name in source.names)])]
    columns = {name: _decoded(source.column(name), name, what) for name in names}
    for name, column in columns.items():
        if is_text(column.type) and (schema.kinds.get(name) == "flag" or name == schema.observed):
            columns[name] = pa.array(flags(column, name, Where([])), from_pandas=True)
    if schema.id in columns:
        if not is_text(kind := columns[schema.id].type) and not pa.types.is_integer(plain_type(kind)):
            raise ColumnTypeError(
                f"{what}: id column {schema.id!r} holds {words_for(kind)}; make it text or whole numbers"
            )
        codes, values = as_codes(columns[schema.id])
        columns[schema.id] = pa.array([*as_text(values), None], pa.large_string()).take(
            pa.array(codes % (len(values) + 1))
        )
    if schema.time in columns:
        columns[schema.time] = _dates(columns[schema.time], schema.time, what)
    return pl.DataFrame({name: pl.Series(name, values) for name, values in columns.items()})


def _decoded(column: pa.Array, name: str, what: str) -> pa.Array:
    """A column of a type that polars supports."""
    kind = plain_type(column.type)
    if not (is_numeric(kind) or is_text(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise ColumnTypeError(f"{what}: column {name!r} holds {words_for(kind)}; convert it to numbers or text")
    if pa.types.is_dictionary(column.type) and (not is_text(kind) or column.dictionary.null_count):
        column = column.cast(kind)
    is_rare = pa.types.is_decimal(kind) or pa.types.is_float16(kind)
    return column.cast(pa.float64()) if is_rare else column


def _dates(column: pa.Array, name: str, what: str) -> pa.Array:
    """Microseconds of a column of dates; the input gate refuses text later."""
    if is_text(column.type):
        return column
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)):
        raise ColumnTypeError(f"{what}: time column {name!r} holds {words_for(column.type)}, not dates; convert it")
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise MissingKeyError(f"{what}: row {row} has no value", "fill it or drop the row", column=name)
    times, zone = as_microseconds(column), getattr(column.type, "tz", None)
    if zone is not None:
        wall_times(times[:1], zone)  # raises if the zone is unknown
        zone = zone_of_polars(zone)
    return pa.array(times).cast(pa.timestamp("us", zone))


def _drawn(rows: pl.DataFrame, keys: list[str], columns: list[str]) -> pl.DataFrame | None:
    """A separate table of columns that are in the rows."""
    if not columns or any(name not in rows.columns for name in columns):
        return None
    return rows.select(*keys, *columns).drop_nulls(columns).unique(keys, keep="first", maintain_order=True)


def _first_of(tables: list[pl.DataFrame | None], key: str) -> pl.DataFrame | None:
    """For each key, the row of the first table that has it."""
    filled: pl.DataFrame | None = None
    for table in tables:
        if table is None:
            continue
        if filled is None:
            filled = table
        else:
            missing = table.join(filled, on=key, how="anti")
            filled = pl.concat([filled, missing.select(filled.columns)], how="vertical_relaxed")
    return filled
