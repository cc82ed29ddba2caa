"""The paper's sums, spelled out: one series, one creation time, one horizon and one key at a time.

Nothing here calls a network. Its parameters are read, put together to the full matrices of the paper, and multiplied
with the concatenated vectors of the paper. Creation times are t = 0 … T−1, horizons h = 1 … H, targets u = t + h.

A term that cancels in a softmax, so that the networks have no weights for it, is put in here with random ones.
Only what the paper lets a sum see is there to be read: all else is missing from the dictionaries.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from mqcast.data.batch import Batch
from mqcast.nn import attention, decoder, encoder, layers, networks, position
from mqcast.nn.inputs import Inputs
from mqcast.settings import ModelConfig

Vector = np.ndarray
Matrix = np.ndarray
Random = np.random.Generator
ByStep = dict[int, Vector]  # t → vector
ByForecast = dict[tuple[int, int], Vector]  # (t, h) → vector
Weights = dict[tuple[int, int], dict[int, float]]  # (t, h) → s → weight


# Vectors


def array(x: Tensor) -> np.ndarray:
    return x.detach().numpy()


def join(*vectors: Vector) -> Vector:
    """[a; b; …]"""
    return np.concatenate(vectors)


def compressed(x: float) -> float:
    """Logarithmic where it is farther than 8 scales from the level."""
    return x if abs(x) <= 8 else math.copysign(8 + math.log1p(abs(x) - 8), x)


def relu(x: Vector) -> Vector:
    return np.maximum(x, 0)


def sigmoid(x: Vector) -> Vector:
    return 1 / (1 + np.exp(-x))


def softplus(x: float) -> float:
    return x if x > 20 else math.log1p(math.exp(x))  # torch, too, goes straight beyond 20


def layer_norm(norm: Any, x: Vector) -> Vector:
    mean = sum(x) / len(x)
    variance = sum((x - mean) ** 2) / len(x)
    return (x - mean) / math.sqrt(variance + norm.eps) * array(norm.weight) + array(norm.bias)


def dense(layer: Any, x: Vector) -> Vector:
    """W x + b"""
    return array(layer.weight) @ x + array(layer.bias)


def full(linear: layers.HorizonLinear) -> tuple[Matrix, Vector]:
    """W and b of W[now_t; ahead_{t+h}; own_{t,h}] + b."""
    parts = [layer for layer in (linear.now, linear.ahead, linear.own) if layer is not None]
    return np.hstack([array(layer.weight) for layer in parts]), array(linear.now.bias)


def one_hot(code: int, size: int) -> Vector:
    e = np.zeros(size)
    e[code] = 1
    return e


def category_dense(layer: layers.CategoryLinear, sizes: tuple[int, ...], codes: Iterable[int]) -> Vector:
    """W[e_1; …; e_n] + b: one-hot vectors through a dense layer."""
    return array(layer.weight).T @ join(*(one_hot(*pair) for pair in zip(codes, sizes, strict=True))) + array(
        layer.bias
    )


def attend(query: Vector, keys: dict[Any, Vector], values: dict[Any, Vector]) -> tuple[Vector, dict[Any, float]]:
    """Σ_s softmax_s(qᵀk_s / √a) v_s, and the weights."""
    logits = {s: query @ key / math.sqrt(len(query)) for s, key in keys.items()}
    largest = max(logits.values())
    total = sum(math.exp(logit - largest) for logit in logits.values())
    weights = {s: math.exp(logit - largest) / total for s, logit in logits.items()}
    return sum(weights[s] * values[s] for s in weights), weights


# One series of a batch


@dataclass(frozen=True)
class Series:
    """Window b of a batch, one step at a time."""

    batch: Batch
    b: int

    @property
    def num_steps(self) -> int:
        return self.batch.loc.shape[1]

    @property
    def begun(self) -> list[bool]:
        return self.batch.begun[self.b, : self.num_steps].tolist()

    def calendar(self, u: int) -> tuple[Vector, list[int]]:
        """Global numbers and categories at step u, which may be before the window or after its last target."""
        number, category = self.batch.global_number, self.batch.global_category
        reach = (number.shape[1] - self.batch.values.shape[1]) // 2
        assert 0 <= u + reach < number.shape[1]
        b = self.b if len(number) > 1 else 0
        return array(number[b, u + reach]), category[b, u + reach].tolist()

    def known(self, u: int) -> tuple[Vector, list[int]]:
        assert 0 <= u < self.batch.values.shape[1]
        return array(self.batch.known_number[self.b, u]), self.batch.known_category[self.b, u].tolist()

    def covariates(self, t: int, encoder: encoder.Encoder, config: ModelConfig, inputs: Inputs) -> Vector:
        """y_t and x_t: the scaled target, whether it was observed, location and scale, past numbers and categories."""
        batch, b = self.batch, self.b
        loc, scale, observed = batch.loc[b, t].item(), batch.scale[b, t].item(), batch.observed[b, t].item()
        x = [compressed((batch.values[b, t].item() - loc) / scale) if observed else 0.0, float(observed)]
        if config.research.scale_inputs:
            x += [math.asinh(loc / scale), math.log(scale)]
        x += batch.past_number[b, t].tolist()
        x += [float(observed) for observed in batch.past_observed[b, t].tolist()]
        if inputs.past_categories:
            codes = batch.past_category[b, t].tolist()
            x += relu(category_dense(encoder.past, inputs.past_categories, codes)).tolist()
        return np.array(x)


# Position encodings: r_u = [r^g_u; r^l_u]


def position_dilations(config: ModelConfig, horizon: int) -> list[int]:
    """The settings', or 1, 2, 4, … and what then is missing to horizon − 1, in rising order."""
    if config.position_dilations is not None:
        return list(config.position_dilations)
    found, power = [], 1
    while sum(found) + power <= horizon - 1:
        found.append(power)
        power *= 2
    rest = horizon - 1 - sum(found)
    return sorted([*found, rest] if rest else found)


