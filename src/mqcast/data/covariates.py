"""Scaling of numeric covariates, and which categories were seen in training.

A price says little without the usual price of the same item, which a network does not see on the scale of all items.
Numbers that are not flags are therefore also given relative to their own level, their mean over the last steps of the
series, in logarithms if they are positive. A clock, such as the year or the number of the day, is given in this way
alone: its values ahead lie outside all that training has seen, and those behind can only be learnt by heart.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from mqcast.data.panel import Panel
from mqcast.data.schema import Role
from mqcast.data.values import UNKNOWN

RELATIVE_FLOOR = 1e-6  # a spread below this share of the mean is rounding, not variation
CHUNK_ROWS = 2**20
FAR = 5.0  # standard deviations from the mean beyond which a covariate is compressed
OWN_LEVEL = ("past", "known")  # blocks whose numbers have a level in each series
LEAST_CHANGES = 2  # of a clock in one series; a number with fewer may be a step that does not go on


@dataclass(frozen=True)
class NumberScaler:
    """Standard scaling of numeric covariates, by block; flags stay 0 and 1, missing values become 0, the mean.

    Values far from all training data are compressed by `compressed`, since networks extrapolate badly.
    """

    loc: dict[str, np.ndarray]
    scale: dict[str, np.ndarray]
    own: dict[str, "OwnLevels"] = field(default_factory=dict)  # of the blocks whose numbers are beside their own level

    @classmethod
    def fit(cls, panel: Panel, until: int | None = None, level_steps: int = 0) -> "NumberScaler":
        """Fit to what is known up to the time `until`; with `level_steps`, also the spread around own levels."""
        loc, scale, own, ends = {}, {}, {}, panel.row_ends(until)
        for role, (block, is_used) in _training_parts(panel, until).items():
            mean, std = _column_moments(panel.arrays[f"{block}_number"], is_used)
            is_flag = np.array([panel.schema.kinds[name] == "flag" for name in panel.schema.numbers(role)], bool)
            loc[block], scale[block] = np.where(is_flag, 0.0, mean), np.where(is_flag, 1.0, positive(std, mean))
            if level_steps and block in OWN_LEVEL:
                own[block] = OwnLevels.fit(panel, block, is_flag, ends)
                scale[block][clocks(panel, block, np.flatnonzero(~is_flag), ends)] = np.inf  # so that it says nothing
        return cls(loc, scale, own)

    def num_relative(self, block: str) -> int:
        """How many numbers of a block are also given relative to their own level."""
        return len(self.own[block].columns) if block in self.own else 0

    def forward(self, block: str, values: np.ndarray) -> np.ndarray:
        """Scaled float32 numbers; 0 for missing values."""
        scaled = compressed((values - self.loc[block]) / self.scale[block])
        return np.where(np.isfinite(scaled), scaled, 0.0).astype(np.float32)


@dataclass(frozen=True)
class CategoryFilter:
    """Codes of categories not seen in training become `UNKNOWN`, by block, since their embeddings are untrained."""

    lookup: dict[str, list[np.ndarray]]

    @classmethod
    def fit(cls, panel: Panel, until: int | None = None) -> "CategoryFilter":
        lookup = {}
        for role, (block, is_used) in _training_parts(panel, until).items():
            sizes = [len(panel.vocabularies[name]) + 1 for name in panel.schema.categories(role)]
            seen = [np.full(size, until is None) for size in sizes]
            if until is not None:
                for rows, used in _chunks(panel.arrays[f"{block}_category"], is_used):
                    for column, is_seen in enumerate(seen):
                        is_seen[rows[used, column]] = True
            lookup[block] = [np.where(is_seen, np.arange(is_seen.size), UNKNOWN) for is_seen in seen]
        return cls(lookup)

    def forward(self, block: str, codes: np.ndarray) -> np.ndarray:
        columns = [lookup[codes[..., i]] for i, lookup in enumerate(self.lookup[block])]
        return np.stack(columns, axis=-1) if columns else codes.astype(np.int64)


def compressed(x: np.ndarray) -> np.ndarray:
    """x, but logarithmic beyond FAR."""
    size = np.abs(x)
    return np.where(size > FAR, np.sign(x) * (FAR + np.log1p(np.maximum(size - FAR, 0))), x)


@dataclass(frozen=True)
class OwnLevels:
    """For the numbers of a block that vary within series: their columns, spread around the level, and logarithms."""

    columns: np.ndarray
    scale: np.ndarray
    is_log: np.ndarray

    @classmethod
    def fit(cls, panel: Panel, block: str, is_flag: np.ndarray, ends: np.ndarray) -> "OwnLevels":
        """Fit to the first rows of each series, up to `ends`."""
        values, columns = panel.arrays[f"{block}_number"], np.flatnonzero(~is_flag)
        lowest = np.full(columns.size, np.inf)
        for _, x in _parts(panel, values, columns, ends):
            lowest = np.fmin(lowest, np.fmin.reduce(x, axis=0, initial=np.inf))
        is_log = (lowest > 0) & np.isfinite(lowest)
        count, squares = np.zeros(columns.size), np.zeros(columns.size)
        for starts, x in _parts(panel, values, columns, ends):
            x = np.where(is_log, np.log(np.where(is_log, x, 1.0)), x)
            seen = ~np.isnan(x)
            num, total = (np.add.reduceat(part, starts, axis=0) for part in (seen.astype(float), np.where(seen, x, 0)))
            lengths = np.diff(np.append(starts, len(x)))
            mean = np.repeat(total / np.maximum(num, 1), lengths, axis=0)
            count += num.sum(axis=0)
            squares += (np.where(seen, x - mean, 0.0) ** 2).sum(axis=0)
        spread = np.sqrt(squares / np.maximum(count, 1))
        varies = spread > 0
        return cls(columns[varies], spread[varies], is_log[varies])

    def __call__(self, values: np.ndarray, width: int) -> np.ndarray:
        """(B, span, columns) of (B, width − 1 + span, numbers): differences from the mean of the last `width` steps."""
        x = values[..., self.columns].astype(np.float64)
        x = np.where(self.is_log, np.log(np.where(self.is_log & (x > 0), x, np.nan)), x) if x.size else x
        seen = ~np.isnan(x)
        total, count = (moving_sum(part, width) for part in (np.where(seen, x, 0.0), seen.astype(float)))
        level = total / np.maximum(count, 1)
        return np.nan_to_num(compressed((x[:, width - 1 :] - level) / self.scale), nan=0.0)


def clocks(panel: Panel, block: str, columns: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The columns that only rise, or only fall, in every series, to the same last value in at least half of them."""
    is_clock, most_changes = np.ones((2, columns.size), bool), np.zeros(columns.size, np.int64)
    highest, lowest = [], []  # of each series
    for starts, x in _parts(panel, panel.arrays[f"{block}_number"], columns, ends):
        change = np.diff(x, axis=0, prepend=np.nan)
        change[starts] = np.nan
        is_clock &= ~np.array([(change < 0).any(axis=0), (change > 0).any(axis=0)])
        if not is_clock.any():
            return columns[:0]
        changes = np.add.reduceat(np.abs(change) > 0, starts, axis=0, dtype=np.int64)
        most_changes = np.maximum(most_changes, changes.max(axis=0))
        highest.append(np.fmax.reduceat(x, starts, axis=0))
        lowest.append(np.fmin.reduceat(x, starts, axis=0))
    if most_changes.max(initial=0) < LEAST_CHANGES:
        return columns[:0]
    for found, parts, extreme in zip(is_clock, (highest, lowest), (np.fmax, np.fmin), strict=True):
        last = np.concatenate(parts)
        found &= 2 * (last == extreme.reduce(last, axis=0)).sum(axis=0) >= (~np.isnan(last)).sum(axis=0)
    return columns[is_clock.any(axis=0) & (most_changes >= LEAST_CHANGES)]


