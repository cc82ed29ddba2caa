"""Forecast frames and demand whose dependence is known."""

import numpy as np
import polars as pl
from scipy.stats import norm

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
WEEK, START = np.timedelta64(7, "D"), np.datetime64("2022-01-02", "us")


def frame_of(quantiles: np.ndarray, levels=LEVELS) -> pl.DataFrame:
    """A forecast frame of (series, cutoffs, horizon, levels)."""
    item, cutoff, step = (one.ravel() for one in np.indices(quantiles.shape[:3]))
    keys = {
        "unique_id": [f"s{i:03}" for i in item],
        "cutoff": START + cutoff * WEEK,
        "ds": START + (cutoff + step + 1) * WEEK,
        "horizon": step + 1,
    }
    values = quantiles.reshape(-1, len(levels))
    return pl.DataFrame(keys | {f"q{level:g}": values[:, i] for i, level in enumerate(levels)})


def actuals_of(demand: np.ndarray) -> pl.DataFrame:
    """Demand of (series, weeks), the first of which is the first cutoff."""
    item, week = (one.ravel() for one in np.indices(demand.shape))
    return pl.DataFrame({"unique_id": [f"s{i:03}" for i in item], "ds": START + week * WEEK, "y": demand.ravel()})


def autoregression(
    rho: float, series: int = 200, cutoffs: int = 60, horizon: int = 6, seed: int = 0, shared: float = 0.0
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Exact forecasts of y_t = 100 + 10 x_t with x_t = rho x_t-1 + noise of variance 1, and y.

    shared: how much of the variance of the noise all even series have in common, and all odd ones.
    """
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(series, cutoffs + horizon)) * np.sqrt(1 - shared)
    noise += np.sqrt(shared) * rng.normal(size=(2, cutoffs + horizon))[np.arange(series) % 2]
    x = np.zeros_like(noise)
    for t in range(1, x.shape[1]):
        x[:, t] = rho * x[:, t - 1] + noise[:, t]
    ahead = np.arange(1, horizon + 1)
    spread = np.sqrt(np.cumsum(rho ** (2 * (ahead - 1))))
    mean = x[:, :cutoffs, None] * rho**ahead
    return frame_of(100 + 10 * (mean[..., None] + spread[:, None] * norm.ppf(LEVELS))), actuals_of(100 + 10 * x)


def correlation_of(rho: float, horizon: int) -> np.ndarray:
    """Of the forecast errors of an autoregression, between steps ahead."""
    shock = np.array([[rho ** (h - s) if s <= h else 0.0 for s in range(horizon)] for h in range(horizon)])
    covariance = shock @ shock.T
    size = np.sqrt(np.diag(covariance))
    return covariance / size / size[:, None]
