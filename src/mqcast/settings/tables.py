"""The tables of a run's settings. The paper's values are those of the preset `paper`, see `mqcast.settings.presets`."""

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from mqcast.levels import are_levels
from mqcast.settings.base import Settings, nearest
from mqcast.settings.family import FAMILY, Variant

MOST_PERIODS, MOST_WINDOWS, WIDEST, MOST_LAYERS = 100_000, 2**20, 2**14, 64  # more than any network needs
LARGEST_SEED, MOST_MEMBERS, MOST_SPANS = 2**63 - 1, 32, 64
ZeroRule = tuple[str, float | str]
Decay = Annotated[float, Field(ge=0, lt=1)]
Dilation = Annotated[int, Field(ge=1, le=MOST_PERIODS)]
Span = tuple[Dilation, Dilation]


class ScalingConfig(Settings):
    """How targets are scaled; see `mqcast.data.scaling`."""

    by: Literal["recent", "series", "global", "past", "past_mean", "none"] = "series"
    log1p: bool = False
    half_life: float = Field(
        default=4.0, gt=0, description="recent: rows after which the weight of an observation is halved"
    )
    spread_half_life: float | None = Field(
        default=None, gt=0, description="recent: rows after which a surprise counts half in the spread; None: never"
    )
    zeros: Literal["demand", "told_apart", "missing"] = Field(
        default="demand",
        description="told_apart: not yet on sale before a first sale, closed among large sales; missing: never demand",
    )
    zero_when: tuple[ZeroRule, ...] = Field(
        default=(),
        description='known columns and values, such as [["open", 0]], where demand is 0: not learnt, and forecast as 0',
    )
    level_steps: int = Field(
        default=0,
        ge=0,
        le=MOST_PERIODS,
        description="numbers are also given relative to their own mean over this many steps; 0: they are not",
    )
    echoes: tuple[Dilation, ...] = Field(
        default=(),
        max_length=16,
        description="sales this many steps before each target are inputs; each is at least the horizon",
    )
    raw_calendar: bool = Field(
        default=False,
        description="the time of year as indicators of week and month, not as waves, unless the schema names features",
    )


class WindowConfig(Settings):
    """How a panel is cut into windows of many creation times."""

    horizon: int = Field(ge=1, le=MOST_PERIODS, description="steps ahead, H")
    history: int = Field(ge=1, le=MOST_PERIODS, description="steps of context before a window's first creation time")
    num_fcts: int = Field(ge=1, le=MOST_PERIODS, description="creation times in one window")
    batch_size: int = Field(default=32, ge=1, le=MOST_WINDOWS, description="windows in a batch, over all ranks")
    min_history: int = Field(default=1, ge=0, description="steps of history that a series needs before it is scored")
    reach: int = Field(
        default_factory=lambda given: given.get("horizon", 1) - 1,
        ge=0,
        le=MOST_PERIODS,
        description="steps of calendar beyond both ends of a window, R; left out: horizon − 1",
    )
    aligned: bool = Field(default=True, description="windows of a batch share their dates")
    partial_horizon: bool = Field(
        default=True, description="also score creation times with an incomplete horizon at the end"
    )
    num_trajectories: int | None = Field(
        default=None,
        ge=1,
        description="without forking: how many (series, creation time) pairs are drawn, once",
    )

    @model_validator(mode="after")
    def _one_fct_if_drawn(self) -> Self:
        if self.num_trajectories is not None and self.num_fcts != 1:
            raise ValueError("trajectories are drawn one by one; use WindowConfig.without_forking(num_trajectories)")
        return self

    def without_forking(self, num_trajectories: int | None = None) -> Self:
        """Windows of the same length at random dates, of which only the last creation time is scored."""
        return self.replace(history=self.num_steps - 1, num_fcts=1, aligned=False, num_trajectories=num_trajectories)

    @property
    def num_steps(self) -> int:
        """Steps of input in a window, T."""
        return self.history + self.num_fcts


def _levels(levels: tuple[float, ...]) -> tuple[float, ...]:
    if not are_levels(levels):
        raise ValueError("give levels between 0 and 1 in strictly increasing order, such as (0.1, 0.5, 0.9)")
    return levels


