"""Draw the picture of MQTransformer from its modules: python -m lab pictures network.

Class names, shapes and parameters are those of a network that ran on a batch, and the two grids are the attention
weights above zero in `Network.explain`. Only the positions and names of boxes and the arrows are set here.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mqcast import Panel
from mqcast.data.batch import Assembler, Batch
from mqcast.data.inputs import Inputs
from mqcast.data.windows import WindowPlan
from mqcast.nn.attention import Maps
from mqcast.nn.networks import Network
from mqcast.settings import ModelConfig, ScalingConfig, WindowConfig
from mqcast.simulate import lognormal_world

WIDTH, HEIGHT = 1000, 952
INK, SOFT, LINE, EDGE, GRID, PALE = "#1e293b", "#56657a", "#64748b", "#94a3b8", "#d5dce6", "#f3f5f8"
R, H, C, AGNOSTIC, FEEDBACK = "#0f766e", "#4338ca", "#b45309", "#475569", "#be123c"  # what lines and symbols stand for
HISTORY_SET, HISTORY_SETS, FEEDBACK_SET, FEEDBACK_SETS = "#4f5fd0", "#dde3fb", "#cf3f5c", "#fbe1e4"

GRIDS = {"horizon": 5, "history": 6, "num_fcts": 6}
LOOKBACK = 5
QUERY = (8, 2)  # the forecast that the grids highlight: its creation time t and horizon h


@dataclass(frozen=True)
class Seen:
    """A module as it ran."""

    name: str
    shapes: list[tuple[int, ...]]
    num_parameters: int


@dataclass(frozen=True)
class Run:
    """A forward pass: sizes of the named axes, columns of the inputs, and every module."""

    sizes: dict[str, int]
    columns: dict[str, tuple[int, ...]]
    modules: dict[str, Seen]
    num_parameters: int
    quantiles: tuple[float, ...]


def shapes_of(output) -> list[tuple[int, ...]]:
    return [tuple(part.shape) for part in ((output,) if isinstance(output, Tensor) else output)]


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def small_panel() -> Panel:
    world = lognormal_world(num_items=24, num_weeks=156, horizon=26, seed=0)
    return Panel.from_frame(world.frame, world.schema, world.static, world.events)


def network_and_batch(panel: Panel, config: ModelConfig, *, horizon: int, history: int, num_fcts: int, size: int):
    """A network with random weights and the first full batch of series that have all begun."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(config, Inputs.of(panel), horizon).eval()
    windows = WindowConfig(
        horizon=horizon, history=history, num_fcts=num_fcts, batch_size=size, reach=network.reach, min_history=history
    )
    plan = WindowPlan(panel, windows, seed=0)
    assemble = Assembler.fit(panel, windows, ScalingConfig(log1p=True))
    batches = (assemble(plan.batch(0, step)) for step in range(plan.num_batches(0)))
    return network, next(batch for batch in batches if len(batch.series) == size and batch.begun.all())


def run(panel: Panel) -> Run:
    config = ModelConfig(model="mqt")
    network, batch = network_and_batch(panel, config, horizon=26, history=52, num_fcts=52, size=8)
    modules: dict[str, Seen] = {}

    def written_down(name: str):
        def hook(module: nn.Module, given, output) -> None:
            modules[name] = Seen(type(module).__name__, shapes_of(output), num_parameters(module))

        return hook

    for name, module in network.named_modules():
        if name:
            module.register_forward_hook(written_down(name))
    columns: dict[str, tuple[int, ...]] = {}
    temporal = network.encoder.temporal
    temporal.register_forward_pre_hook(lambda _, given: columns.update(columns_of(batch, series=given[0][0])))
    with torch.no_grad():
        network(batch, maps=Maps())  # every module is called: no kernel stands in for any
    num_windows, num_steps = batch.loc.shape
    sizes = {"B": num_windows, "H": network.horizon, "T": num_steps, "U": num_steps + network.horizon - 1}
    sizes |= {"Q": len(config.quantiles), "R": network.reach}
    return Run(sizes, columns, modules, num_parameters(network), config.quantiles)


def columns_of(batch: Batch, series: Tensor) -> dict[str, tuple[int, ...]]:
    """The shapes of a network's inputs, numbers and categories side by side; `series`: what the encoder reads of y."""

    def both(number: Tensor, category: Tensor) -> tuple[int, ...]:
        assert number.shape[:-1] == category.shape[:-1]
        return (*number.shape[:-1], number.shape[-1] + category.shape[-1])

    return {
        "events": both(batch.global_number, batch.global_category),
        "known": both(batch.known_number, batch.known_category),
        "past": both(series, batch.past_category),
        "static": both(batch.static_number, batch.static_category),
    }


