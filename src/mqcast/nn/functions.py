"""How functions with gradients of their own are called."""

from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx


def applied(function: type[Function], *arguments: Any) -> Any:
    """`function.apply`; without gradients its forward pass alone, as autograd would add time to every call."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)  # type: ignore[no-untyped-call]
    return function.forward(FunctionCtx(), *arguments)
