"""The Oxford-Man file: logarithms, yesterday's value where there is none, regions with their quirks."""

import datetime as dt
import math

import polars as pl
import pytest
from raw_samples import SYMBOLS, write_oxford_man, zipped

from lab.datasets.oxford_man import FILE, REGION_OF, load
from lab.datasets.oxford_man_rv5 import DAILY
from mqcast.errors import ConfigError, SourceError

FIRST = dt.date(2018, 10, 1)


def raw(folder) -> pl.DataFrame:
    return (
        pl.read_csv(folder / FILE).rename({"": "stamp"}).with_columns(ds=pl.col("stamp").str.slice(0, 10).str.to_date())
    )


def test_the_target_is_the_logarithm_and_a_zero_repeats_the_day_before(tmp_path):
    write_oxford_man(tmp_path, FIRST)
    for symbol in SYMBOLS:
        given = raw(tmp_path).filter(Symbol=symbol).filter(pl.col("ds") <= dt.date(2019, 6, 28))
        rows = load(tmp_path).frame.filter(unique_id=symbol)
        assert rows["ds"].to_list() == given["ds"].to_list()
        last, zeros = None, 0
        for value, y in zip(given["rv5_ss"], rows["y"], strict=True):
            zeros += value == 0
            last = math.log(value) if value > 0 else last
            assert y == pytest.approx(last)
        assert zeros > 0


def test_days_count_from_the_third_of_january_2000(tmp_path):
    write_oxford_man(tmp_path, FIRST)
    rows = load(tmp_path).frame
    assert (rows["days_from_start"] == [(day - dt.date(2000, 1, 3)).days for day in rows["ds"]]).all()
    assert rows["open_to_close"].null_count() > 0


def test_there_are_four_regions_by_a_blank_and_31_symbols(tmp_path):
    write_oxford_man(tmp_path, FIRST)
    assert len(REGION_OF) == 31
    assert sorted(set(REGION_OF.values())) == ["AMER", "APAC", "APAC ", "EMEA"]
    assert dict(load(tmp_path).static.iter_rows()) == SYMBOLS
    assert REGION_OF[".N225"] == "APAC "
    assert REGION_OF[".RUT"] == "EMEA"


def test_returns_from_close_to_close_come_with_the_same_days_and_variances(tmp_path):
    write_oxford_man(tmp_path, FIRST)
    daily = raw(tmp_path).filter(pl.col("rv5_ss") > 0)
    daily.select(
        unique_id="Symbol",
        ds=pl.col("ds").cast(pl.Datetime("us")),
        log_rv5=pl.col("rv5_ss").log(),
        ret_cc=pl.col("ds").dt.day() / 100,
        region=pl.lit("of another table"),
    ).write_parquet(tmp_path / DAILY)
    dataset, plain = load(tmp_path, "close_to_close"), load(tmp_path)
    rows = dataset.frame.join(plain.frame, on=["unique_id", "ds"], how="inner")
    assert rows.height == dataset.frame.height == daily.filter(pl.col("ds") <= dt.date(2019, 6, 28)).height
    assert rows["y"].to_list() == pytest.approx(rows["y_right"].to_list())
    assert (rows["close_to_close"] * 100).round().to_list() == rows["ds"].dt.day().to_list()
    assert (rows["days_from_start"] == rows["days_from_start_right"]).all()
    assert dataset.static.equals(plain.static)
    assert dataset.schema == plain.schema.replace(past=("close_to_close",))
    assert dataset.panel().num_rows == rows.height


def test_what_the_other_file_lacks_is_told(tmp_path):
    with pytest.raises(ConfigError, match="oxford_man has no returns 'daily'; there are open_to_close, close_to_close"):
        load(tmp_path, "daily")
    with pytest.raises(SourceError, match=rf"there is no .*{DAILY}; write it with the columns .*the data are rv5"):
        load(tmp_path, "close_to_close")
    rows = {"unique_id": [".XYZ"], "ds": [dt.datetime(2019, 6, 28)], "log_rv5": [-9.0], "ret_cc": [0.0]}
    pl.DataFrame(rows | {"region": ["EMEA"]}).write_parquet(tmp_path / DAILY)
    with pytest.raises(SourceError, match=r"symbols that the task does not know: \.XYZ"):
        load(tmp_path, "close_to_close")


def test_the_zip_as_downloaded_is_read_alike(tmp_path):
    write_oxford_man(tmp_path, FIRST)
    plain = load(tmp_path).frame
    zipped(tmp_path, "oxfordmanrealizedvolatilityindices.zip", FILE)
    assert load(tmp_path).frame.equals(plain)


BREAKS = {
    "no rv5_ss": lambda text: text.replace("rv5_ss", "rv10", 1),
    "named dates": lambda text: "date" + text,
    "semicolons": lambda text: text.replace(",", ";"),
    "another index": lambda text: text.replace(".SSEC", ".XYZ"),
    "too short": lambda text: "\n".join(line for line in text.splitlines() if not line.startswith("2019")),
    "no date": lambda text: text.replace("2019-01-02", "02/01/2019"),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_what_is_not_the_file_is_said_in_one_line_with_its_layout(kind, tmp_path):
    path = write_oxford_man(tmp_path, FIRST)
    path.write_text(BREAKS[kind](path.read_text()))
    with pytest.raises(SourceError, match="realized library") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert "open_to_close" in str(caught.value)
