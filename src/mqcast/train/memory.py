"""How many windows fit into memory at a time."""

import os

import torch
from torch import Tensor

from mqcast.data.batch import Batch
from mqcast.data.inputs import Inputs
from mqcast.errors import ConfigError
from mqcast.nn.members import seeded_network
from mqcast.nn.networks import Network
from mqcast.settings import ModelConfig, TrainConfig

PEAK = 3.0  # peak memory of a step, relative to what it keeps for the backward pass
COPIES, WIDE = 5, 512  # weights, gradient, Adam's two moments, average; narrower networks always fit
NUM_SHARES = 8  # this many processes can share a batch on accelerators


def pick_micro_batch(network: Network, batch: Batch, batch_size: int, config: TrainConfig) -> int:
    """The largest power of two of windows that stay within the allowed memory, estimated from one window.

    It depends neither on the number of processes nor on the load of the machine.
    """
    try:
        needed = PEAK * kept_bytes(network, batch) / 2**30
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate" not in str(error):
            raise
        needed = float("inf")  # more than the machine has
    if needed > config.memory_gib:
        raise ConfigError(
            f"a step of one window takes about {needed:.2g} GiB, memory_gib is {config.memory_gib:g}; allow more, or "
            "use fewer creation times per window (num_fcts), a shorter history or a smaller hidden_dim"
        )
    most = most_windows(batch_size) if batch.values.device.type == "cpu" else max(1, batch_size // NUM_SHARES)
    most = min(most, batch_size, int(config.memory_gib / needed))
    return 1 << (most.bit_length() - 1)


def require_memory(config: ModelConfig, inputs: Inputs, horizon: int) -> None:
    """Raise if the weights, gradients and moments would need more memory than this machine has."""
    if max(config.hidden_dim, config.static_dim, config.head_dim, config.context_dim) < WIDE:
        return
    with torch.device("meta"):  # sizes only
        network = seeded_network(config, inputs, horizon, 0)
    number = sum(parameter.numel() for parameter in network.parameters())
    kept = COPIES * 4 * number
    if kept > _memory():
        raise ConfigError(
            f"the network has {number:,} parameters, for which training needs {kept / 2**30:,.0f} GiB, more than this "
            "machine has; use a smaller hidden_dim, static_dim or head_dim"
        )


def _memory() -> float:
    """The memory of this machine in bytes; infinite if unknown."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


def most_windows(batch_size: int) -> int:
    """The largest micro-batch on a CPU: small enough that several processes can share a batch."""
    return min(16, max(8, batch_size // 2))


def kept_bytes(network: Network, batch: Batch) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once; the weights are not counted."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}

    def keep(tensor: Tensor) -> None:
        """Return nothing to the graph: a tensor that refers to the graph would never be freed with it."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)  # so that no address is reused

    alive: list[torch.UntypedStorage] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing):
        network.loss(batch, batch.num_fcts)
    alive.clear()  # the hook of the graph refers to this list
    return sum(kept.values())
