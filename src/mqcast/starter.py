"""A first TOML file from a look at a user's data: roles guessed, settings fitted, every line explained."""

from dataclasses import dataclass
from typing import Any, get_args

import polars as pl

from mqcast.data.panel import Panel
from mqcast.data.schema import Schema
from mqcast.errors import ColumnTypeError, DataError, MissingColumnError, MqcastError
from mqcast.models import DEFAULT
from mqcast.models.recipe import settings_for
from mqcast.settings import RunConfig, Settings

IDS = ("unique_id", "item_id", "series_id", "sku", "store", "item", "id", "ts_id")
TIMES = ("ds", "date", "timestamp", "week", "time", "day", "month", "datetime")
TARGETS = ("y", "target", "sales", "demand", "units", "quantity", "qty", "sold", "value", "volume")
MOST_SERIES = 200
SHOWN = {
    "window": ("horizon", "history", "num_fcts", "batch_size"),
    "scaling": ("by", "log1p", "zeros"),
    "model": ("model", "quantiles", "hidden_dim", "lookback", "encoder_dilations", "position_dilations", "dropout"),
    "train": ("learning_rate", "schedule", "warmup_steps", "patience", "max_steps", "seed"),
}


@dataclass(frozen=True)
class Look:
    """What was seen of the data: a few of its series, and which role each column seems to have."""

    rows: pl.DataFrame
    schema: Schema
    left_out: list[str]


def look_at(data: pl.LazyFrame, id: str | None, time: str | None, target: str | None) -> Look:
    """Guess the roles. Known: has values where the target has none. Static: one value a series. Else: past."""
    types = data.collect_schema()
    dates = [name for name, kind in types.items() if kind.is_temporal()]
    numbers = [name for name, kind in types.items() if kind.is_numeric()]
    names: dict[str, Any] = {
        "time": time or _found(TIMES, dates, "time", "dates"),
        "id": id or _found(IDS, [name for name in types if name not in dates], "id", "names"),
    }
    names["target"] = target or _found(TARGETS, [name for name in numbers if name != names["id"]], "target", "numbers")
    for role, name in names.items():
        if name not in types:
            raise MissingColumnError(f"no column {name!r} to be the {role}; there are {', '.join(types)}")
    if names["target"] not in numbers:
        raise ColumnTypeError(
            f"the target {names['target']!r} holds {types[names['target']]}, not numbers; name another"
        )
    ids = data.select(names["id"]).unique().sort(names["id"]).head(MOST_SERIES).collect()
    rows = data.join(ids.lazy(), on=names["id"], how="semi").collect()
    if rows.is_empty():
        raise DataError("there is not one row", "look at data that have some", column=names["target"])
    others = [name for name in types if name not in names.values()]
    counts = rows.group_by(names["id"]).agg(pl.col(others).drop_nulls().n_unique()) if others else rows
    ahead = rows.filter(pl.col(names["target"]).is_null())
    static, past, known, left_out = [], [], [], []
    for name in others:
        if types[name].is_temporal() or types[name].is_nested():
            left_out.append(name)
        elif (counts[name] <= 1).all() and rows[name].n_unique() > 1 and rows[name].null_count() == 0:
            static.append(name)
        elif rows[name].null_count() == 0 and (len(ahead) or types[name] == pl.Boolean):
            known.append(name)
        else:
            past.append(name)
    schema = Schema(**names, static=tuple(static), past=tuple(past), known=tuple(known))
    return Look(rows, schema, left_out)


def starter_toml(look: Look, horizon: int, what: str) -> str:
    """The file's text."""
    schema = look.schema
    try:
        panel = Panel.from_frame(look.rows, schema)
        schema = panel.schema.replace(kinds={})
        settings: RunConfig | None = settings_for(panel, DEFAULT, horizon, (0.5, 0.9)).config
        trouble = ""
    except MqcastError as error:
        settings, trouble = None, f"# The data cannot be packed like this yet: {error}\n"
    lines = [f"# A first look at {what}: check the roles, then", "#   mqcast pack FILE panel --config THIS", ""]
    lines += ["# What the columns mean.", "[schema]", *_lines(schema, ("target", "id", "time", "freq"))]
    lines += [trouble] if trouble else []
    lines += ["", "# Steps before a forecast where these are known, and not after: weather, visitors."]
    lines += [_line(schema, "past")]
    lines += [
        "# Known as far ahead as the horizon: promotions, prices, openings. Give rows for the future, without target."
    ]
    lines += [_line(schema, "known")]
    lines += ["# One value a series.", _line(schema, "static")]
    lines += ['# Countries or regions, such as "US" or "DE-BY".', _line(schema, "holidays")]
    if look.left_out:
        lines += [f"# Left out, since they are dates or lists: {', '.join(look.left_out)}."]
    if settings is not None:
        for table, names in SHOWN.items():
            lines += ["", f"[{table}]", *_lines(getattr(settings, table), names)]
    return "\n".join(lines) + "\n"


def _found(wanted: tuple[str, ...], candidates: list[str], role: str, kind: str) -> str:
    by_name = {name.lower(): name for name in candidates}
    for name in wanted:
        if name in by_name:
            return by_name[name]
    if len(candidates) == 1:
        return candidates[0]
    seen = f"among {', '.join(candidates)}" if candidates else f"since no column holds {kind}"
    raise MissingColumnError(f"the {role} column cannot be guessed {seen}; name it: --{role}")


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
