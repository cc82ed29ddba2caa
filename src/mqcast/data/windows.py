"""Creation times, spans of them, and the pure function (seed, epoch, step) → windows.

A window has `history` steps of context and then `num_fcts` creation times (FCTs), each with its whole horizon. With
`aligned`, the windows of one batch share their dates. The windows of an epoch are on a grid of creation times that is
shifted in each epoch, so that every (series, creation time) pair is a training trajectory exactly once per epoch.
"""

import datetime as dt
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mqcast.data.axis import TimeAxis, utc_times, wall_times
from mqcast.data.panel import Panel
from mqcast.errors import ConfigError, DataError, quoted
from mqcast.settings import WindowConfig

NUM_EPOCHS_AT_MOST = 2**31  # a separate random stream, apart from those of the epochs


def as_time(value: Any, axis: TimeAxis) -> int:
    """The time of a date on the axis: text, date, datetime, numpy or pandas timestamp."""
    bad = ConfigError(f"{quoted(value)} is not a date; write it as '2024-01-07' or give a datetime")
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise bad from None
    if not isinstance(value, dt.date | np.datetime64) or value != value:
        raise bad
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        if axis.zone is None:
            raise ConfigError(f"{value} has a time zone, but the panel has none; leave out the time zone")
        utc = np.array([value.astimezone(dt.UTC).replace(tzinfo=None)], "M8[us]").astype(np.int64)
        return int((utc if axis.in_utc else wall_times(utc, axis.zone))[0])
    time = np.array([value], "M8[us]").astype(np.int64)
    return int((utc_times(time, axis.zone) if axis.in_utc and axis.zone else time)[0])


@dataclass(frozen=True)
class Span:
    """Creation times from `first` to `last`, with targets up to `until`; None: unbounded.

    Context may start before the span.
    """

    first: int | None = None
    last: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class Windows:
    """One batch of windows: of its `num_fcts` creation times, window b scores first_fct[b] … last_fct[b].

    All are steps of the window's series. `start` is the first creation time, scored or not; nothing after `last_target`
    may be used.
    """

    series: np.ndarray
    start: np.ndarray
    first_fct: np.ndarray
    last_fct: np.ndarray
    last_target: np.ndarray
    num_fcts: int

    def __len__(self) -> int:
        return len(self.series)

    def take(self, index: np.ndarray) -> "Windows":
        steps = ("series", "start", "first_fct", "last_fct", "last_target")
        return replace(self, **{name: getattr(self, name)[index] for name in steps})

    def split(self, size: int) -> "list[Windows]":
        """Micro-batches of `size` windows, perhaps fewer in the last; they depend only on the size.

        Each has the creation times from the first to the last that one of its windows scores.
        """
        parts = (self.take(np.arange(i, min(i + size, len(self)))) for i in range(0, len(self), size))
        return [part._trimmed() for part in parts]

    def _trimmed(self) -> "Windows":
        first, last = int((self.first_fct - self.start).min()), int((self.last_fct - self.start).max())
        return replace(self, start=self.start + first, num_fcts=last - first + 1)


