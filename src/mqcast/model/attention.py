"""The attention cells, and the block that stands around each.

Axes: B batch, H horizon, T creation time (the last `num_fcts` steps), S source step, U target step, R lead of an
earlier forecast, A channels of a head, D channels of a context. Logits are scaled by A^(−1/2) and go through a softmax.

Terms of a logit that are the same for all keys of a query change no weight, so they are left out: the static code in
the keys of the horizon-specific attention, r_{s+r} in those of the decoder self-attention, and biases of keys.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mqcast.config import ModelConfig
from mqcast.model.layers import (
    HorizonDropout,
    HorizonLinear,
    Parts,
    PerHorizonLinear,
    SplitLinear,
    between,
    spread,
    uniform,
)

CHUNK_WEIGHTS = 2**21  # attention weights held at a time, unless one creation time has more
LIKENESS = (1.6, 2.2)  # how sharply a target looks for steps with its r^g and its r^l when learning starts
KEPT_WEIGHTS = 2**27  # beyond this many, training computes the weights anew on the way back


@dataclass(frozen=True)
class Codes:
    """What the decoder sees: h_t and r_u as parts, and which steps are the series' own."""

    hidden: Parts  # (B, T, ·): h¹_t first
    position: Parts  # (1 or B, T+H, ·)
    begun: Bool[Tensor, "batch time"]
    horizon: int

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


@dataclass
class Maps:
    """Where attention weights are written down, if asked for: (B, H, T, S), over the steps S of the window."""

    history: Tensor | None = None
    feedback: Tensor | None = None
    _chunks: list[Tensor] = field(default_factory=list)

    def add(self, weights: Tensor, first_source: int, num_sources: int) -> None:
        self._chunks.append(F.pad(weights, (first_source, num_sources - first_source - weights.shape[-1])))

    def taken(self) -> Tensor:
        """What was added, as one tensor; the next block starts afresh."""
        whole, self._chunks = torch.cat(self._chunks, dim=2), []
        return whole


def may_look(
    begun: Bool[Tensor, "batch time"], start: int, stop: int, low: int, lookback: int
) -> Bool[Tensor, "batch query source"]:
    """Which of the steps low … stop−1 each creation time start … stop−1 may look at: t−L ≤ s ≤ t, once begun; and t."""
    t = torch.arange(start, stop, device=begun.device)[:, None]
    s = torch.arange(low, stop, device=begun.device)
    return ((t - lookback <= s) & (s <= t) & begun[:, None, low:stop]) | (s == t)


def chunks(num_fcts: int, num_steps: int, lookback: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, low): creation times start … stop−1 and the first step any of them looks back to.

    At least four, so that few keys are computed only to be masked; each holds at most CHUNK_WEIGHTS weights.
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
    again = torch.is_grad_enabled() and num_weights > KEPT_WEIGHTS

    def attended(start: int, stop: int, low: int) -> Tensor:
        weights_BHTS = logits_of(start, stop, low).softmax(dim=-1)
        if maps is not None:
            maps.add(weights_BHTS, low, num_steps)
        if value.shape[1] > 1:
            return weights_BHTS @ value[:, :, low:stop]
        return (weights_BHTS.flatten(1, 2) @ value[:, 0, low:stop]).unflatten(1, (heads, -1))

    parts = [
        checkpoint(attended, *bounds, use_reentrant=False) if again else attended(*bounds)
        for bounds in chunks(num_fcts, num_steps, lookback, value.shape[0] * heads)
    ]
    return torch.cat(parts, dim=2)


