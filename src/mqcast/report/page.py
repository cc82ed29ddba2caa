"""A page of tables and figures in one file that works offline; every text from data is escaped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import plotly.graph_objects as go

from mqcast.durable import write_file

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
  table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
  th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
  th:first-child, td:first-child { text-align: left; }
  .best { font-weight: 700; }
  figure { margin: 2rem 0; background: #fff; }
</style></head><body>
<h1>{{ title }}</h1>
{% for text in intro %}<p>{{ text }}</p>{% endfor %}
{% for table in tables %}<h2>{{ table.title }}</h2><p>{{ table.reading }}</p>
<table><thead><tr>{% for name in table.columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table.rows %}<tr>{% for cell in row %}<td{% if cell in table.best.get(loop.index0, ()) %}
 class="best"{% endif %}>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table>{% endfor %}
{% for name, figure in figures.items() %}
<figure role="img" aria-label="{{ name }}">{{ figure | safe }}</figure>{% endfor %}
</body></html>
"""


@dataclass(frozen=True)
class PageTable:
    """Rows of text under a title, with a sentence that says how to read them; the best cells of a column are bold."""

    title: str
    reading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: Mapping[int, Sequence[str]]


def write_page(
    path: Path, title: str, intro: Sequence[str], tables: Sequence[PageTable], figures: Mapping[str, go.Figure]
) -> Path:
    """Everything inline; the figures' library once."""
    drawn = {
        name: figure.to_html(full_html=False, include_plotlyjs=i == 0)
        for i, (name, figure) in enumerate(figures.items())
    }
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(TEMPLATE).render(title=title, intro=intro, tables=tables, figures=drawn)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, page)
    return path
