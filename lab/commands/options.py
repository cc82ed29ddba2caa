"""`python -m lab`: the paper's experiments and their like, a command each."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Run an experiment of the paper, or its like on other data, and set its numbers beside the published ones.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Data = Annotated[Path, typer.Option("--data", help="The folder with the data set's files.")]
Out = Annotated[Path, typer.Option("--out", help="Where runs, forecasts and records are written.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="mqt, mqt-nods, mqt-all, mqcnn or mqrnn; repeat for more; a study's default: all."),
]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="A seed; repeat for more.")]
