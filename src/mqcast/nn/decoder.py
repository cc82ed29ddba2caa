"""The decoder: the global branch m_G, which gives the contexts, and the local branch m_L, which gives the quantiles."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mqcast.nn.attention import Block, DecoderInputs, HorizonAttention, Maps
from mqcast.nn.draws import Linear
from mqcast.nn.grid import Grid
from mqcast.nn.layers import (
    RELU,
    Dropout,
    FutureLinear,
    HorizonLinear,
    Parts,
    PerHorizonLinear,
    SplitLinear,
    zeros,
)
from mqcast.settings import ModelConfig

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
        self.dropout = Dropout(config.dropout)
        self.dims = (a, a)

    def forward(self, inputs: DecoderInputs, grid: Grid, maps: Maps | None) -> Contexts:
        given: Parts = inputs.hidden_now(grid.num_fcts)
        if self.future is not None:
            given = (*given, F.relu(self.future(inputs.ahead(grid.num_fcts)) + self.future_bias))
        specific = F.relu(self.specific(given, (), (), grid))
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
