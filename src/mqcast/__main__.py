"""`python -m mqcast` is `mqcast`."""

from mqcast.cli import main

main()
