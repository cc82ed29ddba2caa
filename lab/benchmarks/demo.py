"""What `mqcast demo` shows and how long it takes, for several simulated retailers.

    python -m lab benchmark demo [--rounds 3]

A round is the whole command with a seed of its own, in a folder that is new. Writes lab/results/benchmarks/demo.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lab.benchmarks.harness import lock, write_record

SHOWN = ("P50", "P90", "P50 promotions", "P50 peaks", "regret P50", "V P50", "V P90")


def measure(seed: int) -> dict:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mqcast", "demo", "--seed", str(seed), "--json", "--folder", f"{folder}/demo"]
        done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        sizes = {name: Path(done[name]).stat().st_size for name in ("report", "page")}
    table = {row["forecaster"]: {name: row[name] for name in SHOWN} for row in done["table"]}
    return {"seed": seed, "seconds": time.perf_counter() - start, "bytes": sizes, "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with lock():
        rounds = [measure(seed) for seed in range(options.rounds)]
    means = {
        name: {shown: float(np.mean([one["table"][name][shown] for one in rounds])) for shown in SHOWN}
        for name in rounds[0]["table"]
    }
    print(json.dumps(means, indent=1))
    write_record("demo", {"rounds": rounds, "means": means})


if __name__ == "__main__":
    main()