def covariates(
    layer: position.Covariates, flags: tuple[int, ...], sizes: tuple[int, ...], numbers: Vector, categories: list[int]
) -> Vector:
    """Numbers, flags five times as large, and ReLU(W · one-hot + b)."""
    numbers = np.array([5 * number if i in flags else number for i, number in enumerate(numbers)])
    return join(numbers, relu(category_dense(layer.dense, sizes, categories))) if sizes else numbers


def global_position(
    learned: position.LearnedPosition, config: ModelConfig, inputs: Inputs, horizon: int, series: Series
) -> ByStep:
    """r^g_u = PE^g_u(x^g): dilated convolutions that look both ways, one filter and one tap at a time."""
    sizes = inputs.calendar + inputs.event_categories
    if not inputs.global_numbers + len(sizes):
        return {}
    dilations = position_dilations(config, horizon)
    last, reach = series.num_steps + horizon - 1, sum(dilations)
    x = {
        u: covariates(learned.events, inputs.global_flags, sizes, *series.calendar(u))
        for u in range(-reach, last + reach + 1)
    }
    taps = [(-d, 0, d) for d in dilations] or [(0,)]
    for layer, offsets in zip(learned.convolutions, taps, strict=True):
        weight, bias, out = array(layer.linear.weight), array(layer.bias), {}
        for u in x:
            if all(u + offset in x for offset in offsets):
                out[u] = np.zeros(config.hidden_dim)
                for f in range(config.hidden_dim):
                    total = bias[f]
                    for i, offset in enumerate(offsets):
                        total += weight[i * config.hidden_dim + f] @ x[u + offset]
                    out[u][f] = max(total, 0.0)
        x = out
    assert list(x) == list(range(last + 1))
    return x


def local_position(learned: position.LearnedPosition, inputs: Inputs, span: int, series: Series) -> ByStep:
    """r^l_u = PE^l_u(x^l): a dense layer with ReLU at each step."""
    sizes = inputs.known_categories
    if not inputs.known_numbers + len(sizes):
        return {}
    x = {u: covariates(learned.known, inputs.known_flags, sizes, *series.known(u)) for u in range(span)}
    return {u: relu(dense(learned.local, x[u])) for u in x}


