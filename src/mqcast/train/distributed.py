"""Several processes that train as one, and sums that do not depend on how many they are.

A step's windows are cut into micro-batches, the leaves of a binary tree. Gradients are added along the tree's branches,
so the order of the additions is that of the leaves alone. A rank works on neighbouring leaves and adds up the largest
whole branches among them; all ranks then exchange these sums and add them up to the root, each for itself.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from mqcast import process
from mqcast.errors import ConfigError, PeerLostError

_num_groups = itertools.count()
_setting_threads = threading.Lock()
Branch = tuple[int, int]  # the leaves first … stop−1; as many as a power of two, and starting at a multiple of it


@dataclass(frozen=True)
class Ranks:
    """The processes that work together; one, where nothing else is said."""

    rank: int = 0
    num: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    store: Any = None  # what the ranks of a group share

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, num_parts: int, rank: int | None = None) -> range:
        """Neighbouring parts of one rank, left out: of this one; the shares of all are the whole, as even as can be."""
        i = self.rank if rank is None else rank
        return range(num_parts * i // self.num, num_parts * (i + 1) // self.num)

    def claims(self, num_parts: int) -> Iterator[int]:
        """Parts in their order, each to the rank that asks first; once in a group."""
        if self.store is None:
            yield from range(num_parts)
            return
        while (part := self.store.add("claimed", 1) - 1) < num_parts:
            yield part

    def add(self, table: Tensor) -> Tensor:
        """Sum over ranks; exact where at most one of them has something else than zero."""
        if self.num > 1:
            table = table.to(self.device)
            dist.all_reduce(table)
        return table

    def agree(self, value: int) -> int:
        """The first rank's value, on every rank; it waits for all."""
        table = torch.tensor([value if self.is_first else 0], dtype=torch.int64)
        return int(self.add(table).item())

    def sum_of_leaves(self, leaf: Callable[[int], Tensor], num_leaves: int, size: int) -> Tensor:
        """leaf(0) + … + leaf(num_leaves − 1), of `size` numbers each; the same to the bit for any number of ranks."""
        if self.num == 1:
            return _add_up(leaf, {}, num_leaves)
        of_rank = [branches(self.share(num_leaves, rank)) for rank in range(self.num)]
        sent = torch.zeros(max(map(len, of_rank)), size, device=self.device)
        for row, branch in enumerate(of_rank[self.rank]):
            sent[row] = _add_up(leaf, {}, num_leaves, branch)
        received = [torch.empty_like(sent) for _ in range(self.num)]
        dist.all_gather(received, sent)
        sums = {branch: received[rank][i] for rank, branches in enumerate(of_rank) for i, branch in enumerate(branches)}
        return _add_up(leaf, sums, num_leaves)


def branches(leaves: range) -> list[Branch]:
    """The largest whole branches that together are these leaves."""
    parts, first = [], leaves.start
    while first < leaves.stop:
        size = 1
        while first % (2 * size) == 0 and first + 2 * size <= leaves.stop:
            size *= 2
        parts.append((first, first + size))
        first += size
    return parts


def _add_up(
    leaf: Callable[[int], Tensor], sums: dict[Branch, Tensor], num_leaves: int, branch: Branch | None = None
) -> Tensor:
    """The sum of a branch, left out: of the whole tree, from the sums that are known and the leaves that are not."""
    first, stop = branch or (0, 1 << (num_leaves - 1).bit_length())
    if (first, stop) in sums:
        return sums[first, stop].clone()
    if stop - first == 1:
        return leaf(first)
    middle = (first + stop) // 2
    total = _add_up(leaf, sums, num_leaves, (first, middle))
    return total if middle >= num_leaves else total.add_(_add_up(leaf, sums, num_leaves, (middle, stop)))


def pick_device(name: str) -> torch.device:
    """`auto`: an accelerator if there is one. One device a process on each machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used ({str(error).splitlines()[0]}); try 'cpu'") from None
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    return device


@contextmanager
def joined(device: str = "auto", num_threads: int = 1) -> Iterator[Ranks]:
    """The processes that torchrun started, told by its environment; this one alone without it.

    Each has as many threads as are said: sums depend on their number to the bit, and on a CPU a process a core is
    faster than a thread a core.
    """
    process.use()
    place, before = pick_device(device), torch.get_num_threads()
    _use_threads(num_threads)
    try:
        with _group(place) as ranks:
            yield ranks
    finally:
        _use_threads(before)


def _use_threads(num: int) -> None:
    """Set how many threads torch uses in this Python thread; in all others, and in those to come, it stays as it is.

    OpenMP keeps a number for each thread. torch keeps one more, for threads that are new to it, and sets both.
    """
    if torch.get_num_threads() == num:
        return
    with _setting_threads, ThreadPoolExecutor(1) as newcomer:
        of_newcomers = newcomer.submit(torch.get_num_threads).result()
        torch.set_num_threads(num)
        newcomer.submit(torch.set_num_threads, of_newcomers).result()
    if torch.get_num_threads() != num:  # a torch without OpenMP has one number for all
        torch.set_num_threads(num)


@cache
def _met(*environment: str) -> tuple[Any, int, int]:
    """Where the processes meet, once for all groups: who comes too early to the first rank's store waits for long."""
    return next(iter(rendezvous("env://")))


@contextmanager
def _group(place: torch.device) -> Iterator[Ranks]:
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield Ranks(device=place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    store, rank, num = _met(*(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")))
    # The store outlives a group and, under torchrun, a process: without a prefix ranks may find addresses of the dead.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
    store = PrefixStore(f"attempt {attempt}, group {next(_num_groups)}", store)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", store=store, rank=rank, world_size=num)
    try:
        yield Ranks(rank, num, place, store)
    except (dist.DistError, RuntimeError) as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise PeerLostError(
            f"process {rank} of {num} has lost another one ({str(error).splitlines()[0][:200]}); look for the first "
            "error among them. What was saved is intact: go on with --resume"
        ) from error
    finally:
        dist.destroy_process_group()
