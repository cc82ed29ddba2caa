"""The report in a real browser: it loads in silence, and what can be moved, sought, sorted and chosen works."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import plotly.graph_objects as go
import polars as pl
import pytest
from browsing import go_to, wait_until
from playwright.sync_api import Browser, Page, sync_playwright
from report_samples import forecasts, panel, trained, world

from mqcast.report.page import Page as ReportPage
from mqcast.report.page import PageFigure, Section, write_page
from mqcast.report.write import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; `make browser` installs it")
HOSTILE = ("</script><script>alert(1)</script>", "<b onclick=alert(2)>b</b>", "\u202eשלום", "📦" * 3_000, "a & b")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def plain_report(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "report.html"
    return write_report(path, forecasts(), world().actuals, panel=panel(), trained={"good": trained()})


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    rename = pl.col("unique_id").replace(dict(zip(world().static["unique_id"], HOSTILE, strict=False)))
    frames = {
        "<i>good</i>": forecasts()["good"].with_columns(rename),
        "</script>": forecasts()["high"].with_columns(rename),
    }
    return write_report(path, frames, world().actuals.with_columns(rename))


def opened(browser: Browser, report: Path, **options) -> tuple[Page, list[str], list[str]]:
    """The page, what it complained of, and what it asked for."""
    page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}} | options)
    complaints, asked = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    go_to(page, report.as_uri())
    return page, complaints, asked


@pytest.fixture(scope="module")
def page(browser, plain_report) -> Iterator[Page]:
    found, _, _ = opened(browser, plain_report)
    found.locator("#explorer").scroll_into_view_if_needed()
    found.wait_for_selector("#fan .main-svg")
    yield found
    found.close()


def shown(page: Page, name: str) -> bool:
    """Whether the item is shown, when its numbers are read."""
    wait_until(page, "(name) => document.getElementById('item-name').textContent === name", arg=name)
    return name in (page.get_attribute("#fan", "aria-label") or "")


def cells(page: Page, column: int, table: str = "#slices table") -> list[str]:
    return page.locator(f"{table} tbody tr td:nth-child({column})").all_inner_texts()


def test_it_loads_draws_everything_and_asks_for_nothing(browser, plain_report):
    page, complaints, asked = opened(browser, plain_report)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_until(page, "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))")
    assert complaints == []
    assert asked == [plain_report.as_uri()]
    page.close()


def test_the_slider_moves_the_cutoff_and_the_fan(page):
    before, fan = page.inner_text("#cutoff-date"), "document.getElementById('fan').data[0].x[0]"
    first = page.evaluate(fan)
    page.focus("#cutoff")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#cutoff-date") > before
    assert page.evaluate(fan) > first
    page.keyboard.press("Home")
    assert page.inner_text("#cutoff-date") == str(forecasts()["good"]["cutoff"].min().date())


def test_the_other_slider_moves_the_date_whose_forecasts_are_shown(page):
    page.focus("#target")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    shown = page.inner_text("#target-date").split(",")[0]
    assert shown == str(forecasts()["good"]["ds"].unique().sort()[1].date())
    assert shown in page.get_attribute("#evolution", "aria-label")


def test_a_search_narrows_the_list_and_chooses(page):
    page.fill("#search", "000007")
    assert page.locator("#item option").all_inner_texts() == ["\u2068item_000007\u2069"]
    assert "1 of 12" in page.inner_text("#found")
    assert shown(page, "item_000007")
    page.fill("#search", "nothing of this kind")
    assert "0 of 12" in page.inner_text("#found")
    assert page.is_hidden("#one"), "the chart of another item is still there"
    page.fill("#search", "")
    assert page.locator("#item option").count() == 12
    page.select_option("#item", index=3)
    assert shown(page, page.locator("#item option").nth(3).inner_text().strip("\u2068\u2069"))
    assert page.inner_text("#item-title").startswith("item_")


def test_an_item_that_is_not_on_the_page_is_found_and_the_page_says_how_to_add_it(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("mqcast.report.explorer.MOST_ITEMS", 3)
    path = write_report(tmp_path / "few.html", forecasts(), world().actuals, items=["item_000001"])
    page, complaints, _ = opened(browser, path)
    page.wait_for_selector("#one:not([hidden])")
    assert page.locator("#item option").count() == 3
    missing = {f"item_{i:06}" for i in range(12)} - {
        text.strip("\u2068\u2069") for text in page.locator("#item option").all_inner_texts()
    }
    page.fill("#search", sorted(missing)[0])
    assert "1 more were forecast, but are not on this page" in page.inner_text("#found")
    assert "--item" in page.inner_text("#found")
    assert page.is_hidden("#one")
    assert complaints == []
    page.close()


def test_the_axis_is_logarithmic_fits_the_forecast_or_shows_less_history(page):
    figure = "document.getElementById('fan')"
    sold = f"Math.max(...{figure}.data.find((one) => one.name === 'actual').y)"
    begins = page.evaluate(f"{figure}.layout.xaxis.range[0]")
    page.check("#recent")
    assert page.evaluate(f"{figure}.layout.xaxis.range[0]") > begins
    page.check("#fitted")
    fan = f"Math.max(...{figure}.data.filter((one) => /^P\\d+$/.test(one.name)).flatMap((one) => one.y))"
    assert page.evaluate(f"{figure}.layout.yaxis.range[1] >= {fan}")
    page.uncheck("#fitted")
    page.check("#logarithmic")
    assert page.evaluate(f"{figure}.layout.yaxis.type") == "log"
    assert page.evaluate(f"10 ** {figure}.layout.yaxis.range[1] >= {sold}")
    lowest = f"Math.min(...{figure}.data.filter((one) => !one.yaxis).flatMap((one) => one.y))"
    assert page.evaluate(f"{lowest} > 0 && {lowest} >= 0.999 * 10 ** {figure}.layout.yaxis.range[0]")
    page.uncheck("#recent")
    page.uncheck("#logarithmic")
    assert page.evaluate(f"{figure}.layout.xaxis.range[0]") == begins
    assert page.evaluate(f"{figure}.layout.yaxis.type") != "log"


def test_an_exception_leads_to_its_item(page):
    button = page.locator("#review .pick").nth(2)
    button.click()
    assert shown(page, button.inner_text())


def test_why_is_told_in_words_and_another_model_has_no_attention(page):
    page.focus("#cutoff")
    page.keyboard.press("End")
    assert "looks like:" in page.inner_text("#looks-like")
    assert "60 %" in page.inner_text("#looks-like")
    page.focus("#target")
    page.keyboard.press("End")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert "P50 went from" in page.inner_text("#revised")
    assert "was sold (60 %)" in page.inner_text("#revised")
    page.select_option("#model", label="high")
    assert page.is_hidden("#why")
    assert page.is_visible("#no-why")
    page.select_option("#model", label="good")


def test_tables_are_sorted_by_click_and_by_key(page):
    heading = page.locator("#slices th").nth(1)
    heading.get_by_role("button").click()
    numbers = [int(text.replace(",", "")) for text in cells(page, 2)]
    assert numbers == sorted(numbers)
    assert heading.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert [int(text.replace(",", "")) for text in cells(page, 2)] == numbers[::-1]
    page.locator("#slices th").first.get_by_role("button").press("Enter")
    assert cells(page, 1) == sorted(cells(page, 1), key=str.lower)
    assert heading.get_attribute("aria-sort") == "none"


def test_everything_that_can_be_used_has_a_name(page):
    nameless = """[...document.querySelectorAll('main button, main input, main select')].filter(
        (one) => !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim()))"""
    assert page.evaluate(f"{nameless}.length") == 0
    assert page.get_by_label("Search items").count() == 1


def test_dark_is_dark_and_the_button_changes_it(browser, plain_report):
    page, complaints, _ = opened(browser, plain_report, color_scheme="dark")
    light = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    assert page.evaluate(light) < 60
    page.locator("#slices .plot").first.scroll_into_view_if_needed()
    page.wait_for_selector("#slices .main-svg text")
    ink = "getComputedStyle(document.querySelector('#slices .main-svg text')).fill"
    in_dark = page.evaluate(ink)
    page.click("#theme")
    assert page.evaluate(light) > 200
    wait_until(page, f"{ink} !== {in_dark!r}")
    assert complaints == []
    page.close()


def test_a_phone_is_wide_enough(browser, plain_report):
    page, complaints, _ = opened(browser, plain_report, viewport={"width": 390, "height": 844})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_selector("#attention .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []
    page.close()


def test_on_paper_every_figure_is_as_wide_as_the_page_at_most(browser, plain_report):
    page, complaints, _ = opened(browser, plain_report)
    page.locator("#slices .plot").first.scroll_into_view_if_needed()
    page.wait_for_selector(".plot .main-svg")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    widths = "[...document.querySelectorAll('.main-svg')].map((svg) => svg.getBoundingClientRect().right)"
    wait_until(page, f"{widths}.length && Math.max(...{widths}) <= 670 + (innerWidth - 670) / 2")
    assert len(page.pdf(format="A4")) > 10_000
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    wait_until(page, f"Math.max(...{widths}) > 1000")
    assert complaints == []
    page.close()


def test_hostile_names_do_nothing_but_stand_there(browser, hostile_report):
    page, complaints, asked = opened(browser, hostile_report)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_selector("#fan .main-svg")
    page.wait_for_selector("#one:not([hidden])")
    for name in HOSTILE:
        page.fill("#search", name[:20])
        assert page.locator("#item option").count() >= 1, name
    shown = page.locator("#slices .legendtext").all_text_contents()
    assert any("<i>good</i>" in text for text in shown)
    assert page.locator("main b, main i").count() == 0
    assert complaints == []
    assert asked == [hostile_report.as_uri()]
    page.close()


def test_figures_are_drawn_whatever_a_section_is_called(browser, tmp_path):
    figure = go.Figure(go.Scatter(x=[1, 2], y=[3, 4]))
    names = ("figures", "items", "tables")
    sections = [Section(name, name, "", figures=[PageFigure(name, figure)]) for name in names]
    page, complaints, _ = opened(browser, write_page(tmp_path / "page.html", ReportPage("A page", [], sections)))
    for name in names:
        page.locator(f"section#{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"section#{name} .main-svg")
    assert complaints == []


@pytest.fixture(scope="module")
def absurd(browser, tmp_path_factory) -> Iterator[Page]:
    """A page on one forecaster who is right and one whose P90 is now and then 1e60 times as high."""
    path, place = tmp_path_factory.mktemp("absurd") / "report.html", pl.int_range(pl.len())
    broken = pl.when(place % 37 == 3).then(pl.col("q0.9") * 1e60).otherwise("q0.9").alias("q0.9")
    frames = {"good": forecasts()["good"], "broken": forecasts()["high"].with_columns(broken)}
    page, complaints, _ = opened(browser, write_report(path, frames, world().actuals))
    yield page
    assert complaints == []
    page.close()


def test_implausible_forecasts_are_reported_above_everything(absurd):
    notice = absurd.locator(".warning").first
    assert "broken: 16 of 576 forecasts, of 12 series, are more than 10 times" in notice.inner_text()
    assert notice.bounding_box()["y"] < 200
    assert absurd.locator("main section").first.get_attribute("id") == "implausible"
    times = [float(text) for text in cells(absurd, 9, "#implausible .scroll:nth-of-type(1) table")]
    assert len(times) == 12
    assert times == sorted(times, reverse=True)
    assert min(times) > 1e58


def test_the_worst_forecast_is_shown_at_a_click_on_an_axis_that_is_plausible(absurd):
    absurd.locator("#implausible .pick").first.click()
    absurd.wait_for_selector("#fan .main-svg")
    made_at = cells(absurd, 3, "#implausible .scroll:nth-of-type(1) table")[0]
    wait_until(absurd, "(text) => document.getElementById('cutoff-date').textContent === text", arg=made_at)
    assert absurd.locator("#cutoff-date").inner_text() == made_at
    assert absurd.locator("#model").evaluate("one => one.selectedOptions[0].text") == "broken"
    sold = absurd.evaluate("Math.max(...document.getElementById('fan').data.find((one) => one.name === 'actual').y)")
    assert absurd.evaluate("document.getElementById('fan').layout.yaxis.range[1]") < 10 * sold
    told = absurd.locator("#fan-beyond").inner_text()
    assert "1 of 12 values lie beyond the axis, up to" in told
    assert "e+6" in told
    marked = "document.getElementById('fan').data.filter((one) => one.text).map((one) => one.text[0])"
    assert "e+6" in absurd.evaluate(marked)[0]


def test_figures_of_all_items_are_drawn_by_the_forecaster_who_is_right(absurd):
    for figure in absurd.locator("#slices .plot").all():
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()
    ranges = absurd.evaluate(
        "[...document.querySelectorAll('#slices .plot')].map((plot) => plot.layout.yaxis2.range[1])"
    )
    assert all(0 < top < 10 for top in ranges)
    assert "beyond the axis" in absurd.locator("#slices .figures").inner_html()