def moving_sum(x: np.ndarray, width: int) -> np.ndarray:
    """(B, width − 1 + span, columns) → (B, span, columns): sums of `width` neighbours, bit for bit numpy's.

    numpy adds eight sums of every eighth number, and then the rest; halves of long sums are added on their own. In
    that order all sums together need a few additions of whole arrays. Running sums would be faster, but after one
    enormous value they would be wrong for ever.
    """
    span = x.shape[1] - width + 1
    if width > 128:
        half = width // 2 - width // 2 % 8
        return moving_sum(x[:, : half - 1 + span], half) + moving_sum(x[:, half:], width - half)
    whole = width - width % 8
    total = x[:, : span + min(whole, 7)].copy()
    for i in range(8, whole, 8):
        total += x[:, i : i + total.shape[1]]
    for i in (1, 2, 4) if whole else ():
        total = total[:, :-i] + total[:, i:]
    for i in range(max(whole, 1), width):
        total += x[:, i : i + span]
    return total


def positive(spread, centre) -> np.ndarray:
    """`spread` if it is not negligible, otherwise the absolute value of the centre, otherwise 1."""
    size = np.abs(centre)
    return np.where(spread > RELATIVE_FLOOR * size, spread, np.where(size > 0, size, 1.0))


def _training_parts(panel: Panel, until: int | None) -> dict[Role, tuple[str, Callable[[int, int], np.ndarray]]]:
    """For each role, its block of arrays, and which of its rows a … b may be used in training."""
    ends, times = panel.row_ends(until), panel.arrays["event_times"]
    begun = ends > panel.offsets[:-1]
    known_events = np.ones(len(times), bool) if until is None else times <= until

    def early(a: int, b: int) -> np.ndarray:
        if until is None:
            return np.ones(b - a, bool)
        first, last = np.searchsorted(panel.offsets, (a, b - 1), side="right") - 1
        lengths = np.diff(np.clip(panel.offsets[first : last + 2], a, b))
        return np.arange(a, b) < np.repeat(ends[first : last + 1], lengths)

    return {
        "static": ("static", lambda a, b: begun[a:b]),
        "past": ("past", early),
        "known": ("known", early),
        "events": ("event", lambda a, b: known_events[a:b]),
    }


