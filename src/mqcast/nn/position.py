"""Position encodings r_u = [r^g_u; r^l_u], one part for all series and one for each: steps u = 0 … T+H−1."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from mqcast.data.batch import Batch
from mqcast.data.inputs import Inputs
from mqcast.errors import ConfigError
from mqcast.nn.layers import RELU, CategoryLinear, Convolution, Dropout, Parts, SplitLinear
from mqcast.settings import ModelConfig


def doubling_dilations(total: int) -> tuple[int, ...]:
    """1, 2, 4, … up to a remainder, in rising order: they sum to `total`, as the paper's sum to horizon − 1."""
    dilations = []
    while (rest := total - sum(dilations)) > 0:
        dilations.append(min(2 ** len(dilations), rest))
    return tuple(sorted(dilations))


FLAG_GAIN = 5.0  # events are rare: scaled up, their effect is learnt as early as that of the calendar
ORDINARY = 0.5  # the variance that is halved: steps without events stay small beside those with


class Covariates(nn.Module):
    """Numbers as they are, flags times `flag_gain`, categories one-hot through a dense layer of d_h with ReLU."""

    gain: Tensor

    def __init__(
        self,
        config: ModelConfig,
        numbers: int,
        flags: Sequence[int],
        categories: Sequence[int],
        num_calendar: int = 0,
    ):
        super().__init__()
        self.flag_gain, dim = 1.0 if config.research.plain_start else FLAG_GAIN, config.hidden_dim
        gain = [self.flag_gain if i in flags else 1.0 for i in range(numbers)]
        self.register_buffer("gain", torch.tensor(gain), persistent=False)
        self.dense = CategoryLinear(categories, dim, num_calendar) if categories else None
        self.dim = numbers + (dim if categories else 0)

    @classmethod
    def of_events(cls, config: ModelConfig, inputs: Inputs) -> "Covariates":
        categories = inputs.calendar + inputs.event_categories
        return cls(config, inputs.global_numbers, inputs.global_flags, categories, num_calendar=len(inputs.calendar))

    @classmethod
    def of_known(cls, config: ModelConfig, inputs: Inputs, with_echoes: bool = True) -> "Covariates":
        numbers = inputs.known_numbers - (0 if with_echoes else inputs.echo_numbers)
        return cls(config, numbers, inputs.known_flags, inputs.known_categories)

    def forward(self, numbers: Tensor, categories: Tensor) -> Float[Tensor, "shared steps channel"]:
        numbers = numbers * self.gain
        if self.dense is None:
            return numbers
        return torch.cat((numbers, F.relu(self.dense(categories))), dim=-1)


def reach_of(config: ModelConfig, horizon: int) -> int:
    """R: how many steps away an event can have an effect; by default as far as the horizon."""
    return horizon - 1 if config.position_dilations is None else sum(config.position_dilations)


def within_reach(batch: Batch, reach: int) -> tuple[Tensor, Tensor]:
    """The global numbers and categories from `reach` steps before the window to `reach` steps after its last target."""
    surplus = (batch.global_number.shape[1] - batch.values.shape[1]) // 2 - reach
    if surplus < 0:
        raise ConfigError(
            f"the network reads the calendar {reach} steps beyond both ends of a window, the batch has "
            f"{surplus + reach}; plan the windows with WindowConfig(reach={reach})"
        )
    steps = slice(surplus, batch.global_number.shape[1] - surplus)
    return batch.global_number[:, steps], batch.global_category[:, steps]


