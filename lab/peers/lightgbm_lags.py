"""LightGBM with lags, as practitioners use it: one model per level for all series, cutoffs and horizons.

    python lightgbm_lags.py FOLDER

FOLDER holds rows.parquet (series, step, y, known columns), static.parquet, spec.json; forecasts.npy is written there:
(cutoffs, series, horizon, levels), for each `every`-th series. Features: the plan of the target date, attributes,
recent means, the same day in recent seasons and a year before, all up to the cutoff. Prints a line of JSON.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import lightgbm as lgb
import numpy as np
import pyarrow.parquet as pq

NUM_ROWS, CHUNK, MOST_ROUNDS = 400_000, 400_000, 1000
LEAST = 24  # steps before the first cutoff that is trained on, unless a season is shorter
PARAMETERS = {
    "learning_rate": 0.08,
    "num_leaves": 63,
    "min_data_in_leaf": 100,
    "feature_fraction": 0.8,
    "verbosity": -1,
}


class Panel:
    """Dense arrays of series and steps, and features of any (series, cutoff, horizon)."""

    def __init__(self, folder: Path):
        self.spec = json.loads((folder / "spec.json").read_text())
        rows = pq.read_table(folder / "rows.parquet")
        series, step = (rows[name].to_numpy() for name in ("series", "step"))
        shape = (int(series.max()) + 1, int(step.max()) + 1)
        y = np.full(shape, np.nan)
        y[series, step] = rows["y"].to_numpy()
        self.log = bool(np.nanmin(y) >= 0)
        self.y = np.log1p(y) if self.log else y
        self.known = np.full((*shape, len(self.spec["known"])), np.nan, np.float32)
        for i, name in enumerate(self.spec["known"]):
            self.known[series, step, i] = rows[name].to_numpy()
        table = pq.read_table(folder / "static.parquet")
        self.static = np.stack([table[name].to_numpy() for name in table.column_names], axis=1).astype(np.float32)
        self.seen = np.pad(np.cumsum(~np.isnan(self.y), axis=1), ((0, 0), (1, 0)))
        self.sums = np.pad(np.nancumsum(self.y, axis=1), ((0, 0), (1, 0)))

    def mean(self, i: np.ndarray, t: np.ndarray, length: int) -> np.ndarray:
        """Of the observations in the last steps up to t."""
        first = np.maximum(t + 1 - length, 0)
        count = self.seen[i, t + 1] - self.seen[i, first]
        total = self.sums[i, t + 1] - self.sums[i, first]
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def features(self, i: np.ndarray, t: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows, features), and the level that targets are counted from."""
        season, u = self.spec["season"], t + h
        level = self.mean(i, t, 8 * season)
        level = np.where(np.isnan(level), self.mean(i, t, self.y.shape[1]), level)
        level = np.nan_to_num(level)
        back = -(-h // season) * season
        places = [u - back - season * j for j in range(8)]
        same = np.stack([np.where(p >= 0, self.y[i, np.maximum(p, 0)], np.nan) for p in places], axis=1)
        year = u - (364 if season == 7 else 52 if season == 52 else 7 * season)
        year_ago = np.where((year >= 0) & (year <= t), self.y[i, np.maximum(year, 0)], np.nan)
        with np.errstate(all="ignore"):
            count = (~np.isnan(same)).sum(axis=1)
            means = np.where(count > 0, np.nansum(same, axis=1) / np.maximum(count, 1), np.nan)
        short = [self.mean(i, t, season), self.mean(i, t, 4 * season)]
        lags = np.stack([*same[:, :4].T, means, year_ago, *short], axis=1) - level[:, None]
        parts = (lags, level[:, None], h[:, None], self.known[i, u], self.static[i])
        return np.concatenate(parts, axis=1, dtype=np.float32), level


def draw(panel: Panel, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Training rows: targets up to the end of training, from any cutoff before."""
    spec, first = panel.spec, min(panel.spec["season"], LEAST)
    targets = np.argwhere(~np.isnan(panel.y[:, : spec["train_until"] + 1]))
    targets = targets[targets[:, 1] > first]
    chosen = targets[rng.integers(len(targets), size=min(NUM_ROWS, 20 * len(targets)))]
    h = rng.integers(1, spec["horizon"] + 1, size=len(chosen))
    t = chosen[:, 1] - h
    is_usable = (t >= first) & (panel.seen[chosen[:, 0], np.maximum(t, 0) + 1] > 0)
    return chosen[is_usable, 0], t[is_usable], h[is_usable]


def main() -> None:
    folder = Path(sys.argv[1])
    panel, started = Panel(folder), (time.perf_counter(), time.process_time())
    spec = panel.spec
    rng = np.random.default_rng(spec["seed"])
    i, t, h = draw(panel, rng)
    x, level = panel.features(i, t, h)
    categorical = [x.shape[1] - panel.static.shape[1] + k for k in range(panel.static.shape[1])]
    data = lgb.Dataset(x, panel.y[i, t + h] - level, categorical_feature=categorical, free_raw_data=False)
    models, each = [], 60 * spec["minutes"] / len(spec["levels"])
    for alpha in spec["levels"]:
        begun = time.process_time()

        def in_time(env: lgb.callback.CallbackEnv, begun: float = begun) -> None:
            if time.process_time() - begun > each:
                raise lgb.callback.EarlyStopException(env.iteration, [])

        settings = PARAMETERS | {"objective": "quantile", "alpha": alpha, "seed": spec["seed"], "num_threads": 1}
        models.append(lgb.train(settings, data, num_boost_round=MOST_ROUNDS, callbacks=[in_time]))
    trained = time.perf_counter() - started[0], time.process_time() - started[1]
    out = np.full((len(spec["cutoffs"]), *panel.y.shape[:1], spec["horizon"], len(models)), np.nan, np.float32)
    ahead = np.arange(1, spec["horizon"] + 1)
    for k, cutoff in enumerate(spec["cutoffs"]):
        begun = np.flatnonzero(panel.seen[:, cutoff + 1] > 0)
        begun = begun[begun % spec["every"] == 0]
        steps = ahead[cutoff + ahead < panel.y.shape[1]]
        i, h = np.repeat(begun, len(steps)), np.tile(steps, len(begun))
        for first in range(0, len(i), CHUNK):
            part = slice(first, first + CHUNK)
            x, level = panel.features(i[part], np.full(len(i[part]), cutoff), h[part])
            values = np.sort(np.stack([model.predict(x, num_threads=1) for model in models], axis=1), axis=1)
            values = values + level[:, None]
            out[k, i[part], h[part] - 1] = np.expm1(values) if panel.log else values
    np.save(folder / "forecasts.npy", np.maximum(out, 0) if panel.log else out)
    rounds = [model.num_trees() for model in models]
    facts = {"wall_seconds": trained[0], "cpu_seconds": trained[1], "rounds": rounds, "lightgbm": version("lightgbm")}
    print(json.dumps(facts))


main()
