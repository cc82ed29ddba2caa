"""Requests to stop: noted when they come, granted when a step is done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from mqcast.errors import Interrupted

DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


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
    """Ctrl-C and SIGTERM wait for the end of the step; a second one does not.

    A host that handles or ignores a signal in its own way goes on doing so.
    """
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield requests  # signals are the main thread's
        return
    before = {number: handler for number in DEFAULTS if _may_be_taken(number, handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, requests)
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            if isinstance(handler, StopRequests):  # a request that came too late for the inner work is the outer one's
                handler.signal = handler.signal or requests.signal
    if requests.signal and not isinstance(before[requests.signal], StopRequests):
        name = signal.Signals(requests.signal).name
        raise Interrupted(f"{name}: it came as the work was done; all is saved", requests.signal)


def _may_be_taken(number: int, handler: Any) -> bool:
    return handler is DEFAULTS[number] or isinstance(handler, StopRequests)
