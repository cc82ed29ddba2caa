"""Training and forecasting speed of this checkout beside another one's: did a change cost anything?

    python -m lab benchmark versions --other PATH [--rounds 6] [--record]

PATH is a checkout of another commit whose kernels are built (`python build_kernels.py` there). Both run `mqcast bench`
on the same simulated data with this environment's packages, one after the other, round by round, in changing order;
what counts is the ratio within a round. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from lab.benchmarks import harness

MODELS = ("mqt", "mqcnn")
STEPS, ITEMS = 200, 400
FIGURES = ("trajectories_per_second", "forecasts_per_second")


def measure(checkout: Path, model: str) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "mqcast", "bench", "--model", model, "--items", str(ITEMS)]
    done = subprocess.run(
        [*command, "--steps", str(STEPS), "--device", "cpu", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    return {name: figures[name] for name in FIGURES}


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    checkouts = {"this": harness.ROOT, "other": options.other.resolve()}
    ratios: dict[str, dict[str, list[float]]] = {model: {name: [] for name in FIGURES} for model in MODELS}
    with harness.lock():
        for number in range(options.rounds):
            for model in MODELS:
                order = list(checkouts) if number % 2 else list(checkouts)[::-1]
                figures = {name: measure(checkouts[name], model) for name in order}
                for name in FIGURES:
                    ratios[model][name].append(figures["this"][name] / figures["other"][name])
                print(model, {name: round(ratios[model][name][-1], 3) for name in FIGURES}, flush=True)
    summary = {model: {name: spread(values) for name, values in each.items()} for model, each in ratios.items()}
    print(json.dumps(summary, indent=1))
    if options.record:
        command = f"python -m lab benchmark versions --other PATH --rounds {options.rounds} --record"
        body = {
            "command": command,
            "other_commit": commit_of(checkouts["other"]),
            "this_over_other": summary,
            "rounds": ratios,
        }
        path = harness.write_record("versions", body)
        print(f"wrote {path.relative_to(harness.ROOT)}")


if __name__ == "__main__":
    main()
