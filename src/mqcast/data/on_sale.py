"""The target for training: zeros of series that were not on sale are separated from zeros of demand."""

from functools import cached_property

import numpy as np

from mqcast.data.closed import ClosedRows
from mqcast.data.panel import Panel
from mqcast.data.recent import is_closed
from mqcast.settings import ScalingConfig

MOST_SERIES = 2_000  # sampled to report how zeros were interpreted


class TargetReader:
    """The target for training: NaN also where a zero means that a series was not on sale.

    A value without a logarithm, which never occurs in training, is read as 0.
    """

    def __init__(self, panel: Panel, config: ScalingConfig):
        self.panel, self.zeros, self.log1p = panel, config.zeros, config.log1p
        self.first_sale = first_sales(panel) if config.zeros == "told_apart" else None
        self.closed = ClosedRows(panel, config.zero_when)

    def rows(self, rows: np.ndarray, series: np.ndarray) -> np.ndarray:
        """The target in some rows, in float64; `series` has the index of the series of each row."""
        y = self.panel.target[rows].astype(np.float64)
        y = np.where(y <= -1, 0.0, y) if self.log1p else y
        y = np.where(self.closed(rows), np.nan, y) if self.closed else y
        if self.zeros == "missing":
            return np.where(y == 0, np.nan, y)
        return y if self.first_sale is None else np.where((y == 0) & (rows < self.first_sale[series]), np.nan, y)

    def __call__(self, series: int, num_rows: int) -> np.ndarray:
        """The first rows of a series."""
        first = int(self.panel.offsets[series])
        return self.rows(np.arange(first, first + num_rows), np.array(series))

    def until(self, series: np.ndarray, num_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B, longest): the first rows of some series, NaN after them; which are theirs; and the rows themselves."""
        within = np.arange(num_rows.max(initial=0))
        is_row = within < num_rows[:, None]
        rows = self.panel.offsets[series][:, None] + np.where(is_row, within, 0)
        return np.where(is_row, self.rows(rows, series[:, None]), np.nan), is_row, rows

    def is_selling(self, series: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """(B, T): whether the series had its first sale by this step; always true unless zeros are told apart."""
        return np.ones(steps.shape, bool) if self.first_sale is None else steps >= self._first_step[series][:, None]

    @cached_property
    def _first_step(self) -> np.ndarray:
        """The step of the first sale of each series; after its last row if it has none."""
        assert self.first_sale is not None
        panel, stored = self.panel, self.panel.arrays.get("steps")
        steps = panel.first_step + self.first_sale - panel.offsets[:-1]
        if stored is not None:
            steps = panel.first_step + stored[np.minimum(self.first_sale, panel.num_rows - 1)]
        return np.where(self.first_sale < panel.offsets[1:], steps, panel.last_step + 1)


def first_sales(panel: Panel) -> np.ndarray:
    """The first row with a sale of each series; the row after its last if it has none."""
    first_rows = np.empty(panel.num_series, np.int64)
    for first, stop in panel.series_chunks():
        a, b = panel.offsets[first], panel.offsets[stop]
        rows = np.where(panel.target[a:b] > 0, np.arange(a, b), panel.num_rows)
        first_rows[first:stop] = np.minimum.reduceat(rows, panel.offsets[first:stop] - a)
    return np.minimum(first_rows, panel.offsets[1:])


def zeros_told_apart(panel: Panel, config: ScalingConfig, until: int | None = None) -> str:
    """How zeros up to a time were interpreted, as a sentence for the log; empty if all are demand."""
    if config.zeros != "told_apart":
        return ""
    target, ends = TargetReader(panel, config), panel.row_ends(until)
    num_early = num_closed = num_zeros = 0
    for series in range(0, panel.num_series, stride := -(-panel.num_series // MOST_SERIES)):
        raw = panel.target[panel.offsets[series] : ends[series]]
        y = target(series, len(raw))
        num_early += int(np.isnan(y).sum() - np.isnan(raw).sum())
        num_zeros += int((y == 0).sum())
        num_closed += int(is_closed(y, config.half_life).sum())
    if not num_early + num_closed:
        return ""
    about = "" if stride == 1 else "about "
    return (
        f"zeros: {about}{stride * num_early:,} of series that had not sold yet count as not on sale; of {about}"
        f"{stride * num_zeros:,} others, {stride * num_closed:,} among large sales count as closed or not in the "
        'assortment; to treat all as demand, set scaling.zeros = "demand" (from Python: config={"scaling": {"zeros": '
        '"demand"}})'
    )
