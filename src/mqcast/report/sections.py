"""Findings → the sections of a page: tables and figures, each with an explanation of how to read it."""

from collections.abc import Mapping, Sequence

import polars as pl

from mqcast.evaluation.slices import OVERALL
from mqcast.levels import percentile, quantile_column
from mqcast.report.accuracy import (
    by_decile_figure,
    by_horizon_figure,
    calibration_figure,
    loss_by_lead_figure,
    width_figure,
)
from mqcast.report.bounds import bounded
from mqcast.report.evolution import volatility_figure
from mqcast.report.explained import encodings_figure
from mqcast.report.explorer import Explorer
from mqcast.report.figures import Line, learning_curve
from mqcast.report.headline import known, name_of
from mqcast.report.implausible import has_section, implausible_section
from mqcast.report.page import Cell, PageFigure, PageTable, Section, facts_row
from mqcast.report.past_spans import spans_section
from mqcast.report.sources import Sources, headline_levels
from mqcast.report.summary import AS_ORACLE, Excess, Findings, Listed, Score

MOST_STEPS = 600  # points of a learning curve
FAR_WORSE = 1.1  # times the least loss: beyond it a small V is no merit


def sections_of(sources: Sources, findings: Findings, explorer: Explorer, facts: Mapping[str, str]) -> list[Section]:
    """The sections that have content."""
    sections = [implausible_section(findings.implausible, explorer)] if has_section(findings.implausible) else []
    sections += [_answer(findings), _slices(findings), _progress(findings), _calibration(findings)]
    if sources.totals:
        sections.append(spans_section(sources.totals, sources))
    if findings.process is not None:
        sections.append(_volatility(findings, findings.process))
    sections += [_items_to_review(findings, explorer), _explorer(explorer)]
    if encodings := {name: one.encodings for name, one in sources.trained.items() if one.encodings is not None}:
        sections.append(_encodings(encodings, sources))
    if curves := {name: list(one.metrics) for name, one in sources.trained.items() if one.metrics}:
        sections.append(_training(curves))
    sections.append(_provenance(sources, findings, facts))
    return sections


def missing_parts(sources: Sources, findings: Findings, explorer: Explorer) -> list[str]:
    """Which sections are missing, and why."""
    parts = []
    if findings.process is None:
        parts.append(
            "Volatility and unexplained revisions need two quantile levels and several forecasts of the same date."
        )
    if sources.calendar is None:
        parts.append("Promotions, holidays and the summary of the data need a packed panel.")
    if not sources.trained:
        parts.append("Learning curves, attention and position encodings need a trained run, not only forecasts.")
    elif not explorer.num_explained:
        parts.append("The explanation of a forecast needs a network with attention (mqt, mqt-nods, mqt-all).")
    return parts


# -- each section ------------------------------------------------------------------------------------------------------


def _answer(findings: Findings) -> Section:
    levels, excess = headline_levels(findings.levels), {(one.model, one.level): one for one in findings.excess}
    columns = ["forecaster"]
    for level in levels:
        columns += [f"{percentile(level)} risk", f"{percentile(level)} relative"]
    columns += [f"V {percentile(level)} (95 %)" for level in levels if findings.excess]
    columns += [f"≤ {percentile(level)}" for level in levels]
    rivals = [score for score in findings.scores if score.model != findings.oracle]
    rows = []
    for score in findings.scores:
        cells = [Cell(score.model)]
        for level in levels:
            best = (
                score in rivals and len(rivals) > 1 and _least(score.risk[level], [one.risk[level] for one in rivals])
            )
            cells += [Cell.number(score.risk[level], best=best), Cell.number(score.relative[level], best=best)]
        for level in levels if findings.excess else ():
            calmest = _calmest(findings, level) if _is_good(findings, score.model, level) else None
            cells.append(_interval(excess[score.model, level], calmest))
        cells += [_share(score, level, rivals) for level in levels]
        rows.append(cells)
    reading = (
        "Risk is 2 Σ quantile loss / Σ demand: lower is better. A relative risk below 1 beats "
        f"{name_of(findings.baseline)}. V is excess volatility: closest to 0 is best, but a forecaster that never "
        "revises, or that loses far more than the best, is not ranked. The share of demand at or below (≤) a quantile "
        "should equal its level. ★ marks the best."
    )
    note = f"{name_of(findings.oracle)} knows how the data were generated. It is a bound, not a competitor."
    notes = [*([note] if findings.oracle else []), *_calm_but_poor(findings, levels)]
    return Section("answer", "Which forecaster is best?", reading, notes, [PageTable("All forecasts", columns, rows)])


