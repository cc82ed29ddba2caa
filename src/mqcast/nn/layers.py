"""Building blocks.

A concatenation [a; b; …] is held as the tuple of its parts, each on its own axes, and never built: a linear map of a
concatenation is a sum of linear maps, and sums broadcast. Parts have axes (batch, time, channel), where batch is 1 for
what all series share and time is 1 for what never changes.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from mqcast.nn.draws import normal, uniform_
from mqcast.nn.functions import applied
from mqcast.nn.grid import Grid

Parts = tuple[Tensor, ...]


def between(parts: Parts, start: int, stop: int) -> Parts:
    """The parts at steps start … stop−1."""
    return tuple(part if part.shape[1] == 1 else part[:, start:stop] for part in parts)


RELU = 2**0.5  # gain of weights before a ReLU, so that activations of deep stacks neither vanish nor explode

SIDE_TAP = 0.1  # initial scale of a centred convolution's outer taps, relative to the middle one


def uniform(*shape: int, fan_in: int, gain: float = 1.0) -> nn.Parameter:
    """Weights whose outputs have the variance of their inputs, times gain²."""
    bound = gain * (3 / max(fan_in, 1)) ** 0.5
    return nn.Parameter(uniform_(torch.empty(*shape), bound))


def zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape))


class SplitLinear(nn.Module):
    """W[x_1; …; x_n] + b as W_1 x_1 + … + W_n x_n + b, each product on its part's own axes, small ones added first."""

    def __init__(
        self, dims: Sequence[int], out_dim: int, bias: bool = True, gain: float = 1.0, fan_in: int | None = None
    ):
        super().__init__()
        self.dims = tuple(dims)
        self.weight = uniform(out_dim, sum(dims), fan_in=fan_in or sum(dims), gain=gain)
        self.bias = zeros(out_dim) if bias else None

    def forward(self, parts: Parts) -> Tensor:
        if len(parts) == 1:
            product = F.linear(parts[0], self.weight)
            return product if self.bias is None else _sum(self.bias, product)
        total = self.bias
        pairs = zip(parts, self.weight.split_with_sizes(self.dims, dim=1), strict=True)
        for part, weight in sorted(pairs, key=lambda pair: pair[0].numel()):
            product = F.linear(part, weight)
            total = product if total is None else _sum(total, product)
        assert total is not None
        return total


def _sum(total: Tensor, product: Tensor) -> Tensor:
    """total + product; without gradients it takes the place of the product, if it has its shape."""
    if torch.is_grad_enabled() or not (total.dim() == 1 or total.shape == product.shape or _fits(total, product)):
        return total + product
    return product.add_(total)


def _fits(total: Tensor, product: Tensor) -> bool:
    """Does the sum have the product's shape?"""
    return all(a in (1, b) for a, b in zip(total.shape, product.shape, strict=True))


class HorizonLinear(nn.Module):
    """W[now_t; ahead_{t+h}; own_{t,h}] + b for every cell of a grid, without the concatenation."""

    def __init__(self, now: Sequence[int], ahead: Sequence[int], own: Sequence[int], out_dim: int, gain: float = 1.0):
        super().__init__()
        fan_in = sum((*now, *ahead, *own))
        self.now = SplitLinear(now, out_dim, gain=gain, fan_in=fan_in)
        self.ahead = SplitLinear(ahead, out_dim, bias=False, gain=gain, fan_in=fan_in) if ahead else None
        self.own = SplitLinear(own, out_dim, bias=False, gain=gain, fan_in=fan_in) if own else None

    def forward(
        self, now: Parts, ahead: Parts, own: Parts, grid: Grid, pairs: Tensor | None = None
    ) -> Float[Tensor, "_ p q out"]:
        """`pairs`, if any, are terms of (t, h) that are added as they are."""
        return grid.linear(*self.terms(now, ahead), own, self.own_weights(), pairs)

    def terms(self, now: Parts, ahead: Parts) -> tuple[Tensor, Tensor | None]:
        """The terms of creation times, and those of targets."""
        return self.now(now), self.ahead(ahead) if self.ahead is not None else None

    def own_weights(self) -> Parts:
        return self.own.weight.split(self.own.dims, dim=1) if self.own is not None else ()


