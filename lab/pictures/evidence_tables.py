"""Writes the tables of docs/evidence.md from the records: python -m lab pictures evidence_tables"""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "evidence.md", ROOT / "lab" / "results"
STUDIES = ("rossmann-ablation", "frat", "m5", "private")
PAPER_TASKS = {"volatility": 4, "retail-families": 3}  # with the digits of a loss
BASELINE, ORACLE, LEVELS = "mqcnn", "oracle", (0.5, 0.9)
NAMES = {
    "mqt": "MQT",
    "mqt-nods": "NoDS",
    "mqt-all": "All",
    "mqrnn": "MQ-RNN",
    "mqcnn": "MQ-CNN",
    "tft": "TFT",
    "seasonal-naive": "seasonal naive",
}
SLICES = {
    "Overall": "overall",
    "Peaks": "peaks",
    "Post-peak ramp-down": "after a peak",
    "promo": "promotion",
    "promo2_round": "second promotion's months",
    "tpr_only": "price reduction alone",
    "price_cut": "price cut",
    "snap": "food stamps",
    "promo_display": "display",
    "promo_coupon": "coupon",
}


def name_of(model: str) -> str:
    member, _, count = model.partition("-mean-of-")
    return f"mean of {count} {NAMES[member]}s" if count else NAMES[model]


def slice_of(dimension: str) -> str:
    if leads := re.fullmatch(r"Leads (\d+)-(\d+)", dimension):
        return f"{leads[1]} to {leads[2]} steps ahead"
    return SLICES.get(dimension, dimension)


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([row(headings), row(["---"] * len(headings)), *map(row, rows)])


def losses_table(study: str, tables: dict[str, Any], models: Sequence[str]) -> str:
    """Quantile loss relative to the baseline by slice; in a world with an oracle, the regret."""
    has_oracle = "regret" in tables
    listed, key = (tables["regret"], "regret") if has_oracle else (tables["relative"], "relative")
    shown = [model for model in models if has_oracle or model != BASELINE]
    values = {(line["dimension"], line["model"], line["level"]): line[key] for line in listed}
    rows = []
    for dimension in dict.fromkeys(line["dimension"] for line in listed):
        best = {level: min(values[dimension, model, level] for model in shown) for level in LEVELS}
        cells = [slice_of(dimension)]
        for model in shown:
            for level in LEVELS:
                value = values[dimension, model, level]
                text = f"{value:.1%}".replace("%", " %") if has_oracle else f"{value:.3f}"
                cells.append(f"**{text}**" if value == best[level] else text)
        rows.append(cells)
    title = "regret" if has_oracle else "relative to MQ-CNN"
    headings = [f"{title} (`lab/results/{study}/tables-0.json`)"]
    headings += [text for model in shown for text in (f"{name_of(model)} P50", "P90")]
    return table(headings, rows)


def volatility_table(study: str, tables: dict[str, Any], models: Sequence[str]) -> str:
    """Excess volatility, what it is less than the baseline's, coverage, and what each system cost."""
    rows = []
    for model in models:
        excess = _by_level(tables["volatility, equal weights"], model)
        accuracy = next(line for line in tables["accuracy"] if line["model"] == model)
        cells = [name_of(model), *(_number(excess[level]["excess"]) for level in LEVELS)]
        for weights in ("equal", "demand"):
            reductions = [line for line in tables[f"reduction, {weights} weights"] if line["against"] == BASELINE]
            by_level = _by_level(reductions, model)
            cells += [_interval(by_level[level]) if level in by_level else "" for level in LEVELS]
        cells += [f"{accuracy[f'coverage_q{level}']:.1%}".replace("%", " %") for level in LEVELS]
        rows.append([*cells, _cost(study, model)])
    less = ["less than MQ-CNN, P50", "P90", "by demand, P50", "P90"]
    headings = ["excess volatility", "P50", "P90", *less, "P50 covers", "P90 covers", "CPU-seconds, steps"]
    return table(headings, rows)


