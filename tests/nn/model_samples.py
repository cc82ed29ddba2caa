"""A small panel with every kind of column, its batches, and tiny networks that read them."""

import datetime as dt
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import torch
from torch import Tensor

from mqcast import Panel, Schema
from mqcast.data.batch import Assembler, Batch
from mqcast.data.inputs import Inputs
from mqcast.data.windows import WindowPlan, Windows
from mqcast.nn.networks import Network
from mqcast.settings import ModelConfig, ScalingConfig, WindowConfig

FIRST = dt.datetime(2023, 12, 1)  # Christmas and New Year fall into the windows
EPOCH = dt.datetime(1970, 1, 1)
NUM_SERIES, NUM_DAYS, HORIZON, LOOKBACK = 72, 42, 4, 6
WINDOW = WindowConfig(horizon=HORIZON, history=6, num_fcts=10, batch_size=NUM_SERIES)
NUM_STEPS = WINDOW.num_steps
SCHEMA = Schema(
    freq="D",
    static=("city", "area"),
    past=("visits", "weather"),
    known=("price", "promo", "kind"),
    events=("heat", "fair", "show"),
    holidays=("US",),
)
SMALL = ModelConfig(hidden_dim=8, encoder_dilations=(1, 2, 4), lookback=LOOKBACK)
WIDE = {"hidden_dim": 16, "static_dim": 32, "head_dim": 8, "context_dim": 8}  # as the compiled kernels want it
PAPER = {"block": "bare", "horizon_code": False, "position_norm": False, "scale_inputs": False, "plain_start": True}
MODELS = ("mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn")
VARIANTS = {name: SMALL.replace(model=name) for name in MODELS} | {
    "mqt per horizon": SMALL.replace(feedback_heads="per_horizon"),
    "mqt bare": SMALL.replace(block="bare"),
    "mqt encoder attention": SMALL.replace(encoder_attention=True),
    "mqt by kernels": SMALL.replace(**WIDE),
    "mqt-nods by kernels": SMALL.replace(model="mqt-nods", **WIDE),
    "mqt of the paper by kernels": SMALL.replace(**WIDE, **PAPER),
}


def frames(num_series: int = NUM_SERIES) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Ragged series with gaps and missing values, static values, and events."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(num_series):
        first = first_day(i)
        for day in range(first, NUM_DAYS + HORIZON):
            is_first = day == first
            if not is_first and rng.random() < 0.1 and day < NUM_DAYS:
                continue
            has_target = is_first or (day < NUM_DAYS and rng.random() > 0.1)
            rows.append(
                {
                    "unique_id": f"s{i:02}",
                    "ds": FIRST + dt.timedelta(days=day),
                    "y": float(rng.poisson(20 + i)) if has_target else None,
                    "visits": float(rng.poisson(50)) if rng.random() > 0.2 else None,
                    "weather": str(rng.choice(["sun", "rain", "snow"])),
                    "price": float(rng.normal(10, 2)),
                    "promo": bool(rng.random() < 0.3),
                    "kind": str(rng.choice(["x", "y", "z"])),
                }
            )
    names = [f"s{i:02}" for i in range(num_series)]
    cities = [("Ulm", "Bonn", None, "Kiel")[i % 4] for i in range(num_series)]
    static = pl.DataFrame({"unique_id": names, "city": cities, "area": rng.normal(size=num_series)})
    days = range(-20, NUM_DAYS + 40)
    events = pl.DataFrame(
        {
            "ds": [FIRST + dt.timedelta(days=day) for day in days],
            "heat": rng.normal(size=len(days)),
            "fair": [day % 9 == 0 for day in days],
            "show": [("a", "b")[day % 2] if day % 5 == 0 else None for day in days],
        }
    )
    return pl.DataFrame(rows), static, events


def first_day(series: int) -> int:
    """Days after FIRST on which a series begins: 0 … 24, so that many begin inside the window of `sample_batch`."""
    return series * 7 % 25


@cache
def sample_panel() -> Panel:
    frame, static, events = frames()
    return Panel.from_frame(frame, SCHEMA, static, events)


def sample_windows(config: WindowConfig = WINDOW, panel: Panel | None = None) -> Windows:
    """Windows on shared dates, in some of which the series begins later than the window."""
    plan = WindowPlan(panel or sample_panel(), config, shuffle=False)
    return plan.batch(0, 2)


def assembler(config: WindowConfig = WINDOW, panel: Panel | None = None, by: str = "series") -> Assembler:
    return Assembler.fit(panel or sample_panel(), config, ScalingConfig(by=by))


@cache
def sample_batch(num_series: int = NUM_SERIES) -> Batch:
    """One aligned batch: 14 to 29 days after FIRST, and the horizon."""
    return assembler()(sample_windows().take(np.arange(num_series)))


def sample_network(config: ModelConfig, seed: int = 0, horizon: int = HORIZON, inputs: Inputs | None = None) -> Network:
    """A network out of training whose weights are all random, also those that start at zero."""
    torch.manual_seed(seed)
    network = Network(config, inputs or Inputs.of(sample_panel()), horizon)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter + 0.2 * torch.randn_like(parameter))
    return network.eval()


def cut(batch: Batch, first: int, stop: int) -> Batch:
    """The window of steps first … stop−1, with the horizon after them."""
    reach = (batch.global_number.shape[1] - batch.values.shape[1]) // 2
    ends = {
        stop: ("loc", "scale", "unit", "knee", "is_fct", "past_number", "past_observed", "past_category"),
        stop + batch.horizon: ("values", "observed", "begun", "known_number", "known_category", "precedent"),
        stop + batch.horizon + 2 * reach: ("global_number", "global_category"),
    }
    ends[stop] = (*ends[stop], "precedent_level")
    parts = {name: getattr(batch, name)[:, first:end] for end, names in ends.items() for name in names}
    return replace(batch, **parts, start=batch.start + first)


def as_double(batch: Batch) -> Batch:
    return replace(batch, **{name: x.double() for name, x in batch.tensors().items() if x.is_floating_point()})


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert one.shape == other.shape
    return float((one - other).abs().max() / other.abs().max())
