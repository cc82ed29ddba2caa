"""NeuralForecast's TFT or DeepAR on a task's rows: trained once for a given time, many cutoffs forecast.

    python neuralforecast_real.py FOLDER --model tft

FOLDER is as in `lightgbm_lags.py`. Steps become days, since the calendar is among the known columns. Days that are not
observed are filled with the last value and masked in the loss. One thread; as many steps as the time allows, estimated
from a short trial, with a learning rate that decays over them. With a patience in spec.json the rate is constant, the
steps after `train_until` are for validation, and training ends after so many validations without a lower loss; the last
weights count, as the library keeps no others. Prints a line of JSON.
"""

import argparse
import json
import logging
import time
import warnings
from importlib.metadata import version
from pathlib import Path

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from neuralforecast import NeuralForecast  # noqa: E402
from neuralforecast.losses.pytorch import DistributionLoss, MQLoss  # noqa: E402
from neuralforecast.models import TFT, DeepAR  # noqa: E402

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
FIRST = pd.Timestamp("2000-01-01")
TRIALS = 5, 25  # steps, of which the difference is timed
VALIDATE_EVERY = 100  # steps


def read(folder: Path) -> tuple[dict, pd.DataFrame, pd.DataFrame]:
    """The rows on a grid without gaps, and the attributes as numbers."""
    spec = json.loads((folder / "spec.json").read_text())
    rows = pd.read_parquet(folder / "rows.parquet")
    ends = rows.groupby("series")["step"].agg(["min", "max"])
    grid = pd.concat([pd.DataFrame({"series": s, "step": np.arange(a, b + 1)}) for s, a, b in ends.itertuples()])
    rows = grid.merge(rows, on=["series", "step"], how="left")
    rows["available_mask"] = rows["y"].notna().astype(int)
    by_series = rows.groupby("series")
    rows[spec["known"]] = by_series[spec["known"]].ffill().fillna(0)
    rows["y"] = by_series["y"].ffill().fillna(0)
    if spec["log"]:
        rows["y"] = np.log1p(rows["y"])
    rows["ds"] = FIRST + pd.to_timedelta(rows["step"], unit="D")
    rows = rows.rename(columns={"series": "unique_id"})
    static = pd.read_parquet(folder / "static.parquet").add_prefix("static_")
    static.insert(0, "unique_id", np.arange(len(static)))
    return spec, rows, static


def stops_early(spec: dict) -> bool:
    return spec.get("patience") is not None and "valid_until" in spec


def make_model(name: str, spec: dict, static: pd.DataFrame, steps: int) -> TFT | DeepAR:
    shared = {
        "h": spec["horizon"],
        "input_size": spec["history"],
        "futr_exog_list": spec["known"],
        "stat_exog_list": [column for column in static if column != "unique_id"],
        "max_steps": steps,
        "learning_rate": spec["rate"],
        "num_lr_decays": -1 if stops_early(spec) else 4,
        "scaler_type": "standard",
        "random_seed": spec["seed"] + 1,
        "start_padding_enabled": True,
        "accelerator": "cpu",
        "windows_batch_size": 128,
        "inference_windows_batch_size": 1024,
        **QUIET,
    }
    if stops_early(spec):
        shared |= {"early_stop_patience_steps": spec["patience"], "val_check_steps": VALIDATE_EVERY}
    if name == "tft":
        own = {"hidden_size": 32, "n_head": 4} | shared | spec.get("network", {})
        return TFT(loss=MQLoss(quantiles=spec["levels"]), alias="model", **own)
    loss = DistributionLoss("StudentT", quantiles=spec["levels"], return_params=False)
    return DeepAR(lstm_hidden_size=64, loss=loss, trajectory_samples=100, alias="model", **shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=("tft", "deepar"), default="tft")
    args = parser.parse_args()
    torch.set_num_threads(1)
    spec, rows, static = read(args.folder)
    keys = ["unique_id", "ds", "y", "available_mask", *spec["known"]]
    until = spec["valid_until"] if stops_early(spec) else spec["train_until"]
    known = rows.loc[rows["step"] <= until, keys]

    def attributes(of: pd.DataFrame) -> pd.DataFrame:
        """Of these series alone: the library goes by their order, not by their names."""
        return static[static["unique_id"].isin(of["unique_id"])]

    def fitted(steps: int) -> tuple[NeuralForecast, float, float]:
        started = time.perf_counter(), time.process_time()
        peer = NeuralForecast([make_model(args.model, spec, static, steps)], freq="D")
        peer.fit(known, static_df=attributes(known), val_size=until - spec["train_until"])
        return peer, time.perf_counter() - started[0], time.process_time() - started[1]

    less, more = (fitted(steps)[2] for steps in TRIALS)
    second = (more - less) / (TRIALS[1] - TRIALS[0])
    steps = max(1, int(60 * spec["minutes"] / second))
    peer, *trained = fitted(steps)
    facts = {"wall_seconds": trained[0], "cpu_seconds": trained[1], "rate": peer.models[0].learning_rate}
    facts |= {"steps": int(peer.models[0].trainer.global_step), "most_steps": steps}
    facts |= {"validations": [[int(step), float(loss)] for step, loss in peer.models[0].valid_trajectories]}
    num_series, horizon = int(rows["unique_id"].max()) + 1, spec["horizon"]
    out = np.full((len(spec["cutoffs"]), num_series, horizon, len(spec["levels"])), np.nan, np.float32)
    for k, cutoff in enumerate(spec["cutoffs"]):
        near = rows[(rows["step"] > cutoff - spec["history"]) & (rows["step"] <= cutoff + horizon)]
        near = near[near["unique_id"] % spec["every"] == 0]
        past, ahead = near.loc[near["step"] <= cutoff, keys], near[near["step"] > cutoff]
        ends = past.groupby("unique_id")["ds"].max()
        alive = ends[ends == FIRST + pd.Timedelta(days=cutoff)].index
        ahead = ahead[ahead["unique_id"].isin(alive)]
        whole = ahead.groupby("unique_id").size()
        alive = whole[whole == horizon].index
        past, ahead = past[past["unique_id"].isin(alive)], ahead[ahead["unique_id"].isin(alive)]
        predicted = peer.predict(past, static_df=attributes(past), futr_df=ahead[["unique_id", "ds", *spec["known"]]])
        columns = [column for column in predicted if column not in ("unique_id", "ds", "model")][-len(spec["levels"]) :]
        values = np.sort(predicted[columns].to_numpy(), axis=1)
        values = np.maximum(np.expm1(values), 0) if spec["log"] else values
        out[k, alive.to_numpy()] = values.reshape(len(alive), horizon, -1)
    np.save(args.folder / "forecasts.npy", out)
    versions = {name: version(name) for name in ("neuralforecast", "torch")}
    print(json.dumps(facts | {"versions": versions}))


main()
