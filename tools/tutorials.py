"""Runs the tutorials, puts what they print below each block of code, and writes each as a notebook, too.

    .venv/bin/python tools/tutorials.py [NAME …]

A tutorial has one source: its page in docs/tutorials. The block ```text after a block ```python is what that printed.
"""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
CELL = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)
NUMBER, RULE = re.compile(r"[-−]?\d[\d.,:e+-]*"), re.compile(r"[\s─═┄…]+")
FORMAT = pl.Config(tbl_width_chars=110, tbl_cols=-1, tbl_rows=8, float_precision=3, apply_on_context_enter=True)


def pages() -> list[Path]:
    return sorted(FOLDER.glob("*.md"))


def run(page: str) -> list[str]:
    """What each block of the page prints, run one after another in an empty folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before, outputs = Path.cwd(), []
    with tempfile.TemporaryDirectory() as folder, FORMAT:
        os.chdir(folder)
        try:
            for number, cell in enumerate(CELL.finditer(page), 1):
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(compile(cell["code"], f"block {number}", "exec"), names)
                outputs.append(printed.getvalue())
        finally:
            os.chdir(before)
    return outputs


def with_outputs(page: str, outputs: list[str]) -> str:
    left = iter(outputs)

    def filled(cell: re.Match[str]) -> str:
        output = next(left).rstrip()
        return f"```python\n{cell['code']}```\n" + (f"\n```text\n{output}\n```\n" if output else "")

    return CELL.sub(filled, page)


def alike(output: str) -> str:
    """An output without its digits and widths: those of a trained network differ from machine to machine."""
    return RULE.sub(" ", NUMBER.sub("#", output)).strip()


def shown(page: str) -> list[str]:
    """The outputs that stand on the page."""
    return [cell["output"] or "" for cell in CELL.finditer(page)]


def notebook(page: str) -> str:
    """The page as a notebook, as JSON."""
    cells, end = [], 0
    for cell in CELL.finditer(page):
        cells += _text(page[end : cell.start()])
        printed = {"name": "stdout", "output_type": "stream", "text": _lines(cell["output"] or "")}
        code = {"cell_type": "code", "execution_count": None, "metadata": {}, "source": _lines(cell["code"].rstrip())}
        cells.append(code | {"outputs": [printed] if cell["output"] else []})
        end = cell.end()
    cells += _text(page[end:])
    cells = [{"id": f"cell-{number}"} | cell for number, cell in enumerate(cells)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    made = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _text(text: str) -> list[dict[str, Any]]:
    text = re.sub(r"^\[This page as a notebook\].*\n", "", text, flags=re.MULTILINE).strip()
    return [{"cell_type": "markdown", "metadata": {}, "source": _lines(text)}] if text else []


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(names: list[str]) -> None:
    for path in pages():
        if not names or path.stem in names:
            page = path.read_text(encoding="utf-8")
            page = with_outputs(page, run(page))
            path.write_text(page, encoding="utf-8")
            path.with_suffix(".ipynb").write_text(notebook(page), encoding="utf-8")
            print(f"{path.name}: {len(shown(page))} blocks")


if __name__ == "__main__":
    main(sys.argv[1:])
