"""The second pass of the input gate: sorted batches are checked and written into the arrays of the panel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mqcast.data.axis import TimeAxis, utc_times
from mqcast.data.frequency import DAY, HOUR, show_time, weekday
from mqcast.data.schema import Role, Schema, missing_flag
from mqcast.data.source import Source, places_of
from mqcast.data.values import (
    UNKNOWN,
    Where,
    as_codes,
    as_microseconds,
    as_text,
    categories,
    flags,
    is_missing,
    numbers,
    refuse_missing,
)
from mqcast.errors import (
    AllMissingError,
    DataError,
    DuplicateRowsError,
    EventTableError,
    KnownValuesError,
    MissingKeyError,
    OffGridError,
    StaticValuesError,
    quoted,
)

CHANGES = "a static value that changes in time", "make it past or known"
GIVEN_IN_SOME = "a static value in some rows of the series only", "give it in all rows, also in those of a plan"
Allocate = Callable[[str, tuple[int, ...], Any], np.ndarray]
ColumnSources = dict[str, Source]
Vocabularies = Mapping[str, tuple[str, ...]]
NEVER = np.iinfo(np.int64).min
LEAST_FILLED = 0.25


@dataclass(frozen=True)
class Encoding:
    """How a frame is read: the schema with all kinds, the time axis, and the values of categories."""

    schema: Schema
    axis: TimeAxis
    vocabularies: Vocabularies


@dataclass(frozen=True)
class Contents:
    """The result of the input gate."""

    encoding: Encoding
    ids: list[str]
    arrays: dict[str, np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Checked values of a batch of rows."""

    where: Where
    series: np.ndarray
    times: np.ndarray
    steps: np.ndarray
    target: np.ndarray
    columns: dict[str, np.ndarray]


