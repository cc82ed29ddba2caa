"""A simulated retailer with promotions and holidays known a year ahead, and the exact distribution of its demand."""

from pathlib import Path

from lab.datasets.dataset import Dataset
from mqcast.simulate import World, lognormal_world
from mqcast.simulate.world import PROMOTIONS

YEAR = 52


def load(folder: str | Path | None = None, num_items: int = 2000, num_weeks: int = 4 * YEAR, seed: int = 0) -> Dataset:
    """Four years of sales, by default. It is simulated: `folder` is not read."""
    return dataset_of(lognormal_world(num_items, num_weeks, YEAR, seed))


def dataset_of(world: World) -> Dataset:
    """A simulated world with its oracle."""
    weeks = world.frame["ds"].unique().sort()

    def oracle(levels, first, last):
        return world.oracle_forecasts(levels, int(weeks.search_sorted(first)), int(weeks.search_sorted(last)))

    return Dataset(world.frame.lazy(), world.schema, world.static, world.events, PROMOTIONS, oracle)
