"""Nothing that happens after a date changes a forecast made at it, not even by one bit.

Each retailer's forecasts are made once from its data and again after changes to later rows: values, signs, closings,
missing values, new categories, new series, another end of the panel (tests/look_ahead_samples.py has them all). Half
of the trials are backtests, by frame, panel and command, with and without refits; half are revisions by one network.

    python -m lab campaign look_ahead [--count 1000] [--seed 0] [--minutes M] [--record]
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
import torch

from lab.campaigns.campaign import HERE, Campaign

sys.path.insert(0, str(HERE.parents[1] / "tests"))

from look_ahead_samples import CHANGES, MODELS, Backtest, Sales, fitted, sales

from mqcast.errors import MqcastWarning

TRIALS_A_RETAILER = 10  # five backtests, then five revisions
INTERFACES, REFITS = ("frame", "panel", "command"), (None, 1, 2)


class Retailer:
    """One retailer's data, and its forecasts before anything changes."""

    def __init__(self, number: int, seed: int, folder: Path):
        self.rng, self.folder = np.random.default_rng([seed, number, 1]), folder
        self.model, self.data = MODELS[number % len(MODELS)], sales(self.rng, is_rich=number % 4 != 3)
        interface, refit = INTERFACES[number // 6 % 3], REFITS[number // 2 % 3]
        self.backtest = Backtest(self.model, interface, refit, int(self.rng.integers(3)), int(self.rng.integers(4)))

    def backtested(self, data: Sales) -> pl.DataFrame:
        return self.backtest(data, self.folder)

    def same_backtest(self, changed: Sales) -> bool:
        return self.backtested(changed).equals(self.backtested_before())

    @lru_cache(maxsize=1)  # noqa: B019
    def backtested_before(self) -> pl.DataFrame:
        return self._some(self.backtested(self.data))

    @lru_cache(maxsize=1)  # noqa: B019
    def revise(self) -> Callable[[Sales], pl.DataFrame]:
        network, before, beyond = fitted(self.model, self.data), int(self.rng.integers(9)), int(self.rng.integers(5))
        return lambda data: network(data, before, beyond)

    @lru_cache(maxsize=1)  # noqa: B019
    def revised_before(self) -> pl.DataFrame:
        return self._some(self.revise()(self.data))

    def same_revisions(self, changed: Sales) -> bool:
        return self.revise()(changed).equals(self.revised_before())

    def _some(self, forecasts: pl.DataFrame) -> pl.DataFrame:
        assert forecasts.height > 0
        return forecasts


def main() -> None:
    campaign = Campaign("Nothing that happens after a date changes a forecast made at it", 1000)
    warnings.simplefilter("ignore", MqcastWarning)
    torch.set_num_threads(1)
    retailer, last = None, -1
    with tempfile.TemporaryDirectory(prefix="look-ahead-") as folder:
        for number, rng in campaign.trials():
            if number // TRIALS_A_RETAILER != last:
                last = number // TRIALS_A_RETAILER
                retailer = Retailer(last, campaign.options.seed, Path(folder))
            assert retailer is not None
            name = str(rng.choice(list(CHANGES)))
            changed = CHANGES[name](rng, retailer.data)
            is_backtest = number % TRIALS_A_RETAILER < TRIALS_A_RETAILER // 2
            way = f"backtest, {retailer.backtest.interface}" if is_backtest else "revisions"
            holds = (retailer.same_backtest if is_backtest else retailer.same_revisions)(changed)
            campaign.check(holds, f"{way}, {retailer.model}", f"trial {number}: {name}")
    campaign.finish(changes=list(CHANGES))


if __name__ == "__main__":
    main()
