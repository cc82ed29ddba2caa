"""Frozen, validated settings; TOML in, TOML out."""

import datetime as dt
import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from mqcast.errors import ConfigError, MqcastError, quoted, readable
from mqcast.levels import are_levels

NONE = "none"  # TOML has no word for it
MOST_TOLD = 3  # wrong settings in one message
MOST_PERIODS, MOST_WINDOWS, WIDEST, MOST_LAYERS = 100_000, 2**20, 2**14, 64  # beyond what any network is trained with
LARGEST_SEED = 2**63 - 1
Decay = Annotated[float, Field(ge=0, lt=1)]
Dilation = Annotated[int, Field(ge=1, le=MOST_PERIODS)]
LONGEST_NAME = 100  # that others are likened to
Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


def nearest(name: Any, candidates: "list[str] | tuple[str, ...]") -> str:
    """` (did you mean 'price'?)`, or nothing when no candidate is near."""
    originals = {str(candidate).lower(): candidate for candidate in candidates if len(str(candidate)) <= LONGEST_NAME}
    found = difflib.get_close_matches(str(name).lower()[:LONGEST_NAME], originals, n=1, cutoff=0.6)
    return f" (did you mean {originals[found[0]]!r}?)" if found else ""


class Settings(BaseModel):
    """Frozen settings, checked at birth; what is wrong comes as `error_type`, one line a field."""

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
            if problem["type"] == "default_factory_not_called":  # it waits for a field that is wrong itself
                continue
            field = readable(".".join(str(part) for part in problem["loc"]), 80)
            if isinstance(inner := problem.get("ctx", {}).get("error"), ConfigError):  # of a table of its own
                lines.append(str(inner))
            elif problem["type"] == "extra_forbidden":
                lines.append(f"{cls.__name__} has no setting {field!r}{nearest(field, list(cls.model_fields))}")
            elif problem["type"] == "missing":
                lines.append(f"{cls.__name__}.{field} is missing")
            else:
                text = problem["msg"].removeprefix("Value error, ")
                lines.append(f"{cls.__name__}.{field}: {text} (got {quoted(problem['input'], 80)})" if field else text)
        more = f"; and {len(lines) - MOST_TOLD} more" if len(lines) > MOST_TOLD else ""
        return "; ".join(readable(line, 300) for line in lines[:MOST_TOLD]) + more

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed, checked like any other."""
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
        """What a TOML file says, unchecked."""
        try:
            return tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (FileNotFoundError, IsADirectoryError):
            raise ConfigError(f"no settings file at {path}; write one or check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from None

    def to_toml(self) -> str:
        return tomli_w.dumps(self._for_toml())

    def _for_toml(self) -> dict[str, Any]:
        """The settings as TOML can say them: None is left out where it is the default, and "none" where it is not."""
        said: dict[str, Any] = {}
        for name, value in self.model_dump(mode="json").items():
            inner = getattr(self, name)
            if isinstance(inner, Settings):
                said[name] = inner._for_toml()
            elif value is not None:
                said[name] = value
            elif name in self._may_be_none():
                said[name] = NONE
        return said

    @classmethod
    def _may_be_none(cls) -> list[str]:
        """Settings that may be None but are not so by default."""
        return [
            name
            for name, field in cls.model_fields.items()
            if type(None) in get_args(field.annotation) and field.default is not None
        ]

    @model_validator(mode="before")
    @classmethod
    def _none_in_words(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        said = {name for name in cls._may_be_none() if isinstance(values.get(name), str) and values[name] == NONE}
        for name, field in cls.model_fields.items():
            if isinstance(values.get(name), bool) and {field.annotation, *get_args(field.annotation)} & {int, float}:
                raise ValueError(f"{cls.__name__}.{name} is a number (got {values[name]})")
        return {name: None if name in said else value for name, value in values.items()}


class ScalingConfig(Settings):
    """How the target is brought to a common scale; see `mqcast.data.scaling`."""

    by: Literal["recent", "series", "global", "past", "past_mean", "none"] = "series"
    log1p: bool = False
    half_life: float = Field(default=4.0, gt=0, description="recent: rows after which an observation weighs half")
    zeros: Literal["demand", "told_apart", "missing"] = Field(
        default="demand",
        description="told_apart: before a first sale not on sale yet, among large sales closed; missing: never demand",
    )


class WindowConfig(Settings):
    """How a panel is cut into windows of many creation times."""

    horizon: int = Field(ge=1, le=MOST_PERIODS, description="steps ahead, H")
    history: int = Field(ge=1, le=MOST_PERIODS, description="steps of context before a window's first creation time")
    num_fcts: int = Field(ge=1, le=MOST_PERIODS, description="creation times in one window")
    batch_size: int = Field(default=32, ge=1, le=MOST_WINDOWS, description="windows in a batch, over all ranks")
    min_history: int = Field(default=1, ge=0, description="steps a series must have lived through before it is scored")
    reach: int = Field(
        default_factory=lambda given: given.get("horizon", 1) - 1,
        ge=0,
        le=MOST_PERIODS,
        description="steps of calendar beyond both ends of a window, R; left out: horizon − 1",
    )
    aligned: bool = Field(default=True, description="windows of a batch share their dates")
    partial_horizon: bool = Field(default=True, description="score creation times whose last targets are cut off")
    num_trajectories: int | None = Field(
        default=None,
        ge=1,
        description="without forking: how many (series, creation time) are drawn, once",
    )

    @model_validator(mode="after")
    def _one_fct_if_drawn(self) -> Self:
        if self.num_trajectories is not None and self.num_fcts != 1:
            raise ValueError("trajectories are drawn one by one; use WindowConfig.without_forking(num_trajectories)")
        return self

    def without_forking(self, num_trajectories: int | None = None) -> Self:
        """Windows of the same length that score their last creation time alone, drawn at random dates."""
        return self.replace(history=self.num_steps - 1, num_fcts=1, aligned=False, num_trajectories=num_trajectories)

    @property
    def num_steps(self) -> int:
        """Steps of input in a window, T."""
        return self.history + self.num_fcts


def _levels(levels: tuple[float, ...]) -> tuple[float, ...]:
    if not are_levels(levels):
        raise ValueError("give levels between 0 and 1, each once, in rising order, such as (0.1, 0.5, 0.9)")
    return levels


class ModelConfig(Settings):
    """Which network, and its parts; see `mqcast.nn` and docs/paper.md."""

    model: Literal["mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn"] = "mqt"
    quantiles: Annotated[tuple[float, ...], AfterValidator(_levels)] = (0.5, 0.9)
    hidden_dim: int = Field(
        default=32, ge=2, le=WIDEST, description="d_h: filters of every convolution, width of the contexts"
    )
    static_dim: int = Field(
        default_factory=lambda given: 2 * given.get("hidden_dim", 1),
        ge=1,
        le=2 * WIDEST,
        description="left out: 2·hidden_dim",
    )
    head_dim: int = Field(
        default_factory=lambda given: given.get("hidden_dim", 2) // 2,
        ge=1,
        le=WIDEST,
        description="left out: hidden_dim/2",
    )
    encoder_dilations: tuple[Dilation, ...] = Field(default=(1, 2, 4, 8, 16, 32), min_length=1, max_length=MOST_LAYERS)
    position_dilations: tuple[Dilation, ...] | None = Field(
        default=None, max_length=MOST_LAYERS, description="left out: doubling, and summing to horizon − 1"
    )
    lookback: int = Field(
        default=52, ge=0, le=MOST_PERIODS, description="L: steps before t that the attention blocks reach back to"
    )
    dropout: float = Field(default=0.15, ge=0, lt=1)
    static_encoding: Literal["embedding", "one_hot"] = "embedding"
    block: Literal["residual", "bare"] = Field(default="residual", description="what stands around an attention cell")
    context_dim: int = Field(
        default_factory=lambda given: given.get("head_dim", 1),
        ge=1,
        le=WIDEST,
        description="width of the contexts in residual blocks; left out: head_dim",
    )
    feedback_heads: Literal["shared", "per_horizon"] = Field(
        default="shared", description="projections of the attention over earlier forecasts"
    )
    agnostic_context: Literal["future", "current"] = Field(
        default="future", description="positions that c^a sees: all of the horizon, or the creation time's"
    )
    encoder_attention: bool = Field(default=False, description="self-attention on top of the encoder")
    position_norm: bool = Field(
        default=True, description="the encoder and attention see positions brought to unit size, at most"
    )
    horizon_code: bool = Field(
        default=True, description="the output MLP has a bias for each horizon and, after attention, weights for h¹"
    )
    scale_inputs: bool = Field(default=True, description="the encoder knows each series' location and scale")
    head: Literal["free", "monotone"] = Field(
        default="free", description="monotone: quantiles that cannot cross; free: rearranged when published"
    )

    @property
    def has_attention(self) -> bool:
        """Horizon-specific attention and learned positions: MQTransformer and its ablations."""
        return self.model.startswith("mqt")

    def context(self, horizon: int) -> int:
        """Steps before a creation time that its forecast looks at, all contexts and their keys included."""
        encoder = sum(self.encoder_dilations) + (self.lookback if self.encoder_attention else 0)
        if not self.has_attention:
            return encoder
        return encoder + self.lookback + {"mqt": horizon - 1, "mqt-all": self.lookback}.get(self.model, 0)


class SplitConfig(Settings):
    """Last target dates of training and of validation, such as "2024-06-30"."""

    train_until: dt.datetime | dt.date | None = Field(
        default=None, description="left out: one horizon before valid_until, or valid_until if nothing is validated"
    )
    valid_until: dt.datetime | dt.date | None = Field(default=None, description="left out: the panel's end")


class TrainConfig(Settings):
    """How a network is trained; Adam's settings, epochs and patience are the paper's."""

    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    learning_rate: float = Field(default=1e-3, gt=0)
    alignment_rate: float = Field(
        default=0.2,
        gt=0,
        description="rate of the queries and keys of the decoder's attention, relative to the others",
    )
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled, as in AdamW")
    clip_norm: float | None = Field(default=1.0, gt=0, description="longest gradient; None: any")
    schedule: Literal["constant", "cosine"] = Field(
        default="constant", description="cosine: falls to zero over max_epochs, or max_steps"
    )
    warmup_steps: int = Field(default=0, ge=0, description="steps over which the rate rises from zero")
    average: float | None = Field(default=None, gt=0, lt=1, description="decay of a moving average of the weights")
    max_epochs: int = Field(default=100, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    max_minutes: float | None = Field(default=None, gt=0)
    patience: int | None = Field(
        default=5, ge=1, description="epochs without gain before stopping with the best weights; None: final weights"
    )
    min_gain: float = Field(default=0.0, ge=0, description="least fall of the validation loss that is a gain")
    micro_batch: int | None = Field(default=None, ge=1, description="windows at a time; None: as memory allows")
    memory_gib: float = Field(default=4.0, gt=0, description="what one step of one process may take")
    num_threads: int = Field(
        default=1, ge=1, le=1024, description="of each process; a process a core is faster than threads"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto: bfloat16 autocast on accelerators that have it"
    )
    compile: bool = Field(default=False, description="run the network through torch.compile")
    checkpoint_minutes: float = Field(default=10.0, ge=0, description="time between saves; also saved at epochs' ends")
    log_every: int = Field(default=10, ge=1, description="steps between lines of metrics.jsonl")


class RunConfig(Settings):
    """All settings of one run: a table each in its TOML file."""

    window: WindowConfig
    split: SplitConfig = SplitConfig()
    scaling: ScalingConfig = ScalingConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()

    def with_whole_context(self) -> Self:
        """Windows that begin no later than their first forecast looks back, through contexts and keys.

        So it is in forecasts; contexts that see less in training are others than those that are met later.
        """
        history = max(self.window.history, self.model.context(self.window.horizon))
        return self.replace(window=self.window.replace(history=history))


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
