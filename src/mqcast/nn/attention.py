"""The attention cells, and the block that stands around each.

Axes: B batch, H horizon, T creation time (the last `num_fcts` steps), S source step, U target step, R lead of an
earlier forecast, A channels of a head, D channels of a context. Logits are scaled by A^(−1/2) and go through a softmax.

Terms of a logit that are the same for all keys of a query change no weight, so they are left out: the static code in
the keys of the horizon-specific attention, r_{s+r} in those of the decoder self-attention, and biases of keys.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mqcast.nn.alignment import Logits, aligned_sums, may_look
from mqcast.nn.arguments import LANES
from mqcast.nn.grid import Grid
from mqcast.nn.layers import HorizonDropout, HorizonLinear, Parts, PerHorizonLinear, SplitLinear, between, uniform
from mqcast.settings import ModelConfig

CHUNK_WEIGHTS = 2**21  # attention weights held at a time, unless one creation time has more
LIKENESS = (1.6, 2.2)  # how sharply a target looks for steps with its r^g and its r^l when learning starts
KEPT_WEIGHTS = 2**27  # beyond this many, the backward pass computes the weights again

Out = Float[Tensor, "mapped head"] | None  # W_o of the block around a cell, if it has one


def mapped(attended: Tensor, out: Out) -> Tensor:
    return attended if out is None else F.linear(attended, out)


@dataclass(frozen=True)
class DecoderInputs:
    """h_t and r_u as parts, and which steps belong to the series."""

    hidden: Parts  # h_t: (B, T, ·), h¹_t first
    position: Parts  # r_u: (1 or B, T+H, ·), normalised
    raw_position: Parts  # r_u before that
    begun: Bool[Tensor, "batch time"]  # False before a series' first row
    horizon: int
    precedents: Float[Tensor, "batch made horizon precedent"] | None = None  # of the last creation times

    @property
    def num_steps(self) -> int:
        return self.begun.shape[1]

    def now(self, num_fcts: int) -> Parts:
        """[h_t; r_t] at the last creation times."""
        return self.hidden_now(num_fcts) + self.position_now(num_fcts)

    def hidden_now(self, num_fcts: int) -> Parts:
        """h_t at the last creation times."""
        return between(self.hidden, self.num_steps - num_fcts, self.num_steps)

    def position_now(self, num_fcts: int) -> Parts:
        """r_t at the last creation times."""
        return between(self.position, self.num_steps - num_fcts, self.num_steps)

    def ahead(self, num_fcts: int) -> Parts:
        """r_u at all target steps of the last creation times."""
        return between(self.position, self.num_steps - num_fcts + 1, self.num_steps + self.horizon)

    def precedents_from(self, num_fcts: int) -> Float[Tensor, "batch fct horizon precedent"]:
        """Those of all targets of the last creation times."""
        assert self.precedents is not None
        return self.precedents[:, -num_fcts:]

    def raw_position_ahead(self, num_fcts: int) -> Parts:
        """The same, not normalised."""
        return between(self.raw_position, self.num_steps - num_fcts + 1, self.num_steps + self.horizon)


@dataclass
class Maps:
    """Collects attention weights for an explanation: (B, H, T, S), over the steps S of the window."""

    history: Tensor | None = None
    feedback: Tensor | None = None
    _chunks: list[Tensor] = field(default_factory=list)

    def add(self, weights: Tensor, first_source: int, num_sources: int) -> None:
        self._chunks.append(F.pad(weights, (first_source, num_sources - first_source - weights.shape[-1])))

    def taken(self) -> Tensor:
        """The added chunks as one tensor; the next block starts with none."""
        whole, self._chunks = torch.cat(self._chunks, dim=2), []
        return whole


def chunks(num_fcts: int, num_steps: int, lookback: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, low): creation times start … stop−1 and the first step any of them looks back to.

    At least four chunks, so that few logits are computed only to be masked; each has at most CHUNK_WEIGHTS weights.
    """
    first = num_steps - num_fcts
    size = max(1, min(-(-num_fcts // 4), CHUNK_WEIGHTS // max(1, rows * min(num_steps, lookback + 1 + num_fcts // 4))))
    for start in range(first, num_steps, size):
        yield start, min(start + size, num_steps), max(0, start - lookback)


def weighted(
    logits_of: Callable[[int, int, int], Float[Tensor, "batch head fct source"]],
    value: Float[Tensor, "batch _ time channel"],
    heads: int,
    num_fcts: int,
    lookback: int,
    maps: Maps | None,
) -> Float[Tensor, "batch head fct channel"]:
    """Σ_s softmax(logits)_s value_s over the look-back of each creation time, chunk by chunk."""
    num_steps = value.shape[2]
    num_weights = value.shape[0] * heads * num_fcts * min(num_steps, lookback + 1)
    recompute = torch.is_grad_enabled() and num_weights > KEPT_WEIGHTS

    def attended(start: int, stop: int, low: int) -> Tensor:
        weights_BHTS = logits_of(start, stop, low).softmax(dim=-1)
        if maps is not None:
            maps.add(weights_BHTS, low, num_steps)
        if value.shape[1] > 1:
            return weights_BHTS @ value[:, :, low:stop]
        return (weights_BHTS.flatten(1, 2) @ value[:, 0, low:stop]).unflatten(1, (heads, -1))

    parts = [
        checkpoint(attended, *bounds, use_reentrant=False) if recompute else attended(*bounds)
        for bounds in chunks(num_fcts, num_steps, lookback, value.shape[0] * heads)
    ]
    return torch.cat(parts, dim=2)


class HorizonAttention(nn.Module):
    """Horizon-specific decoder-encoder attention: first row of tab:eqn.

    A^h_{t,s} = q^h_tᵀ W_qᵀ W_k k_s;  q^h_t = [h_t; r_t; r_{t+h}],  k_s = [h_s; r_s],  v_s = h_s
    c_{t,h} = Σ_{s=t−L}^{t} A^h_{t,s} W_v v_s

    W_q acts on [h_t; r_t] and on r_{t+h} separately, so that a logit is G[t,s] + E[t+h,s]. Unless the start is plain,
    it begins as r_{t+h}ᵀWᵀW r_s: a target looks for steps like itself, and promotions and holidays find their kind
    before anything is learnt. Two channels of the values are then those in which the encoder leaves y_s untouched.
    Plain form: `reference.attention.horizon_attention`.
    """

    def __init__(self, config: ModelConfig, hidden_dims: Sequence[int], position_dims: Sequence[int]):
        super().__init__()
        a = config.head_dim
        self.scale, self.lookback = a**-0.5, config.lookback
        self.query = HorizonLinear((*hidden_dims, *position_dims), position_dims, (), a)
        self.key = SplitLinear((hidden_dims[0], *position_dims), a, bias=False)
        self.value = SplitLinear(hidden_dims, a)
        self.dim = a
        if not config.research.plain_start:
            self._look_for_likeness()

    @torch.no_grad()
    def _look_for_likeness(self) -> None:
        of_hidden, *of_positions = self.key.weight.split(self.key.dims, dim=1)
        for weight, likeness in zip((of_hidden, *of_positions), (0.0, *LIKENESS), strict=False):
            weight *= likeness
        self.query.now.weight.zero_()
        if self.query.ahead is not None:
            self.query.ahead.weight.copy_(torch.cat(of_positions, dim=1))
        read = self.value.weight[:2]
        read.copy_(torch.eye(*read.shape))

    def forward(
        self, inputs: DecoderInputs, grid: Grid, maps: Maps | None, out: Out = None
    ) -> Float[Tensor, "batch p q head_or_mapped"]:
        logits, value_BSA = self.logits_and_values(inputs, min(grid.num_made, inputs.num_steps), out)
        if maps is None:
            return aligned_sums(logits, value_BSA, grid)
        attended = aligned_sums(logits, value_BSA, grid, lambda w, first: maps.add(w, first, inputs.num_steps))
        maps.history = maps.taken()
        return attended

    def logits_and_values(self, inputs: DecoderInputs, num_made: int, out: Out) -> tuple[Logits, Tensor]:
        key_BSA = self.key((inputs.hidden[0], *between(inputs.position, 0, inputs.num_steps)))
        value_BSA = mapped(self.value(inputs.hidden), out)
        now_BTA = self.query.now(inputs.now(num_made)) * self.scale
        if self.query.ahead is not None:
            ahead_BUA = self.query.ahead(inputs.ahead(num_made)) * self.scale
        else:
            ahead_BUA = now_BTA.new_zeros(1, num_made + inputs.horizon - 1, self.dim)
        return Logits(now_BTA, ahead_BUA, key_BSA, inputs.begun, self.lookback), value_BSA


class SharedHeads(nn.Module):
    """Projections of the decoder self-attention, shared by all horizons."""

    def __init__(self, now: Sequence[int], position: Sequence[int], context: int, head_dim: int):
        super().__init__()
        self.scale = head_dim**-0.5
        self.query = HorizonLinear(now, position, (context,), head_dim)
        self.key = SplitLinear((context, *position), head_dim, bias=False)
        self.value = SplitLinear((context,), head_dim)

    def forward(self, context: Tensor, inputs: DecoderInputs, grid: Grid, out: Out) -> Parts:
        """Scaled queries, keys and values."""
        m = min(grid.num_made, inputs.num_steps)
        of_query, of_key, of_value = self.maps(out)
        return (
            grid.linear(*self.query_terms(inputs.now(m), inputs.ahead(grid.num_fcts)), (context,), (of_query,)),
            grid.linear(self.key_now(inputs, m), None, (context,), (of_key,)),
            F.linear(context, *of_value),
        )

    def query_terms(self, now: Parts, ahead: Parts) -> tuple[Tensor, Tensor | None]:
        """The terms of the queries that depend on the creation time, and on the target."""
        of_now, of_ahead = self.query.terms(now, ahead)
        return of_now * self.scale, None if of_ahead is None else of_ahead * self.scale

    def key_now(self, inputs: DecoderInputs, num_made: int) -> Float[Tensor, "_ fct head"]:
        """The term of the keys that depends on the creation time."""
        of_positions = self.key.weight.split(self.key.dims, dim=1)[1:]
        now = inputs.position_now(num_made)
        products = [F.linear(part, weight) for part, weight in zip(now, of_positions, strict=True)]
        return sum(products, start=self.key.weight.new_zeros(1, num_made, len(self.key.weight)))

    def maps(self, out: Out) -> tuple[Tensor, Tensor, Parts]:
        """The maps of a context to its query and its key, then W_o W_v and W_o b_v."""
        assert self.value.bias is not None
        value, shift = self.value.weight, self.value.bias
        of_value = (value, shift) if out is None else (out @ value, out @ shift)
        (of_query,) = self.query.own_weights()
        return of_query * self.scale, self.key.weight[:, : self.key.dims[0]], of_value

    def of_sums(self, attended: Tensor, grid: Grid, out: Out) -> Tensor:
        return attended


class HeadsPerHorizon(nn.Module):
    """Projections for each horizon h: W_k^h is absorbed by the query, W_v^h follows the weighted sum.

    Keys and values are the contexts themselves, so they are never projected H times.
    """

    def __init__(self, now: Sequence[int], position: Sequence[int], context: int, head_dim: int, horizon: int):
        super().__init__()
        self.scale = head_dim**-0.5
        self.query = PerHorizonLinear(now, position, (context,), head_dim, horizon)
        self.key_HAK = uniform(horizon, head_dim, context + sum(position), fan_in=context + sum(position))
        self.value = PerHorizonLinear((), (), (context,), head_dim, horizon)

    def forward(self, context: Tensor, inputs: DecoderInputs, grid: Grid, out: Out) -> Parts:
        m = min(grid.num_made, inputs.num_steps)
        query = self.query(inputs.now(m), inputs.ahead(grid.num_fcts), (context,), grid)
        key_JAK = grid.of_horizons(self.key_HAK[:, None] * self.scale)[0]
        positions = (grid.spread(part).expand(*context.shape[:3], -1) for part in inputs.position_now(m))
        return torch.einsum("buja,jak->bujk", query, key_JAK), torch.cat((context, *positions), dim=-1), context

    def of_sums(self, attended: Tensor, grid: Grid, out: Out) -> Tensor:
        return mapped(self.value((), (), (attended,), grid), out)


class FeedbackAttention(nn.Module):
    """Decoder self-attention over the forecasts of the same target: second row of tab:eqn.

    A^h_{t,s,r} = q_{t,h}ᵀ W_q^{hᵀ} W_k^h k_{s,r};  q_{t,h} = [h_t; c_{t,h}; r_t; r_{t+h}],
    k_{s,r} = [c_{s,r}; r_s; r_{s+r}],  v_{s,r} = c_{s,r}
    c̃_{t,h} = Σ_{(s,r) ∈ H(t,h)} A^h_{t,s,r} W_v^h v_{s,r},  H(t,h) = {(s,r) | s+r = t+h, s ≤ t, r ≤ H}

    By target it is causal attention along a row of the grid: a forecast sees those that were made before it.
    Plain form: `reference.attention.feedback_attention`.
    """

    def __init__(self, config: ModelConfig, hidden: Sequence[int], position: Sequence[int], context: int, horizon: int):
        super().__init__()
        self.dim, self.horizon, now = config.head_dim, horizon, (*hidden, *position)
        self.has_kernel = config.research.feedback_heads == "shared"
        self.heads = (
            SharedHeads(now, position, context, self.dim)
            if config.research.feedback_heads == "shared"
            else HeadsPerHorizon(now, position, context, self.dim, horizon)
        )

    def grids(self, num_fcts: int, num_steps: int) -> tuple[Grid, Grid]:
        """The cells that get forecasts, and the cells whose contexts these need: the same, by target."""
        grid = Grid(self.horizon, num_fcts, by_target=True)
        return grid, grid

    def forward(
        self,
        context: Float[Tensor, "batch target made context"],
        inputs: DecoderInputs,
        grid: Grid,
        maps: Maps | None,
        out: Out = None,
    ) -> Float[Tensor, "batch target made head_or_mapped"]:
        query_BUJK, key_BUJK, value_BUJV = self.heads(context, inputs, grid, out)
        logits_BUJI = query_BUJK @ key_BUJK.mT
        weights_BUJI = logits_BUJI.add_(self._hidden(inputs, grid)).softmax(dim=-1)
        if maps is not None:
            maps.feedback = by_source(grid.forecasts(weights_BUJI), inputs.num_steps)
        return self.heads.of_sums(weights_BUJI @ value_BUJV, grid, out)

    def _hidden(self, inputs: DecoderInputs, grid: Grid) -> Float[Tensor, "_ target made earlier"]:
        """−∞ where a forecast may not look: at later forecasts and at those never made. It always sees itself."""
        order = torch.arange(grid.horizon, device=inputs.begun.device)
        later_JI, itself_JI = order > order[:, None], order == order[:, None]
        begun = inputs.begun[:, -grid.num_made :]
        begun = begun[:1] if begun.all() else begun
        made_BUI = grid.spread(begun.float()[..., None])[..., 0] > 0
        may_BUJI = (made_BUI[:, :, None] & ~later_JI) | itself_JI
        return torch.zeros(may_BUJI.shape, device=order.device).masked_fill_(~may_BUJI, -torch.inf)


def by_source(
    weights: Float[Tensor, "batch horizon fct made"], num_steps: int
) -> Float[Tensor, "batch horizon fct {num_steps}"]:
    """Weights of a target's forecasts, in the order in which they were made, as weights of their creation times."""
    horizon, num_fcts = weights.shape[1:3]
    h, t = torch.arange(horizon)[:, None, None], torch.arange(num_steps - num_fcts, num_steps)[:, None]
    made = torch.arange(horizon) - (horizon - 1)
    source = (t + h + made).clamp(0, num_steps - 1).to(weights.device)  # clamped ones weigh nothing
    whole = weights.new_zeros(*weights.shape[:3], num_steps)
    return whole.scatter_add(-1, source.expand_as(weights), weights)


class AllContextsAttention(nn.Module):
    """MQT-All: attention over the contexts of all horizons at earlier creation times; tab:naive-decoderself.

    A^h_{t,s} = q_tᵀ W_q^{hᵀ} W_k^h k_s;  q_t = [c_{t,1}; …; c_{t,H}; h_t; r_t],  k_s = [c_{s,1}; …; c_{s,H}; r_s],
    v_s = [c_{s,1}; …; c_{s,H}];  c̃_{t,h} = Σ_{s=t−L}^{t} A^h_{t,s} W_v^h v_s
    Plain form: `reference.attention.all_contexts_attention`.
    """

    def __init__(self, config: ModelConfig, hidden: Sequence[int], position: Sequence[int], context: int, horizon: int):
        super().__init__()
        self.dim, self.scale = config.head_dim, config.head_dim**-0.5
        self.horizon, self.lookback = horizon, config.lookback
        self.query = SplitLinear((horizon * context, *hidden, *position), horizon * self.dim)
        self.key = SplitLinear((horizon * context, *position), horizon * self.dim, bias=False)
        self.value = SplitLinear((horizon * context,), horizon * self.dim)

    def grids(self, num_fcts: int, num_steps: int) -> tuple[Grid, Grid]:
        """The cells that get forecasts, and the cells whose contexts these need: also those of the look-back."""
        return Grid(self.horizon, num_fcts), Grid(self.horizon, min(num_fcts + self.lookback, num_steps))

    def forward(
        self,
        context: Float[Tensor, "batch horizon context_fct context"],
        inputs: DecoderInputs,
        grid: Grid,
        maps: Maps | None,
        out: Out = None,
    ) -> Float[Tensor, "batch horizon fct head_or_mapped"]:
        horizon, m, num_fcts = *context.shape[1:3], grid.num_fcts
        first, begun = m - num_fcts, inputs.begun[:, inputs.num_steps - m :]

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (horizon, -1)).transpose(1, 2)

        contexts_BTD = context.transpose(1, 2).flatten(2)
        query_BHTA = heads(self.query((contexts_BTD[:, first:], *inputs.now(num_fcts)))) * self.scale
        key_BHSA = heads(self.key((contexts_BTD, *inputs.position_now(m))))
        value_BHSA = heads(self.value((contexts_BTD,)))

        def logits_of(start: int, stop: int, low: int) -> Tensor:
            logits_BHTS = query_BHTA[:, :, start - first : stop - first] @ key_BHSA[:, :, low:stop].mT
            return logits_BHTS.masked_fill(~may_look(begun, start, stop, low, self.lookback)[:, None], -torch.inf)

        attended = weighted(logits_of, value_BHSA, horizon, num_fcts, self.lookback, maps)
        if maps is not None:
            maps.feedback = F.pad(maps.taken(), (inputs.num_steps - m, 0))
        return mapped(attended, out)


class Block(nn.Module):
    """What stands around an attention cell: nothing, or a residual connection from its query and a layer norm.

    residual: LayerNorm(W_o·attended + W_r·q_{t,h} + b). Unless the start is plain, W_o begins at zero; otherwise noise
    in what is attended to would drive the attention away before it is useful. The cell applies W_o, because it can do
    so before the weighted sum: once for each step rather than once for each forecast. Plain form:
    `reference.attention.block`.
    """

    def __init__(
        self, config: ModelConfig, head_dim: int, now: Sequence[int], ahead: Sequence[int], own: Sequence[int]
    ):
        super().__init__()
        residual = config.research.block == "residual"
        self.dim = config.context_dim if residual else head_dim
        self.has_kernel = head_dim % LANES == self.dim % LANES == 0
        self.dropout = HorizonDropout(config.dropout)
        self.out = SplitLinear((head_dim,), self.dim, bias=False) if residual else None
        self.residual = HorizonLinear(now, ahead, own, self.dim) if residual else None
        self.norm = nn.LayerNorm(self.dim) if residual else None
        if self.out is not None and not config.research.plain_start:
            nn.init.zeros_(self.out.weight)

    @property
    def map(self) -> Out:
        """W_o."""
        return None if self.out is None else self.out.weight

    def forward(
        self, attended: Float[Tensor, "batch p q context"], inputs: DecoderInputs, own: Parts, grid: Grid
    ) -> Float[Tensor, "batch p q context"]:
        """`attended` has been mapped by W_o."""
        attended = self.dropout(attended, grid)
        if self.residual is None or self.norm is None:
            return attended
        m = min(grid.num_made, inputs.num_steps)
        return self.norm(self.residual(inputs.now(m), inputs.ahead(grid.num_fcts), own, grid).add_(attended))
