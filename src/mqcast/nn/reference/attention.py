"""The attention blocks: tab:eqn and tab:naive-decoderself."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mqcast.nn import attention as fast
from mqcast.nn.reference.series import Encoded
from mqcast.nn.reference.vectors import Random, array, attend, dense, join, layer_norm, looks_at, whole
from mqcast.settings import ModelConfig

Attended = tuple[Float[np.ndarray, "horizon time head"], Float[np.ndarray, "horizon time source"]]  # sums and weights


def nothing_attended(x: Encoded, width: int) -> Attended:
    return np.full((x.horizon, x.num_steps, width), np.nan), np.zeros((x.horizon, x.num_steps, x.num_steps))


def horizon_attention(cell: fast.HorizonAttention, config: ModelConfig, x: Encoded, random: Random) -> Attended:
    """c_{t,h} = Σ_{s=t−L}^t A^h_{t,s} W_v v_s: first row of tab:eqn.

    q^h_t = [h_t; r_t; r_{t+h}],  k_s = [h_s; r_s],  v_s = h_s. Cancel: h² in the keys, and their bias.
    """
    c, weights = nothing_attended(x, config.head_dim)
    W_q, b_q = whole(cell.query)
    W_h1, W_r = np.split(array(cell.key.weight), [config.hidden_dim], axis=1)
    W_k = np.hstack((W_h1, random.normal(size=(config.head_dim, len(x.h2))), W_r))
    keys = x.now @ W_k.T + random.normal(size=config.head_dim)
    values = dense(cell.value, x.h)
    for t in range(x.num_steps):
        seen = looks_at(t, config.lookback, x.begun)
        for h in range(x.horizon):
            query = W_q @ join(x.now[t], x.r[t + h + 1]) + b_q
            c[h, t], weights[h, t, seen] = attend(query, keys[seen], values[seen])
    return c, weights


def feedback_attention(
    cell: fast.FeedbackAttention,
    config: ModelConfig,
    x: Encoded,
    c: Float[np.ndarray, "horizon time context"],
    random: Random,
) -> Attended:
    """c̃_{t,h} = Σ_{(s,r) ∈ H(t,h)} A^h_{t,s,r} W_v^h v_{s,r}: second row of tab:eqn.

    q_{t,h} = [h_t; r_t; r_{t+h}; c_{t,h}],  k_{s,r} = [c_{s,r}; r_s; r_{s+r}],  v_{s,r} = c_{s,r}
    Cancel: r_{s+r} in the keys, and their bias.
    """
    attended, weights = nothing_attended(x, config.head_dim)
    W_target = random.normal(size=(config.head_dim, x.r.shape[1]))
    b_k = random.normal(size=config.head_dim)
    for h in range(x.horizon):
        (W_q, b_q), W_k, (W_v, b_v) = feedback_head(cell, h)
        for t in range(x.num_steps):
            u = t + h + 1
            sources = forecasts_of(u, t, x.horizon, x.begun)
            query = W_q @ join(x.now[t], x.r[u], c[h, t]) + b_q
            keys = [np.hstack((W_k, W_target)) @ join(c[r - 1, s], x.r[s], x.r[s + r]) + b_k for s, r in sources]
            values = [W_v @ c[r - 1, s] + b_v for s, r in sources]
            attended[h, t], weights[h, t, [s for s, _ in sources]] = attend(query, np.stack(keys), np.stack(values))
    return attended, weights


def feedback_head(cell: fast.FeedbackAttention, h: int) -> tuple[tuple, np.ndarray, tuple]:
    """(W_q^h, b_q^h), W_k^h without its last columns, (W_v^h, b_v^h); shared heads are the same for all h."""
    heads = cell.heads
    if isinstance(heads, fast.SharedHeads):
        assert heads.value.bias is not None
        return whole(heads.query), array(heads.key.weight), (array(heads.value.weight), array(heads.value.bias))
    query, value = heads.query, heads.value
    return (
        (array(query.weight[h]), array(query.bias[h, 0])),
        array(heads.key_HAK[h]),
        (array(value.weight[h]), array(value.bias[h, 0])),
    )


def forecasts_of(target: int, t: int, horizon: int, begun: Sequence[bool]) -> list[tuple[int, int]]:
    """H(t,h) = {(s,r) | s+r = t+h, s ≤ t, r ≤ H}, from the series' first row; s = t in any case."""
    pairs = [(s, r) for s in range(t + 1) for r in range(1, horizon + 1)]
    return [(s, r) for s, r in pairs if s + r == target and (begun[s] or s == t)]


def all_contexts_attention(
    cell: fast.AllContextsAttention,
    config: ModelConfig,
    x: Encoded,
    c: Float[np.ndarray, "horizon time context"],
    random: Random,
) -> Attended:
    """MQT-All: c̃_{t,h} = Σ_{s=t−L}^t A^h_{t,s} W_v^h v_s: tab:naive-decoderself.

    q_t = [c_{t,1}; …; c_{t,H}; h_t; r_t],  k_s = [c_{s,1}; …; c_{s,H}; r_s],  v_s = [c_{s,1}; …; c_{s,H}]
    Cancel: the bias of the keys.
    """
    attended, weights = nothing_attended(x, config.head_dim)
    all_c = np.hstack(list(c))  # [c_{t,1}; …; c_{t,H}] for each t
    queries, values = dense(cell.query, join(all_c, x.now)), dense(cell.value, all_c)
    keys = join(all_c, x.r[: x.num_steps]) @ array(cell.key.weight).T + random.normal(size=queries.shape[1])
    for h in range(x.horizon):
        head = slice(h * config.head_dim, (h + 1) * config.head_dim)  # W_q^h, W_k^h, W_v^h
        for t in range(x.num_steps):
            seen = looks_at(t, config.lookback, x.begun)
            attended[h, t], weights[h, t, seen] = attend(queries[t, head], keys[seen, head], values[seen, head])
    return attended, weights


def block(
    block: fast.Block,
    x: Encoded,
    attended: Float[np.ndarray, "horizon time head"],
    *own: Float[np.ndarray, "horizon time context"],
) -> Float[np.ndarray, "horizon time context"]:
    """bare: the cell's output. residual: LayerNorm(W_o attended_{t,h} + W_r [h_t; r_t; r_{t+h}; own_{t,h}] + b)."""
    if block.residual is None or block.norm is None or block.out is None:
        return attended
    W_r, b = whole(block.residual)
    out = np.full((x.horizon, x.num_steps, block.dim), np.nan)
    for h, t in np.ndindex(x.horizon, x.num_steps):
        query = join(x.now[t], x.r[t + h + 1], *(part[h, t] for part in own))
        out[h, t] = layer_norm(block.norm, array(block.out.weight) @ attended[h, t] + W_r @ query + b)
    return out
