"""Requests to stop: noted when they come, granted when a step is done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopRequests:
    """Which signal asked training to stop; 0: none."""

    signal: int = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt  # asked twice: at once
        self.signal = number


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Ctrl-C and SIGTERM wait for the end of the step; a second one does not."""
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield requests  # signals are the main thread's
        return
    before = {number: signal.signal(number, requests) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            if isinstance(handler, StopRequests):  # a request that came too late for the inner work is the outer one's
                handler.signal = handler.signal or requests.signal
