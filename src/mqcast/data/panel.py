"""Panels: flat arrays with offsets, in memory or mapped from files. Storage is O(rows)."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from mqcast.arguments import path_of
from mqcast.data.calendar import Calendar, check_regions, occurring_holidays
from mqcast.data.frequency import show_time
from mqcast.data.ingest import read_frame
from mqcast.data.layout import Layout
from mqcast.data.schema import Schema
from mqcast.data.source import FrameLike, Source
from mqcast.data.store import StoredArrays, allocate_file, commit, damaged, new_data_folder, read_manifest
from mqcast.data.structure import check_structure, check_values, texts
from mqcast.data.writer import Allocate, Contents
from mqcast.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    EventReachWarning,
    EventTableError,
    KnownValuesError,
    MqcastError,
)
from mqcast.settings import nearest

MOST_COMPARED = 10_000  # ids that are compared with an unknown one


class Panel:
    """Many ragged series, packed.

    The rows of all series are stored one after the other, sorted by id and time; `offsets` has the first row of each
    series. A target that was not observed is NaN. A step is an int64 on the grid of `axis` (with `time_grid="rows"`:
    the number of a row in its series). Steps per row are stored, as `steps`, only if some series has a gap.

    >>> from mqcast import Panel
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> panel = Panel.from_frame(world.frame, world.schema, world.static, world.events)
    >>> panel.require_future(horizon=4)  # raises unless promotions and holidays are known so far
    >>> len(panel.ids)
    20
    """

    def __init__(self, layout: Layout, arrays: dict[str, np.ndarray], stored: StoredArrays | None = None):
        self.stored = stored
        encoding = layout.encoding
        self.layout, self.holidays, self.arrays = layout, layout.holidays, arrays
        self.schema, self.axis, self.vocabularies = encoding.schema, encoding.axis, encoding.vocabularies
        self.offsets, self.first_step = arrays["offsets"], arrays["first_step"]
        self.target, self.last_observed = arrays["target"], arrays["last_observed"]
        self.calendar = Calendar(self.schema, self.axis, self.holidays)

    # -- creation -----------------------------------------------------------------------------------------------------

    @classmethod
    def from_frame(
        cls,
        frame: FrameLike | Source,
        schema: Schema | Mapping[str, Any] | None = None,
        static: FrameLike | None = None,
        events: FrameLike | None = None,
        *,
        like: "Panel | Layout | None" = None,
    ) -> Self:
        """Pack a pandas, polars or Arrow frame, or Parquet or CSV files, in memory.

        With `like`, the frame is read in the same way as an earlier panel, for a forecast: with the same schema and
        categories (new ones are unknown, with one warning). Series without history are then allowed.
        """
        return cls._read(frame, schema, static, events, like, lambda name, shape, dtype: np.empty(shape, dtype))

    @classmethod
    def _read(
        cls,
        frame: FrameLike | Source,
        schema: Schema | Mapping[str, Any] | None,
        static: FrameLike | None,
        events: FrameLike | None,
        like: "Panel | Layout | None",
        allocate: Allocate,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        if like is not None and schema is not None:
            raise ConfigError("give either schema= or like=, not both")
        if like is not None and not isinstance(like, Panel | Layout):
            raise ConfigError(f"like is a {type(like).__name__}; give a panel, for example Panel.open(folder)")
        layout = like.layout if isinstance(like, Panel) else like
        schema = layout.schema if layout else Schema.of(schema)
        check_regions(schema.holidays)
        encoding = layout.encoding if layout else None
        contents = read_frame(frame, schema, static, events, allocate=allocate, like=encoding, on_progress=on_progress)
        _write_ids(contents, allocate)
        if layout is None:
            first, last = cls(Layout(contents.encoding, ()), contents.arrays).span
            holidays = occurring_holidays(contents.encoding.schema, contents.encoding.axis, first, last)
            layout = Layout(contents.encoding, holidays)
        return cls(layout, contents.arrays)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a panel that `pack` wrote. A small one is read and verified; a large one is mapped and read when used.

        Sizes, shapes and offsets are always checked now; `verify` checks every byte.
        """
        folder = path_of("path", path)
        manifest = read_manifest(folder)
        try:
            layout, stored = Layout.from_description(manifest), StoredArrays(folder, manifest)
            try:
                check_structure(layout.encoding, stored.arrays)
            except ValueError:
                stored.verify()  # its error names the file
                raise
            if stored.is_verified:
                check_values(layout.encoding, stored.arrays)
            panel = cls(layout, stored.arrays, stored)
            panel.__dict__["fingerprint"] = str(manifest["fingerprint"])
        except ArtifactError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, MqcastError) as error:
            raise damaged(folder, repr(error)) from None
        return panel

    def verify(self) -> None:
        """Read every byte again and compare it with the digests in the manifest; raises `ArtifactError`.

        A small panel was verified when it was opened, and is in memory since.
        """
        if self.stored is not None and self.stored.handles:
            self.stored.verify()
            self.require_whole_files()
            try:
                check_values(self.layout.encoding, self.arrays)
            except ValueError as error:
                raise damaged(self.stored.files.path, error) from None

    def require_verified(self) -> None:
        """`verify`, unless that was done before: nothing is computed from unverified bytes."""
        if self.stored is not None and not self.stored.is_verified:
            self.verify()
        self.require_whole_files()

    def require_whole_files(self) -> None:
        """Raise if a mapped file has been truncated since it was opened."""
        if self.stored is not None:
            self.stored.check_sizes()

    # -- contents -----------------------------------------------------------------------------------------------------

    @property
    def num_series(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_rows(self) -> int:
        return len(self.target)

    def __len__(self) -> int:
        return self.num_series

    def __repr__(self) -> str:
        first, last = (show_time(time) for time in self.span)
        return f"Panel({self.num_series:,} series, {self.num_rows:,} rows, {self.axis.frequency}, {first} to {last})"

    @cached_property
    def ids(self) -> pa.LargeStringArray:
        """The names of the series, in the order of the panel."""
        try:
            return texts(self.arrays["id_offsets"], self.arrays["id_bytes"])
        except ValueError as error:  # a mapped file that was not verified
            raise ArtifactError(f"the names of the series are damaged ({error}); run Panel.verify()") from None

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.ids.to_pylist())}

    def names_of(self, series: np.ndarray) -> pa.LargeStringArray:
        """The names of some series; pa.array would first import pandas, which takes longer than a forecast."""
        indices = np.ascontiguousarray(series, np.int64)
        return self.ids.take(pa.Array.from_buffers(pa.int64(), indices.size, [None, pa.py_buffer(indices)]))

    def index_of(self, name: object) -> int:
        try:
            return self._index[str(name)]
        except KeyError:
            hint = nearest(str(name), self.ids[:MOST_COMPARED].to_pylist())
            raise DataError(f"no such series{hint}", "give an id that is in the data", series=str(name)) from None

    @cached_property
    def last_step(self) -> np.ndarray:
        """The step of the last row of each series."""
        if (steps := self.arrays.get("steps")) is not None:
            return self.first_step + steps[self.offsets[1:] - 1]
        return self.first_step + np.diff(self.offsets) - 1

    @cached_property
    def span(self) -> tuple[int, int]:
        """First and last time of all rows."""
        if (times := self.arrays.get("times")) is not None:
            return int(times[self.offsets[:-1]].min()), int(times[self.offsets[1:] - 1].max())
        first, last = self.axis.frequency.times(np.array([self.first_step.min(), self.last_step.max()]))
        return int(first), int(last)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content: equal for equal data, whatever their format."""
        return self._digest()

    def _digest(self) -> str:
        digest = hashlib.sha256(json.dumps(self.layout.description, sort_keys=True).encode())
        for name in sorted(self.arrays):
            array = self.arrays[name]
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            flat = array.reshape(-1)
            for start in range(0, flat.size, 2**22):
                digest.update(np.ascontiguousarray(flat[start : start + 2**22]).data)
        return digest.hexdigest()

    # -- rows and times -----------------------------------------------------------------------------------------------

    def rows_at(self, series: np.ndarray, start: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """(B, width) row numbers of the steps start … start+width−1 of each series, and whether the row exists."""
        first_row, end_row = self.offsets[series], self.offsets[series + 1]
        relative = (start - self.first_step[series])[:, None] + np.arange(width)
        steps = self.arrays.get("steps")
        if steps is None:
            rows = first_row[:, None] + relative
            exists = (relative >= 0) & (rows < end_row[:, None])
            return np.where(exists, rows, 0), exists
        rows = np.empty(relative.shape, np.int64)
        for i, (a, b) in enumerate(zip(first_row, end_row, strict=True)):
            rows[i] = a + np.minimum(np.searchsorted(steps[a:b], relative[i]), b - a - 1)
        exists = steps[rows] == relative
        return np.where(exists, rows, 0), exists

    def times_at(self, series: np.ndarray, start: np.ndarray, width: int) -> np.ndarray:
        """(B, width) times of steps start … start+width−1 of each series, before, inside and after its rows."""
        steps = np.asarray(start)[:, None] + np.arange(width)
        times, frequency = self.arrays.get("times"), self.axis.frequency
        if times is None:
            return frequency.times(steps)
        count = np.diff(self.offsets)[series][:, None]
        inside = times[self.offsets[series][:, None] + np.clip(steps, 0, count - 1)]
        grid, _ = frequency.steps(inside)
        beyond = frequency.times(grid + np.where(steps < 0, steps, np.maximum(steps - (count - 1), 0)))
        return np.where((steps >= 0) & (steps < count), inside, beyond)

    def steps_until(self, time: int) -> np.ndarray:
        """The last step of each series up to `time` (before its first row: the step before its first)."""
        times = self.arrays.get("times")
        if times is None:
            return np.full(self.num_series, self.axis.frequency.floor(np.array([time]))[0])
        bounds = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        return np.array([np.searchsorted(times[a:b], time, side="right") - 1 for a, b in bounds], dtype=np.int64)

    @cached_property
    def last_observed_series(self) -> int:
        """The series with the latest observation."""
        return int(np.argmax(self.times_at(np.arange(self.num_series), self.last_observed, 1)[:, 0]))

    def last_observed_time(self, steps_before: int = 0) -> int:
        """The time of the latest observation, or of some steps before it on the grid of its series."""
        series = np.array([self.last_observed_series])
        return int(self.times_at(series, self.last_observed[series] - steps_before, 1)[0, 0])

    @property
    def last_observed_date(self) -> Any:
        """The date of the latest observation, as in a frame."""
        return self.axis.dates(np.array([self.last_observed_time()])).to_list()[0]

    def last_cutoffs(self, number: int) -> tuple[int, int]:
        """The first and last of the given number of cutoffs right before the latest observation.

        The first is never before the first row of the series with this observation.
        """
        series = self.last_observed_series
        room = int(self.last_observed[series] - self.first_step[series])
        return self.last_observed_time(min(number, room)), self.last_observed_time(min(1, room))

    def row_ends(self, until: int | None) -> np.ndarray:
        """For each series, the row after its last one up to the time `until`."""
        if until is None:
            return self.offsets[1:].copy()
        last = self.steps_until(until)
        if "steps" not in self.arrays:
            return self.offsets[:-1] + np.clip(last - self.first_step + 1, 0, np.diff(self.offsets))
        ends = np.empty(self.num_series, np.int64)
        for first, stop in self.series_chunks():
            a, b = self.offsets[first], self.offsets[stop]
            latest = np.repeat((last - self.first_step)[first:stop], np.diff(self.offsets[first : stop + 1]))
            is_early = self.arrays["steps"][a:b] <= latest
            ends[first:stop] = np.add.reduceat(is_early, self.offsets[first:stop] - a, dtype=np.int64)
        return self.offsets[:-1] + ends

    def series_chunks(self, num_rows: int = 2**20) -> Iterator[tuple[int, int]]:
        """Ranges of complete series with about the given number of rows each."""
        first = 0
        while first < self.num_series:
            stop = int(np.searchsorted(self.offsets, self.offsets[first] + num_rows, side="right")) - 1
            yield first, max(first + 1, stop)
            first = max(first + 1, stop)

    def rows_until(self, series: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """(B, width) numbers of rows of each series up to each of its steps."""
        first, end = self.offsets[series], self.offsets[series + 1]
        relative = steps - self.first_step[series][:, None]
        if (stored := self.arrays.get("steps")) is not None:
            of_series = zip(first, end, relative, strict=True)
            return np.array([np.searchsorted(stored[a:b], at, side="right") for a, b, at in of_series]).reshape(
                relative.shape
            )
        return np.clip(relative + 1, 0, (end - first)[:, None])

    def place_of(self, row: int) -> tuple[int, int]:
        """Series and step of a row."""
        series = int(np.searchsorted(self.offsets, row, side="right")) - 1
        relative = row - self.offsets[series]
        if (stored := self.arrays.get("steps")) is not None:
            relative = stored[row]
        return series, int(self.first_step[series] + relative)

    def events_at(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers and codes of event columns at any times; no event if the table has no row."""
        keys = self.arrays["event_times"]
        number, category = self.arrays["event_number"], self.arrays["event_category"]
        if keys.size == 0:
            return np.zeros((*times.shape, number.shape[1])), np.zeros((*times.shape, category.shape[1]), int)
        rows = np.minimum(np.searchsorted(keys, times), keys.size - 1)
        exists = (keys[rows] == times)[..., None]
        return np.where(exists, number[rows], 0), np.where(exists, category[rows], 0)

    # -- requirements of a forecast -----------------------------------------------------------------------------------

    def require_future(
        self,
        horizon: int,
        cutoffs: np.ndarray | None = None,
        series: np.ndarray | None = None,
        ends: np.ndarray | None = None,
    ) -> None:
        """Raise unless known columns and events reach `horizon` steps beyond each cutoff (None: the last observation).

        Rows that are missing among observed dates are no part of the future, and no error. `series` are the series of
        the cutoffs (None: all), and `ends` the times after which their future begins (None: the last observation).
        """
        if horizon < 1:
            raise ConfigError(f"horizon is {horizon}; give at least 1")
        series = np.arange(self.num_series) if series is None else series
        cutoffs = self.last_observed[series] if cutoffs is None else cutoffs
        if self.schema.known:
            for first in range(0, len(series), 65536):
                some = slice(first, first + 65536)
                self._require_known(series[some], cutoffs[some], horizon, None if ends is None else ends[some])
        self.require_events(cutoffs + horizon, series)

    def require_events(self, steps: np.ndarray, series: np.ndarray) -> None:
        """Raise unless the events reach these steps of these series."""
        if not self.schema.events:
            return
        last, end = int(self.times_at(series, steps, 1).max()), int(self.arrays["event_times"][-1])
        if end < last:
            raise EventTableError(
                f"the events end at {show_time(end)}, before the last target date",
                "extend the event table; a row without events is enough",
                time=show_time(last),
            )

    def unplanned(
        self, series: np.ndarray, cutoffs: np.ndarray, horizon: int, ends: np.ndarray | None = None
    ) -> np.ndarray:
        """(B, horizon): which targets lack a row of the plan, which begins after the last observation of all, or after
        the `ends` of these series."""
        _, exists = self.rows_at(series, cutoffs + 1, horizon)
        if exists.all():
            return ~exists
        end = self.last_observed_time() if ends is None else ends[:, None]
        return ~exists & (self.times_at(series, cutoffs + 1, horizon) > end)

    def _require_known(
        self, series: np.ndarray, cutoffs: np.ndarray, horizon: int, ends: np.ndarray | None = None
    ) -> None:
        absent = self.unplanned(series, cutoffs, horizon, ends)
        lacking = np.flatnonzero(absent.any(axis=1))
        if lacking.size:
            i = lacking[0]
            times = self.times_at(series[i : i + 1], cutoffs[i : i + 1] + 1, horizon)[0][absent[i]]
            dates = ", ".join(show_time(time) for time in times[:3]) + (" …" if len(times) > 3 else "")
            raise KnownValuesError(
                f"known values are missing within the horizon of {horizon} steps: {dates}"
                + (f" (and in {lacking.size - 1} more series)" if lacking.size > 1 else ""),
                f"add rows with {', '.join(self.schema.known[:4])} up to the last target date",
                column=self.schema.known[0],
                series=self.ids[int(series[i])].as_py(),
                time=show_time(times[0]),
            )

    def warn_of_event_reach(self, last: int) -> None:
        """Warn once if the event table ends before a time that the position encoding uses."""
        keys = self.arrays["event_times"]
        if self.schema.events and keys.size and keys[-1] < last and not self.__dict__.get("_warned_of_reach"):
            self.__dict__["_warned_of_reach"] = True
            warnings.warn(
                f"the event table ends at {show_time(int(keys[-1]))}; no events are assumed up to {show_time(last)}",
                EventReachWarning,
                stacklevel=3,
            )


