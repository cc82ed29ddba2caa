"""Requests to stop: recorded when they arrive, obeyed at the end of a step."""

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
            raise KeyboardInterrupt  # the second request stops at once
        self.signal = number


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Ctrl-C and SIGTERM wait for the end of the step; a second one does not.

    If the host process has its own handler for a signal, or ignores it, that is left alone.
    """
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield requests  # only the main thread receives signals
        return
    before = {number: handler for number in DEFAULTS if _may_be_taken(number, handler := signal.getsignal(number))}
    for number in before:
        signal.signal(number, requests)
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            if isinstance(handler, StopRequests):  # the inner work is done: pass the request on to the outer one
                handler.signal = handler.signal or requests.signal
    if requests.signal and not isinstance(before[requests.signal], StopRequests):
        name = signal.Signals(requests.signal).name
        raise Interrupted(f"{name}: it arrived when the work was done; everything is saved", requests.signal)


def _may_be_taken(number: int, handler: Any) -> bool:
    return handler is DEFAULTS[number] or isinstance(handler, StopRequests)
