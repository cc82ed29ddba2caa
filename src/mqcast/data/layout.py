"""The layout of a panel: roles, kinds, categories, frequency, holidays. A network reads panels of one layout."""
# pyright: strict

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from mqcast.data.axis import TimeAxis
from mqcast.data.frequency import Frequency
from mqcast.data.schema import Schema
from mqcast.data.writer import Encoding


@dataclass(frozen=True)
class Layout:
    encoding: Encoding
    holidays: tuple[tuple[str, str], ...]

    @property
    def schema(self) -> Schema:
        return self.encoding.schema

    @property
    def description(self) -> dict[str, Any]:
        """The layout as values for JSON."""
        encoding = self.encoding
        return {
            "schema": encoding.schema.model_dump(mode="json"),
            "frequency": asdict(encoding.axis.frequency),
            "zone": encoding.axis.zone,
            "vocabularies": {name: list(values) for name, values in encoding.vocabularies.items()},
            "holidays": [list(pair) for pair in self.holidays],
        }

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Self:
        axis = TimeAxis(Frequency(**description["frequency"]), description["zone"])
        vocabularies = {name: tuple(values) for name, values in description["vocabularies"].items()}
        holidays = tuple((region, name) for region, name in description["holidays"])
        return cls(Encoding(Schema(**description["schema"]), axis, vocabularies), holidays)

    @property
    def signature(self) -> str:
        return hashlib.sha256(json.dumps(self.description, sort_keys=True).encode()).hexdigest()