@dataclass(frozen=True)
class IndexSets:
    """Cells (creation time, step) that carry weight: of all forecasts, and of the one made at t for t + h."""

    num_steps: int
    horizon: int
    history: set[tuple[int, int]]
    history_of_query: set[tuple[int, int]]
    feedback: set[tuple[int, int]]
    feedback_of_query: set[tuple[int, int]]


def index_sets(panel: Panel) -> IndexSets:
    config = ModelConfig(model="mqt", lookback=LOOKBACK)
    network, batch = network_and_batch(panel, config, **GRIDS, size=1)
    explanation = network.explain(batch)
    assert explanation.feedback is not None
    t, h = QUERY
    looked_at = (explanation.history[0] > 0).nonzero().tolist()
    answered = (explanation.feedback[0] > 0).nonzero().tolist()
    assert (explanation.history[0] > 0).eq(explanation.history[0, :1] > 0).all(), "the same steps for all horizons"
    return IndexSets(
        num_steps=batch.loc.shape[1],
        horizon=network.horizon,
        history={(fct, s) for _, fct, s in looked_at},
        history_of_query={(t, s) for lead, fct, s in looked_at if (fct, lead + 1) == (t, h)},
        feedback={(s, fct + lead + 1) for lead, fct, s in answered},
        feedback_of_query={(s, t + h) for lead, fct, s in answered if (fct, lead + 1) == (t, h)},
    )


