"""What a page on the coming steps has beside the forecast: totals over spans, what was warned of, what it rests on."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.export import categories_of
from mqcast.data.panel import Panel
from mqcast.errors import ImplausibleForecastWarning, MqcastWarning, warn
from mqcast.joint.dependence import Dependence
from mqcast.joint.paths import VALUES_AT_A_TIME, Grouping, paths_of
from mqcast.levels import level_of
from mqcast.models.protocol import CanDescribe, FittedModel, HasLeaderboard, TrainOptions
from mqcast.report.coming_page import Basis
from mqcast.report.coming_spans import GROUP, NUM_ITEMS

SHOWN = {
    "window": ("history",),
    "scaling": ("by", "log1p"),
    "model": ("hidden_dim", "lookback", "dropout"),
    "train": ("max_steps", "learning_rate"),
}
MOST_USUAL = 20_000  # series of a page that shows totals without being asked
MOST_COLUMNS, MOST_GROUPS, NUM_PATHS = 3, 40, 400


def learnt_in_words(dependence: Dependence, step: str = "steps") -> str:
    return (
        f"How {step} go together was learnt from {dependence.num_forecasts:,} forecasts of {dependence.num_cutoffs} "
        "earlier cutoffs."
    )


def totals_of_groups(
    steps: pl.DataFrame, spans: list[tuple[int, int]], dependence: Dependence, panel: Panel
) -> dict[str, pl.DataFrame]:
    """By static column: the totals of all items with the same value, from paths that go together within it.

    Only columns whose dependence was learnt are there, with few values; and none where cutoffs differ.
    """
    if steps["cutoff"].n_unique() > 1:
        return {}
    static, id = categories_of(panel), panel.schema.id
    few = [name for name in dependence.groups if 1 < static[name].n_unique() <= MOST_GROUPS][:MOST_COLUMNS]
    return {name: _by_group(steps, spans, dependence, panel, static.select(id, name)) for name in few}


def _by_group(
    steps: pl.DataFrame, spans: list[tuple[int, int]], dependence: Dependence, panel: Panel, group_of: pl.DataFrame
) -> pl.DataFrame:
    id, column = group_of.columns
    labels = dict(group_of.with_columns(pl.col(column).fill_null("")).iter_rows())
    names, ids = sorted(set(labels.values())), steps[id].unique(maintain_order=True)
    code = {name: i for i, name in enumerate(names)}
    sums, counts = np.zeros((len(names), len(spans), NUM_PATHS)), np.zeros((len(names), len(spans)), int)
    grouping = Grouping(dependence.groups[column], labels)
    levels = {name: level for name in steps.columns if (level := level_of(name)) is not None}
    size = max(1, VALUES_AT_A_TIME // (NUM_PATHS * dependence.horizon))
    for part in (ids[start : start + size] for start in range(0, len(ids), size)):
        block = steps.filter(pl.col(id).is_in(part.implode()))
        paths = paths_of(block, dependence, NUM_PATHS, grouping=grouping, schema=panel.schema)
        place = np.array([code[labels[one]] for one in paths.ids])
        for s, (first, last) in enumerate(spans):
            totals = paths.values[:, first - 1 : last].sum(axis=1, dtype=float)
            whole = ~np.isnan(totals).any(axis=1)
            np.add.at(sums[:, s], place[whole], totals[whole])
            np.add.at(counts[:, s], place[whole], 1)
    quantiles = np.quantile(sums, list(levels.values()), axis=2, method="hazen").transpose(1, 2, 0)
    there = np.flatnonzero(counts.any(axis=1))
    keys = {
        GROUP: np.repeat(np.array(names, object)[there], len(spans)).tolist(),
        NUM_ITEMS: counts[there].ravel(),
        "first": np.tile([first for first, _ in spans], len(there)),
        "last": np.tile([last for _, last in spans], len(there)),
    }
    return pl.DataFrame(keys | {q: quantiles[there, :, i].ravel() for i, q in enumerate(levels)})


def heard(make: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call gives, and what mqcast warned of meanwhile; the warnings are given again."""
    result, caught = recorded(make)
    for one in caught:
        warn(str(one.message), one.category)
    ours = [one for one in caught if issubclass(one.category, MqcastWarning)]
    return result, [str(one.message) for one in ours if not issubclass(one.category, ImplausibleForecastWarning)]


def recorded(make: Callable[[], Any]) -> tuple[Any, list[warnings.WarningMessage]]:
    """What a call gives, and the warnings that it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return make(), caught


def basis_of(
    model: str, options: TrainOptions, fitted: FittedModel, panel: Panel, is_new: bool, cutoff: Any, warned: list[str]
) -> Basis:
    """What the forecast rests on: the model, its training, the settings that matter most, its members.

    is_new: the panel is not the one that the model was fitted with.
    """
    config = getattr(fitted, "config", None)
    facts = {"trained on": "other data: those it was fitted with" if is_new else "these data"}
    full = ""
    if isinstance(fitted, CanDescribe):
        trained, _ = recorded(lambda: fitted.describe(panel, cutoff, cutoff))  # its warnings were those of the forecast
        facts |= {name: text for name, text in trained.facts.items() if name != "model"}
        full = trained.config
    if config is not None:
        chosen = {f"{t}.{name}": getattr(getattr(config, t), name) for t, names in SHOWN.items() for name in names}
        facts["settings"] = ", ".join(f"{name} = {value}" for name, value in chosen.items())
    if options.max_minutes is not None:
        facts["time to train"] = f"at most {options.max_minutes:g} minutes"
    tables: dict[str, pl.DataFrame] = {}
    if isinstance(fitted, HasLeaderboard):
        tables["Members, by their loss on held-out dates relative to seasonal naive"] = fitted.leaderboard
    return Basis(model, facts, tables, full, warned)
