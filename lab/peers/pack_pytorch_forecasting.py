"""PyTorch-Forecasting: `TimeSeriesDataSet`, with numba installed, as its documentation advises for large data.

The class requires an integer time index and categories that are not numbers: making both is timed, the categories by
renaming the few levels rather than by casting every row to a string. In the peer's favour:
`target_normalizer=None`, so that no scale is fitted.
"""

import argparse
import warnings

warnings.filterwarnings("ignore")

import pandas as pd  # noqa: E402
import pyarrow.parquet  # noqa: E402, F401
from clock import BATCH, HISTORY, HORIZON, IDS, Clock  # noqa: E402
from pytorch_forecasting import TimeSeriesDataSet  # noqa: E402


def build(frame: pd.DataFrame, normalizer: str | None) -> TimeSeriesDataSet:
    known = ["hour", "weekday"]
    levels = {name: frame[name].astype("category").cat.rename_categories(str) for name in known}
    step = (frame["ds"] - frame["ds"].min()) // pd.Timedelta(hours=1)
    return TimeSeriesDataSet(
        frame.assign(step=step, **levels).drop(columns="ds"),
        time_idx="step",
        target="y",
        group_ids=["unique_id"],
        max_encoder_length=HISTORY,
        max_prediction_length=HORIZON,
        static_categoricals=["unique_id"],
        time_varying_known_categoricals=known,
        time_varying_unknown_reals=["y"],
        target_normalizer=normalizer,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--normalizer", choices=("auto",), help="fit a target normaliser too (default: none)")
    args = parser.parse_args()

    clock = Clock()
    frame = pd.read_parquet(args.path, read_dictionary=IDS)
    clock.mark("read")
    dataset = build(frame, args.normalizer)
    clock.mark("build")
    batch, (target, _) = next(iter(dataset.to_dataloader(train=True, batch_size=BATCH)))
    clock.mark("first_batch")

    assert tuple(batch["encoder_cat"].shape) == (BATCH, HISTORY, 3), batch["encoder_cat"].shape
    assert tuple(target.shape) == (BATCH, HORIZON), target.shape
    packages = ("pytorch-forecasting", "torch", "numpy", "pandas", "pyarrow", "numba")
    clock.report(packages, series=frame["unique_id"].nunique(), windows=len(dataset))


main()
