"""`python -m lab`: the app, and what its commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.table import Table

app = typer.Typer(
    help="Run the paper's experiments, similar ones on other data, the battery, benchmarks and reliability campaigns.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Name = Annotated[str, typer.Argument(help="An experiment: its name (see `python -m lab list`), or a TOML file.")]
Results = Annotated[Path | None, typer.Option(help="A second folder for the records, such as lab/results.")]


def shown(frame: pl.DataFrame, title: str, texts: Sequence[str] = ("model", "by")) -> Table:
    """A frame as a table for the terminal, with numbers aligned to the right."""
    table = Table(title=title, title_justify="left")
    for column in frame.columns:
        table.add_column(column, justify="left" if column in texts else "right")
    for row in frame.iter_rows():
        table.add_row(*[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row])
    return table