class PerHorizonLinear(nn.Module):
    """W^h[now_t; ahead_{t+h}; own_{t,h}] + b^h: a HorizonLinear with weights of its own for every horizon."""

    def __init__(
        self,
        now: Sequence[int],
        ahead: Sequence[int],
        own: Sequence[int],
        out_dim: int,
        horizon: int,
        gain: float = 1.0,
    ):
        super().__init__()
        self.dims = (*now, *ahead, *own)
        self.weight = uniform(horizon, out_dim, sum(self.dims), fan_in=sum(self.dims), gain=gain)
        self.bias = zeros(horizon, 1, out_dim)

    def forward(self, now: Parts, ahead: Parts, own: Parts, grid: Grid) -> Float[Tensor, "batch p q out"]:
        weights = iter(self.weight.split(self.dims, dim=2))
        if not grid.by_target:
            products = [torch.einsum("btd,hod->bhto", part, next(weights)) for part in now]
            products += [torch.einsum("bhtd,hod->bhto", grid.spread_ahead(part), next(weights)) for part in ahead]
            products += [torch.einsum("bhtd,hod->bhto", part, next(weights)) for part in own]
            return sum(products, start=self.bias)
        num_made = max((part.shape[1] for part in now), default=1)
        cells = [grid.spread(part.expand(-1, num_made, -1)) for part in now]
        cells += [*map(grid.spread_ahead, ahead), *own]
        products = [torch.einsum("bujd,jod->bujo", cell, next(weights).flip(0)) for cell in cells]
        return sum(products, start=grid.of_horizons(self.bias))


class FutureLinear(nn.Module):
    """W[x_{t+1}; …; x_{t+H}] for every creation time t: a convolution whose kernel is the horizon."""

    def __init__(self, dims: Sequence[int], horizon: int, out_dim: int, gain: float = 1.0):
        super().__init__()
        self.dims = tuple(dims)
        self.weight = uniform(out_dim, sum(dims), horizon, fan_in=sum(dims) * horizon, gain=gain)

    def forward(self, ahead: Parts) -> Float[Tensor, "shared fct out"]:
        weights = self.weight.split(self.dims, dim=1)
        products = [F.conv1d(part.mT, weight) for part, weight in zip(ahead, weights, strict=True)]
        return sum(products[1:], start=products[0]).mT


