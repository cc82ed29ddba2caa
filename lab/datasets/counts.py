"""A simulated retailer of slow sellers: small whole numbers with zeros, promotions and holidays known ahead."""

from pathlib import Path

from lab.datasets.dataset import Dataset
from lab.datasets.lognormal import YEAR, dataset_of
from mqcast.simulate import count_world


def load(folder: str | Path | None = None, num_items: int = 500, num_weeks: int = 3 * YEAR, seed: int = 0) -> Dataset:
    """Three years of sales, by default. It is simulated: `folder` is not read."""
    return dataset_of(count_world(num_items, num_weeks, YEAR // 4, seed))