def _chunks(values: np.ndarray, is_used: Callable[[int, int], np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of a block, a few at a time, and which of them are used."""
    size = max(1, CHUNK_ROWS * 4 // max(values.shape[1], 1))
    for start in range(0, len(values) if values.shape[1] else 0, size):
        rows = values[start : start + size]
        yield rows, is_used(start, start + len(rows))


def _column_moments(values: np.ndarray, is_used: Callable[[int, int], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column over the used rows, without overflow."""
    count, total, squares = (np.zeros(values.shape[1]) for _ in range(3))
    for rows, used in _chunks(values, is_used):
        part = rows[used].astype(np.float64)
        count += (~np.isnan(part)).sum(axis=0)
        total += np.nansum(part, axis=0)
    mean = total / np.maximum(count, 1)
    for rows, used in _chunks(values, is_used):
        squares += np.nansum((rows[used].astype(np.float64) - mean) ** 2, axis=0)
    return mean, np.sqrt(squares / np.maximum(count, 1))


def _parts(
    panel: Panel, values: np.ndarray, columns: np.ndarray, ends: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Some series at a time: where each begins, and their values, NaN in rows that are not used."""
    for first, stop in panel.series_chunks() if columns.size else ():
        a, b = panel.offsets[first], panel.offsets[stop]
        used = np.arange(a, b) < np.repeat(ends[first:stop], np.diff(panel.offsets[first : stop + 1]))
        yield panel.offsets[first:stop] - a, np.where(used[:, None], values[a:b][:, columns].astype(np.float64), np.nan)
