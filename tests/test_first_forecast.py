"""One call: roles are guessed and told, the backtest is out of sample, and the folder holds all that is promised."""

import datetime as dt
import json
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import mqcast
from mqcast import ArtifactError, DataError, Forecaster, MqcastError
from mqcast.cli import app
from mqcast.data.excel_files import excel_of
from mqcast.data.joined import id_columns, with_joined_id
from mqcast.data.source import open_source
from mqcast.errors import ColumnTypeError, MissingColumnError, SeriesLeftOutWarning
from mqcast.first_forecast import FirstForecast

WEEKS, HORIZON = 40, 4


def sales(weeks: int = WEEKS, ahead: int = 0) -> pl.DataFrame:
    """Two shops with two products: weekly units, a promotion, a price; rows ahead have no units."""
    days = [dt.date(2024, 1, 7) + dt.timedelta(weeks=i) for i in range(weeks + ahead)]
    keys = pl.DataFrame({"shop": [1, 1, 2, 2], "product": ["tea", "soap"] * 2, "city": ["Ulm", "Ulm", "Bonn", "Bonn"]})
    rows = keys.join(pl.DataFrame({"week": days}), how="cross")
    rng = np.random.default_rng(0)
    return rows.with_columns(
        promo=pl.Series(rng.integers(0, 2, rows.height)),
        price=pl.Series(rng.choice([1.5, 2.0], rows.height)),
        units=pl.when(pl.col("week") <= days[weeks - 1]).then(pl.Series(rng.poisson(9, rows.height).astype(float))),
    )


def made(frame, tmp_path: Path, **options) -> FirstForecast:
    options = {"model": "seasonal-naive", "verbose": False} | options
    return mqcast.quick(frame, HORIZON, folder=tmp_path / "made", **options)


def roles(found) -> dict[str, str]:
    return dict(found.roles.select("column", "role").iter_rows())


def test_a_column_with_one_value_everywhere_is_left_out_and_the_table_says_so(tmp_path):
    found = made(sales(ahead=HORIZON).with_columns(chain=pl.lit("A"), closed=pl.lit(0)), tmp_path)
    told = {column: (role, why) for column, role, why in found.roles.select("column", "role", "why").iter_rows()}
    assert told["chain"] == told["closed"] == ("left out", "one value everywhere")
    assert told["city"][0] == "static"
    assert told["promo"][0] == "known"


def test_an_ordinary_history_gives_a_forecast_pages_and_a_folder_to_go_on_from(tmp_path):
    path = tmp_path / "sales.csv"
    sales().write_csv(path)
    found = made(path, tmp_path)
    assert roles(found) == {
        "shop+product": "id",
        "week": "time",
        "units": "target",
        **dict.fromkeys(("shop", "product", "city"), "static"),
        **dict.fromkeys(("promo", "price"), "past"),
    }
    names = {file.name for file in found.folder.iterdir()}
    assert names - {"forecast.xlsx"} == {
        "forecast.csv",
        "page.html",
        "report.html",
        "mqcast.toml",
        "forecaster",
        "decisions.txt",
    }
    written = pl.read_csv(found.folder / "forecast.csv")
    assert written.columns[:5] == ["shop", "product", "shop+product", "cutoff", "week"]
    assert written["shop+product"].unique().sort().to_list() == ["1/soap", "1/tea", "2/soap", "2/tea"]
    assert (written["shop"].cast(pl.String) + "/" + written["product"] == written["shop+product"]).all()
    assert written.height == 4 * HORIZON
    assert written["cutoff"].unique().to_list() == ["2024-10-06"]
    again = Forecaster.load(found.folder / "forecaster").predict()
    np.testing.assert_allclose(again["q0.5"], written["q0.5"])
    assert mqcast.Schema.from_toml(found.folder / "mqcast.toml", table="schema").id == "shop+product"


def test_the_written_forecast_is_the_previous_one_of_the_next_page(tmp_path):
    found = made(sales(), tmp_path)
    found.forecaster.page(tmp_path / "next.html", previous=found.folder / "forecast.csv")
    assert (tmp_path / "next.html").exists()


