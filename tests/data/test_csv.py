"""CSV files are read like the same data in Parquet, and what cannot be read is named: file, row and column."""

import datetime as dt
import gzip
import re
from pathlib import Path

import polars as pl
import pytest

from mqcast import Panel, Schema, errors
from mqcast.data.excel_files import excel_of
from mqcast.data.joined import with_joined_id
from mqcast.data.source import open_source, read_table
from mqcast.evaluation import evaluate
from mqcast.evaluation.reading import read_actuals

SCHEMA = Schema(known=("promo", "price"))


def written(folder: Path, text: str, name: str = "sales.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def column(folder: Path, *values: str) -> list:
    """What a column of these texts is read as."""
    return read_table(written(folder, "\n".join(["x,y", *(f"{value},1" for value in values)])))["x"].to_list()


# -- the same panel ----------------------------------------------------------------------------------------------------


def test_a_panel_of_csv_is_that_of_parquet_bit_for_bit(sales, tmp_path, same_arrays):
    sales.write_csv(tmp_path / "sales.csv")
    same_arrays(Panel.from_frame(tmp_path / "sales.csv", SCHEMA), Panel.from_frame(sales, SCHEMA))


@pytest.mark.parametrize("block", [200, 16 * 2**20])
def test_files_of_a_folder_are_one_table_whatever_their_blocks(sales, tmp_path, same_arrays, monkeypatch, block):
    monkeypatch.setattr("mqcast.data.csv_files.BLOCK_BYTES", block)
    for i, part in enumerate(sales.partition_by("unique_id")):
        written(tmp_path, part.select(sorted(part.columns, reverse=i == 1)).write_csv(), f"year/part{i}.csv")
    wanted = Panel.from_frame(sales, SCHEMA)
    same_arrays(Panel.from_frame(tmp_path / "year", SCHEMA), wanted)
    same_arrays(Panel.from_frame(str(tmp_path / "year" / "*.csv"), SCHEMA), wanted)
    same_arrays(Panel.from_frame([tmp_path / "year/part1.csv", tmp_path / "year/part0.csv"], SCHEMA), wanted)


def test_spreadsheets_of_europe_and_compressed_files_are_read(sales, tmp_path, same_arrays):
    texts = sales.with_columns(
        pl.col("ds").dt.strftime("%d.%m.%Y"), pl.col("y", "price").cast(pl.String).str.replace(".", ",", literal=True)
    )
    (tmp_path / "sales.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + texts.write_csv(separator=";").encode()))
    same_arrays(Panel.from_frame(tmp_path / "sales.csv.gz", SCHEMA), Panel.from_frame(sales, SCHEMA))


def test_side_tables_may_be_csv(sales, tmp_path, same_arrays):
    events = sales.select("ds").unique().sort("ds").with_columns(fair=pl.int_range(pl.len()) == 3)
    static = pl.DataFrame({"unique_id": ["a", "b"], "size": ["small", "large"]})
    events.write_csv(tmp_path / "events.csv")
    static.write_csv(tmp_path / "static.csv")
    schema = SCHEMA.replace(events=("fair",), static=("size",))
    found = Panel.from_frame(sales, schema, tmp_path / "static.csv", tmp_path / "events.csv")
    same_arrays(found, Panel.from_frame(sales, schema, static, events))


def test_forecasts_and_actuals_may_be_csv(sales, tmp_path):
    actuals = sales.drop_nulls()
    forecasts = actuals.select("unique_id", "ds", (pl.col("ds") - pl.duration(weeks=1)).alias("cutoff"))
    forecasts = forecasts.with_columns(actuals["y"].alias("q0.5"))
    for name, frame in {"actuals": actuals, "forecasts": forecasts}.items():
        frame.write_csv(tmp_path / f"{name}.csv")
    found = evaluate(tmp_path / "forecasts.csv", tmp_path / "actuals.csv")
    assert found.equals(evaluate(forecasts, actuals))


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1", "", "-3"], [1, None, -3]),
        (["1", "NA", "2.5e1"], [1.0, None, 25.0]),
        (["007", "12"], ["007", "12"]),  # a leading zero is part of a name
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),  # as is what float64 would round
        (["True", "false", ""], [True, False, None]),
        (["NA", "yes", ""], ["NA", "yes", None]),
        (["2024-01-07", "2024-01-14"], [dt.date(2024, 1, 7), dt.date(2024, 1, 14)]),
        (["3/1/2024", "1/14/2024"], [dt.date(2024, 3, 1), dt.date(2024, 1, 14)]),  # the second shows the month first
        (["3/1/2024", "14/1/2024"], [dt.date(2024, 1, 3), dt.date(2024, 1, 14)]),
        (["2024-01-07 13:00", "2024-01-07 14:30"], [dt.datetime(2024, 1, 7, 13), dt.datetime(2024, 1, 7, 14, 30)]),
        (["07/01/24", "14/01/24"], ["07/01/24", "14/01/24"]),
    ],
)
def test_a_column_has_the_one_type_that_all_its_values_have(tmp_path, texts, values):
    assert column(tmp_path, *texts) == values


