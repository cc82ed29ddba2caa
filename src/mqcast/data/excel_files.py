"""Excel files (.xlsx), read and written by openpyxl, which the extra `excel` installs."""

import importlib.util
import io
import zipfile
from pathlib import Path

import polars as pl

from mqcast.data.parquet_files import first_line
from mqcast.errors import ConfigError, SourceError

ENDING = ".xlsx"
MOST_ROWS = 1_048_575  # of a sheet, below the names of the columns


def has_openpyxl() -> bool:
    return importlib.util.find_spec("openpyxl") is not None


def read_excel(path: Path) -> pl.DataFrame:
    """The first sheet: names of columns in its first row, one type a column."""
    if not has_openpyxl():
        raise ConfigError(f'{path} needs openpyxl; `pip install "mqcast[excel]"`, or save it as CSV')
    from openpyxl import load_workbook
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        book = load_workbook(path, read_only=True, data_only=True)
        names, *rows = ([*row] for row in book.worksheets[0].iter_rows(values_only=True))
    except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile, InvalidFileException) as error:
        raise SourceError(f"{path} cannot be read as Excel ({first_line(error)})", "save it again, or as CSV") from None
    used = [i for i, name in enumerate(names) if name is not None]
    kept = [[row[i] for i in used] for row in rows if any(value is not None for value in row)]
    table = pl.DataFrame(
        kept, schema=[str(names[i]) for i in used], orient="row", infer_schema_length=None, strict=False
    )
    return table.select(_as_dates(table[name]) for name in table.columns)


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


def _as_dates(column: pl.Series) -> pl.Series:
    """Date-times of midnight as dates."""
    if not isinstance(column.dtype, pl.Datetime) or (column.dt.truncate("1d") != column).any():
        return column
    return column.dt.date()
