"""Forecasts of the last creation times alone: the same as in the whole window, for less work."""

import pytest
import torch
from model_samples import HORIZON, LOOKBACK, MODELS, NUM_STEPS, SMALL, VARIANTS, distance, sample_batch, sample_network
from torch.utils.flop_counter import FlopCounterMode

from mqcast.nn.networks import Network


@pytest.mark.parametrize("lookback", [2, LOOKBACK, 100])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_the_last_forecasts_are_those_of_the_whole_window(variant, lookback):
    batch, network = sample_batch(24), sample_network(VARIANTS[variant].replace(lookback=lookback))
    everything = network(batch)
    for num_fcts in (1, 3, NUM_STEPS):
        last = network(batch, num_fcts=num_fcts)
        assert last.shape == (24, HORIZON, num_fcts, 2)
        assert distance(last, everything[:, :, -num_fcts:]) <= 1e-5


@pytest.mark.parametrize(("model", "before"), [("mqt", HORIZON - 1), ("mqt-nods", 0), ("mqt-all", LOOKBACK)])
@torch.no_grad()
def test_contexts_are_decoded_only_for_the_creation_times_that_count(model, before):
    network = sample_network(SMALL.replace(model=model))
    num_contexts, num_forecasts = [], []
    network.contexts.cell.register_forward_pre_hook(lambda _, arguments: num_contexts.append(arguments[1].num_made))
    network.local.register_forward_pre_hook(lambda _, arguments: num_forecasts.append(arguments[3].num_fcts))
    asked = (1, 3, NUM_STEPS - 1, NUM_STEPS)
    for num_fcts in asked:
        network(sample_batch(4), num_fcts=num_fcts)
    most = NUM_STEPS if model == "mqt-all" else NUM_STEPS + before
    assert num_contexts == [min(n + before, most) for n in asked]
    assert num_forecasts == list(asked)


def num_flops(network: Network, num_fcts: int) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        network(sample_batch(8), num_fcts=num_fcts)
    return counter.get_total_flops()


@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_the_last_forecast_alone_costs_much_less_than_all(model):
    network = sample_network(SMALL.replace(model=model))
    one, some, everything = (num_flops(network, n) for n in (1, 3, NUM_STEPS))
    assert one < some < everything
    assert one < 0.65 * everything
