"""Kaggle's Favorita files: days without a sale between sales, covariates joined, returns left out."""

import datetime as dt
import math
from pathlib import Path

import polars as pl
import pytest
from raw_samples import write_favorita, zipped

from lab.datasets.favorita import FILES, load
from mqcast.errors import SourceError

LONG = ("2014-12-20", "2016-07-01")


@pytest.fixture(scope="module")
def sold_and_frames(tmp_path_factory):
    folder = tmp_path_factory.mktemp("favorita")
    lives = {(1, 103): LONG, (1, 1047679): ("2015-03-02", "2016-02-10"), (2, 103): LONG, (2, 9): LONG}
    sold = write_favorita(folder, lives, returns=(2, 9))
    frames = load(folder)
    return sold, frames, frames.frame


def day(rows: pl.DataFrame, name: str, date: str) -> dict:
    return rows.filter(unique_id=name, ds=dt.date.fromisoformat(date)).row(0, named=True)


def test_a_row_each_day_from_the_first_sale_to_the_last(sold_and_frames):
    _, _, rows = sold_and_frames
    short = rows.filter(unique_id="01_1047679")
    assert (short["ds"][0], short["ds"][-1]) == (dt.date(2015, 3, 2), dt.date(2016, 2, 10))
    assert short["ds"].diff().drop_nulls().unique().to_list() == [dt.timedelta(days=1)]
    assert rows["ds"].min() >= dt.date(2015, 1, 1)
    assert rows["ds"].max() == dt.date(2016, 5, 31)
    assert rows.equals(rows.sort("unique_id", "ds"))


def test_the_target_is_the_logarithm_and_missing_where_nothing_was_sold(sold_and_frames):
    sold, _, rows = sold_and_frames
    names = {"01_0000103": (1, 103), "02_0000103": (2, 103), "01_1047679": (1, 1047679)}
    for row in rows.iter_rows(named=True):
        amount = sold.get((*names[row["unique_id"]], str(row["ds"])))
        assert row["open"] == (amount is not None)
        assert row["y"] == (None if amount is None else pytest.approx(math.log(amount)))
    assert 0.15 < 1 - rows["open"].mean() < 0.25


def test_an_item_with_a_return_is_left_out(sold_and_frames):
    _, frames, rows = sold_and_frames
    assert set(rows["unique_id"]) == {"01_0000103", "01_1047679", "02_0000103"}
    assert set(frames.static["unique_id"]) == set(rows["unique_id"])
    assert frames.static.filter(unique_id="02_0000103").row(0, named=True) | {} == {
        "unique_id": "02_0000103",
        "item_nbr": "103",
        "store_nbr": "2",
        "city": "Ambato",
        "state": "Tungurahua",
        "type": "A",
        "cluster": "14",
        "family": "GROCERY I",
        "class": "1005",
        "perishable": "1",
    }


def test_promotions_go_on_over_days_without_a_sale(sold_and_frames):
    _, _, rows = sold_and_frames
    for _, of_series in rows.group_by("unique_id", maintain_order=True):
        last = None
        for is_sold, promoted in of_series.select("open", "onpromotion").iter_rows():
            if not is_sold:
                assert promoted == last
            last = promoted
    assert set(rows["onpromotion"]) == {"True", "False"}


def test_oil_is_the_last_price_and_missing_values_are_minus_one(sold_and_frames):
    _, _, rows = sold_and_frames
    friday, sunday = day(rows, "01_0000103", "2015-06-05"), day(rows, "01_0000103", "2015-06-07")
    assert friday["oil"] == sunday["oil"] == pytest.approx(50.5)
    assert day(rows, "01_0000103", "2016-01-01")["oil"] == -1  # nothing is sold anywhere on that day
    assert day(rows, "02_0000103", "2015-06-05")["transactions"] == 1025
    assert day(rows, "02_0000103", "2015-06-13")["transactions"] == -1


def test_holidays_are_those_of_the_nation_the_state_and_the_city(sold_and_frames):
    _, frames, rows = sold_and_frames
    national = dict(frames.events.select("ds", "national_hol").iter_rows())
    assert national[dt.date(2015, 5, 1)] == "Dia del Trabajo"
    assert national[dt.date(2015, 10, 9)] == "none"  # moved to another day
    assert national[dt.date(2016, 5, 1)] == "Dia del Trabajo; Terremoto"
    assert day(rows, "01_0000103", "2015-04-14")["local_hol"] == "Fiesta de Quito"
    assert day(rows, "02_0000103", "2015-04-14")["local_hol"] == "none"
    assert day(rows, "02_0000103", "2015-07-03")["regional_hol"] == "Fiesta de Tungurahua"
    assert day(rows, "01_0000103", "2015-07-03")["regional_hol"] == "none"


def test_a_zip_of_the_files_is_read_alike(tmp_path):
    write_favorita(tmp_path)
    plain = load(tmp_path).frame
    zipped(tmp_path, "favorita.zip", *FILES)
    assert load(tmp_path).frame.equals(plain)


def broken(kind: str, folder: Path) -> None:
    train = folder / "train.csv"
    text = train.read_text()
    if kind == "no oil":
        (folder / "oil.csv").unlink()
    elif kind == "still packed":
        train.rename(folder / "train.csv.7z")
    elif kind == "cut off":
        train.write_text(text[: len(text) // 2])
    elif kind == "other columns":
        train.write_text(text.replace("unit_sales", "sales"))
    elif kind == "words":
        train.write_text(text.replace("2015-03-03,1,103,", "2015-03-03,1,103,many"))
    elif kind == "no such store":
        (folder / "stores.csv").write_text("store_nbr,city,state,type,cluster\n1,Quito,Pichincha,D,13\n")


KINDS = {"no oil": "oil.csv", "still packed": "7-Zip", "cut off": "2016-06-01", "other columns": "'unit_sales'"}
KINDS |= {"words": "train.csv", "no such store": "store 2"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_the_file_is_said_in_one_line_with_its_source(kind, tmp_path):
    write_favorita(tmp_path)
    broken(kind, tmp_path)
    with pytest.raises(SourceError, match=r"kaggle\.com/c/favorita") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert KINDS[kind] in str(caught.value)
