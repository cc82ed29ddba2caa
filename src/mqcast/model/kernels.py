"""Compiled kernels for a CPU: kernels.c, built as the package is installed where there is a C compiler.

They compute what encoder.py, alignment.py, attention.py and decoder.py do, in less time; without them, or on another
device, those run. `status()` says which it is, and why.
"""

import ctypes
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

SOURCE = Path(__file__).with_name("kernels.c")
LIBRARY = Path(__file__).with_name("libkernels.so")
OFF = "MQCAST_KERNELS"  # in the environment: "off" for plain PyTorch
COMPILED = "compiled"  # the status of kernels that are there
LANES = 8  # widths must be multiples of this


def _structure(sizes: str, pointers: str) -> type[ctypes.Structure]:
    fields = [(name, ctypes.c_int64) for name in sizes.split()] + [(name, ctypes.c_void_p) for name in pointers.split()]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


STACK = _structure(
    "batch steps channels layers", "begun dilations x weight weight_T bias out d_out d_x d_weight_T d_bias"
)
ALIGN = _structure(
    "batch steps made wanted horizon heads channels lookback shared_ahead",
    "now ahead key value begun cells norm d_cells d_now d_ahead d_key d_value",
)
CELLS = _structure(
    "batch made known horizon heads channels levels paces shared_ahead feedback",
    "begun attended kept kept_feedback block_now block_ahead block_gain block_shift "
    "query_now query_ahead key_now value_shift again_now again_ahead again_gain again_shift "
    "local_now local_ahead read fading code of_context of_context_T "
    "of_feedback of_feedback_T out out_T out_shift quantiles d_quantiles targets level scored loss "
    "d_attended d_block_now d_block_ahead d_block_gain d_block_shift d_query_now d_query_ahead d_key_now d_value_shift "
    "d_again_now d_again_ahead d_again_gain d_again_shift d_local_now d_local_ahead d_read d_code "
    "d_of_context d_of_feedback d_out d_out_shift",
)


@cache
def _library() -> tuple[ctypes.CDLL | None, str]:
    """The kernels, or None, and what there is to say of them."""
    if os.environ.get(OFF, "").lower() == "off":
        return None, f"plain PyTorch: {OFF}=off"
    if not LIBRARY.is_file():
        return None, "plain PyTorch: no C compiler was found when mqcast was installed"
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return None, f"plain PyTorch: the kernels cannot be loaded ({error})"
    library.kernels_digest.restype = ctypes.c_char_p
    if library.kernels_digest().decode() != hashlib.sha256(SOURCE.read_bytes()).hexdigest():
        return None, "plain PyTorch: the kernels are of another version; install mqcast again"
    return (library, COMPILED) if library.kernels_run_here() else (None, "plain PyTorch: this processor lacks AVX2")


def status() -> str:
    return _library()[1]


def can_take(parts: Iterable[Tensor]) -> bool:
    """Are there kernels, and for tensors such as these?"""
    return (
        _library()[0] is not None
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and all(part.device.type == "cpu" and part.dtype == torch.float32 for part in parts)
    )


def _call(function: str, kind: type[ctypes.Structure], sizes: dict[str, int], tensors: dict[str, Tensor]) -> None:
    library, why = _library()
    assert library is not None, why
    for name, tensor in tensors.items():
        assert tensor.is_contiguous(), name
    arguments = kind(**sizes, **{name: tensor.data_ptr() for name, tensor in tensors.items()})
    if getattr(library, function)(ctypes.byref(arguments)):
        raise MemoryError("no memory is left for the kernels; take a smaller micro-batch")


def _gradients(names: Iterable[str], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"d_{name}": torch.zeros_like(tensors[name]) for name in names}


def stacked_convolutions(
    x: Float[Tensor, "batch time channel"],
    begun: Bool[Tensor, "batch time"],
    weights: Sequence[Float[Tensor, "taps channel"]],
    biases: Sequence[Float[Tensor, " channel"]],
    dilations: Sequence[int],
) -> Float[Tensor, "batch time channel"]:
    """ReLU(W_0 x_{t−dilation} + W_1 x_t + b), one layer upon the other; of each series from its first step on."""
    return _Stack.apply(begun.contiguous(), torch.tensor(dilations), x.contiguous(), *weights, *biases)  # type: ignore[no-any-return]


