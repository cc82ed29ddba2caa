"""Dropout from 16 random bits: what it drops, and what it keeps."""

import pytest
import torch
from model_samples import SMALL, sample_batch, sample_panel

from mqcast.data.inputs import Inputs
from mqcast.nn.layers import Dropout, HorizonDropout
from mqcast.nn.networks import Network


@pytest.mark.parametrize("rate", [0.1, 0.15, 0.5, 0.9])
def test_the_share_that_is_dropped_is_the_rate_and_the_mean_is_kept(rate):
    torch.manual_seed(0)
    out = Dropout(rate)(torch.ones(1000, 1000))
    assert abs((out == 0).double().mean().item() - rate) < 0.002
    assert abs(out.double().mean().item() - 1) < 0.01
    assert len(out.unique()) == 2


def test_numbers_are_dropped_one_by_one():
    torch.manual_seed(0)
    dropped = (Dropout(0.5)(torch.ones(4000, 16)) == 0).double()
    among = torch.corrcoef(dropped.T)
    assert (among - torch.eye(16)).abs().max() < 0.08


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (0, 4)])
def test_any_shape_will_do(shape):
    assert Dropout(0.5)(torch.ones(shape)).shape == shape


def test_nothing_is_dropped_when_evaluating_or_with_a_rate_of_zero():
    x = torch.randn(50)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


def test_the_same_seed_drops_the_same():
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(Dropout(0.3)(torch.ones(100)))
    assert torch.equal(*draws)


@pytest.mark.parametrize("model", ["mqt-nods", "mqcnn", "mqrnn"])
def test_contexts_of_each_horizon_are_dropped_together(model):
    batch, rates = sample_batch(2), []
    config = SMALL.replace(model=model, dropout=0.5, block="bare")
    network = Network(config, Inputs.of(sample_panel()), batch.horizon).train()

    def note(module, given, dropped):
        cells = given[0]
        is_dropped = (dropped == 0) & (cells != 0)
        is_kept = (dropped != 0) & (cells != 0)
        assert not (is_dropped.any(dim=1) & is_kept.any(dim=1)).any()
        rates.append(is_dropped.sum().item() / (cells != 0).sum().item())

    (contexts,) = [part for part in network.contexts.modules() if isinstance(part, HorizonDropout)]
    contexts.register_forward_hook(note)
    torch.manual_seed(0)
    network(batch)
    assert 0.3 < rates[0] < 0.7