def test_known_columns_need_their_coming_values_and_are_past_without_them(tmp_path):
    planned = made(sales(ahead=HORIZON), tmp_path / "planned")
    assert (roles(planned)["promo"], roles(planned)["price"]) == ("known", "known")
    short = made(sales(ahead=HORIZON - 1), tmp_path / "short")
    assert (roles(short)["promo"], roles(short)["price"]) == ("past", "past")
    assert any("promo, price are not in the data" in text for text in short.decisions)
    assert not any("knows no plan" in text for text in planned.decisions)
    said = made(sales(), tmp_path / "said", known="promo", static=["city"])
    assert roles(said)["promo"] == "past"
    assert dict(said.roles.select("column", "why").iter_rows())["promo"] == "its coming values are not in the data"


def test_a_second_file_holds_the_plan(tmp_path):
    history, plan = (sales(ahead=HORIZON).filter(part) for part in (pl.col("units") >= 0, pl.col("units").is_null()))
    whole = made(sales(ahead=HORIZON), tmp_path / "whole")
    plan.select("shop", "product", "week", "promo", "price").write_csv(tmp_path / "plan.csv", separator=";")
    found = made(history, tmp_path / "parts", future=tmp_path / "plan.csv")
    assert roles(found) == roles(whole)
    assert roles(found)["promo"] == roles(found)["price"] == "known"
    assert found.forecast.select("q0.5").equals(whole.forecast.select("q0.5"))
    stranger = plan.with_columns(product=pl.lit("salt"))
    with pytest.warns(SeriesLeftOutWarning, match="2 series of the future have no sales .*'1/salt'"):
        made(history, tmp_path / "more", future=pl.concat([plan, stranger]))
    for wrong, problem in (
        (plan.select("shop", "product", "week"), "has no column of the frame but 'shop.product' and 'week'"),
        (plan.drop("week"), "the future has no column 'week'"),
        (plan.with_columns(pl.col("week") - dt.timedelta(weeks=30)), "no row after the last sale"),
    ):
        with pytest.raises(MqcastError, match=problem):
            made(history, tmp_path / "wrong", future=wrong)
    assert not (tmp_path / "wrong").exists()


def test_german_names_are_known(tmp_path):
    names = {"shop": "Filiale", "product": "Artikel-Nr.", "week": "Woche (Montag)", "units": "Absatz [Stk]"}
    found = made(sales().rename(names), tmp_path)
    assert roles(found)["Absatz [Stk]"] == "target"
    assert roles(found)["Filiale+Artikel-Nr."] == "id"


def test_the_settings_to_go_on_from_have_the_levels_of_the_forecast(tmp_path):
    settings = tomllib.loads((made(sales(), tmp_path).folder / "mqcast.toml").read_text())
    assert settings["model"]["quantiles"] == [0.1, 0.5, 0.9]


def test_joined_ids_are_joined_in_every_later_frame(tmp_path):
    found = made(sales(ahead=HORIZON), tmp_path)
    forecaster = Forecaster.load(found.folder / "forecaster")
    plan = sales(ahead=HORIZON).filter(pl.col("units").is_null())
    assert forecaster.predict(future=plan).height == found.forecast.height
    changed = forecaster.what_if(plan.filter(pl.col("product") == "tea").with_columns(promo=1))
    assert changed["shop+product"].unique().sort().to_list() == ["1/tea", "2/tea"]
    stock = plan.select("shop", "product").unique().with_columns(on_hand=3)
    assert mqcast.orders(found.forecast.drop("shop", "product"), stock, mqcast.Policy(service_level=0.9)).height == 4


def test_the_backtest_never_saw_the_dates_that_it_is_judged_on(tmp_path):
    frame = sales()
    last = frame["week"].unique().sort()[-HORIZON:].to_list()
    other = frame.with_columns(
        units=pl.when(pl.col("week").is_in(last)).then(pl.col("units") * 7 + 5).otherwise("units")
    )
    one, two = made(frame, tmp_path / "one").backtest, made(other, tmp_path / "two").backtest
    assert one is not None
    assert two is not None
    first = one["cutoff"].min()
    assert first == dt.datetime.combine(last[0] - dt.timedelta(weeks=1), dt.time())
    assert one.filter(cutoff=first).equals(two.filter(cutoff=first))
    assert not one.equals(two)


def test_too_short_a_history_has_no_backtest_and_says_so(tmp_path):
    found = made(sales(3 * HORIZON - 1), tmp_path)
    assert found.backtest is None
    assert not (found.folder / "report.html").exists()
    assert any("There is no backtest: 11 weeks" in text for text in found.decisions)


