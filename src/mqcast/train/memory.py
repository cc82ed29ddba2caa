"""How many windows a step can hold at a time."""

import os

import torch
from torch import Tensor

from mqcast.data.batch import Batch
from mqcast.errors import ConfigError
from mqcast.nn.inputs import Inputs
from mqcast.nn.networks import Network
from mqcast.settings import ModelConfig, TrainConfig

PASSING = 3.0  # a step's peak over what it keeps for its way back: gradients and products on their way
COPIES, WIDE = 5, 512  # weights, gradient, Adam's two, their average; narrower networks fit anywhere
NUM_SHARES = 8  # an accelerator's batch can be shared by so many processes


def pick_micro_batch(network: Network, batch: Batch, batch_size: int, config: TrainConfig) -> int:
    """The most windows, a power of two, that stay within the memory allowed, told from one window.

    It does not depend on the number of processes, nor on what the machine does meanwhile.
    """
    try:
        needed = PASSING * kept_bytes(network, batch) / 2**30
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate" not in str(error):
            raise
        needed = float("inf")  # more than there is
    if needed > config.memory_gib:
        raise ConfigError(
            f"a step of one window takes about {needed:.2g} GiB, memory_gib is {config.memory_gib:g}; allow more, or "
            "use fewer creation times a window (num_fcts), a shorter history or a smaller hidden_dim"
        )
    most = most_windows(batch_size) if batch.values.device.type == "cpu" else max(1, batch_size // NUM_SHARES)
    most = min(most, batch_size, int(config.memory_gib / needed))
    return 1 << (most.bit_length() - 1)


def require_memory(config: ModelConfig, inputs: Inputs, horizon: int) -> None:
    """Raise if the weights, and what training keeps beside them, would be more than this machine's memory."""
    if max(config.hidden_dim, config.static_dim, config.head_dim, config.context_dim) < WIDE:
        return
    with torch.device("meta"):  # sizes alone
        network = Network(config, inputs, horizon)
    number = sum(parameter.numel() for parameter in network.parameters())
    kept = COPIES * 4 * number
    if kept > _memory():
        raise ConfigError(
            f"the network has {number:,} parameters, for which training keeps {kept / 2**30:,.0f} GiB, more than there "
            "are; use a smaller hidden_dim, static_dim or head_dim"
        )


def _memory() -> float:
    """Bytes of this machine; without end where that is not told."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


def most_windows(batch_size: int) -> int:
    """On a CPU: few enough that processes can share a batch."""
    return min(16, max(8, batch_size // 2))


def kept_bytes(network: Network, batch: Batch) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once; the weights are not counted."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}

    def keep(tensor: Tensor) -> None:
        """The graph gets nothing to keep: a tensor that knows the graph would never be freed with it."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)  # so that no address is used twice

    alive: list[torch.UntypedStorage] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing):
        network.loss(batch, batch.num_fcts)
    alive.clear()  # the graph's hook knows this list
    return sum(kept.values())
