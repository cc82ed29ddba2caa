"""The decoder, right half of tab:mqt, and the learning objective."""

from itertools import product

import numpy as np
from jaxtyping import Float

from mqcast.data.batch import Batch
from mqcast.nn import decoder as fast
from mqcast.nn.reference.series import Encoded
from mqcast.nn.reference.vectors import array, dense, join, relu, softplus, whole
from mqcast.settings import ModelConfig


def agnostic_context(
    contexts: fast.AttentionContexts, config: ModelConfig, x: Encoded
) -> Float[np.ndarray, "time agnostic"]:
    """c^a_t = ReLU(W[h_t; r] + b), where r is [r_{t+1}; …; r_{t+H}], or r_t."""
    if config.research.agnostic_context == "current":
        return relu(dense(contexts.agnostic, x.now))
    assert contexts.agnostic.bias is not None
    W, b = array(contexts.agnostic.weight), array(contexts.agnostic.bias)
    if contexts.future is not None:
        W = np.hstack((W, *np.moveaxis(array(contexts.future.weight), 2, 0)))
    return np.stack([relu(W @ join(x.h[t], x.future(t)) + b) for t in range(x.num_steps)])


def dense_contexts(
    contexts: fast.DenseContexts, x: Encoded
) -> tuple[Float[np.ndarray, "horizon time context"], Float[np.ndarray, "time agnostic"]]:
    """m_G of MQ-CNN: c_{t,h} = ReLU(W^h[h_t; g_t] + b^h), c^a_t = ReLU(W[h_t; g_t] + b).

    The future is flattened and goes through a layer of its own: g_t = ReLU(W[r_{t+1}; …; r_{t+H}] + b).
    """
    given = x.h
    if contexts.future is not None and contexts.future_bias is not None:
        W, b = np.hstack([*np.moveaxis(array(contexts.future.weight), 2, 0)]), array(contexts.future_bias)
        given = join(given, np.stack([relu(W @ x.future(t) + b) for t in range(x.num_steps)]))
    weights, biases = array(contexts.specific.weight), array(contexts.specific.bias)
    specific = [relu(given @ W.T + b) for W, b in zip(weights, biases, strict=True)]
    return np.stack(specific), relu(dense(contexts.agnostic, given))


def local_mlp(
    local: fast.LocalMLP,
    config: ModelConfig,
    x: Encoded,
    agnostic: Float[np.ndarray, "time agnostic"],
    *own: Float[np.ndarray, "horizon time context"],
) -> Float[np.ndarray, "horizon time quantile"]:
    """(ŷ^1_{t+h}, …, ŷ^Q_{t+h}) = m_L(c^a_t, r_{t+h}, c_{t,h}, c̃_{t,h}): two layers, the first with a code of h."""
    W, b = whole(local.hidden)
    quantiles = np.full((x.horizon, x.num_steps, len(config.quantiles)), np.nan)
    for h, t in np.ndindex(x.horizon, x.num_steps):
        hidden = W @ join(agnostic[t], x.raw_r[t + h + 1], *(part[h, t] for part in own)) + b
        if local.horizon_code is not None:
            hidden = hidden + array(local.horizon_code[h, 0])
        if local.of_precedents is not None:
            hidden = hidden + array(local.of_precedents) @ x.precedents[t, h]
        if local.horizon_read is not None:  # Σ_τ e^(−(h−1)/τ) W_τ h¹_t, τ = 1, 4, 16, …
            for k, W_tau in enumerate(array(local.horizon_read)):
                hidden = hidden + np.exp(-h / 4**k) * (W_tau @ x.h1[t])
        y = dense(local.out, relu(hidden))
        if config.head == "monotone":
            for q in range(1, len(y)):
                y[q] = y[q - 1] + softplus(y[q])
        quantiles[h, t] = y
    return quantiles


def span_mlp(
    span: fast.SpanMLP,
    config: ModelConfig,
    x: Encoded,
    agnostic: Float[np.ndarray, "time agnostic"],
    forecasts: Float[np.ndarray, "horizon time quantile"],
    *own: Float[np.ndarray, "horizon time context"],
) -> Float[np.ndarray, "span time quantile"]:
    """Quantiles of the mean over steps a … b: two layers of the means of what m_L is given, with a code of the span."""
    W, W_out, b_out = array(span.hidden.weight), array(span.out), array(span.out_shift)
    quantiles = np.full((len(config.spans), x.num_steps, len(config.quantiles)), np.nan)
    middle = np.argmin(np.abs(np.array(config.quantiles) - 0.5))
    for (s, (a, b)), t in product(enumerate(config.spans), range(x.num_steps)):
        steps = range(a - 1, b)
        positions = np.mean([x.raw_r[t + h + 1] for h in steps], axis=0)
        contexts = [np.mean([part[h, t] for h in steps], axis=0) for part in own]
        hidden = W @ join(agnostic[t], positions, *contexts) + array(span.code[s, 0]) + array(span.read[s]) @ x.h1[t]
        change = W_out @ relu(hidden) + b_out
        summed = np.mean([np.sort(forecasts[h, t]) for h in steps], axis=0)
        y = [summed[0]]
        for q in range(1, len(summed)):
            y.append(y[-1] + (summed[q] - summed[q - 1]) * softplus(change[q] + np.log(np.e - 1)))
        quantiles[s, t] = np.array(y) - y[middle] + summed[middle] + change[0]
    return quantiles


def quantile_loss(
    forecasts: Float[np.ndarray, "batch horizon time quantile"], batch: Batch, levels: tuple[float, ...]
) -> tuple[float, int]:
    """Σ_t Σ_q Σ_k L_q(y_{t+k}, ŷ_{t+k}^{(q)}), L_q(y, ŷ) = q·(y−ŷ)₊ + (1−q)·(ŷ−y)₊, and how many terms it has."""
    total, count = 0.0, 0
    for b, h, t in np.ndindex(forecasts.shape[:3]):
        u = t + h + 1
        if batch.is_fct[b, t] and batch.observed[b, u]:
            y = ((batch.values[b, u] - batch.loc[b, t]) / batch.scale[b, t]).item()
            for i, q in enumerate(levels):
                error = y - forecasts[b, h, t, i]
                total += q * max(error, 0) + (1 - q) * max(-error, 0)
                count += 1
    return total, count
