"""`python -m lab benchmark NAME …`, `campaign`, `peers`, `pictures`: the lab's scripts, with their own arguments."""

import pkgutil
import subprocess
import sys
from importlib import import_module

import typer

from lab.commands.options import app
from mqcast.errors import ConfigError
from mqcast.settings import nearest

FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _names(package: str) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(import_module(f"lab.{package}").__path__)]


def _run(package: str, arguments: list[str]) -> None:
    names = _names(package)
    if not arguments or arguments[0] not in names:
        near = nearest(arguments[0], names) if arguments else ""
        raise ConfigError(f"name one of {', '.join(names)}{near}; its own options follow, such as --help")
    name, *rest = arguments
    raise typer.Exit(subprocess.run([sys.executable, "-m", f"lab.{package}.{name}", *rest], check=False).returncode)


@app.command(context_settings=FORWARD)
def benchmark(context: typer.Context) -> None:
    """Run a benchmark: [bold]python -m lab benchmark pack[/bold]."""
    _run("benchmarks", context.args)


@app.command(context_settings=FORWARD)
def campaign(context: typer.Context) -> None:
    """Run a reliability campaign: [bold]python -m lab campaign frames --minutes 1[/bold]."""
    _run("campaigns", context.args)


@app.command(context_settings=FORWARD)
def peers(context: typer.Context) -> None:
    """Train another library's forecaster: [bold]python -m lab peers frat --data data --out runs --peer tft[/bold]."""
    _run("benchmarks", ["real_peers", *context.args])


@app.command(context_settings=FORWARD)
def pictures(context: typer.Context) -> None:
    """Draw the documentation's pictures anew: [bold]python -m lab pictures evidence[/bold]."""
    _run("pictures", context.args)