def _spans(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    for first, last in spans:
        if first > last:
            raise ValueError(f"span ({first}, {last}) ends before it begins; give ({last}, {first})")
        if spans.count((first, last)) > 1:
            raise ValueError(f"span ({first}, {last}) is given twice; give it once")
    return spans


def _known_network(name: str) -> str:
    if name not in FAMILY:
        raise ValueError(f"there is no such network{nearest(name, list(FAMILY))}; there are {', '.join(FAMILY)}")
    return name


class ResearchConfig(Settings):
    """Switches for experiments; users need not change them."""

    block: Literal["residual", "bare"] = Field(default="residual", description="the block around an attention layer")
    feedback_heads: Literal["shared", "per_horizon"] = Field(
        default="shared", description="projections of the attention over earlier forecasts"
    )
    agnostic_context: Literal["future", "current"] = Field(
        default="future", description="positions that c^a sees: those of the whole horizon, or of the creation time"
    )
    encoder_attention: bool = Field(default=False, description="self-attention on top of the encoder")
    position_norm: bool = Field(
        default=True, description="the encoder and attention see positions with a norm of at most 1"
    )
    horizon_code: bool = Field(
        default=True, description="the output MLP has a bias per horizon and, after attention, weights for h¹"
    )
    scale_inputs: bool = Field(default=True, description="the encoder knows each series' location and scale")
    plain_start: bool = Field(
        default=False,
        description="random weights throughout, flags as they are; false: see Initialisation in docs/paper.md",
    )


class ModelConfig(Settings):
    """The network and its sizes; see `mqcast.nn` and docs/paper.md."""

    model: Annotated[str, AfterValidator(_known_network)] = "mqt"
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
        default=None, max_length=MOST_LAYERS, description="left out: doubling, with a sum of horizon − 1"
    )
    lookback: int = Field(
        default=52, ge=0, le=MOST_PERIODS, description="L: steps before t that the attention blocks reach back to"
    )
    dropout: float = Field(default=0.15, ge=0, lt=1)
    static_encoding: Literal["embedding", "one_hot"] = "embedding"
    context_dim: int = Field(
        default_factory=lambda given: given.get("head_dim", 1),
        ge=1,
        le=WIDEST,
        description="width of the contexts in residual blocks; left out: head_dim",
    )
    head: Literal["free", "monotone"] = Field(
        default="free",
        description="monotone: quantiles cannot cross; free: crossing quantiles are sorted when published",
    )

    spans: Annotated[tuple[Span, ...], AfterValidator(_spans)] = Field(
        default=(),
        max_length=MOST_SPANS,
        description="first and last steps of totals that the network forecasts itself, such as [[1, 4]]",
    )
    members: int = Field(
        default=1,
        ge=1,
        le=MOST_MEMBERS,
        description="networks of this kind, each with its own weights and dropout; their mean is the forecast",
    )
    research: ResearchConfig = ResearchConfig()

    @model_validator(mode="before")
    @classmethod
    def _research_in_its_table(cls, values: Any) -> Any:
        """Accept the settings of [model.research] in [model], where they used to be."""
        if not isinstance(values, dict) or not (moved := values.keys() & ResearchConfig.model_fields.keys()):
            return values
        table = values.get("research", {})
        table = table.model_dump(exclude_unset=True) if isinstance(table, ResearchConfig) else table
        rest = {name: value for name, value in values.items() if name not in moved}
        return rest | {"research": {**table, **{name: values[name] for name in moved}}}

    @property
    def variant(self) -> Variant:
        """The parts of the network."""
        return FAMILY[self.model]

    def context(self, horizon: int) -> int:
        """Steps before a creation time that its forecast uses, including all contexts and their keys."""
        encoder = sum(self.encoder_dilations) + (self.lookback if self.research.encoder_attention else 0)
        if not self.variant.has_attention:
            return encoder
        feedback = {"horizon": horizon - 1, "lookback": self.lookback}[self.variant.feedback_reach]
        return encoder + self.lookback + (feedback if self.variant.feedback else 0)


class SplitConfig(Settings):
    """Last target dates of training and of validation, such as "2024-06-30"; a date is its midnight, as in files."""

    train_until: dt.datetime | None = Field(
        default=None, description="left out: one horizon before valid_until, or valid_until without validation"
    )
    valid_until: dt.datetime | None = Field(default=None, description="left out: the panel's end")


