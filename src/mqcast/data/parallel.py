"""Threads that work on a stream of items, in order and with bounded memory."""
# pyright: strict

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

NUM_THREADS = min(4, os.cpu_count() or 1)
Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map`, with threads that work ahead on the next few items."""
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


def ahead(items: Iterable[Item], size: int) -> Iterator[Item]:
    """The items, while a thread prepares the next `size`; the thread ends when this iterator is closed."""
    ready: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(maxsize=max(size, 1))
    stop = threading.Event()

    def put(item: tuple[Item] | BaseException | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return

    def produce() -> None:
        try:
            for item in items:
                put((item,))
                if stop.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    producer = threading.Thread(target=produce, name="mqcast-ahead", daemon=True)
    producer.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        stop.set()
        producer.join()
