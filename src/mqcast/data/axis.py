"""The time axis: dates become steps, and steps become dates."""

import re
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from mqcast.data.frequency import HOUR, MINUTE, Frequency
from mqcast.errors import TimeZoneError


@dataclass(frozen=True)
class TimeAxis:
    """A frequency, and the time zone of the calendar, if there is one.

    For steps shorter than a day, dates with a time zone are counted in UTC, so that no hour is repeated or lost when
    clocks change. Longer steps are counted in local time.
    """

    frequency: Frequency
    zone: str | None = None

    @classmethod
    def of(cls, freq: str | None, zone: str | None, times: np.ndarray, counts: np.ndarray) -> "TimeAxis":
        """The axis of `freq`, or of the frequency of sorted distinct times; `counts` are the rows of each time."""
        local = wall_times(times, zone) if zone else times
        frequency = Frequency.infer(local) if freq is None else Frequency.parse(freq)
        if freq is None and frequency.sub_daily and zone:
            frequency = Frequency.infer(times)
        return cls(frequency.anchored(times if frequency.sub_daily else local, counts), zone)

    @property
    def in_utc(self) -> bool:
        return self.zone is not None and self.frequency.sub_daily

    def count(self, times: np.ndarray, kind: pa.DataType, column: str) -> np.ndarray:
        """The times of this axis for UTC or naive microseconds of a column of type `kind`."""
        zone = getattr(kind, "tz", None)
        if (self.zone is None) != (zone is None) and (self.zone is None or self.in_utc):
            raise TimeZoneError(
                f"dates {'with' if zone else 'without'} a time zone next to dates {'without' if zone else 'with'} one",
                "convert all tables to one time zone",
                column=column,
            )
        if zone is None or self.in_utc:
            return times
        offset = self.zone if self.zone and _fixed_offset(self.zone) is not None else None
        return wall_times(times, offset or zone)  # of offsets polars has only the moments in UTC

    def dates(self, times: np.ndarray) -> pl.Series:
        """Times of this axis as dates of a frame, with their time zone if there is one.

        Polars does not accept offsets such as '+05:30' as time zones: these times are returned in UTC.
        """
        if self.zone is None:
            return pl.Series(times).cast(pl.Datetime("us"))
        utc = times if self.in_utc else utc_times(times, self.zone)
        return pl.Series(utc).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(zone_of_polars(self.zone))

    def wall(self, times: np.ndarray) -> np.ndarray:
        """The local time at times of this axis."""
        return wall_times(times, self.zone) if self.in_utc and self.zone else times


def zone_of_polars(zone: str) -> str:
    """The time zone, or UTC for an offset, which polars does not know."""
    return "UTC" if (_fixed_offset(zone) or 0) % HOUR else zone


def wall_times(times: np.ndarray, zone: str) -> np.ndarray:
    """The local time at these UTC microseconds."""
    if (offset := _fixed_offset(zone)) is not None:
        return times + offset
    stamps = pl.Series(times.reshape(-1)).cast(pl.Datetime("us", "UTC"))
    try:
        stamps = stamps.dt.convert_time_zone(zone)
    except pl.exceptions.ComputeError:
        raise TimeZoneError(
            f"the time zone {zone!r} is unknown", "convert to one such as 'Europe/Berlin', or UTC"
        ) from None
    return stamps.dt.replace_time_zone(None).cast(pl.Int64).to_numpy().reshape(times.shape)


def utc_times(times: np.ndarray, zone: str) -> np.ndarray:
    """The UTC microseconds of local times: the first if a local time occurs twice, and the moment of the clock change
    if it never occurs."""
    if (offset := _fixed_offset(zone)) is not None:
        return times - offset
    stamps = pl.Series(times.reshape(-1)).cast(pl.Datetime("us"))
    utc = stamps.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    jump = stamps.dt.offset_by("1h").dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    utc = utc.fill_null(jump.dt.truncate("1h")).dt.convert_time_zone("UTC")
    return utc.cast(pl.Int64).to_numpy().reshape(times.shape)


def _fixed_offset(zone: str) -> int | None:
    """The microseconds of an offset such as '+02:00'."""
    match = re.fullmatch(r"([+-])(\d\d):?(\d\d)", zone)
    return None if match is None else (1 if match[1] == "+" else -1) * (int(match[2]) * HOUR + int(match[3]) * MINUTE)
