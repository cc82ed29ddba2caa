"""Rows on which nothing can be sold, as a column known ahead tells: closed days, weeks out of the assortment.

If demand was always 0 where a column has a certain value, such as open = 0, this is a rule, not demand to be learnt.
Such rows are left out of training and of levels, and forecasts of them are 0.
"""

import numpy as np

from mqcast.data.panel import Panel
from mqcast.settings import ZeroRule

ALWAYS = 0.995  # minimal share of zeros where a rule holds
LEAST_ROWS = 30  # on which it must have held
MOST_SHARE, MOST_ELSEWHERE = 0.5, 0.5  # of rows that a rule covers, and of zeros among the others
SAMPLE = 2_000_000  # of a larger panel this many rows are inspected


class ClosedRows:
    """Whether a rule holds, by rows of a panel."""

    def __init__(self, panel: Panel, rules: tuple[ZeroRule, ...]):
        self.panel = panel
        numbers, categories = panel.schema.numbers("known"), panel.schema.categories("known")
        self.numbers = [(numbers.index(column), value) for column, value in rules if column in numbers]
        self.codes = [
            (categories.index(column), panel.vocabularies[column].index(value) + 1)
            for column, value in rules
            if column in categories and value in panel.vocabularies[column]
        ]

    def __bool__(self) -> bool:
        return bool(self.numbers or self.codes)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        arrays, closed = self.panel.arrays, np.zeros(rows.shape, bool)
        for column, value in self.numbers:
            closed |= arrays["known_number"][rows, column] == value
        for column, code in self.codes:
            closed |= arrays["known_category"][rows, column] == code
        return closed


def closing_rules(panel: Panel) -> tuple[ZeroRule, ...]:
    """The rules that held in all rows of a panel, or nearly so; none if most demand is 0 anyway."""
    rows = np.arange(0, panel.num_rows, -(-panel.num_rows // SAMPLE))
    y = panel.target[rows]
    rows, is_zero = rows[~np.isnan(y)], y[~np.isnan(y)] == 0
    if not is_zero.any():
        return ()
    rules: list[ZeroRule] = []
    numbers = panel.arrays["known_number"][rows]
    for i, column in enumerate(panel.schema.numbers("known")):
        values = (0.0, 1.0) if panel.schema.kinds[column] == "flag" else (0.0,)
        rules += [(column, value) for value in values if _holds(numbers[:, i] == value, is_zero)]
    codes = panel.arrays["known_category"][rows]
    for i, column in enumerate(panel.schema.categories("known")):
        names = enumerate(panel.vocabularies[column], start=1)
        rules += [(column, name) for code, name in names if _holds(codes[:, i] == code, is_zero)]
    return tuple(rules)


def _holds(where: np.ndarray, is_zero: np.ndarray) -> bool:
    count = int(where.sum())
    if not LEAST_ROWS <= count <= MOST_SHARE * len(where):
        return False
    return bool(is_zero[where].mean() >= ALWAYS and is_zero[~where].mean() <= MOST_ELSEWHERE)
