"""The page of the coming steps: sections, lead and warnings → one file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from mqcast.arguments import path_of
from mqcast.data.panel import Panel
from mqcast.data.summary import summarise
from mqcast.durable import claimed, write_draft
from mqcast.errors import readable
from mqcast.evaluation.implausible_forecasts import remedies, sentences, warn_of
from mqcast.levels import percentile, quantile_column
from mqcast.report.coming import (
    CHANGED,
    IMPLAUSIBLE,
    LAGGING,
    LARGE,
    NEW,
    UNCERTAIN,
    UNLIKE,
    YEAR,
    Coming,
    coming_of,
)
from mqcast.report.coming_items import chunks_of, index_of
from mqcast.report.coming_spans import Ahead, SpanTotals, spans_section
from mqcast.report.page import Cell, Page, PageFigure, PageTable, Section, digits, facts_row, render
from mqcast.report.style import ACTUAL, PALETTE, add_special, styled
from mqcast.report.write import provenance

MOST_BYTES = 15_000_000
MOST_DATES = 60  # in the table of totals


@dataclass(frozen=True)
class Basis:
    """What a forecast rests on, as its forecaster tells it.

    model      the name of the model
    facts      by name: what was trained, when, with which settings
    tables     such as the members of a blend
    config     all settings, as TOML
    warnings   what was warned of when the forecast was made
    """

    model: str
    facts: Mapping[str, str]
    tables: Mapping[str, pl.DataFrame]
    config: str = ""
    warnings: Sequence[str] = ()


def write_coming(
    path: str | Path,
    forecasts: Any,
    panel: Panel,
    basis: Basis,
    *,
    previous: Any = None,
    ahead: Ahead | None = None,
    title: str | None = None,
    seed: int = 0,
) -> Coming:
    """One page on a forecast of the coming steps, that works offline; and what it was made from.

    previous: an earlier forecast, a frame or a file, to compare with. ahead: totals over spans of these steps.
    """
    path = path_of("path", path)
    with claimed(path, "writing the page", make_parents=True) as draft:
        coming = coming_of(forecasts, panel, basis.model, previous)
        write_draft(draft, path, _text_of(coming, basis, title or f"The coming {coming.steps()}", seed, ahead))
    warn_of(coming.implausible.verdicts)
    return coming


def _text_of(coming: Coming, basis: Basis, title: str, seed: int, ahead: Ahead | None) -> str:
    index, totals = index_of(coming), None if ahead is None else SpanTotals.of(coming, ahead)
    warnings = [*basis.warnings, *_notices(coming)]

    def text(chunks: Sequence[str], steps: int) -> str:
        of_spans = [] if totals is None else [spans_section(coming, totals)]
        sections = [_first(coming), _totals(coming), *of_spans, _items(coming, steps), _basis(coming, basis, seed)]
        head = _head(coming, [] if totals is None else totals.names(coming))
        return render(Page(title, _lead(coming), sections, head, (), warnings, "coming", [index, *chunks]))

    room = MOST_BYTES - len(text((), 0).encode())
    room -= 64 * (len(coming.ids) // 100 + 1)  # the tags around chunks
    return text(*chunks_of(coming, room, None if totals is None else totals.values))


def _head(coming: Coming, spans: Sequence[str]) -> str:
    """What the script needs before any chunk."""
    schema = coming.table.names
    facts = {
        "levels": coming.levels,
        "columns": [schema.id, schema.cutoff, schema.time, *map(quantile_column, coming.levels)],
        "dates": coming.dates,
        "events": list(coming.events.items()),
        "flags": list(coming.flags),
        "numbers": list(coming.numbers),
        "steps": coming.steps(),
        "spans": spans,
        "previous": None if coming.previous is None else coming.previous.cutoff,
    }
    return json.dumps(facts, separators=(",", ":"), ensure_ascii=False)


def _notices(coming: Coming) -> list[str]:
    """What stands above everything: implausible forecasts, in the words of the warning."""
    verdicts = [one for one in coming.implausible.verdicts if one]
    return [f"{readable(sentences(one))} {' '.join(remedies([one]))}" for one in verdicts]


# -- sections ----------------------------------------------------------------------------------------------------------


def _lead(coming: Coming) -> list[str]:
    times = np.unique(coming.table.cutoff)
    made = [coming.dates[i] for i in np.unique(np.searchsorted(coming.times, times))]
    ahead = [coming.dates[i] for i in np.unique(np.searchsorted(coming.times, coming.table.time))[[0, -1]]]
    when = f"made at {made[0]}" if len(made) == 1 else f"each made at the end of its own data, {made[0]} to {made[-1]}"
    answer = f"{coming.num_all:,} item{'s' * (coming.num_all != 1)}, {ahead[0]} to {ahead[1]}, {when}."
    level = percentile(coming.levels[coming.middle])
    total = f"Their {level}s add up to {digits(float(np.nansum(coming.totals.medians)))}"
    compared = [f"{_share(now, then)} {words}" for now, then, words in _comparisons(coming)]
    return [answer, f"{total}{': ' * bool(compared)}{', and '.join(compared)}."]


def _comparisons(coming: Coming) -> list[tuple[float, float, str]]:
    """The coming total, one of the past, and what that is; only where all its dates were observed."""
    totals = coming.totals
    ahead = np.flatnonzero(~np.isnan(totals.medians))
    now, found = float(totals.medians[ahead].sum()), []
    past = totals.sold[max(0, ahead[0] - len(ahead)) : ahead[0]]
    if len(past) == len(ahead) and not np.isnan(past).any() and past.sum() > 0:
        found.append((now, float(past.sum()), f"was sold in the {coming.steps(len(ahead))} before"))
    year = _year_before(coming)[ahead]
    if not np.isnan(year).any() and year.sum() > 0:
        found.append((now, float(year.sum()), f"in the same {coming.step}s a year before"))
    return found


def _year_before(coming: Coming) -> np.ndarray:
    """What was sold 52 weeks before each date, or twelve months before it; NaN where that is not known."""
    times, panel = coming.totals.times, coming.sources.calendar and coming.sources.calendar.panel
    assert panel is not None
    frequency = panel.axis.frequency
    if frequency.unit == "month":
        before = frequency.times(frequency.steps(times)[0] - max(1, 12 // frequency.size))
    else:
        before = times - YEAR
    place = np.minimum(np.searchsorted(times, before), len(times) - 1)
    return np.where(times[place] == before, coming.totals.sold[place], np.nan)


def _share(now: float, then: float) -> str:
    """22% less than; from three times on, 5 times as much as."""
    if now / then >= 3:
        return f"{now / then:,.0f} times as much as"
    change = now / then - 1
    return "about as much as" if abs(change) < 0.005 else f"{abs(change):.0%} {'more' if change > 0 else 'less'} than"


def _first(coming: Coming) -> Section:
    level, has_width = percentile(coming.levels[coming.middle]), len(coming.levels) > 1
    columns = ["item", "why", f"{level}s, next {coming.steps()}", f"sold, last {coming.steps()}"]
    columns += [f"{percentile(coming.levels[0])} to {percentile(coming.levels[-1])}"] * has_width
    columns += ["changed by"] * (coming.change is not None)
    rows = []
    for item, reasons in coming.first.items():
        why = "; ".join(_why(coming, item, one) for one in reasons)
        cells = [Cell(coming.ids[item], item=item), Cell(why, longest=400)]
        cells += [Cell.amount(float(coming.total[item])), Cell.amount(float(coming.before[item]))]
        cells += [Cell.amount(float(coming.width[item]))] * has_width
        cells += [] if coming.change is None else [Cell.amount(float(coming.change[item]))]
        rows.append(cells)
    reading = (
        "The largest items; those with the widest range and those whose forecast differs most from recent sales, in "
        "units and for their size"
        + (f"; and those that changed most since the forecast of {coming.previous.cutoff}" if coming.previous else "")
        + ". Choose one to see it below. Sums over several dates show how large an item is; a sum of quantiles is no "
        "quantile of the sum."
    )
    return Section(
        "first", "Items to look at first", reading, _first_notes(coming), [PageTable("Items", columns, rows)]
    )


def _first_notes(coming: Coming) -> list[str]:
    counts = {reason: len(items) for reason, items in coming.reasons.items()}
    notes = []
    if LAGGING in counts:
        notes.append(f"{counts[LAGGING]:,} items were not observed up to the date that they are forecast from.")
    if coming.previous is None:
        notes.append("To see what changed since the last run, give its forecast: previous=… or --previous FILE.")
    else:
        notes += [f"{counts[NEW]:,} items are new since then."] if NEW in counts else []
        gone = coming.previous.num_gone
        notes += [f"{gone:,} items of the previous forecast are not forecast any more."] if gone else []
    return notes


def _why(coming: Coming, item: int, reason: str) -> str:
    total, before = float(coming.total[item]), float(coming.before[item])
    if reason == LARGE:
        whole = float(np.nansum(coming.totals.medians))
        return f"large: {total / whole:.1%} of all" if whole > 0 else "large"
    if reason == UNLIKE:
        return f"unlike recent sales: {_share(total, before)} before" if before > 0 else "nothing was sold recently"
    if reason == UNCERTAIN:
        width = float(coming.width[item])
        share = f"{width / total:.0%} of" if width < 3 * total else f"{width / max(total, 1e-9):,.0f} times"
        return f"uncertain: the range is {share} the middle" if total > 0 else "uncertain"
    if reason == CHANGED and coming.change is not None and coming.previous is not None:
        common = ~np.isnan(coming.previous.values[item]) & ~np.isnan(coming.quantiles[coming.middle, item])
        old = float(coming.previous.values[item][common].sum())
        now = float(coming.quantiles[coming.middle, item][common].sum())
        return f"changed: {_share(now, old)} was forecast at {coming.previous.cutoff}" if old > 0 else "changed from 0"
    if reason == LAGGING:
        known = np.flatnonzero(~np.isnan(coming.sold[item]))
        return f"no data after {coming.dates[known[-1]]}" if known.size else "no recent data"
    return {IMPLAUSIBLE: "implausible: see the notice above", NEW: "new since the last forecast"}[reason]


def _totals(coming: Coming) -> Section:
    totals, level = coming.totals, percentile(coming.levels[coming.middle])
    reading = (
        f"The line to the left is what all items together sold; to the right it is the sum of their {level}s. That sum "
        "is not the median of the total: where demand is skewed, as that of items that sell rarely, it lies below it. "
        "Summed upper quantiles would lie far above any quantile of the total, because items do not all sell well at "
        "once. Therefore no range is drawn around the total."
    )
    clock, notes = coming.table.clock, []
    last = np.flatnonzero(totals.observed)
    if last.size and totals.observed[last[-1]] < coming.num_all:
        when = coming.dates[int(np.searchsorted(coming.times, totals.times[last[-1]]))]
        notes.append(f"At {when}, {totals.observed[last[-1]]:,} of {coming.num_all:,} items were observed.")
    figure = _totals_figure(coming, clock.dates(totals.times).dt.replace_time_zone(None).to_list(), level)
    ahead, year = np.flatnonzero(~np.isnan(totals.medians)), _year_before(coming)
    promotions = {name: on for name, on in totals.on_promotion.items() if on[ahead].any()}
    columns = ["date", f"sum of {level}s", "sold a year before", *(f"items with {name}" for name in promotions)]
    place = np.searchsorted(coming.times, totals.times[ahead])
    rows = (
        []
        if len(ahead) > MOST_DATES
        else [
            [
                Cell(coming.dates[at]),
                Cell.amount(float(totals.medians[i])),
                Cell.amount(float(year[i])),
                *(Cell(f"{on[i]:,}", int(on[i])) for on in promotions.values()),
            ]
            for i, at in zip(ahead, place, strict=True)
        ]
    )
    label = "All items: what was sold, and the sum of medians"
    tables = [PageTable("By date", columns, rows)] if rows else []
    return Section("totals", "Totals", reading, notes, tables, [PageFigure(label, figure)])


def _totals_figure(coming: Coming, dates: list[Any], level: str) -> go.Figure:
    totals, figure = coming.totals, go.Figure()
    first = int(np.searchsorted(totals.times, coming.times[0]))
    dates, sold, medians = dates[first:], totals.sold[first:], totals.medians[first:]
    told = [f"{number:,} items" for number in totals.observed[first:]]
    known, ahead = np.flatnonzero(~np.isnan(sold)), np.flatnonzero(~np.isnan(medians))
    figure.add_scatter(
        x=[dates[i] for i in known],
        y=sold[known],
        text=[told[i] for i in known],
        hovertemplate="%{x}: %{y:,.4g}, %{text}<extra></extra>",
        name="sold",
        mode="lines",
        line={"color": ACTUAL, "width": 1.5},
    )
    figure.add_scatter(
        x=[dates[i] for i in ahead],
        y=medians[ahead],
        hovertemplate="%{x}: %{y:,.4g}<extra></extra>",
        name=f"sum of {level}s",
        mode="lines+markers",
        line={"color": PALETTE[0], "width": 2.5},
    )
    place = np.searchsorted(totals.times, coming.times) - first
    events = {name: [dates[place[i]] for i in places] for name, places in coming.events.items()}
    add_special(figure, {}, events, named={dates[i] for i in ahead})
    return styled(figure.update_layout(yaxis_rangemode="tozero"), 400)


def _items(coming: Coming, steps: int) -> Section:
    shown = f"all {len(coming.ids):,}" if len(coming.ids) == coming.num_all else f"the {len(coming.ids):,} largest"
    reading = (
        f"Search and filter {shown} items, sort by a heading, choose one to see its history and its forecast: half of "
        "the outcomes should lie below P50 and nine of ten below P90. The quantiles of a date hold for that date alone."
    )
    notes = [] if len(coming.ids) == coming.num_all else [f"All {coming.num_all:,} items are in the totals."]
    whole = int((coming.times <= coming.times[coming.cutoff.max()]).sum())
    if steps < whole:
        notes.append(f"To keep this page small, it holds the last {coming.steps(steps)} of each item's history.")
    return Section("items-explorer", "Items", reading, notes, has_explorer=True)


def _basis(coming: Coming, basis: Basis, seed: int) -> Section:
    assert coming.sources.calendar is not None
    panel = coming.sources.calendar.panel
    data = summarise(panel)
    last = coming.dates[int(np.searchsorted(coming.times, coming.times[coming.cutoff.max()]))]
    facts = {
        "data": f"{data.first} to {last}, {data.freq}; {data.num_series:,} series, {data.num_rows:,} rows",
        "forecast": f"{coming.num_all:,} of {data.num_series:,} series, {coming.steps()} ahead",
        "quantiles": ", ".join(map(percentile, coming.levels)),
        "missing": f"{data.missing_share:.1%} of steps; {data.zero_share:.1%} of the others are 0",
        **{role: ", ".join(names) for role, names in data.columns.items()},
        "model": basis.model,
        **basis.facts,
        "previous forecast": "" if coming.previous is None else f"made at {coming.previous.cutoff}",
        **provenance(seed),
    }
    tables = [PageTable("Data and model", ["what", "value"], [facts_row(k, v) for k, v in facts.items() if v])]
    tables += [PageTable.of(caption, frame) for caption, frame in basis.tables.items()]
    reading = "What the forecast was made from. Nothing that happened after the date it was made at is in it."
    code = [("All settings", basis.config)] if basis.config else []
    return Section("basis", "What this forecast rests on", reading, (), tables, code=code)
