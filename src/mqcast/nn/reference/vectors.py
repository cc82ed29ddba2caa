"""Vectors and layers: concatenations, dense layers with whole matrices, and a softmax-weighted sum."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from mqcast.nn.layers import CategoryLinear, HorizonLinear

Vector = Float[np.ndarray, " channel"]
Matrix = Float[np.ndarray, "out in"]
Random = np.random.Generator


def array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().numpy()


def join(*parts: np.ndarray) -> np.ndarray:
    """[a; b; …], along the channels."""
    return np.concatenate(parts, axis=-1)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softplus(x: float) -> float:
    return x if x > 20 else math.log1p(math.exp(x))  # linear beyond 20, as in torch


def dense(layer: Any, x: Float[np.ndarray, "*axes in"]) -> Float[np.ndarray, "*axes out"]:
    """W x + b"""
    return x @ array(layer.weight).T + array(layer.bias)


def whole(linear: HorizonLinear) -> tuple[Float[np.ndarray, "out in"], Float[np.ndarray, " out"]]:
    """W and b of W[now_t; ahead_{t+h}; own_{t,h}] + b, whose parts are stored separately."""
    parts = [layer for layer in (linear.now, linear.ahead, linear.own) if layer is not None]
    assert linear.now.bias is not None
    return np.hstack([array(layer.weight) for layer in parts]), array(linear.now.bias)


def layer_norm(norm: nn.LayerNorm, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + norm.eps) * array(norm.weight) + array(norm.bias)


def one_hot(code: int, size: int) -> np.ndarray:
    e = np.zeros(size)
    e[code] = 1
    return e


def category_dense(layer: CategoryLinear, sizes: Sequence[int], codes: Sequence[int]) -> Float[np.ndarray, " out"]:
    """W[e_1; …; e_n] + b: one-hot vectors through a dense layer."""
    hot = join(*(one_hot(code, size) for code, size in zip(codes, sizes, strict=True)))
    return array(layer.weight).T @ hot + array(layer.bias)


def attend(
    query: Float[np.ndarray, " head"], keys: Float[np.ndarray, "source head"], values: Float[np.ndarray, "source value"]
) -> tuple[Float[np.ndarray, " value"], Float[np.ndarray, " source"]]:
    """Σ_s softmax_s(qᵀk_s / √a) v_s, and the weights."""
    logits = keys @ query / math.sqrt(len(query))
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    return weights @ values, weights


def looks_at(t: int, lookback: int, begun: Sequence[bool]) -> list[int]:
    """s = t−L … t, from the series' first row; t itself in any case."""
    return [s for s in range(max(0, t - lookback), t + 1) if begun[s] or s == t]