class Canvas:
    """SVG elements as text. In texts, _{…} is a subscript, ^{…} a superscript, and *…* is italic."""

    def __init__(self, label: str):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
            f'font-size="12" role="img" aria-label="{label}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        ]

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"

    def rect(self, x, y, width, height, fill="#ffffff", stroke="none", radius=5, thick=1) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="{thick}"/>'
        )

    def text(self, x, y, text, colour=INK, size=12, anchor="start", bold=False) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}"{weight}>'
            f"{spans(text, size)}</text>"
        )

    def line(self, *points: tuple[float, float], colour=LINE) -> None:
        """An arrow through points, of horizontal and vertical strokes."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        wings = f"{x - 7 * dx - 4 * dy},{y - 7 * dy - 4 * dx} {x - 7 * dx + 4 * dy},{y - 7 * dy + 4 * dx}"
        self.parts.append(f'<polygon points="{x},{y} {wings}" fill="{colour}"/>')

    def gap(self, x, y, ground) -> None:
        """A gap where the next line crosses an earlier one."""
        self.rect(x - 5, y - 5, 10, 10, fill=ground, radius=0)

    def dot(self, x, y, colour) -> None:
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')


def spans(text, size: float) -> str:
    """The tspans of a text; each shift of the baseline is undone by the next. A _ after a ^ is placed below it."""
    parts, shift, last, little = [], 0.0, "", max(0.7 * size, 9)
    for kind, shifted, slanted, plain in re.findall(r"([_^])\{([^}]*)\}|\*([^*]+)\*|([^_^*]+)", str(text)):
        wanted = {"_": 0.26, "^": -0.38}.get(kind, 0.0) * size
        style = f' dy="{wanted - shift:.1f}"' if wanted != shift else ""
        if (last, kind) == ("^", "_"):
            style, kind = f'{style} dx="{-0.6 * little:.1f}"', "below"
        elif last == "below":
            style += f' dx="{0.25 * little:.1f}"'
        style += f' font-size="{little:.1f}"' if kind else ""
        style += ' font-style="italic"' if slanted or re.search("[a-zA-Z]", shifted) else ""
        parts.append(f"<tspan{style}>{shifted or slanted or plain}</tspan>" if style else plain)
        shift, last = wanted, kind
    return "".join(parts)


class Diagram(Canvas):
    """The boxes of a network that ran."""

    def __init__(self, label: str, ran: Run):
        super().__init__(label)
        self.ran = ran
        self.counted = 0

    def count(self, *names: str) -> str:
        """The parameters of modules, each of which is counted once."""
        total = sum(self.ran.modules[name].num_parameters for name in names)
        self.counted += total
        return f"{total:,}"

    def shape(self, x, y, shape: tuple[int, ...], axes: str) -> None:
        """Sizes in a row of cells, the names of their axes below; a named axis must have its size."""
        known = {**self.ran.sizes, "1": 1}
        for size, axis in zip(shape, axes.split(), strict=True):
            terms = axis.split("+")
            assert axis in "CD" or sum(known[term] for term in terms) == size, f"{axis} is {size}"
            width = cell_width(axis)
            self.rect(x, y, width, 17, fill=PALE, stroke=GRID, radius=2)
            self.text(x + width // 2, y + 13, size, size=11, anchor="middle")
            if axis != "1":
                self.text(x + width // 2, y + 28, axis, SOFT, 10, "middle")
            x += width

    def given(self, x, width, title, name, axes) -> None:
        self.rect(x, 46, width, 62, fill=PALE, stroke=EDGE)
        self.text(x + width // 2, 65, title, anchor="middle")
        cells = sum(cell_width(axis) for axis in axes.split())
        self.shape(x + (width - cells) // 2, 74, self.ran.columns[name], axes)

    def narrow(self, x, y, width, symbol, colour, names: list[str], shape, axes) -> None:
        """Symbol and parameters, classes, shape."""
        bottom = y + 84 + 16 * len(names)
        self.rect(x, y, width, bottom - y, stroke=EDGE)
        self.text(x + 10, y + 24, symbol, colour, 18, bold=True)
        self.text(x + width - 8, y + 22, self.count(*names), SOFT, 11, "end")
        for i, name in enumerate(names):
            plus = " +" if name != names[-1] else ""
            self.text(x + 10, y + 47 + 16 * i, self.ran.modules[name].name + plus, bold=True)
        self.shape(x + 10, bottom - 42, shape, axes)

    def wide(self, x, y, width, symbol, colour, name, caption, axes) -> None:
        """The symbol at the left; class and parameters, what it does, shape."""
        seen = self.ran.modules[name]
        (shape,) = seen.shapes
        self.rect(x, y, width, 78, stroke=EDGE)
        self.text(x + 49, y + 45, symbol, colour, 17, "middle", bold=True)
        self.text(x + 98, y + 19, seen.name, bold=True)
        self.text(x + width - 8, y + 19, self.count(name), SOFT, 11, "end")
        self.text(x + 98, y + 35, caption, SOFT, 11)
        self.shape(x + 98, y + 43, shape, axes)

    def attention(self, y, cell: tuple[str, str, str], block: tuple[str, str], colour) -> None:
        """A cell and the block around it, in one frame."""
        self.rect(240, y, 356, 190, fill="none", stroke=colour)
        name, symbol, caption = cell
        self.wide(248, y + 8, 340, symbol, colour, name, caption, "B U H D")
        self.line((418, y + 86), (418, y + 104), colour=colour)
        name, symbol = block
        self.wide(248, y + 104, 340, symbol, colour, name, "adds its query, then layer norm", "B U H D")


def cell_width(axis: str) -> int:
    return 58 if len(axis) > 4 else 32


def draw() -> str:
    panel = small_panel()
    ran, sets = run(panel), index_sets(panel)
    label = (
        "MQTransformer: inputs, position encoding and encoder, global branch with horizon-specific attention, output "
        "branch with attention over earlier forecasts of the same target and a local MLP, quantiles; and which steps "
        "and which forecasts the two attentions look at"
    )
    picture = Diagram(label, ran)
    picture.text(16, 28, "MQTransformer", size=17, bold=True)
    picture.text(184, 28, "as one forward pass saw it", SOFT)
    picture.text(640, 28, f"{ran.num_parameters:,} parameters", SOFT, anchor="end")
    draw_encoder(picture)
    draw_decoder(picture)
    assert picture.counted == ran.num_parameters, "the boxes are not the whole network"
    picture.rect(664, 16, 1, HEIGHT - 32, fill=GRID, radius=0)
    draw_grids(picture, sets)
    draw_axes(picture)
    return picture.svg()


def draw_encoder(picture: Diagram) -> None:
    seen = picture.ran.modules
    picture.given(16, 138, "events, calendar", "events", "1 R+T+H+R C")
    picture.given(162, 134, "known columns", "known", "B T+H C")
    picture.given(326, 178, "*y* and past columns", "past", "B T C")
    picture.given(512, 128, "static attributes", "static", "B C")
    picture.rect(318, 132, 330, 136, fill=PALE)
    picture.text(326, 150, seen["encoder"].name, SOFT)
    picture.rect(16, 160, 280, 100, stroke=EDGE)
    picture.text(28, 185, "*r*_{u}", R, 18, bold=True)
    picture.text(64, 183, seen["position"].name, bold=True)
    picture.text(288, 182, picture.count("position"), SOFT, 11, "end")
    both = (28, "*r*^{(g)}", "both ways in time", "1 T+H D"), (160, "*r*^{(l)}", "each step alone", "B T+H D")
    for (x, symbol, caption, axes), shape in zip(both, seen["position"].shapes, strict=True):
        picture.text(x + 28, 209, caption, SOFT, 11)
        picture.text(x, 231, symbol, R, 13)
        picture.shape(x + 28, 218, shape, axes)
    for name, x, width, symbol, axes in (
        ("encoder.temporal", 326, 178, "*h*^{1}_{t}", "B T D"),
        ("encoder.static", 512, 128, "*h*^{2}", "B 1 D"),
    ):
        picture.narrow(x, 160, width, symbol, H, [name], seen[name].shapes[0], axes)
    for x in (85, 229, 415, 576):
        picture.line((x, 108), (x, 160))
    picture.line((296, 210), (326, 210), colour=R)


def draw_decoder(picture: Diagram) -> None:
    seen = picture.ran.modules
    r, c, h, agnostic, middle = 198, 222, 624, 104, 418  # where lines run down
    picture.rect(16, 310, 632, 232, fill=PALE)
    picture.rect(16, 570, 632, 340, fill=PALE)
    picture.text(240, 329, "global branch *m*_{G}:  " + seen["contexts"].name, SOFT)
    picture.text(240, 589, "output branch", SOFT)

    # what all need: r_u from the left, h_t from the right
    picture.line((r, 260), (r, 824), colour=R)
    picture.text(r + 8, 280, "*r*_{u}", R, 13)
    picture.line((h, 268), (h, 695), (596, 695), colour=H)
    picture.line((h, 435), (596, 435), colour=H)
    picture.dot(h, 435, H)
    picture.text(h - 8, 285, "*h*_{t} = [*h*^{1}_{t}; *h*^{2}]", H, 13, "end")
    picture.gap(r, 292, "#ffffff")
    picture.line((h, 292), (agnostic, 292), (agnostic, 346), colour=H)
    picture.dot(h, 292, H)
    for y, end in ((404, 182), (435, 240), (695, 240)):
        picture.dot(r, y, R)
        picture.line((r, y), (end, y), colour=R)

    # global branch
    names, shape = ["contexts.agnostic", "contexts.future"], seen["contexts"].shapes[1]
    picture.narrow(26, 346, 156, "*c*^{a}_{t}", AGNOSTIC, names, shape, "B T D")
    cell = "contexts.cell", "Σ_{s} *Av*_{s}", "looks back at the steps *t* − *L* … *t*"
    picture.attention(340, cell, ("contexts.block", "*c*_{t,h}"), C)

    # output branch
    cell = "feedback", "Σ_{s,r} *Av*_{s,r}", "earlier forecasts of the same target"
    picture.attention(600, cell, ("feedback_block", "*c\u0303*_{t,h}"), FEEDBACK)
    picture.line((middle, 530), (middle, 600), colour=C)
    picture.dot(middle, 556, C)
    picture.gap(c, 695, PALE)
    picture.line((middle, 556), (c, 556), (c, 824), colour=C)
    picture.line((agnostic, 462), (agnostic, 824), colour=AGNOSTIC)
    picture.line((middle, 790), (middle, 824), colour=FEEDBACK)
    picture.text(agnostic + 8, 810, "*c*^{a}_{t}", AGNOSTIC, 13)
    picture.text(r - 6, 810, "*r*_{t+h}", R, 13, "end")
    picture.text(c + 8, 810, "*c*_{t,h}", C, 13)
    picture.text(middle + 8, 810, "*c\u0303*_{t,h}", FEEDBACK, 13)
    picture.text(middle + 8, 560, "*c*_{t,h}", C, 13)
    given = "*c*^{a}_{t}, *c*_{t,h}, *c\u0303*_{t,h}, *r*_{t+h}"
    caption = f"*m*_{{L}}({given}), with the same weights for all *t* and *h*"
    picture.wide(26, 824, 570, "*ŷ*_{t+h}", INK, "local", caption, "B U H Q")
    levels = ", ".join(f"{level:g}" for level in picture.ran.quantiles)
    picture.line((agnostic, 902), (agnostic, 936), colour=INK)
    picture.text(agnostic + 14, 934, f"quantiles {levels} of *y*_{{t+1}} … *y*_{{t+H}}, at every creation time *t*")


def draw_grids(picture: Canvas, sets: IndexSets) -> None:
    t, h = QUERY
    x, size = 706, 16
    width = sets.num_steps + sets.horizon

    def cells(y: int, chosen: set[tuple[int, int]], fill: str, stroke: str = GRID, thick=1) -> None:
        for row, column in sorted(chosen):
            picture.rect(x + size * column, y + size * row, size, size, fill, stroke, 0, thick)

    def grid(y: int, all_sets: set, fill: str, query_set: set, query_fill: str) -> None:
        picture.text(x - 20, y - 8, "made at ↓", SOFT, 10)
        picture.text(x + size * width, y - 8, "step →", SOFT, 10, "end")
        rows = [f"M{x} {y + size * i} h{size * width}" for i in range(sets.num_steps + 1)]
        columns = [f"M{x + size * i} {y} v{size * sets.num_steps}" for i in range(width + 1)]
        picture.parts.append(f'<path d="{" ".join(rows + columns)}" stroke="{GRID}"/>')
        cells(y, all_sets, fill)
        cells(y, query_set, query_fill, "#ffffff")
        cells(y, {(t, t + h)}, "none", INK, 2)
        picture.text(x - 8, y + size * t + 12, "*t*", INK, 12, "end")
        bottom = y + size * sets.num_steps + 14
        for step, name in ((t, "*t*"), (t + h, "*t*+*h*")):
            picture.text(x + size * step + size // 2, bottom, name, INK, 12, "middle")

    def key(y: int, *entries: tuple[str, str, str]) -> None:
        for fill, stroke, text in entries:
            picture.rect(x - 20, y - 10, 12, 12, fill, stroke, 0, 2 if stroke == INK else 1)
            picture.text(x, y, text, SOFT, 11)
            y += 18

    forecast = ("#ffffff", INK, "the forecast of *t*+*h* made at *t*")
    y = 104
    picture.text(686, 28, "Where *c*_{t,h} looks: back in time", size=13, bold=True)
    picture.text(686, 50, "steps *s* = *t*−*L* … *t*, the same for all *h*,", SOFT)
    picture.text(686, 67, "weighed for each *h* apart", SOFT)
    grid(y, sets.history, HISTORY_SETS, sets.history_of_query, HISTORY_SET)
    first = min(column for _, column in sets.history_of_query)
    picture.text(x + size * first + size // 2, y + size * sets.num_steps + 14, "*t*−*L*", INK, 12, "middle")
    key(
        y + size * sets.num_steps + 38,
        forecast,
        (HISTORY_SET, "#ffffff", "steps that it looks at"),
        (HISTORY_SETS, GRID, "steps that forecasts made at other times look at"),
    )

    y = 474
    picture.text(686, 404, "Where *c\u0303*_{t,h} looks: at earlier forecasts", size=13, bold=True)
    picture.text(686, 426, "of the same target: (*s*, *r*) with *s*+*r* = *t*+*h*,", SOFT)
    picture.text(686, 443, "*s* ≤ *t* and *r* ≤ *H*", SOFT)
    grid(y, sets.feedback, FEEDBACK_SETS, sets.feedback_of_query, FEEDBACK_SET)
    for s, target in sorted(sets.feedback_of_query):
        picture.text(x + size * target + size // 2, y + size * s + 12, target - s, "#ffffff", 11, "middle")
    key(
        y + size * sets.num_steps + 38,
        forecast,
        (FEEDBACK_SET, "#ffffff", "forecasts that it looks at, with their *r*"),
        (FEEDBACK_SETS, GRID, "all forecasts: *H* of them made at each step"),
    )


def draw_axes(picture: Diagram) -> None:
    sizes = picture.ran.sizes
    picture.text(686, 780, "Axes", size=13, bold=True)
    rows = (
        ("B", sizes["B"], "windows"),
        ("H", sizes["H"], "horizons *h*"),
        ("T", sizes["T"], "steps, each a creation time *t*"),
        ("U", sizes["U"], "targets *u* = *t* + *h*"),
        ("Q", sizes["Q"], "quantiles"),
        ("R", sizes["R"], "steps of calendar beyond each end"),
        ("D", "", "channels"),
        ("C", "", "columns: numbers and categories"),
    )
    for i, (axis, size, meaning) in enumerate(rows):
        y = 803 + 18 * i
        picture.text(690, y, axis)
        picture.text(736, y, size, INK, 12, "end")
        picture.text(746, y, meaning, SOFT)
    picture.text(690, 806 + 18 * len(rows), "top right in a box: its parameters", SOFT)


if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs" / "network.svg").write_text(draw(), encoding="utf-8")