def pack(
    frame: FrameLike | Source,
    path: str | Path,
    schema: Schema | Mapping[str, Any] | None = None,
    static: FrameLike | None = None,
    events: FrameLike | None = None,
    *,
    like: Panel | Layout | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Panel:
    """Pack a frame of any size into a folder of mapped arrays, and open it. A crash leaves the old panel, or none.

    With `like`, schema, categories and holidays are taken from another panel, so that a network trained on that one can
    read it. `on_progress(rows written, total rows)` is called from time to time.

    >>> from mqcast import Panel, pack
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> panel = pack(world.frame, "panel", world.schema, world.static, world.events)
    >>> Panel.open("panel").fingerprint == panel.fingerprint
    True
    """
    folder = path_of("path", path)
    with new_data_folder(folder) as data:
        panel = Panel._read(frame, schema, static, events, like, partial(allocate_file, data), on_progress)
        commit(folder, data, panel.arrays, panel.layout.description | {"fingerprint": panel.fingerprint})
    return Panel.open(folder)


def _write_ids(contents: Contents, allocate: Allocate) -> None:
    encoded = [name.encode() for name in contents.ids]
    offsets = contents.arrays["id_offsets"] = allocate("id_offsets", (len(encoded) + 1,), np.int64)
    offsets[:] = np.concatenate(([0], np.cumsum([len(name) for name in encoded])))
    text = contents.arrays["id_bytes"] = allocate("id_bytes", (int(offsets[-1]),), np.uint8)
    text[:] = np.frombuffer(b"".join(encoded), np.uint8)
