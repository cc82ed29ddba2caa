"""NeuralForecast's TFT, DeepAR and NHITS: trained by `fit`, rolled by `cross_validation(use_fitted=True)`.

In the peer's favour: hour, weekday and series are numbers, not embedded; few series per step, because the windows of
all of them are copied before some are drawn; large batches of windows; no scaling beyond the model's own.
"""

import logging
import os
import time
import warnings

warnings.filterwarnings("ignore")
for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)

import pandas as pd  # noqa: E402
import torch  # noqa: E402
from neuralforecast import NeuralForecast  # noqa: E402
from neuralforecast.losses.pytorch import DistributionLoss, MQLoss  # noqa: E402
from neuralforecast.models import NHITS, TFT, DeepAR  # noqa: E402
from pytorch_lightning.callbacks import Callback  # noqa: E402
from versus import HIDDEN, HISTORY, HORIZON, LEVELS, Gauge, Steps, backtest, options, report  # noqa: E402

SERIES_A_STEP, WINDOWS = 2, {"tft": 256, "deepar": 512, "nhits": 4096}
INFERENCE_WINDOWS = {"tft": 1024, "deepar": 64, "nhits": 4096}
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def make_model(which: str, windows: int, steps: Steps):
    shared = {
        "h": HORIZON,
        "input_size": HISTORY,
        "futr_exog_list": ["hour", "weekday"],
        "stat_exog_list": ["series"],
        "max_steps": 1_000_000,
        "batch_size": SERIES_A_STEP,
        "windows_batch_size": windows,
        "inference_windows_batch_size": INFERENCE_WINDOWS[which],
        "scaler_type": "standard",
        "accelerator": "cpu",
        "callbacks": [steps.callback(Callback)],
        **QUIET,
    }
    if which == "deepar":
        loss = DistributionLoss("StudentT", quantiles=list(LEVELS), return_params=False)
        return DeepAR(lstm_hidden_size=HIDDEN, h_train=HORIZON, loss=loss, **shared)
    loss = MQLoss(quantiles=list(LEVELS))
    if which == "tft":
        return TFT(hidden_size=HIDDEN, loss=loss, **shared)
    return NHITS(mlp_units=[[HIDDEN, HIDDEN]] * 3, loss=loss, **shared)


def main() -> None:
    args = options()
    frame = pd.read_parquet(args.path)
    static = pd.DataFrame({"unique_id": frame["unique_id"].unique()})
    static["series"] = range(len(static))
    windows = args.windows or WINDOWS[args.model]

    with Gauge(os.getpid()) as gauge:
        steps = Steps(time.perf_counter(), args.train_seconds, torch.set_num_threads)
        forecaster = NeuralForecast([make_model(args.model, windows, steps)], freq="h")
        forecaster.fit(frame, static_df=static)
    figures = steps.figures(windows)

    def roll(cutoffs: int) -> int:
        kept = HISTORY + HORIZON + cutoffs - 1  # all that these forecasts depend on
        tail = frame.groupby("unique_id", sort=False, observed=True).tail(kept)
        rolled = {"n_windows": cutoffs, "step_size": 1, "refit": False, "use_fitted": True}
        forecasts = forecaster.cross_validation(tail, static_df=static, **rolled)
        assert len(forecasts) == cutoffs * len(static) * HORIZON, forecasts.shape
        return len(forecasts) // HORIZON

    rolled = backtest(roll, args.cutoffs, args.backtest_seconds)
    settings = {
        "series_a_step": SERIES_A_STEP,
        "windows_a_step": windows,
        "windows_a_step_of_inference": INFERENCE_WINDOWS[args.model],
    }
    packages = ("neuralforecast", "pytorch-lightning", "torch", "numpy", "pandas")
    report(packages, settings, figures, {"peak_mb": gauge.peak_mb}, rolled)


main()
