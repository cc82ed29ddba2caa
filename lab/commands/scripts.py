"""`python -m lab benchmark NAME …`, `campaign`, `peers`, `pictures`: the lab's scripts, with their own arguments."""

import ast
import subprocess
import sys
from pathlib import Path

import typer

from lab.commands.options import app
from mqcast.cli.output import console
from mqcast.errors import ConfigError
from mqcast.settings import nearest

LAB = Path(__file__).parents[1]
FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _scripts(package: str) -> dict[str, str]:
    """The modules of a package that can be run, and the first line of what each says about itself."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted((LAB / package).glob("*.py"))}
    return {
        name: (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        for name, source in sources.items()
        if 'if __name__ == "__main__":' in source
    }


def _run(context: typer.Context, package: str) -> None:
    scripts, (name, *rest) = _scripts(package), context.args or ["--help"]
    if name == "--help":
        console.print(
            f"Usage: python -m lab {context.info_name} NAME …; NAME --help shows its options.\n", markup=False
        )
        for script, about in scripts.items():
            console.print(f"[bold]{script}[/bold]: {about}", highlight=False, soft_wrap=True)
        return
    if name not in scripts:
        near = nearest(name, tuple(scripts))
        raise ConfigError(f"no {context.info_name} {name!r}{near}; there are {', '.join(scripts)}")
    raise typer.Exit(subprocess.run([sys.executable, "-m", f"lab.{package}.{name}", *rest], check=False).returncode)


@app.command(context_settings=FORWARD)
def benchmark(context: typer.Context) -> None:
    """Run a benchmark: [bold]python -m lab benchmark pack[/bold]."""
    _run(context, "benchmarks")


@app.command(context_settings=FORWARD)
def campaign(context: typer.Context) -> None:
    """Run a reliability campaign: [bold]python -m lab campaign frames --minutes 1[/bold]."""
    _run(context, "campaigns")


@app.command(context_settings=FORWARD)
def peers(context: typer.Context) -> None:
    """Train another library's forecaster: [bold]python -m lab peers frat --data data --out runs --peer tft[/bold]."""
    context.args.insert(0, "real_peers")
    _run(context, "benchmarks")


@app.command(context_settings=FORWARD)
def pictures(context: typer.Context) -> None:
    """Redraw the documentation's pictures: [bold]python -m lab pictures evidence[/bold]."""
    _run(context, "pictures")
