"""The compiled kernels against the paper's sums, and their gradients against those of plain PyTorch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from strategies import Setting, for_all_settings
from torch import Tensor

from mqcast.data.batch import Batch
from mqcast.nn import encoder, kernels, networks, reference
from mqcast.nn.loss import quantile_loss
from mqcast.nn.networks import Network
from mqcast.nn.reference.encoder import temporal_convolutions

pytestmark = pytest.mark.skipif(kernels.status() != "compiled", reason=kernels.status())
TOLERANCE = 3e-5  # of single precision, relative to the largest value
WIDTHS = [(8, 8), (8, 16), (16, 8), (24, 24)]  # of heads and of contexts
LONG = {  # rows, look-backs and horizons that are no multiples of anything, and longer than a block of the kernels
    "longer than blocks": Setting(num_steps=61, horizon=13, starts=(0, 30), num_fcts=41),
    "a long look-back": Setting(num_steps=45, horizon=9, starts=(0, 3), num_fcts=29),
    "each series its calendar": Setting(num_steps=31, horizon=17, starts=(0, 5), num_fcts=31, shared_calendar=False),
}


KINDS = {
    "default": {"block": "residual", "horizon_code": True},
    "paper": {"block": "bare", "horizon_code": False},
    "bare, with a horizon code": {"block": "bare", "horizon_code": True},
    "residual, without a horizon code": {"block": "residual", "horizon_code": False},
}
of_both = pytest.mark.parametrize("kind", ["default", "paper"])
of_all = pytest.mark.parametrize("kind", KINDS)


def wide(setting: Setting, model: str, heads: int, contexts: int, kind: str) -> Setting:
    """The same with a network that the kernels support."""
    supported = {"model": model, "feedback_heads": "shared", **KINDS[kind]}
    return setting.but(**supported, hidden_dim=16, head_dim=heads, context_dim=contexts, dropout=0.3)


def in_single_precision(network: Network, batch: Batch) -> tuple[Network, Batch]:
    parts = {name: x.float() for name, x in batch.tensors().items() if x.is_floating_point()}
    return network.float(), replace(batch, **parts)


def close(one: Tensor, other: Tensor, where: Tensor | None = None) -> bool:
    one, other = one.double(), other.double()
    difference = (one - other).abs() if where is None else (one - other).abs()[where]
    return difference.numel() == 0 or bool(difference.max() <= TOLERANCE * max(1.0, float(other.abs().max())))


def check(setting: Setting) -> None:
    network = setting.network()
    batch = setting.batch(network.reach)
    random = setting.random()
    each = [(reference.forecast(network, batch, b, random).quantiles,) for b in range(len(setting.starts))]
    (table,) = setting.at_fcts(each)
    begun = torch.from_numpy(np.broadcast_to(setting.begun[:, None, setting.fcts], table.shape[:3]).copy())
    network, batch = in_single_precision(network, batch)
    with torch.no_grad():
        assert close(by_kernels(network, batch, len(setting.fcts)), torch.from_numpy(table), begun)


def by_kernels(network: Network, batch: Batch, num_fcts: int) -> Tensor:
    """By the kernels, or not at all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network.contexts, "forward", None)
        return network(batch, num_fcts)


def by_pytorch(network: Network, batch: Batch, num_fcts: int) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "use_kernels", lambda *_: False)
        return network(batch, num_fcts)


@pytest.mark.parametrize(("heads", "contexts"), WIDTHS)
@pytest.mark.parametrize("model", ["mqt", "mqt-nods"])
@of_both
@for_all_settings(max_examples=4)
def test_the_kernels_are_the_sums_of_the_paper(setting, kind, model, heads, contexts):
    check(wide(setting, model, heads, contexts, kind))


STACKS = {  # channels, dilations, steps before each series' first row
    "a whole window": (8, (1, 2, 4), (0, 0)),
    "late beginners": (16, (1, 3, 9, 5), (0, 17, 40, 41)),
    "farther back than the window": (24, (1, 60), (3, 0)),
}


