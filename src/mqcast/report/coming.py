"""One forecast of the coming steps, beside its history: numbers by item and date, totals, and what to look at first."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.frequency import DAY, Frequency, show_time
from mqcast.data.panel import Panel
from mqcast.errors import ConfigError
from mqcast.evaluation.columns import distinct, same_clock
from mqcast.evaluation.implausible_forecasts import Implausible, implausible
from mqcast.evaluation.reading import forecast_table
from mqcast.evaluation.tables import ForecastTable
from mqcast.report.sources import Sources

MOST_ITEMS = 60_000
LISTED = 8  # items of each kind
MOST_HISTORY, HORIZONS_OF_HISTORY = 600, 5
USUAL_HISTORY = 110  # steps: two years of weeks, and some more
MOST_GROUPS, MOST_NAMES = 6, 300
STEPS = {"h": "hour", "D": "day", "B": "business day", "W": "week", "M": "month", "Q": "quarter", "Y": "year"}
WIDEST = 3.0  # times its size: beyond it an item is no more uncertain, but only smaller
YEAR = 364 * DAY  # the same day of the week
LARGE, UNCERTAIN, UNLIKE, CHANGED, NEW, LAGGING, IMPLAUSIBLE = (
    *("large", "uncertain", "unlike recent sales", "changed most", "new", "lags behind", "implausible"),
)


@dataclass(frozen=True, eq=False)
class Previous:
    """An earlier forecast, at the level closest to the median: NaN where it has none."""

    values: np.ndarray  # (items, dates)
    cutoff: str
    level: float
    num_gone: int  # items that it had, and that are not forecast any more


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over all items by date. `sold` is NaN where nothing was observed, `medians` where nothing is forecast."""

    times: np.ndarray
    sold: np.ndarray
    observed: np.ndarray  # how many items were
    medians: np.ndarray
    on_promotion: dict[str, np.ndarray]  # how many items are


@dataclass(frozen=True, eq=False)
class Coming:
    """A forecast of each item from its last cutoff. Arrays have a row for each item that is shown, a column for a date.

    numbers   prices and other known numbers that are drawn below the sales
    groups    what items can be chosen by: the text of each item
    num_all   items that are forecast, whether or not they are shown
    """

    sources: Sources
    table: ForecastTable
    items: np.ndarray  # that are shown, by their place in table.ids
    times: np.ndarray
    cutoff: np.ndarray  # of each item, by its place in times
    sold: np.ndarray
    quantiles: np.ndarray  # (level, item, date)
    flags: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]
    groups: dict[str, list[str]]
    totals: Totals
    implausible: Implausible
    previous: Previous | None = None
    ids: list[str] = field(default_factory=list)

    @property
    def levels(self) -> tuple[float, ...]:
        return self.table.levels

    @property
    def middle(self) -> int:
        return middle_of(self.levels)

    @property
    def num_all(self) -> int:
        return len(distinct(self.table.item))

    @property
    def horizon(self) -> int:
        return int(self.table.lead.max())

    @cached_property
    def dates(self) -> list[str]:
        return [show_time(int(time)) for time in self.sources.observed.clock.wall(self.times)]

    @cached_property
    def events(self) -> dict[str, list[int]]:
        """Holidays and events → the places of their dates."""
        assert self.sources.calendar is not None
        dates = self.table.clock.dates(self.times).to_list()
        place = {date: i for i, date in enumerate(dates)}
        found = self.sources.calendar.events_on(dates)
        on_page = {name: [place[date] for date in days if date in place] for name, days in found.items()}
        return {name: places for name, places in on_page.items() if places}

    @cached_property
    def step(self) -> str:
        assert self.sources.calendar is not None
        return step_of(self.sources.calendar.panel.axis.frequency)

    def steps(self, number: int | None = None) -> str:
        """13 weeks."""
        number = self.horizon if number is None else number
        return f"{number} {self.step}{'s' if number != 1 else ''}"

    # -- of each item --------------------------------------------------------------------------------------------------

    @cached_property
    def total(self) -> np.ndarray:
        """The sum of the medians."""
        return np.nansum(self.quantiles[self.middle], axis=1)

    @cached_property
    def width(self) -> np.ndarray:
        """The sum of the distances from the lowest to the highest quantile."""
        return np.nansum(self.quantiles[-1] - self.quantiles[0], axis=1)

    @cached_property
    def before(self) -> np.ndarray:
        """What was sold in as many steps before the cutoff; NaN unless all of them were observed."""
        steps = self.cutoff[:, None] - np.arange(self.horizon)
        sold = np.take_along_axis(self.sold, np.maximum(steps, 0), axis=1)
        return np.where(steps >= 0, sold, np.nan).sum(axis=1)

    @cached_property
    def lags(self) -> np.ndarray:
        """Whether an item was not observed at its own cutoff."""
        return np.isnan(self.sold[np.arange(len(self.ids)), self.cutoff])

    @cached_property
    def difference(self) -> np.ndarray | None:
        """(items, dates): the median minus that of the previous forecast, NaN where one of them is missing."""
        return None if self.previous is None else self.quantiles[self.middle] - self.previous.values

    @cached_property
    def change(self) -> np.ndarray | None:
        """The sum of the differences on the dates that both forecasts have; NaN if there are none."""
        return None if self.difference is None else _sum(self.difference)

    # -- what to look at -----------------------------------------------------------------------------------------------

    @cached_property
    def reasons(self) -> dict[str, np.ndarray]:
        """Why items are to be looked at → the items, most important first."""
        found = {IMPLAUSIBLE: self._implausible(), LAGGING: np.flatnonzero(self.lags)}
        if self.difference is not None:
            found[CHANGED] = _most(_sum(np.abs(self.difference)))
            found[NEW] = np.flatnonzero(np.isnan(self.difference).all(axis=1) & (self.total > 0))
        found[UNLIKE] = _most(_weighed(np.abs(self.total - self.before), np.fmax(self.total, self.before)))
        if len(self.levels) > 1:
            found[UNCERTAIN] = _most(_weighed(self.width, self.total))
        found[LARGE] = _most(self.total)
        return {reason: items for reason, items in found.items() if len(items)}

    def _implausible(self) -> np.ndarray:
        one = self.implausible.verdicts[0]
        items = pl.Series([*self.table.item[one.rows], *one.zeros]).unique(maintain_order=True).to_list()
        place = {item: i for i, item in enumerate(self.items.tolist())}
        return np.array([place[item] for item in items if item in place], int)

    @cached_property
    def first(self) -> dict[int, list[str]]:
        """The items to look at first → why, in turn from each list."""
        lists = {reason: items[:LISTED] for reason, items in self.reasons.items()}
        picked: dict[int, list[str]] = {}
        for place in range(LISTED):
            for reason, items in lists.items():
                if place < len(items):
                    picked.setdefault(int(items[place]), []).append(reason)
        return picked


