"""How fast this machine trains and forecasts, on simulated data."""

import tempfile
import time
from pathlib import Path

from mqcast.data.panel import Panel
from mqcast.defaults import settings_for
from mqcast.simulate import lognormal_world

NUM_WEEKS, NUM_CUTOFFS, SKIPPED = 156, 20, 5


def measure(model: str, num_items: int, horizon: int, steps: int, device: str = "auto") -> dict[str, float | str]:
    """Trajectories a second after the first few steps, data loading included, and forecasts a second of many cutoffs.

    A trajectory is one (series, creation time) with its whole horizon in the loss; a forecast, one with all its
    horizons.
    """
    from mqcast.forecast.predict import forecast_frame
    from mqcast.train.loop import fit
    from mqcast.train.records import Record, Step

    world = lognormal_world(num_items, NUM_WEEKS, horizon)
    panel = Panel.from_frame(world.frame, world.schema, world.static, world.events)
    settings = settings_for(panel, model, horizon, (0.5, 0.9), {"train": {"max_steps": steps}})
    seen: list[tuple[float, int]] = []

    def listen(record: Record) -> None:
        if isinstance(record, Step):
            seen.append((time.perf_counter(), record.trajectories))

    weeks = world.frame["ds"].unique().sort()
    with tempfile.TemporaryDirectory(prefix="mqcast-") as folder:
        run = fit(panel, settings, Path(folder) / "run", listeners=(listen,), device=device)
        (begin, before), (end, after) = seen[SKIPPED - 1], seen[-1]
        started = time.perf_counter()
        first, last = weeks[NUM_WEEKS - 1 - NUM_CUTOFFS], weeks[NUM_WEEKS - 2]
        frame = forecast_frame(run, panel, first=first, last=last, device=device)
    return {
        "model": model,
        "trajectories_per_second": (after - before) / (end - begin),
        "forecasts_per_second": len(frame) / horizon / (time.perf_counter() - started),
    }