@pytest.mark.parametrize("texts", [("2024-05", "2024-06"), ("2024/05", "2024/06"), ("05/2024", "06/2024")])
def test_months_are_their_first_days(tmp_path, texts):
    assert column(tmp_path, *texts) == [dt.date(2024, 5, 1), dt.date(2024, 6, 1)]


@pytest.mark.parametrize("texts", [("2024-W05", "2020-W53"), ("2024W05", "2020W53"), ("2024 KW 05", "2020 KW 53")])
def test_weeks_are_their_sundays(tmp_path, texts):
    assert column(tmp_path, *texts) == [dt.date(2024, 2, 4), dt.date(2021, 1, 3)]
    assert column(tmp_path, *texts, "2021-W53") == [*texts, "2021-W53"]  # a year without such a week


def test_offsets_become_one_zone(tmp_path):
    found = column(tmp_path, "2024-01-07T01:00:00+01:00", "2024-07-07T01:00:00+02:00")
    assert [value.isoformat() for value in found] == ["2024-01-07T00:00:00+00:00", "2024-07-06T23:00:00+00:00"]


# -- mistakes ----------------------------------------------------------------------------------------------------------

HEAD = "unique_id,ds,y\nA,2024-01-07,1\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (HEAD + "A,2024-01-14,many\nA,2024-01-21,2\n", r"target column 'y' holds text \(.*sales.csv, row 3: 'many'\)"),
        (HEAD + "A,2024-13-14,1\n", r"time column 'ds' holds text \(.*sales.csv, row 3: '2024-13-14'\), not dates"),
        ("unique_id,ds,y\nA,3/4/2024,1\n", r"row 2: in '3/4/2024', which is the day\?\), not dates; write dates as"),
        (HEAD + "A,2024-01-14\n", r"sales.csv is not a readable CSV file \(row 3: Expected 3 columns, got 2"),
        (HEAD + "A,,1\n", r"column 'ds': .*sales.csv, row 3 has no value"),
        ("unique_id,ds,ds\nA,2024-01-07,1\n", r"sales.csv has two columns named 'ds'"),
        ("unique_id,ds,y\n", "sales.csv has no rows"),
        ("", "sales.csv is not a readable CSV file"),
    ],
)
def test_mistakes_name_the_file_the_column_and_the_row(tmp_path, text, match):
    with pytest.raises(errors.MqcastError, match=match):
        Panel.from_frame(written(tmp_path, text))


def test_a_text_among_prices_is_told_unless_the_column_is_said_to_be_a_category(sales, tmp_path, monkeypatch):
    texts = [*sales["price"].cast(pl.String).to_list()[:-2], "9,3,1", "9.2"]
    path = written(tmp_path, sales.with_columns(price=pl.Series(texts)).write_csv())
    for block in (200, 2**20):
        monkeypatch.setattr("mqcast.data.csv_files.BLOCK_BYTES", block)
        with pytest.warns(errors.MixedColumnWarning, match=r"'price' is read as categories.*row 16: '9,3,1'.*kinds="):
            Panel.from_frame(path, SCHEMA)
        said = Panel.from_frame(path, SCHEMA.replace(kinds={"price": "category"}))
        assert "9,3,1" in said.vocabularies["price"]


