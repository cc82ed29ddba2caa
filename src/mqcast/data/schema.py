"""The roles and kinds of the columns of a user's frame."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, field_validator, model_serializer, model_validator

from mqcast.data.frequency import Frequency
from mqcast.errors import ColumnTypeError, ConfigError, MqcastError, SchemaError, quoted
from mqcast.levels import level_of
from mqcast.settings import Names, Settings, nearest

Kind = Literal["number", "category", "flag"]
Role = Literal["static", "past", "known", "events"]
OF_FORECASTS = ("cutoff", "horizon")  # and q0.5 …: columns of every forecast
ROLES: tuple[Role, ...] = ("static", "past", "known", "events")
CALENDAR_FEATURES = (
    "minute_of_hour",
    "hour_of_day",
    "day_of_week",
    "day_of_month",
    "week_of_year",
    "month",
    "quarter",
)
YEAR_WAVE = "year_wave"
OF_THE_CALENDAR = (*CALENDAR_FEATURES, YEAR_WAVE)


class Schema(Settings):
    """The roles of columns. Only target, id and time are required; their default names are Nixtla's.

    >>> from mqcast import Schema
    >>> schema = Schema(target="units", id="item", time="week", known=["price", "promo"], holidays=["US"])
    >>> schema.replace(freq="W").freq
    'W'
    """

    error_type: ClassVar[type[MqcastError]] = SchemaError

    target: str = Field(default="y", description="what is forecast")
    id: str = Field(default="unique_id", description="which series a row belongs to")
    time: str = Field(default="ds", description="the row's date")
    freq: str | None = Field(default=None, description="'h', 'D', 'W-SUN', 'MS' …; None: inferred from the dates")
    static: Names = Field(default=(), description="one value per series; the id may be one of them")
    past: Names = Field(default=(), description="observed up to the creation time, unknown after it")
    known: Names = Field(default=(), description="per series, known as far ahead as the horizon: promotions, prices")
    events: Names = Field(default=(), description="the same for all series at a date: holidays, campaigns")
    fill: dict[str, bool | float | str] = Field(
        default={}, description="what a missing value of a known column means; the network is told that it was missing"
    )
    observed: str | None = Field(default=None, description="flag: False where demand was not observed (stock-out)")
    kinds: dict[str, Kind] = Field(default={}, description="the kind of a column, if its type does not show it")
    time_grid: Literal["calendar", "rows"] = Field(
        default="calendar", description="'rows': consecutive rows are consecutive steps (trading days)"
    )
    stamp: Literal["start", "end"] | None = Field(
        default=None, description="which end of its period a date stands for; None: by convention (weeks: the end)"
    )
    holidays: Names = Field(default=(), description="countries or regions of holidays: 'US', 'DE-BY'")
    calendar: Names | None = Field(
        default=None, description=f"of {', '.join(OF_THE_CALENDAR)} (cosines and sines); None: those that fit"
    )

    @classmethod
    def of(cls, schema: "Schema | Mapping[str, Any] | None") -> "Schema":
        """The schema from a Schema, a dictionary of its arguments, or None for the default names."""
        if isinstance(schema, Schema):
            return schema
        given: Any = {} if schema is None else schema
        if not isinstance(given, Mapping):
            raise ConfigError(f"schema is {quoted(schema)}; give a Schema, or a dictionary of its arguments")
        if strange := [name for name in given if not isinstance(name, str)]:
            raise SchemaError(f"schema has {quoted(strange[0])} for a name; name the arguments of Schema")
        return cls(**given)

    @field_validator("freq")
    @classmethod
    def _freq_is_known(cls, freq: str | None) -> str | None:
        return freq if freq is None else str(Frequency.parse(freq))

    @field_validator("calendar")
    @classmethod
    def _calendar_is_known(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name not in OF_THE_CALENDAR:
                near = nearest(name, OF_THE_CALENDAR)
                raise ValueError(f"no calendar feature {name!r}{near}; there are {', '.join(OF_THE_CALENDAR)}")
        return names

    @model_validator(mode="after")
    def _one_role_a_column(self) -> "Schema":
        seen: dict[str, str] = {}
        for role, name in self.roles():
            if name in seen and (role, name) != ("static", self.id):
                again = f"twice in {role}" if seen[name] == role else f"both {seen[name]} and {role}"
                raise ValueError(f"column {name!r} is {again}; give it one role, or copy it under another name")
            seen[name] = role
        refuse_taken({"id": self.id, "time": self.time}, (), "every forecast")
        for name in self.fill:
            if name not in self.known:
                raise ValueError(f"fill names {name!r}{nearest(name, self.known)}, which is not known; add it to known")
            if missing_flag(name) in seen:
                raise ValueError(f"column {missing_flag(name)!r} has the name of the flag that fill adds; rename it")
        for name in self.kinds:
            if name not in (*self.covariates(), *map(missing_flag, self.fill)):
                near = nearest(name, self.covariates())
                raise ValueError(f"kinds names {name!r}{near}, which has no role; add it to {', '.join(ROLES)}")
        return self

    @model_serializer(mode="wrap")
    def _without_empty_fill(self, dump: Any) -> dict[str, Any]:
        """Without fill, a schema is written as before there was one: fingerprints stay the same."""
        return {name: value for name, value in dump(self).items() if name != "fill" or value}

    def roles(self) -> list[tuple[str, str]]:
        """The (role, column) pairs of all columns, keys first."""
        single = [("id", self.id), ("time", self.time), ("target", self.target)]
        single += [("observed", self.observed)] if self.observed else []
        return single + [(role, name) for role in ROLES for name in getattr(self, role)]

    def covariates(self) -> tuple[str, ...]:
        return tuple(name for role in ROLES for name in getattr(self, role))

    def numbers(self, role: Role) -> tuple[str, ...]:
        """The numbers and flags of a role, in the order of the schema (kinds must be resolved).

        Known columns with a fill are followed by the flags of what was missing.
        """
        flags = map(missing_flag, self.fill if role == "known" else ())
        return (*(name for name in getattr(self, role) if self.kinds[name] != "category"), *flags)

    def categories(self, role: Role) -> tuple[str, ...]:
        return tuple(name for name in getattr(self, role) if self.kinds[name] == "category")

    def _kind_of_fill(self, name: str, type_: pa.DataType) -> Kind | None:
        """A text whose missing values are 0 or 1 says yes and no."""
        fill = self.fill.get(name)
        return "flag" if is_text(type_) and fill in (0, 1) else None

    def resolved(self, types: dict[str, pa.DataType]) -> "Schema":
        """The same schema with the kind of every covariate filled in from its type, and checked against it."""
        kinds = {}
        for role, name in self.roles():
            if role in ROLES:
                kinds[name] = _kind(
                    name, role, types[name], self.kinds.get(name) or self._kind_of_fill(name, types[name])
                )
        for name, value in self.fill.items():
            if isinstance(value, str) != (kinds[name] == "category") or (kinds[name] == "flag" and value not in (0, 1)):
                wanted = {"category": "text", "flag": "0 or 1", "number": "a number"}[kinds[name]]
                raise SchemaError(f"column {name!r} is a {kinds[name]}, but its fill is {quoted(value)}; give {wanted}")
            kinds[missing_flag(name)] = "flag"
        return self.replace(kinds=kinds)


def missing_flag(name: str) -> str:
    """The flag that tells where a known column was missing and has been filled."""
    return f"{name} (missing)"


def refuse_taken(ours: Mapping[str, str], columns: Collection[str], where: str) -> None:
    """Raise if the id or time column has the name of a column in the result, which would overwrite it."""
    for role, name in ours.items():
        if name in OF_FORECASTS or name in columns or level_of(name) is not None:
            raise SchemaError(
                f"the {role} column is called {quoted(name)}, like a column of {where}; rename yours, for example to "
                f"'{'unique_id' if role == 'id' else 'ds'}'"
            )


def plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a type has numbers, true/false, or only missing values."""
    kind = plain_type(kind)
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(is_(kind) for is_ in tests)


