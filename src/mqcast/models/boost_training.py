"""The training of boosted trees: rows of many series and cutoffs, what does best on the last horizon, then all rows."""

import math
import os
import re
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mqcast import process
from mqcast.data.on_sale import first_sales
from mqcast.data.panel import Panel
from mqcast.errors import DataError
from mqcast.models.boost_features import matrix
from mqcast.models.histories import history_chunks
from mqcast.models.protocol import TrainOptions
from mqcast.models.target_scale import Facts, Origins, Spans

NUM_GROUPS, GROUPS_GROW = 3, 1.5  # groups of horizons, of which later ones are longer
MOST_ROWS, ROWS_A_MINUTE, LEAST_ROWS = 100_000, 100_000, 20_000  # of training in a group, by the minutes there are
LEAST_AHEAD = 3  # horizons of each cutoff among the rows
ROWS_A_THREAD = 20_000
MOST_ROUNDS, PATIENCE, USUAL_ROUNDS, LEAST_ROUNDS = 250, 25, 80, 15
LEAST_VALID = 500  # rows that decide how long to train
LEVELS = re.compile(r"(mean|cycle|median|year|season) |alike .* \d+$|plan .* (usual|ratio)$")  # linear in these
MOST_MISSING = 0.1  # of a feature that the linear forecast uses
RIDGE = 0.02
WEIGHT_POWER = 0.25  # of the level: larger series weigh more, but less than their share of demand
FAR = 6.0  # standard deviations: features and targets beyond are cut off in the linear forecast
RATE, FASTEST = 0.08, 0.3  # learning rates: the usual one, and that of very few rounds
TRIAL_ROUNDS = 2  # that tell how many there is time for
PARAMETERS = {
    "objective": "quantile",
    "learning_rate": RATE,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "max_bin": 127,
    "feature_pre_filter": False,
    "deterministic": True,
    "force_col_wise": True,
    "verbosity": -1,
}


def horizon_groups(horizon: int) -> tuple[tuple[int, int], ...]:
    """The first and last horizon of each group."""
    number = min(NUM_GROUPS, horizon)
    lasts = [max(k, round(horizon * (k / number) ** GROUPS_GROW)) for k in range(1, number + 1)]
    return tuple((a + 1, b) for a, b in zip([0, *lasts], lasts, strict=False) if a < b)


@dataclass(frozen=True)
class Linear:
    """A linear forecast of the scaled target; a missing feature counts as its mean, and a far one is cut off."""

    mean: np.ndarray
    spread: np.ndarray
    slope: np.ndarray  # 0 for categories
    start: float

    @classmethod
    def none(cls, num_features: int) -> "Linear":
        nothing = np.zeros(num_features)
        return cls(nothing, nothing, nothing, 0.0)

    @classmethod
    def fit(cls, x: np.ndarray, z: np.ndarray, weight: np.ndarray, names: tuple[str, ...]) -> "Linear":
        mean, spread = _moments(x)
        is_level = np.array([bool(LEVELS.match(name)) for name in names])
        usable = np.flatnonzero((spread > 0) & is_level & (np.isnan(x).mean(axis=0) < MOST_MISSING))
        standard = _standard(x[:, usable], mean[usable], spread[usable])
        centre, width = float(np.median(z)), float(np.std(z)) or 1.0
        target = np.clip(z, centre - FAR * width, centre + FAR * width)
        start = float(np.average(target, weights=weight))
        weighted = standard * weight[:, None]
        products = weighted.T @ standard
        products[np.diag_indices_from(products)] += RIDGE * weight.sum() + 1e-9
        slope = np.zeros(x.shape[1])
        slope[usable] = np.linalg.solve(products, weighted.T @ (target - start))
        return cls(mean, spread, slope, start)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        used = np.flatnonzero(self.slope)
        total = np.full(len(x), self.start)
        for k in used:  # column by column: no row depends on how many there are
            total += self.slope[k] * _standard(x[:, k], self.mean[k], self.spread[k])
        return total


def _moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column's numbers; 0 if there are none."""
    mean, spread = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for k in range(x.shape[1]):
        seen = x[:, k][~np.isnan(x[:, k])].astype(np.float64)
        if seen.size:
            mean[k], spread[k] = seen.mean(), seen.std()
    return mean, np.where(spread > 1e-9 * np.abs(mean), spread, 0.0)


def _standard(x: np.ndarray, mean: Any, spread: Any) -> np.ndarray:
    return np.clip(np.nan_to_num((x.astype(np.float64) - mean) / spread), -FAR, FAR)