class WindowPlan:
    """The windows of each step of each epoch."""

    def __init__(
        self,
        panel: Panel,
        config: WindowConfig,
        span: Span | None = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
        max_windows: int | None = None,
    ):
        """With `max_windows`, at most so many windows are drawn, the same ones in every epoch of the same grid."""
        self.panel, self.config, self.seed, self.shuffle = panel, config, seed, shuffle
        self.num_drawn = max_windows if config.num_trajectories is None else config.num_trajectories
        span = span or Span()
        self.series, self.first_fct, self.last_fct, self.last_target = _creation_times(panel, config, span)
        if self.series.size == 0:
            raise DataError(
                f"no series has {config.min_history} steps of history and a target within {config.horizon} steps after "
                "in this span",
                "use a shorter min_history or horizon, or another span",
            )
        if (config.num_trajectories or 0) > self.num_trajectories:
            raise ConfigError(
                f"num_trajectories is {config.num_trajectories}, but there are {self.num_trajectories}; draw fewer"
            )
        self._epoch = lru_cache(maxsize=2)(self._build_epoch)

    @property
    def num_trajectories(self) -> int:
        """The number of (series, creation time) pairs in an epoch, including those without any observed target."""
        return int((self.last_fct - self.first_fct + 1).sum())

    def num_batches(self, epoch: int) -> int:
        return len(self._epoch(epoch).bounds) - 1

    def batch(self, epoch: int, step: int) -> Windows:
        """The windows of one step, over all ranks."""
        order = self._epoch(epoch)
        if not 0 <= step < len(order.bounds) - 1:
            raise IndexError(f"epoch {epoch} has {len(order.bounds) - 1} steps, not {step}")
        inside = slice(order.bounds[step], order.bounds[step + 1])
        owner, size = order.owner[inside], self.config.num_fcts
        start = order.origin + order.cell[inside].astype(np.int64) * size
        return Windows(
            series=self.series[owner],
            start=start,
            first_fct=np.maximum(self.first_fct[owner], start),
            last_fct=np.minimum(self.last_fct[owner], start + size - 1),
            last_target=self.last_target[owner],
            num_fcts=size,
        )

    def _build_epoch(self, epoch: int) -> "_Order":
        size, rng = self.config.num_fcts, np.random.default_rng([self.seed, epoch])
        first = int(self.first_fct.min())
        num_steps = int(self.last_fct.max()) - first + 1
        origin = first - (int(rng.integers(size)) if self.shuffle and num_steps > size else 0)
        first_cell = (self.first_fct - origin) // size
        num_cells = (self.last_fct - origin) // size - first_cell + 1
        owner = np.repeat(np.arange(self.series.size, dtype=np.int32), num_cells)
        ends = np.cumsum(num_cells)
        cell = (np.arange(owner.size) + np.repeat(first_cell - ends + num_cells, num_cells)).astype(np.int32)
        if self.num_drawn is not None and self.num_drawn < owner.size:
            draw = np.random.default_rng([self.seed, NUM_EPOCHS_AT_MOST])
            drawn = np.sort(draw.choice(owner.size, self.num_drawn, replace=False))
            owner, cell = owner[drawn], cell[drawn]
        if self.shuffle:
            order = rng.permutation(owner.size)
            owner, cell = owner[order], cell[order]
        if self.config.aligned:
            small = np.uint16 if cell.max() < 2**16 else np.int32  # numpy sorts 16 bits in linear time
            order = np.argsort(cell.astype(small), kind="stable")
            owner, cell = owner[order], cell[order]
        return self._in_batches(_Order(owner, cell, origin, np.zeros(0, np.int64)), rng)

    def _in_batches(self, order: "_Order", rng: np.random.Generator) -> "_Order":
        """Divide the windows into batches, each within one cell if dates are shared, and shuffle the batches."""
        group = order.cell if self.config.aligned else np.zeros_like(order.cell)
        begins = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
        rank = np.arange(len(group)) - np.repeat(begins, np.diff(np.append(begins, len(group))))
        bounds = np.append(np.flatnonzero(rank % self.config.batch_size == 0), len(group))
        if not self.shuffle:
            return replace(order, bounds=bounds)
        batches = rng.permutation(len(bounds) - 1)
        sizes = np.diff(bounds)[batches]
        new_bounds = np.append(0, np.cumsum(sizes))
        moved = np.arange(len(group)) + np.repeat(bounds[:-1][batches] - new_bounds[:-1], sizes)
        return _Order(order.owner[moved], order.cell[moved], order.origin, new_bounds)


@dataclass(frozen=True)
class _Order:
    """The windows of an epoch in order: their series, their cell of the grid, and the start of each batch."""

    owner: np.ndarray
    cell: np.ndarray
    origin: int
    bounds: np.ndarray


def _creation_times(panel: Panel, config: WindowConfig, span: Span) -> tuple[np.ndarray, ...]:
    """Series with creation times to train on, their first and last one, and their last usable target, in steps."""
    until = (
        panel.last_observed if span.until is None else np.minimum(panel.last_observed, panel.steps_until(span.until))
    )
    first = panel.first_step + max(config.min_history, 1) - 1
    last = until - (1 if config.partial_horizon else config.horizon)
    if span.first is not None:
        first = np.maximum(first, panel.steps_until(span.first))
    if span.last is not None:
        last = np.minimum(last, panel.steps_until(span.last))
    used = np.flatnonzero(first <= last)
    return used, first[used], last[used], until[used]
