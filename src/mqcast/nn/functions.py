"""How functions with gradients of their own are called."""

from typing import Any

import torch
from torch.autograd import Function


class _Forgetful:
    """A context that keeps nothing for a backward pass."""

    def save_for_backward(self, *tensors: Any) -> None:
        pass


def applied(function: type[Function], *arguments: Any) -> Any:
    """`function.apply`; without gradients its forward pass alone, as autograd would add time to every call."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)  # type: ignore[no-untyped-call]
    return function.forward(_Forgetful(), *arguments)
