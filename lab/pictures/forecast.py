"""Draw the README's picture from a simulated world: python -m lab pictures forecast."""

from pathlib import Path

import numpy as np

from mqcast.simulate import lognormal_world

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 330, 56, 40, 34
ITEM, CUTOFF, SHOWN_FROM = 11, 155, 96
INK, FAINT, FAN, LINE, PROMO, HOLIDAY = "#334155", "#94a3b8", "#60a5fa", "#2563eb", "#f59e0b", "#dc2626"


class Chart:
    """Weeks and units to pixels, and SVG elements as text."""

    def __init__(self, first: int, last: int, highest: float):
        self.first, self.last, self.highest = first, last, highest
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
            f'font-size="12" role="img" aria-label="Weekly demand of one item and the quantiles of its future">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        ]

    def x(self, week: float) -> float:
        return LEFT + (week - self.first) / (self.last - self.first) * (WIDTH - LEFT - 16)

    def y(self, units: float) -> float:
        return HEIGHT - BOTTOM - min(units / self.highest, 1) * (HEIGHT - BOTTOM - TOP)

    def points(self, weeks, units) -> str:
        return " ".join(f"{self.x(w):.1f},{self.y(u):.1f}" for w, u in zip(weeks, units, strict=True))

    def line(self, weeks, units, colour: str, width: float = 1.6, dash: str = "") -> None:
        style = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"'
        self.parts.append(f'<polyline points="{self.points(weeks, units)}" {style}/>')

    def band(self, weeks, low, high, opacity: float) -> None:
        outline = f"{self.points(weeks, low)} {self.points(weeks[::-1], high[::-1])}"
        self.parts.append(f'<polygon points="{outline}" fill="{FAN}" opacity="{opacity}"/>')

    def mark(self, week: int, colour: str, size: int) -> None:
        self.parts.append(f'<circle cx="{self.x(week):.1f}" cy="{HEIGHT - BOTTOM + 7}" r="{size}" fill="{colour}"/>')

    def text(self, x: float, y: float, text: str, colour: str = INK, anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">{text}</text>')


def draw(path: Path) -> None:
    world = lognormal_world(num_items=20, num_weeks=208, horizon=26, seed=0)
    levels = (0.1, 0.25, 0.5, 0.75, 0.9)
    fan = world.oracle.quantiles(levels, CUTOFF, CUTOFF)[ITEM, :, 0]
    ahead, weeks = np.arange(CUTOFF + 1, CUTOFF + 27), np.arange(SHOWN_FROM, CUTOFF + 27)
    demand = world.demand[ITEM]
    chart = Chart(weeks[0], weeks[-1], 1.05 * max(demand[weeks].max(), fan.max()))
    for units in np.arange(0, chart.highest, 20):
        chart.line([weeks[0], weeks[-1]], [units, units], "#e2e8f0", 1)
        chart.text(LEFT - 8, chart.y(units) + 4, f"{units:.0f}", FAINT, "end")
    chart.band(ahead, fan[:, 0], fan[:, 4], 0.25)
    chart.band(ahead, fan[:, 1], fan[:, 3], 0.4)
    chart.line(ahead, fan[:, 2], LINE, 2)
    chart.line(weeks[weeks <= CUTOFF], demand[weeks[weeks <= CUTOFF]], INK)
    chart.line(ahead, demand[ahead], INK, 1.2, "3 3")
    chart.line([CUTOFF, CUTOFF], [0, chart.highest], FAINT, 1, "4 4")
    for week in weeks:
        if world.promotions[ITEM, week].any():
            chart.mark(week, PROMO, 4)
        if world.holidays[week].any():
            chart.mark(week, HOLIDAY, 3)
    chart.text(chart.x(CUTOFF) - 8, TOP - 12, "creation time", FAINT, "end")
    chart.text(chart.x(CUTOFF) + 8, TOP - 12, "26 weeks ahead: median, 50 %, 80 %", LINE)
    chart.text(LEFT, HEIGHT - 10, "● promotion of this item", PROMO)
    chart.text(LEFT + 170, HEIGHT - 10, "● holiday", HOLIDAY)
    chart.text(LEFT + 250, HEIGHT - 10, "— demand, dashed where it was still unknown", INK)
    path.write_text("\n".join([*chart.parts, "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    draw(Path(__file__).parents[2] / "docs" / "forecast.svg")
