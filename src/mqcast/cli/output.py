"""What the command line says: logs and warnings as single lines on stderr; with --json, all of it as one JSON object.

Exit codes: 0 done, 1 a check failed or a bug, 2 a mistake in the data, the settings or the command, or a lack of files,
rights, memory or packages, 128 + n stopped by signal n (130: Ctrl-C, 143: SIGTERM). See docs/operations.md.
"""

import json
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import typer
from rich.console import Console

from mqcast.data.panel import Panel
from mqcast.errors import readable
from mqcast.launch import is_first

console = Console()
logger = logging.getLogger("mqcast")
MOST_NAMED = 10  # ids of series that are left out
_warned: list[dict[str, str]] = []


class _Lines(logging.Handler):
    """A record as one line on stderr; what is worse than information says so at the beginning."""

    def __init__(self, rewritten: Callable[[str], str]):
        super().__init__()
        self.rewritten = rewritten

    def emit(self, record: logging.LogRecord) -> None:
        text = escaped(self.rewritten(record.getMessage()))
        if record.levelno >= logging.WARNING:
            colour = "red" if record.levelno >= logging.ERROR else "yellow"
            text = f"[{colour}]{record.levelname.lower()}:[/{colour}] {text}"
        Console(stderr=True).print(text, highlight=False, soft_wrap=True)


@contextmanager
def logging_lines(rewritten: Callable[[str], str]) -> Iterator[None]:
    """Log "mqcast" and all warnings as lines. `rewritten` puts options of the command in place of arguments."""
    before, shown, handler = (logger.level, logger.propagate), warnings.showwarning, _Lines(rewritten)
    logger.addHandler(handler)
    logger.propagate, warnings.showwarning = False, _show_warning
    try:
        yield
    finally:
        _warned.clear()
        warnings.showwarning = shown
        logger.removeHandler(handler)
        logger.propagate = before[1]
        logger.setLevel(before[0])


def _show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Log a warning once, without its place in the code; of several processes, the first one does."""
    text = readable(str(message))
    if (told := {"kind": category.__name__, "message": text}) in _warned:
        return
    _warned.append(told)
    if is_first():
        logger.warning("%s", text)


def escaped(text: str) -> str:
    return text.replace("[", "\\[").replace("\n", " ")


def wants_json() -> bool:
    return "--json" in sys.argv


def print_json(facts: dict[str, Any]) -> None:
    """The facts, and the warnings so far, as one object that any reader of JSON takes: NaN is null."""
    typer.echo(json.dumps(_plain(facts | {"warnings": _warned}), default=str))


def _plain(value: Any) -> Any:
    if isinstance(value, pl.DataFrame):
        return _plain(value.to_dicts())
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tell(as_json: bool, facts: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(facts)
    else:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def tell_error(text: str, kind: str, code: int, detail: str = "") -> None:
    """An error as a line, and with --json as JSON with its kind and the exit code, too."""
    logger.error("%s", text)
    if wants_json():
        print_error(text, kind, code, detail)


def print_error(text: str, kind: str, code: int, detail: str = "") -> None:
    """An error as JSON; `detail`: a library's own words, for whoever looks for the cause."""
    error = {"kind": kind, "message": readable(text)} | ({"detail": readable(detail)} if detail else {})
    print_json({"error": error, "exit_code": code})


def facts_of_panel(panel: Panel) -> dict[str, Any]:
    return {"series": panel.num_series, "rows": panel.num_rows, "last_observed": str(panel.last_observed_date)}


def facts_of_forecasts(forecasts: pl.LazyFrame | Path, panel: Panel, *, of_some: bool = False) -> dict[str, Any]:
    """How many forecasts, of how many series, from which cutoffs, and, unless they are `of_some` series on purpose,
    the series of the panel that have none."""
    lazy = pl.scan_parquet(forecasts) if isinstance(forecasts, Path) else forecasts
    id, cutoff = panel.schema.id, pl.col("cutoff")
    counted = (pl.len().alias("rows"), cutoff.n_unique().alias("n"), cutoff.min().alias("a"), cutoff.max().alias("b"))
    found = lazy.select(*counted).collect().row(0, named=True)
    have = lazy.select(pl.col(id).cast(pl.String).unique()).collect()
    facts = {
        "rows": found["rows"],
        "series": have.height,
        "cutoffs": found["n"],
        "first_cutoff": str(found["a"]),
        "last_cutoff": str(found["b"]),
    }
    if of_some:
        return facts
    without = pl.DataFrame({id: pl.Series(panel.ids).cast(pl.String)}).join(have, on=id, how="anti")[id].sort()
    return facts | {"left_out": {"series": len(without), "first": without.head(MOST_NAMED).to_list()}}
