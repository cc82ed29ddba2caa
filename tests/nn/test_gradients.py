"""Gradients: right, of everything, and the same however the attention is computed."""

from dataclasses import replace

import pytest
import torch
from model_samples import HORIZON, SMALL, VARIANTS, as_double, cut, distance, sample_batch, sample_network
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call

from mqcast.data.batch import Batch
from mqcast.nn import alignment, attention
from mqcast.nn.attention import AllContextsAttention, Block, DecoderInputs, FeedbackAttention, HorizonAttention
from mqcast.nn.encoder import EncoderAttention
from mqcast.nn.grid import Grid
from mqcast.nn.layers import CategoryLinear, Embeddings, FutureLinear, SplitLinear
from mqcast.nn.loss import quantile_loss
from mqcast.nn.networks import Network
from mqcast.settings import ModelConfig

TINY = ModelConfig(hidden_dim=4, static_dim=3, encoder_dilations=(1, 2), lookback=2, dropout=0)
NUM_DIRECTIONS = 4
HIDDEN, POSITION, CONTEXT = (4, 3), (2, 3), 5  # widths of [h¹; h²], [r^g; r^l] and c
ALL_SETTINGS = VARIANTS | {
    "mqt one-hot": SMALL.replace(static_encoding="one_hot"),
    "mqt current": SMALL.replace(agnostic_context="current"),
    "mqt monotone": SMALL.replace(head="monotone", quantiles=(0.1, 0.5, 0.9)),
    "mqt plain": SMALL.replace(scale_inputs=False, horizon_code=False),
    "mqt-all bare": SMALL.replace(model="mqt-all", block="bare"),
    "mqt bare per horizon": SMALL.replace(block="bare", feedback_heads="per_horizon"),
    "mqcnn encoder attention": SMALL.replace(model="mqcnn", encoder_attention=True),
    "mqrnn one-hot": SMALL.replace(model="mqrnn", static_encoding="one_hot"),
}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def check(module: nn.Module, call, *inputs: Tensor) -> None:
    """gradcheck along random directions, each of which changes every parameter and every one of these inputs."""
    names, own = zip(*module.named_parameters(), strict=True)
    start = [x.detach() for x in (*own, *inputs)]
    directions = [torch.randn(NUM_DIRECTIONS, *x.shape, dtype=torch.float64) for x in start]

    def function(steps: Tensor) -> Tensor:
        moved = [x + torch.tensordot(steps, d, 1) for x, d in zip(start, directions, strict=True)]
        parameters = dict(zip(names, moved, strict=False))
        out = functional_call(module, parameters, call(*moved[len(names) :]))
        weights = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64)
        return torch.stack((out.flatten() @ weights, out.flatten() @ weights.square().flip(0)))

    assert gradcheck(
        function, torch.zeros(NUM_DIRECTIONS, dtype=torch.float64, requires_grad=True), atol=1e-6, rtol=1e-6
    )


class Wanted(nn.Module):
    """What a module says of the cells that are wanted: others mean nothing."""

    def __init__(self, module: nn.Module, grid: Grid):
        super().__init__()
        self.module, self.grid = module, grid

    def forward(self, *inputs):
        return self.grid.forecasts(self.module(*inputs))


def codes_of(hidden: Tensor, static: Tensor, shared: Tensor, local: Tensor) -> DecoderInputs:
    """Two series of four steps and two horizons, one of which begins at the third."""
    begun = torch.tensor([[True] * 4, [False, False, True, True]])
    return DecoderInputs((hidden, static), (shared, local), (shared, local), begun, horizon=2)


def codes_inputs() -> tuple[Tensor, ...]:
    return random(2, 4, 4), random(2, 1, 3), random(1, 6, 2), random(2, 6, 3)


@pytest.mark.parametrize("by_target", [False, True])
@pytest.mark.parametrize("num_fcts", [2, 4])
def test_gradients_of_the_horizon_specific_attention(num_fcts, by_target):
    torch.manual_seed(0)
    cell = HorizonAttention(TINY, HIDDEN, POSITION).double()
    grid = Grid(2, num_fcts, by_target)
    W_o = random(3, 2)
    check(Wanted(cell, grid), lambda out, *parts: (codes_of(*parts), grid, None, out), W_o, *codes_inputs())


@pytest.mark.parametrize("num_fcts", [2, 4])
@pytest.mark.parametrize(
    ("kind", "heads"),
    [(FeedbackAttention, "shared"), (FeedbackAttention, "per_horizon"), (AllContextsAttention, "shared")],
)
def test_gradients_of_the_attention_over_earlier_forecasts(kind, heads, num_fcts):
    torch.manual_seed(0)
    cell = kind(TINY.replace(feedback_heads=heads), HIDDEN, POSITION, CONTEXT, 2).double()
    grid = Grid(2, num_fcts, by_target=kind is FeedbackAttention)
    context = random(2, *(grid.shape if grid.by_target else (2, 4)), CONTEXT)
    W_o = random(3, 2)
    call = lambda c, out, *parts: (c, codes_of(*parts), grid, None, out)  # noqa: E731
    check(Wanted(cell, grid), call, context, W_o, *codes_inputs())


