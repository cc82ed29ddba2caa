"""Position encodings: r_u = [r^g_u; r^l_u], u = 0 … T+H−1."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mqcast.data.inputs import Inputs
from mqcast.nn import position as fast
from mqcast.nn.networks import Network
from mqcast.nn.reference.series import Series
from mqcast.nn.reference.vectors import array, category_dense, dense, join, relu
from mqcast.settings import ModelConfig

Steps = Float[np.ndarray, "step position"]  # steps 0 … T+H−1
RawSteps = Float[np.ndarray, "step raw_position"]


def positions(network: Network, series: Series) -> tuple[Steps, RawSteps]:
    """r_u as the encoder and the attention see it; and before it is normalised, with the echoes, as m_L does."""
    config, inputs, horizon = network.config, network.inputs, network.horizon
    if isinstance(network.position, fast.RawPosition):
        r = raw_position(network.position, inputs, horizon, series)
        return r, r
    parts = (
        global_position(network.position, config, inputs, horizon, series),
        local_position(network.position, inputs, horizon, series),
    )
    return join(*(normed(config, part) for part in parts)), join(*parts, echoes(inputs, horizon, series))


def global_position(
    learned: fast.LearnedPosition, config: ModelConfig, inputs: Inputs, horizon: int, series: Series
) -> Steps:
    """r^g_u = PE^g_u(x^g): dilated convolutions that look both ways, out_u = ReLU(Σ_i W_i x_{u+i·dilation} + b)."""
    sizes = inputs.calendar + inputs.event_categories
    span, d = series.num_steps + horizon, config.hidden_dim
    if not inputs.global_numbers + len(sizes):
        return np.zeros((span, 0))
    dilations = position_dilations(config, horizon)
    x = {
        u: covariates(learned.events, inputs.global_flags, sizes, *series.calendar(u))
        for u in range(-sum(dilations), span + sum(dilations))
    }
    taps = [(-dilation, 0, dilation) for dilation in dilations] or [(0,)]
    layers: Any = learned.convolutions
    for layer, offsets in zip(layers, taps, strict=True):
        weights, bias, out = array(layer.linear.weight).reshape(len(offsets), d, -1), array(layer.bias), {}
        for u in x:
            if all(u + offset in x for offset in offsets):
                out[u] = relu(sum(W @ x[u + offset] for W, offset in zip(weights, offsets, strict=True)) + bias)
        x = out
    assert list(x) == list(range(span))
    return np.stack(list(x.values()))


def position_dilations(config: ModelConfig, horizon: int) -> list[int]:
    """Those of the settings, or 1, 2, 4, … and the remainder to horizon − 1, in rising order."""
    if config.position_dilations is not None:
        return list(config.position_dilations)
    dilations, power = [], 1
    while sum(dilations) + power <= horizon - 1:
        dilations.append(power)
        power *= 2
    rest = horizon - 1 - sum(dilations)
    return sorted([*dilations, rest] if rest else dilations)


def local_position(learned: fast.LearnedPosition, inputs: Inputs, horizon: int, series: Series) -> Steps:
    """r^l_u = PE^l_u(x^l): a dense layer with ReLU at each step."""
    span, sizes = series.num_steps + horizon, inputs.known_categories
    count = inputs.known_numbers - inputs.echo_numbers
    if not count + len(sizes):
        return np.zeros((span, 0))
    known = [series.known(u) for u in range(span)]
    x = [covariates(learned.known, inputs.known_flags, sizes, numbers[:count], codes) for numbers, codes in known]
    return np.stack([relu(dense(learned.local, x_u)) for x_u in x])


def echoes(inputs: Inputs, horizon: int, series: Series) -> Float[np.ndarray, "step echo"]:
    """What was sold so many steps before each step, for m_L alone."""
    count = inputs.known_numbers - inputs.echo_numbers
    return np.stack([series.known(u)[0][count:] for u in range(series.num_steps + horizon)])


def covariates(
    layer: fast.Covariates, flags: Sequence[int], sizes: Sequence[int], numbers: np.ndarray, categories: list[int]
) -> Float[np.ndarray, " covariate"]:
    """Numbers, flags five times as large unless the start is plain, and ReLU(W · one-hot + b)."""
    numbers = np.array([layer.flag_gain * number if i in flags else number for i, number in enumerate(numbers)])
    return numbers if layer.dense is None else join(numbers, relu(category_dense(layer.dense, sizes, categories)))


def normed(config: ModelConfig, part: Steps) -> Steps:
    """Mean 0 and variance v / (v + 1/2) at each step: a layer norm without weights and with ε = 1/2."""
    if not config.research.position_norm or not part.shape[1]:
        return part
    centred = part - part.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 0.5)


def raw_position(raw: fast.RawPosition, inputs: Inputs, horizon: int, series: Series) -> Steps:
    """The r_u of MQ-CNN and MQ-RNN: covariates, and linear distances to the events around step u."""
    sizes = inputs.calendar + inputs.event_categories

    def global_events(u: int) -> list[bool]:
        number, category = series.calendar(u)
        named = category[len(inputs.calendar) :]
        return [bool(number[i] > 0) for i in inputs.global_flags] + [code != 0 for code in named]

    def known_events(u: int) -> list[bool]:
        return [u >= 0 and bool(series.known(u)[0][i] > 0) for i in inputs.known_flags]

    return np.stack(
        [
            join(
                covariates(raw.events, inputs.global_flags, sizes, *series.calendar(u)),
                nearness(global_events, u, -1, raw.reach),
                nearness(global_events, u, +1, raw.reach),
                covariates(raw.known, inputs.known_flags, inputs.known_categories, *series.known(u)),
                nearness(known_events, u, -1, raw.reach),
            )
            for u in range(series.num_steps + horizon)
        ]
    )


def nearness(events: Callable[[int], list[bool]], u: int, direction: int, reach: int) -> Float[np.ndarray, " event"]:
    """1 − n/(R + 1) for each event, n steps from u to the nearest in this direction; 0 beyond the reach R."""
    near = np.zeros(len(events(u)))
    for n in range(reach, -1, -1):
        near[events(u + direction * n)] = 1 - n / (reach + 1)
    return near
