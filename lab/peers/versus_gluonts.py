"""GluonTS's TFT and DeepAR: `train(cache_data=True)`, then `predict` over test instances made by its splitter.

In the peer's favour: entries are numpy arrays from the start, transformed once and cached; many windows are drawn from
an entry when it is visited; DeepAR has three lags rather than its forty; test instances hold only the history in use.
"""

import logging
import os
import time
import warnings

warnings.filterwarnings("ignore")
for name in ("pytorch_lightning", "lightning.pytorch", "lightning.fabric", "gluonts"):
    logging.getLogger(name).setLevel(logging.ERROR)

import lightning.pytorch as pl  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from gluonts.dataset.split import OffsetSplitter  # noqa: E402
from gluonts.time_feature import day_of_week, hour_of_day  # noqa: E402
from gluonts.torch.model.deepar import DeepAREstimator  # noqa: E402
from gluonts.torch.model.tft import TemporalFusionTransformerEstimator  # noqa: E402
from gluonts.transform import ExpectedNumInstanceSampler  # noqa: E402
from versus import HIDDEN, HISTORY, HORIZON, LEVELS, Gauge, Steps, backtest, options, report  # noqa: E402

BATCH, LAGS, DRAWN = 256, [1, 24, 168], 16
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class NoCheckpoint(pl.Callback):
    """`train` adds a checkpoint of its own, which Lightning rejects together with enable_checkpointing=False."""

    def __init__(self, **_: object):
        self.best_model_path = ""


def entries(frame: pd.DataFrame) -> list[dict]:
    start = pd.Period(frame["ds"].iloc[0], freq="h")
    groups = frame.groupby("unique_id", sort=False, observed=True)["y"]
    return [
        {"start": start, "target": y.to_numpy(), "feat_static_cat": np.array([i]), "item_id": name}
        for i, (name, y) in enumerate(groups)
    ]


def make_estimator(which: str, num_series: int, windows: int, callback: object):
    shared = {
        "freq": "h",
        "prediction_length": HORIZON,
        "context_length": HISTORY,
        "time_features": [hour_of_day, day_of_week],
        "batch_size": windows,
        "num_batches_per_epoch": 1_000_000,
        "trainer_kwargs": {"accelerator": "cpu", "max_epochs": 1, "callbacks": [callback], **QUIET},
        "train_sampler": ExpectedNumInstanceSampler(num_instances=DRAWN, min_past=HISTORY, min_future=HORIZON),
    }
    if which == "tft":
        sizes = {"hidden_dim": HIDDEN, "variable_dim": HIDDEN, "static_cardinalities": [num_series]}
        return TemporalFusionTransformerEstimator(quantiles=list(LEVELS), **sizes, **shared)
    static = {"num_feat_static_cat": 1, "cardinality": [num_series]}
    return DeepAREstimator(hidden_size=HIDDEN, lags_seq=LAGS, **static, **shared)


def main() -> None:
    args = options()
    pl.callbacks.ModelCheckpoint = NoCheckpoint
    frame = pd.read_parquet(args.path, read_dictionary=["unique_id"])
    windows = args.windows or BATCH

    with Gauge(os.getpid()) as gauge:
        steps = Steps(time.perf_counter(), args.train_seconds, torch.set_num_threads)
        series = entries(frame)
        estimator = make_estimator(args.model, len(series), windows, steps.callback(pl.Callback))
        predictor = estimator.train(series, cache_data=True)
    figures = steps.figures(windows)
    past = HISTORY + (max(LAGS) if args.model == "deepar" else 0)

    def roll(cutoffs: int) -> int:
        split = OffsetSplitter(offset=-(HORIZON + cutoffs - 1))
        rolled = {"prediction_length": HORIZON, "windows": cutoffs, "distance": 1, "max_history": past}
        test = split.split(series)[1].generate_instances(**rolled)
        made = 0
        for forecast in predictor.predict(test.input):
            values = np.stack([forecast.quantile(level) for level in LEVELS])
            assert values.shape == (len(LEVELS), HORIZON), values.shape
            made += 1
        assert made == cutoffs * len(series), made
        return made

    rolled = backtest(roll, args.cutoffs, args.backtest_seconds)
    settings = {"windows_a_step": windows, "windows_drawn_at_a_time": DRAWN}
    if args.model == "deepar":
        settings |= {"lags": LAGS, "samples": 100}
    packages = ("gluonts", "lightning", "torch", "numpy", "pandas")
    report(packages, settings, figures, {"peak_mb": gauge.peak_mb}, rolled)


main()