def _by_level(lines: Sequence[dict[str, Any]], model: str) -> dict[float, dict[str, Any]]:
    return {line["level"]: line for line in lines if line["model"] == model}


def _number(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def _interval(line: dict[str, Any]) -> str:
    shares = [line[key] for key in ("reduction", "lo", "hi")]
    if any(share is None for share in shares):
        return ""
    middle, low, high = (f"{100 * share:.0f}".replace("-", "−") for share in shares)
    return f"{middle} % ({low}–{high})"


def _cost(study: str, model: str) -> str:
    record = json.loads((RESULTS / study / f"{model}-0.json").read_text(encoding="utf-8"))
    if not (steps := record["details"].get("steps")):
        return ""
    members = f"{record['details']['members']} × " if "members" in record["details"] else ""
    return f"{record['cpu_seconds']:.0f}, {members}{steps:,}"


def both_tables(study: str) -> str:
    tables = json.loads((RESULTS / study / "tables-0.json").read_text(encoding="utf-8"))
    order = [line["model"] for line in tables["accuracy"] if line["model"] != ORACLE]
    models = [model for model in order if model not in (BASELINE, "seasonal-naive")] + [BASELINE]
    return f"{losses_table(study, tables, models)}\n\n{volatility_table(study, tables, models)}"


def paper_table(task: str) -> str:
    """The systems of one of the paper's tasks, means over seeds, beside what is published, best P50 first."""
    records: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / task).glob("*-[0-9].json")):
        if "tables" not in path.name:
            record = json.loads(path.read_text(encoding="utf-8"))
            records.setdefault(record["model"], []).append(record)
    experiment = tomllib.loads((ROOT / "lab" / "paper" / f"{task}.toml").read_text(encoding="utf-8"))
    rows = [(_mean(runs, "P50"), _paper_row(runs, PAPER_TASKS[task])) for runs in records.values()]
    for model, scores in experiment.get("published", {}).items():
        losses = [f"{scores[level]:.3f}" for level in ("P50", "P90")]
        rows.append((scores["P50"], [f"{model}, published", *losses, *[""] * 6]))
    headings = [f"`lab/results/{task}`", "P50", "P90", "≤ P50", "≤ P90", "bias", "seeds", "CPU-minutes", "steps"]
    return table(headings, [cells for _, cells in sorted(rows, key=lambda row: row[0])])


def _paper_row(runs: Sequence[dict[str, Any]], digits: int) -> list[str]:
    model, _, preset = runs[0]["model"].partition("@")
    members = runs[0]["config"]["model"]["members"]
    steps = sorted({run["details"]["steps"] for run in runs})
    return [
        f"{name_of(model)}, {f'preset `{preset}`' if preset else 'default'}",
        *(_spread([run["metrics"][level] for run in runs], digits) for level in ("P50", "P90")),
        *(f"{_mean(runs, f'{level} covers'):.0%}".replace("%", " %") for level in ("P50", "P90")),
        f"{_mean(runs, 'bias'):+.2f}".replace("-", "−"),
        str(len(runs)),
        f"{sum(run['cpu_seconds'] for run in runs) / len(runs) / 60:.0f}",
        f"{members} × " * (members > 1) + "–".join(f"{number:,}" for number in dict.fromkeys((steps[0], steps[-1]))),
    ]


def _mean(runs: Sequence[dict[str, Any]], metric: str) -> float:
    return sum(run["metrics"][metric] for run in runs) / len(runs)


def _spread(values: Sequence[float], digits: int) -> str:
    """The mean and, of several, the least and the most."""
    mean = f"{sum(values) / len(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def with_tables(page: str) -> str:
    """The page with all tables between their marks."""
    tables = dict.fromkeys(STUDIES, both_tables) | dict.fromkeys(PAPER_TASKS, paper_table)
    for name, of in tables.items():
        begin, end = (f"<!-- tables of {name}: {word} -->" for word in ("begin", "end"))
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{of(name)}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
