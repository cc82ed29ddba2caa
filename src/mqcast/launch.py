"""One process a core: on a CPU that beats one process with a thread a core. No torch."""
# pyright: strict

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

PARENT = "MQCAST_PARENT"
REASONS = "MQCAST_REASONS"  # a folder where processes that fail write why
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
HUGE_PAGES = "glibc.malloc.hugetlb=1"  # each step walks through tensors of many megabytes
GRACE_SECONDS = 30.0  # for the others to save and leave, once one has ended
OWN_SECONDS = 5.0  # of these, before they are asked to: they may be about to fail, or to say why they have


def is_worker() -> bool:
    """Was this process started by torchrun or by `run_processes`?"""
    return "RANK" in os.environ


def leave(code: int) -> None:
    """End this process at once: gloo's threads may still use what the interpreter would destroy on its way out."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_first() -> bool:
    return int(os.environ.get("RANK", 0)) == 0


def say_why(text: str, kind: str, follows: bool) -> bool:
    """Leave it to the process that started this one to say why it failed, by an error of this kind; `follows`: because
    another one did.

    False if no process would.
    """
    folder = os.environ.get(REASONS)
    if folder is None:
        return not is_first()
    try:
        Path(folder, f"{int(follows)}-{int(os.environ.get('RANK', 0)):06}").write_text(
            f"{kind}\n{text}", encoding="utf-8"
        )
    except OSError:
        return not is_first()
    return True


def was_restarted() -> bool:
    """Has torchrun restarted this process after a failure?"""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_pages() -> None:
    """Let malloc, where it is glibc's, keep what it has got from the system: each step allocates the same again."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # macOS has no mallopt, Windows no CDLL(None)
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def leave_with_parent() -> None:
    """Should the process that started this one end, however it does, ask this one to stop too."""
    parent = int(os.environ.get(PARENT, 0))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    if parent:
        threading.Thread(target=watch, name="mqcast-parent", daemon=True).start()


def run_processes(num: int, module: str, arguments: list[str], tell: Callable[[str, str], None]) -> int:
    """Run `python -m module …` as `num` processes that work together; the exit code of the first that fails, or 0.

    When one fails the others are asked to stop, and one reason is reported: that of a process that did not fail because
    another did. They have a session of their own, so that signals, a terminal's too, come to this process alone, which
    passes each on once.
    """
    folder = tempfile.TemporaryDirectory(prefix="mqcast-", ignore_cleanup_errors=True)
    children = _start_all(num, [module, *arguments], {REASONS: folder.name})

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    def pause(number: int, frame: FrameType | None) -> None:
        pass_on(signal.SIGSTOP, frame)
        os.kill(os.getpid(), signal.SIGSTOP)
        pass_on(signal.SIGCONT, frame)  # this process goes on, and with it the others

    def leave_to_terminal(number: int, frame: FrameType | None) -> None:
        """Without sessions of their own (Windows) the processes get Ctrl-C from the terminal, as this one does."""

    handlers = {signal.SIGTERM: pass_on, signal.SIGINT: pass_on if hasattr(os, "setsid") else leave_to_terminal}
    if hasattr(signal, "SIGTSTP"):
        handlers[signal.SIGTSTP] = pause
    ignored = [number for number in handlers if signal.getsignal(number) is signal.SIG_IGN]
    before = {number: signal.signal(number, handlers[number]) for number in handlers if number not in ignored}
    try:
        code = _wait(children)
        for reason in sorted(Path(folder.name).iterdir())[:1]:
            kind, _, text = reason.read_text(encoding="utf-8").partition("\n")
            tell(text, kind)
        if code < 0:
            name = signal.Signals(-code).name
            tell(f"one of {num} processes was ended by {name}; run the command again to go on", "Interrupted")
        return 128 - code if code < 0 else code
    finally:
        folder.cleanup()
        for number, handler in before.items():
            signal.signal(number, handler)


def environments(num: int) -> list[dict[str, str]]:
    """The environment of each of `num` processes: who it is, where the others are, and memory in large pages."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        PARENT: os.getpid(),
        "WORLD_SIZE": num,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", HUGE_PAGES),
    }
    own = ({**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in range(num))
    return [os.environ | {key: str(value) for key, value in each.items()} for each in own]


def _start_all(num: int, arguments: list[str], more: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", *arguments]
    return [subprocess.Popen(command, env=env | more, start_new_session=True) for env in environments(num)]


def _wait(children: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all; once one has failed the others are asked to stop, and in the end made to. The first's exit code."""
    failed, since, asked = 0, float("inf"), False
    while running := [child for child in children if child.poll() is None]:
        before = failed
        failed = failed if asked else _failure(children)
        if failed and not before:
            since = time.monotonic()
        if not asked and time.monotonic() > since + OWN_SECONDS:
            asked = True
            for child in running:
                child.terminate()
        if time.monotonic() > since + GRACE_SECONDS:
            for child in running:
                child.kill()
        time.sleep(0.05)
    return failed if asked else _failure(children)


def _failure(children: list[subprocess.Popen[bytes]]) -> int:
    """The exit code of a child that has failed; 0: none has. One that was killed took the others with it."""
    codes = [child.returncode for child in children if child.returncode]
    return next((code for code in codes if code < 0), next(iter(codes), 0))
