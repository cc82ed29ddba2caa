"""A limit to the tensors that are made, so that a damaged file cannot ask for more memory than there is."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.full, torch.randn)


class AtMost(TorchFunctionMode):
    """Within this context, tensors are made until they have `num` entries in all; the next raises a ValueError.

    The device "meta" would tell the sizes as well, but importing what it needs takes longer than all the rest.
    """

    def __init__(self, num: int):
        super().__init__()
        self.left = num

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FACTORIES:
            size = 1
            for extent in _extents(args[:1] if func is torch.full else args):
                size *= extent
            self.left -= size
            if self.left < 0:
                raise ValueError("config.toml requires more weights than there are")
        return func(*args, **(kwargs or {}))


def _extents(shape: Iterable[Any]) -> Iterator[int]:
    """Sizes that are given one by one, or as one sequence."""
    for part in shape:
        if isinstance(part, int):
            yield part
        else:
            yield from _extents(part)
