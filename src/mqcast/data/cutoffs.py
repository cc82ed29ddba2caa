"""The cutoffs of forecasts, as windows.

The series that are forecast from a cutoff, and the windows that share a batch, depend only on what was known at it.
Otherwise later rows could change the shape of a batch, and with it the last bits of floating-point sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from mqcast.data.frequency import show_time
from mqcast.data.panel import Panel
from mqcast.data.windows import Windows
from mqcast.errors import DataError
from mqcast.settings import WindowConfig

STEPS_AT_A_TIME = 2**22  # checked for observations
FCTS_AT_A_TIME = 2**12  # in all windows of a batch


@dataclass(frozen=True)
class CutoffPlan:
    """Runs of cutoffs: entry i is series[i] from first_fct[i] to last_fct[i]; a series with long gaps has several runs.

    Windows start `num_fcts` steps apart, counted from `origin`, the step of each series at the first cutoff. `entered`
    is the time of the first row of a series that starts after the first cutoff: it shares no batch with earlier series.
    """

    panel: Panel
    config: WindowConfig
    series: np.ndarray
    first_fct: np.ndarray
    last_fct: np.ndarray
    origin: np.ndarray
    entered: np.ndarray
    num_cutoffs: int

    @classmethod
    def between(
        cls, panel: Panel, config: WindowConfig, first: int, last: int, max_unobserved_steps: int | None = None
    ) -> "CutoffPlan":
        """Cutoffs from one time to another; a series that was not observed for more than `max_unobserved_steps` (None:
        the horizon) is left out."""
        origin, latest = panel.steps_until(first - 1) + 1, panel.steps_until(last)
        max_unobserved_steps = config.horizon if max_unobserved_steps is None else max_unobserved_steps
        series, first_fct, last_fct = _alive(panel, config, origin, latest, max_unobserved_steps)
        if series.size == 0:
            raise _nothing_to_forecast(panel, config, first, last, max_unobserved_steps)
        on_axis = panel.axis.frequency.floor(np.array([first, last]))
        num_cutoffs = int(max(on_axis[1] - on_axis[0], (last_fct - origin[series]).max())) + 1
        config = config.replace(num_fcts=min(config.num_fcts, num_cutoffs))  # windows no longer than necessary
        is_late = (panel.first_step > panel.steps_until(first))[series]
        entered = np.where(is_late, panel.times_at(series, panel.first_step[series], 1)[:, 0], first)
        return cls(panel, config, series, first_fct, last_fct, origin[series], entered, num_cutoffs)

    @classmethod
    def of_blocks(cls, panel: Panel, config: WindowConfig) -> "CutoffPlan":
        """Every creation time with `min_history` rows before it and `horizon` rows after it, observed or not."""
        first, last = panel.first_step + max(config.min_history, 1) - 1, panel.last_step - config.horizon
        series = np.flatnonzero(first <= last)
        if series.size == 0:
            raise DataError(
                f"no series has {config.min_history} + {config.horizon} rows", "use a shorter min_history or horizon"
            )
        first, last = first[series], last[series]
        origin, entered = np.full(series.size, first.min()), np.zeros(series.size, np.int64)
        return cls(panel, config, series, first, last, origin, entered, int((last - origin).max()) + 1)

    @property
    def num_trajectories(self) -> int:
        """(series, cutoff) pairs."""
        return int((self.last_fct - self.first_fct + 1).sum())

    @property
    def first_series(self) -> np.ndarray:
        """The series that are forecast from the first cutoff."""
        opening = self.first_fct - self.origin
        place = np.lexsort((opening, self.entered))[0]
        is_first = (self.entered == self.entered[place]) & (opening == opening[place])
        return np.unique(self.series[is_first])

    def of_series(self, series: range) -> "CutoffPlan | None":
        """The plan for some neighbouring series; None if it is empty."""
        inside = slice(*np.searchsorted(self.series, (series.start, series.stop)))
        if self.series[inside].size == 0:
            return None
        entries = ("series", "first_fct", "last_fct", "origin", "entered")
        return replace(self, **{name: getattr(self, name)[inside] for name in entries})

    def batches(self) -> Iterator[Windows]:
        """Batches of at most `batch_size` windows that start at the same date, with their length on the grid."""
        size = self.config.num_fcts
        batch_size = max(1, min(self.config.batch_size, FCTS_AT_A_TIME // size))
        begin, end = self.first_fct - self.origin, self.last_fct - self.origin
        num_cells = end // size - begin // size + 1
        owner = np.repeat(np.arange(self.series.size), num_cells)
        number = np.arange(owner.size) - np.repeat(np.cumsum(num_cells) - num_cells, num_cells)
        opening = np.maximum(begin[owner], (begin // size)[owner] * size + number * size)
        order = np.lexsort((owner, opening, self.entered[owner]))
        owner, opening = owner[order], opening[order]
        entered = self.entered[owner]
        is_new = (np.diff(opening, prepend=-1) != 0) | (np.diff(entered, prepend=entered[0]) != 0)
        bounds = np.append(np.flatnonzero(is_new), owner.size)
        for a, b in pairwise(bounds):
            for i in range(a, b, batch_size):
                yield self._windows(owner[i : min(i + batch_size, b)], int(opening[i]))

    def _windows(self, owner: np.ndarray, opening: int) -> Windows:
        size, start = self.config.num_fcts, self.origin[owner] + opening
        num_fcts = min((opening // size + 1) * size, self.num_cutoffs) - opening
        last = np.minimum(self.last_fct[owner], start + num_fcts - 1)
        return Windows(self.series[owner], start, start, last, last, num_fcts)


def _nothing_to_forecast(panel: Panel, config: WindowConfig, first: int, last: int, most: int) -> DataError:
    """Why no series is forecast from one time to another."""
    axis, span = panel.axis, " to ".join(dict.fromkeys((show_time(first), show_time(last))))
    if first == last and panel.schema.time_grid == "calendar":
        near = int(axis.frequency.times(axis.frequency.floor(np.array([first])))[0])
        if near != first:
            return DataError(f"the cutoff {span} is no date of {axis.frequency}", f"give {show_time(near)}")
    return DataError(
        f"no series can be forecast from {span}: the data go from {show_time(panel.span[0])} to "
        f"{show_time(panel.last_observed_time())}, and a series is forecast from its row {max(config.min_history, 1)} "
        f"on, up to {most} steps after its last observation",
        "give another cutoff",
    )


def _alive(
    panel: Panel, config: WindowConfig, earliest: np.ndarray, latest: np.ndarray, max_unobserved_steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Series, first and last step of every run of cutoffs with an observation in the `max_unobserved_steps` up to them.

    The step before the first row of a series counts as an observation. A series that was never observed is forecast
    from that step on, the others from their first rows.
    """
    never = panel.last_observed < panel.first_step
    first = np.where(never, panel.first_step - 1, panel.first_step + max(config.min_history, 1) - 1)
    first = np.maximum(first, earliest)
    ended = panel.last_observed <= first  # nothing is observed within the span
    last = np.where(ended, np.minimum(latest, panel.last_observed + max_unobserved_steps), latest)
    wanted = first <= last
    is_plain = ended | (max_unobserved_steps >= latest - panel.first_step + 1)
    plain, others = np.flatnonzero(wanted & is_plain), np.flatnonzero(wanted & ~is_plain)
    runs = [(plain, first[plain], last[plain])]
    width = int((last - first)[others].max(initial=0)) + 1 + max_unobserved_steps
    for start in range(0, others.size, size := max(1, STEPS_AT_A_TIME // width)):
        series = others[start : start + size]
        runs.append(_runs(panel, series, first[series], last[series], max_unobserved_steps, width))
    series, begin, end = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    order = np.lexsort((begin, series))
    return series[order], begin[order], end[order]


def _runs(
    panel: Panel, series: np.ndarray, first: np.ndarray, last: np.ndarray, max_unobserved_steps: int, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The runs of cutoffs of some series, found by checking every step."""
    start = first - max_unobserved_steps
    rows, exists = panel.rows_at(series, start, width)
    steps = start[:, None] + np.arange(width)
    is_seen = exists & ~np.isnan(panel.target[rows]) | (steps == panel.first_step[series][:, None] - 1)
    latest = np.maximum.accumulate(np.where(is_seen, np.arange(width), -max_unobserved_steps - 1), axis=1)
    is_alive = (
        (np.arange(width) - latest <= max_unobserved_steps) & (steps >= first[:, None]) & (steps <= last[:, None])
    )
    padded = np.pad(is_alive, ((0, 0), (1, 1)))
    begins = np.nonzero(padded[:, 1:] & ~padded[:, :-1])
    ends = np.nonzero(padded[:, :-1] & ~padded[:, 1:])
    return series[begins[0]], start[begins[0]] + begins[1], start[ends[0]] + ends[1] - 1
