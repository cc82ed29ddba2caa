"""Forecasts that cannot be meant, on a page: a notice above everything, and the worst of them one by one."""

from typing import Any

from mqcast.errors import readable
from mqcast.evaluation.implausible_forecasts import Implausible, remedies, sentences, worst_rows
from mqcast.levels import percentile
from mqcast.report.explorer import Explorer
from mqcast.report.page import Cell, PageTable, Section

LISTED = 12
TITLE = "Forecasts that cannot be meant"


def notices_of(found: Implausible) -> tuple[str, ...]:
    """What stands above everything: the same words as the warning, a model each."""
    if not found:
        return ()
    notices = [readable(sentences(one)) for one in found.verdicts if one]
    more = TITLE if has_section(found) else "Calibration"
    return (*notices, " ".join([*remedies(found.verdicts), f"The part “{more}” has more."]))


def has_section(found: Implausible) -> bool:
    """Levels that are far off are a matter of calibration, which has a part of its own."""
    return any(len(one.rows) or len(one.zeros) for one in found.verdicts)


def implausible_section(found: Implausible, explorer: Explorer) -> Section:
    """The worst forecasts, each of which can be looked at, and how many there are."""
    multiple = found.verdicts[0].multiple
    reading = (
        f"More than {multiple:g} times the largest value that the series ever had, negative where nothing negative was "
        "sold, or nothing where something is always sold: choose an item to see its forecast below. Figures are drawn "
        "by what is plausible; triangles stand for what lies beyond their axes."
    )
    tables = [_worst(found, explorer)] if any(len(one.rows) for one in found.verdicts) else []
    counts = ["forecaster", "forecasts", "too large", "negative", "series affected", "series of nothing"]
    rows = []
    for one in found.verdicts:
        numbers = (one.forecasts.num_rows, one.num_large, len(one.rows) - one.num_large, one.num_series())
        rows.append([Cell(one.model), *(Cell(f"{each:,}", each) for each in (*numbers, len(one.zeros)))])
    tables.append(PageTable("How many", counts, rows))
    return Section("implausible", TITLE, reading, (), tables)


def _worst(found: Implausible, explorer: Explorer) -> PageTable:
    place = {id: i for i, id in enumerate(explorer.ids)}
    listed: list[tuple[Any, ...]] = [
        (one.model, *row) for one in found.verdicts for row in worst_rows(one, LISTED).iter_rows()
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
