"""The page of the coming steps: it holds every item, its sums are sums, and text from data is text."""

import base64
import gzip
import html.parser
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from report_samples import chunks, inside, world

from mqcast import ConfigError, Forecaster, Panel, Schema
from mqcast.data.frequency import Frequency
from mqcast.errors import LaggingSeriesWarning
from mqcast.report import coming_page
from mqcast.report.coming import CHANGED, LARGE, MOST_ITEMS, NEW, UNLIKE, coming_of, step_of
from mqcast.report.coming_items import PER_CHUNK, chunks_of

HORIZON, LEVELS = 4, (0.1, 0.5, 0.9)
HOSTILE = ("</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", "=cmd|' /C calc'!A0", "x" * 10_000)


def fitted(frame: pl.DataFrame | None = None, **changes) -> Forecaster:
    frame = world().frame if frame is None else frame
    schema = world().schema.replace(**changes)
    forecaster = Forecaster("seasonal-naive", HORIZON, LEVELS, schema)
    return forecaster.fit(frame, static=world().static, events=world().events)


def sold_frame() -> pl.DataFrame:
    """What was sold up to the cutoff."""
    return world().frame.drop_nulls("y")


@pytest.fixture(scope="module")
def forecaster() -> Forecaster:
    return fitted()


@pytest.fixture(scope="module")
def page(forecaster, tmp_path_factory) -> str:
    return forecaster.page(tmp_path_factory.mktemp("coming") / "page.html").read_text()


def test_every_item_has_its_forecast_and_its_history_on_the_page(page, forecaster):
    index, *parts = chunks(page)
    data, items = inside(page, "items"), [item for part in parts for item in part]
    forecasts = forecaster.predict()
    assert index["ids"] == world().static["unique_id"].sort().to_list()
    assert data["columns"] == ["unique_id", "cutoff", "ds", "q0.1", "q0.5", "q0.9"]
    for id, (cutoff, (first, *sold), (start, *fan), *_) in zip(index["ids"], items, strict=True):
        rows = forecasts.filter(unique_id=id).sort("ds")
        assert data["dates"][cutoff] == str(rows["cutoff"][0].date())
        assert data["dates"][start : start + HORIZON] == [str(day.date()) for day in rows["ds"]]
        for level, values in zip(LEVELS, fan, strict=True):
            np.testing.assert_allclose(values, rows[f"q{level}"], rtol=1e-3)
        history = sold_frame().filter(unique_id=id).sort("ds")
        assert data["dates"][first] == str(history["ds"][0].date())
        np.testing.assert_allclose(sold, history["y"], rtol=1e-3)


@pytest.mark.parametrize("price", ["price", "Preis (€)"])
def test_promotions_holidays_and_prices_of_the_coming_dates_are_there(tmp_path, price):
    frame = world().frame.with_columns(pl.when(pl.col("y").is_null()).then(2.5).otherwise(3.0).alias(price))
    known = (*world().schema.known, price)
    page = fitted(frame, known=known, holidays=("US",)).page(tmp_path / "page.html").read_text()
    data, (index, *parts) = inside(page, "items"), chunks(page)
    assert data["numbers"] == [price]
    flags = world().schema.known
    promoted = frame.filter(pl.any_horizontal(flags))
    for id, (cutoff, _, _, promotions, numbers, *_) in zip(
        index["ids"], [item for part in parts for item in part], strict=True
    ):
        told = {(data["flags"][flag], data["dates"][place]) for flag, places in promotions for place in places}
        rows = promoted.filter(unique_id=id)
        truth = {(name, str(day.date())) for name in flags for day in rows.filter(pl.col(name))["ds"]}
        assert told == truth
        assert numbers == [[0, 0, 3, cutoff + 1, 2.5]]
    names = [name for name, _ in data["events"]]
    assert {"holiday_spring", "Christmas Day (US)"} <= set(names)


def test_totals_are_sums_over_all_items_and_say_that_they_are_no_quantiles(page, forecaster):
    coming = coming_of(forecaster.predict(), forecaster.panel_, "naive")
    sums = forecaster.predict().group_by("ds").agg(pl.sum("q0.5")).sort("ds")["q0.5"]
    sold = sold_frame().group_by("ds").agg(pl.sum("y")).sort("ds")["y"]
    ahead = ~np.isnan(coming.totals.medians)
    np.testing.assert_allclose(coming.totals.medians[ahead], sums)
    np.testing.assert_allclose(coming.totals.sold[~np.isnan(coming.totals.sold)], sold)
    assert "not the median of the total" in page
    assert not {"q0.1", "q0.9"} & {trace["name"] for figure in inside(page, "figures") for trace in figure["data"]}


