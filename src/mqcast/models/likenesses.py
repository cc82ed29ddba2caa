"""Past steps of a series that are like the step to forecast: the same weekday, the same plan, the same holiday."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mqcast.data.calendar import Calendar
from mqcast.data.frequency import DAY, HOUR
from mqcast.data.panel import Panel
from mqcast.models.target_scale import MOST_SWITCHES

if TYPE_CHECKING:
    from mqcast.models.histories import Histories

Wanted = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Likeness:
    """Steps with equal codes are alike; a code below 0 is like nothing.

    `keys` are the observed cells in the order of series, code and step, `ratios` their targets relative to the level of
    the step before. `wanted` gives the codes of targets by their row and column on the grid and their time.
    """

    name: str
    wanted: Wanted
    num_codes: int
    width: int
    keys: np.ndarray
    ratios: np.ndarray

    @classmethod
    def of(cls, name: str, histories: "Histories", cells: np.ndarray, wanted: Wanted) -> "Likeness":
        places = np.flatnonzero(histories.seen & (cells >= 0))
        row, column = np.divmod(places, histories.width)
        num_codes = int(cells.max(initial=0)) + 1
        keys = (row * num_codes + cells.reshape(-1)[places]) * histories.width + column
        order = np.argsort(keys, kind="stable")
        ratios = np.append(histories.ratio.reshape(-1)[places[order]], np.nan)
        return cls(name, wanted, num_codes, histories.width, keys[order], ratios)

    def latest(self, i: np.ndarray, t: np.ndarray, code: np.ndarray, number: int) -> np.ndarray:
        """(rows, number): ratios of the latest steps with these codes up to the columns t; NaN where there is none."""
        is_known = (code >= 0) & (code < self.num_codes)
        opening = (i * self.num_codes + np.where(is_known, code, 0)) * self.width
        start, stop = np.searchsorted(self.keys, opening), np.searchsorted(self.keys, opening + t, side="right")
        places = stop[:, None] - np.arange(1, number + 1)
        return self.ratios[np.where((places >= start[:, None]) & is_known[:, None], places, -1)]


def likenesses_of(histories: "Histories") -> Iterator[Likeness]:
    panel, num_series = histories.panel, histories.shape[0]
    of_series = np.arange(histories.first, histories.first + num_series)
    times = panel.times_at(of_series, histories.begin, histories.width)
    season = _season_codes(panel, times)
    yield Likeness.of("season", histories, season, lambda i, u, at: _season_codes(panel, at))
    plans, joint = _plan_codes(histories), np.zeros(histories.shape, np.int64)
    for name, cells in plans.items():
        if len(plans) > 1:
            yield Likeness.of(name, histories, cells, lambda i, u, at, cells=cells: cells[i, u])
        joint = joint * (int(cells.max(initial=0)) + 1) + cells
    if plans:
        size = int(season.max(initial=0)) + 1
        yield Likeness.of("plan", histories, joint, lambda i, u, at: joint[i, u])
        both = joint * size + season
        yield Likeness.of("plan and season", histories, both, lambda i, u, at: both[i, u])
    if panel.holidays:
        yield Likeness.of("holiday", histories, _holidays(panel, times), lambda i, u, at: _holidays(panel, at))
    if panel.schema.events:
        yield Likeness.of("event", histories, _events(panel, times), lambda i, u, at: _events(panel, at))


def _season_codes(panel: Panel, times: np.ndarray) -> np.ndarray:
    """The place of times in their week, or else in their year."""
    frequency = panel.axis.frequency
    if frequency.unit == "month" or frequency.size > DAY:
        name = "month" if frequency.unit == "month" else "week_of_year"
        return Calendar(panel.schema.replace(calendar=(name,)), panel.axis, ()).categories(times)[..., 0]
    part = max(frequency.size, HOUR) if frequency.sub_daily else DAY
    return panel.axis.wall(times) // part % (7 * DAY // part)


def _plan_codes(histories: "Histories") -> dict[str, np.ndarray]:
    """Codes by known column: whether a number that is sometimes 0 is more, and the values of categories."""
    schema, codes = histories.panel.schema, {}
    for k in histories.facts.switches:
        value = histories.planned[..., k]
        codes[schema.numbers("known")[k]] = np.where(np.isnan(value), 0, 1 + (value > 0))
    for k, name in enumerate(schema.categories("known")[: MOST_SWITCHES - len(codes)]):
        codes[name] = histories.planned_codes[..., k].astype(np.int64)
    return codes


def _holidays(panel: Panel, times: np.ndarray) -> np.ndarray:
    distinct, place = np.unique(times, return_inverse=True)
    flags = panel.calendar.flags(distinct)
    return np.where(flags.any(axis=1), np.argmax(flags, axis=1), -1)[place].reshape(times.shape)


def _events(panel: Panel, times: np.ndarray) -> np.ndarray:
    """One code for the events of a date, of the first columns of the table; -1 without any."""
    distinct, place = np.unique(times, return_inverse=True)
    number, category = panel.events_at(distinct)
    code = np.zeros(len(distinct), np.int64)
    for value in (number[:, :MOST_SWITCHES] > 0).T:
        code = 2 * code + value
    names = panel.schema.categories("events")
    for name, values in zip(names[: MOST_SWITCHES // 2], category.T, strict=False):
        code = code * (len(panel.vocabularies[name]) + 1) + values
    return np.where(code > 0, code, -1)[place].reshape(times.shape)
