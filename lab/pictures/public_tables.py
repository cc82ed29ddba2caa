"""Writes the tables of docs/reproduce_public.md from the records: python -m lab pictures public_tables"""

import json
import tomllib
from collections.abc import Sequence
from statistics import mean
from typing import Any

from lab.pictures.evidence_tables import NAMES, ROOT, table

PAGE, RESULTS, TASKS = ROOT / "docs" / "reproduce_public.md", ROOT / "lab" / "results", ROOT / "lab" / "paper"
SETTINGS = {"-paper": "preset `paper`", "-recipe": "the recipe", "": "the task's"}
LEVELS = {0.5: "P50", 0.9: "P90"}


def records_of(task: str, suffix: str) -> dict[str, list[dict[str, Any]]]:
    """Model → the records of its seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / f"{task}{suffix}").glob("*.json")):
        if not path.name.startswith("tables-"):
            record = json.loads(path.read_text(encoding="utf-8"))
            found.setdefault(record["model"], []).append(record)
    return found


def scores_table(task: str) -> str:
    """Published scores, then ours: means over seeds, with the least and the greatest where there are several."""
    published = tomllib.loads((TASKS / f"{task}.toml").read_text(encoding="utf-8")).get("published", {})
    rows = [[name, "published", f"{one['P50']:.3f}", f"{one['P90']:.3f}", *[""] * 5] for name, one in published.items()]
    for suffix, settings in SETTINGS.items():
        for model, records in records_of(task, suffix).items():
            metrics = {name: [record["metrics"][name] for record in records] for name in records[0]["metrics"]}
            losses = [_spread(metrics[name], ".4f") for name in LEVELS.values()]
            covers = [f"{100 * mean(metrics[f'{name} covers']):.1f} %" for name in LEVELS.values()]
            steps = ", ".join(_steps(record) for record in records)
            minutes = f"{mean(record['cpu_seconds'] for record in records) / 60:.0f}"
            bias = f"{mean(metrics['bias']):+.3f}".replace("-", "−")
            rows.append([NAMES[model], settings, *losses, *covers, bias, steps, minutes])
    headings = ["model", "settings", "P50", "P90", "P50 covers", "P90 covers", "bias of P50"]
    return table([*headings, "steps of each seed, kept of", "CPU-minutes a seed"], rows)


def _spread(values: Sequence[float], form: str) -> str:
    ends = f" ({min(values):{form}}–{max(values):{form}})" if len(values) > 1 else ""
    return f"{mean(values):{form}}{ends}"


def _steps(record: dict[str, Any]) -> str:
    """The step whose weights were kept, of all steps."""
    steps, validations = record["details"]["steps"], record["details"].get("validations", [])
    if record["config"]["train"]["patience"] is None or not validations:
        return f"{steps:,}"
    best = min(validations, key=lambda one: one["valid_loss"])
    return f"{best['step']:,} of {steps:,}"


def revisions_table(task: str) -> str:
    """Excess volatility, and how much the loss falls from the first lead to the last."""
    rows = []
    for suffix, settings in SETTINGS.items():
        for path in sorted((RESULTS / f"{task}{suffix}").glob("tables-*.json")):
            tables = json.loads(path.read_text(encoding="utf-8"))
            for model in dict.fromkeys(line["model"] for line in tables["volatility"]):
                rows.append([_model_of(model), settings, *_excess(tables, model), *_fall(tables, model)])
    falls = [f"{name}: loss {when}" for name in LEVELS.values() for when in ("30 days ahead", "a day ahead")]
    return table(["model, seed", "settings", *(f"V at {name} (95 %)" for name in LEVELS.values()), *falls], rows)


def _model_of(label: str) -> str:
    model, comma, seed = label.partition(",")
    return f"{NAMES[model]}{comma}{seed}"


def _excess(tables: dict[str, Any], model: str) -> list[str]:
    lines = {line["level"]: line for line in tables["volatility"] if line["model"] == model}
    texts = [f"{line['excess']:.3f} ({line['lo']:.3f} to {line['hi']:.3f})" for line in map(lines.get, LEVELS) if line]
    return [text.replace("-", "−") for text in texts]


def _fall(tables: dict[str, Any], model: str) -> list[str]:
    cells = []
    for level in LEVELS:
        lines = [line for line in tables["loss by lead"] if (line["model"], line["level"]) == (model, level)]
        lines.sort(key=lambda line: line["lead"])
        cells += [f"{lines[end]['centred']:+.4f}".replace("-", "−") for end in (-1, 0)]
    return cells


TABLES = {"volatility": scores_table}


def with_tables(page: str) -> str:
    """The page with every table between its marks."""
    for name, write in TABLES.items():
        begin, end = (f"<!-- table of {name}: {word} -->" for word in ("begin", "end"))
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{write(name)}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
