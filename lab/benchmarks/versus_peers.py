"""Speed of training and backtests, memory, and time to the first step: mqcast beside its peers, in one run.

    .venv/bin/python -m lab benchmark versus_peers [--rounds 3] [--only NAME ...] [--quick]

370 series of 5,000 hours, one Parquet file: 168 steps of history, 24 ahead, P50 and P90, hidden size 64; hour and
weekday known, the series static. Each contender runs in a process of its own, peers in environments that are made here;
rounds are interleaved and their order rotates. docs/throughput.md defines what is measured; its table is written from
the record. The record, lab/results/benchmarks/throughput.json, is written after every contender.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from lab.benchmarks import harness
from lab.benchmarks.pack import PINS, make_file
from lab.benchmarks.throughput_table import RECORD, write_table

SERIES, STEPS, CUTOFFS = 370, 5_000, 100
TRAIN_S, BACKTEST_S, SKIPPED = 15.0, 20.0, 3
MQCAST = {"window.num_fcts": 1202, "window.batch_size": 12, "train.micro_batch": 6}
QUIET_SHARE = 0.05  # of one core, which other programs may use
WORK = {"series": SERIES, "steps": STEPS, "cutoffs": CUTOFFS, "train_s": TRAIN_S, "backtest_s": BACKTEST_S}
QUICK = {"series": 12, "steps": 600, "cutoffs": 4, "train_s": 1.0, "backtest_s": 5.0, "windows": 16}
QUICK_MQCAST = {"window.num_fcts": 48, "window.batch_size": 8, "train.micro_batch": 2}
DARTS = ("darts[torch]==0.48.1", "pandas==3.1.1", "numpy==2.4.6", "pyarrow==26.0.1", "numba==0.68.1")
ALL_PINS = {**PINS, "darts": DARTS}
CONTENDERS = {  # name: (library, which has a script and an environment; model)
    "mqcast MQT": ("mqcast", "mqt"),
    "mqcast MQT bare": ("mqcast", "mqt"),  # without residual blocks; m_L still has weights of each horizon
    "mqcast NoDS": ("mqcast", "mqt-nods"),
    "mqcast MQ-CNN": ("mqcast", "mqcnn"),
    "mqcast MQ-RNN": ("mqcast", "mqrnn"),
    "NeuralForecast TFT": ("neuralforecast", "tft"),
    "NeuralForecast DeepAR": ("neuralforecast", "deepar"),
    "NeuralForecast NHITS": ("neuralforecast", "nhits"),
    "PyTorch-Forecasting TFT": ("pytorch_forecasting", "tft"),
    "GluonTS TFT": ("gluonts", "tft"),
    "GluonTS DeepAR": ("gluonts", "deepar"),
    "Darts TFT": ("darts", "tft"),
}
PEERS = [name for name, (who, _) in CONTENDERS.items() if who != "mqcast"]
TFTS = [name for name in PEERS if CONTENDERS[name][1] == "tft"]
MQT, BARE, NF_TFT = "mqcast MQT", "mqcast MQT bare", "NeuralForecast TFT"
CHANGES = {BARE: {"model.block": '"bare"'}}
FIGURES = ("trajectories_per_second", "peak_mb", "first_step_s", "forecasts_per_second")
Runs = dict[str, list[dict]]


def figure_of(runs: Runs, name: str, number: int, figure: str) -> float | None:
    """A contender's figure in a round, or the best of its other rounds: a failed round makes no peer slower."""
    good = {run["round"]: run[figure] for run in runs[name] if "failed" not in run}
    return good.get(number, max(good.values(), default=None))


def ratios(runs: Runs, figure: str, others: list[str], rounds: int, own: str = MQT) -> list[float]:
    """Our figure over the best of the others, round by round."""
    values = []
    for number in range(rounds):
        ours = [run[figure] for run in runs[own] if run["round"] == number and "failed" not in run]
        values_of_others = [value for name in others if (value := figure_of(runs, name, number, figure)) is not None]
        if ours and values_of_others:
            values.append(ours[0] / max(values_of_others))
    return values


def key_figures(runs: Runs, rounds: int) -> dict[str, dict]:
    training, rolling = "trajectories_per_second", "forecasts_per_second"
    return {
        **harness.spread("mqt_over_best_tft", ratios(runs, training, TFTS, rounds), ">= 100"),
        **harness.spread("mqt_over_best_peer", ratios(runs, training, PEERS, rounds), ">= 8"),
        **harness.spread("mqt_bare_over_best_tft", ratios(runs, training, TFTS, rounds, BARE), ">= 100"),
        **harness.spread("backtest_over_best_tft", ratios(runs, rolling, TFTS, rounds), ">= 50"),
        **harness.spread("backtest_over_best_peer", ratios(runs, rolling, PEERS, rounds), ">= 3"),
        **harness.spread("memory_over_neuralforecast_tft", ratios(runs, "peak_mb", [NF_TFT], rounds), "<= 1"),
    }