def test_the_items_to_look_at_first_are_the_extreme_ones(forecaster):
    forecasts, ids = forecaster.predict(), world().static["unique_id"].sort().to_list()
    size = forecasts.group_by("unique_id").agg(pl.sum("q0.5")).sort("q0.5", descending=True)["unique_id"].to_list()
    is_third = pl.col("unique_id") == ids[3]
    previous = forecasts.with_columns(pl.when(is_third).then(pl.col("q0.5") * 9 + 1000).otherwise("q0.5").alias("q0.5"))
    previous = previous.filter(pl.col("unique_id") != ids[5])
    coming = coming_of(forecasts, forecaster.panel_, "naive", previous)
    assert [coming.ids[i] for i in coming.reasons[LARGE]] == size[: len(coming.reasons[LARGE])]
    assert [coming.ids[i] for i in coming.reasons[CHANGED]] == [ids[3]]
    assert [coming.ids[i] for i in coming.reasons[NEW]] == [ids[5]]
    before = forecasts.filter(unique_id=ids[3])["q0.5"]
    assert coming.change is not None
    np.testing.assert_allclose(coming.change[3], (before - (before * 9 + 1000)).sum())
    assert np.isnan(coming.change[5])
    assert 3 in coming.first
    assert UNLIKE in coming.reasons


@pytest.fixture(scope="module")
def learnt() -> Forecaster:
    """A network that has learnt how weeks go together, and the totals of two weeks."""
    config = {"model": {"hidden_dim": 4, "spans": [[1, 2]]}, "train": {"refit": True}}
    forecaster = Forecaster(
        "mqcnn", HORIZON, LEVELS, world().schema, config=config, max_steps=3, members=1, verbose=False
    )
    return forecaster.fit(world().frame, static=world().static, events=world().events)


def test_a_run_that_has_learnt_how_weeks_go_together_shows_totals_of_items_and_groups(learnt, tmp_path):
    page = learnt.page(tmp_path / "page.html").read_text()
    spans = [(1, 2), (1, 4)]
    assert inside(page, "items")["spans"] == ["weeks 1 to 2", "weeks 1 to 4"]
    _, *parts = chunks(page)
    totals = learnt.predict(spans=spans).sort("unique_id", "last")
    expected = totals.select("^q.*$").to_numpy().reshape(-1, len(spans), len(LEVELS))
    found = [item[-1] for part in parts for item in part]
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert "Totals by category" in page
    drawn = [one for one in inside(page, "figures") if {"weeks 1 to 4"} <= {trace.get("name") for trace in one["data"]}]
    assert len(drawn) == 1 + len(learnt.fitted_.dependence.groups)


def test_totals_of_a_group_are_those_of_the_sums_of_its_items_paths(learnt):
    from mqcast.coming import NUM_PATHS, totals_of_groups

    dependence, steps = learnt.fitted_.dependence, learnt.predict()
    found = totals_of_groups(steps, [(1, 2), (1, 4)], dependence, learnt.panel_)["category"]
    paths = learnt.predict(paths=NUM_PATHS, group="category")
    of_item = dict(world().static.select("unique_id", pl.col("category").cast(pl.String)).iter_rows())
    for group, number, first, last, *quantiles in found.iter_rows():
        mine = [i for i, id in enumerate(paths.ids) if of_item[id] == group]
        sums = paths.values[mine, first - 1 : last].sum(axis=(0, 1), dtype=float)
        assert number == len(mine)
        np.testing.assert_allclose(quantiles, np.quantile(sums, LEVELS, method="hazen"), rtol=1e-5)


def test_a_page_shows_the_totals_that_were_asked_for_or_none(forecaster, learnt, tmp_path):
    assert inside(forecaster.page(tmp_path / "page.html").read_text(), "items")["spans"] == []
    with pytest.raises(ConfigError, match=r"span \(1, 5\) goes beyond the horizon of 4"):
        learnt.page(tmp_path / "page.html", spans=[(1, 5)])
    text = learnt.page(tmp_path / "page.html", spans=[(2, 3), (4, 4)]).read_text()
    assert inside(text, "items")["spans"] == ["weeks 2 to 3", "week 4"]
    bare = learnt.page(tmp_path / "page.html", spans=()).read_text()
    assert inside(bare, "items")["spans"] == []
    assert 'id="spans"' not in bare


def test_a_previous_forecast_may_be_a_file_and_must_have_something_in_common(forecaster, tmp_path):
    forecasts = forecaster.predict()
    forecasts.write_csv(tmp_path / "last.csv")
    page = forecaster.page(tmp_path / "page.html", previous=tmp_path / "last.csv").read_text()
    assert set(chunks(page)[0]["change"]) == {0}
    other = forecasts.with_columns(unique_id=pl.lit("other ") + pl.col("unique_id"))
    with pytest.raises(ConfigError, match="no item and date in common"):
        forecaster.page(tmp_path / "page.html", previous=other)


def test_lagging_series_are_told_above_everything(tmp_path):
    ids, last = world().static["unique_id"].sort().to_list(), sold_frame()["ds"].max()
    late = (pl.col("unique_id") == ids[0]) & (pl.col("ds") == last)
    forecaster = fitted(world().frame.with_columns(y=pl.when(late).then(None).otherwise("y")))
    with pytest.warns(LaggingSeriesWarning):
        page = forecaster.page(tmp_path / "page.html").read_text()
    assert "1 of 12 series were last observed before" in page.split("<main>")[0]
    assert ["lags behind", [0]] in chunks(page)[0]["reasons"]


