"""The compiled kernels against plain PyTorch in double precision, under address and undefined-behaviour sanitizers.

A trial is a random configuration: odd sizes, series that begin late or never, look-backs beyond the window, dropout,
one forecast or all, tensors with any memory layout, tiny and huge values. Forecasts and all gradients are compared. The
kernels are compiled with gcc's sanitizers into a temporary folder and run in a process of their own; if a sanitizer
ends that process, the trial it was running has failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lab.campaigns.campaign import Campaign

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "paper")]

import build_kernels  # noqa: E402

SOURCE = ROOT / build_kernels.SOURCE
GUARANTEE = "The kernels agree with plain PyTorch and touch no memory that is not theirs"


def sanitized(folder: Path) -> dict[str, str]:
    """Compile the kernels with sanitizers into `folder`; the environment of a process that loads them."""
    shutil.copy(SOURCE, folder)
    if why := build_kernels.build(SOURCE, folder, build_kernels.SANITIZED, ("gcc",)):
        sys.exit(f"the sanitizers need gcc: {why}")
    libraries = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    checks = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return {**os.environ, **checks, "LD_PRELOAD": " ".join(libraries), "OMP_NUM_THREADS": "1"}


def watched(campaign: Campaign, folder: Path, environment: dict[str, str]) -> None:
    """Run trials in a process of their own; if it ends early, another one continues with the next trial."""
    options, following = campaign.options, 0
    until = time.monotonic() + 60 * options.minutes
    while following < options.count:
        numbers = map(str, (options.seed, following, options.count))
        command = [sys.executable, "-m", "lab.campaigns.kernels", "--trials", str(folder), *numbers]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        assert process.stdout is not None
        assert process.stderr is not None
        with process:
            for line in process.stdout:
                result = json.loads(line)
                campaign.check(result["ok"], result["kind"], f"trial {result['trial']}: {result['detail']}")
                following = result["trial"] + 1
                if time.monotonic() > until:
                    process.terminate()
                    return
            errors = process.stderr.read()
        if process.returncode:
            campaign.check(False, "sanitizer", f"trial {following}, code {process.returncode}: {errors[-1500:]}")
            following += 1


def trials(folder: Path, seed: int, first: int, count: int) -> None:
    """In the process with the sanitizers: print one line of JSON per trial."""
    from mqcast.nn import kernels, library

    library.FOLDER = folder
    assert kernels.status() == "compiled", kernels.status()

    import numpy as np
    import torch
    from kernel_trials import KINDS

    torch.set_default_dtype(torch.float64)  # of PyTorch's part
    for number in range(first, count):
        rng = np.random.default_rng([seed, number])
        kind = list(KINDS)[number % len(KINDS)]
        try:
            wrong = KINDS[kind](rng)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"[-1000:]
        print(json.dumps({"trial": number, "kind": kind, "ok": not wrong, "detail": wrong}), flush=True)


def main() -> None:
    campaign = Campaign(GUARANTEE, count=1000)
    with tempfile.TemporaryDirectory() as folder:
        watched(campaign, Path(folder), sanitized(Path(folder)))
    campaign.finish(flags=list(build_kernels.SANITIZED))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trials"]:
        trials(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        main()
