"""NeuralForecast: train a small model once, forecast many cutoffs, write its `cross_validation` frame as it is.

    python neuralforecast_cross_validation.py sales.parquet forecasts.parquet --freq W-SUN --horizon 8 --windows 20

The input has the columns unique_id, ds and y. The last `horizon + (windows - 1) * step` dates of each series are kept
from training; cutoffs lie `step` dates apart. `mqcast.evaluation.converters.from_neuralforecast` reads the output.
"""

import argparse
import json
import logging
import time
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

import pandas as pd  # noqa: E402
from neuralforecast import NeuralForecast  # noqa: E402
from neuralforecast.losses.pytorch import MQLoss  # noqa: E402
from neuralforecast.models import NHITS, TFT  # noqa: E402

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def make_model(args: argparse.Namespace) -> NHITS | TFT:
    shared = {
        "h": args.horizon,
        "input_size": args.history or 2 * args.horizon,
        "loss": MQLoss(quantiles=args.quantiles),
        "max_steps": args.max_steps,
        "scaler_type": "robust",
        "random_seed": args.seed,
        "start_padding_enabled": True,
        "accelerator": "cpu",
        **QUIET,
    }
    if args.model == "tft":
        return TFT(hidden_size=32, n_head=2, windows_batch_size=256, alias="TFT", **shared)
    return NHITS(mlp_units=[[64, 64]] * 3, alias="NHITS", **shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="Parquet: unique_id, ds, y")
    parser.add_argument("output", help="Parquet to write")
    parser.add_argument("--freq", required=True, help="as pandas writes it: D, W-SUN, MS")
    parser.add_argument("--model", choices=("nhits", "tft"), default="nhits")
    parser.add_argument("--horizon", type=int, default=8)
    parser.add_argument("--history", type=int, help="context; twice the horizon if left out")
    parser.add_argument("--windows", type=int, default=10, help="cutoffs a series")
    parser.add_argument("--step", type=int, default=1, help="dates from one cutoff to the next")
    parser.add_argument("--max-steps", type=int, default=200, help="of training")
    parser.add_argument("--quantiles", type=float, nargs="+", default=[0.1, 0.5, 0.9])
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    frame = pd.read_parquet(args.input, columns=["unique_id", "ds", "y"])
    started = time.perf_counter()
    forecasts = NeuralForecast([make_model(args)], freq=args.freq).cross_validation(
        frame, n_windows=args.windows, step_size=args.step
    )
    seconds = time.perf_counter() - started
    forecasts.to_parquet(args.output)
    versions = {name: version(name) for name in ("neuralforecast", "torch", "numpy", "pandas", "pyarrow")}
    print(
        json.dumps(
            {"rows": len(forecasts), "columns": list(forecasts), "seconds": round(seconds, 2), "versions": versions}
        )
    )


main()