def test_a_panel_of_excel_is_that_of_csv_bit_for_bit(sales, tmp_path, same_arrays):
    pytest.importorskip("openpyxl")
    (tmp_path / "sales.xlsx").write_bytes(excel_of(sales))
    same_arrays(Panel.from_frame(tmp_path / "sales.xlsx", SCHEMA), Panel.from_frame(sales, SCHEMA))


def test_dots_between_thousands_are_no_decimals(tmp_path):
    def read(*rows: str) -> list:
        return read_table(written(tmp_path, "\n".join(["units;price", *rows])))["units"].to_list()

    with pytest.raises(
        errors.SourceError, match=r"'units': .*row 3: '14\.000' may be thousands or a decimal, since 'pri"
    ):
        read("900;1,5", "14.000;1,7")
    assert read("900;1.5", "14.125;1.7") == [900.0, 14.125]
    assert read("900.5;1,5", "14.125;1,7") == [900.5, 14.125]


def test_two_rows_of_one_date_are_told_by_their_numbers(tmp_path):
    text = HEAD + "A,2024-01-14,2\nB,2024-01-07,1\nB,2024-01-14,1\nA,2024-01-14,3\n"
    with pytest.raises(errors.DuplicateRowsError, match=r"at 2024-01-14: 2 rows \(\S*sales.csv, rows 3 and 6\); aggr"):
        Panel.from_frame(written(tmp_path, text))
    shops = written(tmp_path, re.sub("^(A|B)", r"1,\1", text, flags=re.MULTILINE).replace("unique_id", "shop,item"))
    with pytest.raises(errors.DuplicateRowsError, match=r"series '1/A', .*2 rows \(\S*sales.csv, rows 3 and 6\)"):
        Panel.from_frame(with_joined_id(open_source(shops), "shop+item"), Schema(id="shop+item"))
    with pytest.raises(errors.DuplicateRowsError, match=r"series 'A', .*two rows for one date, .*csv, rows 3 and 6 "):
        read_actuals(written(tmp_path, text))
    written(tmp_path, HEAD + "A,2024-01-14,2\n", "parts/one.csv")
    written(tmp_path, HEAD.replace("A,2024-01-07", "A,2024-01-14"), "parts/two.csv")
    with pytest.raises(errors.DuplicateRowsError, match=r"2 rows \(\S*one.csv, row 3 and \S*two.csv, row 2\)"):
        Panel.from_frame(tmp_path / "parts")


def test_empty_rows_of_a_sheet_are_counted(tmp_path):
    import openpyxl

    book = openpyxl.Workbook()
    for row in (
        ["Sales of 2024"],
        ["unique_id", "ds", "y"],
        ["A", "2024-01-07", 1],
        [],
        ["A", "2024-01-07", 2],
        ["A", "2024-01-14", 2],
    ):
        book.active.append(row)
    book.save(tmp_path / "sales.xlsx")
    with pytest.raises(errors.DuplicateRowsError, match=r"sales.xlsx, rows 3 and 5\)"):
        Panel.from_frame(tmp_path / "sales.xlsx")


def test_a_row_is_counted_in_its_own_file(tmp_path):
    written(tmp_path, HEAD + "A,2024-01-14,2\n", "parts/one.csv")
    written(tmp_path, HEAD.replace("A", "B") + ",2024-01-14,2\n", "parts/two.csv")
    with pytest.raises(errors.MissingKeyError, match=r"two.csv, row 3 has no value"):
        Panel.from_frame(tmp_path / "parts")


