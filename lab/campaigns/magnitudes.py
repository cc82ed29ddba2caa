"""For adversarial series, default settings and any weights, are forecasts finite, ordered and within their limits?

    python -m lab campaign magnitudes [--count 100000]

Panels of a thousand series, each of a random kind (alternating, intermittent, lumpy, steps of a million, long gaps,
changing regimes, spikes, trends, one value, one sale, none) and a random scale, are fitted with default settings for a
few steps. They are forecast with these weights and with random ones. The limits are computed from the frame, without
mqcast.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import torch

from lab.campaigns.campaign import Campaign
from mqcast import Forecaster, Schema
from mqcast.errors import ForecastLimitedWarning
from mqcast.forecast.predict import forecast_frame
from mqcast.run import Run

SERIES_A_PANEL, MULTIPLE, FEW_SALES = 1000, 10.0, 3
LEVELS = (0.1, 0.5, 0.9)
STEPS = {"D": "1d", "W": "1w", "MS": "1mo"}


def intermittent(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.poisson(10 ** rng.uniform(-2, 0.5), n).astype(float)


def lumpy(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(rng.random(n) < 0.1, rng.gamma(0.5, 1, n), 0.0)


def step(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(np.arange(n) < rng.integers(1, n), *rng.permutation([1.0, 1e6]))


def gaps(rng: np.random.Generator, n: int) -> np.ndarray:
    inside = np.abs(np.arange(n) - rng.integers(n)) < rng.integers(1, n // 2)
    return np.where(inside & (np.arange(n) < n - 1), rng.choice([np.nan, 0.0]), rng.lognormal(0, 0.3, n))


def regimes(rng: np.random.Generator, n: int) -> np.ndarray:
    low = np.repeat(rng.random(n) < 0.5, rng.integers(1, 12))[:n]
    return np.where(low, 10 ** rng.uniform(-5, 0), 1.0) * rng.lognormal(0, 0.1, n)


def spike(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(np.arange(n) == rng.integers(n), 10 ** rng.uniform(2, 9), 1.0)


def late(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(np.arange(n) < rng.integers(n // 2, n), 0.0, rng.lognormal(0, 0.3, n))


def one_sale(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(np.arange(n) == rng.integers(n), 1.0, 0.0)


KINDS = {
    "alternating": lambda rng, n: np.where(np.arange(n) % rng.integers(2, 5), 1.0, 0.0) * rng.lognormal(0, 0.2, n),
    "intermittent": intermittent,
    "lumpy": lumpy,
    "step": step,
    "gaps": gaps,
    "regimes": regimes,
    "spike": spike,
    "late": late,
    "one sale": one_sale,
    "trend": lambda rng, n: np.exp(np.arange(n) * rng.uniform(-0.3, 0.3)),
    "one value": lambda rng, n: np.full(n, 1.0),
    "nothing": lambda rng, n: np.zeros(n),
    "noise": lambda rng, n: rng.lognormal(0, rng.uniform(0.1, 3), n),
}


def panel_frame(rng: np.random.Generator, freq: str, horizon: int) -> tuple[pl.DataFrame, list[str], np.ndarray]:
    """A frame of series with a wild known number, the kind of each series, and their values."""
    n = int(rng.integers(30, 90))
    start = pl.datetime(2021, 1, 3) if freq == "W" else pl.datetime(2021, 1, 1)
    dates = pl.select(pl.datetime_range(start, pl.datetime(2031, 1, 1), STEPS[freq]).head(n + horizon)).to_series()
    kinds = rng.choice(list(KINDS), SERIES_A_PANEL)
    sizes = 10 ** rng.uniform(-3, 6, SERIES_A_PANEL)
    values = np.stack([size * KINDS[kind](rng, n) for kind, size in zip(kinds, sizes, strict=True)])
    values[np.isnan(values).all(axis=1)] = 0.0
    planned = np.concatenate([values, np.full((SERIES_A_PANEL, horizon), np.nan)], axis=1)
    plan = rng.standard_cauchy(planned.shape) * (1 + 1e3 * (np.arange(n + horizon) >= n))
    frame = pl.DataFrame(
        {
            "unique_id": np.repeat([f"{i:04}" for i in range(SERIES_A_PANEL)], n + horizon),
            "ds": pl.concat([dates] * SERIES_A_PANEL),
            "y": planned.reshape(-1),
            "plan": plan.reshape(-1),
        }
    )
    return frame.with_columns(pl.col("y").fill_nan(None)), list(kinds), values.astype(np.float32).astype(float)


def limits(values: np.ndarray) -> np.ndarray:
    """Ten times the largest value of a series; with few sales, of the median over series of these, if that is more."""
    largest = np.nanmax(values, axis=1)
    typical = np.median(largest[largest > 0])
    few = (np.nan_to_num(values) > 0).sum(axis=1) < FEW_SALES
    return MULTIPLE * np.where(few, np.maximum(largest, typical), largest)


def with_random_weights(run: Run, rng: np.random.Generator) -> Run:
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    size = 10 ** rng.uniform(-1, 1)
    old = run.network().state_dict()
    run.save_network({name: torch.randn(w.shape, generator=generator) * size for name, w in old.items()})
    return Run.open(run.folder)


def examine(campaign: Campaign, frame: pl.DataFrame, kinds: list[str], limit: np.ndarray, seen: str) -> None:
    """Count one trial per series."""
    names = frame["unique_id"].to_numpy()
    values = frame.select([f"q{level:g}" for level in LEVELS]).to_numpy()
    for i, kind in enumerate(kinds):
        of_series = values[names == f"{i:04}"]
        is_sane = bool(
            len(of_series)
            and np.isfinite(of_series).all()
            and (np.diff(of_series, axis=1) >= 0).all()
            and (of_series >= 0).all()
            and (of_series <= limit[i] * (1 + 1e-6)).all()
        )
        campaign.check(is_sane, kind, f"{seen}, series {i}")


def main() -> None:
    campaign = Campaign("For any demand and any weights, forecasts are finite, in order and within limits.", 100_000)
    limited = 0
    for number, rng in campaign.trials():
        if campaign.tried >= campaign.options.count:
            break
        freq, horizon = str(rng.choice(list(STEPS))), int(rng.integers(1, 14))
        model = str(rng.choice(["mqt", "mqt-nods", "mqcnn", "mqrnn"]))
        frame, kinds, values = panel_frame(rng, freq, horizon)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            forecaster = Forecaster(
                *(model, horizon, LEVELS, Schema(freq=freq, known=["plan"])),
                config={"model": {"hidden_dim": 8}},
                seed=number,
                max_steps=3,
                folder=Path(folder, "run"),
                verbose=False,
            ).fit(frame)
            assert forecaster.run_ is not None
            limit = limits(values)
            examine(campaign, forecast_frame(forecaster.run_, forecaster.panel_), kinds, limit, f"panel {number}")
            run = with_random_weights(forecaster.run_, rng)
            seen = f"panel {number}, random weights"
            examine(campaign, forecast_frame(run, forecaster.panel_), kinds, limit, seen)
        limited += sum(issubclass(warning.category, ForecastLimitedWarning) for warning in caught)
    campaign.finish(panels_with_limited_forecasts=limited)


if __name__ == "__main__":
    main()
