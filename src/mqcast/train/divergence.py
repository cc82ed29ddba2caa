"""Which windows made a step's loss or gradient infinite or NaN, and the error that names them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mqcast.data.batch import Assembler
from mqcast.data.frequency import show_time
from mqcast.data.panel import Panel
from mqcast.data.windows import Windows
from mqcast.errors import TrainingError
from mqcast.nn.members import AnyNetwork

MOST_SHOWN = 5


@torch.no_grad()
def windows_not_finite(network: AnyNetwork, assemble: Assembler, windows: Windows, device: torch.device) -> Windows:
    """The windows with scored forecasts or targets that are not finite; all windows if there are none."""
    batch = assemble(windows).to(device)
    n = batch.num_fcts
    forecasts = network(batch, n).float()
    finite = forecasts.isfinite().all(dim=-1) & batch.targets(n).isfinite()
    bad = (batch.is_scored(n) & ~finite).flatten(1).any(dim=1).cpu().numpy()
    return windows.take(np.flatnonzero(bad) if bad.any() else np.arange(len(bad)))


def places_of(windows: Windows, panel: Panel) -> list[tuple[str, str]]:
    """The series of each window, and its first and last creation time."""
    places = []
    for b in range(len(windows)):
        series = windows.series[b : b + 1]
        ends = (panel.times_at(series, at[b : b + 1], 1)[0, 0] for at in (windows.first_fct, windows.last_fct))
        places.append((panel.ids[int(series[0])].as_py(), " to ".join(show_time(int(end)) for end in ends)))
    return places


def divergence_error(
    what: str, step: int, num_windows: int, places: Sequence[tuple[str, str]], folder: Path
) -> TrainingError:
    shown = "; ".join(f"series {name!r}, {dates}" for name, dates in places[:MOST_SHOWN])
    more = f"; and {len(places) - MOST_SHOWN} more windows" if len(places) > MOST_SHOWN else ""
    return TrainingError(
        f"the {what} of step {step:,} is not finite for {len(places)} of {num_windows} windows "
        f"(series, first and last creation time): {shown}{more}. Look for extreme values there, or use a lower "
        f"learning_rate; what was saved in {folder} is intact",
        step,
        tuple(dict.fromkeys(name for name, _ in places)),
    )
