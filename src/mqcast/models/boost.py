"""Boosted trees as a model (LightGBM): direct quantiles of all series, by groups of horizons.

Trees learn what a linear forecast leaves over. Both see the features of `boost_features`, and targets relative to the
level of the series at the cutoff, so that what one series teaches holds for all.
"""

import importlib.util
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mqcast import process
from mqcast.artifact import ArtifactFolder
from mqcast.data.layout import Layout
from mqcast.data.panel import Panel
from mqcast.data.views import can_be_read_as, known_at, read_as
from mqcast.data.windows import as_time
from mqcast.errors import ArtifactError, ConfigError, MqcastError
from mqcast.forecast.frames import plan_cutoffs, rows_frame
from mqcast.forecast.limits import within_limits
from mqcast.levels import quantile_column
from mqcast.models.boost_features import matrix
from mqcast.models.boost_training import (
    Clock,
    Group,
    Linear,
    TrainingRows,
    draw_origins,
    horizon_groups,
    learn,
    rows_of_a_group,
)
from mqcast.models.histories import Histories, history_chunks
from mqcast.models.protocol import TrainOptions
from mqcast.models.target_scale import Facts, Origins
from mqcast.settings import WindowConfig

FORMAT, FORMAT_VERSION = "mqcast-trees", 1
FACTS = "trees.json"
ROWS_AT_A_TIME = 100_000  # in a forecast


