"""The command that checks a trained run on your own data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from mqcast.cli.app import AsJson, app
from mqcast.cli.output import console, print_json
from mqcast.data.export import some_series
from mqcast.data.panel import Panel
from mqcast.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from mqcast.checks import CheckResults
    from mqcast.forecaster import Forecaster


@app.command("check")
def check_command(
    run: Annotated[Path, typer.Argument(help="A trained run, or a folder that Forecaster.save wrote.")],
    panel: Annotated[
        Path | None, typer.Option(help="A packed panel; left out: the one saved with the forecaster.")
    ] = None,
    series: Annotated[int, typer.Option(min=2, help="Check at most this many of the panel's series.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Run the battery of checks on a trained run and your own data, without training.

    No forecast may depend on later rows, on other series or on the rows' order; quantiles do not cross; sizes are sane;
    files are intact. Ends with code 1 if a check fails.

    Example: [bold]mqcast check runs/first --panel panel[/bold]
    """
    results, num_looked_at, num_all = _results(run, panel, series)
    if as_json:
        facts = {"run": str(run), "series": num_looked_at, "of": num_all, "passed": results.passed}
        print_json(facts | {"checks": results.to_dicts()})
    else:
        table = Table(title=f"{run}, {num_looked_at:,} of {num_all:,} series", title_justify="left")
        table.add_column("")
        table.add_column("check", no_wrap=True)
        table.add_column("what was seen", overflow="fold")
        for result in results:
            table.add_row(result.sign, result.name, result.seen)
        console.print(table)
        console.print(results.counts, highlight=False)
    raise typer.Exit(0 if results.passed else 1)


def _results(run: Path, panel: Path | None, most: int) -> "tuple[CheckResults, int, int]":
    """The results, the number of series checked, and of all series. A run that cannot be opened fails one check."""
    from mqcast.checks import CheckResult, CheckResults, check_forecaster, what_is_on_disk_is_whole

    try:
        forecaster, num_all = _opened(run, panel, most)
    except ArtifactError as error:
        if not any((run / name).exists() for name in ("run.json", "forecaster.json", "model.json")):
            raise
        intact = what_is_on_disk_is_whole
        return CheckResults(str(run), [CheckResult(intact.name, intact.promise, "failed", str(error), 0.0)]), 0, 0
    return check_forecaster(forecaster), forecaster.panel_.num_series, num_all


def _opened(folder: Path, given: Path | None, most: int) -> "tuple[Forecaster, int]":
    """The run with a sample of series spread evenly over the panel, and the number of all series."""
    from mqcast.forecaster import Forecaster

    own = (folder / "forecaster.json").exists()
    if own and given is None:
        forecaster = Forecaster.load(folder)
    elif given is None:
        raise ConfigError(f"the run {folder} was saved without data; give a packed panel with --panel")
    else:
        panel = Panel.open(given)
        panel.verify()
        forecaster = Forecaster.load(folder, panel)
    panel = forecaster.panel_
    if panel.num_series > most:
        forecaster.panel_ = some_series(panel, np.linspace(0, panel.num_series - 1, most).astype(np.int64))
    return forecaster, panel.num_series