@dataclass(frozen=True)
class Group:
    """What was learnt about some horizons: the linear forecast, and by level a start and trees (LightGBM's text)."""

    first: int
    last: int
    linear: Linear
    starts: tuple[float, ...]
    trees: tuple[str, ...]

    @cached_property
    def boosters(self) -> list[Any]:
        with process.importing():
            import lightgbm

        return [lightgbm.Booster(model_str=text) for text in self.trees]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(rows, levels) of scaled quantiles, in order."""
        linear = self.linear(x)
        learnt = [np.asarray(booster.predict(x, num_threads=num_threads(len(x)))) for booster in self.boosters]
        return np.sort(np.stack([linear + a + b for a, b in zip(self.starts, learnt, strict=True)], axis=1), axis=1)


def rows_of_a_group(max_minutes: float | None) -> int:
    """Fewer where time is short: trees of few rows that are done are better than the first trees of many."""
    return MOST_ROWS if max_minutes is None else int(np.clip(ROWS_A_MINUTE * max_minutes, LEAST_ROWS, MOST_ROWS))


def draw_origins(panel: Panel, facts: Facts, num_rows: int, rng: np.random.Generator) -> Origins:
    """Cutoffs to train on, from the first sale of each series to before its last observation; recent ones preferred."""
    first = panel.first_step
    if facts.never_negative:
        row = first_sales(panel)
        stored = panel.arrays.get("steps")
        late = row - panel.offsets[:-1] if stored is None else stored[np.minimum(row, panel.num_rows - 1)]
        first = np.where(row < panel.offsets[1:], panel.first_step + late, panel.last_step + 1)
    count = np.maximum(panel.last_observed - first, 0)
    if not count.any():
        raise DataError("no series has a sale and a later observation", "give more history")
    most = num_rows // min(LEAST_AHEAD, facts.horizon)
    if count.sum() <= most:
        series = np.repeat(np.arange(panel.num_series), count)
        age = np.arange(len(series)) - np.repeat(np.cumsum(count) - count, count)
    else:
        half_life = max(Spans.of(panel.axis.frequency).year, 8 * facts.horizon)
        reach = -np.expm1(-math.log(2) * count / half_life)
        series = np.sort(rng.choice(panel.num_series, most, p=reach / reach.sum()))
        age = -np.log1p(-rng.random(most) * reach[series]) * half_life / math.log(2)
        age = np.minimum(age.astype(np.int64), count[series] - 1)
        series, age = np.unique(np.stack((series, age), axis=1), axis=0).T
    return Origins(series, panel.last_observed[series] - 1 - age)


@dataclass(frozen=True)
class TrainingRows:
    """Features, scaled targets and weights of the rows of a group; `is_train` and `is_valid` split them by time."""

    first: int
    last: int
    names: tuple[str, ...]
    x: np.ndarray
    z: np.ndarray
    weight: np.ndarray
    is_train: np.ndarray
    is_valid: np.ndarray

    @classmethod
    def of(
        cls, panel: Panel, facts: Facts, origins: Origins, first: int, last: int, num_rows: int, seed: int
    ) -> "TrainingRows":
        number = last - first + 1
        each = int(np.clip(num_rows // len(origins), 1, number))
        offset = np.random.default_rng([seed, first]).integers(number, size=len(origins))
        ahead = first + (offset[:, None] + np.arange(each) * number // each) % number
        xs, zs, weights, kept, names = [], [], [], [], ()
        for part, histories in history_chunks(panel, origins, facts):
            index = np.repeat(np.arange(part.start, part.stop), each)
            steps = ahead[part].reshape(-1)
            z = histories.targets(origins.take(index), steps)
            index, steps, z = (values[~np.isnan(z)] for values in (index, steps, z))
            if z.size:
                x, names = matrix(histories, origins.take(index), steps)
                xs.append(x)
                zs.append(z)
                weights.append(histories.scale_at(origins.take(index)).level)
                kept.append((index, steps))
        if not zs:
            raise DataError(f"no cutoff has an observation {first} to {last} steps later", "forecast fewer steps")
        index, steps = (np.concatenate(parts) for parts in zip(*kept, strict=True))
        is_train, is_valid = _split(panel, origins.take(index), steps, facts.horizon)
        x, z = np.concatenate(xs), np.concatenate(zs)
        weight = _weights(np.concatenate(weights), facts)
        return cls(first, last, names, x, z, weight, is_train, is_valid)


def _weights(level: np.ndarray, facts: Facts) -> np.ndarray:
    """Larger series weigh more, but much less than their share of demand."""
    if not facts.never_negative:
        return np.ones(len(level))
    weight = (level / np.median(level)) ** WEIGHT_POWER
    return weight / weight.mean()


def _split(panel: Panel, origins: Origins, ahead: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with targets up to a date a horizon before the end, and rows with cutoffs from that date on."""
    until = panel.last_observed_time(horizon)
    cutoff = panel.times_at(origins.series, origins.cutoff, 1)[:, 0]
    target = panel.times_at(origins.series, origins.cutoff + ahead, 1)[:, 0]
    return target <= until, cutoff >= until


@dataclass
class Clock:
    """The time that is left for each training."""

    started: float
    max_minutes: float | None
    num_groups: int
    num_levels: int
    num_done: float = 0.0

    def deadline(self, share: float = 1.0) -> float:
        """When the next training should end, which is `share` of a level of a group."""
        if self.max_minutes is None:
            return math.inf
        now, end = time.monotonic(), self.started + 60 * self.max_minutes
        left = max(self.num_groups * self.num_levels - self.num_done, share)
        return now + max(end - now, 0.0) * share / left


