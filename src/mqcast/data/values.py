"""Arrow columns → checked numpy values, with errors that name the series, column and date."""

import decimal
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mqcast.data.frequency import show_time
from mqcast.data.schema import is_text
from mqcast.errors import DataError, FlagValuesError, KnownValuesError, NonFiniteError, quoted

LARGEST = float(np.finfo(np.float32).max)
YES_AND_NO = (
    *(("yes", "no"), ("y", "n"), ("true", "false"), ("t", "f"), ("ja", "nein"), ("j", "n"), ("wahr", "falsch")),
    *(("oui", "non"), ("vrai", "faux"), ("sí", "no"), ("si", "no"), ("sì", "no"), ("sim", "não"), ("ja", "nee")),
)
FLAG_OF = {word: float(i == 0) for words in YES_AND_NO for i, word in enumerate(words)} | {"1": 1.0, "0": 0.0}
UNKNOWN = 0  # the code of a missing, absent or unseen category; seen ones count from 1


@dataclass(frozen=True)
class Where:
    """The series and time of each row of a batch, if they apply."""

    ids: list[str]
    series: np.ndarray | None = None
    times: np.ndarray | None = None

    def error(self, kind: type[DataError], bad: np.ndarray, column: str, problem: str, remedy: str) -> DataError:
        """An error at the first bad row, counting the others."""
        rows = np.flatnonzero(bad)
        problem += f" (and in at least {rows.size - 1} more rows)" if rows.size > 1 else ""
        return kind(problem, remedy, column=column, series=self.series_at(rows[0]), time=self.time_at(rows[0]))

    def series_at(self, row: int) -> str | None:
        return None if self.series is None else self.ids[self.series[row]]

    def time_at(self, row: int) -> str | None:
        return None if self.times is None else show_time(self.times[row])


def numbers(column: pa.Array, name: str, where: Where, counts: np.ndarray | None = None) -> np.ndarray:
    """Floats with NaN for missing, each value finite and within float32's range; NaN where a value does not count."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        column = column.cast(pa.int8())
    if not pa.types.is_float32(column.type):
        column = column.cast(pa.float64(), safe=False)
    values = column.to_numpy(zero_copy_only=False) + np.float32(0)  # no negative zero
    if counts is not None:
        values[~counts] = np.nan
    values[np.isnan(values)] = np.nan  # one bit pattern
    if values.size and max(np.nanmax(values, initial=0), -np.nanmin(values, initial=0)) > LARGEST:
        bad = np.abs(values) > LARGEST
        value = values[np.flatnonzero(bad)[0]]
        problem = "infinite value" if np.isinf(value) else f"{value:g} is too large for float32"
        raise where.error(NonFiniteError, bad, name, problem, "correct it, or leave past values empty")
    return values


def flags(column: pa.Array, name: str, where: Where) -> np.ndarray:
    """0, 1 or NaN."""
    if is_text(column.type):
        return _flags_of_words(column, name, where)
    values = numbers(column, name, where)
    bad = ~((values == 0) | (values == 1) | np.isnan(values))
    if bad.any():
        value = values[np.flatnonzero(bad)[0]]
        raise where.error(FlagValuesError, bad, name, f"a flag holds {value:g}", "use 0 and 1, or make it a number")
    return values


def _flags_of_words(column: pa.Array, name: str, where: Where) -> np.ndarray:
    codes, distinct = as_codes(column)
    texts = as_text(distinct)
    lookup = np.array([np.nan if text is None else FLAG_OF.get(folded(text), np.inf) for text in texts] + [np.nan])
    values = lookup[codes].astype(np.float32)
    bad = np.isinf(values)
    if bad.any():
        text = texts[codes[np.flatnonzero(bad)[0]]]
        remedy = f"use 0 and 1, or yes and no, or make it a category: kinds={{{quoted(name)}: 'category'}}"
        raise where.error(FlagValuesError, bad, name, f"a flag holds {quoted(text)}", remedy)
    return values


def words_of_flag(texts: Iterable[str]) -> tuple[str, str] | None:
    """The words for 1 and for 0, if these are all that a column holds, such as ja and nein."""
    written = {folded(text): text for text in texts}
    return next(((written[yes], written[no]) for yes, no in YES_AND_NO if written.keys() == {yes, no}), None)


def folded(text: str) -> str:
    return text.strip().casefold()


def categories(column: pa.Array, codes_of: dict[str, int]) -> np.ndarray:
    """Codes from 1; `UNKNOWN` for what is missing or has no code."""
    codes, distinct = as_codes(column)
    lookup = [UNKNOWN if text is None else codes_of.get(text, UNKNOWN) for text in as_text(distinct)]
    return np.array([*lookup, UNKNOWN], dtype=np.int64)[codes]


def refuse_missing(missing: np.ndarray, name: str, where: Where, example: float | str = 0) -> None:
    """Raise if a value of a known column is missing; `example`: what it may mean."""
    if not missing.any():
        return
    rows = np.flatnonzero(missing)[:3]
    examples = ", ".join(f"{where.series_at(row)!r} at {where.time_at(row)}" for row in rows)
    raise where.error(
        KnownValuesError,
        missing,
        name,
        f"has to be known ahead but is missing: {examples}",
        f"fill it, say what missing means: Schema(fill={{{name!r}: {example!r}}}), or give the column the role past",
    )


def as_codes(values: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Codes (null: -1) and their values, some of which may not occur."""
    if pa.types.is_dictionary(values.type):
        distinct = values.dictionary
        if distinct.null_count or len(distinct.unique()) < len(distinct):
            return as_codes(values.cast(values.type.value_type))
        encoded = values
    elif pa.types.is_integer(values.type) and values.type.bit_width <= 8 and not values.null_count:
        numbers_ = values.to_numpy(zero_copy_only=False).astype(np.int16)
        first = int(numbers_.min(initial=0))
        return numbers_ - first, pa.array(range(first, int(numbers_.max(initial=0)) + 1))
    else:
        encoded = values.dictionary_encode()
    codes = encoded.indices
    if codes.null_count:
        codes = codes.cast(pa.int64()).fill_null(-1)
    return codes.to_numpy(zero_copy_only=False), encoded.dictionary


def is_missing(column: pa.Array) -> np.ndarray:
    return column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)


def as_text(values: pa.Array) -> list[str | None]:
    """Ids or categories as text, the same for all types: 3, 3.0 and '3' become '3'."""
    return [None if value is None or value != value else _text(value) for value in values.to_pylist()]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, decimal.Decimal):
        value = value.normalize()
        return format(value, "f")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def as_microseconds(times: pa.Array) -> np.ndarray:
    """Microseconds since 1970, in UTC if the column has a time zone."""
    kind = pa.timestamp("us", tz=getattr(times.type, "tz", None))
    is_finer = pa.types.is_timestamp(times.type) and times.type.unit == "ns"
    try:
        return times.cast(kind, safe=not is_finer).cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise DataError(f"a date is out of range ({error})", "correct it") from None
