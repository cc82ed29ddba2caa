"""The encoder, left half of tab:mqt: h_t = [h¹_t; h²]."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mqcast.data.inputs import Inputs
from mqcast.nn import encoder as fast
from mqcast.nn.networks import Network
from mqcast.nn.reference.series import Encoded, Series, precedents
from mqcast.nn.reference.vectors import Random, array, attend, dense, join, layer_norm, looks_at, one_hot, relu, sigmoid
from mqcast.settings import ModelConfig


def encode(network: Network, series: Series, r: np.ndarray, raw_r: np.ndarray, random: Random) -> Encoded:
    """h¹_t = TemporalConv(y_{:t}, x_{:t}, r_{:t}) (MQ-RNN: LSTM) and h² = FFN(s)."""
    encoder, config, inputs, begun = network.encoder, network.config, network.inputs, series.begun
    x = np.stack([join(series.covariates(t, encoder, config, inputs), r[t]) for t in range(series.num_steps)])
    h1 = TEMPORAL[type(encoder.temporal)](encoder.temporal, config, x, begun)
    if encoder.attention is not None:
        h1 = encoder_attention(encoder.attention, config, h1, r, begun, random)
    h2 = np.zeros(0) if encoder.static is None else static_code(encoder.static, config, inputs, series)
    return Encoded(h1, h2, r, raw_r, begun, network.horizon, precedents(series, network.horizon))


def temporal_convolutions(
    stack: fast.TemporalConvolutions, config: ModelConfig, x: Float[np.ndarray, "time in"], begun: Sequence[bool]
) -> Float[np.ndarray, "time hidden"]:
    """h¹_t: in each layer ReLU(W_0 x_{t−d} + W_1 x_t + b), with x = 0 before the series' first row."""
    layers: Any = stack.layers
    for layer, dilation in zip(layers, config.encoder_dilations, strict=True):
        W_before, W_now = array(layer.linear.weight).reshape(2, config.hidden_dim, -1)
        out = np.full((len(x), config.hidden_dim), np.nan)
        for t in np.flatnonzero(begun).tolist():
            before = x[t - dilation] if t >= dilation and begun[t - dilation] else np.zeros(x.shape[1])
            out[t] = relu(W_before @ before + W_now @ x[t] + array(layer.bias))
        x = out
    return x


def recurrence(
    recurrence: fast.Recurrence, config: ModelConfig, x: Float[np.ndarray, "time in"], begun: Sequence[bool]
) -> Float[np.ndarray, "time hidden"]:
    """h¹_t of MQ-RNN: an LSTM, from a state of zero at the series' first row."""
    lstm, d = recurrence.lstm, config.hidden_dim
    W, U, b, b_state = (array(getattr(lstm, f"{name}_l0")) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    state, memory, out = np.zeros(d), np.zeros(d), np.full((len(x), d), np.nan)
    for t in np.flatnonzero(begun):
        enter, forget, candidate, leave = np.split(W @ x[t] + b + U @ state + b_state, 4)
        memory = sigmoid(forget) * memory + sigmoid(enter) * np.tanh(candidate)
        state = sigmoid(leave) * np.tanh(memory)
        out[t] = state
    return out


TEMPORAL = {fast.TemporalConvolutions: temporal_convolutions, fast.Recurrence: recurrence}


def encoder_attention(
    block: fast.EncoderAttention,
    config: ModelConfig,
    h1: Float[np.ndarray, "time hidden"],
    r: Float[np.ndarray, "step position"],
    begun: Sequence[bool],
    random: Random,
) -> Float[np.ndarray, "time hidden"]:
    """LayerNorm(h¹_t + W_o[head_1; head_2] + b_o), head_n = Σ_{s=t−L}^t softmax_s(q_tᵀk_s / √a) v_s.

    q_t and k_t are of [h¹_t; r_t], v_t of h¹_t. The bias of the keys cancels.
    """
    x, a, out = join(h1, r[: len(h1)]), config.head_dim, np.full(h1.shape, np.nan)
    queries, values = dense(block.query, x), dense(block.value, h1)
    keys = x @ array(block.key.weight).T + random.normal(size=2 * a)
    for t in range(len(h1)):
        seen = looks_at(t, config.lookback, begun)
        heads = [attend(queries[t, n], keys[seen, n], values[seen, n])[0] for n in (slice(0, a), slice(a, 2 * a))]
        out[t] = layer_norm(block.norm, h1[t] + dense(block.out, join(*heads)))
    return out


def static_code(
    static: fast.StaticEncoder, config: ModelConfig, inputs: Inputs, series: Series
) -> Float[np.ndarray, " static"]:
    """h² = ReLU(W s + b), where s has categories one-hot, or embedded: Eᵀe with a matrix E for each category."""
    numbers = array(series.batch.static_number[series.b])
    sizes, codes = inputs.static_categories, series.batch.static_category[series.b].tolist()
    hot = [one_hot(code, size) for code, size in zip(codes, sizes, strict=True)]
    if static.one_hot is not None:
        W = array(static.one_hot.weight).T
        if static.dense is not None:
            W = np.hstack((array(static.dense.weight), W))
        return relu(W @ join(numbers, *hot) + array(static.one_hot.bias))
    if static.embeddings is None:
        return relu(dense(static.dense, numbers))
    tables = np.split(array(static.embeddings.weight), np.cumsum(sizes)[:-1])
    return relu(dense(static.dense, join(numbers, *(E.T @ e for E, e in zip(tables, hot, strict=True)))))
