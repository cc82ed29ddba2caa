"""Our own forecasters in random configurations, put through mqcast.checks. Only checks that apply are counted.

python -m lab campaign battery [--count 1000] [--seed 0] [--minutes M] [--record]
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from typing import Any

import numpy as np

from lab.campaigns.campaign import Campaign
from mqcast import Forecaster, Schema
from mqcast.checks import check_forecaster

GUARANTEE = (
    "A Forecaster of any model, scaling, levels, horizon, frequency and columns passes the battery of mqcast.checks: "
    "no look-ahead in forecasts, revisions and backtests, no dependence on order or company, sane sizes, whole files."
)
MODELS = ("mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn", "seasonal-naive")
SCALINGS = ("recent", "series", "global", "past", "past_mean", "none")
LEVELS = ((0.5,), (0.5, 0.9), (0.1, 0.5, 0.9), (0.05, 0.25, 0.5, 0.75, 0.95))
FREQUENCIES = ("h", "D", "B", "W", "MS", "QS")
PARTS: tuple[dict[str, Any], ...] = (
    {},
    {"head": "monotone"},
    {"encoder_attention": True},
    {"static_encoding": "one_hot"},
    {"block": "bare"},
    {"feedback_heads": "per_horizon"},
    {"agnostic_context": "current"},
    {"position_norm": False},
    {"horizon_code": False},
    {"scale_inputs": True},
)
COLUMNS = {
    "static": (("brand", "category"), ("size", "number")),
    "past": (("visits", "number"), ("weather", "category")),
    "known": (("promo", "flag"), ("price", "number"), ("campaign", "category")),
    "events": (("feast", "flag"),),
}


def random_forecaster(rng: np.random.Generator) -> Forecaster:
    roles, kinds = {}, {}
    for role, columns in COLUMNS.items():
        chosen = [column for column in columns if rng.random() < 0.4]
        roles[role] = [name for name, _ in chosen]
        kinds |= dict(chosen)
    schema = Schema(freq=str(rng.choice(FREQUENCIES)), kinds=kinds, **roles)
    model, horizon = str(rng.choice(MODELS)), int(rng.integers(1, 5))
    small = {"hidden_dim": 4, "encoder_dilations": (1, 2), "lookback": 6} | PARTS[rng.integers(len(PARTS))]
    scaling: dict[str, Any] = {"by": str(rng.choice(SCALINGS)), "log1p": bool(rng.random() < 0.5)}
    config = {"model": small, "window": {"history": 6, "num_fcts": 10}, "scaling": scaling}
    return Forecaster(
        model,
        horizon,
        LEVELS[rng.integers(len(LEVELS))],
        schema,
        config=None if model == "seasonal-naive" else config,
        max_steps=int(rng.integers(1, 3)),
        seed=int(rng.integers(2**16)),
        verbose=False,
    )


def main() -> None:
    campaign = Campaign(GUARANTEE, count=1000)
    for number, rng in campaign.trials():
        forecaster = random_forecaster(rng)
        for result in check_forecaster(forecaster):
            if result.outcome == "not applicable":
                continue
            if campaign.tried >= campaign.options.count:
                campaign.finish()
            campaign.check(result.passed, result.name, f"trial {number}: {result.seen}; {forecaster!r}")
    campaign.finish()


if __name__ == "__main__":
    main()
