"""Slices: named sets of forecasts, declared once and used by accuracy, volatility and reports alike.

    slices = [
        peaks(events, ["holiday_winter"]),
        ramp_down(events, ["holiday_winter"], periods=2),
        promotions(frame, ["promo_display", "promo_coupon"]),
        short_horizons(6),
        demand_deciles(actuals),
    ]

Each function gives one slice or several; lists of lists are fine wherever `slices=` is asked for.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mqcast.data.frequency import DAY
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation.columns import (
    columns_of,
    distinct,
    frequency_of,
    ids_of,
    numbers_of,
    same_clock,
    sorting,
    steps_between,
    text_ids,
    times_of,
)
from mqcast.evaluation.reading import actuals_table
from mqcast.evaluation.tables import ForecastTable, Keyed, Names
from mqcast.settings import nearest

OVERALL = "Overall"


@dataclass(frozen=True, eq=False)
class Slice:
    """A name, and which rows of forecasts belong to it."""

    name: str
    rows: Callable[[ForecastTable], np.ndarray]

    def of(self, forecasts: ForecastTable) -> np.ndarray:
        rows = np.asarray(self.rows(forecasts))
        if rows.shape != (forecasts.num_rows,) or rows.dtype != bool:
            raise ConfigError(f"slice {self.name!r} gave {rows.dtype} {rows.shape}; give true or false a row")
        return rows


Slices = Slice | Iterable["Slices"]


def flattened(slices: "Slices | None") -> list[Slice]:
    """One list, each name once."""
    if slices is None:
        return []
    if isinstance(slices, Slice):
        return [slices]
    if isinstance(slices, str) or not isinstance(slices, Iterable):
        raise ConfigError(f"slices has {slices!r}; give what the functions of mqcast.evaluation.slices return")
    flat = [one for part in slices for one in flattened(part)]
    for i, one in enumerate(flat):
        if one.name in [OVERALL, *(other.name for other in flat[:i])]:
            raise ConfigError(f"two slices are named {one.name!r}; give one another name")
    return flat


def peaks(events: Any, columns: Sequence[str] | None = None, *, time: str | None = None) -> list[Slice]:
    """Targets on the dates of named events: {"Black Friday": dates}, or the flag columns of an event table."""
    return [Slice(name, _on(dates)) for name, dates in _event_dates(events, columns, time).items()]


def ramp_down(
    events: Any,
    columns: Sequence[str] | None = None,
    *,
    periods: int = 2,
    name: str = "Post-peak ramp-down",
    time: str | None = None,
) -> Slice:
    """Targets in the first periods after a peak, other than peaks themselves. Events as for `peaks`."""
    given = list(_event_dates(events, columns, time).values())

    def rows(forecasts: ForecastTable) -> np.ndarray:
        dates = distinct(np.concatenate([_targets_on(days, forecasts) for days in given] or [np.zeros(0, np.int64)]))
        if not len(dates):
            return np.zeros(forecasts.num_rows, bool)
        grid = distinct(np.concatenate([distinct(forecasts.time), distinct(forecasts.cutoff), dates]))
        last = np.searchsorted(dates, forecasts.time, side="right") - 1
        since = steps_between(dates[np.maximum(last, 0)], forecasts.time, grid)
        return (last >= 0) & (since >= 1) & (since <= periods)

    return Slice(name, rows)


def top_periods(
    actuals: Any,
    share: float = 0.05,
    *,
    name: str | None = None,
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Slice:
    """Targets on the dates with the highest total demand, among those that are forecast."""
    if not 0 < share < 1:
        raise ConfigError(f"share is {share}; give one between 0 and 1")
    table = actuals_table(actuals, Names.of(schema, id=id, time=time, target=target))

    def rows(forecasts: ForecastTable) -> np.ndarray:
        dates = distinct(forecasts.time)
        totals = np.bincount(
            np.minimum(np.searchsorted(dates, table.time), len(dates) - 1),
            np.nan_to_num(table.value) * np.isin(table.time, dates),
            minlength=len(dates),
        )
        number = max(1, round(share * len(dates)))
        return np.isin(forecasts.time, dates[np.argsort(-totals, kind="stable")[:number]])

    return Slice(name or f"Top {share:.0%} of dates by demand", rows)


def promotions(
    frame: Any,
    columns: Sequence[str],
    *,
    id: str | None = None,
    time: str | None = None,
    schema: Schema | None = None,
) -> list[Slice]:
    """Targets in which a promotion ran: one slice a flag column of a frame with ids and dates."""
    called, columns = Names.of(schema, id=id, time=time), [columns] if isinstance(columns, str) else list(columns)
    table = columns_of(frame, [called.id, called.time, *columns], "the promotions")
    ids, item = ids_of(table[called.id], called.id, "the promotions")
    times, clock = times_of({called.time: table[called.time]}, "the promotions")
    dates = times[called.time]
    order, slices = sorting(ids, item, dates, "the promotions"), []
    for name in columns:
        flag = (np.nan_to_num(numbers_of(table[name], name, "the promotions")) != 0)[order]
        slices.append(Slice(name, _among(Keyed(ids, item[order][flag], dates[order][flag], clock))))
    return slices


def new_items(
    actuals: Any,
    periods: int,
    *,
    name: str | None = None,
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Slice:
    """Forecasts made when the item had been observed for fewer than `periods` dates."""
    table = actuals_table(actuals, Names.of(schema, id=id, time=time, target=target))
    observed = ~np.isnan(table.value)

    def rows(forecasts: ForecastTable) -> np.ndarray:
        first = np.full(len(table.ids) + 1, np.iinfo(np.int64).max)  # the last: an item without actuals
        np.minimum.at(first, table.item[observed], table.time[observed])
        grid = distinct(np.concatenate([table.dates, distinct(forecasts.cutoff)]))
        begun = first[table.items_of(forecasts.ids)][forecasts.item]
        return steps_between(begun, forecasts.cutoff, grid) + 1 < periods

    return Slice(name or f"New items (under {periods} dates)", rows)


def short_horizons(leads: int, *, name: str | None = None) -> Slice:
    """The first leads: forecasts made shortly before their target."""
    if leads < 1:
        raise ConfigError(f"leads is {leads}; give 1 or more")
    return Slice(name or f"Leads 1-{leads}", lambda forecasts: forecasts.lead <= leads)


def demand_deciles(
    actuals: Any,
    groups: int = 10,
    *,
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> list[Slice]:
    """Items by their mean demand up to their first cutoff, in groups of like number; the last sells most."""
    if groups < 2:
        raise ConfigError(f"groups is {groups}; give 2 or more")
    table = actuals_table(actuals, Names.of(schema, id=id, time=time, target=target))

    def rows(forecasts: ForecastTable, group: int) -> np.ndarray:
        mean = np.full(len(forecasts.ids), np.nan)
        present = np.unique(forecasts.item)
        mean[present] = table.known_mean(forecasts.ids, forecasts.first_cutoffs())[present]
        if np.isnan(mean).all():
            raise DataError("no item has demand up to its first cutoff", "give actuals that reach back before it")
        rank = np.argsort(np.argsort(mean, kind="stable"), kind="stable")
        of_item = np.where(np.isnan(mean), -1, rank * groups // max(1, int((~np.isnan(mean)).sum())))
        return of_item[forecasts.item] == group

    word = {4: "quartile", 5: "quintile", 10: "decile"}.get(groups, "group")
    return [
        Slice(f"Demand {word} {group + 1}", lambda forecasts, group=group: rows(forecasts, group))
        for group in range(groups)
    ]


def by_attribute(static: Any, column: str, *, id: str | None = None, schema: Schema | None = None) -> list[Slice]:
    """Items by a static attribute: one slice a value."""
    value_of = attribute(static, column, Names.of(schema, id=id))
    values = sorted(set(value_of.values()))
    return [
        Slice(
            f"{column}: {value}",
            lambda forecasts, value=value: np.array([value_of.get(i) == value for i in forecasts.ids])[forecasts.item],
        )
        for value in values
    ]


def attribute(static: Any, column: str, names: Names) -> dict[str, str]:
    """The attribute of each item, as text."""
    table = columns_of(static, [names.id, column], "the static table")
    texts, codes = text_ids(table[column], column, "the static table")
    ids, item = ids_of(table[names.id], names.id, "the static table")
    value_of: dict[str, str] = {}
    for i, code in zip(item, codes, strict=True):
        value = "(missing)" if code < 0 or texts[code] is None else str(texts[code])
        if value_of.setdefault(ids[i], value) != value:
            raise DataError("two values for one item", "keep one row an item", column=column, series=ids[i])
    return value_of


def _on(dates: np.ndarray) -> Callable[[ForecastTable], np.ndarray]:
    return lambda forecasts: np.isin(forecasts.time, _targets_on(dates, forecasts))


def _targets_on(dates: np.ndarray, forecasts: ForecastTable) -> np.ndarray:
    """The target dates whose period holds one of these days: the hours of the day, the week or month around it.

    A week, and a month named by its last day, is named by its end; other periods by their beginning.
    """
    targets = distinct(forecasts.time)
    frequency = frequency_of(forecasts.item[forecasts.begins], forecasts.time[forecasts.begins])
    if frequency is not None and frequency.sub_daily:
        walls, days = forecasts.clock.wall(targets), dates[dates % DAY == 0]
        return targets[np.isin(walls // DAY, days // DAY) | np.isin(walls, dates)]
    if frequency is None or np.isin(dates, targets).all():
        return dates
    longest = frequency.size if frequency.unit == "fixed" else 31 * DAY * max(1, frequency.size)
    if frequency.stamp == "end":
        place = np.searchsorted(targets, dates)
        near = targets[np.minimum(place, len(targets) - 1)]
        return near[(place < len(targets)) & (near - dates < longest)]
    place = np.searchsorted(targets, dates, side="right") - 1
    near = targets[np.maximum(place, 0)]
    return near[(place >= 0) & (dates - near < longest)]


def _among(keyed: Keyed) -> Callable[[ForecastTable], np.ndarray]:
    def rows(forecasts: ForecastTable) -> np.ndarray:
        same_clock(forecasts.clock, keyed.clock, "the forecasts", "the promotions")
        begins = forecasts.begins
        is_promoted = keyed.find(forecasts.ids, forecasts.item[begins], forecasts.time[begins]) >= 0
        return is_promoted[forecasts.trajectory]

    return rows


def _event_dates(events: Any, columns: Sequence[str] | None, time: str | None) -> dict[str, np.ndarray]:
    if isinstance(events, Mapping):
        chosen = {name: events[name] for name in columns or events if _has(events, name)}
        return {str(name): _times(dates, str(name)) for name, dates in chosen.items()}
    if columns is None:
        raise ConfigError("an event table needs columns=: the flags whose dates are peaks")
    time = time or "ds"
    columns = [columns] if isinstance(columns, str) else list(columns)
    table = columns_of(events, [time, *columns], "the event table")
    times = times_of({time: table[time]}, "the event table")[0][time]
    flags = {name: np.nan_to_num(numbers_of(table[name], name, "the event table")) != 0 for name in columns}
    return {name: distinct(times[flag]) for name, flag in flags.items()}


def _has(events: Mapping, name: str) -> bool:
    if name not in events:
        raise ConfigError(f"there is no event {name!r}{nearest(name, [str(key) for key in events])}")
    return True


def _times(dates: Any, name: str) -> np.ndarray:
    """Microseconds of a date or of several, in any usual form."""
    listed = [dates] if isinstance(dates, str) or not isinstance(dates, Iterable) else list(dates)
    try:
        plain = [date.replace(tzinfo=None) if isinstance(date, dt.datetime) else date for date in listed]
        times = np.array([np.datetime64(date) for date in plain], "M8[us]")
        if np.isnat(times).any():
            raise ValueError
        return distinct(times.astype(np.int64))
    except (TypeError, ValueError):
        shown = ", ".join(str(date) for date in listed[:3])
        raise ConfigError(f"event {name!r}: {shown} … are no dates; give dates such as '2024-11-29'") from None
