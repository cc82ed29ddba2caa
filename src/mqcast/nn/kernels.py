"""The compiled kernels (kernels.c), and the one switch between them and plain PyTorch.

They compute what encoder.py, alignment.py, attention.py and decoder.py do, in less time. A part with a compiled form
says so by `has_kernel`, and asks `use_kernels` at each call. `status()` says whether there are kernels, or why there
are none.
"""

import ctypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from mqcast.errors import KernelError
from mqcast.nn import library
from mqcast.nn.arguments import LANES, LayoutError, Signature, signatures_of
from mqcast.nn.functions import applied

ENV_VAR = "MQCAST_KERNELS"  # "off" turns the kernels off
COMPILED = "compiled"  # the status of kernels that can be used


@dataclass(frozen=True)
class Kernels:
    functions: ctypes.CDLL
    signatures: dict[str, Signature]


@cache
def _kernels() -> tuple[Kernels | None, str]:
    """The kernels and their status, or None and why there are none."""
    if os.environ.get(ENV_VAR, "").lower() == "off":
        return None, f"plain PyTorch: {ENV_VAR}=off"
    try:
        functions = library.load(library.FOLDER)
        return Kernels(functions, signatures_of(functions)), COMPILED
    except library.RefusedError as why:
        return None, f"plain PyTorch: {why}"
    except LayoutError as why:
        return None, f"plain PyTorch: the kernels do not fit this version of mqcast: {why}; {library.REINSTALL}"


def status() -> str:
    return _kernels()[1]


def use_kernels(*tensors: Tensor) -> bool:
    """The switch: are there kernels, and can they take such tensors? They take no empty ones."""
    return (
        _kernels()[0] is not None
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and all(x.is_cpu and x.dtype == torch.float32 and x.numel() > 0 for x in tensors)
    )


def _call(function: str, step: str, sizes: dict[str, int], tensors: dict[str, Tensor]) -> None:
    kernels, why = _kernels()
    if kernels is None:
        raise KernelError(f"{function} is not available ({why})")
    arguments = kernels.signatures[step].arguments(function, sizes, tensors)
    if getattr(kernels.functions, function)(ctypes.byref(arguments)):
        raise MemoryError("out of memory in the kernels; use a smaller micro-batch")


def _contiguous(x: Tensor) -> Tensor:
    """The tensor, or a copy if it is not contiguous or not aligned."""
    x = x.resolve_neg().contiguous()
    return x.clone() if x.data_ptr() % x.element_size() else x


def _gradients(names: Iterable[str], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"d_{name}": torch.zeros_like(tensors[name]) for name in names}


def stacked_convolutions(
    x: Float[Tensor, "batch time channel"],
    begun: Bool[Tensor, "batch time"],
    weights: Sequence[Float[Tensor, "taps channel"]],
    biases: Sequence[Float[Tensor, " channel"]],
    dilations: Sequence[int],
) -> Float[Tensor, "batch time channel"]:
    """ReLU(W_0 x_{t−dilation} + W_1 x_t + b), layer after layer, for each series from its first step on."""
    if min(dilations) < 0:
        raise KernelError(f"dilations of {tuple(dilations)} look ahead; they must be 0 or more")
    steps = torch.tensor([min(dilation, x.shape[1]) for dilation in dilations])  # beyond the window there is nothing
    return applied(_Stack, _contiguous(begun), steps, _contiguous(x), *weights, *biases)  # type: ignore[no-any-return]


