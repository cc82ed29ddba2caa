"""The page of the coming steps in a real browser: all items are found, chosen, downloaded; nothing is asked for."""

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from browsing import go_to, wait_until
from playwright.sync_api import Browser, Page, sync_playwright
from report_samples import world

from mqcast import Forecaster

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; `make browser` installs it")
HOSTILE = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", "=1+1", 'a "quoted", name')


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def forecaster() -> Forecaster:
    rename = pl.col("unique_id").replace(dict(zip(world().static["unique_id"].sort(), HOSTILE, strict=False)))
    frame = world().frame.with_columns(rename, price=pl.col("promo_coupon").cast(pl.Float64) * -1 + 3.5)
    schema = world().schema.replace(known=(*world().schema.known, "price"))
    forecaster = Forecaster("seasonal-naive", 4, (0.1, 0.5, 0.9), schema)
    return forecaster.fit(frame, static=world().static.with_columns(rename), events=world().events)


@pytest.fixture(scope="module")
def path(forecaster, tmp_path_factory) -> Path:
    previous = forecaster.predict().with_columns(pl.col("^q.*$") * 1.5)
    return forecaster.page(tmp_path_factory.mktemp("coming") / "page.html", previous=previous)


def opened(browser: Browser, path: Path, **options) -> tuple[Page, list[str], list[str]]:
    """The page, what it complained of, and what it asked for."""
    page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}} | options)
    complaints, asked = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    go_to(page, path.as_uri())
    page.wait_for_selector("#fan .main-svg")
    return page, complaints, asked


@pytest.fixture
def page(browser, path) -> Iterator[Page]:
    found, complaints, _ = opened(browser, path)
    yield found
    found.close()
    assert complaints == []


def listed(page: Page) -> list[str]:
    return page.locator("#list tbody .pick").all_inner_texts()


def test_it_loads_in_silence_and_asks_for_nothing(browser, path):
    page, complaints, asked = opened(browser, path)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_until(page, "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))")
    assert complaints == []
    assert [url for url in asked if not url.startswith("blob:")] == [path.as_uri()]
    page.close()


def test_a_search_finds_any_item_and_shows_its_numbers(page, forecaster):
    page.fill("#search", "000007")
    wait_until(page, "document.getElementById('item-name').textContent === 'item_000007'")
    assert listed(page) == ["item_000007"]
    assert "1 of 12" in page.inner_text("#found")
    rows = forecaster.predict(ids="item_000007").sort("ds")
    drawn = page.evaluate("document.getElementById('fan').data.find((trace) => trace.name === 'P50').y")
    assert drawn == pytest.approx(rows["q0.5"].to_list(), rel=1e-3)
    assert page.locator("#by-date tbody td:first-child").all_inner_texts() == [str(day.date()) for day in rows["ds"]]
    names = page.evaluate("document.getElementById('fan').data.map((trace) => trace.name)")
    assert "\u2068price\u2069" in names
    assert any(name.startswith("forecast of") for name in names)


def test_totals_over_several_weeks_stand_below_the_item_and_in_a_section_of_their_own(browser, tmp_path):
    config = {"model": {"hidden_dim": 4, "spans": [[1, 2]]}, "train": {"refit": True}}
    chosen = {"schema": world().schema, "config": config, "max_steps": 3, "members": 1, "verbose": False}
    learnt = Forecaster("mqcnn", 4, (0.1, 0.5, 0.9), **chosen)
    learnt.fit(world().frame, static=world().static, events=world().events)
    page, complaints, _ = opened(browser, learnt.page(tmp_path / "page.html"))
    page.fill("#search", "000007")
    wait_until(page, "document.getElementById('item-name').textContent === 'item_000007'")
    names = page.locator("#by-span tbody td:first-child").all_inner_texts()
    assert names == ["weeks 1 to 2", "weeks 1 to 4"]
    shown = [float(text.replace(",", "")) for text in page.locator("#by-span tbody td.number").all_inner_texts()]
    totals = learnt.predict(ids="item_000007", spans=[(1, 2), (1, 4)]).sort("last")
    assert shown == pytest.approx(totals.select("^q.*$").to_numpy().ravel().tolist(), rel=5e-3, abs=0.1)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_until(page, "document.querySelectorAll('#spans .plot .main-svg').length >= 2")
    assert complaints == []
    page.close()


def test_an_item_has_no_table_of_totals_where_none_were_forecast(page):
    assert page.locator("#totals-of-item").is_hidden()


