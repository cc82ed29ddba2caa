"""Draw the pictures of docs/evidence.md from the records in lab/results: python -m lab pictures evidence."""

import json
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS.parent / "lab/results"
INK, FAINT, GRID = "#334155", "#94a3b8", "#e2e8f0"
COLOURS = {
    "mqt": "#2563eb",
    "mqt-mean": "#1e3a8a",
    "mqt-nods": "#7c3aed",
    "mqt-all": "#db2777",
    "mqrnn": "#b45309",
    "mqcnn": "#334155",
    "mqcnn-mean": "#64748b",
    "tft": "#0f766e",
}
NAMES = {
    "mqt": "MQT",
    "mqt-mean": "mean of MQTs",
    "mqt-nods": "NoDS",
    "mqt-all": "All",
    "mqrnn": "MQ-RNN",
    "mqcnn": "MQ-CNN",
    "mqcnn-mean": "mean of MQ-CNNs",
    "tft": "TFT",
}
STUDIES = {"rossmann-ablation": "Rossmann", "frat": "frat", "m5": "M5", "eia": "EIA"}


class Drawing:
    """SVG elements as text."""

    def __init__(self, width: int, height: int, label: str):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            f'font-size="12" role="img" aria-label="{label}">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.0) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')

    def dot(self, x: float, y: float, colour: str, size: float = 5) -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}"/>')

    def text(self, x: float, y: float, text: str, colour: str = INK, anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{text}</text>')

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


class Axes:
    """A panel of a drawing: values to pixels, with their grid."""

    def __init__(self, drawing: Drawing, box: tuple[float, ...], x: tuple[float, float], y: tuple[float, float]):
        self.drawing, self.box, self.ends_x, self.ends_y = drawing, box, x, y

    def x(self, value: float) -> float:
        low, high = self.ends_x
        return self.box[0] + (min(max(value, low), high) - low) / (high - low) * self.box[2]

    def y(self, value: float) -> float:
        low, high = self.ends_y
        return self.box[1] + self.box[3] - (min(max(value, low), high) - low) / (high - low) * self.box[3]

    def grid(self, title: str, xs: dict[float, str], ys: dict[float, str]) -> None:
        left, top, width, height = self.box
        for value, label in ys.items():
            self.drawing.line([(left, self.y(value)), (left + width, self.y(value))], GRID)
            self.drawing.text(left - 6, self.y(value) + 4, label, FAINT, "end")
        for value, label in xs.items():
            self.drawing.line([(self.x(value), top), (self.x(value), top + height)], GRID)
            self.drawing.text(self.x(value), top + height + 16, label, FAINT, "middle")
        self.drawing.text(left, top - 10, title)


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def kind(model: str) -> str:
    """The name of a system in the pictures."""
    one, mean, _ = model.partition("-mean-of-")
    return f"{one}-mean" if mean else one


def trade_off() -> str:
    """Loss and excess volatility at P50, relative to MQ-CNN."""
    drawing = Drawing(900, 330, "Loss and excess volatility relative to MQ-CNN")
    for place, (study, title) in enumerate(STUDIES.items()):
        tables = read(f"{study}/tables-0")
        medians = [row for row in tables["relative"] if row["level"] == 0.5]
        losses = {row["model"]: row["relative"] for row in medians if row["dimension"] == "Overall"}
        moves = {row["model"]: abs(row["excess"]) for row in tables["volatility, equal weights"] if row["level"] == 0.5}
        axes = Axes(drawing, (52 + 216 * place, 40, 176, 190), (0.75, 1.15), (0, 1.1))
        xs = {0.8: "0.8", 1.0: "1", 1.1: "1.1"}
        axes.grid(title, xs, {0: "0", 0.5: "0.5", 1: "1"})
        for model, loss in losses.items():
            if kind(model) in COLOURS:
                drawing.dot(axes.x(loss), axes.y(moves[model] / moves["mqcnn"]), COLOURS[kind(model)])
    drawing.text(52, 272, "→ loss at P50 and ↑ excess volatility, relative to MQ-CNN; beyond an edge: at it")
    for place, (model, name) in enumerate(NAMES.items()):
        x, y = 58 + 210 * (place % 4), 295 + 20 * (place // 4)
        drawing.dot(x, y - 4, COLOURS[model])
        drawing.text(x + 10, y, name)
    return drawing.svg()


PICTURES = {"evidence-trade-off": trade_off}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DOCS / f"{name}.svg").write_text(draw(), encoding="utf-8")
