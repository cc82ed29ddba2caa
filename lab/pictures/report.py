"""Pictures of a report's main figures, from a real browser: python -m lab pictures report demo/report.html.

Needs Chromium (make browser). Each picture is a PNG of at most 200 kB beside this file.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

DOCS, MOST_BYTES, WIDTH = Path(__file__).parents[2] / "docs", 200_000, 960
DRAW_ALL = "dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'))"
ALL_DRAWN = """[...document.querySelectorAll('.plot')].filter((plot) => plot.offsetParent)
    .every((plot) => plot.querySelector('.main-svg'))"""
PICTURES = {
    "report-answer": "#answer",
    "report-volatility": "#volatility figure",
    "report-lead": "#leads figure",
    "report-fan": "#fan",
    "report-evolution": "#evolution",
    "report-attention": "#attention",
    "report-calendar": "#calendar figure",
}


def shoot(page: Page, folder: Path) -> list[Path]:
    """One picture per part of the page."""
    written = []
    for name, selector in PICTURES.items():
        part = page.locator(selector).first
        if part.count() and part.is_visible():
            path = folder / f"{name}.png"
            size = len(part.screenshot(path=path, animations="disabled"))
            if size > MOST_BYTES:
                raise SystemExit(f"{path} has {size:,} bytes, more than {MOST_BYTES:,}; make the figure plainer")
            written.append(path)
    return written


def chromium() -> str:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("no Chromium here; install it with: make browser")
    return path


def main(report: Path, folder: Path = DOCS) -> list[Path]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("#one:not([hidden])")  # the first item's numbers are read
        page.evaluate(DRAW_ALL)
        page.wait_for_function(ALL_DRAWN)
        written = shoot(page, folder)
        browser.close()
    return written


if __name__ == "__main__":
    for path in main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo/report.html")):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
