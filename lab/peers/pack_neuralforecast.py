"""NeuralForecast: `TimeSeriesDataset.from_df`, from a pandas or (also documented, and faster) a polars frame.

In the peer's favour: the categories are integers already, so the vocabulary that `NeuralForecast.fit` would build for
them, its check for missing values and its scaling are not timed. The first batch is what a
model's `training_step` does before its network runs: 32 series from the loader, 32 windows drawn from them.
"""

import argparse
import logging
import warnings

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

import pandas as pd  # noqa: E402
import polars as pl  # noqa: E402
import pyarrow.parquet  # noqa: E402, F401
import torch  # noqa: E402
from clock import BATCH, HISTORY, HORIZON, IDS, Clock  # noqa: E402
from neuralforecast.models import NHITS  # noqa: E402
from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset  # noqa: E402


def static_frame(frame):
    """One row per series with its number, the static feature."""
    if isinstance(frame, pl.DataFrame):
        return frame.select(pl.col("unique_id").unique(maintain_order=True)).with_row_index("series")
    ids = frame["unique_id"].unique()
    return pd.DataFrame({"unique_id": ids, "series": range(len(ids))})


def draw(model, loader):
    batch = next(iter(loader))
    windows, static, static_cols, usable, weight, cols = model._create_windows(batch, step="train")
    chosen = torch.randperm(len(usable))[:BATCH]
    return model._sample_windows(windows, static, static_cols, cols, chosen, usable, weight)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--route", choices=("pandas", "polars"), default="pandas")
    args = parser.parse_args()
    exog = ["hour", "weekday"]
    model = NHITS(h=HORIZON, input_size=HISTORY, futr_exog_list=exog, stat_exog_list=["series"], max_steps=1)

    clock = Clock()
    frame = pl.read_parquet(args.path) if args.route == "polars" else pd.read_parquet(args.path, read_dictionary=IDS)
    clock.mark("read")
    dataset, *_ = TimeSeriesDataset.from_df(frame, static_df=static_frame(frame))
    clock.mark("build")
    batch = draw(model, TimeSeriesDataModule(dataset, batch_size=BATCH).train_dataloader())
    clock.mark("first_batch")

    assert tuple(batch["temporal"].shape[:3]) == (BATCH, HISTORY + HORIZON, 4), batch["temporal"].shape
    assert tuple(batch["static"].shape) == (BATCH, 1), batch["static"].shape
    clock.report(("neuralforecast", "torch", "numpy", "pandas", "polars", "pyarrow"), series=len(dataset))


main()
