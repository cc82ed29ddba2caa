"""The decoder against the right half of the paper's tab:mqt, and the loss, from random inputs and contexts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from strategies import Setting, assert_same, for_all_settings

from mqcast.nn.grid import Grid
from mqcast.nn.loss import quantile_loss
from mqcast.nn.reference import decoder as reference
from mqcast.nn.reference.series import Encoded


@pytest.mark.parametrize("agnostic_context", ["future", "current"])
@for_all_settings(max_examples=20)
def test_the_agnostic_context_is_a_dense_layer_of_the_code_and_positions(setting, agnostic_context):
    setting = setting.but(model="mqt", agnostic_context=agnostic_context)
    network, config, num_fcts = setting.network(), setting.config, len(setting.fcts)
    inputs = setting.decoder_inputs(network)
    _, fast = network.contexts(inputs, Grid(setting.horizon, num_fcts), None)
    each = [
        reference.agnostic_context(network.contexts, config, Encoded.of(inputs, b)) for b in range(len(setting.starts))
    ]
    assert_same(fast, np.stack(each)[:, setting.fcts])


@for_all_settings(max_examples=20)
def test_contexts_of_mqcnn_are_dense_layers_of_the_code_and_the_flattened_future(setting):
    setting = setting.but(model="mqcnn")
    network, num_fcts = setting.network(), len(setting.fcts)
    inputs = setting.decoder_inputs(network)
    specific, agnostic = network.contexts(inputs, Grid(setting.horizon, num_fcts), None)
    each = [reference.dense_contexts(network.contexts, Encoded.of(inputs, b)) for b in range(len(setting.starts))]
    assert_same(specific, np.stack([c for c, _ in each])[:, :, setting.fcts])
    assert_same(agnostic, np.stack([c for _, c in each])[:, setting.fcts])


def check_local_mlp(setting: Setting) -> None:
    """The fast m_L of random contexts against its plain form."""
    network, num_fcts = setting.network(), len(setting.fcts)
    inputs = setting.decoder_inputs(network)
    widths = network.local.hidden.own.dims
    agnostic = setting.normal(7, len(setting.starts), num_fcts, network.contexts.dims[1])
    own = [setting.normal(8 + i, len(setting.starts), setting.horizon, num_fcts, dim) for i, dim in enumerate(widths)]
    fast = network.local(agnostic, tuple(own), inputs, Grid(setting.horizon, num_fcts))
    first, each = setting.num_steps - num_fcts, []
    for b in range(len(setting.starts)):
        c_agnostic = np.pad(agnostic[b].numpy(), ((first, 0), (0, 0)), constant_values=np.nan)
        contexts = [np.pad(x[b].numpy(), ((0, 0), (first, 0), (0, 0)), constant_values=np.nan) for x in own]
        each.append((reference.local_mlp(network.local, setting.config, Encoded.of(inputs, b), c_agnostic, *contexts),))
    assert_same(fast, *setting.at_fcts(each))
    if setting.config.head == "monotone":
        assert (fast.diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("model", ["mqt", "mqt-nods"])
@pytest.mark.parametrize("head", ["free", "monotone"])
@for_all_settings(max_examples=5)
def test_the_local_mlp_is_two_dense_layers_of_contexts_and_positions(setting, head, model):
    check_local_mlp(setting.but(model=model, head=head, horizon_code=False, quantiles=(0.1, 0.5, 0.9)))


@pytest.mark.parametrize("model", ["mqt", "mqt-nods", "mqcnn"])
@pytest.mark.parametrize("head", ["free", "monotone"])
@for_all_settings(max_examples=5)
def test_a_horizon_code_adds_a_bias_of_each_horizon_and_after_attention_the_last_code(setting, head, model):
    check_local_mlp(setting.but(model=model, head=head, horizon_code=True, quantiles=(0.1, 0.5, 0.9)))


@pytest.mark.parametrize("horizon_code", [True, False])
def test_without_a_horizon_code_the_weights_are_the_same_at_all_creation_times_and_horizons(horizon_code):
    """The same contexts and positions at every cell give the same quantiles."""
    setting = Setting(starts=(0, 0)).but(model="mqt", horizon_code=horizon_code)
    network, size, num_fcts = setting.network(), 2, len(setting.fcts)
    inputs = setting.decoder_inputs(network)
    same = tuple(part[:, :1].expand_as(part) for part in inputs.raw_position)
    inputs = replace(inputs, raw_position=same, precedents=torch.zeros_like(inputs.precedents))
    agnostic = setting.normal(7, size, 1, network.contexts.dims[1]).expand(-1, num_fcts, -1)
    own = tuple(
        setting.normal(8 + i, size, 1, 1, dim).expand(-1, setting.horizon, num_fcts, -1)
        for i, dim in enumerate(network.local.hidden.own.dims)
    )
    forecasts = network.local(agnostic, own, inputs, Grid(setting.horizon, num_fcts))
    is_same = bool((forecasts - forecasts[:, :1, :1]).abs().max() < 1e-12)
    assert is_same is not horizon_code


@for_all_settings(max_examples=20)
def test_the_loss_is_summed_over_creation_times_quantiles_and_horizons(setting):
    batch, levels = setting.batch(0), setting.config.quantiles
    forecasts = setting.normal(7, len(setting.starts), setting.horizon, setting.num_steps, len(levels))
    total, count = reference.quantile_loss(forecasts.numpy(), batch, levels)
    fast, fast_count = quantile_loss(forecasts, batch.targets(), batch.is_scored(), torch.tensor(levels))
    assert_same(fast, np.array(total))
    assert fast_count == count
