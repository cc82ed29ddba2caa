"""The demonstration: a synthetic retailer, packed, cut into windows, with the oracle that bounds every forecast."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mqcast.config import ScalingConfig, WindowConfig
from mqcast.data.panel import pack
from mqcast.data.summary import Summary, summarise
from mqcast.data.windows import Splits, WindowPlan
from mqcast.datasets import World, lognormal_world

NUM_WEEKS, HORIZON, LEVELS = 208, 26, (0.5, 0.9)


@dataclass(frozen=True)
class DemoResult:
    panel_folder: str
    summary: Summary
    batch: list[tuple[str, str, str]]
    scored: str
    losses: dict[str, dict[str, float]]
    seconds: float


def run_demo(folder: Path, num_items: int, seed: int) -> DemoResult:
    started = time.perf_counter()
    world = lognormal_world(num_items, NUM_WEEKS, HORIZON, seed)
    panel = pack(world.frame, folder / "panel", world.schema, world.static, world.events)
    last = NUM_WEEKS - HORIZON - 1
    return DemoResult(
        panel_folder=str(folder / "panel"),
        summary=summarise(panel),
        batch=_describe_batch(panel),
        scored=f"{num_items:,} items × 26 creation times × {HORIZON} weeks ahead",
        losses=_losses(world, first=last - 25, last=last),
        seconds=time.perf_counter() - started,
    )


def _describe_batch(panel) -> list[tuple[str, str, str]]:
    from mqcast.data.batch import Assembler

    config = WindowConfig(horizon=HORIZON, history=52, num_fcts=52, batch_size=64, reach=HORIZON - 1)
    time_of = panel.axis.frequency.times(panel.first_step[:1] + np.array([NUM_WEEKS - 53, NUM_WEEKS - 27]))
    splits = Splits.by_date(panel, *time_of.astype("M8[us]"))
    assemble = Assembler.fit(panel, config, ScalingConfig(log1p=True), until=splits.train.until)
    batch = assemble(WindowPlan(panel, config, splits.train).batch(epoch=0, step=0))
    parts = {
        "inputs": (batch.inputs(), "scaled demand: series × weeks"),
        "targets": (batch.targets(), "series × weeks ahead × creation times, all in one pass"),
        "known_number": (batch.known_number, "promotions, as far ahead as the horizon"),
        "global_number": (batch.global_number, "raw holiday indicators, once for all series"),
        "global_category": (batch.global_category, "week of year and month, once for all series"),
        "static_category": (batch.static_category, "category, brand, price band"),
    }
    return [(name, " × ".join(map(str, tensor.shape)), meaning) for name, (tensor, meaning) in parts.items()]


def _losses(world: World, first: int, last: int) -> dict[str, dict[str, float]]:
    """Weighted quantile loss 2·Σ pinball / Σ demand of the oracle and of last year's sales."""
    weeks = np.arange(first, last + 1) + np.arange(1, world.horizon + 1)[:, None]
    actual = world.demand[:, weeks]
    last_year = world.demand[:, weeks - 52]
    forecasts = {
        "the oracle (no forecaster can beat it)": world.oracle.quantiles(LEVELS, first, last),
        "the same week of last year": np.repeat(last_year[..., None], len(LEVELS), axis=-1),
    }
    in_promotion = np.any(world.promotions[:, weeks], axis=-1)
    everywhere = np.ones_like(in_promotion)
    holiday = np.broadcast_to(np.any(world.holidays[weeks], axis=-1), in_promotion.shape)
    slices = {"P50": (0, everywhere), "P90": (1, everywhere)}
    slices |= {"P50, promotions": (0, in_promotion), "P50, holidays": (0, holiday)}
    return {
        name: {label: _loss(quantiles[..., i], actual, LEVELS[i], where) for label, (i, where) in slices.items()}
        for name, quantiles in forecasts.items()
    }


def _loss(forecast: np.ndarray, actual: np.ndarray, level: float, where: np.ndarray) -> float:
    error = actual - forecast
    pinball = np.maximum(level * error, (level - 1) * error)
    return float(2 * pinball[where].sum() / max(actual[where].sum(), 1e-12))
