"""A panel, a run and a saved forecaster that take a few kilobytes and a second; golden files and campaigns use them."""

import datetime as dt
import os
from pathlib import Path

import numpy as np
import polars as pl

from mqcast import Forecaster, Panel, Schema
from mqcast.data.panel import pack
from mqcast.settings import ModelConfig, RunConfig, ScalingConfig, TrainConfig, WindowConfig

HORIZON, NUM_SERIES, NUM_WEEKS = 2, 4, 24
SCHEMA = Schema(freq="W-SUN", known=("promo",), past=("visits",), static=("region",), kinds={"promo": "flag"})
CONFIG = RunConfig(
    window=WindowConfig(horizon=HORIZON, history=6, num_fcts=4, batch_size=4),
    scaling=ScalingConfig(by="series", half_life=4.0),
    model=ModelConfig(hidden_dim=4, encoder_dilations=(1, 2), lookback=3, quantiles=(0.5, 0.9)),
    train=TrainConfig(max_epochs=2, max_steps=4, micro_batch=4, log_every=1, checkpoint_minutes=0.0),
)


def tiny_frame() -> pl.DataFrame:
    """Weekly sales of a few items, with a plan for the weeks of one horizon beyond them."""
    rng = np.random.default_rng(0)
    weeks = [dt.date(2023, 1, 1) + dt.timedelta(weeks=i) for i in range(NUM_WEEKS)]
    parts = []
    for i in range(NUM_SERIES):
        promo = rng.random(NUM_WEEKS) < 0.2
        sales = np.round(10 * (i + 1) * (1 + 0.5 * promo) * rng.lognormal(0, 0.1, NUM_WEEKS), 1)
        columns = {"ds": weeks, "y": sales, "promo": promo, "visits": np.round(rng.normal(5, 1, NUM_WEEKS), 2)}
        known = pl.int_range(NUM_WEEKS) < NUM_WEEKS - HORIZON
        part = pl.DataFrame(columns).with_columns(pl.when(known).then("y"), pl.when(known).then("visits"))
        parts.append(part.with_columns(unique_id=pl.lit(f"item {i}"), region=pl.lit("north" if i % 2 else "süd")))
    return pl.concat(parts)


def pack_tiny(folder: Path) -> Panel:
    return pack(tiny_frame(), folder, SCHEMA)


def fit_tiny(panel: Panel, folder: Path) -> Forecaster:
    return Forecaster("mqt", HORIZON, (0.5, 0.9), config=CONFIG, folder=folder, verbose=False).fit(panel)


def make_all(folder: Path) -> Forecaster:
    """folder/panel, folder/run, folder/forecaster, folder/forecasts.parquet: each made from the one before."""
    panel = pack_tiny(folder / "panel")
    fitted = fit_tiny(panel, folder / "run")
    fitted.save(folder / "forecaster")
    fitted.revisions().write_parquet(folder / "forecasts.parquet")
    return fitted


def flip(file: Path, bit: int) -> None:
    """Change one bit, counted from the end if it is negative."""
    content = bytearray(file.read_bytes())
    bit %= 8 * len(content)
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def make_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)