def coming_of(forecasts: Any, panel: Panel, model: str, previous: Any = None) -> Coming:
    """The forecasts from each item's last cutoff, beside the panel's rows; previous: an earlier frame or file."""
    sources = Sources.of({model: forecasts}, panel=panel)
    table = _last_cutoffs(sources.first)
    missing = [table.ids[i] for i in np.flatnonzero(sources.observed.items_of(table.ids) < 0)]
    if missing:
        raise ConfigError(f"{missing[0]!r} is forecast, but not in the panel; give the panel that was forecast")
    observed, target = sources.observed, distinct(table.time)
    horizon, end = int(table.lead.max()), int(table.cutoff.max())
    steps = min(MOST_HISTORY, max(USUAL_HISTORY, HORIZONS_OF_HISTORY * horizon))
    earlier = observed.dates[observed.dates <= end]
    times = distinct(np.concatenate([earlier[-steps:], distinct(table.cutoff), target]))
    items = _largest(table)
    grid = _Grid(items, times, len(table.ids))
    rows = observed.items_of(table.ids)
    places = np.full(len(observed.ids), -1)
    places[rows] = np.arange(len(table.ids))
    of_rows = places[observed.item]
    assert len(of_rows) == panel.num_rows
    flags, numbers = _covariates(sources, lambda values: grid.of(of_rows, observed.time, values))
    cutoff = np.zeros(len(table.ids), np.int64)
    cutoff[table.item] = np.searchsorted(times, table.cutoff)
    ids = [table.ids[i] for i in items]
    return Coming(
        sources,
        table,
        items,
        times,
        cutoff[items],
        np.where(times <= times[cutoff[items]][:, None], grid.of(of_rows, observed.time, observed.value), np.nan),
        np.stack([grid.of(table.item, table.time, column) for column in table.quantiles.T]),
        flags,
        numbers,
        _groups(sources, ids),
        _totals(sources, table, times, of_rows),
        implausible({model: table}, observed),
        None if previous is None else _previous(previous, table, grid),
        ids,
    )


def middle_of(levels: tuple[float, ...]) -> int:
    """The place of the level closest to the median."""
    return int(np.argmin(np.abs(np.array(levels) - 0.5)))


def step_of(frequency: Frequency) -> str:
    """week, day, month …; a grid without such a name has steps."""
    named = re.fullmatch(r"([A-Za-z])[SE]?(-.+)?", str(frequency))
    return STEPS.get(named[1], "step") if named else "step"


@dataclass(frozen=True, eq=False)
class _Grid:
    """Rows of a table as a matrix of the items and dates that are shown."""

    items: np.ndarray
    times: np.ndarray
    num_all: int

    def of(self, item: np.ndarray, time: np.ndarray, value: np.ndarray) -> np.ndarray:
        """item: by its place in the table of forecasts; -1: none of them."""
        row = np.full(self.num_all + 1, -1)
        row[self.items] = np.arange(len(self.items))
        place = np.minimum(np.searchsorted(self.times, time), len(self.times) - 1)
        shown = (row[item] >= 0) & (self.times[place] == time)
        matrix = np.full((len(self.items), len(self.times)), np.nan)
        matrix[row[item[shown]], place[shown]] = np.asarray(value, float)[shown]
        return matrix


