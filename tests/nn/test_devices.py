"""Devices without double precision, such as Apple's GPU: no forward pass, loss or rate needs it there."""

import pytest
import torch
from model_samples import NUM_STEPS, VARIANTS, sample_batch, sample_network
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mqcast.nn import networks
from mqcast.nn.networks import Quantiles


class WithoutDoubles(TorchFunctionMode):
    """Treats every tensor as one of a device that refuses float64, unless it comes from `.cpu()`."""

    def __init__(self):
        super().__init__()
        self.on_cpu: list[Tensor] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        comes_from_cpu = function is Tensor.cpu or any(x is y for x in args for y in self.on_cpu)
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor) and comes_from_cpu:
                self.on_cpu.append(x)
            elif isinstance(x, Tensor) and x.dtype in (torch.float64, torch.complex128):
                raise TypeError(f"{function} makes a tensor of {x.dtype}, which the device does not support")
        return out


def test_the_simulated_device_refuses_doubles_and_the_cpu_does_not():
    x = torch.zeros(2)
    with WithoutDoubles():
        with pytest.raises(TypeError, match="does not support"):
            x.double()
        with pytest.raises(TypeError, match="does not support"):
            x.to(torch.float64)
        with pytest.raises(TypeError, match="does not support"):
            torch.zeros(2, dtype=torch.float64)
        assert x.cpu().double().mean().dtype == torch.float64


@pytest.mark.parametrize("variant", VARIANTS)
def test_forecasts_and_losses_need_no_doubles_on_the_device(variant, monkeypatch):
    monkeypatch.setattr(networks, "use_kernels", lambda *_: False)  # they are for CPUs alone
    network, batch = sample_network(VARIANTS[variant]), sample_batch(4)
    with WithoutDoubles():
        network(batch)
        network.train()
        total, count = network.loss(batch, NUM_STEPS)
        (total / count).backward()
        published = network.quantiles(batch, 2)
        if network.config.variant.has_attention:
            network.explain(batch, 2)
        assert 0 <= published.crossing_rate(batch.is_scored(2)) <= 1


def test_the_crossing_rate_is_exact():
    crossed = torch.tensor([True, False, False]).reshape(1, 3, 1)
    with WithoutDoubles():
        assert Quantiles(torch.zeros(1, 3, 1, 2), crossed).crossing_rate() == 1 / 3
