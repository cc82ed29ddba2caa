"""Several processes that train together, and sums that do not depend on the number of processes.

The windows of a step are divided into micro-batches, the leaves of a binary tree. Gradients are added along the
branches of the tree, so the order of the additions depends only on the leaves. A rank works on neighbouring leaves and
sums the largest complete branches among them. All ranks then exchange these sums, and each adds them up to the root.
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
Branch = tuple[int, int]  # the leaves first … stop−1: a power of two of them, starting at a multiple of it


@dataclass(frozen=True)
class Ranks:
    """The processes that work together; by default this one alone."""

    rank: int = 0
    num: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    store: Any = None  # what the ranks of a group share

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, num_parts: int, rank: int | None = None) -> range:
        """The neighbouring parts of a rank (default: this one); all parts are shared as evenly as possible."""
        i = self.rank if rank is None else rank
        return range(num_parts * i // self.num, num_parts * (i + 1) // self.num)

    def claims(self, num_parts: int) -> Iterator[int]:
        """Parts in order, each given to the first rank that is free; can be used once per group."""
        if self.store is None:
            yield from range(num_parts)
            return
        while (part := self.store.add("claimed", 1) - 1) < num_parts:
            yield part

    def add(self, table: Tensor) -> Tensor:
        """The sum over ranks; exact where at most one of them is not zero."""
        if self.num > 1:
            table = table.to(self.device)
            dist.all_reduce(table)
        return table

    def agree(self, value: int) -> int:
        """The value of the first rank, on every rank; waits for all of them."""
        table = torch.tensor([value if self.is_first else 0], dtype=torch.int64)
        return int(self.add(table).item())

    def sum_of_leaves(self, leaf: Callable[[int], Tensor], num_leaves: int, size: int) -> Tensor:
        """leaf(0) + … + leaf(num_leaves − 1), of `size` numbers each; bit-identical for any number of ranks."""
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
    """The largest complete branches that these leaves consist of."""
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
    """The sum of a branch (default: the whole tree), from known sums and from the leaves of the others."""
    first, stop = branch or (0, 1 << (num_leaves - 1).bit_length())
    if (first, stop) in sums:
        return sums[first, stop].clone()
    if stop - first == 1:
        return leaf(first)
    middle = (first + stop) // 2
    total = _add_up(leaf, sums, num_leaves, (first, middle))
    return total if middle >= num_leaves else total.add_(_add_up(leaf, sums, num_leaves, (middle, stop)))


def pick_device(name: str) -> torch.device:
    """`auto`: an accelerator if there is one. Each process on a machine gets its own device."""
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
def joined(device: str = "auto", num_threads: int | None = 1) -> Iterator[Ranks]:
    """Join the processes that torchrun started, according to its environment variables; without them, this one alone.

    Each process uses `num_threads` threads: the last bits of sums depend on their number, and on a CPU one process per
    core is faster than one thread per core. None: as many as it has.
    """
    process.use()
    place, before = pick_device(device), torch.get_num_threads()
    use_threads(before if num_threads is None else num_threads)
    try:
        with _group(place) as ranks:
            yield ranks
    finally:
        use_threads(before)


def use_threads(num: int) -> None:
    """Set the number of threads that torch uses in this Python thread; other and future threads keep theirs.

    OpenMP keeps one number per thread. torch keeps another one for new threads, and sets both.
    """
    if torch.get_num_threads() == num:
        return
    with _setting_threads, ThreadPoolExecutor(1) as new_thread:
        of_new_threads = new_thread.submit(torch.get_num_threads).result()
        torch.set_num_threads(num)
        new_thread.submit(torch.set_num_threads, of_new_threads).result()
    if torch.get_num_threads() != num:  # torch without OpenMP has one number for all threads
        torch.set_num_threads(num)


@cache
def _met(*environment: str) -> tuple[Any, int, int]:
    """The rendezvous of the processes, made once for all groups: connecting before the first rank is ready is slow."""
    return next(iter(rendezvous("env://")))


@contextmanager
def _group(place: torch.device) -> Iterator[Ranks]:
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield Ranks(device=place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    store, rank, num = _met(*(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")))
    # The store outlives a group and, under torchrun, a process: without a prefix, ranks may find dead processes in it.
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
            "error among them. What was saved is intact; continue with --resume"
        ) from error
    finally:
        dist.destroy_process_group()
