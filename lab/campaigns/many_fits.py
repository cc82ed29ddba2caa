"""No memory grows over many fits in one process, and no temporary folder or thread is left behind.

A Forecaster is fitted again and again, as a long-lived service would: the same one or a new one, some fits fail, some
are followed by a backtest. Memory after each later fit is compared with that after the tenth.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import polars as pl

from lab.campaigns.campaign import Campaign
from mqcast import Forecaster
from mqcast.errors import TrainingError

MOST_GROWTH = 20  # MiB
NUM_BEFORE = 10  # fits that warm up
SMALL = {
    "window": {"history": 12, "num_fcts": 8, "batch_size": 8},
    "model": {"hidden_dim": 8, "encoder_dilations": (1, 2, 4)},
}


def sales(rng: np.random.Generator) -> pl.DataFrame:
    num_weeks = 60
    weeks = pl.datetime_range(pl.datetime(2022, 1, 2), interval="1w", end=pl.datetime(2030, 1, 1), eager=True)[
        :num_weeks
    ]
    parts = [pl.DataFrame({"ds": weeks, "y": rng.poisson(5, num_weeks).astype(float)}) for _ in range(4)]
    return pl.concat([part.select(pl.lit(f"item {i}").alias("unique_id"), "ds", "y") for i, part in enumerate(parts)])


def resident() -> float:
    """Memory of this process, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def forecaster(rng: np.random.Generator) -> Forecaster:
    model = str(rng.choice(["mqt", "mqt-nods", "mqcnn", "mqrnn"]))
    return Forecaster(model, 4, config=SMALL, max_steps=2, seed=int(rng.integers(100)), verbose=False)


def one_fit(made: Forecaster, frame: pl.DataFrame, rng: np.random.Generator) -> str:
    kind = str(rng.choice(["fit", "fit and predict", "backtest", "failing fit"], p=[0.4, 0.3, 0.2, 0.1]))
    if kind == "backtest":
        made.backtest(frame)
    elif kind == "failing fit":
        with contextlib.suppress(TrainingError):
            made.set_params(config=SMALL | {"train": {"learning_rate": 1e30}}, max_steps=20).fit(frame)
        made.set_params(config=SMALL, max_steps=2)
    else:
        made.fit(frame)
    if kind == "fit and predict":
        made.predict()
    return kind


def main() -> None:
    campaign = Campaign("No memory grows over many fits; no temporary folder or thread is left.", 200)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="many-fits-") as place:
        tempfile.tempdir = place
        made, threads, after_tenth, most = None, threading.active_count(), 0.0, 0.0
        for number, rng in campaign.trials():
            if made is None or rng.random() < 0.3:
                made = forecaster(rng)
            kind = one_fit(made, sales(rng), rng)
            folders, allowed = len(list(Path(place).glob("mqcast-*"))), 2  # a fit's, and a backtest's
            campaign.check(folders <= allowed, "temporary folders", f"trial {number}, {kind}: {folders} folders")
            left = threading.active_count() - threads
            campaign.check(left == 0, "threads", f"trial {number}, {kind}: {left} more threads")
            gc.collect()
            memory = resident()
            after_tenth = memory if number < NUM_BEFORE else after_tenth
            most = max(most, memory - after_tenth)
            if number >= NUM_BEFORE:
                grown = memory - after_tenth
                campaign.check(grown <= MOST_GROWTH, "memory", f"trial {number}, {kind}: {grown:.1f} MiB more")
        made = None
        left = len(list(Path(place).glob("mqcast-*")))
        campaign.check(left == 0, "temporary folders in the end", f"{left} folders")
        tempfile.tempdir = None
    campaign.finish(most_growth_mib=round(most, 1))


if __name__ == "__main__":
    main()
