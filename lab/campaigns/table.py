"""The table of docs/reliability.md, from the records of the campaigns: no figure in it is typed by hand.

    python -m lab campaign table [--check]

--check changes nothing, and exits with code 1 if the page's table differs from the records.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE, RECORDS = ROOT / "docs" / "reliability.md", ROOT / "lab" / "results" / "campaigns"
BEGIN, END = "<!-- begin: lab/campaigns/table.py writes this -->", "<!-- end -->"
HEADINGS = ("guarantee", "how it is tested", "campaign", "tried", "failed")
NOT_CAMPAIGNS = {"campaign", "table"}  # scripts beside them


@dataclass(frozen=True)
class Row:
    """One guarantee, how it is tested, and the campaign that tests it; `count`: trials of a full run."""

    script: str
    count: int
    guarantee: str
    how: str


ROWS = (
    Row(
        "magnitudes",
        100_000,
        "Forecasts are finite, ordered and of a plausible size, whatever the series",
        "adversarial series (alternating, intermittent, lumpy, steps of a million, long gaps, spikes, one sale, "
        "none …) on any scale, default settings, trained and random weights; the limits are computed from the frame, "
        "without mqcast",
    ),
    Row(
        "real_data",
        1,
        "Default settings give no absurd forecast on real demand",
        "every file of real demand at hand, given only horizon, frequency and columns: no P90 of a backtest exceeds "
        "ten times the largest value of its series so far; a trial is a series",
    ),
    Row(
        "frames",
        10_000,
        "Any frame is read correctly or refused with a typed error",
        "random frames of all libraries, types and orders, clean and damaged, through the input checks, `predict`, the "
        "evaluation functions and a Forecaster's arguments; clean ones are compared with plain loops",
    ),
    Row(
        "look_ahead",
        1_000,
        "Nothing that happens after a date changes a forecast made at it",
        "later values, signs, closings, gaps, categories, series and the panel's end are changed; half of the "
        "trials are backtests, half revisions; forecasts are equal bit for bit",
    ),
    Row(
        "mutated_files",
        10_000,
        "A damaged file is refused by name, or changes nothing",
        "files of panels, runs, forecasters, checkpoints and shards with bits flipped, bytes cut, added and "
        "swapped; no crash, no hang, no huge allocation, no different forecast",
    ),
    Row(
        "kills",
        200,
        "Killed at any moment, a job leaves the old result or the new one",
        "SIGKILL at random moments of fit, pack, forecast and save; run again, the job gives equal bits",
    ),
    Row(
        "kernels",
        1_000,
        "Compiled code computes what plain PyTorch does, within its own memory",
        "random sizes and settings of networks, under the address and undefined-behaviour sanitizers",
    ),
    Row(
        "races",
        500,
        "Two writers to one path end with one complete result",
        "threads and processes that save, fit, pack, forecast and report to one path at once: one of the two is "
        "refused with a typed error, and no draft or lock is left behind",
    ),
    Row(
        "many_fits",
        200,
        "Many fits in one process leak nothing",
        "fits of old and new Forecasters, some of which fail: memory is compared with that after the tenth; no "
        "folder or thread is left behind",
    ),
    Row(
        "guest",
        300,
        "The host process is left as it was",
        "random states, threads, signal handlers, warnings, locale, environment, floating-point errors, umask and "
        "folder around every verb, whether it succeeds or fails; fits in two threads equal each fit alone",
    ),
    Row(
        "fuzz_readers",
        300_000,
        "No bytes make a reader crash",
        "a coverage-guided fuzzer feeds the readers of panels, runs and frames: nothing but results and typed errors; "
        "the goal is 100,000 executions of each, and the record has the count of each",
    ),
    Row(
        "states",
        2_000,
        "A Forecaster's verbs may be called in any order",
        "a state machine: only fitting changes forecasts, saving and loading keeps them bit for bit, errors are "
        "typed, no folder is left behind",
    ),
    Row(
        "battery",
        1_000,
        "Our own models pass the checks for any forecaster",
        "`mqcast.checks` on random configurations; only checks that apply are counted",
    ),
    Row(
        "implausible",
        5_000,
        "Implausible forecasts of any forecaster are detected and reported",
        "random frames, honest or wild within the limits, and then with absurd values planted at random places: "
        "each is listed and counted exactly, `evaluate` warns once, and clean frames give no warning",
    ),
)


def table(records: Path = RECORDS, rows: tuple[Row, ...] = ROWS) -> str:
    """Markdown; it shows which campaigns have no record, and how far one came that ended early."""
    lines = [HEADINGS, ("---", "---", "---", "---:", "---:")]
    for row in rows:
        command = f"`lab/campaigns/{row.script}.py`"
        lines.append((row.guarantee, row.how, command, *_figures(records / f"{row.script}.json", row.count)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figures(path: Path, count: int) -> tuple[str, str]:
    if not path.exists():
        return "not run", "-"
    record = json.loads(path.read_text(encoding="utf-8"))
    tried, failed = record["tried"], record["failed"]
    return f"{tried:,}" if tried >= count else f"{tried:,} of {count:,}", f"**{failed:,}**" if failed else "0"


def filled(page: str, text: str) -> str:
    """The page with its table replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no lines {BEGIN!r} and {END!r} to write between; put them back")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 if the page is not up to date"
    )
    old = PAGE.read_text(encoding="utf-8")
    new = filled(old, table())
    if parser.parse_args().check:
        print("up to date" if new == old else f"{PAGE.relative_to(ROOT)} is out of date; run this without --check")
        sys.exit(new != old)
    PAGE.write_text(new, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {'as it was' if new == old else 'written'}")


if __name__ == "__main__":
    main()