def test_what_is_said_counts_more_than_what_is_guessed(tmp_path):
    frame = sales().rename({"units": "amount", "week": "when"}).with_columns(bill=pl.col("shop") * 2.0)
    found = made(frame, tmp_path, id=("product", "shop"), target="amount", time="when", past="city")
    assert roles(found)["product+shop"] == "id"
    assert roles(found)["city"] == "past"
    assert dict(found.roles.select("column", "why").iter_rows())["city"] == "as you said"


def test_pandas_frames_of_one_series_and_a_folder_that_is_taken(tmp_path):
    frame = sales().filter(shop=1, product="tea").drop("shop", "city").to_pandas()
    found = made(frame, tmp_path)
    assert roles(found)["product"] == "id"
    with pytest.raises(ArtifactError, match="already exists"):
        made(frame, tmp_path)


def test_a_history_without_any_name_is_one_series(tmp_path):
    frame = sales().filter(shop=1, product="tea").select("week", "units")
    found = made(frame, tmp_path)
    assert found.forecaster.panel_.num_series == 1
    assert found.forecast.height == HORIZON


def test_wrong_names_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(MqcastError, match="no column 'promotion' to be the known"):
        made(sales(), tmp_path, known="promotion")
    with pytest.raises(MqcastError, match="minutes"):
        made(sales(), tmp_path, minutes=0)
    assert not (tmp_path / "made").exists()


def test_ids_that_are_the_same_when_joined_are_refused():
    frame = pl.DataFrame({"a": ["x/y", "x"], "b": ["z", "y/z"]})
    assert id_columns("a+b", frame.columns) == ["a", "b"]
    assert id_columns("a", frame.columns) == []
    with pytest.raises(DataError, match="the same id"):
        with_joined_id(open_source(frame), "a+b")
    with pytest.raises(DataError, match="lack a part"):
        with_joined_id(open_source(frame.with_columns(a=pl.lit(None, pl.String))), "a+b")


