"""CSV files as a source of rows: each column gets the one type that all its values have, and dates are parsed.

The files are read twice: once for the types, once to write them as Parquet to a temporary folder, which is then read
like any Parquet file. Memory holds one block of rows.
"""

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from mqcast import process
from mqcast.data.parquet_files import ParquetSource, first_line, refuse_repeated
from mqcast.errors import GuessedEncodingWarning, SourceError, quoted, warn

CSV_ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
TEXT_ENDINGS = (".txt", ".txt.gz")  # a table if it is named, but not in a folder, which may have notes
EXCEL_ENDING = ".xlsx"  # one sheet, read as CSV is
BLOCK_BYTES = 16 * 2**20
DELIMITERS = ",;\t|"
BELOW_NAMES = range(2, 2**62)  # the rows of a file without titles
THOUSANDS = r"^[+-]?[1-9]\d{0,2}\.\d{3}$"
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None", "<NA>")  # but for text: only empty
WHOLE = r"^[+-]?(?:0|[1-9]\d{0,17})$"  # 007 is a name
NUMBER = r"(?i)^[+-]?(?:(?:0|[1-9]\d{0,17})(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?$|^[+-]?inf(?:inity)?$"
SIGNED = (  # perhaps with a decimal comma, or signs between thousands
    r"^[+-]?(?:\d+(?:[.,]\d+)?|\d{1,3}(?:[.'’\s]\d{3})+(?:,\d+)?|\d{1,3}(?:[,'’\s]\d{3})+(?:\.\d+)?)$"
)
UTF8, OF_EXCEL = "utf8", "cp1252"  # what Excel in Western Europe writes, unless it is told to write UTF-8
DAY_FIRST, MONTH_FIRST = "%d/%m/%Y", "%m/%d/%Y"
DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", DAY_FIRST, MONTH_FIRST)
TIMES = ("", " %H:%M", " %H:%M:%S%.f", "T%H:%M", "T%H:%M:%S%.f")
ZONED = ("%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S%.f%#z")
DATES = (*(day + time for time in TIMES for day in DAYS), *ZONED)
MONTH, WEEK = "month", "ISO week"  # 2024-05, its first day, and 2024-W05, its last: dates stand for these by convention
PERIODS = {
    MONTH: (
        r"^(?:(?<year>\d{4})[-/](?<part>0[1-9]|1[0-2])|(?<part2>0[1-9]|1[0-2])/(?<year2>\d{4}))$",
        "-01",
        "%Y-%m-%d",
    ),
    WEEK: (r"^(?<year>\d{4})[-/ ]?(?:W|KW) ?(?<part>0[1-9]|[1-4]\d|5[0-3])$", "-7", "%G-%V-%u"),
}
TYPES = ("whole number", "number", "flag", *DATES, *PERIODS)  # the first that fits all values; none: text


class CsvSource(ParquetSource):
    """CSV files with a header, separated by commas, semicolons, tabs or bars, perhaps compressed by gzip."""

    def __init__(
        self, files: Sequence[Path], what: str, *, shown: str | None = None, rows: Sequence[int] = BELOW_NAMES
    ):
        """`shown` and `rows`: what errors call the one file, and the numbers of its rows below the names."""
        import pyarrow.parquet as pq  # slow to import

        self._csv = [_File.of(file, shown or str(file), rows) for file in files]
        _warn_of_encodings(self._csv)
        names = list(dict.fromkeys(name for file in self._csv for name in file.names))
        self._columns = {name: _Column(name) for name in names}
        self._rows: list[int] = []  # of each file
        for file in self._csv:
            self._rows.append(0)
            for block in file.blocks():
                for name in file.names:
                    self._columns[name].see(block[name], file, self._rows[-1])
                self._rows[-1] += block.height
        _refuse_thousands(list(self._columns.values()))
        folder = process.new_temporary_folder()
        process.keep_as_long_as(self, folder)
        path, writer = folder / "rows.parquet", None
        for file in self._csv:
            for block in file.blocks():
                texts = {name: block[name] if name in block.columns else _nothing(block.height) for name in names}
                arrays = {name: self._columns[name].typed(text, file.decimal_comma) for name, text in texts.items()}
                table = pa.table(arrays)
                writer = writer or pq.ParquetWriter(path, table.schema)
                writer.write_table(table)
        if writer is None:
            pq.write_table(pa.table({name: pa.array([], pa.string()) for name in names}), path)
        else:
            writer.close()
        super().__init__([path], what)

    def place(self, row: int) -> str:
        for file, num_rows in zip(self._csv, self._rows, strict=True):
            if row < num_rows:
                return file.place(row)
            row -= num_rows
        raise IndexError(row)

    def oddity(self, name: str) -> str:
        column = self._columns[name]
        hint = ", which looks like a number with a comma or a sign between thousands; write 1234.5"
        return column.why_text + (hint if column.is_signed else "")

    def is_mixed(self, name: str) -> bool:
        return self._columns[name].is_mixed or self._columns[name].is_signed


