"""Other libraries' forecasters on the battery's tasks, studies and the paper's tasks: the same rows and known values.

    python -m lab peers rossmann_1D --data DATA --out RUNS --peer lightgbm --minutes 5 …
    python -m lab peers frat --data DATA --out RUNS --peer tft --minutes 20
    python -m lab peers volatility --data DATA --out RUNS --peer tft --minutes 60 --patience 10

Peers: lightgbm (with lags), tft and deepar (NeuralForecast), convtrans (ours, small). Each but the last runs in an
environment of its own. On a task of the battery a peer is trained from scratch before each window; `python -m lab
score` then takes RUNS/TASK/PEER-SEED. Elsewhere its forecasts are one file, for `python -m lab run NAME … --forecasts
PEER=FILE`.
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

from lab.battery.tasks import TASKS, task_of
from lab.benchmarks import harness, pack
from lab.experiments.experiment import experiment_names, open_experiment
from lab.experiments.fev_scores import Grid
from lab.experiments.paper_task import PaperTask
from lab.experiments.part_panels import VALID
from lab.experiments.study import Study
from mqcast.models import DEFAULT, TrainOptions
from mqcast.models.networks import NetworkModel

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


def on_windows(name: str, options: argparse.Namespace) -> None:
    data = task_of(name).windows("judged", options.data)
    task, grid, home = data.task, Grid(data), options.out / name / f"{options.peer}-{options.seed}"
    windows = []
    for number, cutoff in enumerate(data.cutoffs[: options.windows]):
        folder = home / f"window-{number + 1:02}"
        path = folder / "forecasts.parquet"
        if path.exists() and json.loads((folder / "spec.json").read_text())["minutes"] != options.minutes:
            raise SystemExit(f"{folder} was trained for other minutes; keep those, or name another --out")
        if not path.exists():
            known = data.known_at(cutoff)
            place = int(data.dates.search_sorted(cutoff))
            spec = {"horizon": task.horizon, "season": task.season, "levels": task.levels, "history": 2 * task.horizon}
            spec |= {"train_until": place, "cutoffs": [place], "every": 1} | of_options(options)
            steps, dates = step_numbers(known, data.schema)
            ids = write_inputs(folder, known, steps, data.schema, data.dataset.static, spec)
            facts = run_peer(options.peer, folder, options.minutes) | {"cutoff": str(cutoff)}
            values = np.load(folder / "forecasts.npy")
            (folder / "done.json").write_text(json.dumps(facts))
            frame_of(values, ids, dates, [place], data.schema, task.levels).write_parquet(path)
        windows.append(json.loads((folder / "done.json").read_text()) | grid.scores(pl.read_parquet(path)))
    command = shlex.join(["python", "-m", "lab", "peers", *sys.argv[1:]])
    record = task.record(options.peer, options.seed, windows, of_options(options), command=command)
    print(record.metrics, record.write(options.results))


def of_options(options: argparse.Namespace) -> dict:
    """What a peer's script is told of the command line."""
    return {name: getattr(options, name) for name in ("minutes", "seed", "rate", "patience")}


def with_events(rows: pl.DataFrame, dataset, schema):
    """The rows and their schema, with what is known of each date as columns."""
    if dataset.events is None:
        return rows, schema
    events = dataset.events.cast({schema.time: rows.schema[schema.time]})
    rows = rows.join(events, on=schema.time, how="left", maintain_order="left")
    return rows, schema.replace(known=(*schema.known, *schema.events), events=())


def keep(folder: Path, frame: pl.DataFrame, spec: dict, facts: dict) -> None:
    frame.write_parquet(folder / "forecasts.parquet")
    left_out = ("cutoffs", "levels")
    config = {name: value for name, value in spec.items() if name not in left_out}
    (folder / "peer.json").write_text(json.dumps({"config": config, "facts": facts}))
    print(facts, folder / "forecasts.parquet")


def on_study(study: Study, options: argparse.Namespace) -> None:
    data = study.load(options.data)
    dataset = data.dataset
    rows, schema = with_events(dataset.frame, dataset, dataset.schema)
    if schema.observed:
        rows = rows.with_columns(pl.when(schema.observed).then(schema.target).alias(schema.target))
    steps, dates = step_numbers(rows, schema, study.train_until)
    ends = (np.datetime64(date) for date in (study.train_until, study.last_cutoff))
    first, last = (int(np.flatnonzero((dates <= end).any(axis=0))[-1]) for end in ends)
    season = {"h": 24, "D": 7 if schema.time_grid == "calendar" else 5}.get(schema.freq or "", 52)
    recipe = TrainOptions(horizon=study.horizon, quantiles=study.levels, until=study.train_until)
    lookback = NetworkModel(DEFAULT).settings(data.panel, recipe).config.model.lookback
    spec = {"horizon": study.horizon, "season": season, "levels": study.levels, "train_until": first}
    spec |= {"history": lookback, "cutoffs": list(range(first, last + 1)), "every": options.every}
    spec |= {"observed": study.observed} | of_options(options)
    folder = options.out / study.name / f"{options.peer}-{options.seed}"
    ids = write_inputs(folder, rows, steps, schema, dataset.static, spec)
    facts = run_peer(options.peer, folder, options.minutes)
    frame = frame_of(np.load(folder / "forecasts.npy"), ids, dates, spec["cutoffs"], schema, study.levels)
    keep(folder, frame.filter(pl.col("cutoff").is_between(study.train_until, study.last_cutoff)), spec, facts)


