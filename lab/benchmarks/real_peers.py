"""Other libraries' forecasters on leaderboards and studies: the same windows, known values and training time.

    python -m lab peers rossmann_1D --data DATA --out RUNS --peer lightgbm --minutes 5 …
    python -m lab peers frat --data DATA --out RUNS --peer tft --minutes 20

Peers: lightgbm (with lags), tft and deepar (NeuralForecast), convtrans (ours, small). Each but the last runs in an
environment of its own. On a leaderboard a peer is trained from scratch before each window; `python -m lab score` then
takes RUNS/TASK/PEER-SEED. In a study its forecasts are one file for `python -m lab run STUDY … --forecasts PEER=FILE`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import polars as pl

from lab.benchmarks import harness, pack
from lab.experiments.experiment import open_experiment
from lab.experiments.fev_scores import Grid
from lab.experiments.leaderboard import Leaderboard, windows_record
from lab.experiments.study import Study

PINS = {"lightgbm": ("lightgbm==4.7.0", "numpy==2.4.6", "pyarrow==26.0.1"), **pack.PINS}
PEERS = {  # environment, script, arguments
    "lightgbm": ("lightgbm", "lightgbm_lags.py", ()),
    "tft": ("neuralforecast", "neuralforecast_real.py", ("--model", "tft")),
    "deepar": ("neuralforecast", "neuralforecast_real.py", ("--model", "deepar")),
    "convtrans": (None, "convtrans.py", ()),
}


def codes(column: pl.Series) -> pl.Series:
    """Numbers as they are, text as whole numbers."""
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return column.cast(pl.Float32).fill_null(0)
    return column.fill_null("").rank("dense").cast(pl.Float32)


def step_numbers(rows: pl.DataFrame, schema, until: dt.datetime | None = None) -> tuple[pl.Series, np.ndarray]:
    """The step of each row, and the dates of steps: (1, steps), or (series, steps) where each has days of its own.

    In the latter case the last row of each series up to `until` has the same step, so that training ends at one number;
    the steps after it are counted, not dated.
    """
    times = rows[schema.time]
    if schema.time_grid == "calendar":
        dates = times.unique().sort()
        step = dates.diff().drop_nulls().min()
        dates = pl.datetime_range(dates[0], dates[-1], step, eager=True).cast(dates.dtype)
        return times.replace_strict(dates, np.arange(len(dates)), return_dtype=pl.Int32), dates.to_numpy()[None]
    before = (pl.col(schema.time) <= until).sum().over(schema.id)
    number = pl.col(schema.time).rank("ordinal").over(schema.id) - 1
    table = rows.select(pl.col(schema.id).rank("dense") - 1, number.cast(pl.Int32) + (before.max() - before))
    series, steps = (column.cast(pl.Int32) for column in table)
    dates = np.full((int(series.max()) + 1, int(steps.max()) + 1), np.datetime64("NaT", "us"))
    dates[series, steps] = times.to_numpy()
    return steps, dates


def write_inputs(folder: Path, rows: pl.DataFrame, steps: pl.Series, schema, static, spec: dict) -> pl.Series:
    """rows.parquet, static.parquet and spec.json; the ids that the numbers of series stand for."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = rows[schema.id].unique().sort()
    known = [*schema.known, "weekday", "day", "month", "hour"]
    clock = pl.col(schema.time).dt
    table = rows.select(
        pl.col(schema.id).replace_strict(ids, np.arange(len(ids)), return_dtype=pl.Int32).alias("series"),
        steps.alias("step"),
        pl.col(schema.target).cast(pl.Float32).alias("y"),
        *schema.known,
        clock.weekday().alias("weekday"),
        clock.day().alias("day"),
        clock.month().alias("month"),
        clock.hour().alias("hour"),
    )
    table = table.with_columns([codes(table[name]).alias(name) for name in known])
    varying = [name for name in known if table[name].n_unique() > 1]
    table.select("series", "step", "y", *varying).write_parquet(folder / "rows.parquet")
    of_series = pl.DataFrame({schema.id: ids})
    if static is not None:
        of_series = of_series.join(static.with_columns(pl.col(schema.id).cast(pl.String)), on=schema.id, how="left")
    attributes = [name for name in schema.static if name in of_series.columns]
    of_series = of_series.select([codes(of_series[name]).alias(name) for name in attributes or [schema.id]])
    of_series.write_parquet(folder / "static.parquet")
    spec = spec | {"known": varying, "log": bool(table["y"].min() >= 0)}
    (folder / "spec.json").write_text(json.dumps(spec))
    return ids


def run_peer(name: str, folder: Path, minutes: float) -> dict:
    environment, script, arguments = PEERS[name]
    python: Path | str = Path(sys.executable)
    if environment is not None:
        python = harness.environment(environment, PINS[environment], with_torch=environment != "lightgbm")
    if isinstance(python, str):
        raise SystemExit(python)
    command = [python, harness.LAB / "peers" / script, folder, *arguments]
    done = harness.run(command, seconds=60 * minutes + 7200)
    if "failed" in done:
        raise SystemExit(done["failed"])
    return done