def _slices(findings: Findings) -> Section:
    names = findings.slices["slice"].unique(maintain_order=True).to_list()
    table = _relative_table("By slice, relative to the baseline", "slice", names, findings.slices, findings)
    drawn = {"Risk by horizon": by_horizon_figure(findings.horizons, headline_levels(findings.levels))}
    if findings.deciles is not None:
        drawn["Risk by decile of demand"] = by_decile_figure(findings.deciles, headline_levels(findings.levels))
    figures = [PageFigure(label, bounded(figure, findings.suspicious)) for label, figure in drawn.items()]
    reading = (
        f"The table shows losses relative to {name_of(findings.baseline)} on peaks, after peaks and during promotions: "
        "below 1 is better. The figures show the risk itself, by horizon and by how much an item sells (10: most)."
    )
    return Section("slices", "Strengths and weaknesses", reading, (), [table], figures)


def _progress(findings: Findings) -> Section:
    if findings.leads is None:
        reading = "Each date was forecast only once, so this report cannot show how forecasts improve over time."
        return Section("leads", "Improvement as the date approaches", reading)
    reading = (
        "The figure shows the loss of the same dates at each lead, minus its mean. The line of a forecaster that "
        "learns as the date approaches falls steeply to the right; a flat line means that nothing is learnt."
    )
    figure = bounded(loss_by_lead_figure(findings.leads), findings.suspicious)
    figures = [PageFigure("Loss by remaining steps, minus its mean", figure)]
    return Section("leads", "Improvement as the date approaches", reading, figures=figures)


def _calibration(findings: Findings) -> Section:
    reading = (
        "Points on the dotted line are calibrated: demand was at or below the quantile as often as it should be. Among "
        "calibrated forecasters, the one with the narrower interval is better."
    )
    figures, tables = [PageFigure("Announced and observed coverage", calibration_figure(findings.calibration))], []
    if findings.widths.height:
        figure = bounded(width_figure(findings.horizons), findings.suspicious)
        figures.append(PageFigure("Width of the interval by horizon", figure))
        columns = ["forecaster", "interval", "mean width", "share inside", "announced"]
        rows = []
        for model, interval, width, inside in findings.widths.iter_rows():
            low, high = (float(part[1:]) for part in interval.split("_"))
            named = f"{percentile(low)} to {percentile(high)}"
            rows.append([Cell(model), Cell(named), Cell.number(width), _percent(inside), _percent(high - low)])
        tables.append(PageTable("Intervals", columns, rows))
    return Section("calibration", "Calibration", reading, (), tables, figures)


def _volatility(findings: Findings, process: pl.DataFrame) -> Section:
    reading = (
        "V measures unexplained revisions. On the zero line, forecasts are revised only when there is news. Above it, "
        "revisions are taken back later (over-reaction); below it, they continue in the same direction "
        "(under-reaction). The bands are 95 % intervals."
    )
    if findings.oracle:
        reading += f" V that is within that of {name_of(findings.oracle)} comes from fitting two quantiles by a gamma."
    notes = [_in_words(one) for one in findings.excess]
    figures = [PageFigure("Martingale volatility V by remaining steps", volatility_figure(process))]
    columns = ["forecaster", "level", "excess volatility", "from", "to", "reading"]
    columns += ["direction changes per target", "dates judged"]
    rows = [
        [
            Cell(one.model),
            Cell(percentile(one.level), one.level),
            *(Cell.number(value) for value in (one.excess, one.lo, one.hi)),
            Cell(one.reading),
            Cell.number(one.direction_changes),
            Cell(f"{one.targets:,}", one.targets),
        ]
        for one in findings.excess
    ]
    tables = [PageTable("Excess volatility", columns, rows)]
    return Section("volatility", "Are revisions justified?", reading, notes, tables, figures)


def _in_words(one: Excess) -> str:
    words = {
        "over-reaction": "forecasts jump and come back (over-reaction)",
        "under-reaction": "forecasts react too slowly to news (under-reaction)",
        "not significant": "no significant excess volatility",
        AS_ORACLE: "no more excess volatility than the oracle has",
    }
    interval = "" if one.lo is None or one.hi is None else f" (95 % interval: {one.lo:.3f} to {one.hi:.3f})"
    value = "unknown" if one.excess is None else f"{one.excess:.3f}"
    told = words.get(one.reading, one.reading)
    return f"{name_of(one.model)}, {percentile(one.level)}: {told}; V = {value}{interval}."