def on_parts(task: PaperTask, options: argparse.Namespace) -> None:
    """Every block of the test part is forecast; with a patience, the part before it is for validation."""
    panels, dataset = task.load(options.data, options.out), task.load_dataset(options.data)
    stamps = pl.col("ds").cast(pl.Datetime("us"))
    files = {name: panels.folder / "rows" / f"{name}.parquet" for name in ("train", "valid", "test")}
    parts = {name: pl.read_parquet(file).with_columns(stamps) for name, file in files.items()}
    parts["valid"] = parts["valid"].with_columns(pl.col("unique_id").str.strip_prefix(VALID))
    rows = pl.concat(parts.values()).drop("actual").unique(["unique_id", "ds"]).sort("unique_id", "ds")
    rows = rows.filter(pl.col("unique_id").is_in(parts["train"]["unique_id"].unique().implode()))
    rows, schema = with_events(rows, dataset, panels.training.schema)
    steps, dates = step_numbers(rows, schema, task.parts["train"][1])
    numbered = rows.select("unique_id", "ds", step=steps)
    valid = numbered.join(parts["valid"], on=["unique_id", "ds"], how="semi").group_by("unique_id").agg(pl.max("step"))
    blocks = blocks_of(task, parts["test"]).join(
        numbered, left_on=["unique_id", "cutoff"], right_on=["unique_id", "ds"]
    )
    cutoffs = blocks["step"].unique().sort().to_list()
    train_until = int(numbered.filter(pl.col("ds") <= task.parts["train"][1])["step"].max())
    spec = {"horizon": task.horizon, "season": task.encoder_steps, "levels": task.levels, "train_until": train_until}
    spec |= {"history": task.encoder_steps, "cutoffs": cutoffs, "every": 1, "valid_until": int(valid["step"].min())}
    spec |= of_options(options) | {"network": task.peers.get(options.peer, {})}
    folder = options.out / task.name / f"{options.peer}-{options.seed}"
    ids = write_inputs(folder, rows, steps, schema, dataset.static, spec)
    facts = run_peer(options.peer, folder, options.minutes)
    scaled = frame_of(np.load(folder / "forecasts.npy"), ids, dates, cutoffs, schema, task.levels)
    scaled = scaled.join(blocks, on=["unique_id", "cutoff"], how="semi")
    keep(folder, panels.in_units(scaled.lazy()).collect(), spec, facts | {"forecast_blocks": blocks.height})


def blocks_of(task: PaperTask, rows: pl.DataFrame) -> pl.DataFrame:
    """unique_id and cutoff of every block: with `encoder_steps` rows up to it and a horizon after it."""
    place = pl.col("ds").rank("ordinal").over("unique_id")
    inside = (place >= task.encoder_steps) & (place <= pl.len().over("unique_id") - task.horizon)
    return rows.filter(inside).select("unique_id", cutoff="ds")


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m lab peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", help="a task of the battery (rossmann_1D …), a study (frat …) or a task (volatility)")
    parser.add_argument("--data", type=Path, required=True, help="folder with the data set's files")
    parser.add_argument("--out", type=Path, required=True, help="where forecasts are written")
    parser.add_argument("--results", type=Path, default=harness.RESULTS, help="folder of the records")
    parser.add_argument("--peer", choices=list(PEERS), required=True)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="of training, on a battery's task before each window"
    )
    parser.add_argument(
        "--patience", type=int, help="in a task of the paper, validations without improvement, for tft, deepar"
    )
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of NeuralForecast's networks")
    parser.add_argument("--every", type=int, default=1, help="in a study, forecast only every N-th series")
    parser.add_argument("--windows", type=int, help="use only the first N windows")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with harness.lock(shared=True):
        if options.what in TASKS and options.what not in experiment_names():
            on_windows(options.what, options)
        elif isinstance(experiment := open_experiment(options.what), PaperTask):
            on_parts(experiment, options)
        else:
            on_study(experiment, options)


if __name__ == "__main__":
    main()
