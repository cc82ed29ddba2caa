"""A first TOML file from a look at a user's data: roles guessed, settings shown, every line explained."""

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pyarrow as pa

from mqcast.data.joined import PLUS, id_columns, with_joined_id
from mqcast.data.panel import pack
from mqcast.data.plan import with_plan
from mqcast.data.schema import Schema, is_numeric, is_text, plain_type, words_for
from mqcast.data.source import AN_INDEX, Source, open_source, read_table
from mqcast.data.values import as_codes, as_text, words_of_flag
from mqcast.errors import ColumnTypeError, DataError, MissingColumnError, MqcastError, quoted
from mqcast.models import DEFAULT
from mqcast.models.recipe import settings_for
from mqcast.settings import RunConfig, Settings

IDS = (
    "unique_id",
    "item_id",
    "series_id",
    "ts_id",
    "sku",
    "item",
    "product",
    "article",
    "store",
    "shop",
    "id",
    "artikel",
    "produkt",
    "filiale",
    "markt",
)
TIMES = (
    *("ds", "date", "timestamp", "datetime", "week", "time", "day", "month"),
    *("datum", "woche", "tag", "monat", "zeit"),
)
TARGETS = (
    "y",
    "target",
    "sales",
    "demand",
    "units",
    "quantity",
    "qty",
    "sold",
    "count",
    "cnt",
    "orders",
    "volume",
    "revenue",
    "turnover",
    "consumption",
    "value",
    *("absatz", "menge", "verkauf", "verkäufe", "stück", "nachfrage", "umsatz"),
)
PLANNED = {  # words in the names of columns that are known ahead, if someone plans them
    *("promo", "promotion", "promotions", "onpromotion", "price", "prices", "discount", "markdown"),
    *("holiday", "holidays", "event", "feature", "display", "open", "aktion", "preis", "rabatt"),
}
MOST_ID_COLUMNS, MOST_CANDIDATES = 3, 8
FEW_DOUBLED = 0.02  # rows that an id and the date name twice by mistake, as a share of all
NUMBER_WITH_UNIT = r"^\D{0,4}\d[\d.,'’\s]*\D{0,12}$"
A_DATE = r"\d{4}-\d\d(-\d\d)?|\d\d?[./]\d\d?[./]\d{4}"
HAS_GAPS = "it has missing values"
ONE_SERIES = "series"  # the id of data without one
SHOWN = {
    "window": ("history", "num_fcts", "batch_size"),
    "scaling": ("by", "log1p", "zeros"),
    "model": ("hidden_dim", "members", "lookback", "encoder_dilations", "position_dilations", "dropout"),
    "train": ("learning_rate", "schedule", "max_steps", "seed"),
}


@dataclass(frozen=True)
class Look:
    """What was seen of the data: which role each column seems to have, and why; and why some have none.

    flags: the words for 1 and 0 of texts that say yes and no
    """

    source: Source
    schema: Schema
    left_out: dict[str, str]
    why: dict[str, str]
    flags: dict[str, tuple[str, str]]

    def words_of(self, name: str) -> str:
        """How the words of a flag are read; empty for other columns."""
        words = self.flags.get(name)
        return "" if words is None else f"{quoted(words[0])} is 1, {quoted(words[1])} is 0"


def look_at(
    source: Source,
    id: str | None,
    time: str | None,
    target: str | None,
    said: Mapping[str, Sequence[str]] | None = None,
) -> Look:
    """Guess the roles by all rows. Known: has values after the last target. Static: one value a series. Else: past.

    id: a column, or several as `store+item`, which are joined. said: columns of the roles known, past and static.
    """
    types = {name: plain_type(source.type_of(name)) for name in source.names if not AN_INDEX.fullmatch(name)}
    _check_names(id, time, target, said or {}, list(types))
    if not source.num_rows:
        raise DataError("there is not one row", "look at data that have some")
    dates = [name for name, kind in types.items() if pa.types.is_timestamp(kind) or pa.types.is_date(kind)]
    numbers = [name for name, kind in types.items() if is_numeric(kind) and not pa.types.is_boolean(kind)]
    if target is not None and target not in numbers:
        held = words_for(types[target]) + (f" such as {_example(source, target)}" if is_text(types[target]) else "")
        raise ColumnTypeError(f"the target {target!r} holds {held}, not numbers; write numbers alone, or name another")
    why = {role: "as you said" for role, name in {"id": id, "time": time, "target": target}.items() if name}
    taken = {name for names in (said or {}).values() for name in names}
    time = time or _found(TIMES, dates, "time", "dates", source, taken)
    if re.fullmatch(A_DATE, time):
        raise MissingColumnError(f"the first row holds values such as {time}, no names; add a row of names above it")
    taken |= {*(id or "").split(PLUS), *IDS}
    free = [name for name in numbers if name not in taken]
    target = target or _found(TARGETS, free, "target", "numbers", source, taken)
    whole = [name for name, kind in types.items() if is_text(kind) or pa.types.is_integer(kind)]
    id = id or _id(source, time, [name for name in whole if name not in (time, target)])
    parts = id_columns(id, source.names)
    source = with_joined_id(source, id) if id in source.names or parts else _as_one_series(source, id)
    others = [name for name in types if name not in (id, time, target)]
    roles, left_out, reasons = _roles(source, id, time, target, others, said or {})
    left_out |= {name: "an index" for name in source.names if name not in types and name != id}
    guessed = {
        "time": "by its name and its dates",
        "target": "by its name",
        "id": "with the date, it names each row once",
    }
    why = {name: why.get(role, guessed[role]) for role, name in {"id": id, "time": time, "target": target}.items()}
    why |= reasons | dict.fromkeys(parts, "part of the id")
    schema = Schema(id=id, time=time, target=target, **roles)
    return Look(source, schema, left_out, why, _flags(source, (*schema.past, *schema.known)))


