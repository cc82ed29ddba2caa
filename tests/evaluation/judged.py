"""What the tests of evaluation share: small frames, and sums written out as loops."""

from datetime import datetime

import numpy as np
import polars as pl

WEEK = np.timedelta64(7, "D")
START = np.datetime64("2024-01-07", "us")


def weeks(steps: np.ndarray) -> np.ndarray:
    return START + np.asarray(steps) * WEEK


def week(step: int) -> datetime:
    return (START + step * WEEK).item()


def random_frames(
    num_items: int = 5, num_cutoffs: int = 9, horizon: int = 4, levels=(0.5, 0.9), seed: int = 0
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Shuffled forecasts from cutoffs 10, 11, … and actuals from week 0 on; quantiles may cross."""
    rng = np.random.default_rng(seed)
    item, cutoff, lead = (
        part.ravel()
        for part in np.meshgrid(
            np.arange(num_items), 10 + np.arange(num_cutoffs), np.arange(1, horizon + 1), indexing="ij"
        )
    )
    ids = np.array([f"item {i}" for i in range(num_items)])
    keys = {"unique_id": ids[item], "cutoff": weeks(cutoff), "ds": weeks(cutoff + lead), "horizon": lead}
    values = {f"q{level:g}": rng.gamma(4, 5 * (1 + level), len(item)) for level in levels}
    forecasts = pl.DataFrame(keys | values).sample(fraction=1, shuffle=True, seed=seed)
    num_weeks = 10 + num_cutoffs + horizon
    actuals = pl.DataFrame(
        {
            "unique_id": np.repeat(ids, num_weeks),
            "ds": np.tile(weeks(np.arange(num_weeks)), num_items),
            "y": rng.gamma(4, 6, num_items * num_weeks),
        }
    )
    return forecasts, actuals


def revisions_of(
    medians: list[list[float]], actuals: list[float], spread: float = 1.2
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One target an item: its medians, oldest first, and its demand; the upper quantile is `spread` times as high."""
    rows = [
        {"unique_id": f"item {i}", "cutoff": week(j), "ds": week(len(path)), "q0.5": value, "q0.9": value * spread}
        for i, path in enumerate(medians)
        for j, value in enumerate(path)
    ]
    demand = [
        {"unique_id": f"item {i}", "ds": week(len(path)), "y": y}
        for i, (path, y) in enumerate(zip(medians, actuals, strict=True))
    ]
    return pl.DataFrame(rows), pl.DataFrame(demand)