class LearnedPosition(nn.Module):
    """PE^g: dilated convolutions that look both ways; PE^l: a dense layer for every step.

    With `position_norm` the encoder and the attention see both normalised to at most unit variance; otherwise rare,
    scaled-up flags drown the target and saturate the softmax. m_L sees them raw, so that the depth of a discount is not
    lost beside the flag that announces it. Echoes go to m_L alone: they say how much was sold, not what a step is like,
    and would only blur which steps are alike. Plain form: `reference.position.global_position` and `local_position`.
    """

    def __init__(self, config: ModelConfig, inputs: Inputs, horizon: int):
        super().__init__()
        dim = config.hidden_dim
        dilations = config.position_dilations
        dilations = doubling_dilations(horizon - 1) if dilations is None else dilations
        self.reach, self.norm = sum(dilations), config.research.position_norm
        self.events = Covariates.of_events(config, inputs)
        self.known = Covariates.of_known(config, inputs, with_echoes=False)
        self.num_known, self.num_echoes = inputs.known_numbers - inputs.echo_numbers, inputs.echo_numbers
        taps = [(0, d, 2 * d) for d in dilations] or [(0,)]
        widths = [self.events.dim, *[dim] * len(taps)]
        self.convolutions = nn.ModuleList(
            Convolution((width,), dim, tap, centred=not config.research.plain_start)
            for width, tap in zip(widths, taps, strict=False)
            if self.events.dim
        )
        self.local = SplitLinear((self.known.dim,), dim, gain=RELU) if self.known.dim else None
        self.dropout = Dropout(config.dropout)
        self.dims = (dim,) * (bool(self.convolutions) + (self.local is not None))
        self.raw_dims = (*self.dims, *[self.num_echoes] * bool(self.num_echoes))

    def forward(self, batch: Batch) -> Parts:
        """r^g, r^l and the echoes, as far as there are such inputs."""
        parts = []
        if self.convolutions:
            x = self.events(*within_reach(batch, self.reach))
            for convolution in self.convolutions:
                x = self.dropout(convolution((x,)))
            parts.append(x)
        if self.local is not None:
            x = self.known(batch.known_number[..., : self.num_known], batch.known_category)
            parts.append(self.dropout(F.relu(self.local((x,)))))
        if self.num_echoes:
            parts.append(batch.known_number[..., self.num_known :])
        return tuple(parts)

    def normed(self, parts: Parts) -> Parts:
        """r^g and r^l as the encoder and the attention see them."""
        parts = parts[: len(self.dims)]
        return tuple(map(unit, parts)) if self.norm else parts


def unit(code: Float[Tensor, "shared steps channel"]) -> Float[Tensor, "shared steps channel"]:
    """Mean 0 over the channels of each step, and variance v / (v + ORDINARY): near 1 at events, less at other steps."""
    return F.layer_norm(code, code.shape[-1:], eps=ORDINARY)


class RawPosition(nn.Module):
    """What MQ-CNN and MQ-RNN use instead: the covariates, and linear distances to the nearest events.

    To global events both ways, as far as the reach; to a series' known flags only back to the last one, since the
    distance to the next would have to stop at each creation time's own horizon. The reach is that of the learned
    positions. Plain form: `reference.position.raw_position`.
    """

    def __init__(self, config: ModelConfig, inputs: Inputs, horizon: int):
        super().__init__()
        self.reach = reach_of(config, horizon)
        self.events, self.known = Covariates.of_events(config, inputs), Covariates.of_known(config, inputs)
        self.global_flags, self.known_flags = list(inputs.global_flags), list(inputs.known_flags)
        self.num_calendar = len(inputs.calendar)
        num_global = self.events.dim + 2 * (len(self.global_flags) + len(inputs.event_categories))
        num_local = self.known.dim + len(self.known_flags)
        self.dims = self.raw_dims = tuple(dim for dim in (num_global, num_local) if dim)

    def forward(self, batch: Batch) -> Parts:
        number, category = within_reach(batch, self.reach)
        named = category[..., self.num_calendar :] != 0
        happens = torch.cat((number[..., self.global_flags] > 0, named), dim=-1)
        before = nearness(happens, self.reach, number.dtype)
        after = nearness(happens.flip(1), self.reach, number.dtype).flip(1)
        shared = torch.cat((self.events(number, category), before, after), dim=-1)
        shared = shared[:, self.reach : shared.shape[1] - self.reach]
        since = nearness(batch.known_number[..., self.known_flags] > 0, self.reach, number.dtype)
        local = torch.cat((self.known(batch.known_number, batch.known_category), since), dim=-1)
        return tuple(part for part in (shared, local) if part.shape[-1])

    def normed(self, parts: Parts) -> Parts:
        return parts


def nearness(
    happens: Bool[Tensor, "shared steps event"], reach: int, dtype: torch.dtype
) -> Float[Tensor, "shared steps event"]:
    """1 at an event, falling linearly in the steps since it, 0 once it is more than `reach` steps ago."""
    step = torch.arange(happens.shape[1], device=happens.device)[:, None]
    last = torch.where(happens, step, -reach - 1).cummax(dim=1).values if happens.numel() else step.expand_as(happens)
    return (1 - (step - last).to(dtype) / (reach + 1)).clamp(min=0)
