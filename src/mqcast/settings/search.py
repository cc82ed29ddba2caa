"""Which settings a search tries."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from mqcast.settings.base import Settings, nearest
from mqcast.settings.tables import LARGEST_SEED, ResearchConfig, RunConfig


class Range(Settings):
    """Numbers between two ends, both included; whole numbers where both ends are."""

    low: int | float
    high: int | float
    log: bool = Field(default=False, description="draw all orders of magnitude with the same probability")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(
                f"low must be less than high, and above 0 with log (got low = {self.low}, high = {self.high})"
            )
        return self


PAPER_SPACE: dict[str, tuple[Any, ...] | Range] = {
    "model.hidden_dim": (32, 64, 128),
    "train.learning_rate": (1e-4, 1e-3, 1e-2),
}
NOT_COMPARABLE = (  # validation losses with different values of these cannot be compared
    "split",
    "scaling",
    "window.horizon",
    "window.min_history",
    "window.partial_horizon",
    "model.quantiles",
)


def _space(given: Any) -> Any:
    """Settings by dotted name and their choices, which may be written as dotted names or as nested tables."""
    if not isinstance(given, dict) or not given:
        raise ValueError('give settings and their choices, such as "model.hidden_dim" = [32, 64]')
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
    if name in NOT_COMPARABLE or name.split(".")[0] in NOT_COMPARABLE:
        raise ValueError(f"validation losses with another {name} cannot be compared; search one value at a time")
    if isinstance(given, Range | dict):
        return given if isinstance(given, Range) else Range(**given)
    if not isinstance(given, list | tuple) or not given or any(given.count(choice) > 1 for choice in given):
        raise ValueError(f"{name}: give a list of choices, each once, or a range {{low = …, high = …}}")
    return tuple(given)


class SearchConfig(Settings):
    """Which settings are tried, and how; the lowest validation loss wins. The default is the paper's grid."""

    method: Literal["grid", "optuna"] = Field(
        default="grid", description="optuna: sampling that learns from earlier trials, with pruning"
    )
    space: Annotated[dict[str, tuple[Any, ...] | Range], BeforeValidator(_space)] = PAPER_SPACE
    num_trials: int | None = Field(
        default=None,
        ge=1,
        description="trials, drawn at random from a grid; left out: the whole grid, or 20 with optuna",
    )
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description="seed of the draws; training has its own")
    prune: bool = Field(
        default=True, description="optuna: stop trials that are worse than the median at the same epoch"
    )

    @model_validator(mode="after")
    def _grid_of_choices(self) -> Self:
        ranges = [name for name, choices in self.space.items() if isinstance(choices, Range)]
        if self.method == "grid" and ranges:
            raise ValueError(f"a grid has no ranges ({', '.join(ranges)}); list choices, or use method = 'optuna'")
        return self
