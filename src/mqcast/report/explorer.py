"""The items that a page lets one look at, compressed, in a page of bounded size.

head     what all items share: models, levels, dates (everything else counts in them), events as [name, dates]
index    the ids of the items, why each is here, what its static columns say; and the ids of all others
chunks   of PER_CHUNK items: limit (beyond it a value is implausible; if one is), history, cutoffs, targets of each
         cutoff, quantiles[model][cutoff][level][target], promotions, numbers (told where they change), and
         attention[model][cutoff][horizon] = pairs of date and weight in thousandths
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mqcast.errors import ConfigError, quoted
from mqcast.evaluation.columns import distinct
from mqcast.levels import quantile_column
from mqcast.report.packing import MOST_NAME, changes, packed, rounded
from mqcast.report.sources import Sources
from mqcast.report.style import shortened
from mqcast.report.summary import Findings
from mqcast.settings import nearest

MOST_ITEMS, MOST_BYTES, PER_CHUNK = 1_000, 2_000_000, 8
MOST_EXPLAINED, MOST_ATTENTION_BYTES = 12, 600_000
MOST_LEVELS, MOST_NUMBERS, MOST_HISTORY, MOST_OTHERS = 5, 12_000, 260, 50_000
LEAST_WEIGHT = 0.005
CHOSEN, WORST, UNSTABLE, AT_RANDOM = "chosen", "largest loss", "most unexplained revisions", "at random"
IMPLAUSIBLE = "implausible"
MOST_IMPLAUSIBLE = 20  # items


@dataclass(frozen=True)
class Explorer:
    """What the page holds of the items, and of how many.

    chunks   the index, then the items
    """

    head: str
    chunks: tuple[str, ...]
    ids: tuple[str, ...]
    num_items: int
    num_explained: int
    num_chosen: int
    every_cutoff: bool

    @property
    def num_bytes(self) -> int:
        """Of the items."""
        return sum(map(len, self.chunks[1:]))


def explorer_of(
    sources: Sources, findings: Findings, seed: int = 0, most_bytes: int = MOST_BYTES, chosen: Sequence[Any] = ()
) -> Explorer:
    """The chosen items, those of the ranked lists and some at random, in turn, as many as the bytes allow."""
    reasons = _reasons(sources, findings, seed, chosen)
    part = sources.of_items(reasons)
    dates = _Dates.of(part)
    levels = _levels(part.levels)
    thinned = _Thinned.of(part, len(levels))
    attention = _attention(sources, list(reasons)[:MOST_EXPLAINED], dates, thinned)
    frames = {model: _by_item(table.to_polars()) for model, table in part.rows.items()}
    history, promoted, numbers = _by_item(part.observed.to_polars()), _promotions(part), _numbers(part, dates)
    limits = _limits(findings)

    def item_of(id: str) -> dict[str, Any]:
        item: dict[str, Any] = {"limit": limits[id]} if id in limits else {}
        item |= _history(history.get(id), frames[sources.first_model][id], dates)
        item |= _fans([of_item[id] for of_item in frames.values()], dates, levels, thinned)
        item["promotions"] = [[i, dates.places(days)] for i, days in promoted.get(id, ())]
        item["numbers"] = numbers.get(id, [])
        return item | ({"attention": attention[id]} if id in attention else {})

    chunks = _chunks(list(reasons), item_of, most_bytes)
    shown = tuple(reasons)[: PER_CHUNK * len(chunks)]
    explained = sum(id in attention for id in shown)
    return Explorer(
        _head(part, dates, levels, explained > 0),
        (_index(sources, shown, reasons), *chunks),
        shown,
        findings.counts.items,
        explained,
        sum(reason == CHOSEN for reason in reasons.values()),
        thinned.every == 1,
    )


def _chunks(ids: Sequence[str], item_of: Callable[[str], dict[str, Any]], most_bytes: int) -> list[str]:
    """As many as the bytes allow, but one at least."""
    chunks: list[str] = []
    for start in range(0, len(ids), PER_CHUNK):
        chunk = packed([item_of(id) for id in ids[start : start + PER_CHUNK]])
        if chunks and sum(map(len, chunks)) + len(chunk) > most_bytes:
            break
        chunks.append(chunk)
    return chunks


def _head(part: Sources, dates: "_Dates", levels: list[float], explains: bool) -> str:
    """What the script needs before any chunk."""
    events = [[name, dates.places(days)] for name, days in part.events.items()]
    facts = {
        "models": list(part.models),
        "first": part.models.index(part.first_model),
        "levels": levels,
        "dates": dates.texts,
        "horizon": part.horizon,
        "per_chunk": PER_CHUNK,
        "explains": explains,
        "events": [event for event in events if event[1]],
        "flags": [] if part.promotions is None else part.promotions.columns[2:],
        "numbers": [] if part.calendar is None else part.calendar.numbers,
    }
    return json.dumps(facts, separators=(",", ":"), ensure_ascii=False)


def _index(sources: Sources, shown: Sequence[str], reasons: dict[str, str]) -> str:
    about = {} if sources.calendar is None else sources.calendar.about
    kept = set(shown)
    others = [id for id in sources.ids if id not in kept][:MOST_OTHERS]
    return packed(
        {
            "ids": [shortened(id, MOST_NAME) for id in shown],
            "why": [reasons[id] for id in shown],
            "about": [[[name, shortened(text)] for name, text in about.get(id, {}).items()] for id in shown],
            "others": [shortened(id, MOST_NAME) for id in others],
        }
    )


def check_chosen(sources: Sources, chosen: Sequence[Any]) -> None:
    """Items that are to be shown must have been forecast."""
    if isinstance(chosen, str):
        raise ConfigError(f"items are a list of ids, not the text {quoted(chosen)}; write items=[{quoted(chosen)}]")
    there = set(sources.ids)
    for id in chosen:
        if str(id) not in there:
            raise ConfigError(f"no item {quoted(str(id))} was forecast{nearest(str(id), sources.ids)}")


def _reasons(sources: Sources, findings: Findings, seed: int, chosen: Sequence[Any]) -> dict[str, str]:
    """Items and why: the chosen ones, then in turn from the rankings and at random."""
    drawn = np.random.default_rng(seed).permutation(len(sources.ids))[: 2 * MOST_ITEMS]
    lists = [
        [(id, IMPLAUSIBLE) for id in list(_limits(findings))[:MOST_IMPLAUSIBLE]],
        [(one.id, WORST) for one in findings.worst],
        [(one.id, UNSTABLE) for one in findings.unstable],
        [(sources.ids[i], AT_RANDOM) for i in drawn],
    ]
    reasons = {str(id): CHOSEN for id in chosen}
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


def _promotions(part: Sources) -> dict[str, list[tuple[int, list[Any]]]]:
    """Id → the place of a flag, and its dates."""
    if part.promotions is None:
        return {}
    promoted: dict[str, list[tuple[int, list[Any]]]] = {}
    for i, name in enumerate(part.promotions.columns[2:]):
        for (id,), days in part.promotions.filter(pl.col(name)).partition_by("unique_id", as_dict=True).items():
            promoted.setdefault(str(id), []).append((i, days["ds"].to_list()))
    return promoted


def _numbers(part: Sources, dates: _Dates) -> dict[str, list[Any]]:
    """Id → the place of a number, then a date and a value wherever it changes."""
    if part.calendar is None or not part.calendar.numbers:
        return {}
    names, schema = part.calendar.numbers, part.calendar.panel.schema
    wanted = pl.Series(part.ids, dtype=pl.String).implode()
    rows = part.calendar.frames.rows.filter(pl.col(schema.id).cast(pl.String).is_in(wanted))
    found: dict[str, list[Any]] = {}
    for (id,), of_item in rows.partition_by(schema.id, as_dict=True).items():
        places = [dates.place.get(date, -1) for date in of_item[schema.time].to_list()]
        for i, name in enumerate(names):
            values = np.full(len(dates.texts) + 1, np.nan)  # the last: dates that the page does not have
            values[places] = of_item[name].cast(pl.Float64).to_numpy()
            found.setdefault(str(id), []).append([i, *changes(values[:-1], 0)])
    return found


def _attention(sources: Sources, ids: list[str], dates: _Dates, thinned: _Thinned) -> dict[str, Any]:
    """Id → weights of each model that can tell; the latest cutoffs, as many as the bytes allow."""
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
    kept, size = {}, 0
    for id, of_models in by_item.items():
        more = len(json.dumps(of_models, separators=(",", ":")))
        if size + more <= MOST_ATTENTION_BYTES:
            kept[id], size = of_models, size + more
    return kept


def _weights(part: pl.DataFrame, dates: _Dates) -> dict[str, Any]:
    """Cutoff → block → horizon → date, weight, date, weight … for the latest cutoffs."""
    latest, by_cutoff = set(part["cutoff"].unique().sort(descending=True).head(14).to_list()), {}
    columns = part.select("cutoff", "block", "horizon", "looked_at", "weight").sort("cutoff", "horizon", "looked_at")
    for cutoff, block, horizon, looked_at, weight in columns.iter_rows():
        if cutoff in latest and looked_at in dates.place:
            of_cutoff = by_cutoff.setdefault(str(dates.place[cutoff]), {}).setdefault(block, {})
            of_cutoff.setdefault(str(horizon), []).extend((dates.place[looked_at], round(1000 * weight)))
    return by_cutoff
