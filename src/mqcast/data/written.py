"""Tables as the content of files."""

import io

import polars as pl


def as_days(table: pl.DataFrame) -> pl.DataFrame:
    """Dates without a time of day as dates, and all of them without time zones."""
    days = [name for name, kind in table.schema.items() if isinstance(kind, pl.Datetime)]
    table = table.with_columns(pl.col(days).dt.replace_time_zone(None))
    whole = [name for name in days if (table[name].dt.truncate("1d") == table[name]).all()]
    return table.with_columns(pl.col(whole).dt.date())


def csv_of(table: pl.DataFrame) -> bytes:
    """CSV, with days as days unless they have a time zone."""
    has_zone = any(getattr(kind, "time_zone", None) for kind in table.dtypes)
    packed = io.BytesIO()
    (table if has_zone else as_days(table)).write_csv(packed)
    return packed.getvalue()