@dataclass(frozen=True)
class _File:
    path: Path
    names: list[str]
    delimiter: str
    shown: str
    rows: Sequence[int]
    encoding: str = UTF8

    @classmethod
    def of(cls, path: Path, shown: str, rows: Sequence[int]) -> "_File":
        try:
            with pa.input_stream(str(path)) as stream:
                start = stream.read(2**16).decode("utf-8-sig", errors="ignore")
            encoding = _encoding(path)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{path} cannot be read ({first_line(error)})", "write it again") from None
        unquoted = re.sub(r'"[^"]*"', "", start.partition("\n")[0])
        file = cls(path, [], max(DELIMITERS, key=unquoted.count), shown, rows, encoding)
        with file._reader() as reader:
            names = reader.schema.names
        refuse_repeated(names, str(path))
        return replace(file, names=names)

    @property
    def decimal_comma(self) -> bool:
        return self.delimiter != ","

    def place(self, row: int) -> str:
        return f"{self.shown}, row {self.rows[row]}"  # as in a spreadsheet

    def _reader(self) -> Any:
        import pyarrow.csv as pacsv  # slow to import

        text: dict[str, pa.DataType] = dict.fromkeys(self.names, pa.string())
        try:
            return pacsv.open_csv(
                pa.input_stream(str(self.path)),
                pacsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, encoding=self.encoding),
                pacsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                pacsv.ConvertOptions(column_types=text, strings_can_be_null=False),
            )
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from None

    def blocks(self) -> Iterator[pl.DataFrame]:
        """The rows as text, some at a time."""
        with self._reader() as reader:
            try:
                for batch in reader:
                    frame = pl.DataFrame({name: pl.Series(batch.column(name)) for name in self.names})
                    if frame.height:
                        yield frame
            except (pa.ArrowException, OSError) as error:
                raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> SourceError:
        reason = first_line(error).removeprefix("CSV parse error: ").replace("Row #", "row ")
        remedy = "write it again, with as many values in each row as names"
        return SourceError(f"{self.path} is not a readable CSV file ({reason})", remedy)


def _encoding(path: Path) -> str:
    """UTF-8 or, if the file is not, what Excel in Western Europe writes."""
    for encoding in (UTF8, OF_EXCEL):
        if _is_in(path, encoding):
            return encoding
    raise SourceError(f"{path} is neither UTF-8 nor {OF_EXCEL}", "save it as UTF-8")