class _Stack(Function):
    @staticmethod
    def forward(ctx: Any, begun: Tensor, dilations: Tensor, x: Tensor, *parameters: Tensor) -> Tensor:
        batch, steps, channels = x.shape
        layers = len(dilations)
        ctx.sizes = {"batch": batch, "steps": steps, "channels": channels, "layers": layers}
        weight = torch.stack(parameters[:layers]).view(layers, 2, channels, channels)
        given = {"begun": begun, "dilations": dilations, "x": x, "weight": weight, "weight_T": weight.mT.contiguous()}
        given |= {"bias": torch.stack(parameters[layers:]), "out": x.new_empty(layers, *x.shape)}
        _call("stack_forward", STACK, ctx.sizes, given)
        ctx.names = tuple(given)
        ctx.save_for_backward(*given.values())
        return given["out"][-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        given = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        gradients = _gradients(("weight_T", "bias"), given) | {"d_x": torch.empty_like(given["x"])}
        _call("stack_backward", STACK, ctx.sizes, given | gradients | {"d_out": d_out.contiguous()})
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
    """Σ_s softmax_s(now_t·key_s + ahead_{t+h}·key_s) value_s, as `alignment.aligned_sums`.

    Of creation times before the last `wanted`, only cells whose targets these have too; the others hold anything.
    """
    parts = (part.contiguous() for part in (now, ahead, key, value))
    lookback = min(lookback, key.shape[1] - 1)  # rooms are as wide
    return _AlignedContexts.apply(begun.contiguous(), lookback, wanted, *parts)  # type: ignore[no-any-return]


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
        _call("align_forward", ALIGN, sizes, _AlignedContexts.named(tensors))
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
        _call("align_backward", ALIGN, ctx.sizes, named | gradients | {"d_cells": d_cells.contiguous()})
        return None, None, None, *gradients.values()


DIFFERENTIABLE = (
    "attended", "block_now", "block_ahead", "block_gain", "block_shift", "local_now", "local_ahead", "read", "code",
    "of_context", "out", "out_shift",
)  # fmt: skip
OF_FEEDBACK = (
    "query_now", "query_ahead", "key_now", "value_shift", "again_now", "again_ahead", "again_gain", "again_shift",
    "of_feedback",
)  # fmt: skip
WEIGHTS = ("of_context", "of_feedback", "out")


@dataclass(frozen=True)
class Cells:
    """All that goes into forecasts once the past has been attended to; `parts` are named as in kernels.c.

    Those of `OF_FEEDBACK` may be left out, as is the attention over earlier forecasts then. `of_context`, `of_feedback`
    and `out` are the weights (out × in) of the maps of c, c̃ and the hidden layer.
    """

    begun: Bool[Tensor, "batch fct"]
    kept: Float[Tensor, "batch fct channel"]  # dropout, as factors
    kept_feedback: Float[Tensor, "batch fct channel"] | None
    fading: Float[Tensor, "horizon pace"]
    wanted: int  # creation times, the last ones
    parts: dict[str, Tensor]

    def quantiles(self) -> Float[Tensor, "batch horizon {self.wanted} quantile"]:
        return _ForecastCells.apply(self.sizes(), *self._given())  # type: ignore[no-any-return]

    def loss(
        self,
        targets: Float[Tensor, "batch horizon {self.wanted}"],
        is_scored: Bool[Tensor, "batch horizon {self.wanted}"],
        levels: Float[Tensor, " quantile"],
    ) -> Float[Tensor, ""]:
        """`loss.quantile_loss` of the quantiles, which are thrown away, in one pass with its gradients."""
        judged = {"targets": targets.contiguous(), "scored": is_scored.contiguous(), "level": levels}
        return _LossOfCells.apply(self.sizes(), judged, *self._given())  # type: ignore[no-any-return]

    def _given(self) -> tuple[Any, ...]:
        """Names, and their tensors."""
        given = {"begun": self.begun, "kept": self.kept, "fading": self.fading}
        given |= {} if self.kept_feedback is None else {"kept_feedback": self.kept_feedback}
        given |= {name: self.parts[name] for name in (*DIFFERENTIABLE, *OF_FEEDBACK) if name in self.parts}
        return tuple(given), *(part.contiguous() for part in given.values())

    def sizes(self) -> dict[str, int]:
        batch, known, horizon, channels = self.parts["attended"].shape
        return {
            "batch": batch,
            "made": self.wanted + horizon - 1,
            "known": known,
            "horizon": horizon,
            "heads": self.parts["code"].shape[1],
            "channels": channels,
            "levels": len(self.parts["out_shift"]),
            "paces": self.fading.shape[1],
            "shared_ahead": len(self.parts["block_ahead"]) == 1,
            "feedback": "of_feedback" in self.parts,
        }


def _arguments(names: Iterable[str], tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """The tensors as the kernel wants them: weights both ways round, as many outputs as a vector has lanes."""
    found = dict(zip(names, tensors, strict=True))
    found["out"] = F.pad(found["out"], (0, 0, 0, -len(found["out"]) % LANES))
    for name in set(WEIGHTS) & found.keys():
        found |= {f"{name}_T": found[name], name: found[name].T.contiguous()}
    return found


def _way_back(sizes: dict[str, int], names: Iterable[str], named: dict[str, Tensor]) -> list[Tensor | None]:
    """Gradients of what `names` name."""
    gradients = _gradients((name for name in (*DIFFERENTIABLE[1:], *OF_FEEDBACK) if name in named), named)
    gradients["d_attended"] = torch.empty_like(named["attended"])
    _call("cells_backward", CELLS, sizes, named | gradients)
    for name in set(WEIGHTS) & named.keys():
        gradients[f"d_{name}"] = gradients[f"d_{name}"].T
    gradients["d_out"] = gradients["d_out"][: sizes["levels"]]
    return [gradients.get(f"d_{name}") for name in names]


class _ForecastCells(Function):
    @staticmethod
    def forward(ctx: Any, sizes: dict[str, int], names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        wanted = sizes["made"] - sizes["horizon"] + 1
        quantiles = tensors[1].new_empty(sizes["batch"], sizes["horizon"], wanted, sizes["levels"])
        _call("cells_forward", CELLS, sizes, _arguments(names, tensors) | {"quantiles": quantiles})
        ctx.sizes, ctx.names = sizes, names
        ctx.save_for_backward(*tensors)
        return quantiles

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_quantiles: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        given = _arguments(ctx.names, ctx.saved_tensors) | {"d_quantiles": d_quantiles.contiguous()}
        return None, None, *_way_back(ctx.sizes, ctx.names, given)


class _LossOfCells(Function):
    @staticmethod
    def forward(
        ctx: Any, sizes: dict[str, int], judged: dict[str, Tensor], names: tuple[str, ...], *tensors: Tensor
    ) -> Tensor:
        loss = torch.zeros(1, dtype=torch.float64)
        ctx.save_for_backward(*_way_back(sizes, names, _arguments(names, tensors) | judged | {"loss": loss}))
        return loss[0].to(judged["targets"].dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients = ctx.saved_tensors
        if d_loss != 1:
            gradients = [None if gradient is None else gradient * d_loss for gradient in gradients]
        return None, None, None, *gradients
