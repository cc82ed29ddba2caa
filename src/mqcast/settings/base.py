"""Frozen settings, validated when they are created, read from TOML and written to it."""

import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_args

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from mqcast.errors import ConfigError, MqcastError, quoted, readable

NONE = "none"  # TOML has no null
MOST_SHOWN = 3  # wrong settings in one message, at most
LONGEST_NAME = 100  # longer names are not compared
Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


def nearest(name: Any, candidates: "list[str] | tuple[str, ...]") -> str:
    """` (did you mean 'price'?)`, or nothing when no candidate is near."""
    originals = {str(candidate).lower(): candidate for candidate in candidates if len(str(candidate)) <= LONGEST_NAME}
    close = difflib.get_close_matches(str(name).lower()[:LONGEST_NAME], originals, n=1, cutoff=0.6)
    return f" (did you mean {originals[close[0]]!r}?)" if close else ""


class Settings(BaseModel):
    """Frozen settings, validated when they are created; mistakes raise `error_type`, which names each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    error_type: ClassVar[type[MqcastError]] = ConfigError

    if not TYPE_CHECKING:  # keep the fields' signature for type checkers

        def __init__(self, **values: Any):
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise self.error_type(self._explain(error)) from None

    @classmethod
    def _explain(cls, error: ValidationError) -> str:
        lines = []
        for problem in error.errors():
            if problem["type"] == "default_factory_not_called":  # follows from another field that is wrong
                continue
            field = readable(".".join(str(part) for part in problem["loc"]), 80)
            if isinstance(inner := problem.get("ctx", {}).get("error"), ConfigError):  # from a nested table
                lines.append(str(inner))
            elif problem["type"] == "extra_forbidden":
                lines.append(f"{cls.__name__} has no setting {field!r}{nearest(field, list(cls.model_fields))}")
            elif problem["type"] == "missing":
                lines.append(f"{cls.__name__}.{field} is missing")
            else:
                text = problem["msg"].removeprefix("Value error, ")
                lines.append(f"{cls.__name__}.{field}: {text} (got {quoted(problem['input'], 80)})" if field else text)
        more = f"; and {len(lines) - MOST_SHOWN} more" if len(lines) > MOST_SHOWN else ""
        return "; ".join(readable(line, 300) for line in lines[:MOST_SHOWN]) + more

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed, validated again."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    @classmethod
    def from_toml(cls, path: str | Path, table: str | None = None) -> Self:
        """Read settings from a TOML file, or from one table of it."""
        values = cls.read_toml(path)
        if table is not None and table not in values:
            raise ConfigError(f"{path} has no table [{table}]{nearest(table, list(values))}; add it")
        return cls(**(values[table] if table else values))

    @staticmethod
    def read_toml(path: str | Path) -> dict[str, Any]:
        """The contents of a TOML file, not validated."""
        try:
            return tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (FileNotFoundError, IsADirectoryError):
            raise ConfigError(f"there is no settings file at {path}; write one or check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from None

    def to_toml(self) -> str:
        return tomli_w.dumps(self._for_toml())

    def _for_toml(self) -> dict[str, Any]:
        """All settings as values that TOML has; None is written as "none"."""
        values: dict[str, Any] = {}
        for name, value in self.model_dump(mode="json").items():
            inner = getattr(self, name)
            if isinstance(inner, Settings):
                values[name] = inner._for_toml()
            else:
                values[name] = NONE if value is None else value
        return values

    @classmethod
    def may_be_none(cls) -> list[str]:
        """Settings that may be None."""
        return [name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)]

    @model_validator(mode="before")
    @classmethod
    def _none_in_words(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        none = {name for name in cls.may_be_none() if isinstance(values.get(name), str) and values[name] == NONE}
        for name, field in cls.model_fields.items():
            if isinstance(values.get(name), bool) and {field.annotation, *get_args(field.annotation)} & {int, float}:
                raise ValueError(f"{cls.__name__}.{name} is a number (got {values[name]})")
        return {name: None if name in none else value for name, value in values.items()}
