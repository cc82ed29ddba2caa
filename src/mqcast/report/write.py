"""Sources → a report in one file: judge, draw, write."""

import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mqcast.arguments import path_of
from mqcast.data.panel import Panel
from mqcast.data.schema import Schema
from mqcast.durable import claimed, write_draft
from mqcast.evaluation.implausible_forecasts import warn_of
from mqcast.evaluation.slices import Slices
from mqcast.provenance import git
from mqcast.report.explorer import MOST_BYTES, check_chosen, explorer_of
from mqcast.report.headline import coverage_notices, lead_of
from mqcast.report.implausible import notices_of
from mqcast.report.page import MOST_PAGE_BYTES, Page, render
from mqcast.report.sections import missing_parts, sections_of
from mqcast.report.sources import Sources, Trained
from mqcast.report.summary import Findings, findings_of
from mqcast.version import __version__


def write_report(
    path: str | Path,
    forecasts: Mapping[str, Any],
    actuals: Any = None,
    *,
    title: str = "Forecasts",
    schema: Schema | None = None,
    panel: Panel | None = None,
    baseline: str | None = None,
    oracle: str | None = None,
    trained: Mapping[str, Trained] | None = None,
    slices: Slices | None = None,
    totals: Mapping[str, Any] | None = None,
    items: Sequence[Any] = (),
    notes: tuple[str, ...] = (),
    seed: int = 0,
) -> Path:
    """One page on any forecasters' frames, {name: frame}, that works offline.

    actuals     left out: the panel's
    panel       adds promotions, holidays and a summary of the data
    baseline    what the others are measured against; left out: the last
    oracle      the one that no forecaster can beat, if there is one
    trained     details of trained networks, by the forecaster's name
    slices      beside those that come from the panel
    totals      forecasts of totals over spans of steps, {name: frame}
    items       ids to look at, beside those of the ranked lists and some at random
    seed        of the items that are drawn at random
    """
    names = {"baseline": baseline, "oracle": oracle}
    sources = Sources.of(
        forecasts, actuals, schema=schema, panel=panel, trained=trained, slices=slices, totals=totals, **names
    )
    write_sources(path, sources, title, notes, seed, items)
    return Path(path)


def write_sources(
    path: str | Path,
    sources: Sources,
    title: str,
    notes: tuple[str, ...] = (),
    seed: int = 0,
    items: Sequence[Any] = (),
) -> Findings:
    """The same of sources that are read already, and what was found; fewer items where the page would be too large.

    What is implausible stands above everything, and is warned of as well.
    """
    path = path_of("path", path)
    check_chosen(sources, items)
    with claimed(path, "writing the report", make_parents=True) as draft:
        findings = findings_of(sources, seed)
        notes = (*notes, *notices_of(findings.implausible), *coverage_notices(findings))
        write_draft(draft, path, _text_of(sources, findings, title, notes, seed, items))
    warn_of(findings.implausible.verdicts)
    return findings


def _text_of(
    sources: Sources, findings: Findings, title: str, notes: tuple[str, ...], seed: int, items: Sequence[Any]
) -> str:
    facts, most = provenance(seed), MOST_BYTES
    while True:
        explorer = explorer_of(sources, findings, seed, most, items)
        sections = sections_of(sources, findings, explorer, facts)
        left_out = missing_parts(sources, findings, explorer)
        text = render(Page(title, lead_of(findings), sections, explorer.head, left_out, notes, chunks=explorer.chunks))
        surplus = len(text.encode()) - MOST_PAGE_BYTES
        if surplus <= 0 or len(explorer.chunks) == 2:  # the index, and one chunk
            return text
        most = min(most, explorer.num_bytes) - surplus


def provenance(seed: int) -> dict[str, str]:
    """Versions, the commit of a checkout, the command, the time."""
    facts = {
        "mqcast": __version__,
        "commit": git("rev-parse", "HEAD"),
        "command": _command(),
        "seed": str(seed),
        "python": platform.python_version(),
        "made at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return {name: value for name, value in facts.items() if value}


def _command() -> str:
    """As it was typed; a notebook has none."""
    name = Path(sys.argv[0]).name
    if not name or "ipykernel" in sys.argv[0]:
        return "Python, interactive"
    return " ".join(["mqcast" if name == "__main__.py" else name, *sys.argv[1:]])