class HorizonAttention(nn.Module):
    """Horizon-specific decoder-encoder attention: first row of tab:eqn.

    A^h_{t,s} = q^h_tᵀ W_qᵀ W_k k_s;  q^h_t = [h_t; r_t; r_{t+h}],  k_s = [h_s; r_s],  v_s = h_s
    c_{t,h} = Σ_{s=t−L}^{t} A^h_{t,s} W_v v_s

    W_q acts on [h_t; r_t] and on r_{t+h} apart, so that a logit is G[t,s] + E[t+h,s]. At first it is r_{t+h}ᵀWᵀW r_s: a
    target looks for steps like itself, and promotions and holidays find their kind before anything is learnt. Two
    channels of the values start as those in which the encoder leaves y_s untouched, so that it is read as early.
    """

    def __init__(self, config: ModelConfig, hidden_dims: Sequence[int], position_dims: Sequence[int]):
        super().__init__()
        a = config.head_dim
        self.scale, self.lookback = a**-0.5, config.lookback
        self.query = HorizonLinear((*hidden_dims, *position_dims), position_dims, (), a)
        self.key = SplitLinear((hidden_dims[0], *position_dims), a, bias=False)
        self.value = SplitLinear(hidden_dims, a)
        self.dim = a
        with torch.no_grad():
            of_hidden, *of_positions = self.key.weight.split((hidden_dims[0], *position_dims), dim=1)
            for weight, likeness in zip((of_hidden, *of_positions), (0.0, *LIKENESS), strict=False):
                weight *= likeness
            self.query.now.weight.zero_()
            if self.query.ahead is not None:
                self.query.ahead.weight.copy_(torch.cat(of_positions, dim=1))
            read = self.value.weight[:2]
            read.copy_(torch.eye(*read.shape))

    def forward(self, codes: Codes, num_fcts: int, maps: Maps | None) -> Float[Tensor, "batch horizon fct head"]:
        num_steps, horizon, first = codes.num_steps, codes.horizon, codes.num_steps - num_fcts
        key_BSA = self.key((codes.hidden[0], *between(codes.position, 0, num_steps)))
        value_BSA = self.value(codes.hidden)
        now_BTA = self.query.now(codes.now(num_fcts)) * self.scale
        ahead_BUA = self.query.ahead(codes.ahead(num_fcts)) * self.scale if self.query.ahead is not None else None

        def logits_of(start: int, stop: int, low: int) -> Tensor:
            keys_BAS = key_BSA[:, low:stop].mT
            G_BTS = now_BTA[:, start - first : stop - first] @ keys_BAS
            G_BTS = G_BTS.masked_fill(~may_look(codes.begun, start, stop, low, self.lookback), -torch.inf)
            if ahead_BUA is None:
                return G_BTS[:, None].expand(-1, horizon, -1, -1)
            E_BUS = ahead_BUA[:, start - first : stop - first + horizon - 1] @ keys_BAS
            return G_BTS[:, None] + spread(E_BUS, stop - start)

        attended = weighted(logits_of, value_BSA[:, None], horizon, num_fcts, self.lookback, maps)
        if maps is not None:
            maps.history = maps.taken()
        return attended


def by_target(x: Shaped[Tensor, "batch horizon fct channel"]) -> Shaped[Tensor, "batch horizon target channel"]:
    """[b, h, t] → [b, h, t + h], zero where no creation time is: a padded copy read with rows one step shorter."""
    horizon, num_fcts = x.shape[1:3]
    flat = F.pad(x, (0, 0, 0, horizon)).flatten(1, 2)[:, : horizon * (num_fcts + horizon - 1)]
    return flat.unflatten(1, (horizon, -1))


def by_creation_time(x: Float[Tensor, "batch horizon target channel"]) -> Float[Tensor, "batch horizon fct channel"]:
    """The way back: [b, h, t + h] → [b, h, t]."""
    horizon, num_targets = x.shape[1:3]
    flat = F.pad(x.flatten(1, 2), (0, 0, 0, horizon))
    return flat.unflatten(1, (horizon, -1))[:, :, : num_targets - horizon + 1]


class SharedHeads(nn.Module):
    """Projections of the decoder self-attention that all horizons share."""

    def __init__(self, now: Sequence[int], position: Sequence[int], context: int, head_dim: int):
        super().__init__()
        self.query = HorizonLinear(now, position, (context,), head_dim)
        self.key = SplitLinear((context, *position), head_dim, bias=False)
        self.value = SplitLinear((context,), head_dim)

    def forward(self, context: Tensor, codes: Codes) -> tuple[Tensor, Tensor, Tensor]:
        m = context.shape[2]
        query_BHTA = self.query(codes.now(m), codes.ahead(m), (context,), m)
        key_BHTA = self.key((context, *(part[:, None] for part in codes.position_now(m))))
        return query_BHTA, key_BHTA, self.value((context,))

    def out(self, attended: Tensor) -> Tensor:
        return attended