def test_the_command_does_the_same(tmp_path):
    sales().write_csv(tmp_path / "sales.csv")
    out = tmp_path / "out"
    options = ["--horizon", "4", "--out", str(out), "--id", "shop,product", "--past", "promo,price", "--json"]
    told = CliRunner().invoke(app, ["quick", str(tmp_path / "sales.csv"), *options, "--model", "seasonal-naive"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["folder"] == str(out)
    assert (out / "page.html").exists()


def test_excel_is_read_and_written_and_no_name_becomes_a_formula(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="the extra excel is not installed")
    frame = sales().with_columns(product=pl.col("product").replace("tea", "=1+1"))
    (tmp_path / "sales.xlsx").write_bytes(excel_of(frame))
    from_file, from_frame = made(tmp_path / "sales.xlsx", tmp_path / "file"), made(frame, tmp_path / "frame")
    assert from_file.forecast.equals(from_frame.forecast)
    names, *rows = openpyxl.load_workbook(from_file.folder / "forecast.xlsx").active.iter_rows(values_only=True)
    assert list(names) == from_file.forecast.columns
    assert [row[2] for row in rows] == from_file.forecast["shop+product"].to_list()
    assert [row[4].date() for row in rows] == from_file.forecast["week"].dt.date().to_list()
    (tmp_path / "bad.xlsx").write_text("no workbook")
    with pytest.raises(MqcastError, match="cannot be read as Excel"):
        made(tmp_path / "bad.xlsx", tmp_path / "bad")


def test_excel_with_titles_and_dates_as_text_is_read_and_its_rows_are_told(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    rows = [("item", "week", "units"), *((name, f"{day:02}.01.2024", day) for name in "ab" for day in range(1, 32))]

    def book(*rows: tuple) -> str:
        made = openpyxl.Workbook()
        for row in rows:
            made.active.append(row)
        made.save(tmp_path / "sales.xlsx")
        return str(tmp_path / "sales.xlsx")

    found = made(book(("Sales of January",), (), *rows), tmp_path / "titles")
    assert found.forecast["week"].min() == dt.datetime(2024, 2, 1)
    for changed, match in (
        (("a", "02.01.2024", "sold out"), r"'units' is text because of .*sales.xlsx, row 5: 'sold out'"),
        (("a", "1 Jan", 3), r"'week' is text because of .*sales.xlsx, row 5: '1 Jan'"),
    ):
        with pytest.raises(MqcastError, match=match):
            made(book(("Sales of January",), (), *rows[:2], changed, *rows[3:]), tmp_path / "mistakes")


def test_a_target_that_one_value_made_text_is_told_in_place_of_taking_another_column(tmp_path):
    texts = sales().with_columns(pl.col("units").cast(pl.String), promo=pl.col("promo").cast(pl.Int8))
    for value, match in (("1.234,5", "'1.234,5', which looks like a number with a comma"), ("sold out", "'sold out'")):
        first = pl.int_range(pl.len()) == 3
        texts.with_columns(units=pl.when(first).then(pl.lit(value)).otherwise("units")).write_csv(tmp_path / "s.csv")
        with pytest.raises(MqcastError, match=rf"'units' is text because of .*s.csv, row 5: {match}"):
            made(tmp_path / "s.csv", tmp_path / "out")


def test_a_planned_column_with_gaps_is_told_as_such(tmp_path):
    price = pl.when(pl.int_range(pl.len()) != 3).then("price")
    found = made(sales(ahead=HORIZON).with_columns(price), tmp_path)
    assert roles(found)["price"] == "past"
    (told,) = [text for text in found.decisions if "knows no plan" in text]
    assert told.startswith("price has missing values, so")
    assert f"fill its gaps, also in rows for the coming {HORIZON} weeks." in told


def test_weeks_by_their_number_are_dates_or_told(tmp_path):
    sales().with_columns(pl.col("week").dt.strftime("%G-W%V")).write_csv(tmp_path / "weeks.csv")
    found = made(tmp_path / "weeks.csv", tmp_path)
    assert found.forecast["week"].dt.weekday().unique().to_list() == [7]
    sales().with_columns(pl.col("week").dt.strftime("%G%V")).write_csv(tmp_path / "numbers.csv")
    with pytest.raises(MissingColumnError, match=r"'week' holds numbers such as 202405; write months as 2024-05 and"):
        made(tmp_path / "numbers.csv", tmp_path / "numbers")


@pytest.mark.parametrize("unit", ["{} pcs", "€ {},50", "{}kg"])
def test_a_target_with_units_is_told_and_no_other_taken(tmp_path, unit):
    rows = sales().with_columns(units=pl.format(unit, pl.col("units").cast(pl.Int64)))
    first = unit.format(int(sales()["units"][0]))
    with pytest.raises(MissingColumnError, match=rf"'units' holds text such as '{first}'; write the numbers alone"):
        made(rows.drop("promo", "shop"), tmp_path)
    assert roles(made(sales().with_columns(sales_channel=pl.lit("A1")), tmp_path))["units"] == "target"


def test_what_hides_the_dates_or_the_target_is_told(tmp_path):
    frame = sales().with_columns(note=pl.lit("ten pcs"))
    hidden = frame.to_pandas().set_index(["product", "week"])
    with pytest.raises(MissingColumnError, match=r"the index holds 'product', 'week': call reset_index\(\) first"):
        made(hidden, tmp_path)
    texts = frame.with_columns(pl.col("week").cast(pl.String))
    with pytest.raises(MissingColumnError, match=r"'week' holds text such as '2024-01-07'; .* pd.to_datetime"):
        made(texts, tmp_path)
    with pytest.raises(
        ColumnTypeError, match=r"the target 'note' holds text such as 'ten pcs', not numbers; write num"
    ):
        made(frame, tmp_path, target="note")


def test_a_file_without_names_is_told(tmp_path):
    rows = sales().select("product", "week", "units").filter(pl.col("product") == "tea").head(WEEKS)
    rows.write_csv(tmp_path / "sales.csv", include_header=False)
    with pytest.raises(MissingColumnError, match="first row holds values such as 2024-01-07, no names; add a row of"):
        made(tmp_path / "sales.csv", tmp_path)


def test_a_backtest_of_nothing_sold_says_so(tmp_path):
    found = made(sales().with_columns(units=pl.lit(0)), tmp_path)
    assert any("Nothing was sold in them" in text for text in found.decisions)
    assert not any("nan" in text for text in found.decisions)


def test_a_promotion_in_words_is_a_flag_and_the_table_says_so(tmp_path):
    rows = sales(ahead=HORIZON)
    found = made(rows.with_columns(promo=pl.col("promo").replace_strict({1: "ja", 0: "nein"})), tmp_path)
    told = {column: (role, why) for column, role, why in found.roles.iter_rows()}
    assert told["promo"] == ("known", "it has values after the last sale; 'ja' is 1, 'nein' is 0")
    assert found.forecaster.panel_.schema.kinds["promo"] == "flag"


def test_a_plan_with_some_empty_values_is_a_plan(tmp_path):
    rows = sales(ahead=HORIZON)
    late, last = pl.col("units").is_null(), rows["week"].max()
    is_one = (pl.col("product") == "soap") & (pl.col("shop") == 1)
    found = made(
        rows.with_columns(promo=pl.when(is_one & (pl.col("week") == last)).then(None).otherwise("promo")), tmp_path
    )
    assert roles(found)["promo"] == "known"
    assert "it has values after the last sale, though not in all rows" in found.roles["why"].to_list()
    (told,) = [text for text in found.decisions if "plan lacks rows" in text]
    assert "Note: 1 of" in told
    few = made(rows.with_columns(promo=pl.when(late & ~is_one).then(None).otherwise("promo")), tmp_path / "few")
    assert roles(few)["promo"] == "past"
    price = pl.when(late & is_one).then(None).otherwise(2.5 + pl.col("week").dt.month())
    none = rows.with_columns(price=price, promo=pl.when(late & ~is_one).then(None).otherwise("promo"))
    told = roles(made(none, tmp_path / "none"))
    assert (told["promo"], told["price"]) == ("past", "past")


def test_a_name_that_some_rows_of_a_plan_lack_leaves_no_series_out(tmp_path):
    late = pl.col("units").is_null() & (pl.col("shop") == 1)
    found = made(sales(ahead=HORIZON).with_columns(city=pl.when(~late).then("city")), tmp_path)
    assert roles(found)["city"] == "past"
    assert roles(found)["promo"] == "known"
    assert found.forecast["shop+product"].n_unique() == 4


def test_a_few_doubled_rows_do_not_hide_the_id(tmp_path):
    frame = sales().drop("shop").filter(pl.int_range(pl.len()) % 2 == 0)
    with pytest.raises(MqcastError, match=r"2 rows \(rows 20 and 60 of the frame\); aggregate them"):
        made(pl.concat([frame, frame.head(1)]), tmp_path)


def test_a_plan_that_lacks_rows_of_some_series_is_used_for_the_others(tmp_path):
    whole = sales(ahead=HORIZON)
    is_late, tea = pl.col("units").is_null() & (pl.col("week") == whole["week"].max()), pl.col("product") == "tea"
    found = made(whole.filter(~(is_late & tea & (pl.col("shop") == 1))), tmp_path / "one")
    assert roles(found)["promo"] == "known"
    assert found.forecast["shop+product"].n_unique() == 3
    notes = [text for text in found.decisions if "their plan lacks rows" in text]
    assert any("1 of 4 series are not forecast, since" in text for text in notes)
    rare = made(whole.filter(~(is_late & (tea | (pl.col("shop") == 1)))), tmp_path / "most")
    assert roles(rare)["promo"] == "past"
    assert rare.forecast["shop+product"].n_unique() == 4


def test_excel_without_its_extra_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr("mqcast.data.excel_files.has_openpyxl", lambda: False)
    with pytest.raises(MqcastError, match=r"mqcast\[excel\]"):
        made(tmp_path / "sales.xlsx", tmp_path)


@pytest.mark.slow
def test_a_network_is_trained_within_the_minutes(tmp_path):
    found = made(sales(80), tmp_path, model="mqt", minutes=0.1)
    assert found.backtest is not None
    assert found.forecast.height == 4 * HORIZON


def test_the_value_that_made_a_column_text_and_wide_tables_are_told(tmp_path):
    path = tmp_path / "sales.csv"
    sales().write_csv(path)
    lines = path.read_text().splitlines()
    for old, new, problem in (
        ("2024-02-04", "04.02.2024", r"time column .*'week' is text because of .*sales.csv, row 6: '04.02.2024'"),
        (lines[5].split(",")[-1], "many", r"target column .*'units' is text because of .*sales.csv, row 6: 'many'"),
    ):
        path.write_text("\n".join([*lines[:5], lines[5].replace(old, new), *lines[6:]]))
        with pytest.raises(MqcastError, match=problem):
            made(path, tmp_path)
    wide = pl.DataFrame({"item": ["tea"]} | {f"2024-01-{day:02}": [3.0] for day in range(1, 29)})
    with pytest.raises(
        MqcastError, match=r"columns 2024-01-01, 2024-01-02 … are dates: give one row a series and date"
    ):
        made(wide, tmp_path)
