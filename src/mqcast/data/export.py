"""Panel → frames: the rows it was packed from. Packed again, they give the same panel."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from mqcast.data.panel import Panel
from mqcast.data.schema import Role, missing_flag
from mqcast.data.values import UNKNOWN

UNSEEN = "(unknown)"  # a category without a code, which is unknown again when it is read


@dataclass(frozen=True)
class Frames:
    """Long rows of target, past and known values; one row per series; one row per date."""

    rows: pl.DataFrame
    static: pl.DataFrame | None
    events: pl.DataFrame | None


def frames_of(panel: Panel) -> Frames:
    panel.require_verified()
    schema = panel.schema
    ids, target = pl.Series(panel.ids), pl.Series(panel.target).fill_nan(None)
    rows = row_keys(panel).to_dict() | {schema.target: target}
    if schema.observed:
        rows[schema.observed] = target.is_not_null()
    rows |= _columns(panel, "past") | _columns(panel, "known")
    events = {schema.time: panel.axis.dates(panel.arrays["event_times"])} | _columns(panel, "events")
    of_series = {name: values for name, values in _columns(panel, "static").items() if name != schema.id}
    return Frames(
        pl.DataFrame(rows),
        pl.DataFrame({schema.id: ids} | of_series) if of_series else None,
        pl.DataFrame(events) if schema.events else None,
    )


def categories_of(panel: Panel) -> pl.DataFrame:
    """The id of each series and its categories."""
    columns = _columns(panel, "static")
    kept = {name: columns[name] for name in panel.schema.categories("static") if name != panel.schema.id}
    return pl.DataFrame({panel.schema.id: pl.Series(panel.ids)} | kept)


def row_keys(panel: Panel) -> pl.DataFrame:
    """The id and the date of each row."""
    series = np.repeat(np.arange(panel.num_series), np.diff(panel.offsets))
    dates = panel.axis.dates(_row_times(panel))
    return pl.DataFrame({panel.schema.id: pl.Series(panel.ids).gather(series), panel.schema.time: dates})


def some_series(panel: Panel, series: np.ndarray) -> Panel:
    """A panel in memory with some series of another, given by increasing indices, for the same network."""
    bounds = zip(panel.offsets[series], panel.offsets[series + 1], strict=True)
    rows = np.concatenate([np.arange(first, end) for first, end in bounds])
    names = [name.as_py().encode() for name in panel.names_of(series)]
    arrays: dict[str, np.ndarray] = {}
    for name, values in panel.arrays.items():
        block = name.split("_")[0]
        is_of_rows = block in ("past", "known") or name in ("target", "steps", "times")
        is_of_series = block == "static" or name in ("first_step", "last_observed")
        arrays[name] = np.asarray(values[rows] if is_of_rows else values[series] if is_of_series else values)
    counts = np.diff(panel.offsets)[series]
    arrays["offsets"] = np.concatenate(([0], np.cumsum(counts)))
    arrays["id_offsets"] = np.concatenate(([0], np.cumsum([len(name) for name in names])))
    arrays["id_bytes"] = np.frombuffer(b"".join(names), np.uint8)
    return Panel(panel.layout, arrays)


def _row_times(panel: Panel) -> np.ndarray:
    if (times := panel.arrays.get("times")) is not None:
        return times
    counts = np.diff(panel.offsets)
    within = np.arange(panel.num_rows) - np.repeat(panel.offsets[:-1], counts)
    relative = panel.arrays.get("steps", within)
    return panel.axis.frequency.times(np.repeat(panel.first_step, counts) + relative)


def _columns(panel: Panel, role: Role) -> dict[str, pl.Series]:
    """The columns of a role, in the order of the schema."""
    block = "event" if role == "events" else role
    numbers = {
        name: pl.Series(panel.arrays[f"{block}_number"][:, i]).fill_nan(None)
        for i, name in enumerate(panel.schema.numbers(role))
    }
    categories = {
        name: _texts(panel.arrays[f"{block}_category"][:, i], panel.vocabularies[name], may_be_missing=role == "past")
        for i, name in enumerate(panel.schema.categories(role))
    }
    columns = {name: (numbers | categories)[name] for name in getattr(panel.schema, role)}
    for name in panel.schema.fill if role == "known" else ():
        columns[name] = columns[name].set(numbers[missing_flag(name)] == 1, None)
    return columns


def _texts(codes: np.ndarray, vocabulary: tuple[str, ...], may_be_missing: bool) -> pl.Series:
    assert UNKNOWN == 0
    texts = pa.array([None if may_be_missing else UNSEEN, *vocabulary], pa.large_string())
    return pl.Series(texts.take(pa.array(codes.astype(np.int64))))
