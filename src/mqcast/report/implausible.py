"""Implausible forecasts on a page: a notice above everything, and the worst of them one by one."""

from dataclasses import replace
from typing import Any

from mqcast.errors import readable
from mqcast.evaluation.implausible_forecasts import Implausible, remedies, sentences, worst_rows
from mqcast.levels import percentile
from mqcast.report.explorer import Explorer
from mqcast.report.page import Cell, PageTable, Section

LISTED = 12
TITLE = "Implausible forecasts"


def notices_of(implausible: Implausible) -> tuple[str, ...]:
    """What stands above everything: the words of the warning, one text per model. Levels have notices of their own."""
    verdicts = [one for one in (replace(each, levels=()) for each in implausible.verdicts) if one]
    if not verdicts:
        return ()
    notices = [readable(sentences(one)) for one in verdicts]
    return (*notices, " ".join([*remedies(verdicts), f"The section “{TITLE}” has more."]))


def has_section(implausible: Implausible) -> bool:
    """Levels that are far off belong to calibration, which has a section of its own."""
    return any(len(one.rows) or len(one.zeros) for one in implausible.verdicts)


def implausible_section(implausible: Implausible, explorer: Explorer) -> Section:
    """The worst forecasts, each with a link to its item, and how many there are."""
    multiple = implausible.verdicts[0].multiple
    reading = (
        f"These forecasts are more than {multiple:g} times the largest value that the series ever had, negative where "
        "demand is never negative, or 0 where demand is never 0. Choose an item to see its forecast below. The axes of "
        "all figures fit the plausible values; triangles mark what lies beyond them."
    )
    tables = [_worst(implausible, explorer)] if any(len(one.rows) for one in implausible.verdicts) else []
    counts = ["forecaster", "forecasts", "too large", "negative", "series affected", "series forecast as 0"]
    rows = []
    for one in implausible.verdicts:
        numbers = (one.forecasts.num_rows, one.num_large, len(one.rows) - one.num_large, one.num_series())
        rows.append([Cell(one.model), *(Cell(f"{each:,}", each) for each in (*numbers, len(one.zeros)))])
    tables.append(PageTable("How many", counts, rows))
    return Section("implausible", TITLE, reading, (), tables)


def _worst(implausible: Implausible, explorer: Explorer) -> PageTable:
    place = {id: i for i, id in enumerate(explorer.ids)}
    listed: list[tuple[Any, ...]] = [
        (one.model, *row) for one in implausible.verdicts for row in worst_rows(one, LISTED).iter_rows()
    ]
    listed.sort(key=lambda row: -(row[8] or 0))
    columns = ["item", "forecaster", "made at", "date", "steps ahead", "quantile", "forecast"]
    rows = []
    for model, id, cutoff, ds, horizon, level, value, largest, times, _ in listed[:LISTED]:
        shows = (model, _day(cutoff), _day(ds))
        cells = [Cell(id, item=place.get(id), shows=shows), Cell(model), Cell(shows[1]), Cell(shows[2])]
        cells += [Cell(str(horizon), horizon), Cell(percentile(level), level)]
        rows.append([*cells, *(Cell.number(number) for number in (value, largest, times))])
    return PageTable("The worst", [*columns, "largest ever sold", "times that"], rows)


def _day(date: Any) -> str:
    return f"{date:%Y-%m-%d %H:%M}".removesuffix(" 00:00")