def learn(rows: TrainingRows, options: TrainOptions, clock: Clock) -> Group:
    with process.importing():
        import lightgbm

    categories = [k for k, name in enumerate(rows.names) if name.startswith("code:")]
    parameters = PARAMETERS | _sizes(len(rows.z))
    parameters |= {"seed": options.seed % 2**31, "num_threads": num_threads(len(rows.z))}
    data = lightgbm.Dataset(
        rows.x, rows.z, weight=rows.weight, categorical_feature=categories, params=parameters
    ).construct()
    most = MOST_ROUNDS if options.max_steps is None else min(MOST_ROUNDS, options.max_steps)
    parameters["learning_rate"] = _rate(lightgbm, data, parameters, clock)
    linear, rounds = _validated(lightgbm, data, rows, parameters, options.quantiles, most, clock)
    base = linear(rows.x)
    starts, trees = [], []
    for level, number in zip(options.quantiles, rounds, strict=True):
        start = float(np.quantile(rows.z - base, level))
        data.set_init_score(base + start)
        stop = _stops_at(lightgbm, clock.deadline())
        booster = lightgbm.train(parameters | {"alpha": level}, data, number, callbacks=[stop])
        clock.num_done += 1
        starts.append(start)
        trees.append(booster.model_to_string(num_iteration=-1))
    return Group(rows.first, rows.last, linear, tuple(starts), tuple(trees))


def _rate(lightgbm: Any, data: Any, parameters: dict[str, Any], clock: Clock) -> float:
    """A learning rate with which the rounds that there is time for are enough."""
    if clock.max_minutes is None:
        return RATE
    began = time.monotonic()
    lightgbm.train(parameters | {"alpha": 0.5}, data, TRIAL_ROUNDS)
    seconds = (time.monotonic() - began) / TRIAL_ROUNDS
    rounds = (clock.deadline() - time.monotonic()) / max(seconds, 1e-9)
    return float(np.clip(RATE * USUAL_ROUNDS / max(rounds, 1.0), RATE, FASTEST))


def _sizes(num_rows: int) -> dict[str, int]:
    size = num_rows // 500
    return {"num_leaves": int(np.clip(size, 7, 63)), "min_data_in_leaf": int(np.clip(size, 20, 100))}


def _validated(
    lightgbm: Any,
    data: Any,
    rows: TrainingRows,
    parameters: dict[str, Any],
    levels: tuple[float, ...],
    most: int,
    clock: Clock,
) -> tuple[Linear, list[int]]:
    """What does best on the last horizon: with or without a linear forecast, and how many rounds at each level.

    Rounds are found at the lowest, the middle and the highest level, and hold for the levels nearest to these.
    """
    none, middle = Linear.none(rows.x.shape[1]), min(levels, key=lambda level: abs(level - 0.5))
    train, valid = np.flatnonzero(rows.is_train), np.flatnonzero(rows.is_valid)
    if len(valid) < LEAST_VALID or len(train) < 2 * len(valid) or most < USUAL_ROUNDS:
        return none, [min(USUAL_ROUNDS, most)] * len(levels)
    parts = [data.subset(index).construct() for index in (train, valid)]

    def tried(linear: Linear, level: float) -> tuple[float, int]:
        start = float(np.quantile(rows.z[train] - linear(rows.x[train]), level))
        for part, index in zip(parts, (train, valid), strict=True):
            part.set_init_score(linear(rows.x[index]) + start)
        stops = [lightgbm.early_stopping(PATIENCE, verbose=False), _stops_at(lightgbm, clock.deadline(0.5))]
        booster = lightgbm.train(parameters | {"alpha": level}, parts[0], most, valid_sets=[parts[1]], callbacks=stops)
        return booster.best_score["valid_0"]["quantile"], max(booster.best_iteration, LEAST_ROUNDS)

    linear = Linear.fit(rows.x[train], rows.z[train], rows.weight[train], rows.names)
    some = sorted({levels[0], middle, levels[-1]})
    without, within = ({level: tried(start, level) for level in some} for start in (none, linear))
    losses = [sum(loss for loss, _ in of.values()) for of in (without, within)]
    is_better = losses[1] < losses[0]
    chosen = Linear.fit(rows.x, rows.z, rows.weight, rows.names) if is_better else none
    best = {level: rounds for level, (_, rounds) in (within if is_better else without).items()}
    return chosen, [best[min(best, key=lambda one: abs(one - level))] for level in levels]


def _stops_at(lightgbm: Any, deadline: float) -> Any:
    def stop(state: Any) -> None:
        if time.monotonic() > deadline:
            raise lightgbm.callback.EarlyStopException(state.iteration, state.evaluation_result_list or [])

    return stop


def num_threads(num_rows: int) -> int:
    """One for few rows, else the cores that are free: threads that wait for each other are slower than one alone.

    Trees and forecasts do not depend on it.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    told = os.environ.get("OMP_NUM_THREADS", "")
    if num_rows < ROWS_A_THREAD:
        return 1
    return max(1, int(told)) if told.isdecimal() else max(1, round(cores - busy))
