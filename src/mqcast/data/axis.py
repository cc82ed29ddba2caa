"""The time axis: how dates become steps, and steps dates."""

import re
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from mqcast.data.frequency import HOUR, MINUTE, Frequency
from mqcast.errors import TimeZoneError


@dataclass(frozen=True)
class TimeAxis:
    """A frequency and the zone, if any, whose clock the calendar follows.

    Dates with a zone are counted in UTC where steps are shorter than a day, so that no hour is doubled or lost when
    clocks change, and by the zone's own calendar otherwise.
    """

    frequency: Frequency
    zone: str | None = None

    @classmethod
    def of(cls, freq: str | None, zone: str | None, times: np.ndarray, counts: np.ndarray) -> "TimeAxis":
        """The axis that `freq` says, or that sorted distinct times show; `counts` says how many rows have each."""
        local = wall_times(times, zone) if zone else times
        frequency = Frequency.infer(local) if freq is None else Frequency.parse(freq)
        if freq is None and frequency.sub_daily and zone:
            frequency = Frequency.infer(times)
        return cls(frequency.anchored(times if frequency.sub_daily else local, counts), zone)

    @property
    def in_utc(self) -> bool:
        return self.zone is not None and self.frequency.sub_daily

    def count(self, times: np.ndarray, kind: pa.DataType, column: str) -> np.ndarray:
        """UTC or naive microseconds of a column of type `kind`, as this axis counts them."""
        zone = getattr(kind, "tz", None)
        if (self.zone is None) != (zone is None) and (self.zone is None or self.in_utc):
            raise TimeZoneError(
                f"dates {'with' if zone else 'without'} a time zone beside dates {'without' if zone else 'with'} one",
                "convert all tables to one time zone",
                column=column,
            )
        if zone is None or self.in_utc:
            return times
        offset = self.zone if self.zone and _fixed_offset(self.zone) is not None else None
        return wall_times(times, offset or zone)  # of an offset polars has the moments alone

    def dates(self, times: np.ndarray) -> pl.Series:
        """Times of this axis as a user's frame has them, with their zone if it has one.

        Offsets such as '+05:30' are no zones to polars: their times come in UTC, the same moments.
        """
        if self.zone is None:
            return pl.Series(times).cast(pl.Datetime("us"))
        utc = times if self.in_utc else utc_times(times, self.zone)
        return pl.Series(utc).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(zone_of_polars(self.zone))

    def wall(self, times: np.ndarray) -> np.ndarray:
        """What the clock on the wall shows at times of this axis."""
        return wall_times(times, self.zone) if self.in_utc and self.zone else times


def zone_of_polars(zone: str) -> str:
    """The zone itself, or UTC for an offset that polars does not know."""
    return "UTC" if (_fixed_offset(zone) or 0) % HOUR else zone


def wall_times(times: np.ndarray, zone: str) -> np.ndarray:
    """The zone's clock at these UTC microseconds."""
    if (offset := _fixed_offset(zone)) is not None:
        return times + offset
    stamps = pl.Series(times.reshape(-1)).cast(pl.Datetime("us", "UTC"))
    try:
        stamps = stamps.dt.convert_time_zone(zone)
    except pl.exceptions.ComputeError:
        raise TimeZoneError(
            f"no time zone {zone!r} is known", "convert to one such as 'Europe/Berlin', or UTC"
        ) from None
    return stamps.dt.replace_time_zone(None).cast(pl.Int64).to_numpy().reshape(times.shape)


def utc_times(times: np.ndarray, zone: str) -> np.ndarray:
    """The UTC microseconds at which the zone's clock shows `times`: the first one if it does so twice, and the moment
    the clock jumps if it never does."""
    if (offset := _fixed_offset(zone)) is not None:
        return times - offset
    stamps = pl.Series(times.reshape(-1)).cast(pl.Datetime("us"))
    utc = stamps.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    jump = stamps.dt.offset_by("1h").dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    utc = utc.fill_null(jump.dt.truncate("1h")).dt.convert_time_zone("UTC")
    return utc.cast(pl.Int64).to_numpy().reshape(times.shape)


def _fixed_offset(zone: str) -> int | None:
    """Microseconds of a zone such as '+02:00'."""
    match = re.fullmatch(r"([+-])(\d\d):?(\d\d)", zone)
    return None if match is None else (1 if match[1] == "+" else -1) * (int(match[2]) * HOUR + int(match[3]) * MINUTE)
