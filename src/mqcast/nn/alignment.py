"""Sums over the past whose weights separate: softmax_s(G[t,s] + E[t+h,s]), for one product a weight.

exp(G + E) = exp(G)·exp(E): as many exponentials as there are entries of G and E, not as there are weights. Nothing of
the size of the weights outlives a chunk of creation times; the backward pass multiplies again. Rows whose logits may be
so large that terms vanish take a stable softmax instead; which rows depends only on steps that they may see.

Axes: B batch, H horizon, T creation time, U target, S source step, A channels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mqcast.nn.grid import Grid, cells_of, new_cells, slid

Observer = Callable[[Tensor, int], None]  # takes weights (B, H, T, S) and their first source
CHUNK = 2**20  # weights held at a time, unless one creation time has more: they should stay in the cache
LARGEST_E, LARGEST_SUM = 60.0, 100.0  # |E|, and |E| + the range of G: with these, terms below e^−27 of a sum may vanish


def may_look(
    begun: Bool[Tensor, "batch time"], start: int, stop: int, low: int, lookback: int
) -> Bool[Tensor, "batch query source"]:
    """Which steps low … stop−1 each creation time start … stop−1 may see: t−L ≤ s ≤ t once begun, and always t."""
    t = torch.arange(start, stop, device=begun.device)[:, None]
    s = torch.arange(low, stop, device=begun.device)
    return ((t - lookback <= s) & (s <= t) & begun[:, None, low:stop]) | (s == t)


@dataclass(frozen=True)
class Logits:
    """G[t,s] = now_t·key_s and E[u,s] = ahead_u·key_s, for the last creation times of the window."""

    now_BTA: Float[Tensor, "batch fct channel"]
    ahead_BUA: Float[Tensor, "_ target channel"]
    key_BSA: Float[Tensor, "batch source channel"]
    begun: Bool[Tensor, "batch source"]
    lookback: int

    def chunks(self) -> "Iterator[Chunk]":
        """Chunks of a few creation times: weights stay in the cache, and few are computed only to be masked."""
        batch, num_fcts, _ = self.now_BTA.shape
        num_steps, horizon = self.key_BSA.shape[1], self.ahead_BUA.shape[1] - num_fcts + 1
        first, width = num_steps - num_fcts, min(num_steps, self.lookback + 1)
        size = max(1, min(CHUNK // max(1, batch * horizon * width), -(-width // 6)))
        buffer = self.key_BSA.new_empty(batch * horizon * size * min(num_steps, width + size))
        hidden, sizes = Hidden(self.begun, self.lookback), self._sizes()
        for start in range(0, num_fcts, size):
            fcts = slice(start, min(start + size, num_fcts))
            targets = slice(fcts.start, fcts.stop + horizon - 1)
            sources = slice(max(0, first + fcts.start - self.lookback), first + fcts.stop)
            hidden_BTS = hidden(first + fcts.start, first + fcts.stop, sources.start)
            yield self._chunk(fcts, targets, sources, hidden_BTS, sizes, buffer)

    def _sizes(self) -> tuple[Tensor, ...] | None:
        """Lengths of the vectors; None if they are so short that no row needs a stable softmax."""
        sizes = tuple(part.norm(dim=-1) for part in (self.now_BTA, self.ahead_BUA, self.key_BSA))
        now, ahead, key = (float(size.amax()) if size.numel() else 0.0 for size in sizes)
        return None if ahead * key <= LARGEST_E and (ahead + 2 * now) * key <= LARGEST_SUM else sizes

    def _chunk(
        self,
        fcts: slice,
        targets: slice,
        sources: slice,
        hidden_BTS: Tensor,
        sizes: tuple[Tensor, ...] | None,
        buffer: Tensor,
    ) -> "Chunk":
        key = self.key_BSA[:, sources]
        G_BTS = (self.now_BTA[:, fcts] @ key.mT).masked_fill_(hidden_BTS, -torch.inf)
        E_BUS = self.ahead_BUA[:, targets] @ key.mT
        stable = None
        if sizes is not None:
            of_now, of_ahead, of_key = sizes[0][:, fcts], sizes[1][:, targets], sizes[2][:, sources]
            largest_BT = of_key[:, None].masked_fill(hidden_BTS, 0).amax(dim=-1)
            of_E_BHT = of_ahead.unfold(1, of_now.shape[1], 1) * largest_BT[:, None]
            of_G_B1T = (2 * of_now * largest_BT)[:, None]
            is_unsafe_BHT = (of_E_BHT > LARGEST_E) | (of_E_BHT + of_G_B1T > LARGEST_SUM)
            stable = (is_unsafe_BHT[..., None], G_BTS, E_BUS) if is_unsafe_BHT.any() else None
        eG_BTS = G_BTS.sub(G_BTS.amax(dim=-1, keepdim=True)).exp_()
        eE_BUS = E_BUS.exp() if sizes is None else E_BUS.clamp(max=LARGEST_E).exp_()
        unnormed_BHTS = _unnormed(eG_BTS, eE_BUS, stable, buffer)
        return Chunk(fcts, targets, sources, eG_BTS, eE_BUS, stable, unnormed_BHTS, unnormed_BHTS.sum(-1, keepdim=True))


class Hidden:
    """Masks of what creation times may not see; chunks of one shape share a mask where all series have begun."""

    def __init__(self, begun: Bool[Tensor, "batch time"], lookback: int):
        self.all_begun = bool(begun.all())
        self.begun, self.lookback = begun[:1] if self.all_begun else begun, lookback
        self.known: dict[tuple[int, int], Tensor] = {}

    def __call__(self, start: int, stop: int, low: int) -> Bool[Tensor, "_ query source"]:
        shape = (stop - start, start - low)
        if not self.all_begun or shape not in self.known:
            self.known[shape] = ~may_look(self.begun, start, stop, low, self.lookback)
        return self.known[shape]


@dataclass(frozen=True)
class Chunk:
    """Some creation times, their targets, the steps they look at, and their weights before normalisation."""

    fcts: slice
    targets: slice
    sources: slice
    eG_BTS: Tensor
    eE_BUS: Tensor
    stable: tuple[Tensor, Tensor, Tensor] | None  # which rows take a stable softmax, G and E
    unnormed_BHTS: Tensor  # in a buffer that the next chunk reuses
    norm_BHT1: Tensor

    def recomputed(self, buffer: Tensor) -> Tensor:
        return _unnormed(self.eG_BTS, self.eE_BUS, self.stable, buffer)


def _unnormed(
    eG_BTS: Tensor, eE_BUS: Tensor, stable: tuple[Tensor, Tensor, Tensor] | None, buffer: Tensor
) -> Float[Tensor, "batch horizon fct source"]:
    eE_BHTS = slid(eE_BUS, eG_BTS.shape[1])
    unnormed = torch.mul(eG_BTS[:, None], eE_BHTS, out=buffer[: eE_BHTS.numel()].view(eE_BHTS.shape))
    if stable is not None:
        is_unsafe_BHT1, G_BTS, E_BUS = stable
        logits = G_BTS[:, None] + slid(E_BUS, G_BTS.shape[1])
        unnormed.copy_(torch.where(is_unsafe_BHT1, logits.sub_(logits.amax(dim=-1, keepdim=True)).exp_(), unnormed))
    return unnormed


def aligned_sums(
    logits: Logits,
    value: Float[Tensor, "batch source channel"],
    grid: Grid,
    observe: Observer | None = None,
) -> Float[Tensor, "batch p q channel"]:
    """Σ_s softmax_s(G[t,s] + E[t+h,s]) value_s in each cell of a grid."""
    ahead_BUA = logits.ahead_BUA.expand(len(value), -1, -1)
    parts = (logits.now_BTA, ahead_BUA, logits.key_BSA, value)
    with torch.autocast(value.device.type, enabled=False):
        exact = [part.float() if part.dtype.itemsize < 4 else part for part in parts]
        return AlignedSums.apply(logits.begun, logits.lookback, grid, observe, *exact)  # type: ignore[no-any-return]


class AlignedSums(Function):
    """Chunk by chunk, in the backward pass too."""

    @staticmethod
    def forward(ctx: Any, begun: Tensor, lookback: int, grid: Grid, observe: Observer | None, *parts: Tensor) -> Tensor:
        now_BTA, ahead_BUA, key_BSA, value_BSA = parts
        whole, cells_BHTA = new_cells(value_BSA, grid, now_BTA.shape[1])
        ctx.grid, ctx.chunks, keeps = grid, [], any(ctx.needs_input_grad)
        for chunk in Logits(now_BTA, ahead_BUA, key_BSA, begun, lookback).chunks():
            cells = cells_BHTA[:, :, chunk.fcts]
            sums = chunk.unnormed_BHTS.flatten(1, 2) @ value_BSA[:, chunk.sources]
            torch.div(sums.view_as(cells), chunk.norm_BHT1, out=cells)
            if keeps:
                ctx.chunks.append(chunk)
            if observe is not None:
                observe(chunk.unnormed_BHTS / chunk.norm_BHT1, chunk.sources.start)
        ctx.save_for_backward(*parts, cells_BHTA)
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        now_BTA, ahead_BUA, key_BSA, value_BSA, cells_BHTA = ctx.saved_tensors
        of_now, of_ahead, of_key, of_value = (torch.zeros_like(x) for x in (now_BTA, ahead_BUA, key_BSA, value_BSA))
        gradient_BHTA = cells_of(gradient, ctx.grid, now_BTA.shape[1])
        most = max(chunk.unnormed_BHTS.numel() for chunk in ctx.chunks)
        buffer, other_buffer, skewed = key_BSA.new_empty(most), key_BSA.new_empty(most), Skewed()
        for chunk in ctx.chunks:
            fcts, targets, sources, unnormed = chunk.fcts, chunk.targets, chunk.sources, chunk.recomputed(buffer)
            g = gradient_BHTA[:, :, fcts] / chunk.norm_BHT1
            along = (g * cells_BHTA[:, :, fcts]).sum(dim=-1, keepdim=True)
            g = g.flatten(1, 2)
            of_value[:, sources] += unnormed.flatten(1, 2).mT @ g
            of_weights = other_buffer[: unnormed.numel()].view_as(unnormed)
            torch.bmm(g, value_BSA[:, sources].mT, out=of_weights.flatten(1, 2))
            of_G, of_E = skewed.sums_of_product(unnormed, of_weights.sub_(along))
            key = key_BSA[:, sources]
            of_now[:, fcts] = of_G @ key
            of_ahead[:, targets] += of_E @ key
            of_key[:, sources] += (of_G.mT @ now_BTA[:, fcts]).baddbmm_(of_E.mT, ahead_BUA[:, targets])
        return None, None, None, None, of_now, of_ahead, of_key, of_value


class Skewed:
    """A buffer for x[h, t] at [h, t + h], zero elsewhere: its sums over h are those of a target."""

    def __init__(self) -> None:
        self.shape: torch.Size | None = None

    def sums_of_product(self, one: Float[Tensor, "B H T S"], other: Float[Tensor, "B H T S"]) -> tuple[Tensor, Tensor]:
        """Σ_h one·other of each creation time, and of each target."""
        batch, horizon, num_fcts, num_sources = one.shape
        if one.shape != self.shape:
            width = num_fcts + horizon - 1
            self.shape, self.whole = one.shape, one.new_zeros(batch, horizon, width, num_sources)
            strides = (horizon * width * num_sources, (width + 1) * num_sources, num_sources, 1)
            self.cells = self.whole.as_strided(one.shape, strides)
        torch.mul(one, other, out=self.cells)
        return self.cells.sum(dim=1), self.whole.sum(dim=1)