def _last_cutoffs(table: ForecastTable) -> ForecastTable:
    last = np.full(len(table.ids), np.iinfo(np.int64).min)
    np.maximum.at(last, table.item, table.cutoff)
    return table.where(table.cutoff == last[table.item])


def _largest(table: ForecastTable) -> np.ndarray:
    """The items that are shown, by id: all, or the largest if they are too many."""
    items = distinct(table.item)
    if len(items) <= MOST_ITEMS:
        return items
    total = np.bincount(table.item, table.quantiles[:, middle_of(table.levels)], minlength=len(table.ids))
    return np.sort(items[np.argsort(-total[items], kind="stable")[:MOST_ITEMS]])


def _covariates(sources: Sources, matrix: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Flags and the numbers that are drawn, known and past."""
    assert sources.calendar is not None
    flags, rows = sources.calendar.flags(("known", "past")), sources.calendar.frames.rows
    marked = {name: np.nan_to_num(matrix(_floats(flags[name]))) > 0 for name in flags.columns[2:]}
    return {name: flag for name, flag in marked.items() if flag.any()}, {
        name: matrix(_floats(rows[name])) for name in sources.calendar.numbers
    }


def _floats(column: pl.Series) -> np.ndarray:
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _groups(sources: Sources, ids: list[str]) -> dict[str, list[str]]:
    assert sources.calendar is not None
    panel, static = sources.calendar.panel, sources.calendar.frames.static
    if static is None:
        return {}
    of_items = pl.DataFrame({panel.schema.id: ids}).join(static, on=panel.schema.id, how="left", maintain_order="left")
    names = [name for name in panel.schema.categories("static") if name != panel.schema.id]
    few = [name for name in names if 1 < of_items[name].n_unique() <= MOST_NAMES]
    return {name: of_items[name].fill_null("").to_list() for name in few[:MOST_GROUPS]}


def _totals(sources: Sources, table: ForecastTable, times: np.ndarray, of_rows: np.ndarray) -> Totals:
    """Over all items that are forecast, from a year before the dates that are shown."""
    observed, end = sources.observed, int(table.cutoff.max())
    times = distinct(
        np.concatenate([observed.dates[(observed.dates > times[0] - YEAR) & (observed.dates <= end)], times])
    )
    place = np.minimum(np.searchsorted(times, observed.time), len(times) - 1)
    inside = (of_rows >= 0) & (times[place] == observed.time)
    known = inside & ~np.isnan(observed.value) & (observed.time <= end)
    number = np.bincount(place[known], minlength=len(times))
    sold = np.bincount(place[known], observed.value[known], minlength=len(times))
    ahead = np.searchsorted(times, table.time)
    medians = np.bincount(ahead, table.quantiles[:, middle_of(table.levels)], minlength=len(times))
    is_ahead = np.bincount(ahead, minlength=len(times)) > 0
    assert sources.calendar is not None
    promotions = sources.calendar.flags(("known",))
    on = {
        name: np.bincount(place[inside & promotions[name].fill_null(False).to_numpy()], minlength=len(times))
        for name in promotions.columns[2:]
    }
    return Totals(times, np.where(number > 0, sold, np.nan), number, np.where(is_ahead, medians, np.nan), on)


def _previous(previous: Any, table: ForecastTable, grid: _Grid) -> Previous:
    before = _last_cutoffs(forecast_table(previous, table.names))
    same_clock(before.clock, table.clock, "the previous forecasts", "the forecasts")
    place = {name: i for i, name in enumerate(table.ids)}
    items = np.array([place.get(name, -1) for name in before.ids], np.int64)
    middle = middle_of(before.levels)
    values = grid.of(items[before.item], before.time, before.quantiles[:, middle])
    ahead = np.isfinite(values) & np.isfinite(grid.of(table.item, table.time, table.quantiles[:, 0]))
    if not ahead.any():
        raise ConfigError(
            f"the previous forecast, made at {show_time(int(before.cutoff.max()))}, has no item and date in common "
            "with this one; give the forecast of the run before this one"
        )
    cutoff = show_time(int(before.clock.wall(distinct(before.cutoff)[-1:])[0]))
    return Previous(values, cutoff, before.levels[middle], int(np.count_nonzero(items[distinct(before.item)] < 0)))


def _sum(values: np.ndarray) -> np.ndarray:
    """The sum of each row's numbers; NaN if it has none."""
    return np.where(np.isnan(values).all(axis=1), np.nan, np.nansum(values, axis=1))


def _weighed(units: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Units times the share of the size that they are: neither the large alone nor the erratic alone come first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return units * np.minimum(units / size, WIDEST)


def _most(values: np.ndarray) -> np.ndarray:
    """Places of the largest values above 0."""
    order = np.argsort(-np.nan_to_num(values, nan=-1), kind="stable")[:LISTED]
    return order[np.nan_to_num(values)[order] > 0]
