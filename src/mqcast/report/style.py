"""How figures look: colours that are told apart by everyone, on light and on dark; names from data as plain text."""

import html

import plotly.graph_objects as go

PALETTE = ("#2f7ebc", "#d9690f", "#12936b", "#b05fa0", "#b58900", "#49a5e0", "#7d8590", "#c0392b")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
ACTUAL, ZERO, PROMOTION, HOLIDAY = "#7d8590", "#7d8590", "#b58900", "#b05fa0"
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