def frame_of(values: np.ndarray, ids, dates: np.ndarray, cutoffs: list[int], schema, levels) -> pl.DataFrame:
    """(cutoffs, series, horizon, levels) as a frame of forecasts, without the missing ones."""
    k, i, h = np.nonzero(~np.isnan(values).any(axis=3))
    dates = np.broadcast_to(dates, (len(ids), dates.shape[1]))
    begin = np.array(cutoffs)[k]
    target = begin + h + 1
    keep = target < dates.shape[1]
    keep &= ~np.isnat(dates[i, begin]) & ~np.isnat(dates[i, np.where(keep, target, 0)])
    k, i, h, begin, target = (part[keep] for part in (k, i, h, begin, target))
    columns = {
        schema.id: ids.gather(i),
        "cutoff": dates[i, begin],
        schema.time: dates[i, target],
        "horizon": (h + 1).astype(np.int32),
    }
    return pl.DataFrame(columns | {f"q{level:g}": values[k, i, h, n].astype(float) for n, level in enumerate(levels)})


def on_leaderboard(task: Leaderboard, options: argparse.Namespace) -> None:
    data = task.load(options.data)
    grid, home = Grid(data), options.out / task.name / f"{options.peer}-{options.seed}"
    windows = []
    for number, cutoff in enumerate(data.cutoffs[: options.windows]):
        folder = home / f"window-{number + 1:02}"
        path = folder / "forecasts.parquet"
        minutes = options.minutes if number == 0 else options.refit_minutes or options.minutes
        if path.exists() and json.loads((folder / "spec.json").read_text())["minutes"] != minutes:
            raise SystemExit(f"{folder} was trained for other minutes; keep those, or name another --out")
        if not path.exists():
            known = data.known_at(cutoff)
            place = int(data.dates.search_sorted(cutoff))
            spec = {"horizon": task.horizon, "season": task.season, "levels": task.levels, "history": 2 * task.horizon}
            spec |= {"train_until": place, "cutoffs": [place], "minutes": minutes, "seed": options.seed}
            spec |= {"every": 1, "rate": options.rate}
            steps, dates = step_numbers(known, data.schema)
            ids = write_inputs(folder, known, steps, data.schema, data.dataset.static, spec)
            facts = run_peer(options.peer, folder, minutes) | {"cutoff": str(cutoff)}
            values = np.load(folder / "forecasts.npy")
            frame = data.with_zeros(frame_of(values, ids, dates, [place], data.schema, task.levels), known)
            (folder / "done.json").write_text(json.dumps(facts))
            frame.write_parquet(path)
        windows.append(json.loads((folder / "done.json").read_text()) | grid.scores(pl.read_parquet(path)))
    cost = {name: sum(window[name] for window in windows) for name in ("wall_seconds", "cpu_seconds")}
    config = {"minutes": options.minutes, "refit_minutes": options.refit_minutes}
    command = shlex.join(["python", "-m", "lab", "peers", *sys.argv[1:]])
    record = windows_record(data, options.peer, options.seed, windows, config=config, **cost, command=command)
    print(record.metrics, record.write(options.results))


def on_study(study: Study, options: argparse.Namespace) -> None:
    dataset = study.load(options.data).dataset
    schema, rows = dataset.schema, dataset.frame
    if dataset.events is not None:
        rows = rows.join(dataset.events, on=schema.time, how="left", maintain_order="left")
        schema = schema.replace(known=(*schema.known, *schema.events), events=())
    if schema.observed:
        rows = rows.with_columns(pl.when(schema.observed).then(schema.target).alias(schema.target))
    steps, dates = step_numbers(rows, schema, study.train_until)
    ends = (np.datetime64(date) for date in (study.train_until, study.last_cutoff))
    first, last = (int(np.flatnonzero((dates <= end).any(axis=0))[-1]) for end in ends)
    season = {"h": 24, "D": 7 if schema.time_grid == "calendar" else 5}.get(schema.freq or "", 52)
    spec = {"horizon": study.horizon, "season": season, "levels": study.levels, "train_until": first}
    spec |= {"history": study.network["window"]["history"], "cutoffs": list(range(first, last + 1))}
    folder = options.out / study.name / f"{options.peer}-{options.seed}"
    spec |= {"minutes": options.minutes, "seed": options.seed, "every": options.every, "rate": options.rate}
    spec |= {"observed": study.observed}
    ids = write_inputs(folder, rows, steps, schema, dataset.static, spec)
    facts = run_peer(options.peer, folder, options.minutes)
    values = np.load(folder / "forecasts.npy")
    frame = frame_of(values, ids, dates, spec["cutoffs"], schema, study.levels)
    judged = pl.col("cutoff").is_between(study.train_until, study.last_cutoff)
    frame.filter(judged).write_parquet(folder / "forecasts.parquet")
    config = {"minutes": options.minutes, "every": options.every}
    (folder / "peer.json").write_text(json.dumps({"config": config, "facts": facts}))
    print(facts, folder / "forecasts.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m lab peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", help="a leaderboard (rossmann_1D) or a study (m5, frat, eia …)")
    parser.add_argument("--data", type=Path, required=True, help="folder with the data set's files")
    parser.add_argument("--out", type=Path, required=True, help="where forecasts are written")
    parser.add_argument("--results", type=Path, default=harness.RESULTS, help="folder of the records")
    parser.add_argument("--peer", choices=list(PEERS), required=True)
    parser.add_argument("--minutes", type=float, default=10.0, help="of training, before the first window; default: 10")
    parser.add_argument("--refit-minutes", type=float, help="before each later window; default: as --minutes")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of NeuralForecast's networks")
    parser.add_argument("--every", type=int, default=1, help="in a study, forecast only every N-th series")
    parser.add_argument("--windows", type=int, help="use only the first N windows of a leaderboard")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    experiment = open_experiment(options.what)
    with harness.lock(shared=True):
        (on_leaderboard if isinstance(experiment, Leaderboard) else on_study)(experiment, options)


if __name__ == "__main__":
    main()
