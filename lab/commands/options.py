"""`python -m lab`: the app, and what its commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.table import Table

app = typer.Typer(
    help="Run the paper's experiments, their like on other data, leaderboards, benchmarks and campaigns.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Name = Annotated[str, typer.Argument(help="An experiment: a name, or a TOML file; `python -m lab list` shows all.")]
Results = Annotated[Path | None, typer.Option(help="Where records are written too, such as lab/results.")]


def shown(frame: pl.DataFrame, title: str, texts: Sequence[str] = ("model", "by")) -> Table:
    """A frame for the terminal, numbers to the right."""
    table = Table(title=title, title_justify="left")
    for column in frame.columns:
        table.add_column(column, justify="left" if column in texts else "right")
    for row in frame.iter_rows():
        table.add_row(*[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row])
    return table
