"""The encoder against the left half of the paper's tab:mqt."""

import naive
import numpy as np
import pytest
import torch
from strategies import Setting, assert_same, for_all_settings

from mqcast.nn.networks import Network


def inputs_of(setting: Setting, network: Network) -> tuple[torch.Tensor, list[naive.ByStep]]:
    """Random inputs of the temporal code, of the network's width, and the same step by step."""
    temporal = network.encoder.temporal
    width = temporal.lstm.input_size if network.config.model == "mqrnn" else sum(temporal.layers[0].linear.dims)
    x = setting.normal(0, len(setting.starts), setting.num_steps, width)
    return x, [{t: naive.array(x[b, t]) for t in range(setting.num_steps)} for b in range(len(x))]


def in_parts(x: torch.Tensor, network: Network) -> tuple[torch.Tensor, ...]:
    """As the networks hold a concatenation."""
    if network.config.model == "mqrnn":
        return x.split((1, x.shape[-1] - 1), dim=-1)
    return x.split(network.encoder.temporal.layers[0].linear.dims, dim=-1)


@pytest.mark.parametrize(("model", "in_loops"), [("mqt", naive.temporal_convolutions), ("mqrnn", naive.recurrence)])
@for_all_settings(max_examples=20)
def test_the_code_of_the_past_starts_at_the_first_row(setting, model, in_loops):
    setting = setting.but(model=model)
    network, times = setting.network(), list(range(setting.num_steps))
    x, each = inputs_of(setting, network)
    begun = setting.begun[:, times]
    fast = network.encoder.temporal(in_parts(x, network), torch.from_numpy(begun))
    found = [
        in_loops(network.encoder.temporal, setting.config, series, start.tolist())
        for series, start in zip(each, begun, strict=True)
    ]
    table = np.stack([naive.by_step(h, times, setting.config.hidden_dim) for h in found])
    assert_same(fast, table, begun)


@for_all_settings(max_examples=20)
def test_what_the_encoder_is_given_is_the_past_of_each_step(setting):
    network = setting.network()
    batch = setting.batch(network.reach)
    fast = torch.cat(network.encoder._covariates(batch), dim=-1)
    table = [
        [
            naive.Series(batch, b).covariates(t, network.encoder, setting.config, setting.inputs)
            for t in range(setting.num_steps)
        ]
        for b in range(len(setting.starts))
    ]
    assert_same(fast, np.array(table))


@for_all_settings(max_examples=20)
def test_encoder_attention_is_a_sum_over_the_lookback(setting):
    setting = setting.but(encoder_attention=True)
    network, times = setting.network(), list(range(setting.num_steps))
    codes = setting.codes(network)
    position = tuple(part[:, : setting.num_steps] for part in codes.position)
    fast = network.encoder.attention(codes.hidden[0], position, codes.begun)
    table = []
    for b in range(len(setting.starts)):
        own = naive.Codes.of(codes, b)
        h = naive.encoder_attention(
            network.encoder.attention, setting.config, own.h1, own.r, own.begun, setting.random()
        )
        table.append(naive.by_step(h, times, setting.config.hidden_dim))
    assert_same(fast, np.stack(table))


@pytest.mark.parametrize("static_encoding", ["one_hot", "embedding"])
@for_all_settings(max_examples=20)
def test_the_static_code_is_a_dense_layer_of_numbers_and_categories(setting, static_encoding):
    setting = setting.but(static_encoding=static_encoding)
    network = setting.network()
    if not setting.inputs.static_numbers and not setting.inputs.static_categories:
        assert network.encoder.static is None
        return
    batch = setting.batch(network.reach)
    found = [
        naive.static_code(network.encoder.static, setting.config, setting.inputs, naive.Series(batch, b))
        for b in range(len(setting.starts))
    ]
    assert_same(network.encoder.static(batch)[:, 0], np.stack(found))