class Convolution(nn.Module):
    """A dilated convolution over time of a concatenation, then ReLU; `taps` are its kernel's offsets, from the first.

    Linear maps of each step first, shifted sums after: out_t = ReLU(Σ_i W_i x_{t + taps_i} + b), where all x exist.
    """

    def __init__(self, dims: Sequence[int], out_dim: int, taps: Sequence[int], centred: bool = False):
        """`centred`: the middle tap starts with nearly all of the weight, so that a step's own code comes first."""
        super().__init__()
        self.taps = tuple(taps)
        self.linear = SplitLinear(dims, out_dim * len(taps), bias=False, gain=RELU, fan_in=sum(dims) * len(taps))
        self.bias = zeros(out_dim)
        if centred:
            share = torch.full((len(taps),), SIDE_TAP)
            share[len(taps) // 2] = 1.0
            share *= (len(taps) / share.square().sum()).sqrt()
            with torch.no_grad():
                self.linear.weight.mul_(share.repeat_interleave(out_dim)[:, None])

    def forward(self, parts: Parts, before: Bool[Tensor, "batch time"] | None = None, causal: bool = False) -> Tensor:
        """Causal: the last tap is at t, and what is before the window is zero, as are the steps `before` a series."""
        mapped = self.linear(parts)
        if before is not None:
            mapped = mapped.masked_fill(before[..., None], 0.0)
        return applied(TapSum, self.taps, causal, mapped, self.bias)  # type: ignore[no-any-return]


class TapSum(Function):
    """ReLU(Σ_i part_i at t + taps_i, + bias); causal: at t + taps_i − the last tap, zero before the first step."""

    @staticmethod
    def forward(ctx, taps: tuple[int, ...], causal: bool, mapped: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        batch, num_steps, _ = mapped.shape
        total = bias.new_empty(batch, num_steps - (0 if causal else taps[-1]), len(bias)).copy_(bias)
        ctx.taps, ctx.causal, ctx.shape, ctx.dtype = taps, causal, mapped.shape, mapped.dtype
        for part, part_steps, steps in TapSum.pieces(mapped, taps, causal):
            total[:, steps] += part[:, part_steps]
        total.clamp_(min=0)
        ctx.save_for_backward(total)
        return total

    @staticmethod
    def pieces(mapped: Tensor, taps: tuple[int, ...], causal: bool) -> Iterator[tuple[Tensor, slice, slice]]:
        """Each part, which of its steps count, and where."""
        for part, tap in zip(mapped.chunk(len(taps), dim=-1), taps, strict=True):
            late = taps[-1] - tap
            stop = max(0, part.shape[1] - late)
            yield part, slice(0 if causal else tap, stop), slice(late if causal else 0, None)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        (total,) = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(gradient, total, 0.0)
        of_mapped = gradient.new_zeros(ctx.shape, dtype=ctx.dtype)
        for part, part_steps, steps in TapSum.pieces(of_mapped, ctx.taps, ctx.causal):
            part[:, part_steps] = gradient[:, steps]
        return None, None, of_mapped, gradient.sum(dim=(0, 1))


class CategoryLinear(nn.Module):
    """W·one-hot(codes) + b, to go through a ReLU: rows of W looked up and added; the one-hot vectors are never built.

    The row of a reserved code 0 (unknown) starts at zero, so that a category that training never saw adds nothing.
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int], out_dim: int, num_unreserved: int = 0):
        super().__init__()
        first = [0, *accumulate(sizes)]
        self.register_buffer("first", torch.tensor(first[:-1]), persistent=False)
        self.weight = uniform(first[-1], out_dim, fan_in=len(sizes), gain=RELU)
        self.bias = zeros(out_dim)
        with torch.no_grad():
            self.weight[first[num_unreserved:-1]] = 0

    def forward(self, codes: Int[Tensor, "*axes category"]) -> Float[Tensor, "*axes out"]:
        rows = F.embedding_bag((codes + self.first).flatten(0, -2), self.weight, mode="sum")
        return rows.unflatten(0, codes.shape[:-1]) + self.bias


class Embeddings(nn.Module):
    """An embedding for each category, side by side; a code 0 (unknown) starts at zero."""

    first: Tensor

    def __init__(self, sizes: Sequence[int], dim: int):
        super().__init__()
        first = [0, *accumulate(sizes)]
        self.register_buffer("first", torch.tensor(first[:-1]), persistent=False)
        self.weight = nn.Parameter(normal(first[-1], dim) * dim**-0.5)
        with torch.no_grad():
            self.weight[first[:-1]] = 0

    def forward(self, codes: Int[Tensor, "batch category"]) -> Float[Tensor, "batch out"]:
        return F.embedding(codes + self.first, self.weight).flatten(1)


class Dropout(nn.Module):
    """Each number is dropped with probability `rate`, decided by 16 random bits: on a CPU far faster than nn.Dropout.

    The bits come from `generator`, on the numbers' device; None: from torch's global one.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        return x * self.kept(x, *x.shape) if self.training and self.rate else x

    def kept(self, like: Tensor, *shape: int) -> Tensor:
        """The factors: 0 where a number is dropped, else 1 / (1 − rate)."""
        count, dropped = math.prod(shape), min(round(self.rate * 2**16), 2**16 - 1)
        bits = torch.empty(-(-count // 4), dtype=torch.int64, device=like.device)
        bits.random_(-(2**63), None, generator=self.generator)
        keep = bits.view(torch.int16)[:count].view(shape) >= dropped - 2**15
        return keep.to(like.dtype).mul_(2**16 / (2**16 - dropped))


class HorizonDropout(Dropout):
    """Dropout of a grid's cells with one mask for all horizons of a creation time."""

    def forward(self, x: Float[Tensor, "batch p q channel"], grid: Grid) -> Float[Tensor, "batch p q channel"]:  # type: ignore[override]
        if not self.training or self.rate == 0:
            return x
        return x * grid.spread(self.kept(x, len(x), grid.num_made, x.shape[-1]))