class TrainConfig(Settings):
    """How a network is trained."""

    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    learning_rate: float = Field(default=1e-3, gt=0)
    alignment_rate: float = Field(
        default=0.2,
        gt=0,
        description="learning rate of the queries and keys of the decoder's attention, relative to the others",
    )
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled, as in AdamW")
    clip_norm: float | None = Field(default=1.0, gt=0, description="maximal norm of the gradient; None: no clipping")
    schedule: Literal["constant", "cosine"] = Field(
        default="constant",
        description="cosine: decays to zero at the end of max_epochs, max_steps or max_minutes, whichever comes first",
    )
    warmup_steps: int = Field(default=0, ge=0, description="steps over which the learning rate rises from zero")
    average: float | None = Field(default=None, gt=0, lt=1, description="decay of a moving average of the weights")
    max_epochs: int = Field(default=100, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    max_minutes: float | None = Field(default=None, gt=0)
    patience: int | None = Field(
        default=5,
        ge=1,
        description="validations without improvement before stopping with the best weights; None: final weights",
    )
    refit: bool = Field(
        default=False,
        description="find the best number of steps, up to max_steps, on the last dates; then train anew on all dates",
    )
    validate_every: int | None = Field(
        default=None, ge=1, description="steps between validations; None: one after each epoch"
    )
    max_validation_windows: int | None = Field(
        default=None, ge=1, description="windows to validate on, drawn once from all series; None: all windows"
    )
    min_gain: float = Field(
        default=0.0, ge=0, description="minimal decrease of the validation loss that counts as an improvement"
    )
    micro_batch: int | None = Field(default=None, ge=1, description="windows per forward pass; None: as memory allows")
    memory_gib: float = Field(default=4.0, gt=0, description="memory that one step of one process may use")
    num_threads: int = Field(
        default=1, ge=1, le=1024, description="threads per process; one process per core is faster than threads"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto: bfloat16 autocast on accelerators that support it"
    )
    checkpoint_minutes: float = Field(
        default=10.0, ge=0, description="time between checkpoints; one is also saved after each epoch"
    )
    log_every: int = Field(default=10, ge=1, description="steps between lines in metrics.jsonl")

    @model_validator(mode="before")
    @classmethod
    def _without_compile(cls, values: Any) -> Any:
        """Accept runs of 0.1.0, which have a setting that was removed, if it was off."""
        if not isinstance(values, dict) or "compile" not in values:
            return values
        if values["compile"] is not False:
            raise ValueError("train.compile was removed, because it made training slower; remove it from the settings")
        return {name: value for name, value in values.items() if name != "compile"}


class RunConfig(Settings):
    """All settings of one run; each field is a table of its TOML file."""

    window: WindowConfig
    split: SplitConfig = SplitConfig()
    scaling: ScalingConfig = ScalingConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _spans_that_can_be(self) -> Self:
        for first, last in self.model.spans:
            if last > self.window.horizon:
                told = f"span ({first}, {last}) of model.spans goes beyond the horizon of {self.window.horizon}"
                raise ValueError(f"{told}; end it at {self.window.horizon}")
        if self.model.spans and self.scaling.zero_when:
            raise ValueError(
                "model.spans cannot go with scaling.zero_when; leave spans out, and totals come from paths"
            )
        return self

    @classmethod
    def paper(cls, window: WindowConfig | Mapping[str, Any], **tables: Mapping[str, Any]) -> "RunConfig":
        """The preset `paper` for these windows, with some of its settings changed.

        `RunConfig.paper({"horizon": 52, "history": 167, "num_fcts": 104}, model={"static_encoding": "one_hot"})`
        """
        from mqcast.settings.merge import Layer, Origin, merge, preset_layers

        given = window.model_dump(exclude_unset=True) if isinstance(window, WindowConfig) else window
        return merge(*preset_layers("paper"), Layer(Origin.ARGUMENTS, {"window": given, **tables})).config

    def with_whole_context(self) -> Self:
        """With windows that contain all the history their first forecast uses, through contexts and keys.

        Forecasts are made with such windows. Contexts with less history in training would differ from those.
        """
        history = max(self.window.history, self.model.context(self.window.horizon))
        return self.replace(window=self.window.replace(history=history))