class _Stack(Function):
    @staticmethod
    def forward(ctx: Any, begun: Tensor, dilations: Tensor, x: Tensor, *parameters: Tensor) -> Tensor:
        batch, steps, channels = x.shape
        layers = len(dilations)
        ctx.sizes = {"batch": batch, "steps": steps, "channels": channels, "layers": layers}
        weight = torch.stack(parameters[:layers]).view(layers, 2, channels, channels)
        given = {"begun": begun, "dilations": dilations, "x": x, "weight": weight, "weight_T": weight.mT.contiguous()}
        given |= {"bias": torch.stack(parameters[layers:]), "out": x.new_empty(layers, *x.shape)}
        _call("stack_forward", "Stack", ctx.sizes, given)
        ctx.names = tuple(given)
        ctx.save_for_backward(*given.values())
        return given["out"][-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        given = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        gradients = _gradients(("weight_T", "bias"), given) | {"d_x": torch.empty_like(given["x"])}
        _call("stack_backward", "Stack", ctx.sizes, given | gradients | {"d_out": _contiguous(d_out)})
        weights = gradients["d_weight_T"].mT.flatten(1, 2)
        return None, None, gradients["d_x"], *weights.unbind(), *gradients["d_bias"].unbind()


def aligned_contexts(
    now: Float[Tensor, "batch fct head"],
    ahead: Float[Tensor, "_ target head"],
    key: Float[Tensor, "batch time head"],
    value: Float[Tensor, "batch time channel"],
    begun: Bool[Tensor, "batch time"],
    lookback: int,
    wanted: int,
) -> Float[Tensor, "batch fct horizon channel"]:
    """Σ_s softmax_s(now_t·key_s + ahead_{t+h}·key_s) value_s, as in `alignment.aligned_sums`.

    Before the last `wanted` creation times, only cells that share a target with them are computed; the rest is
    undefined.
    """
    parts = (_contiguous(part) for part in (now, ahead, key, value))
    lookback = min(lookback, key.shape[1] - 1)  # buffers are this wide
    return applied(_AlignedContexts, _contiguous(begun), lookback, wanted, *parts)  # type: ignore[no-any-return]


class _AlignedContexts(Function):
    @staticmethod
    def forward(ctx: Any, begun: Tensor, lookback: int, wanted: int, *parts: Tensor) -> Tensor:
        now, ahead, key, value = parts
        batch, made, heads = now.shape
        horizon = ahead.shape[1] - made + 1
        sizes = {"batch": batch, "steps": key.shape[1], "made": made, "wanted": wanted, "horizon": horizon}
        sizes |= {"heads": heads, "channels": value.shape[-1], "lookback": lookback, "shared_ahead": len(ahead) == 1}
        cells, norm = now.new_empty(batch, made, horizon, value.shape[-1]), now.new_empty(batch, made, horizon)
        tensors = (begun, *parts, cells, norm)
        _call("align_forward", "Align", sizes, _AlignedContexts.named(tensors))
        ctx.sizes = sizes
        ctx.save_for_backward(*tensors)
        return cells

    @staticmethod
    def named(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        return dict(zip(("begun", "now", "ahead", "key", "value", "cells", "norm"), tensors, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_cells: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        named = _AlignedContexts.named(ctx.saved_tensors)
        gradients = _gradients(("now", "ahead", "key", "value"), named)
        _call("align_backward", "Align", ctx.sizes, named | gradients | {"d_cells": _contiguous(d_cells)})
        return None, None, None, *gradients.values()


DIFFERENTIABLE = (
    "attended", "block_now", "block_ahead", "block_gain", "block_shift", "local_now", "local_ahead", "read", "code",
    "of_precedent", "of_context", "out", "out_shift",
)  # fmt: skip
OF_FEEDBACK = (
    "query_now", "query_ahead", "key_now", "value_shift", "feedback_block_now", "feedback_block_ahead",
    "feedback_block_gain", "feedback_block_shift", "of_feedback",
)  # fmt: skip
WEIGHTS = ("of_context", "of_feedback", "out")


@dataclass(frozen=True)
class DecoderCall:
    """The decoder's arguments after the horizon-specific attention; `parts` are named as in kernels.c.

    Without those of `OF_FEEDBACK` there is no attention over earlier forecasts, without those of blocks the attention
    cells are bare, without `code` and `read` m_L has the same weights for all horizons, and without `precedent` and
    `of_precedent` it does not read precedents. `of_context`,
    `of_feedback` and `out` are the weights (out × in) of the linear maps of c, c̃ and the hidden layer.
    """

    begun: Bool[Tensor, "batch fct"]
    kept: Float[Tensor, "batch fct channel"]  # dropout as factors
    kept_feedback: Float[Tensor, "batch fct channel"] | None
    fading: Float[Tensor, "horizon pace"]  # of `read`
    wanted: int  # how many creation times, the last ones, get forecasts
    parts: dict[str, Tensor]

    def quantiles(self) -> Float[Tensor, "batch horizon {self.wanted} quantile"]:
        return applied(_DecoderQuantiles, self.sizes(), *self._given())  # type: ignore[no-any-return]

    def loss(
        self,
        targets: Float[Tensor, "batch horizon {self.wanted}"],
        is_scored: Bool[Tensor, "batch horizon {self.wanted}"],
        levels: Float[Tensor, " quantile"],
    ) -> Float[Tensor, ""]:
        """`loss.quantile_loss` of the quantiles and all its gradients in one pass; the quantiles are not kept."""
        scores = {"targets": _contiguous(targets), "scored": _contiguous(is_scored), "level": _contiguous(levels)}
        return _DecoderLoss.apply(self.sizes(), scores, *self._given())  # type: ignore[no-any-return]

    def _given(self) -> tuple[Any, ...]:
        """The names, then the tensors."""
        given = {"begun": self.begun, "kept": self.kept}
        given |= {"fading": self.fading} if "read" in self.parts else {}
        given |= {"precedent": self.parts["precedent"]} if "precedent" in self.parts else {}
        given |= {} if self.kept_feedback is None else {"kept_feedback": self.kept_feedback}
        given |= {name: self.parts[name] for name in (*DIFFERENTIABLE, *OF_FEEDBACK) if name in self.parts}
        return tuple(given), *(_contiguous(part) for part in given.values())

    def sizes(self) -> dict[str, int]:
        batch, known, horizon, channels = self.parts["attended"].shape
        return {
            "batch": batch,
            "made": self.wanted + horizon - 1,
            "known": known,
            "horizon": horizon,
            "heads": self.parts["local_now"].shape[-1],
            "channels": channels,
            "levels": len(self.parts["out_shift"]),
            "paces": self.fading.shape[1],
            "shared_ahead": len(self.parts["local_ahead"]) == 1,
            "feedback": "of_feedback" in self.parts,
            "residual": "block_now" in self.parts,
            "coded": "code" in self.parts,
            "preceded": "precedent" in self.parts,
            "precedents": self.parts["precedent"].shape[-1] if "precedent" in self.parts else 0,
        }


def _arguments(names: Iterable[str], tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """The kernel's arguments: weights and their transposes, and outputs padded to a multiple of the lanes."""
    named = dict(zip(names, tensors, strict=True))
    named["out"] = F.pad(named["out"], (0, 0, 0, -len(named["out"]) % LANES))
    for name in set(WEIGHTS) & named.keys():
        named |= {f"{name}_T": named[name], name: named[name].T.contiguous()}
    return named


def _decoder_backward(sizes: dict[str, int], names: Iterable[str], named: dict[str, Tensor]) -> list[Tensor | None]:
    """The gradients of the named tensors; None where there is none."""
    gradients = _gradients((name for name in (*DIFFERENTIABLE[1:], *OF_FEEDBACK) if name in named), named)
    gradients["d_attended"] = torch.empty_like(named["attended"])
    _call("decoder_backward", "Decoder", sizes, named | gradients)
    for name in set(WEIGHTS) & named.keys():
        gradients[f"d_{name}"] = gradients[f"d_{name}"].T
    gradients["d_out"] = gradients["d_out"][: sizes["levels"]]
    return [gradients.get(f"d_{name}") for name in names]


class _DecoderQuantiles(Function):
    @staticmethod
    def forward(ctx: Any, sizes: dict[str, int], names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        wanted = sizes["made"] - sizes["horizon"] + 1
        quantiles = tensors[1].new_empty(sizes["batch"], sizes["horizon"], wanted, sizes["levels"])
        _call("decoder_forward", "Decoder", sizes, _arguments(names, tensors) | {"quantiles": quantiles})
        ctx.sizes, ctx.names = sizes, names
        ctx.save_for_backward(*tensors)
        return quantiles

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_quantiles: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        given = _arguments(ctx.names, ctx.saved_tensors) | {"d_quantiles": _contiguous(d_quantiles)}
        return None, None, *_decoder_backward(ctx.sizes, ctx.names, given)


class _DecoderLoss(Function):
    @staticmethod
    def forward(
        ctx: Any, sizes: dict[str, int], scores: dict[str, Tensor], names: tuple[str, ...], *tensors: Tensor
    ) -> Tensor:
        loss = torch.zeros(1, dtype=torch.float64)
        ctx.save_for_backward(*_decoder_backward(sizes, names, _arguments(names, tensors) | scores | {"loss": loss}))
        return loss[0].to(scores["targets"].dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients = ctx.saved_tensors
        if d_loss != 1:
            gradients = [None if gradient is None else gradient * d_loss for gradient in gradients]
        return None, None, None, *gradients
