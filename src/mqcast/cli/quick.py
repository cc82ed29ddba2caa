"""The one command: quick."""

from pathlib import Path
from typing import Annotated

import typer

from mqcast.cli.app import MODELS, AsJson, app
from mqcast.cli.output import console, facts_of_forecasts, tell
from mqcast.models import DEFAULT

Columns = list[str] | None


def _names(given: Columns) -> tuple[str, ...]:
    """Options that are repeated, and names that are divided by commas."""
    return tuple(name.strip() for one in given or () for name in one.split(","))


@app.command("quick")
def quick_command(
    frame: Annotated[str, typer.Argument(help="Long rows: CSV, Parquet, or a file of Excel.")],
    horizon: Annotated[int, typer.Option(min=1, help="Steps ahead.")] = 13,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("first_forecast"),
    id: Annotated[
        Columns, typer.Option("--id", help="The column of series ids, or several: store,item; left out: guessed.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="The column of dates; left out: guessed.")] = None,
    target: Annotated[str | None, typer.Option(help="The column to forecast; left out: guessed.")] = None,
    known: Annotated[Columns, typer.Option(help="Columns known ahead: promo,price; left out: guessed.")] = None,
    past: Annotated[Columns, typer.Option(help="Columns known up to today; left out: guessed.")] = None,
    static: Annotated[Columns, typer.Option(help="Columns with one value a series; left out: guessed.")] = None,
    holidays: Annotated[Columns, typer.Option(help="Country or region, such as US or DE-BY.")] = None,
    future: Annotated[
        str | None, typer.Option(help="A second file of what is planned after the last sale: id, date, promotions …")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="For training; half of them for the backtest.")] = 4,
    model: Annotated[str, typer.Option(help=MODELS)] = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Forecast an ordinary sales history in one command: roles guessed, a backtest, a forecast, and pages of both.

    Examples: [bold]mqcast quick sales.csv --horizon 13[/bold],
    [bold]mqcast quick sales.csv --id store,item --known promo --holidays US --minutes 10[/bold],
    [bold]mqcast quick sales.csv --future promotions.csv[/bold]
    """
    from mqcast.first_forecast import quick

    made = quick(
        frame,
        horizon,
        folder=out,
        id=_names(id) or None,
        time=time,
        target=target,
        known=_names(known),
        past=_names(past),
        static=_names(static),
        holidays=_names(holidays),
        future=future,
        minutes=minutes,
        model=model,
        verbose=not as_json,
        tell=(lambda text: None) if as_json else _say,
    )
    facts = {"folder": str(made.folder), "roles": made.roles, "decisions": made.decisions}
    facts |= facts_of_forecasts(made.forecast.lazy(), made.forecaster.panel_)
    tell(as_json, facts, f"open {made.folder / 'page.html'}")


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
