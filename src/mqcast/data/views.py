"""A panel as it was known at a time, and a panel as a run reads it, as views without copies of rows."""

from typing import Any, cast

import numpy as np

from mqcast.data.calendar import occurring_holidays
from mqcast.data.layout import Layout
from mqcast.data.panel import Panel
from mqcast.data.structure import ROLES
from mqcast.data.values import UNKNOWN
from mqcast.data.writer import Encoding
from mqcast.errors import ConfigError

CHUNK_ROWS = 2**20
WARNED = ("_warned_of_reach", "_warned_of_gaps")


class RowsView:
    """Some rows of an array, renumbered and perhaps recoded; it can be indexed like an array."""

    def __init__(self, array: Any, pieces: "Pieces | None" = None, codes: list[np.ndarray] | None = None):
        self.array, self.pieces, self.codes = array, pieces, codes
        self.shape = (len(array) if pieces is None else pieces.num_rows, *array.shape[1:])
        self.dtype = array.dtype if codes is None else np.dtype(np.int64)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, tuple):
            return self[index[0]][..., index[1]]
        values = self.array[index if self.pieces is None else self.pieces.rows(index)]
        if self.codes is None:
            return values
        columns = [codes[values[..., i]] for i, codes in enumerate(self.codes)]
        return np.stack(columns, axis=-1) if columns else values.astype(np.int64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def reshape(self, *shape: int) -> np.ndarray:
        return np.asarray(self).reshape(*shape)


class Pieces:
    """The rows of a panel's arrays in a view: the first rows of some series."""

    def __init__(self, starts: np.ndarray, lengths: np.ndarray):
        self.offsets = np.append(0, np.cumsum(lengths))
        self.moved = starts - self.offsets[:-1]
        self.num_rows = int(self.offsets[-1])

    def rows(self, index: Any) -> Any:
        """The row numbers in the array of some rows of the view."""
        if isinstance(index, slice):
            first, stop, step = index.indices(self.num_rows)
            if first < stop and step == 1:
                a, b = np.searchsorted(self.offsets, (first, stop - 1), side="right") - 1
                if a == b:
                    return slice(first + int(self.moved[a]), stop + int(self.moved[a]))
                lengths = np.diff(np.clip(self.offsets[a : b + 2], first, stop))
                return np.arange(first, stop) + np.repeat(self.moved[a : b + 1], lengths)
            index = np.arange(first, stop, step)
        index = np.asarray(index)
        return index + self.moved[np.searchsorted(self.offsets, index, side="right") - 1]


def known_at(panel: Panel, time: int, layout: Layout | None = None) -> Panel:
    """The rows and events up to a time, of the series that had started by then.

    Categories and holidays are those that had occurred by then, as if there were no later data, or those of a layout.
    """
    panel.require_verified()
    lengths = panel.row_ends(time) - panel.offsets[:-1]
    begun = np.flatnonzero(lengths > 0)
    if begun.size == 0:
        raise ConfigError("no series has a row up to this date; give a later one")
    lengths = lengths[begun]
    pieces = Pieces(panel.offsets[begun], lengths)
    arrays = {"offsets": pieces.offsets, "first_step": panel.first_step[begun], **_ids(panel, begun)}
    for name, array in panel.arrays.items():
        if name in ("target", "steps", "times") or name.startswith(("past_", "known_")):
            arrays[name] = cast(np.ndarray, RowsView(array, pieces))
        elif name.startswith("static_"):
            arrays[name] = array[begun]
        elif name.startswith("event_"):
            arrays[name] = array[: int(np.searchsorted(panel.arrays["event_times"], time, side="right"))]
    arrays["last_observed"] = _last_observed(panel, begun, pieces.offsets, arrays)
    view = Panel(panel.layout, arrays, panel.stored)
    view.__dict__.update(_warned_of_reach=True, _warned_of_gaps=True)  # events end here on purpose
    return read_as(view, layout or _layout_of(view))


def read_as(panel: Panel, layout: Layout) -> Panel:
    """The panel with the categories and holidays of a layout, all of which it has; others become unknown."""
    assert can_be_read_as(panel, layout)
    if layout == panel.layout:
        return panel
    arrays = dict(panel.arrays)
    for role, block in ROLES.items():
        names = layout.schema.categories(role)
        if any(panel.vocabularies[name] != layout.encoding.vocabularies[name] for name in names):
            codes = [_codes(panel.vocabularies[name], layout.encoding.vocabularies[name]) for name in names]
            arrays[f"{block}_category"] = cast(np.ndarray, RowsView(arrays[f"{block}_category"], None, codes))
    view = Panel(layout, arrays, panel.stored)
    view.__dict__.update({name: panel.__dict__[name] for name in WARNED if name in panel.__dict__})
    return view


def can_be_read_as(panel: Panel, layout: Layout) -> bool:
    """Whether the panel has the columns, kinds, frequency, categories and holidays of the layout."""
    ours, theirs = panel.layout.encoding, layout.encoding
    if (ours.schema, ours.axis) != (theirs.schema, theirs.axis) or not set(layout.holidays) <= set(panel.holidays):
        return False
    return all(set(values) <= set(ours.vocabularies[name]) for name, values in theirs.vocabularies.items())


def _codes(ours: tuple[str, ...], theirs: tuple[str, ...]) -> np.ndarray:
    """The code in the layout for each code of the panel."""
    code_of = {text: i + 1 for i, text in enumerate(theirs)}
    return np.array([UNKNOWN, *(code_of.get(text, UNKNOWN) for text in ours)], np.int64)


def _ids(panel: Panel, series: np.ndarray) -> dict[str, np.ndarray]:
    kept = panel.names_of(series)
    _, offsets, text = kept.buffers()
    bounds = np.frombuffer(offsets, np.int64)[: len(kept) + 1]
    return {"id_offsets": bounds, "id_bytes": np.frombuffer(text or b"", np.uint8)[: int(bounds[-1])]}


def _last_observed(panel: Panel, series: np.ndarray, offsets: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The last step with a target of each series; without any, the step before its first."""
    target, steps = arrays["target"], arrays.get("steps")
    row, first = offsets[1:] - 1, offsets[:-1]
    lacking = np.flatnonzero(np.isnan(target[row]))
    while lacking.size:
        row[lacking] -= 1
        lacking = lacking[row[lacking] >= first[lacking]]
        lacking = lacking[np.isnan(target[row[lacking]])]
    relative = row - first if steps is None else np.where(row < first, -1, steps[np.maximum(row, 0)])
    return panel.first_step[series] + relative


def _layout_of(view: Panel) -> Layout:
    """A layout with the categories and holidays that occur in the view."""
    schema, axis, vocabularies = view.schema, view.axis, dict(view.vocabularies)
    for role, block in ROLES.items():
        stored, names = view.arrays[f"{block}_category"], schema.categories(role)
        is_seen = [np.zeros(len(vocabularies[name]) + 1, bool) for name in names]
        for start in range(0, len(stored) if names else 0, CHUNK_ROWS):
            part = stored[start : start + CHUNK_ROWS]
            for column, seen in enumerate(is_seen):
                seen[part[:, column]] = True
        for name, seen in zip(names, is_seen, strict=True):
            vocabularies[name] = tuple(
                text for text, is_one in zip(vocabularies[name], seen[1:], strict=True) if is_one
            )
    occurring = set(occurring_holidays(schema, axis, *view.span))
    holidays = tuple(pair for pair in view.holidays if pair in occurring)
    return Layout(Encoding(schema, axis, vocabularies), holidays)
