"""Excel files (.xlsx), read and written by openpyxl, which the extra `excel` installs."""

import datetime as dt
import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Any

import polars as pl

from mqcast import process
from mqcast.data.csv_files import CsvSource
from mqcast.data.parquet_files import first_line, refuse_repeated
from mqcast.errors import ConfigError, SourceError

MOST_ROWS = 1_048_575  # of a sheet, below the names of the columns


def has_openpyxl() -> bool:
    return importlib.util.find_spec("openpyxl") is not None


def read_excel(path: Path) -> CsvSource:
    """The first sheet, read as CSV is. The names of columns are in its first row, or below titles: in the first row of
    texts that is as wide as any."""
    if not has_openpyxl():
        raise ConfigError(f'{path} needs openpyxl; `pip install "mqcast[excel]"`, or save it as CSV')
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    if not path.is_file():
        raise SourceError(f"no Excel file at {path}", "check the path")
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        rows = [[*row] for row in book.worksheets[0].iter_rows(values_only=True)]
        first = _row_of_names(rows)
        names = rows[first]
    except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile, InvalidFileException) as error:
        raise SourceError(f"{path} cannot be read as Excel ({first_line(error)})", "save it again, or as CSV") from None
    used = [i for i, name in enumerate(names) if name is not None]
    below = {i: row for i, row in enumerate(rows[first + 1 :], first + 2) if any(value is not None for value in row)}
    columns = [_as_texts([row[i] for row in below.values()]) for i in used]
    headings = [str(_as_texts([names[i]])[0]) for i in used]
    refuse_repeated(headings, str(path))
    folder = process.new_temporary_folder()
    table = pl.DataFrame([pl.Series(name, column, pl.String) for name, column in zip(headings, columns, strict=True)])
    table.write_csv(folder / "sheet.csv")
    source = CsvSource([folder / "sheet.csv"], str(path), shown=str(path), rows=[*below])
    process.keep_as_long_as(source, folder)
    return source


def _as_texts(values: list[Any]) -> list[str | None]:
    """Values as they are written in CSV; date-times of midnight are dates, if all are."""
    times = [value for value in values if isinstance(value, dt.datetime)]
    in_days = all(value.time() == dt.time() for value in times)

    def text(value: Any) -> str | None:
        if isinstance(value, dt.datetime):
            return f"{value:%Y-%m-%d}" if in_days else value.isoformat()
        return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    return [text(value) for value in values]


def _row_of_names(rows: list[list[Any]]) -> int:
    widths = [sum(value is not None for value in row) for row in rows]
    full = widths.index(max(widths))
    return full if all(isinstance(value, str) for value in rows[full] if value is not None) else 0


def excel_of(table: pl.DataFrame) -> bytes:
    """A workbook of one sheet. Text is text, though it begin with an equals sign."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    book = Workbook(write_only=True)
    sheet = book.create_sheet("forecast")

    def cell(value: object) -> object:
        if not isinstance(value, str):
            return value
        made = WriteOnlyCell(sheet, value)
        made.data_type = "s"
        return made

    sheet.append(table.columns)
    for row in table.iter_rows():
        sheet.append([cell(value) for value in row])
    packed = io.BytesIO()
    book.save(packed)
    return packed.getvalue()
