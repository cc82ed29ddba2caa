"""`python -m lab params`: how many parameters the networks have, beside the paper's numbers."""

import json
from typing import Annotated

import typer
from rich.table import Table

from lab.commands.options import app
from lab.paper.parameters import PAPER, parameter_table
from mqcast.cli.app import AsJson
from mqcast.cli.output import console


@app.command()
def params(
    feedback_heads: Annotated[
        str, typer.Option(help="'shared', as the paper's counts imply, or 'per_horizon', as its equations say.")
    ] = "shared",
    as_json: AsJson = False,
) -> None:
    """Count the networks' parameters in the paper's private setting, beside the paper's own numbers.

    Example: [bold]python -m lab params --feedback-heads per_horizon[/bold]
    """
    counts = parameter_table(feedback_heads)
    if as_json:
        typer.echo(json.dumps([{"model": model, "parameters": count} for model, count in counts.items()]))
        return
    table = Table(title="Parameters: 52 weeks ahead, d_h = 32, one-hot static features", title_justify="left")
    for heading in ("model", "here", "paper", "here − mqt-nods", "paper − mqt-nods"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for model, count in counts.items():
        extra, papers = count - counts["mqt-nods"], PAPER[model] - PAPER["mqt-nods"]
        table.add_row(model, f"{count:,}", f"{PAPER[model]:,}", f"{extra:+,}", f"{papers:+,}")
    console.print(table)
    console.print("The width of the static input is not published: it is fitted to mqt-nods. See docs/paper.md.")
