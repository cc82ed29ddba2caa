"""What the benchmarks share: a lock, environments for peers, a supervised subprocess, machine facts, the record."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAB, ROOT = HERE.parent, HERE.parents[1]
DATA, ENVS, RESULTS = HERE / ".data", HERE / ".envs", LAB / "results"
MEMORY_LIMIT_GIB, TIME_LIMIT_S, POLL_S = 20.0, 900.0, 0.05


@contextlib.contextmanager
def lock(shared: bool = False) -> Iterator[None]:
    """Hold lab/benchmarks/.lock, waiting for it: timings run alone, trainings (`shared`) beside each other."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with (HERE / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            print("a benchmark or a training is running; waiting for it", flush=True)
            fcntl.flock(handle, kind)
        yield


def environment(name: str, pins: Sequence[str], with_torch: bool = True) -> Path | str:
    """The Python of a peer's own environment, made once per set of pins; the reason if it cannot be made.

    torch is installed first, with the repository's constraints, so that the peer's packages keep its version.
    """
    home, constraint = ENVS / name, ["--constraint", str(ENVS / "constraints.txt")]
    python, ready, wanted = home / "bin" / "python", home / ".ready", "\n".join(pins)
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"making the environment of {name} (once)", flush=True)
    ENVS.mkdir(exist_ok=True)
    pinned = re.findall(r"^[\w.-]+==[^\s;]+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    (ENVS / "constraints.txt").write_text("\n".join(pinned))  # without hashes: the peer's own packages have none
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    steps = {
        "venv": [sys.executable, "-m", "venv", "--clear", str(home)],
        **({"pip install torch": [*pip, *constraint, "torch"]} if with_torch else {}),
        "pip install": [*pip, *pins],
    }
    with (ENVS / f"{name}.log").open("w") as log:
        for step, command in steps.items():
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
            if code:
                return f"install failed: {step} ended with code {code}; see lab/benchmarks/.envs/{name}.log"
    ready.write_text(wanted)
    return python


def _anon_gib(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 2**20
    return 0.0


def _watch(process: subprocess.Popen, memory_gib: float, seconds: float) -> str | None:
    """Wait for the process; end it and return the reason once it exceeds its limits (memory without its children)."""
    start = time.monotonic()
    while process.poll() is None:
        reason = None
        if _anon_gib(process.pid) > memory_gib:
            reason = f"memory: exceeded {memory_gib:g} GiB after {time.monotonic() - start:.0f} s"
        elif time.monotonic() - start > seconds:
            reason = f"time: exceeded {seconds:g} s"
        if reason:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return reason
        time.sleep(POLL_S)
    return None


def _without_paths(text: str) -> str:
    """The text without the folders of this machine, because the record is published."""
    for folder, name in ((ROOT, "."), (sys.base_prefix, "<python>"), (Path.home(), "~")):
        text = text.replace(str(folder), name)
    return text[:300]


def _others_cpu() -> float:
    """CPU seconds that the machine has spent so far outside this process and its finished children."""
    user, nice, system, _idle, _wait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    mine = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    return busy - sum(use.ru_utime + use.ru_stime for use in mine)


def run(command: Sequence[str | Path], memory_gib: float = MEMORY_LIMIT_GIB, seconds: float = TIME_LIMIT_S) -> dict:
    """The result of `_run`, with the CPU seconds that other programs used meanwhile: near 0 on a quiet machine."""
    before = _others_cpu()
    return {**_run(command, memory_gib, seconds), "others_cpu_s": round(max(0.0, _others_cpu() - before), 2)}


def _run(command: Sequence[str | Path], memory_gib: float, seconds: float) -> dict:
    """Run a contender in a process group of its own; its last line of JSON, or {"failed": reason}."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=err, start_new_session=True)
        try:
            reason = _watch(process, memory_gib, seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        if reason:
            return {"failed": reason}
        for handle in (out, err):
            handle.seek(0)
        lines, errors = out.read().splitlines(), err.read().splitlines()
    if process.returncode:
        return {"failed": f"exit {process.returncode}: {_without_paths(errors[-1] if errors else 'no message')}"}
    last = next((line for line in reversed(lines) if line.startswith("{")), None)
    return json.loads(last) if last else {"failed": "printed no line of JSON"}


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def machine() -> dict:
    """Cores, memory, processor and Python; nothing that identifies the machine."""
    info = {}
    for name in ("cpuinfo", "meminfo"):
        for line in Path(f"/proc/{name}").read_text().splitlines():
            key, _, value = line.partition(":")
            info.setdefault(key.strip(), value.strip())
    return {
        "cpu": info.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(info["MemTotal"].split()[0]) / 2**20, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def command_line() -> str:
    """The command as one would type it: python -m lab benchmark pack."""
    script = Path(sys.argv[0]).resolve()
    return shlex.join(["python", "-m", "lab", script.parent.name.removesuffix("s"), script.stem, *sys.argv[1:]])


def _head() -> dict:
    """How it was run, when, from which commit, on which machine."""
    return {
        "command": command_line(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src", "lab", ":!lab/results")),
        "machine": machine(),
    }


def _write(path: Path, record: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=2, default=str) + "\n")
    return part.rename(path)


def write_record(name: str, body: dict, folder: str = "benchmarks") -> Path:
    """Write lab/results/<folder>/<name>.json: how it was run and from which commit, the machine, then the body."""
    return _write(RESULTS / folder / f"{name}.json", {**_head(), **body})


def merge_record(path: Path, part: str, keys: dict[str, dict], body: dict) -> Path:
    """Put one script's key figures and raw figures into a record that several scripts share.

    Key figures are at the top level, their spreads and goals in `spreads`, the raw figures in a table of the script's
    own. What other scripts wrote is kept, as are notes that were added by hand.
    """
    old = json.loads(path.read_text()) if path.exists() else {}
    figures = {name: figure["median"] for name, figure in keys.items()}
    spreads = old.get("spreads", {}) | keys
    notes = {"notes": old.get("notes", [])}
    return _write(path, {**old, **figures, "spreads": spreads, **notes, part: {**_head(), **body}})


def spread(name: str, each: Sequence[float], goal: str) -> dict[str, dict]:
    """A key of a shared record: the median of the rounds, all of them, and whether the goal (">= 8", "<= 1") is met."""
    if not each:
        return {}
    middle, (sign, bound) = statistics.median(each), goal.split()
    reached = middle >= float(bound) if sign == ">=" else middle <= float(bound)
    rounds = {"median": middle, "least": min(each), "most": max(each), "rounds": list(each)}
    return {name: {**rounds, "goal": goal, "reached": reached}}
