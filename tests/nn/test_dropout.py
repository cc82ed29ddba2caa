"""Dropout from 16 random bits: what it drops, and what it keeps."""

import pytest
import torch

from mqcast.nn.layers import Dropout


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
