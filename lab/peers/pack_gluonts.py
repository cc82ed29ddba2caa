"""GluonTS: `PandasDataset.from_long_dataframe`, then the transformation of its TFT estimator, cached.

`PandasDataset` is lazy: it makes an entry each time one is requested. The build stage ends with what
`estimator.train(..., cache_data=True)` holds after its first pass: every transformed entry in `Cached`. The time of
grouping alone (the lazy state) is in `detail`. In the peer's favour: `assume_sorted` and `unchecked` are set, no time
features are computed, and the two known categories go in as dynamic reals, because `PandasDataset` takes no dynamic
categories.
"""

import argparse
import time
import warnings

warnings.filterwarnings("ignore")

import pandas as pd  # noqa: E402
import pyarrow.parquet  # noqa: E402, F401
from clock import BATCH, HISTORY, HORIZON, IDS, Clock, status_mb  # noqa: E402
from gluonts.dataset.pandas import PandasDataset  # noqa: E402
from gluonts.itertools import Cached  # noqa: E402
from gluonts.torch.model.tft import TemporalFusionTransformerEstimator  # noqa: E402


def group(frame: pd.DataFrame) -> PandasDataset:
    ids = frame["unique_id"].unique()
    static = pd.DataFrame({"series": pd.Categorical(ids)}, index=ids)
    known = ["hour", "weekday"]
    options = {"target": "y", "feat_dynamic_real": known, "freq": "h", "assume_sorted": True, "unchecked": True}
    return PandasDataset.from_long_dataframe(frame, "unique_id", timestamp="ds", static_features=static, **options)


def make_estimator(series: int) -> TemporalFusionTransformerEstimator:
    return TemporalFusionTransformerEstimator(
        freq="h",
        prediction_length=HORIZON,
        context_length=HISTORY,
        dynamic_dims=[1, 1],
        static_cardinalities=[series],
        time_features=[],
        batch_size=BATCH,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    args = parser.parse_args()

    clock = Clock()
    frame = pd.read_parquet(args.path, read_dictionary=IDS)
    clock.mark("read")
    started = time.perf_counter()
    lazy = group(frame)
    grouped, grouped_peak = time.perf_counter() - started, status_mb("VmHWM")
    estimator = make_estimator(len(lazy))
    dataset = Cached(estimator.create_transformation().apply(lazy, is_train=True))
    entries = sum(1 for _ in dataset)
    clock.mark("build")
    batch = next(iter(estimator.create_training_data_loader(dataset, None)))
    clock.mark("first_batch")

    assert tuple(batch["past_target"].shape) == (BATCH, HISTORY), batch["past_target"].shape
    assert tuple(batch["future_target"].shape) == (BATCH, HORIZON), batch["future_target"].shape
    detail = {"series": entries, "group_s": round(grouped, 4), "peak_rss_grouped_mb": round(grouped_peak, 1)}
    clock.report(("gluonts", "torch", "numpy", "pandas", "pyarrow"), **detail)


main()
