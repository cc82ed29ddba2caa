"""The items of the page of the coming steps: an index of all, and the numbers of each in compressed chunks.

The page's script reads the index at once and a chunk when one of its items is chosen or downloaded. Dates are places in
one list.

index    by item: id, total, before, width, change, place in each group; reasons: name and items
chunks   of PER_CHUNK items: [cutoff, [first place, what was sold …], [first place, quantiles of each level],
         [[flag, places] …], [[number, place, value, place, value …] …], [first place, previous medians …] or 0,
         [quantiles of each span's total …]]; a number is told where it changes
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mqcast.report.coming import Coming
from mqcast.report.packing import MOST_NAME, changes, packed, rounded
from mqcast.report.style import shortened

PER_CHUNK = 250
FEWEST_STEPS = 8  # of history, however little room there is
SAMPLED = 4  # chunks that tell how large all will be


def index_of(coming: Coming) -> str:
    """The index, as a chunk."""
    groups = {}
    for name, texts in coming.groups.items():
        places = {text: i for i, text in enumerate(sorted(set(texts)))}
        groups[name] = [[shortened(text, MOST_NAME) for text in places], [places[text] for text in texts]]
    return packed(
        {
            "ids": [shortened(id, MOST_NAME) for id in coming.ids],
            "total": rounded(coming.total),
            "before": rounded(coming.before),
            "width": rounded(coming.width) if len(coming.levels) > 1 else None,
            "change": None if coming.change is None else rounded(coming.change),
            "groups": groups,
            "reasons": [[reason, items.tolist()] for reason, items in coming.reasons.items()],
        }
    )


def chunks_of(coming: Coming, most_bytes: int, totals: np.ndarray | None = None) -> tuple[list[str], int]:
    """The chunks, and how many steps of history they hold: all, unless that would be more bytes.

    totals: (items, spans, levels)
    """

    def chunk(start: int, most_history: int) -> str:
        return _chunk(coming, start, most_history, totals)

    steps = int((coming.times <= coming.times[coming.cutoff.max()]).sum())
    every = max(1, -(-len(coming.ids) // PER_CHUNK) // SAMPLED)
    starts = range(0, len(coming.ids), PER_CHUNK)
    sample = starts[::every]
    sampled = {start: chunk(start, steps) for start in sample}
    full = sum(map(len, sampled.values()))
    share = len(starts) / len(sample)
    if full * share < 0.97 * most_bytes:
        chunks = [sampled.get(start) or chunk(start, steps) for start in starts]
        if sum(map(len, chunks)) <= most_bytes:
            return chunks, steps
    bare = sum(len(chunk(start, 0)) for start in sample)
    room = (0.97 * most_bytes / share - bare) / max(full - bare, 1)
    while True:
        kept = max(FEWEST_STEPS, min(steps, int(room * steps)))
        chunks = [chunk(start, kept) for start in starts]
        if sum(map(len, chunks)) <= most_bytes or kept == FEWEST_STEPS:
            return chunks, kept
        room = 0.9 * min(room, 1)


def _chunk(coming: Coming, start: int, most_history: int, totals: np.ndarray | None) -> str:
    """The items from one on, with so many steps of history at most."""
    rows = range(start, min(start + PER_CHUNK, len(coming.ids)))
    part = slice(rows.start, rows.stop)
    sold = rounded(coming.sold[part])
    quantiles = rounded(coming.quantiles[:, part].swapaxes(0, 1))
    before = None if coming.previous is None else rounded(coming.previous.values[part])
    of_spans = None if totals is None else rounded(totals[part])
    items = []
    for i, row in enumerate(rows):
        cutoff = int(coming.cutoff[row])
        first = max(0, cutoff + 1 - most_history)
        last = len(coming.times) - 1
        items.append(
            [
                cutoff,
                _dense(sold[i], first, cutoff),
                _fan(quantiles[i], cutoff + 1),
                [[j, _places(flag[row], first)] for j, flag in enumerate(coming.flags.values()) if flag[row].any()],
                [[j, *changes(values[row], first)] for j, values in enumerate(coming.numbers.values())],
                0 if before is None else _dense(before[i], first, last),
                [] if of_spans is None else of_spans[i],
            ]
        )
    return packed(items)


def _dense(values: Sequence[Any], first: int, last: int) -> list[Any]:
    """The first place with a value, and all values from it to the last that there is."""
    there = [place for place in range(first, last + 1) if values[place] is not None]
    return [there[0], *values[there[0] : there[-1] + 1]] if there else [first]


def _fan(levels: list[list[Any]], first: int) -> list[Any]:
    """All levels have the same dates."""
    return [
        (found := _dense(levels[0], first, len(levels[0]) - 1))[0],
        *(level[found[0] : found[0] + len(found) - 1] for level in levels),
    ]


def _places(flag: np.ndarray, first: int) -> list[int]:
    return [place for place in np.flatnonzero(flag).tolist() if place >= first]
