"""How fast this machine trains and forecasts, on simulated data."""

import tempfile
import time
from pathlib import Path

from mqcast.data.panel import Panel
from mqcast.errors import ConfigError
from mqcast.models import TrainOptions, get
from mqcast.simulate import lognormal_world

NUM_WEEKS, NUM_CUTOFFS, SKIPPED = 156, 20, 5


def measure(model: str, num_items: int, horizon: int, steps: int, device: str = "auto") -> dict[str, float | str]:
    """Trajectories a second after the first few steps, data loading included, and forecasts a second of many cutoffs.

    A trajectory is one (series, creation time) with its whole horizon in the loss; a forecast, one with all its
    horizons.
    """
    from mqcast.train.records import Record, Step

    world = lognormal_world(num_items, NUM_WEEKS, horizon)
    panel = Panel.from_frame(world.frame, world.schema, world.static, world.events)
    seen: list[tuple[float, int]] = []

    def listen(record: Record) -> None:
        if isinstance(record, Step):
            seen.append((time.perf_counter(), record.trajectories))

    weeks = world.frame["ds"].unique().sort()
    with tempfile.TemporaryDirectory(prefix="mqcast-") as folder:
        options = TrainOptions(
            horizon=horizon,
            quantiles=(0.5, 0.9),
            max_steps=steps,
            folder=Path(folder) / "run",
            device=device,
            listeners=(listen,),
        )
        fitted = get(model).fit(panel, options)
        if len(seen) <= SKIPPED:
            raise ConfigError(f"{model} takes no training steps, so that there is nothing to measure; name a network")
        (begin, before), (end, after) = seen[SKIPPED - 1], seen[-1]
        fitted.forecast(panel)  # imports what forecasting needs
        started = time.perf_counter()
        first, last = weeks[NUM_WEEKS - 1 - NUM_CUTOFFS], weeks[NUM_WEEKS - 2]
        frame = fitted.forecast(panel, first, last)
    return {
        "model": model,
        "trajectories_per_second": (after - before) / (end - begin),
        "forecasts_per_second": len(frame) / horizon / (time.perf_counter() - started),
    }
