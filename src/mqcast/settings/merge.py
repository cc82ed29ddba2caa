"""Settings are merged here, and each value has an origin.

The order is: built-in < fits the data < preset < start from < file < arguments. What makes results comparable (horizon,
quantiles, dates) is `required`: nobody may contradict it.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from mqcast.errors import ConfigError, quoted
from mqcast.settings.base import NONE, Settings, nearest
from mqcast.settings.presets import PRESETS
from mqcast.settings.tables import ResearchConfig, RunConfig

Tables = Mapping[str, Mapping[str, Any]]
OTHER_TABLES = ("schema", "search")  # tables of a settings file that `pack` and `search` read
EXAMPLE = "{'train': {'seed': 1}}"
ARGUMENTS = {"window.horizon": "horizon", "model.quantiles": "quantiles", "model.model": "model"}


class Origin(IntEnum):
    """Where a value comes from; a later origin overrides an earlier one."""

    BUILT_IN = 0
    FITS_THE_DATA = 1
    PRESET = 2
    START_FROM = 3
    FILE = 4
    ARGUMENTS = 5
    FOLLOWS = 6

    @property
    def text(self) -> str:
        return {Origin.FOLLOWS: "follows from the others"}.get(self, self.name.lower().replace("_", " "))


@dataclass(frozen=True)
class Layer:
    """Tables of some settings, and their origin."""

    origin: Origin
    tables: Tables

    def __post_init__(self) -> None:
        for table, values in self.tables.items():
            if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in (table, *values)):
                raise ConfigError(f"config: {table} is {quoted(values)}; give tables of settings, such as {EXAMPLE}")

    def items(self) -> Iterator[tuple[str, Any]]:
        """Dotted names and values; switches of [model.research] that were written in [model] get their full name."""
        for table, values in self.tables.items():
            if table in OTHER_TABLES:
                continue
            for name, value in values.items():
                if table == "model" and name == "research":
                    yield from ((f"model.research.{inner}", one) for inner, one in dict(value).items())
                elif table == "model" and name.removeprefix("research.") in ResearchConfig.model_fields:
                    yield f"model.research.{name.removeprefix('research.')}", value
                else:
                    dotted = f"{table}.{name}"
                    yield dotted, None if dotted in _optional() and isinstance(value, str) and value == NONE else value


@cache
def _optional() -> frozenset[str]:
    """Settings that may be None, which TOML writes as "none"."""
    tables: dict[str, Any] = {table: field.annotation for table, field in RunConfig.model_fields.items()}
    return frozenset(f"{table}.{name}" for table, kind in tables.items() for name in kind.may_be_none())


@dataclass(frozen=True)
class Merged:
    """The settings of a run, and their origins by dotted name; those without an origin are built in."""

    config: RunConfig
    origins: Mapping[str, Origin]

    def with_whole_context(self) -> "Merged":
        """With windows that contain all the history their first forecast uses, unless the user has set `history`."""
        if self.origins.get("window.history", Origin.BUILT_IN) >= Origin.FILE:
            return self
        config = self.config.with_whole_context()
        if config == self.config:
            return self
        return replace(self, config=config, origins={**self.origins, "window.history": Origin.FOLLOWS})

    def rows(self) -> list[tuple[str, str, str]]:
        """Setting, value and origin of every setting, in the order of the tables."""
        named = _named(self.config)
        return [(name, str(value), self.origins.get(name, Origin.BUILT_IN).text) for name, value in named]

    def table(self) -> pl.DataFrame:
        return pl.DataFrame(self.rows(), schema=["setting", "value", "origin"], orient="row")


def merge(*layers: Layer, required: Mapping[str, Any] | None = None) -> Merged:
    """All settings of a run. Later layers override earlier ones; no layer may contradict the values in `required`."""
    origins = [layer.origin for layer in layers]
    assert origins == sorted(origins), "layers come in the order of their origins"
    values: dict[str, tuple[Any, Origin]] = {}
    for layer in layers:
        for name, value in layer.items():
            _refuse_contradiction(name, value, (required or {}).get(name, value))
            values[name] = value, layer.origin
    for name, value in (required or {}).items():
        values[name] = value, values.get(name, (value, Origin.ARGUMENTS))[1]
    known = {*RunConfig.model_fields, *OTHER_TABLES}
    tables: dict[str, Any] = {name: {} for layer in layers for name in layer.tables if name not in known}  # refused
    for name, (value, _) in values.items():
        *path, field = name.split(".")
        place = tables
        for part in path:
            place = place.setdefault(part, {})
        place[field] = value
    return Merged(RunConfig(**tables), {name: origin for name, (_, origin) in values.items()})


def preset_layers(name: Any) -> tuple[Layer, ...]:
    """The settings of a preset; none without a name."""
    if name is None:
        return ()
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(
            f"preset is {quoted(name)}{nearest(name, list(PRESETS))}; give one of {', '.join(PRESETS)}, or leave it out"
        )
    return (Layer(Origin.PRESET, PRESETS[name]),)


def user_layers(config: RunConfig | Mapping[str, Any] | str | Path | None, **arguments: Any) -> tuple[Layer, ...]:
    """The user's settings in any form, and arguments that belong to the table `train`, as layers."""
    given = {name: value for name, value in arguments.items() if value is not None}
    layers = [] if config is None else [_user_layer(config)]
    return (*layers, *([Layer(Origin.ARGUMENTS, {"train": given})] if given else []))


def without(layers: Iterable[Layer], *names: str) -> tuple[Layer, ...]:
    """The layers, except for settings of a file that an argument of the command line replaces."""
    kept = []
    for layer in layers:
        if layer.origin is Origin.FILE:
            tables = {
                table: {name: value for name, value in values.items() if f"{table}.{name}" not in names}
                for table, values in layer.tables.items()
            }
            layer = Layer(layer.origin, tables)
        kept.append(layer)
    return tuple(kept)


def tables_of(layers: Iterable[Layer]) -> dict[str, dict[str, Any]]:
    """Several layers merged into one set of tables."""
    tables: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for table, values in layer.tables.items():
            tables[table] = tables.get(table, {}) | dict(values)
    return tables


def assigned(assignments: Iterable[str]) -> Layer:
    """The layer of assignments such as `train.learning_rate=0.003` on the command line."""
    values: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or "." not in name:
            raise ConfigError(f"--set {text}: write it as table.setting=value, such as train.learning_rate=0.003")
        try:
            values[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[name] = value
    return assigned_values(values)


def assigned_values(values: Mapping[str, Any]) -> Layer:
    """The layer of values by their dotted names."""
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        table, _, field = name.partition(".")
        tables.setdefault(table, {})[field] = value
    return Layer(Origin.ARGUMENTS, tables)


def _user_layer(config: Any) -> Layer:
    if isinstance(config, str | Path):
        return Layer(Origin.FILE, Settings.read_toml(config))
    if isinstance(config, RunConfig):
        return Layer(Origin.ARGUMENTS, config.model_dump(exclude_unset=True))
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"config is a {type(config).__name__}; give a TOML file, a RunConfig or a dictionary of tables"
        )
    return Layer(Origin.ARGUMENTS, config)


def _refuse_contradiction(name: str, value: Any, required: Any) -> None:
    same = tuple(required) == tuple(value) if isinstance(value, list | tuple) else required == value
    if not same:
        argument = ARGUMENTS.get(name, name)
        raise ConfigError(
            f"config has {name} = {value!r}, but {argument} is {required!r}; remove it from the config, or give the "
            f"same value, {argument}={value!r}"
        )


def _named(settings: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from _named(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