def forecast_origins(
    panel: Panel,
    facts: Facts,
    levels: tuple[float, ...],
    largest: float,
    values_in: Callable[[Histories], Callable[[Origins], np.ndarray]],
    *,
    first: Any,
    last: Any,
) -> pl.DataFrame:
    """A frame of the forecasts from the cutoffs between two dates.

    For some histories, `values_in` gives a function of origins among them: (origins, horizon, levels).
    """
    plan = plan_cutoffs(WindowConfig(horizon=facts.horizon, history=1, num_fcts=1), panel, first, last)
    lengths = plan.last_fct - plan.first_fct + 1
    ends = np.cumsum(lengths)
    cutoff = np.arange(ends[-1]) + np.repeat(plan.first_fct - ends + lengths, lengths)
    origins = Origins(np.repeat(plan.series, lengths), cutoff)
    values = np.empty((len(origins), facts.horizon, len(levels)))
    for part, histories in history_chunks(panel, origins, facts):
        values_of = values_in(histories)
        for start in range(part.start, part.stop, size := max(1, ROWS_AT_A_TIME // facts.horizon)):
            some = slice(start, min(start + size, part.stop))
            values[some] = values_of(origins.take(some))
    bound = 0.0 if facts.never_negative else -np.inf
    rows = origins.series, origins.cutoff
    values, limited = within_limits(panel, *rows, values, largest, bound)
    limited.warn()
    return rows_frame(panel, *rows, values, levels)


@dataclass(frozen=True)
class FittedTrees:
    layout: Layout
    facts: Facts
    quantiles: tuple[float, ...]
    typical_largest: float
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    context: int | None = None

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        if not can_be_read_as(panel, self.layout):
            raise ArtifactError(
                "the panel's columns, kinds or categories are not those that the trees were trained on; read it with "
                "like= and the training panel"
            )
        return forecast_origins(
            read_as(panel, self.layout),
            self.facts,
            self.quantiles,
            self.typical_largest,
            lambda histories: partial(self._values, histories),
            first=first,
            last=last,
        )

    def _values(self, histories: Histories, origins: Origins) -> np.ndarray:
        """(origins, horizon, levels) in units of demand."""
        values = np.empty((len(origins), self.facts.horizon, len(self.quantiles)))
        for group in self.groups:
            steps = np.arange(group.first, group.last + 1)
            each = origins.take(np.repeat(np.arange(len(origins)), len(steps)))
            x, names = matrix(histories, each, np.tile(steps, len(origins)))
            assert names == self.names
            quantiles = histories.scale_at(each).backward(group(x))
            values[:, group.first - 1 : group.last] = quantiles.reshape(len(origins), len(steps), -1)
        return values

    def files(self) -> dict[str, bytes]:
        described = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "layout": self.layout.description,
            "facts": asdict(self.facts),
            "quantiles": self.quantiles,
            "typical_largest": self.typical_largest,
            "names": self.names,
            "groups": [
                {
                    "first": group.first,
                    "last": group.last,
                    "starts": group.starts,
                    "linear": {
                        "mean": group.linear.mean.tolist(),
                        "spread": group.linear.spread.tolist(),
                        "slope": group.linear.slope.tolist(),
                        "start": group.linear.start,
                    },
                }
                for group in self.groups
            ],
        }
        files = {FACTS: json.dumps(described, indent=1).encode()}
        for group in self.groups:
            for level, text in zip(self.quantiles, group.trees, strict=True):
                files[_file(group.last, level)] = text.encode()
        return files


def _file(last: int, level: float) -> str:
    return f"trees-{last}-{quantile_column(level)}.txt"


def require_lightgbm() -> None:
    if importlib.util.find_spec("lightgbm") is None:
        raise ConfigError('lightgbm is not installed; `pip install "mqcast[boost]"`, or choose another model')


class BoostedTrees:
    """LightGBM under the name `lightgbm`."""

    def check(self, options: TrainOptions) -> None:
        require_lightgbm()

    def fit(self, panel: Panel, options: TrainOptions) -> FittedTrees:
        require_lightgbm()
        with process.importing():
            from mqcast.train.records import Message, progress

        if options.start_from is not None:
            raise ConfigError("lightgbm cannot start from another forecaster; train it without start_from")
        started = time.monotonic()
        known = panel if options.until is None else known_at(panel, as_time(options.until, panel.axis))
        known.require_verified()
        facts = Facts.of(known, options.horizon)
        num_rows = rows_of_a_group(options.max_minutes)
        origins = draw_origins(known, facts, num_rows, np.random.default_rng([options.seed, 0]))
        clock = Clock(started, options.max_minutes, len(horizon_groups(options.horizon)), len(options.quantiles))
        groups, names = [], ()
        given = options.listeners
        with progress(quiet=not options.verbose) if given is None else nullcontext(given) as listeners:
            for first, last in horizon_groups(options.horizon):
                rows = TrainingRows.of(known, facts, origins, first, last, num_rows, options.seed)
                groups.append(learn(rows, options, clock))
                names = rows.names
                rounds = "/".join(str(booster.num_trees()) for booster in groups[-1].boosters)
                text = f"horizons {first} to {last}: {len(rows.z):,} rows, {len(names)} features, {rounds} trees"
                for listener in listeners:
                    listener(Message(text))
        largest = typical_largest(known)
        return FittedTrees(known.layout, facts, options.quantiles, largest, names, tuple(groups))

    def load(self, folder: Path, options: TrainOptions) -> FittedTrees:
        require_lightgbm()
        files = ArtifactFolder(folder, "fit the model again")
        try:
            described = json.loads(files.read_verified(FACTS))
            if (described["format"], described["version"]) != (FORMAT, FORMAT_VERSION):
                raise ArtifactError(f"{folder / FACTS} was written by another version of mqcast; fit the model again")
            facts = Facts(**described["facts"] | {"switches": tuple(described["facts"]["switches"])})
            quantiles, names = tuple(described["quantiles"]), tuple(described["names"])
            layout = Layout.from_description(described["layout"])
            groups = tuple(_group(files, group, quantiles, len(names)) for group in described["groups"])
            if [g.last for g in groups] != [last for _, last in horizon_groups(facts.horizon)]:
                raise ValueError("groups of other horizons")
            largest = float(described["typical_largest"])
        except ArtifactError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MqcastError) as error:
            raise files.damaged(FACTS, error) from None
        return FittedTrees(layout, facts, quantiles, largest, names, groups)


def _group(files: ArtifactFolder, described: dict[str, Any], quantiles: tuple[float, ...], num_features: int) -> Group:
    arrays = {name: np.array(described["linear"][name], np.float64) for name in ("mean", "spread", "slope")}
    starts = tuple(float(start) for start in described["starts"])
    if any(array.shape != (num_features,) for array in arrays.values()) or len(starts) != len(quantiles):
        raise ValueError("other features or levels")
    last = int(described["last"])
    trees = tuple(files.read_verified(_file(last, level)).decode() for level in quantiles)
    linear = Linear(**arrays, start=float(described["linear"]["start"]))
    group = Group(int(described["first"]), last, linear, starts, trees)
    if any(booster.num_feature() != num_features for booster in group.boosters):
        raise ValueError("trees of other features")
    return group


def typical_largest(panel: Panel) -> float:
    """The median over series of the largest value so far."""
    largest: list[np.ndarray] = []
    for first, stop in panel.series_chunks():
        a, b = panel.offsets[first], panel.offsets[stop]
        size = np.nan_to_num(np.abs(np.asarray(panel.target[a:b], np.float64)))
        largest.append(np.maximum.reduceat(size, panel.offsets[first:stop] - a))
    sold = np.concatenate(largest)
    return float(np.median(sold[sold > 0])) if (sold > 0).any() else 0.0
