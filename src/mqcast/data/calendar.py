"""Holidays and calendar categories, computed for any date, so that they are never missing in the future.

Holidays are raw indicators: the position encoding learns the effect before and after them. The time of year is given by
waves, or by indicators as well (`as_indicators`).
"""

from functools import lru_cache

import numpy as np

from mqcast.data.axis import TimeAxis
from mqcast.data.frequency import DAY, HOUR, MINUTE, Frequency, weekday
from mqcast.data.schema import CALENDAR_FEATURES, YEAR_WAVE, Schema
from mqcast.errors import ConfigError

NUM_VALUES: dict[str, int] = dict(zip(CALENDAR_FEATURES, (60, 24, 7, 31, 53, 12, 4), strict=True))
NUM_HARMONICS = 2
DAYS_A_YEAR = 365.25


def fitting_features(frequency: Frequency) -> tuple[str, ...]:
    """The calendar features that vary from step to step at this frequency and repeat within a year."""
    if frequency.unit == "month":
        return {1: ("month",), 3: ("quarter",)}.get(frequency.size, () if frequency.size % 12 == 0 else ("month",))
    if frequency.sub_daily:
        minutes = ("minute_of_hour",) if frequency.size % HOUR else ()
        return (*minutes, "hour_of_day", "day_of_week", YEAR_WAVE)
    return (YEAR_WAVE,) if frequency.size >= 7 * DAY else ("day_of_week", YEAR_WAVE)


def raw_features(frequency: Frequency) -> tuple[str, ...]:
    """The same as indicators alone: the week and the month instead of waves, and neither for steps below a day."""
    instead = () if frequency.sub_daily else ("week_of_year", "month")
    return tuple(part for name in fitting_features(frequency) for part in (instead if name == YEAR_WAVE else (name,)))


