"""The decoder: the global branch m_G, which gives the contexts, and the local branch m_L, which gives the quantiles."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mqcast.nn.attention import Block, DecoderInputs, HorizonAttention, Maps
from mqcast.nn.draws import Linear
from mqcast.nn.grid import Grid, slid
from mqcast.nn.layers import (
    RELU,
    Dropout,
    FutureLinear,
    HorizonDropout,
    HorizonLinear,
    Parts,
    PerHorizonLinear,
    SplitLinear,
    zeros,
)
from mqcast.settings import ModelConfig

UNCHANGED = math.log(math.e - 1)  # softplus is 1 there
Contexts = tuple[Float[Tensor, "batch p q context"], Float[Tensor, "batch made agnostic"]]


class AttentionContexts(nn.Module):
    """m_G of MQTransformer: c_{t,h} = HSAttention(h_{:t}, r);  c^a_t = FFN(h_t, r).

    Plain form: `reference.attention.horizon_attention` and `reference.decoder.agnostic_context`.
    """

    def __init__(self, config: ModelConfig, hidden: Sequence[int], position: Sequence[int], horizon: int):
        super().__init__()
        now = (*hidden, *position)
        self.cell = HorizonAttention(config, hidden, position)
        self.block = Block(config, self.cell.dim, now, position, ())
        self.whole_future = config.research.agnostic_context == "future"
        self.future = FutureLinear(position, horizon, config.head_dim, RELU) if position and self.whole_future else None
        self.agnostic = SplitLinear(hidden if self.whole_future else now, config.head_dim, gain=RELU)
        self.dropout = Dropout(config.dropout)
        self.dims = (self.block.dim, config.head_dim)
        self.has_kernel = self.block.has_kernel

    def forward(self, inputs: DecoderInputs, grid: Grid, maps: Maps | None) -> Contexts:
        m = min(grid.num_made, inputs.num_steps)
        specific = self.block(self.cell(inputs, grid, maps, self.block.map), inputs, (), grid)
        return specific, self.agnostic_context(inputs, m)

    def agnostic_context(self, inputs: DecoderInputs, num_made: int) -> Float[Tensor, "batch made agnostic"]:
        agnostic = self.agnostic(inputs.hidden_now(num_made) if self.whole_future else inputs.now(num_made))
        if self.future is not None:
            agnostic = agnostic + self.future(inputs.ahead(num_made))
        return self.dropout(F.relu(agnostic))


class DenseContexts(nn.Module):
    """m_G of MQ-CNN and MQ-RNN: dense layers of h_t and of the flattened future covariates.

    Plain form: `reference.decoder.dense_contexts`.
    """

    def __init__(self, config: ModelConfig, hidden: Sequence[int], position: Sequence[int], horizon: int):
        super().__init__()
        a = config.head_dim
        self.future = FutureLinear(position, horizon, a, RELU) if position else None
        self.future_bias = zeros(a) if position else None
        given = (*hidden, *[a] * bool(position))
        self.specific = PerHorizonLinear(given, (), (), a, horizon, RELU)
        self.agnostic = SplitLinear(given, a, gain=RELU)
        self.dropout, self.specific_dropout = Dropout(config.dropout), HorizonDropout(config.dropout)
        self.dims = (a, a)

    def forward(self, inputs: DecoderInputs, grid: Grid, maps: Maps | None) -> Contexts:
        given: Parts = inputs.hidden_now(grid.num_fcts)
        if self.future is not None:
            given = (*given, F.relu(self.future(inputs.ahead(grid.num_fcts)) + self.future_bias))
        specific = self.specific_dropout(F.relu(self.specific(given, (), (), grid)), grid)
        return specific, self.dropout(F.relu(self.agnostic(given)))


def fading(horizon: int) -> Float[Tensor, "horizon pace"]:
    """e^(−(h−1)/τ) at each horizon h, for τ = 1, 4, 16, … below 2·H: how fast the last step loses its weight."""
    paces = [4.0**k for k in range(horizon) if 4**k < 2 * horizon]
    return (-torch.arange(horizon)[:, None] / torch.tensor(paces)).exp()


class LocalMLP(nn.Module):
    """m_L: (ŷ^1_{t+h}, …, ŷ^Q_{t+h}) = m_L(c^a_t, c_{t,h}, c̃_{t,h}, r_{t+h}), the same weights for all t and h.

    It also reads the precedents p_{t,h}, if there are any: how demand went on from here a year or some weeks ago.

    With a horizon code the hidden layer has a bias for each horizon, so that intervals can widen with the lead even
    where positions do not encode it. Where contexts come from attention it also reads h¹_t, by W^h = Σ_τ e^(−(h−1)/τ)
    W_τ: the last sales matter much for tomorrow and little for next month. MQ-CNN's dense contexts have separate
    weights for each horizon; those of neighbouring horizons also differ by chance, and forecasts move without cause.
    Plain form: `reference.decoder.local_mlp`.
    """

    fading: Tensor

    def __init__(
        self,
        config: ModelConfig,
        agnostic: int,
        position: Sequence[int],
        own: Sequence[int],
        horizon: int,
        hidden: Sequence[int],
        precedents: int = 0,
    ):
        super().__init__()
        a, coded = config.head_dim, config.research.horizon_code
        self.of_precedents = zeros(a, precedents) if precedents else None
        self.hidden = HorizonLinear((agnostic,), position, own, a, RELU)
        self.horizon_code = zeros(horizon, 1, a) if coded else None
        self.register_buffer("fading", fading(horizon), persistent=False)
        reads = coded and config.variant.has_attention
        self.horizon_read = zeros(self.fading.shape[1], a, hidden[0]) if reads else None
        self.out = Linear(a, len(config.quantiles))
        self.monotone = config.head == "monotone"
        self.has_kernel = config.variant.has_attention

    def ignore_at_first(self, num_channels: int) -> None:
        """Start without the last channels of `own`, as if the network had no such part."""
        assert self.hidden.own is not None
        with torch.no_grad():
            self.hidden.own.weight[:, -num_channels:] = 0

    def forward(
        self, agnostic: Float[Tensor, "batch made agnostic"], own: Parts, inputs: DecoderInputs, grid: Grid
    ) -> Float[Tensor, "batch p q quantile"]:
        code, pairs, num_made = self.horizon_code, None, agnostic.shape[1]
        if code is not None and self.horizon_read is not None:
            hidden_now = inputs.hidden_now(num_made)[0]
            weight = (self.fading @ self.horizon_read.flatten(1)).view(code.numel(), -1)
            pairs = F.linear(hidden_now, weight, code.flatten()).unflatten(-1, (grid.horizon, -1))
        if self.of_precedents is not None:
            read = F.linear(inputs.precedents_from(num_made), self.of_precedents)
            pairs = read if pairs is None else pairs + read
        hidden = self.hidden((agnostic,), inputs.raw_position_ahead(grid.num_fcts), own, grid, pairs)
        if code is not None and self.horizon_read is None:
            hidden = hidden.add_(grid.of_horizons(code))
        return self.quantiles(self.out(F.relu(hidden, inplace=True)))

    def quantiles(self, raw: Float[Tensor, "*cells quantile"]) -> Float[Tensor, "*cells quantile"]:
        if not self.monotone:
            return raw
        return torch.cat((raw[..., :1], F.softplus(raw[..., 1:])), dim=-1).cumsum(dim=-1)


class SpanMLP(nn.Module):
    """m_L for totals: quantiles of the mean over each span a … b, from the means of what m_L knows at its horizons.

    It starts from the means of the horizons' quantiles, which are those of a mean whose steps rise and fall together,
    and says by how much the middle one is off and how much narrower the others are: they cannot cross. The horizons'
    quantiles are read, and not changed. Each span has a bias and weights for h¹_t. Not in the paper.
    Plain form: `reference.decoder.span_mlp`.
    """

    def __init__(
        self, config: ModelConfig, agnostic: int, position: Sequence[int], own: Sequence[int], hidden: Sequence[int]
    ):
        super().__init__()
        a, num_spans = config.head_dim, len(config.spans)
        self.spans, self.middle = config.spans, middle_of(config.quantiles)
        self.hidden = SplitLinear((agnostic, *position, *own), a, bias=False, gain=RELU)
        self.code, self.read = zeros(num_spans, 1, a), zeros(num_spans, a, hidden[0])
        self.out, self.out_shift = zeros(len(config.quantiles), a), zeros(len(config.quantiles))

    def forward(
        self,
        agnostic: Float[Tensor, "batch made agnostic"],
        own: Parts,
        inputs: DecoderInputs,
        grid: Grid,
        forecasts: Float[Tensor, "batch horizon fct quantile"],
    ) -> Float[Tensor, "batch span fct quantile"]:
        n = grid.num_fcts
        ahead = tuple(self.means(slid(part, n)) for part in inputs.raw_position_ahead(n))
        cells = (agnostic[:, None, -n:], *ahead, *(self.means(grid.forecasts(part)) for part in own))
        read = torch.einsum("btd,sad->bsta", inputs.hidden_now(n)[0], self.read)
        change = F.linear(F.relu(self.hidden(cells) + self.code + read), self.out, self.out_shift)
        base = self.means(forecasts.detach().sort(dim=-1).values)
        rise = F.pad((base.diff(dim=-1) * F.softplus(change[..., 1:] + UNCHANGED)).cumsum(dim=-1), (1, 0))
        m = self.middle
        return base[..., m : m + 1] + change[..., :1] + rise - rise[..., m : m + 1]

    def means(self, cells: Float[Tensor, "batch horizon fct channel"]) -> Float[Tensor, "batch span fct channel"]:
        return torch.stack([cells[:, first - 1 : last].mean(dim=1) for first, last in self.spans], dim=1)


def middle_of(levels: Sequence[float]) -> int:
    """The place of the level closest to the median."""
    return min(range(len(levels)), key=lambda i: abs(levels[i] - 0.5))
