"""Where a network's initial weights are drawn from: a generator of its own, or torch's global one.

The choice holds for one thread, so that networks made in several threads do not share random numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

_generator: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Modules that this thread makes in the meantime draw their weights from `generator`."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def uniform_(tensor: Tensor, bound: float) -> Tensor:
    return tensor.uniform_(-bound, bound, generator=_generator.get())


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_generator.get())


class Linear(nn.Linear):
    """An nn.Linear with PyTorch's initial weights."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=5**0.5, generator=_generator.get())
        with torch.no_grad():
            uniform_(self.bias, self.in_features**-0.5)


class LSTM(nn.LSTM):
    """An nn.LSTM with PyTorch's initial weights."""

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for weight in self.parameters():
                uniform_(weight, self.hidden_size**-0.5)
