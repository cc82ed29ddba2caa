"""Darts' TFT: `fit`, then `historical_forecasts` without retraining, quantiles read from the network's own output.

Darts takes only quantiles that are symmetric about the median, so P10 is added to P50 and P90. In the peer's favour:
series and covariates are made once, in float32; no samples are drawn.
"""

import logging
import os
import time
import warnings

warnings.filterwarnings("ignore")
for name in ("pytorch_lightning", "lightning.pytorch", "lightning_fabric", "darts"):
    logging.getLogger(name).setLevel(logging.ERROR)

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from darts import TimeSeries  # noqa: E402
from darts.models import TFTModel  # noqa: E402
from darts.utils.likelihood_models.torch import QuantileRegression  # noqa: E402
from pytorch_lightning.callbacks import Callback  # noqa: E402
from versus import HIDDEN, HISTORY, HORIZON, LEVELS, Gauge, Steps, backtest, options, report  # noqa: E402

BATCH, INFERENCE_BATCH, QUANTILES = 256, 1024, [0.1, *LEVELS]
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def as_series(frame: pd.DataFrame) -> tuple[list[TimeSeries], list[TimeSeries]]:
    """The targets, with the series' number as a static covariate, and one hour and weekday that they all share."""
    targets, known = [], None
    for number, (_, rows) in enumerate(frame.groupby("unique_id", sort=False, observed=True)):
        times = pd.DatetimeIndex(rows["ds"], freq="h")
        static = pd.DataFrame({"series": [float(number)]})
        y = rows["y"].to_numpy(np.float32)
        targets.append(TimeSeries.from_times_and_values(times, y, static_covariates=static))
        if known is None:
            columns = rows[["hour", "weekday"]].to_numpy(np.float32)
            known = TimeSeries.from_times_and_values(times, columns, columns=["hour", "weekday"])
    return [series.astype(np.float32) for series in targets], [known] * len(targets)


def main() -> None:
    args = options()
    frame = pd.read_parquet(args.path, read_dictionary=["unique_id"])
    windows = args.windows or BATCH

    with Gauge(os.getpid()) as gauge:
        steps = Steps(time.perf_counter(), args.train_seconds, torch.set_num_threads)
        targets, known = as_series(frame)
        model = TFTModel(
            input_chunk_length=HISTORY,
            output_chunk_length=HORIZON,
            hidden_size=HIDDEN,
            hidden_continuous_size=HIDDEN,
            batch_size=windows,
            n_epochs=1_000_000,
            likelihood=QuantileRegression(QUANTILES),
            pl_trainer_kwargs={"accelerator": "cpu", "callbacks": [steps.callback(Callback)], **QUIET},
        )
        model.fit(targets, future_covariates=known, verbose=False)
    figures = steps.figures(windows)

    def roll(cutoffs: int) -> int:
        tails = [series[-(HISTORY + HORIZON + cutoffs - 1) :] for series in targets]
        rolled = {"forecast_horizon": HORIZON, "retrain": False, "last_points_only": False, "overlap_end": False}
        rolled |= {"predict_likelihood_parameters": True, "predict_kwargs": {"batch_size": INFERENCE_BATCH}}
        forecasts = model.historical_forecasts(
            tails, future_covariates=known, verbose=False, show_warnings=False, **rolled
        )
        assert [len(each) for each in forecasts] == [cutoffs] * len(targets), [len(each) for each in forecasts][:3]
        assert forecasts[0][0].values().shape == (HORIZON, len(QUANTILES)), forecasts[0][0].values().shape
        return sum(len(each) for each in forecasts)

    rolled = backtest(roll, args.cutoffs, args.backtest_seconds)
    settings = {
        "windows_a_step": windows,
        "windows_a_step_of_inference": INFERENCE_BATCH,
        "quantiles": QUANTILES,
    }
    packages = ("darts", "pytorch-lightning", "torch", "numpy", "pandas")
    report(packages, settings, figures, {"peak_mb": gauge.peak_mb}, rolled)


main()
