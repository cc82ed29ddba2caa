"""`mqcast doctor`: what is installed, and what is missing."""

from rich.table import Table
from rich.text import Text

from mqcast import doctor as installation
from mqcast.cli.app import AsJson, app
from mqcast.cli.output import console, print_json


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show versions, devices, compiled kernels and extras, and say what is missing."""
    facts = installation.report()
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, Text(_text(value)))
    console.print(table)


def _text(value: object) -> str:
    if isinstance(value, dict):
        value = [f"{key}: {what}" for key, what in value.items()]
    if isinstance(value, list):
        return "\n".join(map(str, value)) or "nothing"
    return "not set" if value is None else str(value)
