"""The encoder against the left half of the paper's tab:mqt."""

import numpy as np
import pytest
import torch
from strategies import Setting, assert_same, for_all_settings

from mqcast.nn.networks import Network
from mqcast.nn.reference import encoder as reference
from mqcast.nn.reference.series import Encoded, Series


def inputs_of(setting: Setting, network: Network) -> torch.Tensor:
    """Random inputs of the temporal code, of the network's width."""
    temporal = network.encoder.temporal
    width = temporal.lstm.input_size if network.config.model == "mqrnn" else sum(temporal.layers[0].linear.dims)
    return setting.normal(0, len(setting.starts), setting.num_steps, width)


def in_parts(x: torch.Tensor, network: Network) -> tuple[torch.Tensor, ...]:
    """As the networks hold a concatenation."""
    if network.config.model == "mqrnn":
        return x.split((1, x.shape[-1] - 1), dim=-1)
    return x.split(network.encoder.temporal.layers[0].linear.dims, dim=-1)


@pytest.mark.parametrize(
    ("model", "plain"), [("mqt", reference.temporal_convolutions), ("mqrnn", reference.recurrence)]
)
@for_all_settings(max_examples=20)
def test_the_code_of_the_past_starts_at_the_first_row(setting, model, plain):
    setting = setting.but(model=model)
    network = setting.network()
    x, begun = inputs_of(setting, network), setting.begun[:, : setting.num_steps]
    fast = network.encoder.temporal(in_parts(x, network), torch.from_numpy(begun))
    pairs = zip(x.numpy(), begun.tolist(), strict=True)
    each = [plain(network.encoder.temporal, setting.config, series, own) for series, own in pairs]
    assert_same(fast, np.stack(each), begun)


@for_all_settings(max_examples=20)
def test_what_the_encoder_is_given_is_the_past_of_each_step(setting):
    network = setting.network()
    batch = setting.batch(network.reach)
    fast = torch.cat(network.encoder._covariates(batch), dim=-1)
    table = [
        [
            Series(batch, b).covariates(t, network.encoder, setting.config, setting.inputs)
            for t in range(setting.num_steps)
        ]
        for b in range(len(setting.starts))
    ]
    assert_same(fast, np.array(table))


@for_all_settings(max_examples=20)
def test_encoder_attention_is_a_sum_over_the_lookback(setting):
    setting = setting.but(encoder_attention=True)
    network = setting.network()
    inputs = setting.decoder_inputs(network)
    position = tuple(part[:, : setting.num_steps] for part in inputs.position)
    fast = network.encoder.attention(inputs.hidden[0], position, inputs.begun)
    each = []
    for b in range(len(setting.starts)):
        x = Encoded.of(inputs, b)
        block = network.encoder.attention
        each.append(reference.encoder_attention(block, setting.config, x.h1, x.r, x.begun, setting.random()))
    assert_same(fast, np.stack(each))


@pytest.mark.parametrize("static_encoding", ["one_hot", "embedding"])
@for_all_settings(max_examples=20)
def test_the_static_code_is_a_dense_layer_of_numbers_and_categories(setting, static_encoding):
    setting = setting.but(static_encoding=static_encoding)
    network = setting.network()
    if not setting.inputs.static_numbers and not setting.inputs.static_categories:
        assert network.encoder.static is None
        return
    batch = setting.batch(network.reach)
    each = [
        reference.static_code(network.encoder.static, setting.config, setting.inputs, Series(batch, b))
        for b in range(len(setting.starts))
    ]
    assert_same(network.encoder.static(batch)[:, 0], np.stack(each))
