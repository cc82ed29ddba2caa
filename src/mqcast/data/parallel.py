"""Work on a stream of items by a few threads, in order and with bounded memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

NUM_THREADS = min(4, os.cpu_count() or 1)
Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map`, with the next few items worked on meanwhile."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="mqcast-gate") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > NUM_THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
