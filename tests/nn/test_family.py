"""A new network of the family is one class and one line of the table."""

import re

import pytest
import torch
from model_samples import HORIZON, NUM_STEPS, SMALL, VARIANTS, sample_batch, sample_network
from torch import Tensor, nn

from mqcast.nn import networks
from mqcast.nn.grid import Grid
from mqcast.nn.layers import Parts, SplitLinear
from mqcast.settings import ModelConfig
from mqcast.settings.family import FAMILY, Variant


class MovingAverage(nn.Module):
    """An encoder: the mean of all steps so far, through a dense layer."""

    def __init__(self, config: ModelConfig, dims):
        super().__init__()
        self.dense = SplitLinear(dims, config.hidden_dim)

    def forward(self, parts: Parts, begun: Tensor) -> Tensor:
        x = torch.where(begun[..., None], self.dense(parts), 0.0)
        return x.cumsum(dim=1) / begun.cumsum(dim=1).clamp(min=1)[..., None]


class LatestForecast(nn.Module):
    """Attention over earlier forecasts that looks at none: a dense layer of each context."""

    def __init__(self, config: ModelConfig, hidden, position, context: int, horizon: int):
        super().__init__()
        self.dense, self.horizon = SplitLinear((context,), config.head_dim), horizon

    def grids(self, num_fcts: int, num_steps: int) -> tuple[Grid, Grid]:
        grid = Grid(self.horizon, num_fcts)
        return grid, grid

    def forward(self, context, inputs, grid, maps, out=None) -> Tensor:
        attended = self.dense((context,))
        return attended if out is None else attended @ out.T


NEW = {
    "an encoder": Variant(encoder=f"{__name__}:MovingAverage"),
    "an encoder beside feedback": Variant(
        encoder=f"{__name__}:MovingAverage", feedback="mqcast.nn.attention:FeedbackAttention"
    ),
    "another feedback": Variant(feedback=f"{__name__}:LatestForecast"),
}


@pytest.mark.parametrize("hidden_dim", [8, 16])  # the second is a width that the kernels take
@pytest.mark.parametrize("variant", NEW.values(), ids=NEW)
def test_a_part_that_the_table_names_is_trained_and_forecasts(variant, hidden_dim, monkeypatch):
    monkeypatch.setitem(FAMILY, "toy", variant)
    network, batch = sample_network(SMALL.replace(model="toy", hidden_dim=hidden_dim)).train(), sample_batch(8)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        total, count = network.loss(batch, NUM_STEPS)
        (total / count).backward()
        optimiser.step()
        losses.append(total.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in network.parameters())
    values = network.quantiles(batch, num_fcts=3).values
    assert values.shape == (8, HORIZON, 3, 2)
    torch.testing.assert_close(values, network.quantiles(batch).values[:, :, -3:], rtol=1e-4, atol=1e-5)
    assert network.explain(batch, 1).history.shape[2] == 1


def test_a_part_without_a_compiled_form_is_left_to_pytorch(monkeypatch):
    monkeypatch.setitem(FAMILY, "toy", NEW["another feedback"])
    network = sample_network(VARIANTS["mqt by kernels"].replace(model="toy"))
    calls = []
    network.feedback.register_forward_hook(lambda *_: calls.append(1))
    network(sample_batch(2))
    assert calls
    assert network.why_not_compiled() is None


def test_the_table_of_the_papers_networks_is_true():
    rows = re.findall(r"^\| (\S+)", networks.__doc__, flags=re.MULTILINE)
    assert rows == ["model", "mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn"]
    for name, row in zip(rows[1:], networks.__doc__.splitlines()[4:], strict=False):
        cells = [cell.strip() for cell in row.split("|")[2:-1]]
        variant = FAMILY[name]
        assert cells[0] == ("learned" if "Learned" in variant.position else "raw")
        assert cells[1] == ("LSTM" if variant.is_recurrent else "convolution")
        assert ("attention" in cells[2]) == variant.has_attention
        assert (cells[3] == "none") == (variant.feedback is None)