def test_gradients_of_the_encoders_attention():
    torch.manual_seed(0)
    cell = EncoderAttention(TINY, POSITION).double()
    begun = torch.tensor([[True] * 4, [False, False, True, True]])
    check(cell, lambda h, *position: (h, position, begun), random(2, 4, 4), random(1, 4, 2), random(2, 4, 3))


@pytest.mark.parametrize("block", ["residual", "bare"])
def test_gradients_of_the_block_around_a_cell(block):
    torch.manual_seed(0)
    module = Block(TINY.replace(block=block), 2, (*HIDDEN, *POSITION), POSITION, (CONTEXT,)).double()
    if block == "bare":
        assert not list(module.parameters())
        return
    for grid in (Grid(2, 3), Grid(2, 3, by_target=True)):
        attended, context = random(2, *grid.shape, 2), random(2, *grid.shape, CONTEXT)
        call = lambda a, c, *parts, grid=grid: (a, codes_of(*parts), (c,), grid)  # noqa: E731
        check(Wanted(module, grid), call, attended, context, *codes_inputs())


NUMBERS = ("values", "loc", "scale", "past_number", "known_number", "global_number", "static_number")


@pytest.mark.parametrize("variant", ALL_SETTINGS)
def test_gradients_of_whole_networks(variant):
    """With respect to every number of a batch and to every parameter."""
    batch = cut(as_double(sample_batch(4)), 7, 12)
    known, events = torch.randn_like(batch.known_number), torch.randn_like(batch.global_number)
    batch = replace(batch, known_number=known, global_number=events)  # away from 0, where flags jump
    tiny = ALL_SETTINGS[variant].replace(hidden_dim=4, static_dim=3, head_dim=3, encoder_dilations=(1, 2), lookback=2)
    network = sample_network(tiny).double()
    inputs = [getattr(batch, name) for name in NUMBERS]
    check(network, lambda *x: (replace(batch, **dict(zip(NUMBERS, x, strict=True))),), *inputs)


def loss_of(network: Network, batch: Batch) -> Tensor:
    total, count = quantile_loss(network(batch), batch.targets(), batch.is_scored(), network.levels)
    return total / count


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("variant", ALL_SETTINGS)
def test_every_parameter_learns(variant):
    torch.manual_seed(0)
    network = sample_network(ALL_SETTINGS[variant]).train()
    loss_of(network, sample_batch()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    for name, module in network.named_modules():  # each part of a concatenation has weights of its own
        if isinstance(module, SplitLinear | FutureLinear):
            for i, part in enumerate(gradient(module.weight).split(module.dims, dim=1)):
                assert part.any(), f"part {i} of {name}"


@pytest.mark.parametrize("variant", ["mqt", "mqt one-hot"])
def test_every_category_that_occurs_learns_and_no_other(variant):
    batch, network = sample_batch(), sample_network(ALL_SETTINGS[variant])
    loss_of(network, batch).backward()
    calendar_and_events = batch.global_category[:, : network.reach + batch.values.shape[1] + network.reach]
    begun = batch.begun[:, : batch.loc.shape[1]]
    static = network.encoder.static
    tables = {
        "events": (network.position.events.dense, calendar_and_events.flatten(0, 1)),
        "known": (network.position.known.dense, batch.known_category.flatten(0, 1)),
        "past": (network.encoder.past, batch.past_category[begun]),
        "static": (static.embeddings or static.one_hot, batch.static_category),
    }
    for name, (table, codes) in tables.items():
        assert isinstance(table, CategoryLinear | Embeddings)
        occurs = torch.zeros(len(table.weight), dtype=torch.bool)
        occurs[(codes + table.first).flatten()] = True
        assert torch.equal(gradient(table.weight).any(dim=1), occurs), name


@pytest.mark.parametrize("num_fcts", [None, 3])
@pytest.mark.parametrize("variant", ["mqt", "mqt-all", "mqt per horizon", "mqt encoder attention"])
def test_attention_in_chunks_and_computed_anew_gives_the_same_forecasts_and_gradients(monkeypatch, variant, num_fcts):
    batch = as_double(sample_batch(8))
    network = sample_network(VARIANTS[variant]).double()

    def run() -> tuple[Tensor, list[Tensor]]:
        network.zero_grad()
        forecasts = network(batch, num_fcts)
        weights = torch.linspace(0.5, 1.5, forecasts.numel(), dtype=torch.float64)
        (forecasts.flatten() * weights).sum().backward()
        return forecasts.detach(), [gradient(parameter).clone() for parameter in network.parameters()]

    monkeypatch.setattr(attention, "CHUNK_WEIGHTS", 2**30)
    monkeypatch.setattr(alignment, "CHUNK", 2**30)
    forecasts, gradients = run()
    for chunk_weights in (1, 8 * HORIZON * 15):
        monkeypatch.setattr(attention, "CHUNK_WEIGHTS", chunk_weights)
        monkeypatch.setattr(attention, "KEPT_WEIGHTS", 0)
        monkeypatch.setattr(alignment, "CHUNK", chunk_weights)
        chunked, chunked_gradients = run()
        assert distance(chunked, forecasts) <= 1e-12
        for one, other in zip(chunked_gradients, gradients, strict=True):
            assert distance(one, other) <= 1e-10