def _items_to_review(findings: Findings, explorer: Explorer) -> Section:
    place = {id: i for i, id in enumerate(explorer.ids)}

    def rows(listed: Sequence[Listed]) -> list[list[Cell]]:
        return [
            [Cell(one.id, item=place.get(one.id)), Cell.number(one.value), Cell.number(one.beside)] for one in listed
        ]

    tables = [PageTable("Largest loss", ["item", "mean loss, units", "risk"], rows(findings.worst))]
    if findings.unstable:
        columns = ["item", "excess volatility", "back and forth, units"]
        tables.append(PageTable("Most unexplained revisions", columns, rows(findings.unstable)))
    reading = "A planner should look at these items first. Choose one to see its history and forecasts below."
    return Section("review", "Items to review first", reading, (), tables)


def _explorer(explorer: Explorer) -> Section:
    shown, total = len(explorer.ids), explorer.num_items
    which = "those that were chosen, those listed above" if explorer.num_chosen else "those listed above"
    some = (
        f"{shown:,} of {total:,} items are on this page: {which}, and some at random. To see others, name them: "
        "items=[…] in Python, --item on the command line."
    )
    notes = ["All items are on this page." if shown == total else some]
    if shown < explorer.num_chosen:
        notes.append(f"{explorer.num_chosen - shown:,} of the chosen items would make this page too large.")
    if not explorer.every_cutoff:
        notes.append("Some cutoffs are left out to keep the page small.")
    if explorer.num_explained:
        notes.append(f"Attention is shown for {explorer.num_explained} of them, at the latest cutoffs.")
    reading = "Choose an item to see its sales, its forecasts over time, and what the network looked at."
    return Section("items-explorer", "Items", reading, notes, has_explorer=True)


def _encodings(encodings: Mapping[str, pl.DataFrame], sources: Sources) -> Section:
    reading = (
        "The figure shows the learned encoding of each date, one row per channel. Dates with the same colours look "
        "alike to the network. Marks are holidays and events; an encoding that changes before them shows that the "
        "network anticipates them."
    )
    figures = [
        PageFigure(f"Position encodings of {name_of(name)}", encodings_figure(one, sources.events))
        for name, one in encodings.items()
    ]
    return Section("calendar", "What the network learnt about the calendar", reading, figures=figures)


def _training(curves: dict[str, list[Line]]) -> Section:
    reading = (
        "Training and validation loss should fall and level off together. A validation loss that rises while the "
        "training loss falls is a sign of overfitting. The star marks the epoch that was kept."
    )
    thinned = {name_of(name): _thinned(lines) for name, lines in curves.items()}
    return Section(
        "training", "Learning curve", reading, figures=[PageFigure("Learning curve", learning_curve(thinned))]
    )