def test_what_it_rests_on_names_data_model_and_columns(page):
    basis = page.split('<section id="basis"')[1]
    for text in ("seasonal-naive", "12 series", "promo_display, promo_coupon", "P10, P50, P90", "these data"):
        assert text in basis


class _Tags(html.parser.HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_hostile_names_are_text_and_the_page_asks_for_nothing(tmp_path):
    names = dict(zip(world().static["unique_id"].sort(), HOSTILE, strict=False))
    rename = pl.col("unique_id").replace(names)
    static = world().static.with_columns(rename, category=pl.col("category").replace("category_01", "</script><b>"))
    forecaster = Forecaster("seasonal-naive", HORIZON, LEVELS, world().schema)
    forecaster.fit(world().frame.with_columns(rename), static=static, events=world().events)
    previous = forecaster.predict()
    path = forecaster.page(tmp_path / "page.html", previous=previous, title="<script>t</script>")
    found = _Tags(text := path.read_text()).tags
    assert not {"b", "img"} & {tag for tag, _ in found}
    assert not any(key in attributes for _, attributes in found for key in ("src", "srcset", "data", "action"))
    policy = next(attributes["content"] for _, attributes in found if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'")
    assert set(HOSTILE[:3]) <= set(chunks(text)[0]["ids"])


def test_history_gives_way_where_the_page_would_be_too_large_and_no_item_does(forecaster, tmp_path, monkeypatch):
    coming = coming_of(forecaster.predict(), forecaster.panel_, "naive")
    whole, steps = chunks_of(coming, 10**9)
    few, fewer = chunks_of(coming, int(0.7 * sum(map(len, whole))))
    assert steps == 52
    assert 8 <= fewer < steps
    assert sum(map(len, few)) <= 0.7 * sum(map(len, whole))
    monkeypatch.setattr(coming_page, "MOST_BYTES", 0)
    text = forecaster.page(tmp_path / "page.html").read_text()
    assert "it holds the last 8 weeks" in text
    assert len(chunks(text)[0]["ids"]) == 12


def test_many_items_are_cut_into_chunks_and_the_largest_are_kept(monkeypatch):
    number = PER_CHUNK + 7
    ids = [f"i{i:04d}" for i in range(number)]
    days = pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 1, 20), eager=True)
    frame = pl.DataFrame({"unique_id": ids}).join(pl.DataFrame({"ds": days}), how="cross")
    frame = frame.with_columns(y=pl.col("unique_id").str.slice(1).cast(pl.Float64))
    forecaster = Forecaster("seasonal-naive", 2, (0.5, 0.9)).fit(frame)
    coming = coming_of(forecaster.predict(), forecaster.panel_, "naive")
    parts = [json.loads(gzip.decompress(base64.b64decode(text))) for text in chunks_of(coming, 10**9)[0]]
    assert [len(part) for part in parts] == [PER_CHUNK, 7]
    assert parts[1][0][2][1] == [PER_CHUNK, PER_CHUNK]  # the medians of the first item of the second chunk
    assert number < MOST_ITEMS
    monkeypatch.setattr("mqcast.report.coming.MOST_ITEMS", 3)
    largest = coming_of(forecaster.predict(), forecaster.panel_, "naive")
    assert largest.ids == ids[-3:]
    assert largest.num_all == number
    assert np.nansum(largest.totals.medians) == 2 * sum(range(number))


@pytest.mark.parametrize(
    ("freq", "step"), [("W-SUN", "week"), ("D", "day"), ("h", "hour"), ("MS", "month"), ("2W", "step"), ("min", "step")]
)
def test_steps_are_called_by_their_name(freq, step):
    assert step_of(Frequency.parse(freq)) == step


def test_each_series_from_its_own_end_and_a_panel_without_columns(tmp_path):
    days = pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 2, 20), eager=True)
    frame = pl.concat(
        [pl.DataFrame({"unique_id": name, "ds": days[:size], "y": 3.0}) for name, size in (("a", 51), ("b", 40))]
    )
    forecaster = Forecaster("seasonal-naive", 2, (0.5,)).fit(Panel.from_frame(frame, Schema()))
    text = forecaster.page(tmp_path / "page.html", cutoff="each").read_text()
    cutoffs = [inside(text, "items")["dates"][item[0]] for item in chunks(text)[1]]
    assert cutoffs == [str(days[50]), str(days[39])]


def test_the_command_writes_the_page_of_a_saved_forecaster(forecaster, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from mqcast.cli import app

    forecaster.save(tmp_path / "saved")
    forecaster.predict().write_parquet(tmp_path / "last.parquet")
    out = tmp_path / "page.html"
    told = CliRunner().invoke(
        app,
        ["page", str(tmp_path / "saved"), "--previous", str(tmp_path / "last.parquet"), "--out", str(out), "--json"],
    )
    assert told.exit_code == 0, told.output
    facts = json.loads(told.stdout)
    assert (facts["page"], facts["bytes"]) == (str(out), out.stat().st_size)
    assert len(chunks(Path(out).read_text())[0]["ids"]) == 12
