"""Sections → one HTML file that works offline; every text from data is escaped."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
import polars as pl
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from mqcast.durable import write_file
from mqcast.report.style import shortened

MOST_PAGE_BYTES = 8_000_000
LONGEST_CELL, LONGEST_FACT = 80, 600
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def digits(value: float) -> str:
    """A number that fits into a cell, however large."""
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


@dataclass(frozen=True)
class Cell:
    """A text, what it is sorted by, and whether it is the best of its column; `item`: its place in the explorer.

    shows     what else the explorer then shows: the forecaster, the cutoff, the date
    longest   signs that are shown
    """

    text: str
    key: float | str | None = None
    best: bool = False
    item: int | None = None
    shows: tuple[str, str, str] | None = None
    longest: int = LONGEST_CELL

    @classmethod
    def number(cls, value: float | None, best: bool = False) -> "Cell":
        return cls("-") if value is None or value != value else cls(digits(value), float(value), best)

    @classmethod
    def amount(cls, value: float) -> "Cell":
        """Units of demand, to three digits, or whole."""
        if value != value:
            return cls("-")
        is_whole = abs(value) >= 100 or value == round(value)
        return cls(f"{value:,.0f}" if is_whole and abs(value) < 1e9 else f"{value:.3g}", float(value))

    @property
    def shown(self) -> str:
        return shortened(self.text, self.longest)

    @property
    def is_number(self) -> bool:
        return isinstance(self.key, int | float)


def facts_row(name: str, value: str) -> list[Cell]:
    """A row of a table of facts, whose values may be long."""
    return [Cell(name), Cell(value, longest=LONGEST_FACT)]


@dataclass(frozen=True)
class PageTable:
    """Rows under a caption."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of(cls, caption: str, frame: pl.DataFrame) -> "PageTable":
        """A frame as it is, numbers to three places."""
        return cls(caption, frame.columns, [[cls._cell(value) for value in row] for row in frame.iter_rows()])

    @staticmethod
    def _cell(value: Any) -> Cell:
        if isinstance(value, float):
            return Cell.number(value)
        return Cell(f"{value:,}", value) if isinstance(value, int) else Cell("-" if value is None else str(value))


@dataclass(frozen=True, eq=False)
class PageFigure:
    """A figure, and what a screen reader says of it."""

    label: str
    figure: go.Figure

    @property
    def height(self) -> int:
        layout: Any = self.figure.layout
        return int(layout.height or 400)

    @property
    def json(self) -> str:
        """Without the title, which stands above it."""
        drawn = go.Figure(self.figure).update_layout(title=None, margin_t=36)
        return str(drawn.to_json())


@dataclass(frozen=True, eq=False)
class Section:
    """A heading, one sentence on how to read what follows, notes, tables, figures, and text in fixed type."""

    key: str
    title: str
    reading: str
    notes: Sequence[str] = ()
    tables: Sequence[PageTable] = ()
    figures: Sequence[PageFigure] = ()
    code: Sequence[tuple[str, str]] = ()  # a heading and a text
    has_explorer: bool = False


@dataclass(frozen=True, eq=False)
class Page:
    """All of a page. `warnings` come before everything; `left_out` says which parts are not there, and why.

    explorer   what its script needs first, as JSON
    part       the name of the template and the script of the items: "explorer" (the past), "coming"
    chunks     compressed data of items in base64, which the script reads when it needs them
    """

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    explorer: str = "null"
    left_out: Sequence[str] = ()
    warnings: Sequence[str] = ()
    part: str = "explorer"
    chunks: Sequence[str] = ()


def render(page: Page) -> str:
    """Everything inline; the figures' library once."""
    loader = jinja2.PackageLoader("mqcast.report")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    files = resources.files("mqcast.report") / "templates"
    figures = [figure.json for section in page.sections for figure in section.figures]
    return environment.get_template("report.html.j2").render(
        page=page,
        policy=Markup(POLICY),
        style=Markup((files / "report.css").read_text(encoding="utf-8")),
        script=Markup("".join((files / name).read_text(encoding="utf-8") for name in ("base.js", f"{page.part}.js"))),
        plotly=Markup(get_plotlyjs()),
        figures=Markup(in_script(f"[{','.join(figures)}]")),
        explorer=Markup(in_script(page.explorer)),
    )


def figure_page(figure: go.Figure) -> str:
    """One figure as a page of its own, which may load nothing either."""
    text = figure.to_html(include_plotlyjs=True)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    head, tag, rest = text.partition("<head>")
    assert tag
    return f"{head}{tag}{policy}{rest}"


def write_page(path: Path, page: Page) -> Path:
    write_file(path, render(page), make_parents=True)
    return path


def in_script(text: str) -> str:
    """JSON that no text in it can break out of: the same value, with every sign that HTML reads written as a code."""
    json.loads(text)  # our own bug if it is none
    codes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return text.translate(str.maketrans(codes))