class Calendar:
    """Calendar categories, waves of the year and holiday flags at any times of an axis.

    `holidays` are the (region, name) pairs that occur between the first and last date of the panel, since a network
    learns nothing from others. For steps longer than a day, a flag means that the holiday falls within the period.
    """

    def __init__(self, schema: Schema, axis: TimeAxis, holidays: tuple[tuple[str, str], ...]):
        self.schema, self.axis = schema, axis
        features = fitting_features(axis.frequency) if schema.calendar is None else schema.calendar
        self.features = tuple(name for name in features if name != YEAR_WAVE)
        self.num_waves = 2 * NUM_HARMONICS * (YEAR_WAVE in features)
        self.holidays = holidays
        self.stamp = schema.stamp or axis.frequency.stamp

    def as_indicators(self) -> "Calendar":
        """The same without waves of the year, unless the schema names them."""
        features = raw_features(self.axis.frequency) if self.schema.calendar is None else self.schema.calendar
        return Calendar(self.schema.replace(calendar=features), self.axis, self.holidays)

    @property
    def num_values(self) -> tuple[int, ...]:
        """The number of values of each calendar category."""
        return tuple(NUM_VALUES[name] for name in self.features)

    def categories(self, times: np.ndarray) -> np.ndarray:
        """(…, features) codes from 0."""
        wall = self.axis.wall(times)
        columns = [_FEATURE[name](wall) for name in self.features]
        return np.stack(columns, axis=-1) if columns else np.zeros((*times.shape, 0), np.int64)

    def waves(self, times: np.ndarray) -> np.ndarray:
        """(…, num_waves): cosines and sines of the time of year, continuous from one year to the next."""
        wall = self.axis.wall(times)
        year_start = wall.astype("M8[us]").astype("M8[Y]").astype("M8[us]").astype(np.int64)
        angle = (
            (2 * np.pi / (DAYS_A_YEAR * DAY)) * (wall - year_start)[..., None] * np.arange(1, self.num_waves // 2 + 1)
        )
        return np.concatenate((np.cos(angle), np.sin(angle)), axis=-1)

    def flags(self, times: np.ndarray) -> np.ndarray:
        """(…, holidays): whether the holiday falls into the period of each time."""
        if not self.holidays or times.size == 0:
            return np.zeros((*times.shape, len(self.holidays)), bool)
        first, last = self.period_days(times)
        start, stop = int(first.min()), int(last.max()) + 1
        total = _holidays_before(self.holidays, start, stop)
        return total[last + 1 - start] > total[first - start]

    def holiday_days(self, start: int, stop: int) -> list[np.ndarray]:
        """The days (since 1970) of each holiday from `start` to before `stop`."""
        return _holiday_days(self.holidays, start, stop)

    def period_days(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and last day (since 1970) of the period of each time."""
        frequency = self.axis.frequency
        days = self.axis.wall(times) // DAY
        if frequency.sub_daily or frequency.unit == "business" or frequency.size == DAY:
            return days, days
        steps, _ = frequency.steps(times)
        if self.stamp == "start":
            return days, frequency.times(steps + 1) // DAY - 1
        return frequency.times(steps - 1) // DAY + 1, days


def occurring_holidays(schema: Schema, axis: TimeAxis, first: int, last: int) -> tuple[tuple[str, str], ...]:
    """Every holiday (region, name) in the periods from one time to another."""
    first_days, last_days = Calendar(schema, axis, ()).period_days(np.array([first, last]))
    start, stop = int(first_days[0]), int(last_days[1])
    return tuple(
        (region, name)
        for region in schema.holidays
        for name, days in sorted(_holidays(region, *_years(start, stop)).items())
        if any(start <= day <= stop for day in days)
    )


def check_regions(regions: tuple[str, ...]) -> None:
    for region in regions:
        _holidays(region, 2020, 2021)


def _years(first_day: int, last_day: int) -> tuple[int, int]:
    first, last = np.array([first_day, last_day]).astype("M8[D]").astype("M8[Y]").astype(int) + 1970
    return int(first), int(last) + 1


@lru_cache(maxsize=256)
def _holidays(region: str, first_year: int, end_year: int) -> dict[str, tuple[int, ...]]:
    """Days since 1970 of each holiday of a country ('US') or of a region ('DE-BY')."""
    import holidays as holiday_lists  # slow to import

    country, _, part = region.partition("-")
    try:
        spoken = getattr(holiday_lists, country).supported_languages
        english = "en_US" if "en_US" in spoken else None  # otherwise names would depend on the locale of the machine
        years = range(first_year, end_year)
        dates = holiday_lists.country_holidays(country, subdiv=part or None, years=years, language=english)
    except (AttributeError, NotImplementedError):  # no such country; the library's error for no such part of it
        raise ConfigError(f"there are no holidays for {region!r}; use a code such as 'US', 'DE' or 'DE-BY'") from None
    days: dict[str, list[int]] = {}
    for date in sorted(dates):
        for name in dates.get_list(date):
            days.setdefault(name, []).append(int(np.datetime64(date, "D").astype(int)))
    return {name: tuple(dates) for name, dates in days.items()}


def _holiday_days(holidays: tuple[tuple[str, str], ...], start: int, stop: int) -> list[np.ndarray]:
    of = {region: _holidays(region, *_years(start, stop)) for region in {region for region, _ in holidays}}
    days = (of[region].get(name, ()) for region, name in holidays)
    return [np.array([day for day in of_one if start <= day < stop], np.int64) for of_one in days]


@lru_cache(maxsize=64)
def _holidays_before(holidays: tuple[tuple[str, str], ...], start: int, stop: int) -> np.ndarray:
    """(days + 1, holidays): how often each holiday is on the first 0, 1, 2 … days from `start` to before `stop`."""
    on_day = np.zeros((stop - start, len(holidays)), np.int32)
    for i, days in enumerate(_holiday_days(holidays, start, stop)):
        on_day[days - start, i] = 1
    return np.concatenate((np.zeros((1, len(holidays)), np.int32), on_day.cumsum(axis=0, dtype=np.int32)))


def _week_of_year(times: np.ndarray) -> np.ndarray:
    """ISO week − 1: the week with the first Thursday of the year is 0."""
    thursday = times // DAY - weekday(times) + 3
    year_start = thursday.astype("M8[D]").astype("M8[Y]").astype("M8[D]").astype(np.int64)
    return (thursday - year_start) // 7


def _month(times: np.ndarray) -> np.ndarray:
    return times.astype("M8[us]").astype("M8[M]").astype(np.int64) % 12


def _day_of_month(times: np.ndarray) -> np.ndarray:
    stamps = times.astype("M8[us]")
    return times // DAY - stamps.astype("M8[M]").astype("M8[D]").astype(np.int64)


_FEATURE = {
    "minute_of_hour": lambda times: times // MINUTE % 60,
    "hour_of_day": lambda times: times // HOUR % 24,
    "day_of_week": weekday,
    "day_of_month": _day_of_month,
    "week_of_year": _week_of_year,
    "month": _month,
    "quarter": lambda times: _month(times) // 3,
}
