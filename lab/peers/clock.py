"""Clock and memory gauge of the contenders; only the standard library, so that any environment can import it."""

from __future__ import annotations

import json
import threading
import time
from importlib.metadata import version
from pathlib import Path

HISTORY, HORIZON, BATCH = 168, 24, 32  # the one batch that every contender draws
IDS = ["unique_id"]  # pandas reads these as categories, which every peer accepts, and handles faster than strings
SAMPLE_SECONDS = 0.02
_STATUS = Path("/proc/self/status")


def status_mb(field: str) -> float:
    """One field of /proc/self/status (VmHWM, VmRSS, RssAnon), in MiB."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


class Clock:
    """Starts when it is made, after the imports; `mark` ends a stage, `report` prints one line of JSON."""

    def __init__(self) -> None:
        self.memory = {"rss_after_import_mb": status_mb("VmRSS"), "anon_after_import_mb": status_mb("RssAnon")}
        self.stages: dict[str, float] = {}
        self._peak_anon = self.memory["anon_after_import_mb"]
        self._done = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        self._cpu, self._start = time.process_time(), time.perf_counter()
        self._last = self._start

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._peak_anon = max(self._peak_anon, status_mb("RssAnon"))

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.stages[f"{stage}_s"], self._last = now - self._last, now

    def report(self, packages: tuple[str, ...], **detail: object) -> None:
        totals = {"total_s": self._last - self._start, "cpu_s": time.process_time() - self._cpu}
        self._done.set()
        self.memory["peak_rss_mb"] = status_mb("VmHWM")
        self.memory["peak_anon_mb"] = max(self._peak_anon, status_mb("RssAnon"))
        figures = {k: round(v, 4) for k, v in {**self.stages, **totals, **self.memory}.items()}
        print(json.dumps({**figures, "detail": detail, "versions": {name: version(name) for name in packages}}))
