"""Random configurations of the kernels, and what differs from plain PyTorch: for lab/campaigns/kernels.py."""

from collections.abc import Callable

import numpy as np
import torch
from strategies import Setting
from test_kernel_equations import KINDS as NETWORKS
from test_kernel_equations import by_kernels, close, gradients, in_single_precision, wide
from torch import Tensor
from torch.nn import functional as F

from mqcast.nn import kernels
from mqcast.nn.loss import quantile_loss

WIDTHS = (8, 16, 24, 40)
LEVELS = ((0.5,), (0.1, 0.5, 0.9), tuple(i / 10 for i in range(1, 10)))
SHARPEST = 12.0  # logits so large that the kernels use a stable softmax


def of(rng: np.random.Generator, *choices):
    return choices[rng.integers(len(choices))]


def setting(rng: np.random.Generator) -> Setting:
    steps = int(of(rng, 1, 2, rng.integers(3, 30), rng.integers(30, 70)))
    starts = tuple(int(of(rng, 0, 0, steps - 1, rng.integers(steps))) for _ in range(of(rng, 1, 2, 3, 5)))
    made = Setting(
        num_steps=steps,
        horizon=int(of(rng, 1, 2, rng.integers(3, 14), rng.integers(14, 32))),
        starts=starts,
        shared_calendar=bool(rng.integers(2)),
        num_fcts=int(of(rng, 1, steps, rng.integers(1, steps + 1))),
        seed=int(rng.integers(2**31)),
    )
    made = wide(made, of(rng, "mqt", "mqt-nods"), of(rng, *WIDTHS), of(rng, *WIDTHS), of(rng, *NETWORKS))
    changes = {"lookback": int(of(rng, 1, rng.integers(1, steps + 1), 200)), "quantiles": of(rng, *LEVELS)}
    dilations = of(rng, (1, 2), (1, 3, 90), (1, 1, 2, 4))
    return made.but(**changes, dropout=of(rng, 0.0, 0.3), encoder_dilations=dilations, hidden_dim=of(rng, *WIDTHS))


def forecasts_and_gradients(rng: np.random.Generator) -> str:
    made = setting(rng)
    kernel, plain = gradients(made)
    off = [name for name in plain if not close(kernel[name], plain[name])]
    return f"{made}: {off}" if off or kernel.keys() != plain.keys() else ""


def large_logits(rng: np.random.Generator) -> str:
    made = setting(rng)
    kernel, plain = gradients(made, sharpen=float(rng.uniform(2, SHARPEST)))
    off = [name for name, x in kernel.items() if not x.isfinite().all()]
    far = float((kernel["forecasts"].double() - plain["forecasts"]).abs().max())
    return f"{made}: {off}, {far:.1e}" if off or far > 5e-3 * max(1.0, float(plain["forecasts"].abs().max())) else ""


def losses(rng: np.random.Generator) -> str:
    made = setting(rng)
    network = made.network()
    network, batch = in_single_precision(network, made.batch(network.reach))
    n, parameters = len(made.fcts), list(network.parameters())
    plain = quantile_loss(by_kernels(network, batch, n), batch.targets(n), batch.is_scored(n), network.levels)[0]
    found = network.loss(batch, n)[0]
    pairs = zip(
        (found, *torch.autograd.grad(found, parameters, allow_unused=True)),
        (plain, *torch.autograd.grad(plain, parameters, allow_unused=True)),
        strict=True,
    )
    off = [i for i, (x, y) in enumerate(pairs) if (x is None) != (y is None) or (x is not None and not close(x, y))]
    return f"{made}: {off}" if off else ""


def anyhow(rng: np.random.Generator, x: Tensor) -> Tensor:
    """The same numbers, lying otherwise in memory."""
    by = int(of(rng, 0, 1, 2, 3, 4, 20))
    if rng.integers(2):
        room = torch.full([2 * n + 1 for n in x.shape], 1, dtype=x.dtype)
        inner = room[tuple(slice(1, None, 2) for _ in x.shape)]
        return inner.copy_(x)
    room = torch.zeros(x.nbytes + by, dtype=torch.uint8)
    room[by:] = x.contiguous().view(-1).view(torch.uint8)
    return torch.frombuffer(room.numpy().data, dtype=x.dtype, count=x.numel(), offset=by).view(x.shape)


