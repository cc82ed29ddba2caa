"""The encoder: h_t = [h¹_t; h²], a causal code of the past and a code of the static covariates."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from mqcast.data.batch import Batch
from mqcast.data.inputs import Inputs
from mqcast.nn.alignment import may_look
from mqcast.nn.attention import weighted
from mqcast.nn.draws import LSTM
from mqcast.nn.kernels import LANES, stacked_convolutions, use_kernels
from mqcast.nn.layers import RELU, CategoryLinear, Convolution, Dropout, Embeddings, Parts, SplitLinear, between
from mqcast.settings import ModelConfig


class TemporalConvolutions(nn.Module):
    """A stack of causal convolutions of kernel 2; the receptive field is 1 + the sum of the dilations.

    Unless the start is plain, it begins with y_t, the first of its inputs, untouched in two channels, ReLU(y_t) and
    ReLU(−y_t), so that attention over h¹_s can read the past; in the others every part of the input has an equal share.
    Plain form: `reference.encoder.temporal_convolutions`.
    """

    def __init__(self, config: ModelConfig, dims: Sequence[int]):
        super().__init__()
        stack = [tuple(dims), *[(config.hidden_dim,)] * (len(config.encoder_dilations) - 1)]
        layers = [
            Convolution(dims, config.hidden_dim, taps=(0, dilation))
            for dims, dilation in zip(stack, config.encoder_dilations, strict=True)
        ]
        self.layers = nn.ModuleList(layers)
        self.has_kernel = len(layers) > 1 and config.hidden_dim % LANES == 0
        if not config.research.plain_start:
            self._pass_on_target(layers, dims, config.hidden_dim)

    @staticmethod
    @torch.no_grad()
    def _pass_on_target(layers: Sequence[Convolution], dims: Sequence[int], hidden_dim: int) -> None:
        for dim, weight in zip(dims, layers[0].linear.weight.split(tuple(dims), dim=1), strict=True):
            weight *= (sum(dims) / (len(dims) * dim)) ** 0.5
        plus, minus = hidden_dim, hidden_dim + 1  # rows of the tap at t
        for i, layer in enumerate(layers):
            weight = layer.linear.weight
            weight[[0, 1, plus, minus]] = 0
            weight[plus, 0], weight[minus, 1 if i else 0] = 1, 1 if i else -1

    def forward(self, parts: Parts, begun: Bool[Tensor, "batch time"]) -> Float[Tensor, "batch time hidden"]:
        before = None if begun.all() else ~begun
        lowest, *above = cast(list[Convolution], list(self.layers))
        x = lowest(parts, before, causal=True)
        if self.has_kernel and use_kernels(x):
            weights, biases = [layer.linear.weight for layer in above], [layer.bias for layer in above]
            return stacked_convolutions(x, begun, weights, biases, [layer.taps[-1] for layer in above])
        for layer in above:
            x = layer((x,), before, causal=True)
        return x


class Recurrence(nn.Module):
    """A causal LSTM; every series starts from a state of zero at its own first step.

    Plain form: `reference.encoder.recurrence`.
    """

    def __init__(self, config: ModelConfig, dims: Sequence[int]):
        super().__init__()
        self.lstm = LSTM(sum(dims), config.hidden_dim, batch_first=True)

    def forward(self, parts: Parts, begun: Bool[Tensor, "batch time"]) -> Float[Tensor, "batch time hidden"]:
        num_steps = begun.shape[1]
        steps = torch.arange(num_steps, device=begun.device)
        first = (~begun).sum(dim=1, keepdim=True)
        x = torch.cat([part.expand(*begun.shape, -1) for part in parts], dim=-1)
        from_first = torch.take_along_dim(x, (steps + first).clamp(max=num_steps - 1)[..., None], dim=1)
        h = torch.take_along_dim(self.lstm(from_first)[0], (steps - first).clamp(min=0)[..., None], dim=1)
        return torch.where(begun[..., None], h, 0.0)


class EncoderAttention(nn.Module):
    """Self-attention over the look-back, two heads, residual with layer norm: the paper's future work.

    Plain form: `reference.encoder.encoder_attention`.
    """

    def __init__(self, config: ModelConfig, position: Sequence[int]):
        super().__init__()
        d = config.hidden_dim
        self.num_heads, self.lookback, self.scale = 2, config.lookback, config.head_dim**-0.5
        self.query = SplitLinear((d, *position), self.num_heads * config.head_dim)
        self.key = SplitLinear((d, *position), self.num_heads * config.head_dim, bias=False)
        self.value = SplitLinear((d,), self.num_heads * config.head_dim)
        self.out = SplitLinear((self.num_heads * config.head_dim,), d)
        self.norm = nn.LayerNorm(d)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, h: Float[Tensor, "batch time hidden"], position: Parts, begun: Bool[Tensor, "batch time"]
    ) -> Float[Tensor, "batch time hidden"]:
        query_BNTA, key_BNSA, value_BNSA = (
            x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x in (self.query((h, *position)) * self.scale, self.key((h, *position)), self.value((h,)))
        )

        def logits_of(start: int, stop: int, low: int) -> Tensor:
            logits = query_BNTA[:, :, start:stop] @ key_BNSA[:, :, low:stop].mT
            return logits.masked_fill(~may_look(begun, start, stop, low, self.lookback)[:, None], -torch.inf)

        attended = weighted(logits_of, value_BNSA, self.num_heads, h.shape[1], self.lookback, maps=None)
        return self.norm(h + self.dropout(self.out((attended.transpose(1, 2).flatten(2),))))


class StaticEncoder(nn.Module):
    """h² = ReLU(W s + b), with categories one-hot or embedded with width d_h each.

    Plain form: `reference.encoder.static_code`.
    """

    def __init__(self, config: ModelConfig, inputs: Inputs):
        super().__init__()
        numbers, sizes, dim = inputs.static_numbers, inputs.static_categories, config.static_dim
        embedded = config.static_encoding == "embedding"
        self.embeddings = Embeddings(sizes, config.hidden_dim) if embedded and sizes else None
        self.one_hot = CategoryLinear(sizes, dim) if not embedded and sizes else None
        width = numbers + (config.hidden_dim * len(sizes) if embedded else 0)
        self.dense = SplitLinear((width,), dim, bias=self.one_hot is None, gain=RELU) if width else None
        self.dropout = Dropout(config.dropout)

    def forward(self, batch: Batch) -> Float[Tensor, "batch 1 static"]:
        number, total = batch.static_number, None
        if self.embeddings is not None:
            number = torch.cat((number, self.embeddings(batch.static_category)), dim=-1)
        if self.dense is not None:
            total = self.dense((number,))
        if self.one_hot is not None:
            rows = self.one_hot(batch.static_category)
            total = rows if total is None else total + rows
        assert total is not None
        return self.dropout(F.relu(total))[:, None]


class Encoder(nn.Module):
    """h¹_t = TemporalConv(y_{:t}, x_{:t}, r_{:t}) (or an LSTM);  h²_t = FFN(s);  h_t = [h¹_t; h²_t]."""

    def __init__(self, config: ModelConfig, inputs: Inputs, position: Sequence[int]):
        super().__init__()
        d = config.hidden_dim
        self.scale_inputs = config.research.scale_inputs
        self.past = CategoryLinear(inputs.past_categories, d) if inputs.past_categories else None
        series = 2 + 2 * inputs.past_numbers + 2 * config.research.scale_inputs
        dims = (series, *[d] * (self.past is not None), *position)
        self.temporal = config.variant.part("encoder")(config, dims)
        self.attention = EncoderAttention(config, position) if config.research.encoder_attention else None
        has_static = inputs.static_numbers or inputs.static_categories
        self.static = StaticEncoder(config, inputs) if has_static else None
        self.dims = (d, *[config.static_dim] * (self.static is not None))

    def forward(self, batch: Batch, position: Parts) -> Parts:
        num_steps = batch.loc.shape[1]
        begun, position = batch.begun[:, :num_steps], between(position, 0, num_steps)
        h = self.temporal((*self._covariates(batch), *position), begun)
        if self.attention is not None:
            h = self.attention(h, position, begun)
        return (h,) if self.static is None else (h, self.static(batch))

    def _covariates(self, batch: Batch) -> Parts:
        """y, whether it was observed, the past columns and whether they were; location and scale."""
        y = batch.inputs()
        columns = [y, batch.observed[:, : y.shape[1]].to(y)]
        if self.scale_inputs:
            columns += [torch.asinh(batch.loc / batch.scale), batch.scale.log()]
        series = torch.cat((torch.stack(columns, dim=-1), batch.past_number, batch.past_observed.to(y)), dim=-1)
        return (series,) if self.past is None else (series, F.relu(self.past(batch.past_category)))
