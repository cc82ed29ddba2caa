"""The commands that recalibrate forecasts: calibrate and recalibrate."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mqcast.cli.app import AsJson, app
from mqcast.cli.forecasts import table_file, write_table
from mqcast.cli.judge import Actuals, Id, Target, Time, actuals_in, is_panel, show
from mqcast.cli.output import tell
from mqcast.data.export import frames_of
from mqcast.data.joined import joined_name
from mqcast.data.panel import Panel

Static = Annotated[
    Path | None,
    typer.Option(help="Parquet or CSV with a row an item, if slices are of its columns; a panel has its own."),
]


@app.command("calibrate")
def calibrate_command(
    backtest: Annotated[Path, typer.Argument(help="Forecasts from several cutoffs: id, cutoff, date, q0.5, q0.9 …")],
    actuals: Actuals,
    out: Annotated[Path, typer.Option(help="The calibrator to write, as JSON.")],
    by: Annotated[
        list[str] | None,
        typer.Option(help="Move the forecasts of each category, promotion … apart; a column, repeatable."),
    ] = None,
    static: Static = None,
    judge: Annotated[
        Path | None, typer.Option(help="Forecasts from later cutoffs, to show what the calibrator does to them.")
    ] = None,
    id: Id = None,
    time: Time = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Learn from a backtest how far quantiles are off; [bold]mqcast recalibrate[/bold] then moves those of a forecast.

    Example: [bold]mqcast calibrate backtest.parquet panel --out calibrator.json --by category[/bold]
    """
    from mqcast.calibration import calibrate

    known, names = actuals_in(actuals, id, time, target)
    options: dict[str, Any] = {"static": _static(static, actuals), **names}
    made = calibrate(backtest, known, tuple(by or ()), **options)
    made.save(out)
    moved = int((made.shift != 0).any(axis=(0, 2, 3)).sum())
    facts: dict[str, Any] = {
        "calibrator": str(out),
        "levels": len(made.levels),
        "moved": moved,
        "dates": made.num_dates,
    }
    if judge is not None:
        facts["effect"] = made.effect(judge, known, **options)
        if not as_json:
            show(facts["effect"], "Unseen forecasts, before and after")
    tell(as_json, facts, f"{moved} of {len(made.levels)} levels move, by {made.num_dates} dates; they are in {out}")


@app.command("recalibrate")
def recalibrate_command(
    forecasts: Annotated[Path, typer.Argument(help="Parquet or CSV of forecasts, as those that were learnt from.")],
    calibrator: Annotated[Path, typer.Argument(help="What mqcast calibrate wrote.")],
    out: Annotated[Path, typer.Argument(help="The forecasts to write, as .parquet or .csv.")],
    static: Static = None,
    id: Id = None,
    time: Time = None,
    as_json: AsJson = False,
) -> None:
    """Move the quantiles of forecasts by a calibrator.

    Example: [bold]mqcast recalibrate forecasts.parquet calibrator.json better.parquet --static panel[/bold]
    """
    from mqcast.calibration import Calibrator
    from mqcast.data.source import read_table

    table_file(out)
    made = Calibrator.load(calibrator)
    frame = made.apply(
        read_table(forecasts, "the forecasts"), static=_static(static, static), id=joined_name(id), time=time
    )
    write_table(frame, out)
    tell(as_json, {"forecasts": str(out), "rows": len(frame)}, f"{len(frame)} recalibrated forecasts are in {out}")


def _static(static: Path | None, panel: Path | None) -> Any:
    """The frame of items' columns: a file, or that of a panel."""
    if static is not None and not is_panel(static):
        return static
    return frames_of(Panel.open(panel)).static if panel is not None and is_panel(panel) else None