def compared(
    kernel: Callable, plain: Callable, parts: list[Tensor], units: list[float], rng: np.random.Generator
) -> list[int]:
    """Where results or gradients differ, in units of their sizes: 0 is the result, then the parts."""
    seed = int(rng.integers(2**31))
    found = []
    for way, number in ((kernel, torch.float32), (plain, torch.float64)):
        leaves = [(anyhow(rng, x) if way is kernel else x.to(number)).requires_grad_() for x in parts]
        out, where = way(*leaves)
        again = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)) * where
        result = torch.where(where, out, 0.0)
        found.append([result, *torch.autograd.grad((result * again.to(number)).sum(), leaves)])
    return [i for i, (x, y, u) in enumerate(zip(*found, units, strict=True)) if not close(x / u, y / u)]


def contexts_anyhow(rng: np.random.Generator) -> str:
    """Sums over the past of tensors that lie anyhow, their values from tiny to large."""
    batch, made, horizon = (int(x) for x in rng.integers(1, (4, 30, 20)))
    steps, heads, width = made + int(rng.integers(0, 30)), of(rng, *WIDTHS), of(rng, *WIDTHS)
    lookback, wanted = int(of(rng, 0, rng.integers(steps), 99)), made - int(rng.integers(min(made, horizon)))
    size, large = heads**-0.5 * float(rng.uniform(0.1, 1.5)), 10.0 ** float(rng.uniform(-6, 6))
    shapes = ((batch, made, heads), (of(rng, 1, batch), made + horizon - 1, heads), (batch, steps, heads))
    parts = [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) * size**0.5 for shape in shapes]
    parts.append(torch.from_numpy(rng.normal(size=(batch, steps, width)).astype(np.float32)) * large)
    begun = torch.from_numpy(rng.random((batch, steps)) < of(rng, 0.2, 0.9, 1.0))
    t, h, s = (torch.arange(n) for n in (made, horizon, steps))
    now = (steps - made + t)[:, None]
    seen = (s <= now) & (s >= now - lookback)
    seen = (seen & begun[:, None]) | (s == now)  # (b,t,s)
    asked = (t[:, None] + h >= made - wanted)[None, ..., None]  # others may hold anything

    def kernel(*given: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.aligned_contexts(*given, anyhow(rng, begun), lookback, wanted), asked

    def plain(now: Tensor, ahead: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        query = now[:, :, None] + ahead[:, t[:, None] + h]
        logits = torch.einsum("btha,bsa->bths", query, key).masked_fill(~seen[:, :, None], -torch.inf)
        return torch.einsum("bths,bsc->bthc", logits.softmax(-1), value), asked

    off = compared(kernel, plain, parts, [large] * 4 + [1.0], rng)
    sizes = f"{batch=} {made=} {horizon=} {steps=} {heads=} {width=} {lookback=} {wanted=} {size=} {large=}"
    return f"{sizes}: {off}" if off else ""


def codes_anyhow(rng: np.random.Generator) -> str:
    """Stacks of convolutions of tensors that lie anyhow."""
    batch, steps, width, layers = int(rng.integers(1, 5)), int(rng.integers(1, 60)), of(rng, *WIDTHS), of(rng, 1, 2, 5)
    dilations = [int(of(rng, 0, 1, rng.integers(1, 9), steps - 1, steps, 2**40)) for _ in range(layers)]
    shapes = [(batch, steps, width), *[(2 * width, width)] * layers, *[(width,)] * layers]
    parts = [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes]
    parts[1 : 1 + layers] = [x * width**-0.5 for x in parts[1 : 1 + layers]]
    begun = torch.arange(steps) >= torch.from_numpy(rng.integers(0, steps + 1, (batch, 1)))

    def kernel(x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        found = kernels.stacked_convolutions(x, anyhow(rng, begun), given[:layers], given[layers:], dilations)
        return found, begun[..., None]

    def plain(x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        for weight, bias, dilation in zip(given[:layers], given[layers:], dilations, strict=True):
            x = torch.where(begun[..., None], x, 0.0)
            back = F.pad(x, (0, 0, min(dilation, steps), 0))[:, :steps]
            first, last = weight.view(2, width, width)
            x = (back @ first.mT + x @ last.mT + bias).relu()
        return x, begun[..., None]

    off = compared(kernel, plain, parts, [1.0] * (len(parts) + 1), rng)
    return f"{batch=} {steps=} {width=} {dilations=} {off}" if off else ""


KINDS = {
    "forecasts and gradients": forecasts_and_gradients,
    "contexts, laid out anyhow": contexts_anyhow,
    "losses": losses,
    "codes, laid out anyhow": codes_anyhow,
    "large logits": large_logits,
}