def convolutions(channels: int, dilations: tuple[int, ...], starts: tuple[int, ...]):
    """Random convolutions and inputs of 41 steps, and which of these are the series' own."""
    setting = Setting(num_steps=41, starts=starts).but(hidden_dim=channels, encoder_dilations=dilations)
    network = setting.network()
    width = sum(network.encoder.temporal.layers[0].linear.dims)
    x, begun = setting.normal(0, len(starts), 41, width), torch.from_numpy(setting.begun[:, :41])
    return setting, network.encoder.temporal, x, begun


def in_parts(stack: encoder.TemporalConvolutions, x: Tensor) -> tuple[Tensor, ...]:
    return x.split(stack.layers[0].linear.dims, dim=-1)


def stacked(stack: encoder.TemporalConvolutions, x: Tensor, begun: Tensor) -> Tensor:
    """By the kernels, or not at all."""
    with pytest.MonkeyPatch.context() as patch:
        for layer in stack.layers[1:]:
            patch.setattr(layer, "forward", None)
        return stack(in_parts(stack, x), begun)


@pytest.mark.parametrize(("channels", "dilations", "starts"), STACKS.values(), ids=STACKS)
def test_compiled_convolutions_are_the_sums_of_the_paper(channels, dilations, starts):
    setting, stack, x, begun = convolutions(channels, dilations, starts)
    pairs = zip(x.numpy(), begun.tolist(), strict=True)
    table = [temporal_convolutions(stack, setting.config, series, own) for series, own in pairs]
    where = begun[..., None].expand(-1, -1, channels)
    assert close(stacked(stack.float(), x.float(), begun), torch.from_numpy(np.stack(table)), where)


@pytest.mark.parametrize(("channels", "dilations", "starts"), STACKS.values(), ids=STACKS)
def test_gradients_of_compiled_convolutions_are_those_of_pytorch(channels, dilations, starts):
    setting, stack, x, begun = convolutions(channels, dilations, starts)
    weights, gradients = setting.normal(1, len(starts), 41, channels), []
    for number in (torch.float64, torch.float32):
        stack, x = stack.to(number), x.to(number).requires_grad_()
        out = stack(in_parts(stack, x), begun) if number == torch.float64 else stacked(stack, x, begun)
        gradients.append(torch.autograd.grad((out * weights.to(number)).sum(), [x, *stack.parameters()]))
        x = x.detach()
    assert all(close(one, other) for one, other in zip(gradients[1], gradients[0], strict=True))


def test_later_steps_and_other_series_change_no_code_by_one_bit():
    _, stack, x, begun = convolutions(16, (1, 3, 9, 5), (0, 17, 3))
    stack, x = stack.float(), x.float()
    before = stacked(stack, x, begun)
    for step in range(0, 41, 7):
        other = x.clone()
        other[:, step:] = torch.inf
        other[2] = torch.nan
        assert torch.equal(stacked(stack, other, begun)[:2, :step], before[:2, :step])
    assert torch.equal(stacked(stack, x[1:2, 17:], begun[1:2, 17:]), before[1:2, 17:])  # where a window begins, too


