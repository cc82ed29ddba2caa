"""The cells of the decoder: creation times t and horizons h on two axes, and sums over them.

By horizon, cell [h, t] is the forecast made at t: what belongs to t is fixed along h, what belongs to the target t + h
slides. By target, cell [u, j] is the forecast of target u made at t = u + j, so that the forecasts of one target are a
row in the order in which they were made: what belongs to u is fixed along j, what belongs to t slides. Its first H − 1
creation times are those before the wanted ones; cells beyond the last creation time exist but are unused.

Axes: B batch, P and Q those of the cells, D channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

from mqcast.nn.functions import applied


@dataclass(frozen=True)
class Grid:
    """The cells of `num_fcts` creation times whose forecasts are wanted, and their layout."""

    horizon: int
    num_fcts: int
    by_target: bool = False

    @property
    def num_made(self) -> int:
        """Creation times that have cells."""
        return self.num_fcts + (self.horizon - 1 if self.by_target else 0)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.num_made, self.horizon) if self.by_target else (self.horizon, self.num_fcts)

    def linear(
        self,
        now: Float[Tensor, "_ _ out"],
        ahead: Float[Tensor, "_ _ out"] | None,
        own: Sequence[Float[Tensor, "batch p q _"]] = (),
        weights: Sequence[Float[Tensor, "out _"]] = (),
        pairs: Float[Tensor, "batch _ horizon out"] | None = None,
    ) -> Float[Tensor, "_ p q out"]:
        """now_t + ahead_{t+h} + pair_{t,h} + Σ_i W_i own_i of each cell.

        `now` and `pairs` may lack the first creation times.
        """
        if ahead is None:
            ahead = now.new_zeros(1, self.num_fcts + self.horizon - 1, now.shape[-1])
        fixed, sliding = (ahead[:, :, None], self._to_slide(now)) if self.by_target else (now[:, None], ahead)
        parts = (fixed, sliding, pairs, *own, *weights)
        if torch.is_autocast_enabled(now.device.type):
            dtype = torch.get_autocast_dtype(now.device.type)
            parts = tuple(None if part is None else part.to(dtype) for part in parts)
        return applied(CellSum, self, *parts)  # type: ignore[no-any-return]

    def spread(self, now: Float[Tensor, "_ _ channel"]) -> Float[Tensor, "_ _ _ channel"]:
        """What belongs to creation times, for each cell: a view."""
        return slid(self._to_slide(now), self.horizon) if self.by_target else now[:, None]

    def spread_ahead(self, ahead: Float[Tensor, "_ _ channel"]) -> Float[Tensor, "_ _ _ channel"]:
        """What belongs to targets, for each cell: a view."""
        return ahead[:, :, None] if self.by_target else slid(ahead, self.num_fcts)

    def of_horizons(self, each: Float[Tensor, "horizon 1 *axes"]) -> Float[Tensor, "_ _ *axes"]:
        """What belongs to horizons, on the axes of the cells."""
        return each.flip(0).transpose(0, 1) if self.by_target else each

    def _to_slide(self, now: Tensor) -> Tensor:
        return F.pad(now, (0, 0, self.num_made - now.shape[1], self.horizon - 1))

    def forecasts(self, cells: Float[Tensor, "batch p q channel"]) -> Float[Tensor, "batch {self.horizon} fct channel"]:
        """The cells of the wanted creation times, by horizon."""
        return applied(Forecasts, cells) if self.by_target else cells  # type: ignore[no-any-return]


def slid(steps: Float[Tensor, "batch steps channel"], size: int) -> Float[Tensor, "batch p {size} channel"]:
    """A view [b, p, q] = steps[b, p + q]."""
    return steps.unfold(1, size, 1).transpose(2, 3)


def slid_sum(cells: Float[Tensor, "batch p q channel"]) -> Float[Tensor, "batch steps channel"]:
    """Σ_{p+q} cells[b, p, q], the backward pass of `slid`: whole diagonals at once, after padding two corners."""
    if cells.shape[1] < cells.shape[2]:
        cells = cells.transpose(1, 2)
    q = cells.shape[2]
    first, last = F.pad(cells[:, : q - 1], (0, 0, 0, 0, q - 1, 0)), F.pad(cells[:, 1 - q :], (0, 0, 0, 0, 0, q - 1))
    parts = (first, cells, last) if q > 1 else (cells,)
    return torch.cat([_diagonals(part).sum(dim=2) for part in parts], dim=1)


def _diagonals(cells: Float[Tensor, "batch p q channel"]) -> Float[Tensor, "batch diagonal q channel"]:
    """A view of the diagonals p + q = q_max … p_max."""
    (batch, p, q, d), (of_batch, of_p, of_q, of_d) = cells.shape, cells.stride()
    strides = (of_batch, of_p, abs(of_p - of_q), of_d)
    return cells.as_strided((batch, p - q + 1, q, d), strides, cells.storage_offset() + (q - 1) * min(of_p, of_q))


def new_cells(like: Tensor, grid: Grid, num_fcts: int) -> tuple[Tensor, Tensor]:
    """A buffer for the cells, and a view of it as (B, H, T, ·) at the last `num_fcts` creation times.

    By target, forecasts of targets before the first one fall into unused cells of the series before; those of the
    first series fall into extra rows before all cells.
    """
    batch, dim, (p, q) = len(like), like.shape[-1], grid.shape
    if not grid.by_target:
        cells = like.new_empty(batch, p, q, dim)
        return cells, cells
    rows = like.new_zeros(q - 1 + batch * p, q, dim)
    cells = like.new_empty(0).set_(rows.untyped_storage(), (q - 1) * q * dim, (batch, p, q, dim))  # type: ignore[call-overload]
    return cells, _by_creation_time(rows, batch, grid, num_fcts)


def cells_of(cells: Tensor, grid: Grid, num_fcts: int) -> Tensor:
    """The same view of given cells."""
    if not grid.by_target:
        return cells
    rows = F.pad(cells.flatten(0, 1), (0, 0, 0, 0, grid.horizon - 1, 0))
    return _by_creation_time(rows, len(cells), grid, num_fcts)


def _by_creation_time(rows: Float[Tensor, "rows j channel"], batch: int, grid: Grid, num_fcts: int) -> Tensor:
    j, d = rows.shape[1:]
    strides = (grid.num_made * j * d, (j - 1) * d, j * d, 1)
    return rows.as_strided((batch, j, grid.num_made, d), strides, (j - 1) * d)[:, :, grid.num_made - num_fcts :]


class Forecasts(Function):
    """From cells by target to cells by horizon."""

    @staticmethod
    def forward(ctx: FunctionCtx, cells: Tensor) -> Tensor:
        ctx.shape = cells.shape  # type: ignore[attr-defined]
        return _diagonals(cells.contiguous()).transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[override]
        cells = gradient.new_zeros(ctx.shape)
        _diagonals(cells).copy_(gradient.transpose(1, 2))
        return cells


class CellSum(Function):
    """fixed + sliding_{p+q} + pairs + Σ_i W_i own_i, summed in one buffer."""

    @staticmethod
    def forward(ctx, grid: Grid, fixed: Tensor, sliding: Tensor, pairs: Tensor | None, *own_and_weights: Tensor):  # type: ignore[override]
        ctx.save_for_backward(*own_and_weights)
        n, num_q = len(own_and_weights) // 2, grid.shape[1]
        num_pairs = 0 if pairs is None else pairs.shape[1]
        ctx.grid, ctx.num_pairs, ctx.shapes = grid, num_pairs, (fixed.shape, sliding.shape)
        first = () if pairs is None else (pairs,)
        batch = next((len(part) for part in (fixed, sliding, *first, *own_and_weights[:n]) if len(part) != 1), 1)
        fixed = fixed.expand(batch, -1, -1, -1)
        total, by_fct_BHTD = new_cells(fixed, grid, num_pairs)
        torch.add(fixed, slid(sliding, num_q), out=total)
        if pairs is not None:
            by_fct_BHTD += pairs.transpose(1, 2)
        for own, weight in zip(own_and_weights[:n], own_and_weights[n:], strict=True):
            total.view(-1, total.shape[-1]).addmm_(own.reshape(-1, own.shape[-1]), weight.mT)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):  # type: ignore[override]
        saved, gradient = ctx.saved_tensors, gradient.contiguous()
        n, flat = len(saved) // 2, gradient.flatten(0, 2)
        fixed_shape, sliding_shape = ctx.shapes
        of_fixed = of_sliding = of_pairs = None
        if ctx.needs_input_grad[1]:
            of_fixed = gradient.sum(dim=2 if fixed_shape[2] == 1 else 1, keepdim=True).sum_to_size(fixed_shape)
        if ctx.needs_input_grad[2]:
            of_sliding = slid_sum(gradient).sum_to_size(sliding_shape)
        if ctx.needs_input_grad[3]:
            of_pairs = cells_of(gradient, ctx.grid, ctx.num_pairs).transpose(1, 2).contiguous()
        of_own = [(flat @ weight).view(own.shape) for own, weight in zip(saved[:n], saved[n:], strict=True)]
        of_weights = [flat.mT @ own.reshape(-1, own.shape[-1]) for own in saved[:n]]
        return None, of_fixed, of_sliding, of_pairs, *of_own, *of_weights