def _flags(source: Source, names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The words of those texts that say yes and no."""
    found = {name: _words_of_flag(source, name) for name in names}
    return {name: words for name, words in found.items() if words}


def _words_of_flag(source: Source, name: str) -> tuple[str, str] | None:
    if not is_text(plain_type(source.type_of(name))):
        return None
    return words_of_flag(text for text in as_text(as_codes(source.column(name))[1]) if text is not None)


def with_plan_looked_at(look: Look, future: Any, said: Mapping[str, Sequence[str]] | None = None) -> Look:
    """The same look at the rows and those of a plan in a second file: which columns does it have?"""
    schema, why = look.schema, look.why
    rows = with_plan(look.source, open_source(future), schema)
    look = look_at(rows, schema.id, schema.time, schema.target, said)
    return replace(look, why=look.why | {name: why[name] for name in (schema.id, schema.time, schema.target)})


def _check_names(
    id: str | None, time: str | None, target: str | None, said: Mapping[str, Sequence[str]], names: list[str]
) -> None:
    wanted = [("time", time), ("target", target), *((role, name) for role, listed in said.items() for name in listed)]
    wanted += [("id", part) for part in ([id] if id in names or not id else id.split(PLUS))]
    for role, name in wanted:
        if name is not None and name not in names:
            raise MissingColumnError(f"no column {name!r} to be the {role}; there are {', '.join(names)}")


def _id(source: Source, time: str, candidates: list[str]) -> str:
    """The column that tells series apart, with the date: it names each row once. Or the columns that do it together.

    Where each date has one row, it is a column with one value, or one that is yet to be added.
    """
    dates = pl.Series(source.column(time))
    if not dates.is_duplicated().any():
        same = [name for name in candidates if pl.Series(source.column(name)).n_unique() == 1]
        return min(same, key=_rank_of_id, default=ONE_SERIES)
    if not candidates:
        raise MissingColumnError("the id column cannot be guessed since no column holds names; name it: --id")
    codes = pl.DataFrame({name: as_codes(source.column(name))[0] for name in candidates})
    codes = codes.select(pl.all().cast(pl.Int64)).with_columns(dates.alias(time))
    ordered = sorted(candidates, key=_rank_of_id)
    series = [name for name in ordered if codes[name].n_unique() < max(2, source.num_rows)]  # no number of the row
    for size in range(1, MOST_ID_COLUMNS + 1):
        for names in combinations(series if size == 1 else series[:MOST_CANDIDATES], size):
            if not codes.select(*names, time).is_duplicated().any():
                return PLUS.join(sorted(names, key=candidates.index))  # in the order of the data
    named = [name for name in ordered if name.lower() in IDS]
    if len(named) == 1 or len(candidates) == 1:
        return (named or candidates)[0]  # its doubled rows are told when the data are packed
    for size in range(1, MOST_ID_COLUMNS + 1):
        for names in combinations(series[:MOST_CANDIDATES], size):
            if codes.select(*names, time).is_duplicated().sum() <= FEW_DOUBLED * codes.height:
                return PLUS.join(sorted(names, key=candidates.index))
    raise MissingColumnError(f"the id column cannot be guessed among {', '.join(candidates)}; name it: --id")


def _as_one_series(source: Source, id: str) -> Source:
    """The same rows with a column that has one name for all of them."""
    return open_source(read_table(source).with_columns(pl.lit("all").alias(id)), source.what, made_from=source)


def _rank_of_id(name: str) -> int:
    """Columns that are called like an id come first, then those with such a word in their name."""
    if name.lower() in IDS:
        return IDS.index(name.lower())
    return len(IDS) + (not set(words_in(name)) & set(IDS))


def _roles(
    source: Source, id: str, time: str, target: str, others: list[str], said: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The columns of each role, those without one and why, and why the others have theirs."""
    rows = pl.DataFrame({"id": as_codes(source.column(id))[0], "time": pl.Series(source.column(time))})
    rows = rows.with_columns(pl.Series(source.column(target)).cast(pl.Float64).fill_nan(None).alias("y"))
    last = rows.filter(pl.col("y").is_not_null())["time"].max()
    is_late = (rows["time"] > last).fill_null(False) if last is not None else rows["y"].is_null() & False
    roles: dict[str, list[str]] = {"static": [], "past": [], "known": []}
    left_out: dict[str, str] = {}
    why: dict[str, str] = {}
    told = {name: role for role, names in said.items() for name in names}
    for name in others:
        kind = plain_type(source.type_of(name))
        if name in told:
            role, reason = told[name], "as you said"
        elif not is_numeric(kind) and not is_text(kind):
            left_out[name] = words_for(kind)
            continue
        elif not pa.types.is_boolean(kind) and pl.Series(source.column(name)).n_unique() == 1:
            left_out[name] = "one value everywhere"
            continue
        else:
            says_yes = pa.types.is_boolean(kind) or _words_of_flag(source, name) is not None
            role, reason = _role(pl.Series(source.column(name)), rows["id"], is_late, says_yes)
        roles[role].append(name)
        why[name] = reason
    return {role: tuple(names) for role, names in roles.items()}, left_out, why


def _role(column: pl.Series, ids: pl.Series, is_late: pl.Series, says_yes: bool) -> tuple[str, str]:
    """The role of one column by its values, those after the last sale among them, and why."""
    column = column.fill_nan(None) if column.dtype.is_float() else column
    varied = pl.DataFrame({"id": ids, "x": column}).drop_nulls().group_by("id").agg(pl.col("x").n_unique())
    planned, is_static = column.filter(is_late), varied["x"].max() == 1 and column.drop_nulls().n_unique() > 1
    has_gaps = planned.null_count() > 0
    if column.null_count() > planned.null_count() or (has_gaps and (is_static or not planned.count())):
        return "past", HAS_GAPS
    if is_static:
        return "static", "one value a series"
    if planned.count():
        return "known", "it has values after the last sale" + (", though not in all rows" if has_gaps else "")
    return ("known", "true or false") if says_yes else ("past", "it ends with the sales")


def starter_toml(
    look: Look, horizon: int, what: str, quantiles: Sequence[float] = (0.5, 0.9)
) -> tuple[str, MqcastError | None]:
    """The file's text, and why the data cannot be packed like this, if so. All rows are packed to find out."""
    schema, settings, trouble = look.schema, None, None
    try:
        with tempfile.TemporaryDirectory(prefix="mqcast-init-") as folder:
            panel = pack(look.source, Path(folder) / "panel", schema)
            schema = panel.schema.replace(kinds={})
            settings = settings_for(panel, DEFAULT, horizon, tuple(quantiles)).config
            del panel
    except MqcastError as error:
        trouble = error
    lines = [f"# A first look at {what}: check the roles, then", "#   mqcast pack FILE panel --config THIS", ""]
    lines += ["# What the columns mean.", "[schema]", *_lines(schema, ("target", "id", "time", "freq"))]
    lines += [f"# The data cannot be packed like this: {trouble}"] if trouble else []
    lines += ["", "# Known up to the date of a forecast, and not after: weather, visitors.", _line(schema, "past")]
    lines += [
        "# Known as far ahead as the horizon: promotions, prices, openings. Give rows for the future, without target.",
        _line(schema, "known"),
        "# What a missing value of a known column means: fill = { markdown = 0 }",
        "# One value a series.",
        _line(schema, "static"),
        '# Countries or regions, such as "US" or "DE-BY".',
        _line(schema, "holidays"),
    ]
    lines += [f"# Flags: {'; '.join(f'{name}: {look.words_of(name)}' for name in look.flags)}."] * bool(look.flags)
    lines += [f"# Left out: {', '.join(f'{name} ({why})' for name, why in look.left_out.items())}."] * bool(
        look.left_out
    )
    return "\n".join([*lines, *_settings(horizon, quantiles, settings)]) + "\n", trouble


def _settings(horizon: int, quantiles: Sequence[float], fitting: RunConfig | None) -> list[str]:
    """What to forecast; and as comments the settings that follow from the data, which `fit` finds by itself."""
    lines = ["", "# What to forecast. All other settings follow from the data when a network is fitted, as in Python."]
    lines += ["# As the data are, they would be those that are written as comments: remove the sign to say otherwise."]
    said = {"window": [f"horizon = {horizon}"], "model": [f'model = "{DEFAULT}"', f"quantiles = {list(quantiles)}"]}
    for table, names in SHOWN.items():
        comments = [] if fitting is None else [f"# {line}" for line in _lines(getattr(fitting, table), names)]
        lines += ["", f"[{table}]", *said.get(table, []), *comments]
    return lines


def _found(
    wanted: tuple[str, ...], candidates: list[str], role: str, kind: str, source: Source, taken: set[str]
) -> str:
    """The candidate with a wanted name or, failing that, with a wanted word in its name.

    A column that would have been chosen, had not a value made it text, is told in place of choosing another.
    """
    mixed = [name for name in source.names if source.is_mixed(name) and name not in taken]
    others = [name for name in source.names if name not in (*mixed, *taken)]
    with_units = [name for name in others if role == "target" and _has_units(source, name)]
    named = _named(wanted, [*candidates, *mixed, *with_units]) or (candidates[0] if len(candidates) == 1 else None)
    if named in candidates:
        return named
    seen = f"among {', '.join(candidates)}" if candidates else f"since no column holds {kind}"
    remedy = _remedy(role, source, [named] if named and named not in with_units else mixed)
    if named in with_units:
        held = f"{quoted(named)} holds text such as {_example(source, named)}"
        remedy = f"{held}; write the numbers alone, or name another: --{role}"
    raise MissingColumnError(f"the {role} column cannot be guessed {seen}; {remedy}")


def _named(wanted: tuple[str, ...], names: list[str]) -> str | None:
    for word in wanted:
        if exact := [name for name in names if name.lower() == word]:
            return exact[0]
    for word in wanted:
        if near := [name for name in names if word in words_in(name)]:
            return near[0]
    return None


def _remedy(role: str, source: Source, mixed: list[str]) -> str:
    """What to do if no column has a role: a value that made a column text is the likeliest reason."""
    if mixed:
        why = f"{quoted(mixed[0])} is text because of {source.oddity(mixed[0])}"
        return f"{why}; correct it, or name another: --{role}"
    if role == "time" and (numbers := next((name for name in source.names if _are_periods(source, name)), None)):
        return f"{quoted(numbers)} holds numbers such as 202405; write months as 2024-05 and weeks as 2024-W05"
    if role == "time" and (hidden := [name for name in source.index_names if name != "None"]):
        return f"the index holds {', '.join(map(quoted, hidden))}: call reset_index() first"
    texts = [name for name in source.names if is_text(plain_type(source.type_of(name)))]
    if role == "time" and (text := _named(TIMES, texts)):
        held = f"{quoted(text)} holds text such as {_example(source, text)}"
        return f"{held}; write dates as 2024-01-31, or parse them, for example with pd.to_datetime"
    of_dates = [name for name in source.names if re.fullmatch(A_DATE, name)]
    if len(of_dates) > 1:
        return (
            f"the columns {of_dates[0]}, {of_dates[1]} … are dates: give one row a series and date instead, for "
            "example by unpivot of polars, melt of pandas, or Power Query's unpivot in Excel"
        )
    return f"name it: --{role}"


def _example(source: Source, name: str) -> str:
    """The first value of a column, quoted."""
    return next((quoted(text) for text in as_text(as_codes(source.column(name))[1]) if text is not None), "nothing")


def _has_units(source: Source, name: str) -> bool:
    """Whether all values are texts of a number with something beside it: 12 pcs, € 3.50."""
    if not is_text(plain_type(source.type_of(name))):
        return False
    values = pl.Series(as_text(as_codes(source.column(name))[1]), dtype=pl.String).drop_nulls()
    return len(values) > 0 and bool(values.str.contains(NUMBER_WITH_UNIT).all())


def _are_periods(source: Source, name: str) -> bool:
    """Whether all values are numbers of a year and a month or week: 202405."""
    if not pa.types.is_integer(source.type_of(name)):
        return False
    values = pl.Series(source.column(name)).drop_nulls()
    return bool(((values // 100).is_between(1950, 2100) & (values % 100).is_between(1, 53)).all()) and len(values) > 0


def words_in(name: str) -> Iterable[str]:
    """`Weekly_Sales` and `weeklySales`: weekly, sales."""
    return re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())


def _lines(settings: Settings, names: tuple[str, ...]) -> list[str]:
    return [_line(settings, name) for name in names]


def _line(settings: Settings, name: str) -> str:
    field, value = type(settings).model_fields[name], getattr(settings, name)
    text = f"{name} = {_toml(value)}"
    options = [repr(option) for option in get_args(field.annotation) if isinstance(option, str)]
    about = field.description or (" or ".join(options) if options else "")
    return f"{text:<40} # {about}" if about else text


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else str(value)