class HeadsPerHorizon(nn.Module):
    """Projections for each horizon h: W_k^h is absorbed by the query, W_v^h follows the weighted sum.

    Keys and values are the contexts themselves, so they are never projected H times.
    """

    def __init__(self, now: Sequence[int], position: Sequence[int], context: int, head_dim: int, horizon: int):
        super().__init__()
        self.query = PerHorizonLinear(now, position, (context,), head_dim, horizon)
        self.key_HAK = uniform(horizon, head_dim, context + sum(position), fan_in=context + sum(position))
        self.value = PerHorizonLinear((), (), (context,), head_dim, horizon)

    def forward(self, context: Tensor, codes: Codes) -> tuple[Tensor, Tensor, Tensor]:
        m = context.shape[2]
        query_BHTA = self.query(codes.now(m), codes.ahead(m), (context,), m)
        positions = (part[:, None].expand(*context.shape[:3], -1) for part in codes.position_now(m))
        return query_BHTA @ self.key_HAK, torch.cat((context, *positions), dim=-1), context

    def out(self, attended: Tensor) -> Tensor:
        return self.value((), (), (attended,), attended.shape[2])


class FeedbackAttention(nn.Module):
    """Decoder self-attention over the forecasts of the same target: second row of tab:eqn.

    A^h_{t,s,r} = q_{t,h}ᵀ W_q^{hᵀ} W_k^h k_{s,r};  q_{t,h} = [h_t; c_{t,h}; r_t; r_{t+h}],
    k_{s,r} = [c_{s,r}; r_s; r_{s+r}],  v_{s,r} = c_{s,r}
    c̃_{t,h} = Σ_{(s,r) ∈ H(t,h)} A^h_{t,s,r} W_v^h v_{s,r},  H(t,h) = {(s,r) | s+r = t+h, s ≤ t, r ≤ H}

    Arranged by target, it is causal attention over leads: a query of lead h sees the keys of leads r ≥ h.
    """

    def __init__(self, config: ModelConfig, hidden: Sequence[int], position: Sequence[int], context: int, horizon: int):
        super().__init__()
        self.dim, self.scale = config.head_dim, config.head_dim**-0.5
        now = (*hidden, *position)
        shared = config.feedback_heads == "shared"
        self.heads = (
            SharedHeads(now, position, context, self.dim)
            if shared
            else HeadsPerHorizon(now, position, context, self.dim, horizon)
        )

    def forward(
        self,
        context: Float[Tensor, "batch horizon context_fct context"],
        codes: Codes,
        num_fcts: int,
        maps: Maps | None,
    ) -> Float[Tensor, "batch horizon fct head"]:
        horizon, m = context.shape[1:3]
        query, key, value = self.heads(context, codes)
        begun = codes.begun[:, None, codes.num_steps - m :, None].expand(-1, horizon, -1, -1)
        query_BUHK, key_BURK, value_BURV, made_BUR1 = (
            by_target(x)[:, :, m - num_fcts :].transpose(1, 2) for x in (query * self.scale, key, value, begun)
        )
        lead = torch.arange(horizon, device=context.device)
        earlier_HR, own_HR = lead >= lead[:, None], lead == lead[:, None]
        attended, weights = [], []
        size = max(1, CHUNK_WEIGHTS // max(1, len(context) * horizon**2))
        for u in (slice(i, i + size) for i in range(0, query_BUHK.shape[1], size)):
            may_look_BUHR = (made_BUR1[:, u].mT & earlier_HR) | own_HR
            logits_BUHR = query_BUHK[:, u] @ key_BURK[:, u].mT
            weights_BUHR = logits_BUHR.masked_fill(~may_look_BUHR, -torch.inf).softmax(dim=-1)
            attended.append(weights_BUHR @ value_BURV[:, u])
            if maps is not None:
                weights.append(weights_BUHR)
        if maps is not None:
            weights_BHTR = by_creation_time(torch.cat(weights, dim=1).transpose(1, 2))
            maps.feedback = by_source(weights_BHTR, codes.num_steps)
        return self.heads.out(by_creation_time(torch.cat(attended, dim=1).transpose(1, 2)))


def by_source(
    weights: Float[Tensor, "batch horizon fct lead"], num_steps: int
) -> Float[Tensor, "batch horizon fct {num_steps}"]:
    """Weights of leads r as weights of the creation times s = t + h − r."""
    horizon, num_fcts = weights.shape[1:3]
    h, t = torch.arange(horizon)[:, None, None], torch.arange(num_steps - num_fcts, num_steps)[:, None]
    source = (t + h - torch.arange(horizon)).clamp(0, num_steps - 1).to(weights.device)  # clamped ones weigh nothing
    whole = weights.new_zeros(*weights.shape[:3], num_steps)
    return whole.scatter_add(-1, source.expand_as(weights), weights)


class AllContextsAttention(nn.Module):
    """MQT-All: attention over the contexts of all horizons at earlier creation times; tab:naive-decoderself.

    A^h_{t,s} = q_tᵀ W_q^{hᵀ} W_k^h k_s;  q_t = [c_{t,1}; …; c_{t,H}; h_t; r_t],  k_s = [c_{s,1}; …; c_{s,H}; r_s],
    v_s = [c_{s,1}; …; c_{s,H}];  c̃_{t,h} = Σ_{s=t−L}^{t} A^h_{t,s} W_v^h v_s
    """

    def __init__(self, config: ModelConfig, hidden: Sequence[int], position: Sequence[int], context: int, horizon: int):
        super().__init__()
        self.dim, self.scale, self.lookback = config.head_dim, config.head_dim**-0.5, config.lookback
        self.query = SplitLinear((horizon * context, *hidden, *position), horizon * self.dim)
        self.key = SplitLinear((horizon * context, *position), horizon * self.dim, bias=False)
        self.value = SplitLinear((horizon * context,), horizon * self.dim)

    def forward(
        self,
        context: Float[Tensor, "batch horizon context_fct context"],
        codes: Codes,
        num_fcts: int,
        maps: Maps | None,
    ) -> Float[Tensor, "batch horizon fct head"]:
        horizon, m = context.shape[1:3]
        first, begun = m - num_fcts, codes.begun[:, codes.num_steps - m :]

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (horizon, -1)).transpose(1, 2)

        contexts_BTD = context.transpose(1, 2).flatten(2)
        query_BHTA = heads(self.query((contexts_BTD[:, first:], *codes.now(num_fcts)))) * self.scale
        key_BHSA = heads(self.key((contexts_BTD, *codes.position_now(m))))
        value_BHSA = heads(self.value((contexts_BTD,)))

        def logits_of(start: int, stop: int, low: int) -> Tensor:
            logits_BHTS = query_BHTA[:, :, start - first : stop - first] @ key_BHSA[:, :, low:stop].mT
            return logits_BHTS.masked_fill(~may_look(begun, start, stop, low, self.lookback)[:, None], -torch.inf)

        attended = weighted(logits_of, value_BHSA, horizon, num_fcts, self.lookback, maps)
        if maps is not None:
            maps.feedback = F.pad(maps.taken(), (codes.num_steps - m, 0))
        return attended