class Writer:
    def __init__(
        self,
        source: Source,
        side: dict[str, Source | None],
        column_sources: ColumnSources,
        encoding: Encoding,
        ids: list[str],
        allocate: Allocate,
        *,
        is_new: bool,
    ):
        self.source, self.side, self.column_sources, self.encoding = source, side, column_sources, encoding
        self.schema, self.axis, self.vocabularies = encoding.schema, encoding.axis, encoding.vocabularies
        self.ids, self.allocate, self.is_new = ids, allocate, is_new
        self.codes_of = {name: {text: i + 1 for i, text in enumerate(v)} for name, v in self.vocabularies.items()}
        self.rank = {text: i for i, text in enumerate(ids)}
        self.row = 0
        self.last_row = (-1, 0)  # series and time of the last row
        self.last_time = NEVER
        self.first_row = np.full(len(ids), -1, np.int64)
        self.static = [name for name in self.schema.static if column_sources[name] is source and name != self.schema.id]
        self.events_in_frame = self.schema.events if side["events"] is None else ()
        self.events = _Events(self.schema)
        self.arrays = self._allocated(source.num_rows, len(ids))

    @property
    def frame_columns(self) -> list[str]:
        return list(dict.fromkeys(name for _, name in self.schema.roles() if self.column_sources[name] is self.source))

    def _allocated(self, num_rows: int, num_series: int) -> dict[str, np.ndarray]:
        by_rows = self.schema.time_grid == "rows"
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "target": ((num_rows,), np.float32),
            "first_step": ((num_series,), np.int64),
            "last_observed": ((num_series,), np.int64),
            "times" if by_rows else "steps": ((num_rows,), np.int64 if by_rows else np.int32),
        }
        for role in ("past", "known", "static"):
            length = num_series if role == "static" else num_rows
            of_role = self.schema.categories(role)
            largest = max((len(self.vocabularies[name]) for name in of_role), default=0)
            shapes[f"{role}_number"] = ((length, len(self.schema.numbers(role))), np.float32)
            shapes[f"{role}_category"] = ((length, len(of_role)), np.min_scalar_type(largest))
        arrays = {name: self.allocate(name, shape, dtype) for name, (shape, dtype) in shapes.items()}
        arrays["last_observed"][:] = NEVER
        return arrays

    def check(self, batch: pa.RecordBatch) -> Rows:
        """The values of rows sorted by (id, time), each checked on its own; safe to call from several threads."""
        codes, distinct = as_codes(batch.column(self.schema.id))
        series = np.array([self.rank.get(text or "", -1) for text in as_text(distinct)], dtype=np.int32)[codes]
        column = batch.column(self.schema.time)
        times = self.axis.count(as_microseconds(column), column.type, self.schema.time)
        where = Where(self.ids, series, times)
        steps = self._on_grid(times, where) if self.schema.time_grid == "calendar" else times
        names = [*self.schema.past, *self.schema.known, *self.static, *self.events_in_frame]
        columns = {name: self._values(batch, name, where) for name in names}
        columns |= {missing_flag(name): is_missing(batch.column(name)) for name in self.schema.fill}
        return Rows(where, series, times, steps, self._target(batch, where), columns)

    def add(self, rows: Rows) -> None:
        """Write the next rows; raises for problems that show only in comparison with earlier rows."""
        place = slice(self.row, self.row + len(rows.series))
        steps = self._write_steps(place, rows)
        self.arrays["target"][place] = rows.target
        is_seen = ~np.isnan(rows.target)
        series, steps = (rows.series, steps) if is_seen.all() else (rows.series[is_seen], steps[is_seen])
        last = np.flatnonzero(np.append(series[1:] != series[:-1], series.size > 0))
        self.arrays["last_observed"][series[last]] = steps[last]
        for role in ("past", "known"):
            for name in (*self.schema.numbers(role), *self.schema.categories(role)):
                self._place(role, name)[place] = rows.columns[name]
        self._write_static(place, rows)
        if self.events_in_frame:
            self.events.add(rows.times, {name: rows.columns[name] for name in self.events_in_frame}, rows.where)
        self.row = place.stop
        self.last_row = (int(rows.series[-1]), int(rows.times[-1]))
        self.last_time = max(self.last_time, int(rows.times.max()))

    def _write_steps(self, place: slice, rows: Rows) -> np.ndarray:
        series, times, steps = rows.series, rows.times, rows.steps
        is_first, doubled = np.empty(len(series), bool), np.empty(len(series), bool)
        is_first[0], doubled[0] = series[0] != self.last_row[0], times[0] == self.last_row[1]
        np.not_equal(series[1:], series[:-1], out=is_first[1:])
        np.equal(times[1:], times[:-1], out=doubled[1:])
        doubled &= ~is_first
        if doubled.any():
            raise self._duplicates(int(np.flatnonzero(doubled)[0]), rows.where)
        begins = np.flatnonzero(is_first)
        self.first_row[series[begins]] = place.start + begins
        if self.schema.time_grid == "rows":
            self.arrays["times"][place] = times
            self.arrays["first_step"][series[begins]] = 0
            return np.arange(place.start, place.stop) - self.first_row[series]
        self.arrays["first_step"][series[begins]] = steps[begins]
        relative = steps - self.arrays["first_step"][series]
        if relative.max() > np.iinfo(np.int32).max:
            too_far = relative > np.iinfo(np.int32).max
            raise rows.where.error(OffGridError, too_far, self.schema.time, "more than 2^31 steps", "check the date")
        self.arrays["steps"][place] = relative
        return steps

    def _on_grid(self, times: np.ndarray, where: Where) -> np.ndarray:
        steps, on_grid = self.axis.frequency.steps(times)
        if not on_grid.all():
            near = show_time(int(self.axis.frequency.times(steps[~on_grid][:1])[0]))
            raise where.error(
                OffGridError,
                ~on_grid,
                self.schema.time,
                f"not on the grid of frequency {self.axis.frequency}, which has {near}",
                "correct the date, give another freq, or time_grid='rows' if consecutive rows are consecutive steps",
            )
        return steps

    def _duplicates(self, row: int, where: Where) -> DataError:
        assert where.series is not None
        assert where.times is not None
        time = where.times[row]
        rows = self._rows_of(where.ids[where.series[row]], int(time))
        remedy = "aggregate them before fitting"
        if self.axis.zone is None and self.axis.frequency.sub_daily and weekday(time) == 6 and time % DAY <= 3 * HOUR:
            remedy += " or, if clocks went back in that hour, give the column its time zone or convert it to UTC"
        place = {"column": self.schema.time, "series": where.series_at(row), "time": where.time_at(row)}
        return DuplicateRowsError(f"{len(rows)} rows ({places_of(self.source, rows)})", remedy, **place)

    def _rows_of(self, id: str, time: int) -> list[int]:
        """The rows of a series and date in the user's order; they are looked for only to be told in an error."""
        rows, before = list[int](), 0
        for batch in self.source.batches([self.schema.id, self.schema.time]):
            column = batch.column(self.schema.time)
            is_then = self.axis.count(as_microseconds(column), column.type, self.schema.time) == time
            then = np.flatnonzero(is_then)
            ids = as_text(batch.column(self.schema.id).take(pa.array(then)))
            rows += [before + int(row) for row, text in zip(then, ids, strict=True) if text == id]
            before += batch.num_rows
        return rows

    def _target(self, batch: pa.RecordBatch, where: Where) -> np.ndarray:
        name, observed = self.schema.target, self.schema.observed
        if observed is None:
            return numbers(batch.column(name), name, where)
        flag = flags(batch.column(observed), observed, where)
        if np.isnan(flag).any():
            raise where.error(KnownValuesError, np.isnan(flag), observed, "missing", "give True or False")
        return numbers(batch.column(name), name, where, counts=flag == 1)

    def _write_static(self, place: slice, rows: Rows) -> None:
        if not self.static:
            return
        fresh = np.flatnonzero(np.diff(rows.series, prepend=-1) != 0)
        fresh = fresh[self.first_row[rows.series[fresh]] >= place.start]
        for name in self.static:
            kept, given = self._place("static", name), rows.columns[name]
            kept[rows.series[fresh]] = given[fresh]
            before, now = kept[rows.series], given.astype(kept.dtype)
            differs = (before != now) & ~((before != before) & (now != now))
            if differs.any():
                values, is_category = (before[differs][0], now[differs][0]), self.schema.kinds[name] == "category"
                is_empty = any(value == UNKNOWN if is_category else value != value for value in values)
                raise rows.where.error(StaticValuesError, differs, name, *(GIVEN_IN_SOME if is_empty else CHANGES))

    def _values(self, batch: pa.RecordBatch, name: str, where: Where) -> np.ndarray:
        """The checked numbers or codes of a covariate."""
        column, kind = batch.column(name), self.schema.kinds[name]
        fill = self.schema.fill.get(name)
        if name in self.schema.known and fill is None:
            refuse_missing(is_missing(column), name, where, "none" if kind == "category" else 0)
        if kind == "category":
            codes = categories(column, self.codes_of[name])
            return (
                codes
                if fill is None
                else np.where(is_missing(column), self.codes_of[name].get(str(fill), UNKNOWN), codes)
            )
        values = (flags if kind == "flag" else numbers)(column, name, where)
        return values if fill is None else np.where(np.isnan(values), np.float32(fill), values)

    def _place(self, role: Role, name: str) -> np.ndarray:
        """The column of the array with this covariate."""
        if self.schema.kinds[name] == "category":
            return self.arrays[f"{role}_category"][:, self.schema.categories(role).index(name)]
        return self.arrays[f"{role}_number"][:, self.schema.numbers(role).index(name)]

    def finish(self, *, is_frequency_inferred: bool) -> Contents:
        assert self.row == len(self.arrays["target"]), "the source changed while it was read"
        offsets = self.arrays["offsets"] = self.allocate("offsets", (len(self.ids) + 1,), np.int64)
        offsets[:] = np.append(self.first_row, self.row)
        if is_frequency_inferred:
            self._check_frequency()
        self._check_observed()
        if self.schema.id in self.schema.static:
            self._place("static", self.schema.id)[:] = [self.codes_of[self.schema.id].get(i, UNKNOWN) for i in self.ids]
        if (table := self.side["static"]) is not None:
            self._read_static(table)
        if (table := self.side["events"]) is not None:
            self._read_events(table)
        if "steps" in self.arrays and np.array_equal(self.arrays["steps"][offsets[1:] - 1], np.diff(offsets) - 1):
            del self.arrays["steps"]  # without gaps, the number of a row gives its step
        self.arrays |= self.events.arrays(self.allocate)
        return Contents(self.encoding, self.ids, self.arrays)

    def _check_frequency(self) -> None:
        """Raise if an inferred frequency would leave mostly gaps."""
        if "steps" not in self.arrays:
            return
        offsets = self.arrays["offsets"]
        steps_of = self.arrays["steps"][offsets[1:] - 1].astype(np.int64) + 1
        num_steps = int(steps_of.sum())
        if self.row < LEAST_FILLED * num_steps:
            filled = np.diff(offsets) / steps_of
            least, most = int(filled.argmin()), int(filled.argmax())
            raise OffGridError(
                f"the dates look like frequency {self.axis.frequency}, but then {1 - self.row / num_steps:.0%} of the "
                f"steps would be missing (series {quoted(self.ids[most])} has {filled[most]:.0%} of its steps, "
                f"{quoted(self.ids[least])} {filled[least]:.0%})",
                f"give Schema(freq='{self.axis.frequency}') if that is right, otherwise the right frequency; series of "
                "different frequencies need a forecaster each",
                column=self.schema.time,
            )

    def _check_observed(self) -> None:
        last = self.arrays["last_observed"]
        never = np.flatnonzero(last == NEVER)
        if self.is_new and never.size:
            raise AllMissingError(
                "no observed value" + (f" (also in {never.size - 1} more series)" if never.size > 1 else ""),
                "drop the series; without history it can only be forecast as a cold start",
                column=self.schema.target,
                series=self.ids[never[0]],
            )
        last[never] = self.arrays["first_step"][never] - 1

    def _read_static(self, table: Source) -> None:
        names = [name for name in self.schema.static if self.column_sources[name] is table]
        seen = np.zeros(len(self.ids), bool)
        for batch in table.batches([self.schema.id, *names]):
            texts = as_text(batch.column(self.schema.id))
            if None in texts:
                raise MissingKeyError(
                    f"row {texts.index(None)} of the static table has no id", "fill it or drop the row"
                )
            series = np.array([self.rank.get(text or "", -1) for text in texts], dtype=np.int64)
            batch, series = batch.filter(pa.array(series >= 0)), series[series >= 0]
            where = Where(self.ids, series)
            is_again = np.ones(len(series), bool)
            is_again[np.unique(series, return_index=True)[1]] = False
            is_again |= seen[series]
            if is_again.any():
                raise where.error(StaticValuesError, is_again, self.schema.id, "2 rows in the static table", "keep one")
            seen[series] = True
            for name in names:
                self._place("static", name)[series] = self._values(batch, name, where)
        if not seen.all():
            missing = np.flatnonzero(~seen)
            more = f" (like {missing.size - 1} more series)" if missing.size > 1 else ""
            raise StaticValuesError(f"not in the static table{more}", "add its row", series=self.ids[missing[0]])

    def _read_events(self, table: Source) -> None:
        if table.num_rows == 0:
            raise EventTableError(
                "the event table has no rows", "give one row per date; it must reach the last target date"
            )
        for batch in table.batches([self.schema.time, *self.schema.events]):
            column = batch.column(self.schema.time)
            if column.null_count:
                raise EventTableError("a row of the event table has no date", "drop it", column=self.schema.time)
            moments = as_microseconds(column)
            values = {name: self._values(batch, name, Where([], None, moments)) for name in self.schema.events}
            if self.axis.frequency.sub_daily and getattr(column.type, "tz", None) is None and not np.any(moments % DAY):
                times, day = self._steps_of_days(moments)
                values = {name: column[day] for name, column in values.items()}
            else:
                times = self.axis.count(moments, column.type, self.schema.time)
                if self.schema.time_grid == "calendar":
                    self._event_dates_on_grid(times)
            self.events.add(times, values, Where([], None, times), is_table=True)
        if self.events.last_time < self.last_time:
            raise EventTableError(
                f"the event table ends at {show_time(self.events.last_time)}, before the last target date",
                "extend it; a row without events is enough",
                time=show_time(self.last_time),
            )

    def _steps_of_days(self, days: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For a table by days and shorter steps: the times of all steps of each day, and the day of each."""
        bounds = np.stack((days, days + DAY))
        if self.axis.in_utc and self.axis.zone:
            bounds = utc_times(bounds, self.axis.zone)
        first, end = (self.axis.frequency.floor(bound - 1) + 1 for bound in bounds)
        day = np.repeat(np.arange(len(days)), end - first)
        steps = np.arange(day.size) - np.repeat(np.cumsum(end - first) - (end - first), end - first) + first[day]
        return self.axis.frequency.times(steps), day

    def _event_dates_on_grid(self, times: np.ndarray) -> None:
        _, on_grid = self.axis.frequency.steps(times)
        if not on_grid.all():
            raise Where([], None, times).error(
                OffGridError,
                ~on_grid,
                self.schema.time,
                f"a date of the event table is not on the grid {self.axis.frequency}",
                "give one row a step: group the days of each step, or use Schema(holidays=…), which does",
            )


class _Events:
    """Global covariates by time, from the rows of the frame or from the event table."""

    def __init__(self, schema: Schema):
        self.schema = schema
        self.times = np.zeros(0, np.int64)
        self.values = {name: np.zeros(0) for name in schema.events}

    @property
    def last_time(self) -> int:
        return int(self.times[-1]) if self.times.size else 0

    def add(self, times: np.ndarray, values: dict[str, np.ndarray], where: Where, *, is_table: bool = False) -> None:
        for name, column in values.items():
            if self.schema.kinds[name] == "number" and np.isnan(column).any():
                raise where.error(EventTableError, np.isnan(column), name, "no value", "fill it; 0 means no event")
            values[name] = np.nan_to_num(column)
        both = np.concatenate((self.times, times))
        unique, first, inverse = np.unique(both, return_index=True, return_inverse=True)
        new = slice(len(self.times), None)
        if is_table and (again := first[inverse[new]] != np.arange(len(self.times), len(both))).any():
            raise where.error(EventTableError, again, self.schema.time, "2 rows in the event table", "keep one")
        for name, column in values.items():
            joined = np.concatenate((self.values[name], column))
            if (differs := joined[first][inverse[new]] != column).any():
                raise where.error(
                    EventTableError, differs, name, "series disagree about an event", "make it known, not events"
                )
            self.values[name] = joined[first]
        self.times = unique

    def arrays(self, allocate: Allocate) -> dict[str, np.ndarray]:
        names = {"event_number": self.schema.numbers("events"), "event_category": self.schema.categories("events")}
        arrays = {"event_times": allocate("event_times", (len(self.times),), np.int64)}
        arrays["event_times"][:] = self.times
        for block, columns in names.items():
            dtype = np.float32 if block == "event_number" else np.int32
            arrays[block] = allocate(block, (len(self.times), len(columns)), dtype)
            for i, name in enumerate(columns):
                arrays[block][:, i] = self.values[name]
        return arrays
