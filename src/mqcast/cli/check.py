"""The command that checks a trained run on the user's own data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from mqcast.cli.app import AsJson, app, console
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
        Path | None, typer.Option(help="A packed panel; left out: the one that was saved with it.")
    ] = None,
    series: Annotated[int, typer.Option(min=2, help="How many of the panel's series are looked at, at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Put a run through the battery on your own data, without training: what holds, and what does not.

    No forecast may depend on later rows, on other series or on the rows' order; quantiles do not cross; sizes are sane;
    files are whole. Ends with code 1 if a check fails.

    Example: [bold]mqcast check runs/first --panel panel[/bold]
    """
    results, num_looked_at, num_all = _results(run, panel, series)
    if as_json:
        facts = {"run": str(run), "series": num_looked_at, "of": num_all, "passed": results.passed}
        typer.echo(json.dumps(facts | {"checks": results.to_dicts()}))
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
    """What was found, of how many series, and how many there are; a run that cannot be opened fails one check."""
    from mqcast.checks import CheckResult, CheckResults, check_forecaster, what_is_on_disk_is_whole

    try:
        forecaster, num_all = _opened(run, panel, most)
    except ArtifactError as error:
        if not any((run / name).exists() for name in ("run.json", "forecaster.json")):
            raise
        whole = what_is_on_disk_is_whole
        return CheckResults(str(run), [CheckResult(whole.name, whole.promise, "failed", str(error), 0.0)]), 0, 0
    return check_forecaster(forecaster), forecaster.panel_.num_series, num_all


def _opened(folder: Path, given: Path | None, most: int) -> "tuple[Forecaster, int]":
    """The run with some of the panel's series, spread over all of it, and how many there are."""
    from mqcast.forecaster import Forecaster

    own = (folder / "forecaster.json").exists()
    if own and given is None:
        forecaster = Forecaster.load(folder)
    elif given is None:
        raise ConfigError(f"{folder} is a run without data of its own; give a packed panel: --panel")
    else:
        panel = Panel.open(given)
        panel.verify()
        forecaster = Forecaster.of_run(folder, panel)
    panel = forecaster.panel_
    if panel.num_series > most:
        forecaster.panel_ = some_series(panel, np.linspace(0, panel.num_series - 1, most).astype(np.int64))
    return forecaster, panel.num_series
