"""The summary of a panel that the command line shows."""

from dataclasses import dataclass

import numpy as np

from mqcast.data.frequency import show_time
from mqcast.data.panel import Panel
from mqcast.data.schema import ROLES


@dataclass(frozen=True)
class Summary:
    """The summary of a panel that the command line shows."""

    num_series: int
    num_rows: int
    num_bytes: int
    freq: str
    first: str
    last: str
    missing_share: float
    zero_share: float
    shortest: int
    longest: int
    columns: dict[str, list[str]]


def summarise(panel: Panel) -> Summary:
    lengths = panel.last_step - panel.first_step + 1
    observed = zero = 0
    for start in range(0, panel.num_rows, 2**22):
        part = panel.target[start : start + 2**22]
        observed += int(np.count_nonzero(~np.isnan(part)))
        zero += int(np.count_nonzero(part == 0))
    until_last = int((panel.last_observed - panel.first_step + 1).sum())
    first, last = (show_time(time) for time in panel.span)
    return Summary(
        num_series=panel.num_series,
        num_rows=panel.num_rows,
        num_bytes=sum(array.nbytes for array in panel.arrays.values()),
        freq=str(panel.axis.frequency),
        first=first,
        last=last,
        missing_share=1 - observed / max(until_last, 1),
        zero_share=zero / max(observed, 1),
        shortest=int(lengths.min()),
        longest=int(lengths.max()),
        columns=_columns(panel),
    )


def _columns(panel: Panel) -> dict[str, list[str]]:
    """Covariates by role, each with its kind; and what the calendar adds."""
    schema = panel.schema
    columns = {
        role: [
            f"{name} ({len(panel.vocabularies[name])} values)" if schema.kinds[name] == "category" else name
            for name in getattr(schema, role)
        ]
        for role in ROLES
    }
    columns["calendar"] = list(panel.calendar.features)
    columns["holidays"] = [f"{region}: {name}" for region, name in panel.holidays]
    return {role: names for role, names in columns.items() if names}