def normed(config: ModelConfig, part: ByStep) -> ByStep:
    """Mean 0 and variance v / (v + 1/2) at each step, as a layer norm without weights has it whose ε is 1/2."""
    if not config.research.position_norm:
        return part
    centred = {u: x - x.mean() for u, x in part.items()}
    return {u: x / np.sqrt((x**2).mean() + 0.5) for u, x in centred.items()}


def nearness(distance: int | None, reach: int) -> float:
    """1 at the event, falling linearly in its distance; 0 beyond the reach."""
    return 0.0 if distance is None or distance > reach else 1 - distance / (reach + 1)


def first(found: Iterable[int]) -> int | None:
    return next(iter(found), None)


def raw_position(raw: position.RawPosition, inputs: Inputs, horizon: int, series: Series) -> ByStep:
    """What MQ-CNN knows of step u: its covariates and the linear distances to the events around it."""
    sizes = inputs.calendar + inputs.event_categories
    span, reach = series.num_steps + horizon, raw.reach

    def global_event(u: int) -> list[bool]:
        number, category = series.calendar(u)
        return [number[i] > 0 for i in inputs.global_flags] + [code != 0 for code in category[len(inputs.calendar) :]]

    def known_event(u: int) -> list[bool]:
        return [series.known(u)[0][i] > 0 for i in inputs.known_flags]

    r = {}
    for u in range(span):
        near = range(reach + 1)
        last = [first(n for n in near if global_event(u - n)[i]) for i in range(len(global_event(u)))]
        following = [first(n for n in near if global_event(u + n)[i]) for i in range(len(global_event(u)))]
        since = [first(n for n in near if u >= n and known_event(u - n)[i]) for i in range(len(known_event(u)))]
        r[u] = join(
            covariates(raw.events, inputs.global_flags, sizes, *series.calendar(u)),
            np.array([nearness(distance, reach) for distance in last + following]),
            covariates(raw.known, inputs.known_flags, inputs.known_categories, *series.known(u)),
            np.array([nearness(distance, reach) for distance in since]),
        )
    return r


def positions(network: networks.Network, series: Series) -> tuple[ByStep, ByStep]:
    """r_u, u = 0 … T+H−1, as the encoder and the attention see them, and as they are."""
    config, inputs, span = network.config, network.inputs, series.num_steps + network.horizon
    if config.model in ("mqcnn", "mqrnn"):
        r = raw_position(network.position, inputs, network.horizon, series)
        return r, r
    r_global = global_position(network.position, config, inputs, network.horizon, series)
    r_local = local_position(network.position, inputs, span, series)
    plain, nothing = (r_global, r_local), np.zeros(0)
    r, as_they_are = (
        {u: join(*(part.get(u, nothing) for part in parts)) for u in range(span)}
        for parts in ([normed(config, part) for part in plain], plain)
    )
    return r, as_they_are


# Encoder: tab:mqt, left


def temporal_convolutions(
    stack: encoder.TemporalConvolutions, config: ModelConfig, x: ByStep, begun: list[bool]
) -> ByStep:
    """h¹_t: in each layer ReLU(W_0 x_{t−d} + W_1 x_t + b), where x is zero before the series' first row."""
    for layer, dilation in zip(stack.layers, config.encoder_dilations, strict=True):
        weight, bias = array(layer.linear.weight), array(layer.bias)
        W_before, W_now = weight[: config.hidden_dim], weight[config.hidden_dim :]
        out = {}
        for t in x:
            if begun[t]:
                before = x[t - dilation] if t >= dilation and begun[t - dilation] else np.zeros(len(x[t]))
                out[t] = relu(W_before @ before + W_now @ x[t] + bias)
        x = out
    return x


