"""The items that a page lets one look at, as one JSON text of bounded size.

dates      all dates, as text; everything else counts in them
events     [name, dates] of what all items share
items      id, why it is here, limit (beyond it a value is implausible; if one is), history, cutoffs, targets
           of each cutoff, quantiles[model][cutoff][level][target], promotions, and attention[model][cutoff][horizon] =
           pairs of date and weight in thousandths
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mqcast.evaluation.columns import distinct
from mqcast.levels import quantile_column
from mqcast.report.sources import Sources
from mqcast.report.style import shortened
from mqcast.report.summary import Findings

MOST_ITEMS, MOST_BYTES = 150, 2_000_000
MOST_EXPLAINED, MOST_ATTENTION_BYTES = 12, 600_000
MOST_LEVELS, MOST_NUMBERS, MOST_HISTORY, MOST_NAME = 5, 12_000, 260, 200
LEAST_WEIGHT = 0.005
WORST, UNSTABLE, AT_RANDOM, IMPLAUSIBLE = "largest loss", "most unexplained revisions", "at random", "implausible"
MOST_IMPLAUSIBLE = 20  # items


@dataclass(frozen=True)
class Explorer:
    """The text, and how much of all it holds."""

    payload: str
    ids: tuple[str, ...]
    num_items: int
    num_explained: int
    every_cutoff: bool


def explorer_of(sources: Sources, findings: Findings, seed: int = 0, most_bytes: int = MOST_BYTES) -> Explorer:
    """The items of the ranked lists and some at random, in turn, as many as the bytes allow."""
    reasons = _chosen(sources, findings, seed)
    part = sources.of_items(reasons)
    dates = _Dates.of(part)
    levels = _levels(part.levels)
    thinned = _Thinned.of(part, len(levels))
    attention = _attention(sources, list(reasons)[:MOST_EXPLAINED], dates, thinned)
    frames = {model: _by_item(table.to_polars()) for model, table in part.rows.items()}
    history, promoted = _by_item(part.observed.to_polars()), _promotions(part)
    limits = _limits(findings)
    texts, size, shown = [], sum(len(text) for text in attention.values()), []
    for id, reason in reasons.items():
        item: dict[str, Any] = {"id": shortened(id, MOST_NAME), "why": reason}
        if id in limits:
            item["limit"] = limits[id]
        item |= _history(history.get(id), frames[sources.first_model][id], dates)
        item |= _fans([of_item[id] for of_item in frames.values()], dates, levels, thinned)
        item["promotions"] = [[i, dates.places(days)] for i, days in promoted.get(id, ())]
        text = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
        size += len(text.encode())
        if shown and size > most_bytes:
            break
        shown.append(id)
        extra = f',"attention":{attention[id]}' if id in attention else ""
        texts.append(f"{text[:-1]}{extra}}}")
    events = [[name, dates.places(days)] for name, days in part.events.items()]
    facts = {
        "models": list(part.models),
        "first": part.models.index(part.first_model),
        "levels": levels,
        "dates": dates.texts,
        "events": [event for event in events if event[1]],
        "flags": [] if part.promotions is None else part.promotions.columns[2:],
    }
    head = json.dumps(facts, separators=(",", ":"), ensure_ascii=False)
    payload = f'{head[:-1]},"items":[{",".join(texts)}]}}'
    explained = sum(id in attention for id in shown)
    return Explorer(payload, tuple(shown), findings.counts.items, explained, thinned.every == 1)


def _chosen(sources: Sources, findings: Findings, seed: int) -> dict[str, str]:
    """Items and why, in turn from the rankings and at random."""
    drawn = np.random.default_rng(seed).permutation(len(sources.ids))[: 2 * MOST_ITEMS]
    lists = [
        [(id, IMPLAUSIBLE) for id in list(_limits(findings))[:MOST_IMPLAUSIBLE]],
        [(one.id, WORST) for one in findings.worst],
        [(one.id, UNSTABLE) for one in findings.unstable],
        [(sources.ids[i], AT_RANDOM) for i in drawn],
    ]
    reasons: dict[str, str] = {}
    for place in range(max(map(len, lists))):
        for ranked in lists:
            if place < len(ranked) and len(reasons) < MOST_ITEMS:
                reasons.setdefault(*ranked[place])
    return reasons


def _limits(findings: Findings) -> dict[str, float]:
    """Items with implausible forecasts, the worst of each model first, and where implausible begins."""
    limits: dict[str, float] = {}
    for one in findings.implausible.verdicts:
        items, first = np.unique(one.forecasts.item[one.rows], return_index=True)
        for place in np.argsort(first):
            limit = one.multiple * one.measure[first[place]]
            limits.setdefault(one.forecasts.ids[items[place]], float(limit) if np.isfinite(limit) else 0.0)
    return limits


@dataclass(frozen=True, eq=False)
class _Dates:
    """Dates as places in one list."""

    texts: list[str]
    place: dict[Any, int]

    @classmethod
    def of(cls, part: Sources) -> "_Dates":
        times = np.concatenate([part.observed.dates, distinct(part.first.cutoff), distinct(part.first.time)])
        dates = part.first.clock.dates(distinct(times))
        wall = dates.dt.replace_time_zone(None)
        form = "%Y-%m-%d" if (wall.dt.truncate("1d") == wall).all() else "%Y-%m-%d %H:%M"
        return cls(wall.dt.strftime(form).to_list(), {date: i for i, date in enumerate(dates.to_list())})

    def places(self, dates: Iterable[Any]) -> list[int]:
        return [self.place[date] for date in dates if date in self.place]


@dataclass(frozen=True)
class _Thinned:
    """Every so many cutoffs, up to the last, so that one item cannot fill the page."""

    cutoffs: frozenset
    every: int

    @classmethod
    def of(cls, part: Sources, num_levels: int) -> "_Thinned":
        cutoffs = part.first.clock.dates(distinct(part.first.cutoff)).to_list()
        numbers = len(cutoffs) * part.horizon * num_levels * len(part.models)
        every = -(-numbers // MOST_NUMBERS)
        return cls(frozenset(cutoffs[::-1][::every]), every)


def _levels(levels: Sequence[float]) -> list[float]:
    """At most five: the outermost, the middle, and those between."""
    if len(levels) <= MOST_LEVELS:
        return list(levels)
    return [levels[round(i)] for i in np.linspace(0, len(levels) - 1, MOST_LEVELS)]


def _by_item(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {str(id): part for (id,), part in frame.partition_by("unique_id", as_dict=True).items()}


def _history(history: pl.DataFrame | None, frame: pl.DataFrame, dates: _Dates) -> dict[str, Any]:
    """Dates and demand, from some time before the first cutoff on."""
    if history is None:
        return {"history": [[], []]}
    before = history.filter(pl.col("ds") <= frame["cutoff"].min()).tail(MOST_HISTORY)
    kept = pl.concat([before, history.filter(pl.col("ds") > frame["cutoff"].min())])
    return {"history": [dates.places(kept["ds"]), rounded(kept["y"].to_numpy())]}


def _fans(frames: list[pl.DataFrame], dates: _Dates, levels: list[float], thinned: _Thinned) -> dict[str, Any]:
    """All models have the same rows: once sorted, a cutoff's targets stand at the same place in each."""
    columns = [quantile_column(level) for level in levels]
    frames = [frame.sort("cutoff", "ds") for frame in frames]
    runs = frames[0]["cutoff"].rle().struct.unnest()  # len, value
    ends = runs["len"].cum_sum().to_list()
    kept = [
        (dates.place[cutoff], end - size, end)
        for size, cutoff, end in zip(runs["len"].to_list(), runs["value"].to_list(), ends, strict=True)
        if cutoff in thinned.cutoffs
    ]
    targets = dates.places(frames[0]["ds"])
    quantiles = []
    for frame in frames:
        values = [rounded(frame[name].to_numpy()) for name in columns]
        quantiles.append([[value[begin:end] for value in values] for _, begin, end in kept])
    return {
        "cutoffs": [cutoff for cutoff, _, _ in kept],
        "targets": [targets[begin:end] for _, begin, end in kept],
        "quantiles": quantiles,
    }