@pytest.mark.parametrize("block", [20, 16 * 2**20])
@pytest.mark.parametrize("late", [False, True])
def test_what_excel_writes_in_western_europe_is_read_and_told(tmp_path, monkeypatch, block, late):
    monkeypatch.setattr("mqcast.data.csv_files.BLOCK_BYTES", block)
    name = "Preis" if late else "Preis (€)"
    text = f"Artikel;{name}\n" + "Tee;1,5\n" * 9 + "Gürtel – groß;2,5\n"
    (tmp_path / "plan.csv").write_bytes(text.encode("cp1252"))
    (tmp_path / "plan.csv.gz").write_bytes(gzip.compress(text.encode("cp1252")))
    for path in (tmp_path / "plan.csv", tmp_path / "plan.csv.gz", [tmp_path / "plan.csv"]):
        with pytest.warns(errors.GuessedEncodingWarning, match=r"plan.csv\S* is not UTF-8, and read as cp1252") as told:
            found = read_table(path)
        assert len(told) == 1
        assert found.row(-1, named=True) == {"Artikel": "Gürtel – groß", name: 2.5}


@pytest.mark.filterwarnings("error")
def test_a_letter_of_utf8_may_end_in_the_next_block(tmp_path, monkeypatch):
    for size in range(20, 24):
        monkeypatch.setattr("mqcast.data.csv_files.BLOCK_BYTES", size)
        assert read_table(written(tmp_path, "x\n" + "üüü\n" * 20))["x"].to_list() == ["üüü"] * 20


@pytest.mark.parametrize(
    "content", ["x,y\nä,1\n".encode("utf-16"), b"x,y\n\x81\xe4,1\n", b"PK\x03\x04\x00\x00\xff,1\n"]
)
def test_other_encodings_are_refused(tmp_path, content):
    (tmp_path / "other.csv").write_bytes(content)
    with pytest.raises(errors.SourceError, match=r"other.csv is neither UTF-8 nor cp1252; save it as UTF-8"):
        open_source(tmp_path / "other.csv")


def test_mixed_folders_are_refused(sales, tmp_path):
    sales.write_csv(tmp_path / "sales.csv")
    sales.write_parquet(tmp_path / "sales.parquet")
    with pytest.raises(errors.SourceError, match=r"sales.csv and sales.parquet"):
        open_source(tmp_path)


def test_an_excel_file_that_is_not_there_is_told(tmp_path):
    pytest.importorskip("openpyxl")
    with pytest.raises(errors.SourceError, match=r"no Excel file at .*none.xlsx; check the path"):
        open_source(tmp_path / "none.xlsx")


@pytest.mark.parametrize("value", ["1.234,5", "12,5", "1,234.5", "1.234.567", "1 234,5", "1'234.5"])
def test_numbers_with_commas_in_a_file_with_commas_are_told(tmp_path, value):
    path = written(tmp_path, f'unique_id,ds,y\nA,2024-01-07,"{value}"\nA,2024-01-14,900\n')
    with pytest.raises(errors.ColumnTypeError, match=rf"'y' holds text .*row 2: .{value}., which looks like .* 1234.5"):
        Panel.from_frame(path)


@pytest.mark.parametrize("values", [("007", "12"), ("A12", "3"), ("1,5", "many"), ("10.20.30", "1.2.3")])
def test_names_and_codes_do_not_look_like_numbers(tmp_path, values):
    path = written(tmp_path, "x;y\n" + "".join(f'"{value}",1\n' for value in values).replace(",1\n", ";1\n"))
    assert "looks like" not in open_source(path).oddity("x")


def test_notes_in_a_folder_are_no_table_but_a_named_text_file_is(sales, tmp_path, same_arrays):
    sales.write_parquet(tmp_path / "sales.parquet")
    written(tmp_path, "of the shop in Ulm", "notes.txt")
    wanted = Panel.from_frame(sales, SCHEMA)
    same_arrays(Panel.from_frame(tmp_path, SCHEMA), wanted)
    written(tmp_path, sales.write_csv(separator="\t"), "sales.txt")
    same_arrays(Panel.from_frame(tmp_path / "sales.txt", SCHEMA), wanted)


def test_quantiles_in_words_name_the_row(sales, tmp_path):
    path = written(tmp_path, "unique_id,cutoff,ds,q0.5\na,2024-01-07,2024-01-14,1\na,2024-01-14,2024-01-21,lots\n")
    with pytest.raises(errors.ColumnTypeError, match=r"the forecasts, column 'q0.5': .*sales.csv, row 3: 'lots'"):
        evaluate(path, sales)