def recurrence(recurrence: encoder.Recurrence, config: ModelConfig, x: ByStep, begun: list[bool]) -> ByStep:
    """h¹_t of MQ-RNN: the cell of an LSTM, from zero at the series' first row."""
    lstm, d = recurrence.lstm, config.hidden_dim
    W, U, b, b_state = (array(getattr(lstm, f"{name}_l0")) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    state, memory, out = np.zeros(d), np.zeros(d), {}
    for t in x:
        if begun[t]:
            gates = W @ x[t] + b + U @ state + b_state
            entry, forget, candidate, exit_ = gates[:d], gates[d : 2 * d], gates[2 * d : 3 * d], gates[3 * d :]
            memory = sigmoid(forget) * memory + sigmoid(entry) * np.tanh(candidate)
            state = sigmoid(exit_) * np.tanh(memory)
            out[t] = state
    return out


def looks_at(t: int, lookback: int, begun: list[bool]) -> list[int]:
    """s = t−L … t, from the series' first row; t itself in any case."""
    return [s for s in range(max(0, t - lookback), t + 1) if begun[s] or s == t]


def encoder_attention(
    block: encoder.EncoderAttention, config: ModelConfig, h1: ByStep, r: ByStep, begun: list[bool], random: Random
) -> ByStep:
    """LayerNorm(h¹_t + W_o[head_1; head_2] + b_o), head_n = Σ_{s=t−L}^t softmax_s(q_tᵀk_s / √a) v_s.

    q_t and k_t are of [h¹_t; r_t], v_t of h¹_t. The bias of the keys cancels.
    """
    a, out = config.head_dim, {}
    b_k = random.normal(size=2 * a)
    for t in h1:
        heads = []
        for rows in (slice(0, a), slice(a, 2 * a)):
            query = dense(block.query, join(h1[t], r[t]))[rows]
            keys, values = {}, {}
            for s in looks_at(t, config.lookback, begun):
                keys[s] = (array(block.key.weight) @ join(h1[s], r[s]) + b_k)[rows]
                values[s] = dense(block.value, h1[s])[rows]
            heads.append(attend(query, keys, values)[0])
        out[t] = layer_norm(block.norm, h1[t] + dense(block.out, join(*heads)))
    return out


def static_code(static: encoder.StaticEncoder, config: ModelConfig, inputs: Inputs, series: Series) -> Vector:
    """h² = ReLU(W s + b), where s has categories one-hot, or embedded: Eᵀe with a matrix E for each category."""
    numbers = array(series.batch.static_number[series.b])
    sizes, codes = inputs.static_categories, series.batch.static_category[series.b].tolist()
    hot = [one_hot(code, size) for code, size in zip(codes, sizes, strict=True)]
    if not sizes:
        return relu(dense(static.dense, numbers))
    if config.static_encoding == "one_hot":
        weight = array(static.one_hot.weight).T
        if inputs.static_numbers:
            weight = np.hstack((array(static.dense.weight), weight))
        return relu(weight @ join(numbers, *hot) + array(static.one_hot.bias))
    rows, embedded = 0, []
    for e in hot:
        embedded.append(array(static.embeddings.weight)[rows : rows + len(e)].T @ e)
        rows += len(e)
    return relu(dense(static.dense, join(numbers, *embedded)))


@dataclass(frozen=True)
class Codes:
    """h_t = [h¹_t; h²] and r_u of one series."""

    h1: ByStep
    h2: Vector
    r: ByStep
    plain: ByStep
    begun: list[bool]
    horizon: int

    @classmethod
    def of(cls, codes: attention.DecoderInputs, b: int) -> "Codes":
        """Series b of the codes of a batch."""

        def at(part: Tensor, u: int) -> Vector:
            return array(part[b if len(part) > 1 else 0, u])

        span = codes.num_steps + codes.horizon
        return cls(
            h1={t: at(codes.hidden[0], t) for t in range(codes.num_steps)},
            h2=at(codes.hidden[1], 0) if len(codes.hidden) > 1 else np.zeros(0),
            r={u: join(np.zeros(0), *(at(part, u) for part in codes.position)) for u in range(span)},
            plain={u: join(np.zeros(0), *(at(part, u) for part in codes.raw_position)) for u in range(span)},
            begun=codes.begun[b].tolist(),
            horizon=codes.horizon,
        )

    @property
    def times(self) -> list[int]:
        """Creation times that have a code."""
        return list(self.h1)

    def h(self, t: int) -> Vector:
        return join(self.h1[t], self.h2)

    def ahead(self, t: int) -> Vector:
        """[r_{t+1}; …; r_{t+H}]"""
        return join(*(self.r[t + h] for h in range(1, self.horizon + 1)))


def encode(network: networks.Network, series: Series, r: ByStep, plain: ByStep, random: Random) -> Codes:
    """h¹_t = TemporalConv(y_{:t}, x_{:t}, r_{:t}) (MQ-RNN: LSTM) and h² = FFN(s)."""
    enc, config, inputs, begun = network.encoder, network.config, network.inputs, series.begun
    x = {t: join(series.covariates(t, enc, config, inputs), r[t]) for t in range(series.num_steps)}
    h1 = (recurrence if config.model == "mqrnn" else temporal_convolutions)(enc.temporal, config, x, begun)
    if config.research.encoder_attention:
        h1 = encoder_attention(enc.attention, config, h1, r, begun, random)
    has_static = inputs.static_numbers or inputs.static_categories
    h2 = static_code(enc.static, config, inputs, series) if has_static else np.zeros(0)
    return Codes(h1, h2, r, plain, begun, network.horizon)


# Attention: tab:eqn and tab:naive-decoderself


def horizon_attention(
    cell: attention.HorizonAttention, config: ModelConfig, codes: Codes, times: list[int], random: Random
) -> tuple[ByForecast, Weights]:
    """c_{t,h} = Σ_{s=t−L}^t A^h_{t,s} W_v v_s: first row of tab:eqn.

    q^h_t = [h_t; r_t; r_{t+h}],  k_s = [h_s; r_s],  v_s = h_s. Cancel: h² in the keys, and their bias.
    """
    a, d = config.head_dim, config.hidden_dim
    W_q, b_q = full(cell.query)
    W_h1, W_r = np.split(array(cell.key.weight), [d], axis=1)
    W_k = np.hstack((W_h1, random.normal(size=(a, len(codes.h2))), W_r))
    b_k = random.normal(size=a)
    c, weights = {}, {}
    for t in times:
        for h in range(1, codes.horizon + 1):
            query = W_q @ join(codes.h(t), codes.r[t], codes.r[t + h]) + b_q
            keys, values = {}, {}
            for s in looks_at(t, config.lookback, codes.begun):
                keys[s] = W_k @ join(codes.h(s), codes.r[s]) + b_k
                values[s] = dense(cell.value, codes.h(s))
            c[t, h], weights[t, h] = attend(query, keys, values)
    return c, weights


def forecasts_of(target: int, t: int, horizon: int, begun: list[bool]) -> list[tuple[int, int]]:
    """H(t,h) = {(s,r) | s+r = t+h, s ≤ t, r ≤ H}, from the series' first row; s = t in any case."""
    found = []
    for s in range(t + 1):
        for r in range(1, horizon + 1):
            if s + r == target and (begun[s] or s == t):
                found.append((s, r))
    return found


def feedback_attention(
    cell: attention.FeedbackAttention,
    config: ModelConfig,
    codes: Codes,
    c: ByForecast,
    times: list[int],
    random: Random,
) -> tuple[ByForecast, Weights]:
    """c̃_{t,h} = Σ_{(s,r) ∈ H(t,h)} A^h_{t,s,r} W_v^h v_{s,r}: second row of tab:eqn.

    q_{t,h} = [h_t; r_t; r_{t+h}; c_{t,h}],  k_{s,r} = [c_{s,r}; r_s; r_{s+r}],  v_{s,r} = c_{s,r}
    Cancel: r_{s+r} in the keys, and their bias.
    """
    heads, attended, weights = cell.heads, {}, {}
    W_left, b_k = random.normal(size=(config.head_dim, len(codes.r[0]))), random.normal(size=config.head_dim)
    for h in range(1, codes.horizon + 1):
        if config.research.feedback_heads == "shared":
            W_q, b_q = full(heads.query)
            W_k, W_v, b_v = (array(x) for x in (heads.key.weight, heads.value.weight, heads.value.bias))
        else:  # W_q^h, W_k^h, W_v^h
            W_q, b_q = array(heads.query.weight[h - 1]), array(heads.query.bias[h - 1, 0])
            W_k = array(heads.key_HAK[h - 1])
            W_v, b_v = array(heads.value.weight[h - 1]), array(heads.value.bias[h - 1, 0])
        W_k = np.hstack((W_k, W_left))
        for t in times:
            query = W_q @ join(codes.h(t), codes.r[t], codes.r[t + h], c[t, h]) + b_q
            keys, values = {}, {}
            for s, r in forecasts_of(t + h, t, codes.horizon, codes.begun):
                keys[s] = W_k @ join(c[s, r], codes.r[s], codes.r[s + r]) + b_k
                values[s] = W_v @ c[s, r] + b_v
            attended[t, h], weights[t, h] = attend(query, keys, values)
    return attended, weights


def all_contexts_attention(
    cell: attention.AllContextsAttention,
    config: ModelConfig,
    codes: Codes,
    c: ByForecast,
    times: list[int],
    random: Random,
) -> tuple[ByForecast, Weights]:
    """c̃_{t,h} = Σ_{s=t−L}^t A^h_{t,s} W_v^h v_s: tab:naive-decoderself.

    q_t = [c_{t,1}; …; c_{t,H}; h_t; r_t],  k_s = [c_{s,1}; …; c_{s,H}; r_s],  v_s = [c_{s,1}; …; c_{s,H}]
    """
    a, attended, weights = config.head_dim, {}, {}
    leads = range(1, codes.horizon + 1)
    for h in leads:
        head = slice((h - 1) * a, h * a)
        W_q, W_k, W_v = (array(layer.weight)[head] for layer in (cell.query, cell.key, cell.value))
        b_q, b_k, b_v = array(cell.query.bias)[head], random.normal(size=a), array(cell.value.bias)[head]
        for t in times:
            query = W_q @ join(*(c[t, r] for r in leads), codes.h(t), codes.r[t]) + b_q
            keys, values = {}, {}
            for s in looks_at(t, config.lookback, codes.begun):
                keys[s] = W_k @ join(*(c[s, r] for r in leads), codes.r[s]) + b_k
                values[s] = W_v @ join(*(c[s, r] for r in leads)) + b_v
            attended[t, h], weights[t, h] = attend(query, keys, values)
    return attended, weights


def around(
    block: attention.Block, config: ModelConfig, codes: Codes, attended: ByForecast, *own: ByForecast
) -> ByForecast:
    """bare: the cell's output. residual: LayerNorm(W_o attended_{t,h} + W_r [h_t; r_t; r_{t+h}; own_{t,h}] + b)."""
    if config.research.block == "bare":
        return attended
    W_r, b = full(block.residual)
    W_o = array(block.out.weight)
    out = {}
    for t, h in attended:
        query = join(codes.h(t), codes.r[t], codes.r[t + h], *(x[t, h] for x in own))
        out[t, h] = layer_norm(block.norm, W_o @ attended[t, h] + W_r @ query + b)
    return out


# Decoder: tab:mqt, right


def agnostic_context(
    contexts: decoder.AttentionContexts, config: ModelConfig, codes: Codes, times: list[int]
) -> ByStep:
    """c^a_t = ReLU(W[h_t; r] + b), where r is [r_{t+1}; …; r_{t+H}], or r_t."""
    W, b, out = array(contexts.agnostic.weight), array(contexts.agnostic.bias), {}
    if config.research.agnostic_context == "future" and len(codes.r[0]):
        W = np.hstack((W, *np.moveaxis(array(contexts.future.weight), 2, 0)))
    for t in times:
        r = codes.ahead(t) if config.research.agnostic_context == "future" else codes.r[t]
        out[t] = relu(W @ join(codes.h(t), r) + b)
    return out


def dense_contexts(contexts: decoder.DenseContexts, codes: Codes, times: list[int]) -> tuple[ByForecast, ByStep]:
    """m_G of MQ-CNN: c_{t,h} = ReLU(W^h[h_t; g_t] + b^h), c^a_t = ReLU(W[h_t; g_t] + b).

    The future comes flattened and through a layer of its own: g_t = ReLU(W[r_{t+1}; …; r_{t+H}] + b).
    """
    specific, agnostic = {}, {}
    for t in times:
        given = codes.h(t)
        if len(codes.r[0]):
            W = np.hstack(np.moveaxis(array(contexts.future.weight), 2, 0))
            given = join(given, relu(W @ codes.ahead(t) + array(contexts.future_bias)))
        agnostic[t] = relu(dense(contexts.agnostic, given))
        for h in range(1, codes.horizon + 1):
            W, b = array(contexts.specific.weight[h - 1]), array(contexts.specific.bias[h - 1, 0])
            specific[t, h] = relu(W @ given + b)
    return specific, agnostic


def local_mlp(
    local: decoder.LocalMLP, config: ModelConfig, codes: Codes, agnostic: ByStep, *own: ByForecast
) -> ByForecast:
    """(ŷ^1_{t+h}, …, ŷ^Q_{t+h}) = m_L(c^a_t, r_{t+h}, c_{t,h}, c̃_{t,h}): two layers, the first with a code of h."""
    W, b = full(local.hidden)
    quantiles = {}
    for t in agnostic:
        for h in range(1, codes.horizon + 1):
            hidden = W @ join(agnostic[t], codes.plain[t + h], *(x[t, h] for x in own)) + b
            if config.research.horizon_code:
                hidden = hidden + array(local.horizon_code[h - 1, 0])
            if config.research.horizon_code and config.variant.has_attention:
                for k, W_tau in enumerate(array(local.horizon_read)):
                    hidden = hidden + np.exp(-(h - 1) / 4**k) * (W_tau @ codes.h1[t])
            y = dense(local.out, relu(hidden))
            if config.head == "monotone":
                for q in range(1, len(y)):
                    y[q] = y[q - 1] + softplus(y[q])
            quantiles[t, h] = y
    return quantiles


@dataclass(frozen=True)
class Forecasts:
    """Quantiles of one series, and the attention weights behind them."""

    quantiles: ByForecast
    history: Weights
    feedback: Weights


def forecast(network: networks.Network, batch: Batch, b: int, random: Random) -> Forecasts:
    """ŷ_{t+h} of series b, at every creation time from its first row on."""
    config, history, feedback = network.config, {}, {}
    series = Series(batch, b)
    codes = encode(network, series, *positions(network, series), random)
    times = codes.times
    if config.model in ("mqcnn", "mqrnn"):
        c, agnostic = dense_contexts(network.contexts, codes, times)
        return Forecasts(local_mlp(network.local, config, codes, agnostic, c), history, feedback)
    attended, history = horizon_attention(network.contexts.cell, config, codes, times, random)
    c = around(network.contexts.block, config, codes, attended)
    agnostic = agnostic_context(network.contexts, config, codes, times)
    if config.model == "mqt-nods":
        return Forecasts(local_mlp(network.local, config, codes, agnostic, c), history, feedback)
    earlier = feedback_attention if config.model == "mqt" else all_contexts_attention
    attended, feedback = earlier(network.feedback, config, codes, c, times, random)
    c_tilde = around(network.feedback_block, config, codes, attended, c)
    return Forecasts(local_mlp(network.local, config, codes, agnostic, c, c_tilde), history, feedback)


# Tables to compare with tensors; NaN where nothing was computed


def by_step(found: ByStep, times: list[int], width: int) -> np.ndarray:
    """(time, channel)"""
    return np.array([found.get(t, np.full(width, np.nan)) for t in times]).reshape(len(times), width)


def by_forecast(found: ByForecast, times: list[int], horizon: int, width: int) -> np.ndarray:
    """(horizon, time, channel)"""
    table = [[found.get((t, h), np.full(width, np.nan)) for t in times] for h in range(1, horizon + 1)]
    return np.array(table).reshape(horizon, len(times), width)


def by_source(found: Weights, times: list[int], horizon: int, num_steps: int) -> np.ndarray:
    """(horizon, time, source): weights of all steps of the window, 0 where a sum does not go."""
    dense = {key: np.array([weights.get(s, 0.0) for s in range(num_steps)]) for key, weights in found.items()}
    return by_forecast(dense, times, horizon, num_steps)