def gradients(setting: Setting, sharpen: float = 1.0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of a random sum of the forecasts, in training: by the kernels, and by PyTorch in double precision."""
    network = setting.network().train()
    with torch.no_grad():
        for parameter in network.alignment():
            parameter *= sharpen
    batch, n = setting.batch(network.reach), len(setting.fcts)
    shape = (len(setting.starts), setting.horizon, n, len(setting.config.quantiles))
    weights = setting.normal(7, *shape) * torch.from_numpy(setting.begun[:, None, setting.fcts, None])
    found = []
    for way in (by_pytorch, by_kernels):
        network, batch = (network, batch) if way is by_pytorch else in_single_precision(network, batch)
        network.zero_grad()
        torch.manual_seed(0)
        out = way(network, batch, n)
        (out * weights.to(out)).sum().backward()
        found.append({"forecasts": out.detach() * weights.ne(0)} | {
            name: parameter.grad.clone() for name, parameter in network.named_parameters() if parameter.grad is not None
        })  # fmt: skip
    return found[1], found[0]


@pytest.mark.parametrize("setting", LONG.values(), ids=LONG)
@pytest.mark.parametrize("lookback", [3, 20, 100])
@pytest.mark.parametrize("model", ["mqt", "mqt-nods"])
@of_all
def test_gradients_of_the_kernels_are_those_of_pytorch(kind, model, lookback, setting):
    kernel, plain = gradients(wide(setting, model, 16, 8, kind).but(lookback=lookback))
    assert kernel.keys() == plain.keys()
    off = [name for name in plain if not close(kernel[name], plain[name])]
    assert not off


@pytest.mark.parametrize("model", ["mqt", "mqt-nods"])
@of_both
def test_large_logits_go_through_a_stable_softmax(kind, model):
    """So large that e^E alone would overflow."""
    kernel, plain = gradients(wide(LONG["longer than blocks"], model, 8, 8, kind).but(lookback=20), sharpen=12.0)
    assert all(x.isfinite().all() for x in kernel.values())
    assert float((kernel["forecasts"].double() - plain["forecasts"]).abs().max()) < 2e-3


@pytest.mark.parametrize("setting", LONG.values(), ids=LONG)
@pytest.mark.parametrize("model", ["mqt", "mqt-nods"])
@of_all
def test_the_loss_of_the_kernels_is_that_of_their_forecasts(kind, model, setting):
    setting = wide(setting, model, 16, 8, kind)
    network = setting.network()
    network, batch = in_single_precision(network, setting.batch(network.reach))
    n, parameters = len(setting.fcts), list(network.parameters())
    expected = quantile_loss(by_kernels(network, batch, n), batch.targets(n), batch.is_scored(n), network.levels)
    found = network.loss(batch, n)
    torch.testing.assert_close(found, expected)
    for factor in (1.0, 2.5):
        pairs = [
            torch.autograd.grad(factor * x[0], parameters, allow_unused=True)
            for x in (network.loss(batch, n), expected)
        ]
        assert all((x is None) == (y is None) and (x is None or close(x, y)) for x, y in zip(*pairs, strict=True))
        expected = quantile_loss(by_kernels(network, batch, n), batch.targets(n), batch.is_scored(n), network.levels)


@of_both
def test_what_is_no_number_stays_none(kind):
    """A value that went astray shows in the loss, and in its own series alone."""
    setting = wide(LONG["longer than blocks"], "mqt", 8, 8, kind)
    network = setting.network()
    network, batch = in_single_precision(network, setting.batch(network.reach))
    values = batch.values.clone()
    values[1, batch.observed[1].nonzero()[0]] = torch.nan
    batch = replace(batch, values=values)
    n = len(setting.fcts)
    assert network.loss(batch, n)[0].isnan()
    forecasts = by_kernels(network, batch, n)
    assert forecasts[0].isfinite().all()
    assert forecasts[1].isnan().any()


def test_later_keys_change_no_earlier_context_by_one_bit():
    torch.manual_seed(0)
    now, ahead, key, value = (torch.randn(2, n, 8, dtype=torch.float32) for n in (40, 46, 50, 50))
    begun = torch.ones(2, 50, dtype=torch.bool)
    for size in (1.0, 30.0):  # by products of exponentials, and by a stable softmax
        before = kernels.aligned_contexts(now * size, ahead, key, value, begun, 12, 34)
        for step in range(17, 50, 5):
            other_key, other_value = key.clone(), value.clone()
            other_key[:, step:] *= 50
            other_value[:, step:] = torch.inf
            after = kernels.aligned_contexts(now * size, ahead, other_key, other_value, begun, 12, 34)
            whole = slice(6, step - 10)  # of creation times 10 … 49, those all of whose cells are computed
            assert torch.equal(before[:, whole], after[:, whole])
