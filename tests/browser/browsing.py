"""Waiting for a page whose content security policy forbids eval, which Playwright's own waiting needs."""

import time
from typing import Any

from playwright.sync_api import Page

PATIENCE = 90.0  # seconds, of a machine that does other things as well


def go_to(page: Page, address: str) -> None:
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(address)


def wait_until(page: Page, expression: str, arg: Any = None) -> None:
    """Wait until the expression, or the function of `arg`, is true."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(expression, arg):
        assert time.monotonic() < end, f"never became true: {expression}"
        time.sleep(0.02)
