"""Frames that tests share."""

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Training first: its tests are long, and no worker should be left alone with them at the end."""
    items.sort(key=lambda item: "train" not in item.path.parts)


@pytest.fixture
def sales() -> pl.DataFrame:
    """Two shops, six weeks, a promotion known two weeks ahead."""
    weeks = pl.datetime_range(pl.datetime(2024, 1, 7), pl.datetime(2024, 2, 25), "1w", eager=True)
    shops = []
    for shop, first in (("a", 10.0), ("b", 100.0)):
        y = [first + i for i in range(6)] + [None, None]
        promo = [i % 3 == 0 for i in range(8)]
        price = [9.5 - i / 10 for i in range(8)]
        shops.append(pl.DataFrame({"unique_id": [shop] * 8, "ds": weeks, "y": y, "promo": promo, "price": price}))
    return pl.concat(shops)


@pytest.fixture
def same_arrays():
    """Compares two panels bit by bit."""

    def compare(one, other) -> None:
        assert one.schema == other.schema
        assert one.vocabularies == other.vocabularies
        assert one.arrays.keys() == other.arrays.keys()
        for name, array in one.arrays.items():
            assert array.dtype == other.arrays[name].dtype, name
            assert array.tobytes() == np.ascontiguousarray(other.arrays[name]).tobytes(), name
        assert one.fingerprint == other.fingerprint

    return compare
