"""Where a result comes from: the commit of the checkout that this package runs from."""
# pyright: strict

import subprocess
from pathlib import Path


def git(*arguments: str) -> str | None:
    """What git says of the checkout; None for an installed package, or without git."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