def test_a_search_without_a_match_leaves_no_chart_of_another_item(page):
    page.fill("#search", "nothing of this kind")
    assert page.inner_text("#item-name") == "No item matches."
    assert page.locator("#fan .main-svg").count() == 0
    page.fill("#search", "")
    page.wait_for_selector("#fan .main-svg")
    assert "12 of 12" in page.inner_text("#found")


def test_prices_have_a_panel_and_the_axis_of_sales_can_be_logarithmic(page):
    figure = "document.getElementById('fan')"
    assert page.evaluate(f"{figure}.data.find((one) => one.name.includes('price')).yaxis") == "y2"
    assert page.evaluate(f"{figure}.layout.yaxis2.domain[1] < {figure}.layout.yaxis.domain[0]")
    page.check("#logarithmic")
    wait_until(page, f"{figure}.layout.yaxis.type === 'log'")
    lowest = f"Math.min(...{figure}.data.filter((one) => !one.yaxis).flatMap((one) => one.y))"
    assert page.evaluate(f"{lowest} >= 0.999 * 10 ** {figure}.layout.yaxis.range[0]")
    page.uncheck("#logarithmic")
    page.check("#fitted")
    wait_until(page, f"{figure}.layout.yaxis.type !== 'log'")
    told = f"Math.max(...{figure}.data.filter((one) => /^P\\d+$/.test(one.name)).flatMap((one) => one.y))"
    assert page.evaluate(f"Math.abs({figure}.layout.yaxis.range[1] / (1.08 * {told}) - 1) < 0.5")


def test_a_finger_that_moves_over_a_chart_moves_the_page(browser, path):
    page, complaints, _ = opened(browser, path, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.getElementById('fan').layout.dragmode") is False
    assert page.is_checked("#recent")
    assert complaints == []
    page.close()


def test_filters_by_group_and_by_reason_narrow_the_list(page):
    category = world().static.sort("unique_id").filter(pl.col("unique_id") == "item_000007")["category"][0]
    page.locator("#groups select").first.select_option(label=f"\u2068{category}\u2069")
    number = world().static.filter(category=category).height
    assert len(listed(page)) == number
    page.select_option("#reason", index=1)
    assert len(listed(page)) <= number


def test_headings_sort_all_items(page, forecaster):
    size = forecaster.predict().group_by("unique_id").agg(pl.sum("q0.5")).sort("q0.5", descending=True)
    assert listed(page) == size["unique_id"].to_list()
    page.locator("#list th button").first.click()
    assert page.locator("#list th").first.get_attribute("aria-sort") == "ascending"
    assert set(listed(page)) == set(size["unique_id"])
    assert listed(page)[-1] == "item_000011"


def test_an_item_to_look_at_first_leads_to_its_chart(page):
    button = page.locator("#first .pick").nth(1)
    name = button.inner_text()
    button.click()
    wait_until(page, "(name) => document.getElementById('item-name').textContent === name", arg=name)
    assert name in page.get_attribute("#fan", "aria-label")


def test_hostile_names_are_shown_as_text(page):
    page.fill("#search", "alert(2)")
    wait_until(page, "(name) => document.getElementById('item-name').textContent === name", arg=HOSTILE[1])
    assert listed(page) == [HOSTILE[1]]
    assert page.locator("img").count() == 0


def test_the_download_holds_every_item_and_no_formula(page, forecaster):
    with page.expect_download() as found:
        page.click("#download")
    rows = list(csv.DictReader(io.StringIO(Path(found.value.path()).read_bytes().decode())))
    assert found.value.suggested_filename == "forecast.csv"
    forecasts = forecaster.predict().sort("unique_id", "ds")
    assert [row["unique_id"].removeprefix("'") for row in rows] == forecasts["unique_id"].to_list()
    assert "'=1+1" in {row["unique_id"] for row in rows}
    assert [row["ds"] for row in rows] == [str(day.date()) for day in forecasts["ds"]]
    assert [float(row["q0.9"]) for row in rows] == pytest.approx(forecasts["q0.9"].to_list(), rel=1e-3)


@pytest.mark.parametrize("options", [{"viewport": {"width": 360, "height": 740}}, {"color_scheme": "dark"}])
def test_it_fits_a_phone_and_the_dark(browser, path, options):
    page, complaints, _ = opened(browser, path, **options)
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]
    assert page.evaluate("document.querySelector('#fan .nsewdrag').getBoundingClientRect().height") > 150
    if "color_scheme" in options:
        ink = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()")
        assert page.evaluate("document.getElementById('fan').layout.font.color") == ink
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 30)"
    assert complaints == []
    page.close()