def _thinned(lines: list[Line]) -> list[Line]:
    steps = [line for line in lines if line["record"] == "step"]
    every = max(1, -(-len(steps) // MOST_STEPS))
    kept = {line["step"] for line in steps[::every]}
    return [line for line in lines if line["record"] != "step" or line["step"] in kept]


def _provenance(sources: Sources, findings: Findings, facts: Mapping[str, str]) -> Section:
    rows = [facts_row(name, value) for name, value in facts.items()]
    tables = [PageTable("How this page was made", ["what", "value"], rows)]
    for name, one in sources.trained.items():
        if one.facts:
            tables.append(
                PageTable(f"Run {name_of(name)}", ["what", "value"], [facts_row(k, v) for k, v in one.facts.items()])
            )
    if findings.data is not None:
        data = findings.data
        summary = {
            "series": f"{data.num_series:,}",
            "rows": f"{data.num_rows:,}",
            "span": f"{data.first} to {data.last}, {data.freq}",
            "missing": f"{data.missing_share:.1%}",
            "zeros": f"{data.zero_share:.1%}",
            "steps per series": f"{data.shortest:,} to {data.longest:,}",
            **{role: ", ".join(names) for role, names in data.columns.items()},
        }
        tables.insert(0, PageTable("Data", ["what", "value"], [facts_row(k, v) for k, v in summary.items()]))
    reading = "This is what the forecasts were made from, and what is needed to make them again."
    code = [(f"Settings of {name_of(name)}", one.config) for name, one in sources.trained.items() if one.config]
    return Section("provenance", "Data, settings and reproducibility", reading, (), tables, code=code)


# -- cells -------------------------------------------------------------------------------------------------------------


def _relative_table(
    caption: str, heading: str, names: Sequence[str], table: pl.DataFrame, findings: Findings
) -> PageTable:
    levels = headline_levels(findings.levels)
    losses = {(row["slice"], row["model"]): row for row in table.iter_rows(named=True)}
    columns = [
        heading,
        "forecasts",
        *(f"{name_of(model)} {percentile(level)}" for level in levels for model in findings.models),
    ]
    rows = []
    for name in names:
        size = losses[name, findings.baseline]["rows"]
        cells = [Cell("All" if name == OVERALL else name), Cell(f"{size:,}", size)]
        for level in levels:
            column = f"quantile_loss_{quantile_column(level)}"
            of_model = {model: losses[name, model][column] for model in findings.models}
            base = of_model[findings.baseline]
            rivals = [loss for model, loss in of_model.items() if model != findings.oracle and loss is not None]
            for model, loss in of_model.items():
                best = len(rivals) > 1 and model != findings.oracle and loss is not None and _least(loss, rivals)
                cells.append(Cell.number(loss / base if base and loss is not None else None, best=best))
        rows.append(cells)
    return PageTable(caption, columns, rows)


def _least(value: float, values: Sequence[float]) -> bool:
    """Is it the least, to three digits?"""
    known = [one for one in values if one == one]
    return bool(known) and f"{value:.3f}" == f"{min(known):.3f}"


def _percent(value: float | None, best: bool = False) -> Cell:
    return Cell("-") if value is None else Cell(f"{value:.1%}", float(value), best)


def _share(score: Score, level: float, rivals: Sequence[Score]) -> Cell:
    off = [abs(one.coverage[level] - level) for one in rivals]
    best = score in rivals and len(rivals) > 1 and _least(abs(score.coverage[level] - level), off)
    return _percent(score.coverage[level], best)


def _calmest(findings: Findings, level: float) -> float | None:
    """The size of V nearest to 0 among rivals that can be compared."""
    sizes = [
        abs(one.excess)
        for one in findings.excess
        if one.level == level and one.excess is not None and _contends(one) and _is_good(findings, one.model, level)
    ]
    return min(sizes) if len(sizes) > 1 else None


def _is_good(findings: Findings, model: str, level: float) -> bool:
    """No oracle, and its loss is not far above the least."""
    return model != findings.oracle and _loss_over_best(findings, model, level)[0] <= FAR_WORSE


def _loss_over_best(findings: Findings, model: str, level: float) -> tuple[float, str]:
    """A loss as a multiple of that of the best rival, and who that is."""
    risks = {score.model: known(score.risk[level]) for score in findings.scores if score.model != findings.oracle}
    best = min(risks, key=lambda name: risks[name])
    return (risks[model] / risks[best] if risks[best] > 0 else 1.0), best


def _calm_but_poor(findings: Findings, levels: Sequence[float]) -> list[str]:
    """Forecasters whose V is closest to 0, but whose losses say why."""
    notes = []
    for level in levels:
        rivals = [one for one in findings.excess if one.level == level and one.model != findings.oracle]
        known = [one for one in rivals if one.excess is not None and _contends(one)]
        calmest = min(known, key=lambda one: abs(one.excess or 0), default=None)
        if calmest is None or len(known) < 2 or _is_good(findings, calmest.model, level):
            continue
        times, best = _loss_over_best(findings, calmest.model, level)
        notes.append(
            f"{name_of(calmest.model)}'s V at {percentile(level)} is closest to 0, but its loss is {times - 1:.0%} "
            f"higher than that of {name_of(best)}: forecasts that hardly react to news need few revisions."
        )
    return notes


def _contends(one: Excess) -> bool:
    """Not a forecaster that never revises, nor one whose V is inconclusive."""
    return bool(one.direction_changes) and not one.reading.startswith("says little")


def _interval(one: Excess, calmest: float | None) -> Cell:
    if one.excess is None:
        return Cell("-")
    interval = "" if one.lo is None or one.hi is None else f" ({one.lo:.3f} to {one.hi:.3f})"
    best = calmest is not None and _contends(one) and f"{abs(one.excess):.3f}" == f"{calmest:.3f}"
    return Cell(f"{one.excess + 0:.3f}{interval}".replace("-0.000", "0.000"), abs(one.excess), best)
