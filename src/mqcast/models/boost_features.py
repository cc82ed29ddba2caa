"""Features of boosted trees: what was known at a cutoff about a step after it, relative to the level of the series.

A row is (series, cutoff, steps ahead). Every feature is a function of the history up to the cutoff, the plan up to the
last step of the horizon, the calendar and the attributes. No row depends on other rows, or on other series.
"""

import numpy as np

from mqcast.data.values import UNKNOWN
from mqcast.models.boost_calendar import calendar_columns
from mqcast.models.histories import Histories, window_mean
from mqcast.models.target_scale import Origins, Scale

NUM_LAGS, NUM_CYCLES, NUM_YEARS = 4, 4, 2  # last steps, and same steps of cycles and years, that are features
FEW, MANY = 4, 16  # of the latest steps like the target, whose mean is a feature
NEIGHBOURS = (-1, 1, -2, 2)  # steps from the target at which the plan is a feature
MOST_PLANNED = 12  # known numbers, beyond which their neighbours are left out
MOST_VALUES = 256  # of a category that is a feature

Columns = dict[str, np.ndarray]


def matrix(histories: Histories, origins: Origins, ahead: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """(rows, features) in float32, and the names of the features; those of categories begin with `code:`."""
    rows = Rows(histories, origins, ahead)
    columns = {"ahead": ahead} | rows.recent() | rows.seasons() | rows.calendar() | rows.plan() | rows.events()
    columns |= rows.alike() | rows.past() | rows.static()
    return np.stack([column.astype(np.float32) for column in columns.values()], axis=1), tuple(columns)


class Rows:
    """Rows of some series: row i of the grid, the columns t of the cutoff and u of the target, and its time."""

    def __init__(self, histories: Histories, origins: Origins, ahead: np.ndarray):
        self.histories, self.origins, self.ahead = histories, origins, ahead
        self.panel, self.spans, self.facts = histories.panel, histories.spans, histories.facts
        self.i, self.t = histories.places(origins)
        self.u, self.last = self.t + ahead, self.t + histories.facts.horizon
        self.scale = histories.scale_at(origins)
        self.times = self.panel.times_at(origins.series, origins.cutoff + ahead, 1)[:, 0]

    # -- the target's own past -----------------------------------------------------------------------------------------

    def recent(self) -> Columns:
        histories, spans, i, t = self.histories, self.spans, self.i, self.t
        columns = {f"lag {back}": self._value(t - back) for back in range(NUM_LAGS)}
        means = {length: self._mean(t, length) for length in spans.windows}
        columns |= {f"mean {length}": mean for length, mean in means.items()}
        for short, long in zip(spans.windows[1:], spans.windows[3:], strict=False):
            columns[f"trend {short} {long}"] = means[short] - means[long]
        for length in (spans.windows[1], spans.windows[3], spans.level):
            mean, count = window_mean(histories.ratio_sums, histories.counts, i, t, length)
            square, _ = window_mean(histories.ratio_squares, histories.counts, i, t, length)
            columns[f"spread {length}"] = np.where(count > 1, np.sqrt(np.maximum(square - mean**2, 0)), np.nan)
            if self.facts.never_negative:
                columns[f"zeros {length}"] = 1 - window_mean(histories.sale_counts, histories.counts, i, t, length)[0]
        last = histories.last_sale[i, t]
        columns["since sale"] = np.where(last >= 0, t - last, np.nan)
        columns["seen"] = histories.counts[i, t + 1]
        columns["level"] = np.log(self.scale.level) if self.scale.in_logs else self.scale.level
        columns["unit"] = np.log(self.scale.unit)
        return columns

    def seasons(self) -> Columns:
        """The same step of earlier cycles and years, and how sales went from there to here a year ago."""
        spans, i, t, columns = self.spans, self.i, self.t, {}
        for cycle in spans.cycles:
            same = self.u - -(-self.ahead // cycle) * cycle
            values = [self._value(same - cycle * back) for back in range(NUM_CYCLES)]
            columns |= {f"cycle {cycle} {back}": value for back, value in enumerate(values)}
            columns[f"median {cycle}"] = _median(np.stack(values, axis=1))
        length, around = spans.windows[3], max(1, spans.year // 104)
        for years in range(1, NUM_YEARS + 1 if spans.year > 1 else 1):
            back = (-(-self.ahead // spans.year) + years - 1) * spans.year
            same, then = self.u - back, t - back
            for shift in (-1, 0, 1):
                columns[f"year {years} {shift:+}"] = self._value(np.where(same + shift <= t, same + shift, -1))
            scale = Scale(*(part[i, np.maximum(then, 0)] for part in self.histories.scale), in_logs=self.scale.in_logs)
            before = self.histories.mean(i, then, length)
            base = np.where(then >= 0, scale.forward(before), np.nan)
            near = self.histories.mean(i, np.minimum(same + around, t), 2 * around + 1)
            columns[f"season {years}"] = scale.forward(near) - base
            columns[f"season day {years}"] = scale.forward(self.histories.at(self.histories.y, i, same)) - base
            columns[f"growth {years}"] = self._mean(t, length) - self.scale.forward(before)
        return columns

    def alike(self) -> Columns:
        """Mean ratios to the level on past steps that are like the target: the same weekday, plan, holiday."""
        columns: Columns = {}
        for likeness in self.histories.likenesses:
            wanted = likeness.wanted(self.i, self.u, self.times)
            ratios = likeness.latest(self.i, self.t, wanted, MANY)
            is_one, running = ~np.isnan(ratios), np.add.accumulate(np.nan_to_num(ratios), axis=1)
            for number in (FEW, MANY):
                count = is_one[:, :number].sum(axis=1)
                columns[f"alike {likeness.name} {number}"] = _quotient(running[:, number - 1], count)
            columns[f"alike {likeness.name} count"] = np.where(wanted >= 0, is_one.sum(axis=1), np.nan)
        return columns

    def _value(self, column: np.ndarray) -> np.ndarray:
        return self.scale.forward(self.histories.at(self.histories.y, self.i, column))

    def _mean(self, last: np.ndarray, length: int) -> np.ndarray:
        return self.scale.forward(self.histories.mean(self.i, last, length))

    # -- the target's date and plan ------------------------------------------------------------------------------------

    def calendar(self) -> Columns:
        distinct, place = np.unique(self.times, return_inverse=True)
        columns = calendar_columns(self.panel.schema, self.panel.axis, self.panel.holidays, self.spans, distinct)
        return {name: value[place] for name, value in columns.items()}

    def plan(self) -> Columns:
        """Known columns at the target and around it, never beyond the horizon, next to their own past."""
        histories, i, u, columns = self.histories, self.i, self.u, {}
        names = self.panel.schema.numbers("known")
        for k, name in enumerate(names):
            grid, is_switch = histories.planned[..., k], k in self.facts.switches
            usual, _ = window_mean(*histories.planned_totals[k], i, self.t, 2 * self.spans.level)
            value = histories.at(grid, i, u)
            columns[f"plan {name}"] = value
            columns[f"plan {name} usual"] = usual if is_switch else value - usual
            if not is_switch:
                positive = (value > 0) & (usual > 0)
                ratio = np.divide(value, usual, out=np.ones(len(i)), where=positive)
                columns[f"plan {name} ratio"] = np.where(positive, np.log(ratio), np.nan)
            for shift in NEIGHBOURS if len(names) <= MOST_PLANNED else ():
                near = histories.at(grid, i, np.where(u + shift <= self.last, u + shift, -1))
                columns[f"plan {name} {shift:+}"] = near if is_switch else near - usual
        for k, name in enumerate(self.panel.schema.categories("known")):
            columns |= self._codes(f"plan {name}", histories.planned_codes[i, u, k], name)
        return columns

    def events(self) -> Columns:
        schema, columns = self.panel.schema, {}
        for shift in (0, *NEIGHBOURS) if schema.events else ():
            times = self.panel.times_at(self.origins.series, self.origins.cutoff + self.ahead + shift, 1)[:, 0]
            number, category = self.panel.events_at(times)
            is_known = self.u + shift <= self.last
            for k, name in enumerate(schema.numbers("events")):
                columns[f"event {name} {shift:+}"] = np.where(is_known, number[:, k], np.nan)
            for k, name in enumerate(schema.categories("events")):
                codes = np.where(is_known, category[:, k], UNKNOWN)
                columns |= self._codes(f"event {name} {shift:+}", codes, name)
        return columns

    # -- other columns -------------------------------------------------------------------------------------------------

    def past(self) -> Columns:
        columns: Columns = {}
        lengths = 1, self.spans.windows[1], self.spans.level
        for name, grid in self.histories.past_totals.items():
            means = [window_mean(*grid, self.i, self.t, length)[0] for length in lengths]
            columns |= {f"past {name} {length}": mean for length, mean in zip(lengths, means, strict=True)}
            for length, mean in zip(lengths[:2], means, strict=False):
                columns[f"past {name} change {length}"] = mean - means[-1]
        for name, grid in self.histories.past_codes.items():
            columns |= self._codes(f"past {name}", grid[self.i, self.t], name)
        return columns

    def static(self) -> Columns:
        schema, arrays, columns = self.panel.schema, self.panel.arrays, {}
        for k, name in enumerate(schema.numbers("static")):
            columns[f"static {name}"] = arrays["static_number"][self.origins.series, k]
        for k, name in enumerate(schema.categories("static")):
            columns |= self._codes(f"static {name}", arrays["static_category"][self.origins.series, k], name)
        return columns

    def _codes(self, text: str, codes: np.ndarray, column: str) -> Columns:
        """A category, unless it has very many values; an unknown value is missing."""
        if len(self.panel.vocabularies[column]) > MOST_VALUES:
            return {}
        return {f"code:{text}": np.where(codes == UNKNOWN, np.nan, codes)}


def _quotient(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


def _median(values: np.ndarray) -> np.ndarray:
    """The (lower) median of each row's numbers; NaN if there are none."""
    ordered, count = np.sort(values, axis=1), (~np.isnan(values)).sum(axis=1)
    return ordered[np.arange(len(values)), np.maximum(count - 1, 0) // 2]
