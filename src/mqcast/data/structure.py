"""Checks of a panel's arrays before they are used as indices: types, shapes, increasing offsets."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from mqcast.data.schema import Role, Schema
from mqcast.data.writer import Encoding

ROLES: dict[Role, str] = {"past": "past", "known": "known", "static": "static", "events": "event"}
PART = 2**20
FARTHEST = 2**56  # microseconds or steps from 1970: some 2,000 years


def check_structure(encoding: Encoding, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless the arrays match each other and the schema; reads only arrays with a value per series."""
    schema = encoding.schema
    wanted = {"offsets", "id_offsets", "id_bytes", "first_step", "last_observed", "target", "event_times"}
    wanted |= {f"{block}_{kind}" for block in ROLES.values() for kind in ("number", "category")}
    if missing := sorted(wanted - set(arrays)):
        raise ValueError(f"no {', '.join(missing)}")
    num_series, num_rows, num_events = len(arrays["offsets"]) - 1, len(arrays["target"]), len(arrays["event_times"])
    if num_series < 1:
        raise ValueError("no series")
    _require(arrays, "target", (num_rows,), np.float32)
    _require(arrays, "offsets", (num_series + 1,), np.int64)
    _require(arrays, "id_offsets", (num_series + 1,), np.int64)
    _require(arrays, "id_bytes", (len(arrays["id_bytes"]),), np.uint8)
    _require(arrays, "event_times", (num_events,), np.int64)
    for name in ("first_step", "last_observed"):
        _require(arrays, name, (num_series,), np.int64)
    for name, dtype in (("steps", np.int32), ("times", np.int64)):
        if name in arrays:
            _require(arrays, name, (num_rows,), dtype)
    if ("times" in arrays) != (schema.time_grid == "rows"):
        raise ValueError("times of rows, where the schema has a calendar, or none, where it has not")
    _check_blocks(schema, arrays, {"past": num_rows, "known": num_rows, "static": num_series, "events": num_events})
    _check_offsets("offsets", arrays["offsets"], num_rows, 1)
    _check_offsets("id_offsets", arrays["id_offsets"], len(arrays["id_bytes"]), 0)
    _check_steps(arrays)


def check_values(encoding: Encoding, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless every value is valid in a packed panel; reads everything, in parts."""
    for role, block in ROLES.items():
        sizes = np.array([len(encoding.vocabularies[name]) + 1 for name in encoding.schema.categories(role)], np.int64)
        for codes in _parts(arrays[f"{block}_category"]):
            if sizes.size and (codes.min(initial=0) < 0 or (codes >= sizes).any()):
                raise ValueError(f"{block}_category has codes without a value")
        for numbers in _parts(arrays[f"{block}_number"]):
            if np.isinf(numbers).any() or (role in ("known", "events") and np.isnan(numbers).any()):
                raise ValueError(f"{block}_number is not finite")
    for target in _parts(arrays["target"]):
        if np.isinf(target).any():
            raise ValueError("target is infinite")
    if (np.diff(arrays["event_times"]) <= 0).any():
        raise ValueError("event_times do not rise")
    for name in ("steps", "times"):
        if name in arrays:
            _check_rising(name, arrays[name], arrays["offsets"])


def _parts(values: np.ndarray) -> Iterator[np.ndarray]:
    size = max(1, PART // max(1, values[:1].size))
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _check_rising(name: str, values: np.ndarray, offsets: np.ndarray) -> None:
    """Check that values increase within each series; a first row may be at any time, a first step is 0."""
    if np.abs(values[offsets[:-1]]).max() > (0 if name == "steps" else FARTHEST):
        raise ValueError(f"{name} do not begin where they should")
    for start in range(0, len(values) - 1, PART):
        part = values[start : start + PART + 1]
        falls = np.flatnonzero(np.diff(part) <= 0) + start + 1
        if falls.size and not np.isin(falls, offsets).all():
            raise ValueError(f"{name} do not rise")


def texts(offsets: np.ndarray, text: np.ndarray) -> pa.LargeStringArray:
    """An Arrow array of names from offsets and bytes; raises ValueError if they are invalid."""
    if offsets.ndim != 1 or offsets.dtype != np.int64 or not offsets.size or text.ndim != 1 or text.dtype != np.uint8:
        raise ValueError("offsets and bytes of names have other types")
    _check_offsets("offsets of names", offsets, text.size, 0)
    buffers = (pa.py_buffer(np.ascontiguousarray(part)) for part in (offsets, text))
    names = pa.LargeStringArray.from_buffers(offsets.size - 1, *buffers)
    names.validate(full=True)  # also that it is UTF-8
    return names


def check_scalers(arrays: Mapping[str, np.ndarray], encoding: Encoding) -> None:
    """Raise ValueError unless the fitted transforms have the shapes and ranges that a panel of this encoding needs."""
    num_series = len(arrays["target.id_offsets"]) - 1
    for name in ("target.loc", "target.scale"):
        _require(arrays, name, (num_series,), np.float64)
        if np.isinf(arrays[name]).any():
            raise ValueError(f"{name} is infinite")
    if (arrays["target.scale"] <= 0).any():
        raise ValueError("target.scale is not positive")
    if not np.isfinite(arrays["target.default"]).all():
        raise ValueError("target.default is not finite")
    for role, block in ROLES.items():
        width = len(encoding.schema.numbers(role))
        for part in ("loc", "scale"):
            _require(arrays, name := f"number.{block}.{part}", (width,), np.float64)
            fits = np.isfinite(arrays[name]) if part == "loc" else arrays[name] > 0  # infinite: a clock's
            if not fits.all():
                raise ValueError(f"{name} is out of range")
        for i, column in enumerate(encoding.schema.categories(role)):
            num_codes = len(encoding.vocabularies[column]) + 1
            _require(arrays, name := f"category.{block}.{i}", (num_codes,), np.int64)
            if arrays[name].min() < 0 or arrays[name].max() >= num_codes:
                raise ValueError(f"{name} is out of range")


def _require(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], dtype: type) -> None:
    array = arrays[name]
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype}{array.shape}, not {np.dtype(dtype)}{shape}")


def _check_blocks(schema: Schema, arrays: Mapping[str, np.ndarray], lengths: dict[Role, int]) -> None:
    for role, block in ROLES.items():
        numbers, codes = schema.numbers(role), schema.categories(role)
        _require(arrays, f"{block}_number", (lengths[role], len(numbers)), np.float32)
        array = arrays[f"{block}_category"]
        if array.shape != (lengths[role], len(codes)) or array.dtype.kind not in "iu":
            raise ValueError(f"{block}_category is {array.dtype}{array.shape}, for {len(codes)} columns")


def _check_offsets(name: str, offsets: np.ndarray, end: int, min_length: int) -> None:
    if offsets[0] != 0 or offsets[-1] != end or (offsets[1:] < offsets[:-1] + min_length).any():
        raise ValueError(f"{name} do not rise from 0 to {end}")


def _check_steps(arrays: Mapping[str, np.ndarray]) -> None:
    """Check that the first step, the last observation and the last row of each series are in order."""
    first, last, ends = arrays["first_step"], arrays["last_observed"], arrays["offsets"][1:] - 1
    length = arrays["steps"][ends].astype(np.int64) if "steps" in arrays else np.diff(arrays["offsets"]) - 1
    if (np.abs(first) > FARTHEST).any():
        raise ValueError("first_step is out of range")
    if (length < 0).any() or (last < first - 1).any() or (last > first + length).any():
        raise ValueError("last_observed is outside its series")
