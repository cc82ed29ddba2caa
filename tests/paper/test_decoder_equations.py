"""The decoder against the right half of the paper's tab:mqt, and the loss, from random codes and contexts."""

import naive
import numpy as np
import pytest
import torch
from strategies import assert_same, for_all_settings

from mqcast.nn.grid import Grid
from mqcast.nn.loss import quantile_loss


@pytest.mark.parametrize("agnostic_context", ["future", "current"])
@for_all_settings(max_examples=20)
def test_the_agnostic_context_is_a_dense_layer_of_the_code_and_positions(setting, agnostic_context):
    setting = setting.but(model="mqt", agnostic_context=agnostic_context)
    network, config, num_fcts = setting.network(), setting.config, len(setting.fcts)
    codes = setting.codes(network)
    _, fast = network.contexts(codes, Grid(setting.horizon, num_fcts), None)
    found = [
        naive.agnostic_context(network.contexts, config, naive.Codes.of(codes, b), setting.fcts)
        for b in range(len(setting.starts))
    ]
    assert_same(fast, np.stack([naive.by_step(c, setting.fcts, config.head_dim) for c in found]))


@for_all_settings(max_examples=20)
def test_contexts_of_mqcnn_are_dense_layers_of_the_code_and_the_flattened_future(setting):
    setting = setting.but(model="mqcnn")
    network, width, num_fcts = setting.network(), setting.config.head_dim, len(setting.fcts)
    codes = setting.codes(network)
    specific, agnostic = network.contexts(codes, Grid(setting.horizon, num_fcts), None)
    each = [
        naive.dense_contexts(network.contexts, naive.Codes.of(codes, b), setting.fcts)
        for b in range(len(setting.starts))
    ]
    assert_same(specific, np.stack([naive.by_forecast(c, setting.fcts, setting.horizon, width) for c, _ in each]))
    assert_same(agnostic, np.stack([naive.by_step(c, setting.fcts, width) for _, c in each]))


@pytest.mark.parametrize("model", ["mqt", "mqt-nods"])
@pytest.mark.parametrize("horizon_code", [True, False])
@pytest.mark.parametrize("head", ["free", "monotone"])
@for_all_settings(max_examples=5)
def test_the_local_mlp_has_the_same_weights_at_all_creation_times_and_horizons(setting, head, horizon_code, model):
    setting = setting.but(model=model, head=head, horizon_code=horizon_code, quantiles=(0.1, 0.5, 0.9))
    network, num_fcts = setting.network(), len(setting.fcts)
    codes = setting.codes(network)
    widths = network.local.hidden.own.dims
    agnostic = setting.normal(7, len(setting.starts), num_fcts, network.contexts.dims[1])
    own = [setting.normal(8 + i, len(setting.starts), setting.horizon, num_fcts, dim) for i, dim in enumerate(widths)]
    fast = network.local(agnostic, tuple(own), codes, Grid(setting.horizon, num_fcts))
    table = []
    for b in range(len(setting.starts)):
        y = naive.local_mlp(
            network.local,
            setting.config,
            naive.Codes.of(codes, b),
            {t: naive.array(agnostic[b, i]) for i, t in enumerate(setting.fcts)},
            *(
                {
                    (t, h): naive.array(x[b, h - 1, i])
                    for i, t in enumerate(setting.fcts)
                    for h in range(1, setting.horizon + 1)
                }
                for x in own
            ),
        )
        table.append(naive.by_forecast(y, setting.fcts, setting.horizon, 3))
    assert_same(fast, np.stack(table))
    if head == "monotone":
        assert (fast.diff(dim=-1) >= 0).all()


@for_all_settings(max_examples=20)
def test_the_loss_is_summed_over_creation_times_quantiles_and_horizons(setting):
    batch, levels = setting.batch(0), setting.config.quantiles
    forecasts = setting.normal(7, len(setting.starts), setting.horizon, setting.num_steps, len(levels))
    total, count = 0.0, 0
    for b, t, k in np.ndindex(len(setting.starts), setting.num_steps, setting.horizon):
        if batch.is_fct[b, t] and batch.observed[b, t + k + 1]:
            for i, q in enumerate(levels):
                y = (batch.values[b, t + k + 1] - batch.loc[b, t]) / batch.scale[b, t]
                error = y.item() - forecasts[b, k, t, i].item()
                total += q * max(error, 0) + (1 - q) * max(-error, 0)
                count += 1
    fast, fast_count = quantile_loss(forecasts, batch.targets(), batch.is_scored(), torch.tensor(levels))
    assert_same(fast, np.array(total))
    assert fast_count == count