def body(runs: Runs, work: dict, rounds: int, complete: bool) -> dict:
    """Medians and raw figures of every contender, and the reasons of failures; complete after all rounds."""
    good = {name: [run for run in each if "failed" not in run] for name, each in runs.items()}
    medians = {
        name: {figure: statistics.median(run[figure] for run in each) for figure in FIGURES}
        for name, each in good.items()
        if each
    }
    failed = {name: run["failed"] for name, each in runs.items() for run in each if "failed" in run}
    noisy = sorted({name for name, each in good.items() for run in each if not run["quiet"]})
    setting = {**work, "rounds": rounds, "skipped_steps": SKIPPED, "pins": ALL_PINS}
    return {
        "complete": complete,
        "not_quiet": noisy,
        "setting": setting,
        "medians": medians,
        "failed": failed,
        "runs": runs,
    }


def contend(name: str, python: Path | str, path: Path, work: dict) -> dict:
    """One run of a contender, or {"failed": reason}."""
    if isinstance(python, str):
        return {"failed": python, "others_cpu_s": 0.0, "quiet": True}
    who, model = CONTENDERS[name]
    command = [python, harness.LAB / "peers" / f"versus_{who}.py", path, "--model", model]
    command += ["--train-seconds", work["train_s"], "--skip-steps", SKIPPED]
    command += ["--cutoffs", work["cutoffs"], "--backtest-seconds", work["backtest_s"]]
    if who == "mqcast":
        changes = work["mqcast"] | CHANGES.get(name, {})
        command += [part for key, value in changes.items() for part in ("--change", f"{key}={value}")]
    elif "windows" in work:
        command += ["--windows", work["windows"]]
    began = time.perf_counter()
    run = harness.run(command, seconds=400)
    seconds = time.perf_counter() - began
    return {**run, "wall_s": seconds, "quiet": run["others_cpu_s"] <= QUIET_SHARE * seconds}


def say(name: str, number: int, run: dict) -> None:
    text = run.get("failed") or (
        f"{run['trajectories_per_second']:,.0f} trajectories/s, {run['peak_mb']:,.0f} MiB, first step after "
        f"{run['first_step_s']:.1f} s, {run['forecasts_per_second']:,.0f} forecasts/s ({run['cutoffs']} cutoffs)"
    )
    others = run.get("others_cpu_s", 0)
    print(f"round {number + 1}  {name}: {text}; other programs: {others:.1f} CPU s", flush=True)


def measure(names: list[str], path: Path, work: dict, rounds: int, record: Path) -> dict[str, dict]:
    """Interleaved rounds, with a record after each run; a contender that fails twice is not run again."""
    owners = dict.fromkeys(CONTENDERS[name][0] for name in names)
    pythons = {
        who: harness.environment(who, ALL_PINS[who]) if who in ALL_PINS else Path(sys.executable) for who in owners
    }
    path.read_bytes()  # every contender finds the file in the page cache
    runs: Runs = {name: [] for name in CONTENDERS}
    keys: dict[str, dict] = {}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            if sum("failed" in run for run in runs[name]) > 1:
                continue
            run = contend(name, pythons[CONTENDERS[name][0]], path, work)
            runs[name].append({"round": number, **run})
            say(name, number, run)
            keys = key_figures(runs, rounds)
            harness.merge_record(record, "versus_peers", keys, body(runs, work, rounds, complete=False))
    harness.merge_record(record, "versus_peers", keys, body(runs, work, rounds, complete=True))
    return keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round; the record goes to .data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="contenders with NAME in their name; record as with --quick"
    )
    args = parser.parse_args()
    names = [n for n in CONTENDERS if not args.only or any(o.lower() in n.lower() for o in args.only)]
    work = {**QUICK, "mqcast": QUICK_MQCAST} if args.quick else {**WORK, "mqcast": MQCAST}
    is_whole = not (args.quick or args.only)
    with harness.lock():
        path = make_file(work["series"], work["steps"])
        record = RECORD if is_whole else harness.DATA / "throughput.json"
        keys = measure(names, path, work, 1 if args.quick else args.rounds, record)
    for name, figure in keys.items():
        print(f"{name}: {figure['median']:.2f} ({figure['least']:.2f} to {figure['most']:.2f}); goal {figure['goal']}")
    if noisy := json.loads(record.read_text())["versus_peers"]["not_quiet"]:
        print(f"NOT A RESULT: other programs used the machine while these ran: {', '.join(noisy)}")
    if is_whole:
        write_table()
    print(f"wrote {record.relative_to(harness.ROOT)}")


if __name__ == "__main__":
    main()
