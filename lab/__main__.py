"""`python -m lab …`: the laboratory's command line."""

from lab.commands import battery, params, run, score, scripts  # noqa: F401
from lab.commands.options import app
from mqcast.cli.app import main

if __name__ == "__main__":
    main(app, "lab")
