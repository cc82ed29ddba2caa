"""The table of docs/reliability.md, from the records of the campaigns: no figure in it is typed.

    .venv/bin/python benchmarks/campaigns/table.py [--check]

--check changes nothing, and ends with code 1 if the page's table is not what the records say.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE, RECORDS = ROOT / "docs" / "reliability.md", ROOT / "results" / "campaigns"
BEGIN, END = "<!-- begin: benchmarks/campaigns/table.py writes this -->", "<!-- end -->"
HEADINGS = ("guarantee", "how it is tested", "campaign", "tried", "failed")
NOT_CAMPAIGNS = {"campaign", "table"}  # scripts beside them


@dataclass(frozen=True)
class Row:
    """One guarantee, how it is tested, and the campaign that tries it; `count`: trials of a full run."""

    script: str
    count: int
    guarantee: str
    how: str


ROWS = (
    Row(
        "magnitudes",
        100_000,
        "Forecasts have sane magnitudes, whatever the series",
        "adversarial series (zeros beside large values, steps, spikes, constants, gaps, tiny and huge scales) through "
        "scaling and forecasts; every quantile stays near what the series has shown",
    ),
    Row(
        "real_data",
        1,
        "Default settings give sane forecasts on real data",
        "every file of real data that is at hand, by `Forecaster(horizon=…)` and nothing else said; no quantile is "
        "implausible",
    ),
    Row(
        "frames",
        10_000,
        "Any frame is either taken or refused with a typed error",
        "random frames with random faults of types, names, dates and values; no other exception, no silent change of "
        "what was given",
    ),
    Row(
        "look_ahead",
        1_000,
        "No forecast depends on what was not known when it was made",
        "everything after the cutoff is changed at random, half of the times through `backtest`; forecasts stay equal "
        "to the bit",
    ),
    Row(
        "mutated_files",
        10_000,
        "A damaged file is refused by name, or changes nothing",
        "bits flipped, bytes cut, added and swapped in every file of runs, panels, forecasters and checkpoints; no "
        "crash, no hang, no other forecast",
    ),
    Row(
        "kills",
        200,
        "A killed process loses nothing that was finished",
        "SIGKILL and SIGTERM at random moments of packing, training, forecasting and saving; going on gives equal bits",
    ),
    Row(
        "kernels",
        1_000,
        "Compiled code computes what plain PyTorch does, within its memory",
        "random sizes, masks and settings, built with address and undefined-behaviour sanitizers",
    ),
    Row(
        "races",
        500,
        "Of several writers to one place one wins, and all is whole",
        "processes and threads that save, pack and write the same path at once",
    ),
    Row(
        "many_fits",
        200,
        "Many fits in one process do not wear it out",
        "memory, threads, file descriptors and temporary folders after each fit",
    ),
    Row(
        "guest",
        1,
        "mqcast behaves as a guest in the host's process",
        "random states, threads, signals, environment, warnings and current folder of the host before and after every "
        "verb",
    ),
    Row(
        "fuzz_readers",
        100_000,
        "No reader can be made to crash",
        "a coverage-guided fuzzer feeds each reader of files and settings; nothing but typed errors",
    ),
    Row(
        "states",
        1,
        "Verbs in any order either work or say what is missing",
        "a state machine calls fit, predict, revisions, backtest, evaluate, save and load in random order",
    ),
    Row(
        "battery",
        1,
        "Every model keeps the contract of a forecaster",
        "`mqcast.checks` puts each model through one battery: quantiles in order, no look-ahead, equal bits after save "
        "and load …",
    ),
    Row(
        "implausible",
        5_000,
        "Implausible forecasts of any forecaster are found and told of",
        "random frames with absurd values planted at random places, and honest ones; each is counted exactly, and none "
        "of the honest is warned of",
    ),
)


def table(records: Path = RECORDS, rows: tuple[Row, ...] = ROWS) -> str:
    """Markdown. Of a campaign without a record it says so; of one that ended early, how far it came."""
    lines = [HEADINGS, ("---", "---", "---", "---:", "---:")]
    for row in rows:
        command = f"`benchmarks/campaigns/{row.script}.py`"
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
    parser.add_argument("--check", action="store_true", help="change nothing; code 1 if the page is not up to date")
    old = PAGE.read_text(encoding="utf-8")
    new = filled(old, table())
    if parser.parse_args().check:
        print("up to date" if new == old else f"{PAGE.relative_to(ROOT)} is out of date; run this without --check")
        sys.exit(new != old)
    PAGE.write_text(new, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {'as it was' if new == old else 'written'}")


if __name__ == "__main__":
    main()