def is_text(kind: pa.DataType) -> bool:
    kind = plain_type(kind)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def words_for(kind: pa.DataType) -> str:
    """A type in words."""
    kind = plain_type(kind)
    words = {
        "text": is_text,
        "true/false": pa.types.is_boolean,
        "whole numbers": pa.types.is_integer,
        "numbers": is_numeric,
        "dates": lambda k: pa.types.is_timestamp(k) or pa.types.is_date(k),
        "durations": pa.types.is_duration,
        "times of day": pa.types.is_time,
        "lists": pa.types.is_nested,
    }
    return next((word for word, is_ in words.items() if is_(kind)), str(kind))


def _kind(name: str, role: str, type_: pa.DataType, declared: Kind | None) -> Kind:
    if pa.types.is_dictionary(type_) or is_text(type_):
        natural: Kind | None = "category"
    elif pa.types.is_boolean(type_):
        natural = "flag"
    else:
        natural = "number" if is_numeric(type_) else None
    if natural is None and not (declared == "category" and pa.types.is_date(type_)):
        raise ColumnTypeError(
            f"{role} column {name!r} holds {words_for(type_)}, not numbers, flags or categories; convert it"
        )
    if declared in ("number", "flag") and not is_numeric(type_) and not (declared == "flag" and is_text(type_)):
        raise ColumnTypeError(
            f"{role} column {name!r} is a {declared} but holds {words_for(type_)}; convert it to numbers"
        )
    return declared or natural or "category"
