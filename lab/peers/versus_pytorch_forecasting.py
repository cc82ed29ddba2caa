"""PyTorch-Forecasting's TFT: `TimeSeriesDataSet` with numba, `Trainer.fit`, `predict` over a set of the last windows.

In the peer's favour: no target normaliser, which would be fitted window by window, no logging, no loader processes
that compete with the training threads.
"""

import logging
import os
import time
import warnings

warnings.filterwarnings("ignore")
for name in ("pytorch_lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)

import lightning.pytorch as pl  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet  # noqa: E402
from pytorch_forecasting.metrics import QuantileLoss  # noqa: E402
from versus import HIDDEN, HISTORY, HORIZON, LEVELS, Gauge, Steps, backtest, options, report  # noqa: E402

BATCH, INFERENCE_BATCH = 256, 1024
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def prepared(frame: pd.DataFrame) -> pd.DataFrame:
    levels = {name: frame[name].astype("category").cat.rename_categories(str) for name in ("hour", "weekday")}
    step = (frame["ds"] - frame["ds"].min()) // pd.Timedelta(hours=1)
    return frame.assign(step=step, **levels).drop(columns="ds")


def build(frame: pd.DataFrame) -> TimeSeriesDataSet:
    return TimeSeriesDataSet(
        prepared(frame),
        time_idx="step",
        target="y",
        group_ids=["unique_id"],
        max_encoder_length=HISTORY,
        max_prediction_length=HORIZON,
        static_categoricals=["unique_id"],
        time_varying_known_categoricals=["hour", "weekday"],
        time_varying_unknown_reals=["y"],
        target_normalizer=None,
    )


def main() -> None:
    args = options()
    frame = pd.read_parquet(args.path, read_dictionary=["unique_id"])
    num_series = frame["unique_id"].nunique()
    windows_a_step = args.windows or BATCH

    with Gauge(os.getpid()) as gauge:
        steps = Steps(time.perf_counter(), args.train_seconds, torch.set_num_threads)
        dataset = build(frame)
        sizes = {"hidden_size": HIDDEN, "hidden_continuous_size": HIDDEN, "attention_head_size": 4}
        loss = QuantileLoss(list(LEVELS))
        model = TemporalFusionTransformer.from_dataset(dataset, **sizes, output_size=len(LEVELS), loss=loss)
        trainer = pl.Trainer(accelerator="cpu", max_epochs=-1, callbacks=[steps.callback(pl.Callback)], **QUIET)
        trainer.fit(model, dataset.to_dataloader(train=True, batch_size=windows_a_step, num_workers=0))
    figures = steps.figures(windows_a_step)

    def roll(cutoffs: int) -> int:
        kept = HISTORY + HORIZON + cutoffs - 1
        tail = frame.groupby("unique_id", sort=False, observed=True).tail(kept)
        windows = TimeSeriesDataSet.from_dataset(dataset, prepared(tail), stop_randomization=True)
        loader = windows.to_dataloader(train=False, batch_size=INFERENCE_BATCH, num_workers=0)
        trainer_kwargs = {"accelerator": "cpu", **QUIET}
        forecasts = model.predict(loader, mode="quantiles", trainer_kwargs=trainer_kwargs)
        assert tuple(forecasts.shape) == (cutoffs * num_series, HORIZON, len(LEVELS)), forecasts.shape
        return len(forecasts)

    rolled = backtest(roll, args.cutoffs, args.backtest_seconds)
    settings = {"windows_a_step": windows_a_step, "windows_a_step_of_inference": INFERENCE_BATCH}
    packages = ("pytorch-forecasting", "lightning", "torch", "numpy", "pandas")
    report(packages, settings, figures, {"peak_mb": gauge.peak_mb}, rolled)


main()
