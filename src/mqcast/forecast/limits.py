"""No absurd forecasts: they are limited to a multiple of past sales, with a warning."""

import json
from dataclasses import dataclass

import numpy as np

from mqcast.data.panel import Panel
from mqcast.errors import ForecastLimitedWarning, warn
from mqcast.forecast.frames import Spans, are_published

ROWS_AT_A_TIME = 2**18
LARGEST_MULTIPLE = 10.0  # of the largest value of a series up to a creation time
YOUNG = 3  # a series with fewer sales than this is limited by what is typical of the others, if that is more
KEY = "mqcast.limited"  # in the metadata of files


@dataclass
class Limited:
    """Forecasts that were limited: how many, of how many series, and which was the farthest beyond its limit."""

    num_forecasts: int = 0
    num_series: int = 0
    worst: float = 0.0  # as a multiple of its limit
    worst_series: str = ""

    def add(self, other: "Limited") -> None:
        self.num_forecasts += other.num_forecasts
        self.num_series += other.num_series
        if other.worst > self.worst:
            self.worst, self.worst_series = other.worst, other.worst_series

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes] | None) -> "Limited":
        packed = (metadata or {}).get(KEY.encode())
        return cls(**json.loads(packed)) if packed else cls()

    def warn(self) -> None:
        if self.num_forecasts:
            plural = "s of" if self.num_forecasts > 1 else " of"
            warn(
                f"{self.num_forecasts:,} forecast{plural} {self.num_series:,} series exceeded {LARGEST_MULTIPLE:g} "
                "times the largest value sold so far, published at that limit (the farthest: series "
                f"{self.worst_series!r}, {self.worst:.3g} times the limit); look at their history and at the values "
                "of known columns, train for longer, or change the scaling settings",
                ForecastLimitedWarning,
            )


def within_limits(
    panel: Panel,
    series: np.ndarray,
    cutoff: np.ndarray,
    values: np.ndarray,
    typical_largest: float,
    lower_bound: float | np.ndarray,
    spans: Spans = (),
) -> tuple[np.ndarray, Limited]:
    """Limit (N, horizon or spans, level) forecasts of sorted series at cutoffs (as steps).

    Quantiles stay in order: where one is at the limit, all higher ones are too. Forecasts raised to `lower_bound` are
    not counted as limited, since demand cannot be negative, nor are those that are left out of frames.
    """
    limit = largest_published(panel, series, cutoff, typical_largest)[:, None, None]
    size = np.abs(np.maximum(values, lower_bound))
    beyond, limited = size > limit, Limited()
    if beyond.any():
        beyond &= are_published(panel, series, cutoff, values.shape[1], spans)[..., None]
    if beyond.any():
        with np.errstate(divide="ignore", invalid="ignore"):  # where nothing was sold, the limit may be 0
            excess = np.where(beyond, size / limit, 0).max(axis=(1, 2))
        farthest = int(np.argmax(excess))
        limited = Limited(
            int(beyond.any(axis=2).sum()),
            len(np.unique(series[beyond.any(axis=(1, 2))])),
            float(min(excess[farthest], np.finfo(float).max)),
            panel.ids[int(series[farthest])].as_py(),
        )
    return np.clip(values, np.maximum(-limit, lower_bound), limit), limited


def largest_published(panel: Panel, series: np.ndarray, cutoff: np.ndarray, typical_largest: float) -> np.ndarray:
    """The largest absolute forecast that may be published for each of these sorted series and cutoffs (as steps)."""
    justified, of, which = np.empty(len(series)), *np.unique(series, return_inverse=True)
    size = max(1, ROWS_AT_A_TIME // int(np.diff(panel.offsets)[of].max(initial=1)))
    for first in range(0, len(of), size):
        here = slice(*np.searchsorted(which, (first, first + size)))
        past = panel.rows_until(series[here], cutoff[here, None])[:, 0]
        within = np.arange(past.max(initial=0))
        rows = panel.offsets[of[first : first + size]][:, None] + within
        target = panel.target[np.minimum(rows, panel.num_rows - 1)].astype(np.float64)
        sold, place = np.nan_to_num(np.abs(target)), (which[here] - first, past)
        largest = np.pad(np.maximum.accumulate(sold, axis=1), ((0, 0), (1, 0)))[place]
        num_sales = np.pad(np.cumsum(sold > 0, axis=1), ((0, 0), (1, 0)))[place]
        justified[here] = np.where(num_sales < YOUNG, np.maximum(largest, typical_largest), largest)
    return LARGEST_MULTIPLE * justified
