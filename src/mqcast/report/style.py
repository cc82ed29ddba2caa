"""How figures look: colours that are told apart by everyone, on light and on dark; names from data as plain text."""

import html
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

PALETTE = ("#2f7ebc", "#d9690f", "#12936b", "#b05fa0", "#b58900", "#49a5e0", "#7d8590", "#c0392b")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
ACTUAL, ZERO = "#7d8590", "#7d8590"
PROMOTION, PROMOTION_SIGNS = "#b58900", ("triangle-up", "triangle-down", "diamond")
EVENTS, EVENT_SIGNS = ("#b05fa0", "#c0392b", "#49a5e0", "#12936b"), ("star", "circle", "square", "cross")
LONGEST = 60


def colour(i: int) -> str:
    return PALETTE[i % len(PALETTE)]


def dash(i: int) -> str:
    return DASHES[i // len(PALETTE) % len(DASHES)]


def shortened(text: str, longest: int = LONGEST) -> str:
    """Head and tail of a long name."""
    tail = longest // 3
    return text if len(text) <= longest else f"{text[: longest - tail - 1]}…{text[-tail:]}"


def plain(text: str, longest: int = LONGEST) -> str:
    """A name from data for a figure, which reads tags and entities: shown as it is, whichever way it is written."""
    shown = html.escape(shortened(str(text), longest), quote=False)
    return shown if shown.isascii() else f"\u2068{shown}\u2069"


def styled(figure: go.Figure, height: int = 380) -> go.Figure:
    """The look that all figures share. Their titles stand above them in a page, and in the figure's own title."""
    figure.update_layout(
        height=height,
        template="none",
        colorway=PALETTE,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        margin={"l": 64, "r": 16, "t": 64, "b": 56},
        legend={"orientation": "h", "y": -0.3, "x": 0},
        hovermode="closest",
    )
    grid = {"gridcolor": "rgba(128,128,128,0.22)", "zeroline": False, "automargin": True}
    figure.update_xaxes(**grid)
    figure.update_yaxes(**grid)
    return figure


def add_special(
    figure: go.Figure,
    promotions: Mapping[str, Sequence[Any]],
    events: Mapping[str, Sequence[Any]],
    named: Collection[Any] | None = None,
) -> None:
    """Promotions and events at the foot of a figure, told apart as on the page's charts: sixteen events by sign and
    colour, more by the name that the pointer shows. named: dates whose marks are in the legend; None: all."""
    looks = [(PROMOTION, PROMOTION_SIGNS[i % 3]) for i in range(len(promotions))]
    looks += [(EVENTS[i // 4 % 4], EVENT_SIGNS[i % 4]) for i in range(len(events))]
    for (name, dates), (shade, sign) in zip([*promotions.items(), *events.items()], looks, strict=True):
        if not dates:
            continue
        figure.add_scatter(
            x=list(dates),
            y=[0] * len(dates),
            name=plain(name),
            mode="markers",
            hovertemplate=f"%{{x}}: {plain(name)}<extra></extra>",
            marker={"color": shade, "symbol": sign, "size": 9},
            cliponaxis=False,
            showlegend=named is None or any(date in named for date in dates),
        )
