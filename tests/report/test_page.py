"""The page: one file that asks for nothing, of bounded size, in which text from data is text."""

import base64
import gzip
import html.parser
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from report_samples import HORIZON, chunks, forecasts, inside, items_of, panel, sources, trained, world

from mqcast import Panel
from mqcast.errors import ConfigError
from mqcast.report import explorer as explorer_module
from mqcast.report.explorer import explorer_of
from mqcast.report.page import MOST_PAGE_BYTES, Cell, in_script
from mqcast.report.sections import _explorer, _interval
from mqcast.report.sources import Calendar, Sources
from mqcast.report.style import plain, shortened
from mqcast.report.summary import Excess, findings_of
from mqcast.report.write import write_report

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'><b>bold</b>&amp;",
    "x" * 10_000,
    "x" * 9_999 + "y",
    "\u202eright to left שלום",
    "📦 {{ 7 * 7 }} %{x}",
    "line\nbreak\ttab\u2028",
]


class Parsed(html.parser.HTMLParser):
    """Tags with their attributes, and text outside scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.words, self.inside = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.inside[-1:]):
            self.words.append(data)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(self.words)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    write_report(path, forecasts(), world().actuals, panel=panel(), trained={"good": trained()}, title="A & B")
    return path.read_text()


def hostile(tmp_path: Path) -> str:
    names = dict(zip(world().static["unique_id"], HOSTILE, strict=False))
    rename = pl.col("unique_id").replace(names)
    frames = {"</script><i>": forecasts()["good"], "b<b>": forecasts()["high"]}
    frames = {name: frame.with_columns(rename) for name, frame in frames.items()}
    path = tmp_path / "report.html"
    return write_report(path, frames, world().actuals.with_columns(rename), title="<script>t</script>").read_text()


def test_the_page_asks_for_nothing_and_forbids_asking(page):
    found = Parsed(page)
    assert not any(key in attributes for _, attributes in found.tags for key in ("src", "srcset", "data", "action"))
    assert all(link["href"].startswith("#") for link in found.all("a"))
    assert not found.all("link")
    policy = next(meta for meta in found.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy["content"]
    assert len(page.encode()) < MOST_PAGE_BYTES


def test_every_part_says_how_to_read_it_and_every_figure_has_a_name(page):
    found = Parsed(page)
    sections = [section["id"] for section in found.all("section")]
    assert sections == [
        *("answer", "slices", "leads", "calibration", "volatility", "review", "items-explorer"),
        *("calendar", "training", "provenance"),
    ]
    readings = [paragraph for paragraph in found.all("p") if paragraph.get("class") == "reading"]
    assert len(readings) >= len(sections)
    drawn = [div for div in found.all("div") if div.get("class") == "plot"]
    assert len(drawn) == len(inside(page, "figures")) + 4
    assert all(div["role"] == "img" and div["aria-label"] for div in drawn)
    assert all(heading["aria-sort"] == "none" for heading in found.all("th"))
    assert len(found.all("caption")) == len(found.all("table"))


def test_the_answer_comes_first_and_in_words(page):
    words = Parsed(page).text
    assert words.index("lower P50 loss") < words.index("Which forecaster is best?")
    assert "A & B" in words
    assert any(reading in words for reading in ("over-reaction", "under-reaction", "no significant excess volatility"))


def test_the_best_is_marked_and_an_oracle_never_is(tmp_path):
    def best(**options) -> list[str]:
        text = write_report(tmp_path / "r.html", forecasts(), world().actuals, **options).read_text()
        rows = text.split('<section id="answer"')[1].split("</section>")[0].split("<tr>")[2:]
        return [name for name, row in zip(forecasts(), rows, strict=True) if 'class="number best"' in row]

    assert "good" in best()
    assert best(oracle="good") == []


def test_hostile_names_are_shown_as_text(tmp_path):
    text = hostile(tmp_path)
    found = Parsed(text)
    assert [script.get("id") for script in found.all("script")] == [
        *("data-figures", "data-items"),
        *[None] * 5,  # an index and two chunks of items, the figures' library, the page's script
    ]
    assert not {"i", "b", "img"} & {tag for tag, _ in found.tags}
    for name in HOSTILE:
        assert shortened(name, 80).strip() in found.text.replace("\r", "")
    ids = {item["id"] for item in items_of(text)}
    assert {shortened(name, 200) for name in HOSTILE} <= ids
    assert len(ids) == 12  # long names that differ at their end alone are told apart
    assert inside(text, "items")["models"] == ["</script><i>", "b<b>"]
    assert "<script>t</script>" in found.text
    assert len(text.encode()) < MOST_PAGE_BYTES


def test_names_in_figures_are_not_read_as_tags():
    assert plain("<b>&x</b>") == "&lt;b&gt;&amp;x&lt;/b&gt;"
    assert plain("שלום") == "\u2068שלום\u2069"
    assert len(plain("y" * 10_000).strip("\u2068\u2069")) == 60


def test_json_in_a_script_is_the_same_value_and_cannot_end_it():
    value = {"</script>": ["<!--", "&amp;", "\u2028", "]]>"]}
    text = in_script(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)


def test_the_explorer_holds_the_numbers_of_the_frames(page):
    data = inside(page, "items")
    item = next(one for one in items_of(page) if one["id"] == "item_000003")
    frame = forecasts()["high"].filter(unique_id="item_000003").sort("cutoff", "ds")
    at = 5
    part = frame.filter(pl.col("cutoff") == frame["cutoff"].unique().sort()[at])
    assert [data["dates"][i] for i in item["targets"][at]] == [str(day.date()) for day in part["ds"]]
    assert item["quantiles"][1][at][2] == [pytest.approx(q, rel=1e-3) for q in part["q0.9"]]
    sold = dict(zip(*item["history"], strict=True))
    truth = world().actuals.filter(unique_id="item_000003")
    assert sold[item["targets"][at][0]] == pytest.approx(truth.filter(ds=part["ds"][0])["y"][0], rel=1e-3)
    flags = {data["flags"][i]: [data["dates"][day] for day in days] for i, days in item["promotions"]}
    promoted = world().frame.filter((pl.col("unique_id") == "item_000003") & pl.col("promo_coupon"))["ds"]
    assert flags.get("promo_coupon", []) == [str(day.date()) for day in promoted]
    cutoff = str(item["cutoffs"][at])
    assert item["attention"]["0"][cutoff]["history"]["1"] == [item["cutoffs"][at] - 1, 400, item["cutoffs"][at], 600]


def test_the_explorer_keeps_to_its_bytes_and_says_how_many_items_it_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(explorer_module, "PER_CHUNK", 1)
    found = findings_of(sources())
    for most in (1_000, 5_000, 10_000):
        made = explorer_of(sources(), found, most_bytes=most)
        assert 1 <= len(made.ids) < 12
        assert made.num_bytes <= max(most, made.num_bytes / len(made.ids))
        assert len(made.ids) + len(json.loads(gzip.decompress(base64.b64decode(made.chunks[0])))["others"]) == 12
    monkeypatch.setattr(explorer_module, "MOST_ITEMS", 5)
    text = write_report(tmp_path / "r.html", forecasts(), world().actuals).read_text()
    assert "5 of 12 items are on this page" in text
    assert len(items_of(text)) == 5
    assert len(chunks(text)[0]["others"]) == 7


def test_many_cutoffs_and_levels_are_thinned_up_to_the_last(monkeypatch):
    monkeypatch.setattr(explorer_module, "MOST_NUMBERS", 4 * HORIZON * 3 * 2)
    made = explorer_of(sources(), findings_of(sources()))
    item = json.loads(gzip.decompress(base64.b64decode(made.chunks[1])))[0]
    assert not made.every_cutoff
    assert len(item["cutoffs"]) == 4
    last = forecasts()["good"]["cutoff"].max()
    assert json.loads(made.head)["dates"][item["cutoffs"][-1]] == str(last.date())


def test_frames_alone_are_enough_and_the_page_says_what_is_not_there(tmp_path):
    one = forecasts()["good"].filter(unique_id="item_000001")
    text = write_report(tmp_path / "r.html", {"only": one}, world().actuals).read_text()
    for missing in ("need a packed panel", "need a trained run"):
        assert missing in text
    assert "<title>Forecasts</title>" in text
    assert "All items are on this page." in text
    once = write_report(tmp_path / "o.html", {"only": one.filter(cutoff=one["cutoff"].min())}, world().actuals)
    assert "several forecasts of the same date" in once.read_text()


def test_too_large_a_page_is_made_again_with_fewer_items(tmp_path, monkeypatch):
    from mqcast.report import write

    monkeypatch.setattr(explorer_module, "PER_CHUNK", 1)
    whole = write_report(tmp_path / "r.html", forecasts(), world().actuals).stat().st_size
    monkeypatch.setattr(write, "MOST_PAGE_BYTES", whole - 10_000)
    path = write_report(tmp_path / "s.html", forecasts(), world().actuals, items=["item_000009"])
    assert path.stat().st_size <= whole - 10_000
    assert 0 < len(items_of(path.read_text())) < 12
    assert items_of(path.read_text())[0]["id"] == "item_000009"


def test_chosen_items_come_first_and_must_have_been_forecast(tmp_path, monkeypatch):
    monkeypatch.setattr(explorer_module, "MOST_ITEMS", 2)
    chosen = ["item_000007", "item_000003", "item_000010"]
    text = write_report(tmp_path / "r.html", forecasts(), world().actuals, items=chosen).read_text()
    assert [(item["id"], item["why"]) for item in items_of(text)] == [(id, "chosen") for id in chosen]
    with pytest.raises(ConfigError, match="no item 'item_00003' was forecast"):
        write_report(tmp_path / "r.html", forecasts(), world().actuals, items=["item_00003"])
    with pytest.raises(ConfigError, match="not the text 'item_000003'"):
        write_report(tmp_path / "r.html", forecasts(), world().actuals, items="item_000003")


def test_chosen_items_that_do_not_fit_are_counted():
    made = explorer_of(sources(), findings_of(sources()), most_bytes=1, chosen=[f"item_{i:06}" for i in range(12)])
    assert len(made.ids) == explorer_module.PER_CHUNK
    assert any("4 of the chosen items would make this page too large" in note for note in _explorer(made).notes)


def test_prices_are_told_where_they_change_and_static_columns_in_words(tmp_path):
    weeks = world().frame["ds"].unique().sort()
    dear = (pl.col("ds") >= weeks[45]) & (pl.col("unique_id") == "item_000002")
    frame = world().frame.with_columns(price=pl.when(dear).then(3.5).otherwise(2.0))
    schema = world().schema.replace(known=(*world().schema.known, "price"))
    priced = Panel.from_frame(frame, schema, world().static, world().events)
    text = write_report(tmp_path / "r.html", forecasts(), panel=priced).read_text()
    data, items = inside(text, "items"), {item["id"]: item for item in items_of(text)}
    assert data["numbers"] == ["price"]
    first = data["dates"].index(str(weeks[0].date()))
    assert items["item_000002"]["numbers"] == [[0, first, 2, data["dates"].index(str(weeks[45].date())), 3.5]]
    assert items["item_000003"]["numbers"] == [[0, first, 2]]
    category = world().static.filter(unique_id="item_000002")["category"][0]
    index = chunks(text)[0]
    assert ["category", category] in index["about"][index["ids"].index("item_000002")]


def test_an_event_that_is_empty_or_on_most_dates_is_no_event():
    weeks = world().frame["ds"].unique().sort()
    names = ["", *["none"] * (len(weeks) - 3), "fair", "fair"]
    events = pl.DataFrame({"ds": weeks, "event": names})
    made = Panel.from_frame(world().frame, world().schema.replace(events=("event",)), world().static, events)
    assert Calendar(made).events == {"event: fair": weeks[-2:].to_list()}


def test_the_report_needs_no_torch():
    code = "import sys, mqcast.report.write, mqcast.report.plots; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_several_runs_are_side_by_side(tmp_path):
    three = forecasts() | {"low": forecasts()["good"].with_columns(pl.col("^q.*$") * 0.8)}
    made = Sources.of(three, world().actuals, trained={"good": trained(), "low": trained()})
    assert made.baseline == "low"
    text = write_report(
        tmp_path / "r.html", three, world().actuals, trained={"good": trained(), "low": trained()}
    ).read_text()
    words = Parsed(text).text
    assert "Settings of good" in words
    assert "Settings of low" in words
    assert inside(text, "items")["models"] == ["good", "high", "low"]
    assert set(items_of(text)[0]["attention"]) == {"0", "2"}
    lead = words[: words.index("Which forecaster is best?")]
    assert "Of 3 forecasters" in lead
    assert "Compared with low: good has " in lead
    assert "; high has " in lead


def test_a_forecaster_that_never_moves_is_not_called_the_calmest():
    still = Excess("naive", 0.5, 0.0, 0.0, 0.0, "moves for good reason", direction_changes=0.0, targets=9)
    vague = Excess("zeros", 0.5, 0.0, 0.0, 0.0, "says little: 14% announced 0", direction_changes=2.0, targets=9)
    calm = Excess("mqt", 0.5, 0.004, 0.001, 0.007, "over-reacts", direction_changes=3.0, targets=9)
    assert not _interval(still, 0.0).best
    assert not _interval(vague, 0.0).best
    assert _interval(calm, 0.004).best


def test_amounts_have_three_digits_or_are_whole():
    amounts = {
        12345.6: "12,346",
        89.0: "89",
        45.977: "46",
        9.307: "9.31",
        0.0123: "0.0123",
        0.0: "0",
        2.5e12: "2.5e+12",
    }
    assert {value: Cell.amount(value).text for value in amounts} == amounts
    assert Cell.amount(float("nan")).text == "-"