class Block(nn.Module):
    """What stands around an attention cell: nothing, or a residual connection from its query and a layer norm.

    residual: LayerNorm(W_o·attended + W_r·q_{t,h} + b), of width d_h. W_o starts at zero, or the noise of what is
    attended to would drive the attention away from it before it is of use.
    """

    def __init__(
        self, config: ModelConfig, head_dim: int, now: Sequence[int], ahead: Sequence[int], own: Sequence[int]
    ):
        super().__init__()
        residual = config.block == "residual"
        self.dim = config.hidden_dim if residual else head_dim
        self.dropout = HorizonDropout(config.dropout)
        self.out = SplitLinear((head_dim,), self.dim, bias=False) if residual else None
        self.residual = HorizonLinear(now, ahead, own, self.dim) if residual else None
        self.norm = nn.LayerNorm(self.dim) if residual else None
        if self.out is not None:
            nn.init.zeros_(self.out.weight)

    def forward(
        self, attended: Float[Tensor, "batch horizon fct head"], codes: Codes, own: Parts
    ) -> Float[Tensor, "batch horizon fct context"]:
        attended, num_fcts = self.dropout(attended), attended.shape[2]
        if self.out is None or self.residual is None or self.norm is None:
            return attended
        residual = self.residual(codes.now(num_fcts), codes.ahead(num_fcts), own, num_fcts)
        return self.norm(self.out((attended,)) + residual)