def _is_in(path: Path, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    with pa.input_stream(str(path)) as stream:
        try:
            while part := stream.read(BLOCK_BYTES):
                if "\0" in decoder.decode(part) and encoding != UTF8:
                    return False  # it is UTF-16, or no text
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _warn_of_encodings(files: list[_File]) -> None:
    if others := [file for file in files if file.encoding != UTF8]:
        more = f" and {len(others) - 1} more files are" if len(others) > 1 else " is"
        warn(
            f"{others[0].shown}{more} not UTF-8, and read as {OF_EXCEL}, which Excel in Western Europe writes; if "
            "letters look wrong, save as UTF-8",
            GuessedEncodingWarning,
        )


@dataclass
class _Column:
    """The types that all values so far can have; `why_text` tells what made a column text."""

    name: str
    types: list[str] = field(default_factory=lambda: list(TYPES))
    why_text: str = ""
    is_mixed: bool = False  # text, though the first values are not
    has_comma: bool = False  # in some value
    dotted: str = ""  # the place of the first value with a dot
    like_thousands: bool = True  # all values with a dot look like 14.000
    may_be_signed: bool = True  # all values look like numbers, perhaps with commas or signs between thousands

    def see(self, texts: pl.Series, file: _File, before: int) -> None:
        """Look at more values, the first of which is in row `before` of the file."""
        if not self.types and not self.may_be_signed:
            return
        text = texts.str.strip_chars()
        there = (~text.is_in(MISSING)).arg_true()
        if there.is_empty():
            return
        values = text.gather(there)
        self.may_be_signed = self.may_be_signed and bool(values.str.contains(SIGNED).all())
        if not self.types:
            return
        if file.decimal_comma and "number" in self.types:
            self._see_signs(values, there, file, before)
        now = [kind for kind in self.types if _fits(values.head(1), kind, file.decimal_comma).all()]
        fits = {kind: _fits(values, kind, file.decimal_comma) for kind in now}
        left = [kind for kind in now if fits[kind].all()]
        if not left:
            self.is_mixed = bool(now) or len(self.types) < len(TYPES)
            row = max((int((~fits[kind]).arg_max() or 0) for kind in now), default=0)  # where the last type fails
            self.why_text = f"{file.place(before + int(there[row]))}: {quoted(values[row])}"
        self.types = left
        if left and self.kind is None:
            self.why_text = f"{file.place(before + int(there[0]))}: in {quoted(values[0])}, which is the day?"

    def _see_signs(self, values: pl.Series, there: pl.Series, file: _File, before: int) -> None:
        """Look for commas and dots in what may be numbers."""
        has_dot = values.str.contains(".", literal=True)
        self.has_comma |= bool(values.str.contains(",", literal=True).any())
        self.like_thousands &= bool(values.filter(has_dot).str.contains(THOUSANDS).all())
        if not self.dotted and has_dot.any():
            row = int(has_dot.arg_max() or 0)
            self.dotted = f"{file.place(before + int(there[row]))}: {quoted(values[row])}"

    @property
    def is_signed(self) -> bool:
        """Text, though all values look like numbers, one of them with a comma or a sign between thousands."""
        return self.kind is None and self.may_be_signed and bool(re.search(r"\d[.,'’\s]\d", self.why_text))

    @property
    def kind(self) -> str | None:
        """The type; None: text, as are dates of which no value shows whether the day or the month is first."""
        if not self.types or (self.types[0] in DATES and {DAY_FIRST, MONTH_FIRST} <= {kind[:8] for kind in self.types}):
            return None
        return self.types[0]

    def typed(self, texts: pl.Series, decimal_comma: bool) -> pa.Array:
        """Values of the column's type."""
        kind, text = self.kind, texts.str.strip_chars()
        if kind is None:
            return texts.set(texts == "", None).to_arrow().cast(pa.string())
        text = text.set(text.is_in(MISSING), None)
        if kind == "whole number":
            return text.cast(pl.Int64).to_arrow()
        if kind == "number":
            return (text.str.replace(",", ".", literal=True) if decimal_comma else text).cast(pl.Float64).to_arrow()
        if kind == "flag":
            return (text.str.to_lowercase() == "true").to_arrow()
        if kind in PERIODS:
            return _days_of_periods(text, kind).to_arrow()
        dates = text.str.to_datetime(kind, time_unit="us")
        return (dates.dt.date() if kind in DAYS else dates).to_arrow()


def _refuse_thousands(columns: list[_Column]) -> None:
    """Raise if dots may separate thousands, since another column has decimal commas."""
    numbers = [column for column in columns if column.kind == "number"]
    commas = [column.name for column in numbers if column.has_comma]
    for column in numbers:
        if commas and column.dotted and column.like_thousands:
            raise SourceError(
                f"{column.dotted} may be thousands or a decimal, since {quoted(commas[0])} has decimal commas",
                "write numbers without a sign between thousands",
                column=column.name,
            )


def _fits(values: pl.Series, kind: str, decimal_comma: bool) -> pl.Series:
    """Which values have a type."""
    if kind == "whole number":
        return values.str.contains(WHOLE)
    if kind == "number":
        return (values.str.replace(",", ".", literal=True) if decimal_comma else values).str.contains(NUMBER)
    if kind == "flag":
        return values.str.to_lowercase().is_in(["true", "false"])
    if kind in PERIODS:
        return _days_of_periods(values, kind).is_not_null()
    dates = values.str.to_datetime(kind, time_unit="us", strict=False)
    return (dates.dt.year() >= 1000).fill_null(False)


def _days_of_periods(values: pl.Series, kind: str) -> pl.Series:
    """The day that stands for each month or week; missing where a value is none."""
    pattern, day, written = PERIODS[kind]
    parts = values.str.extract_groups(pattern).struct.unnest()
    year, part = (pl.coalesce(f"^{name}2?$") for name in ("year", "part"))
    return parts.select((year + "-" + part + day).str.to_date(written, strict=False)).to_series()


def _nothing(height: int) -> pl.Series:
    return pl.repeat("", height, eager=True)
