"""Rows after the last sale in which a known column is empty: as good as missing, as in a plan of its own."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from mqcast.data.schema import Schema
from mqcast.data.source import Source
from mqcast.data.values import as_microseconds, is_missing


class WithoutUnplanned:
    """A source without these rows."""

    def __init__(self, source: Source, schema: Schema):
        self._source, self._time = source, schema.time
        self._needed = [name for name in schema.known if name not in schema.fill and name in source.names]
        self.what, self.names, self.index_names = source.what, source.names, source.index_names
        self.type_of, self.oddity, self.is_mixed = source.type_of, source.oddity, source.is_mixed
        self.last_sale = self._last_sale(schema.target)
        kept = [self._is_kept(batch) for batch in source.batches([schema.time, *self._needed])]
        self._rows = np.flatnonzero(np.concatenate([np.zeros(0, bool), *kept]))
        self.num_rows = len(self._rows)

    def _last_sale(self, target: str) -> int | None:
        """The time of the last row with a target."""
        last = [
            int(as_microseconds(batch.column(self._time)).max(where=sold, initial=np.iinfo(np.int64).min))
            for batch in self._source.batches([self._time, target])
            if (sold := ~is_missing(batch.column(target))).any()
        ]
        return max(last, default=None)

    def _is_late(self, batch: pa.RecordBatch) -> np.ndarray:
        if self.last_sale is None:
            return np.zeros(batch.num_rows, bool)
        return as_microseconds(batch.column(self._time)) > self.last_sale

    def _is_kept(self, batch: pa.RecordBatch) -> np.ndarray:
        lacks = [is_missing(batch.column(name)) for name in self._needed]
        return ~(self._is_late(batch) & np.any([np.zeros(batch.num_rows, bool), *lacks], axis=0))

    def leaves_too_little(self, id: str) -> bool:
        """Whether no plan is left, or a series has no row left."""
        is_left, ids = False, [set[object](), set[object]()]
        for batch in self._source.batches(list(dict.fromkeys([id, self._time, *self._needed]))):
            kept = self._is_kept(batch)
            is_left |= bool((self._is_late(batch) & kept).any())
            for found, rows in zip(ids, (batch.column(id), batch.column(id).filter(pa.array(kept))), strict=True):
                found |= set(rows.unique().to_pylist())
        return not is_left or len(ids[1]) < len(ids[0])

    def place(self, row: int) -> str:
        return self._source.place(int(self._rows[row]))

    def column(self, name: str) -> pa.Array:
        return self._source.column(name).take(pa.array(self._rows))

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self._filtered(self._source.batches(self._with_needed(names)), names)

    def sorted_batches(self, names: Sequence[str], id: str, time: str) -> Iterator[pa.RecordBatch]:
        return self._filtered(self._source.sorted_batches(self._with_needed(names), id, time), names)

    def _with_needed(self, names: Sequence[str]) -> list[str]:
        return list(dict.fromkeys([*names, self._time, *self._needed]))

    def _filtered(self, batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pa.array(self._is_kept(batch))).select(list(names))


def without_unplanned(source: Source, schema: Schema) -> Source | None:
    """The source without these rows; None if there are none, or no others after the last sale, or none of a series."""
    rows = WithoutUnplanned(source, schema)
    if rows.num_rows == source.num_rows or rows.leaves_too_little(schema.id):
        return None
    return rows
