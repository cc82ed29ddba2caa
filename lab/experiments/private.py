"""The like of the paper's private experiment: a simulated retailer, three years to train, one to test, a year ahead."""

import polars as pl

from lab.datasets import Dataset
from lab.experiments.study import Study
from mqcast.simulate import World, lognormal_world
from mqcast.simulate.world import PROMOTIONS

YEAR = 52
NUM_WEEKS, TRAINED, WORLD_SEED = 4 * YEAR, 3 * YEAR, 0
PRIVATE = {
    "window": {"history": YEAR, "num_fcts": 2 * YEAR, "batch_size": 16},
    "scaling": {"by": "recent", "log1p": True, "half_life": 3.0},
    "model": {"lookback": YEAR, "position_dilations": [1, 2], "dropout": 0.0, "scale_inputs": False},
    "train": {"learning_rate": 3e-3, "schedule": "cosine", "warmup_steps": 100, "micro_batch": 4, "log_every": 20},
}


def private_world(num_items: int, seed: int = WORLD_SEED) -> tuple[Dataset, World]:
    """Four years of sales, with promotions and holidays known a year ahead."""
    world = lognormal_world(num_items, NUM_WEEKS, YEAR, seed)
    return Dataset(world.frame.lazy(), world.schema, world.static, world.events, promotions=PROMOTIONS), world


def best_possible(world: World, study: Study) -> pl.DataFrame:
    """What the oracle forecasts, at the study's cutoffs."""
    return world.oracle_forecasts(study.levels, TRAINED - 1, NUM_WEEKS - 2)


def private_study(network: dict, loaded: Dataset) -> Study:
    """Trained on three years; judged on the targets of the fourth, from every week in which any of them is ahead."""
    weeks = loaded.frame["ds"].unique().sort()
    return Study(
        name="private",
        loader="lognormal",
        horizon=YEAR,
        train_until=weeks[TRAINED - 1],
        last_cutoff=weeks[NUM_WEEKS - 2],
        short=4,
        peak_share=0.1,
        ramp=2,
        network=network,
    )
