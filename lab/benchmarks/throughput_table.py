"""Write the tables of docs/throughput.md, between two comments, from lab/results/benchmarks/throughput.json.

.venv/bin/python -m lab benchmark throughput_table
"""

from __future__ import annotations

import json

from lab.benchmarks import harness

RECORD, PAGE = harness.RESULTS / "benchmarks" / "throughput.json", harness.ROOT / "docs" / "throughput.md"
BEGIN, END = (
    "<!-- from lab/results/benchmarks/throughput.json: begin -->",
    "<!-- from lab/results/benchmarks/throughput.json: end -->",
)


def _rows(headings: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headings, rule, *rows])


def keys_table(record: dict) -> str:
    rows = []
    for name, figures in record.get("spreads", {}).items():
        spread = f"{figures['least']:.3g} to {figures['most']:.3g}"
        rows.append(
            [f"`{name}`", f"{figures['median']:.3g}", spread, figures["goal"], "yes" if figures["reached"] else "no"]
        )
    return _rows(["figure", "median", "rounds", "goal", "reached"], rows)


def contenders_table(figures: dict) -> str:
    headings = ["contender", "trajectories/s", "training, MiB", "frame to first step, s", "forecasts/s", "cutoffs"]
    rows = []
    for name, each in figures["medians"].items():
        rolled = [run["cutoffs"] for run in figures["runs"][name] if "failed" not in run]
        cutoffs = dict.fromkeys((min(rolled), max(rolled)))
        rates = [f"{each['trajectories_per_second']:,.0f}", f"{each['peak_mb']:,.0f}", f"{each['first_step_s']:.2f}"]
        rates += [
            f"{each['forecasts_per_second']:,.0f}",
            " to ".join(map(str, cutoffs)),
        ]
        rows.append([name, *rates])
    text = _rows(headings, rows)
    failed = [f"{name} failed: {reason}" for name, reason in figures["failed"].items()]
    if figures["not_quiet"]:
        failed.append(
            f"Not a result: other programs used the machine while these ran: {', '.join(figures['not_quiet'])}."
        )
    return "\n\n".join([text, *failed])


def limit_table(figures: dict) -> str:
    headings = ["network", "ms a step", "useful GFLOP a step", "sgemm GFLOP/s", "fraction of it"]
    rows = []
    for name, each in figures["medians"].items():
        gflop, share = each.get("useful_gflop"), each.get("fraction")
        rows.append([name, f"{1e3 * each['step_s']:,.0f}", f"{gflop:.2f}" if gflop else ""])
        rows[-1] += [f"{each['sgemm_gflops']:.1f}", f"{share:.2f}" if share else ""]
    parts = [f"`{figures['profiled']}`, by part (position and encoder: forward pass only):"]
    by_part = []
    for name, each in figures["parts"].items():
        share = f"{each['fraction']:.2f}" if each.get("fraction") else ""
        by_part.append([f"`{name}`", f"{each['ms']:.1f}", f"{each['useful_gflop']:.3f}", share])
    parts.append(_rows(["part", "ms", "useful GFLOP", "fraction of sgemm"], by_part))
    return "\n\n".join([_rows(headings, rows), *parts])


def _listed(values: list[float], form: str) -> str:
    return " · ".join(format(value, form) for value in values)


def scaling_table(figures: dict) -> str:
    headings = ["what grows", "sizes", "s an epoch", "exponent", "of a trajectory", "training, MiB", "data side, MiB"]
    rows = []
    for name, each in figures["growth"].items():
        rows.append([name, _listed(each["sizes"], ","), _listed(each["epoch_s"], ".2f")])
        rows[-1] += [f"{each['exponent']:.2f}", f"{each['exponent_a_trajectory']:.2f}"]
        rows[-1] += [_listed(each["peak_mb"], ",.0f"), _listed(each["data_mb"], ".1f")]
    return _rows(headings, rows)


def write_table() -> None:
    record, page = json.loads(RECORD.read_text()), PAGE.read_text()
    parts = [keys_table(record)]
    for name, table in (("versus_peers", contenders_table), ("limit", limit_table), ("scaling", scaling_table)):
        if name in record:
            parts.append(f"`{record[name]['command']}`, {record[name]['machine']['cpu']}:\n\n{table(record[name])}")
    parts += [f"- {note}" for note in record.get("notes", [])]
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + after)


if __name__ == "__main__":
    write_table()
