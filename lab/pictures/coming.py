"""The README's picture of the page of the coming weeks: python -m lab pictures coming, or … coming demo/page.html.

Without a page, one is written for a simulated retailer: 200 items, two and a half years of weeks, MQTransformer trained
for 400 steps (a few minutes). Needs Chromium (make browser).
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from lab.pictures.report import DOCS, MOST_BYTES, chromium
from mqcast import Forecaster
from mqcast.simulate import lognormal_world

PICTURE, WIDTH, STEPS = DOCS / "page.png", 1000, 400
LEFT_OUT = "#totals, #items-explorer > :not(#coming), #coming > :not(#item-title, #item-why, #fan), #basis, footer, nav"
LEFT_OUT += ", #first tbody tr:nth-child(n+6), #first ul, .modebar"


def write_page(path: Path) -> Path:
    world = lognormal_world(num_items=200, num_weeks=130, horizon=13, seed=0)
    forecaster = Forecaster(
        "mqt", 13, (0.1, 0.5, 0.9), world.schema, max_steps=STEPS, members=1, config={"model": {"lookback": 52}}
    )
    forecaster.fit(world.frame, static=world.static, events=world.events)
    return forecaster.page(path)


def shoot(page_file: Path, picture: Path = PICTURE) -> Path:
    """The first of the items to look at, and the recent history and the forecast of the first of them."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 600}, color_scheme="light")
        page.goto(page_file.resolve().as_uri())
        page.wait_for_selector("#fan .main-svg")
        page.locator("#first .pick").first.click()
        page.check("#recent")
        page.add_style_tag(content=f"{LEFT_OUT} {{ display: none !important }} body {{ padding: 0 16px }}")
        size = len(page.screenshot(path=picture, animations="disabled", full_page=True))
        browser.close()
    if size > MOST_BYTES:
        raise SystemExit(f"{picture} has {size:,} bytes, more than {MOST_BYTES:,}; show less of the page")
    return picture


def main(page_file: Path | None = None, picture: Path = PICTURE) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        return shoot(page_file or write_page(Path(folder) / "page.html"), picture)


if __name__ == "__main__":
    path = main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