def rounded(values: np.ndarray) -> list[float | None]:
    """Four digits, and None for what is missing."""
    values = np.asarray(values, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.where(values == 0, 0, 3 - np.floor(np.log10(np.abs(values))))
        scale = 10.0 ** np.clip(np.nan_to_num(digits), -300, 300)
        rounded = np.round(values * scale) / scale
    return [None if value != value else int(value) if value == int(value) else value for value in rounded.tolist()]


def _promotions(part: Sources) -> dict[str, list[tuple[int, list[Any]]]]:
    """Id → the place of a flag, and its dates."""
    if part.promotions is None:
        return {}
    promoted: dict[str, list[tuple[int, list[Any]]]] = {}
    for i, name in enumerate(part.promotions.columns[2:]):
        for (id,), days in part.promotions.filter(pl.col(name)).partition_by("unique_id", as_dict=True).items():
            promoted.setdefault(str(id), []).append((i, days["ds"].to_list()))
    return promoted


def _attention(sources: Sources, ids: list[str], dates: _Dates, thinned: _Thinned) -> dict[str, str]:
    """Id → weights of each model that can tell, as JSON; the latest cutoffs, as many as the bytes allow."""
    models = {i: sources.trained[model].explain for i, model in enumerate(sources.models) if model in sources.trained}
    by_item: dict[str, dict[str, Any]] = {}
    for i, explain in models.items():
        if explain is None:
            continue
        weights = explain(ids)
        if weights.is_empty():
            continue
        wanted = (pl.col("weight") >= LEAST_WEIGHT) & pl.col("cutoff").is_in(list(thinned.cutoffs))
        weights = weights.filter(wanted).rename({weights.columns[0]: "unique_id"})
        for (id,), part in weights.partition_by("unique_id", as_dict=True).items():
            by_item.setdefault(str(id), {})[str(i)] = _weights(part, dates)
    texts, size = {}, 0
    for id, of_models in by_item.items():
        text = json.dumps(of_models, separators=(",", ":"))
        if size + len(text) <= MOST_ATTENTION_BYTES:
            texts[id], size = text, size + len(text)
    return texts


def _weights(part: pl.DataFrame, dates: _Dates) -> dict[str, Any]:
    """Cutoff → block → horizon → date, weight, date, weight … for the latest cutoffs."""
    latest, by_cutoff = set(part["cutoff"].unique().sort(descending=True).head(14).to_list()), {}
    columns = part.select("cutoff", "block", "horizon", "looked_at", "weight").sort("cutoff", "horizon", "looked_at")
    for cutoff, block, horizon, looked_at, weight in columns.iter_rows():
        if cutoff in latest and looked_at in dates.place:
            of_cutoff = by_cutoff.setdefault(str(dates.place[cutoff]), {}).setdefault(block, {})
            of_cutoff.setdefault(str(horizon), []).extend((dates.place[looked_at], round(1000 * weight)))
    return by_cutoff
