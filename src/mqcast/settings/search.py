"""Which settings a search tries."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from mqcast.settings.base import Settings, nearest
from mqcast.settings.tables import LARGEST_SEED, ResearchConfig, RunConfig


class Range(Settings):
    """Numbers between two ends, both included; whole numbers where both ends are."""

    low: int | float
    high: int | float
    log: bool = Field(default=False, description="draw orders of magnitude alike")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"a range rises, with log from above 0 (got low = {self.low}, high = {self.high})")
        return self


PAPER_SPACE: dict[str, tuple[Any, ...] | Range] = {
    "model.hidden_dim": (32, 64, 128),
    "train.learning_rate": (1e-4, 1e-3, 1e-2),
}
UNLIKE_LOSSES = (  # with these, validation losses are of unlike things
    "split",
    "scaling",
    "window.horizon",
    "window.min_history",
    "window.partial_horizon",
    "model.quantiles",
)


def _space(given: Any) -> Any:
    """Dotted settings and their choices, written as one name or as a table of a table."""
    if not isinstance(given, dict) or not given:
        raise ValueError('name settings and their choices, such as "model.hidden_dim" = [32, 64]')
    flat: dict[str, Any] = {}
    for name, what in given.items():
        is_table = "." not in name and isinstance(what, dict)
        flat |= {f"{name}.{field}": choices for field, choices in what.items()} if is_table else {name: what}
    return {name: _choices(name, choices) for name, choices in flat.items()}


def _choices(name: str, given: Any) -> tuple[Any, ...] | Range:
    tables: dict[str, Any] = {key: info.annotation for key, info in RunConfig.model_fields.items()}
    names = [f"{key}.{setting}" for key, kind in tables.items() for setting in kind.model_fields]
    names += [f"model.{setting}" for setting in ResearchConfig.model_fields]
    if name not in names:
        raise ValueError(f"there is no setting {name!r}{nearest(name, names)}; write it as table.setting")
    if name in UNLIKE_LOSSES or name.split(".")[0] in UNLIKE_LOSSES:
        raise ValueError(f"validation losses with another {name} cannot be compared; search one value at a time")
    if isinstance(given, Range | dict):
        return given if isinstance(given, Range) else Range(**given)
    if not isinstance(given, list | tuple) or not given or any(given.count(choice) > 1 for choice in given):
        raise ValueError(f"{name}: give a list of choices, each once, or a range {{low = …, high = …}}")
    return tuple(given)


class SearchConfig(Settings):
    """Which settings are tried, and how; the validation loss decides. The paper's grid where nothing else is said."""

    method: Literal["grid", "optuna"] = Field(default="grid", description="optuna: a sampler that learns, with pruning")
    space: Annotated[dict[str, tuple[Any, ...] | Range], BeforeValidator(_space)] = PAPER_SPACE
    num_trials: int | None = Field(
        default=None, ge=1, description="left out: the whole grid, or 20; of a grid, so many are drawn at random"
    )
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description="of what is drawn; training has its own")
    prune: bool = Field(default=True, description="optuna: end trials that are worse than the median at their epoch")

    @model_validator(mode="after")
    def _grid_of_choices(self) -> Self:
        ranges = [name for name, choices in self.space.items() if isinstance(choices, Range)]
        if self.method == "grid" and ranges:
            raise ValueError(f"a grid has no ranges ({', '.join(ranges)}); list choices, or use method = 'optuna'")
        return self
