"""A leaderboard's protocol: before each window a network learns from what is known by then, from the weights it had.

OUT/<task>/<model>-<seed>/
    steps.json          how many steps the first window trains, and the others
    window-01/run       the run; its weights are the next one's start
    window-01/forecasts.parquet, done.json

A window that is done is not done again; one that was interrupted goes on.
"""

import io
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from lab.experiments.coordination import agreed, once, steps_within, total, training_facts
from lab.experiments.record import Record
from lab.experiments.scores import Grid, mean_scores
from lab.experiments.task import Task, TaskData
from mqcast.data.panel import Panel
from mqcast.durable import write_file
from mqcast.errors import ConfigError
from mqcast.forecast.predict import forecast
from mqcast.launch import is_first
from mqcast.run import Run, exists
from mqcast.settings import RunConfig
from mqcast.train.loop import fit

SEASONAL_NAIVE = "seasonal-naive"
FOREVER = 2**31  # a store may have been closed for months, and yet be judged


@dataclass(frozen=True)
class Budget:
    """Minutes of training before the first window and before each later one; None: the settings' steps."""

    first: float | None = None
    refit: float | None = None


AS_SET = Budget()


@dataclass(frozen=True)
class Settled:
    """What a model is trained with, and where it is kept."""

    data: TaskData
    model: str
    seed: int
    tables: Mapping[str, Any]
    folder: Path
    device: str = "auto"
    listeners: tuple[Any, ...] = ()

    @property
    def task(self) -> Task:
        return self.data.task

    def config(self, **train: Any) -> RunConfig:
        """The task's settings, with the user's own; a window's panel has nothing that its cutoff does not know."""
        names = {*self.task.network, *self.tables}
        tables: dict[str, Any] = {
            name: {**self.task.network.get(name, {}), **self.tables.get(name, {})} for name in names
        }
        tables["window"] = {**tables.get("window", {}), "horizon": self.task.horizon}
        tables["model"] = {**tables.get("model", {}), "model": self.model, "quantiles": self.task.levels}
        free = {"max_epochs": 1_000_000, "num_threads": 1}
        said = tables.get("train", {})
        train = {**free, **said, "seed": self.seed, "patience": None, **train}
        if train.get("max_steps"):
            train["warmup_steps"] = min(train.get("warmup_steps", 0), train["max_steps"] // 10)
        tables["train"] = train
        config = RunConfig(**tables)
        return config if "history" in self.tables.get("window", {}) else config.with_whole_context()

    def window(self, number: int) -> Path:
        return self.folder / f"window-{number + 1:02}"


def run_windows(settled: Settled, budget: Budget = AS_SET, num_windows: int | None = None) -> list[Path]:
    """Train, forecast and keep the forecasts of each window; all processes call this alike."""
    cutoffs = settled.data.cutoffs[:num_windows]
    done = [n for n in range(len(cutoffs)) if agreed((settled.window(n) / "done.json").exists())]
    steps: tuple[int, int] | None = None
    for number, cutoff in enumerate(cutoffs):
        run = settled.window(number) / "run"
        if steps is not None and number in done[:-1]:  # the data are checked with the first and the last
            Run.open(run).check_settings(_config(settled, number, steps))
            continue
        known = settled.data.known_at(cutoff)
        panel = _panel(settled, known, number)
        steps = steps or _steps(settled, panel, budget)
        if number in done:
            Run.open(run).check_resumable(_config(settled, number, steps), panel, _before(settled, number))
        else:
            _run_window(settled, number, panel, known, steps)
    return [settled.window(number) / "forecasts.parquet" for number in range(len(cutoffs))]


def _panel(settled: Settled, rows: pl.DataFrame, number: int) -> Panel:
    """What is known at a cutoff, read as at the first one: categories that come later are unknown."""
    loaded = settled.data.loaded
    if number == 0:
        return Panel.from_frame(rows, settled.data.schema, loaded.static)
    return Panel.from_frame(rows, like=Run.open(settled.window(0) / "run").layout, static=loaded.static)


def _config(settled: Settled, number: int, steps: tuple[int, int]) -> RunConfig:
    if number == 0:
        return settled.config(max_steps=steps[0])
    rate = settled.config().train.learning_rate * settled.task.refit.rate
    return settled.config(max_steps=steps[1], learning_rate=rate)


def _before(settled: Settled, number: int) -> Run | None:
    """The run whose weights a window begins with."""
    return Run.open(settled.window(number - 1) / "run") if number > 0 else None


def _run_window(settled: Settled, number: int, panel: Panel, known: pl.DataFrame, steps: tuple[int, int]) -> None:
    cutoff, folder = settled.data.cutoffs[number], settled.window(number)
    clocks = time.monotonic(), time.process_time()
    run = fit(
        panel,
        _config(settled, number, steps),
        folder / "run",
        resume=True,
        start_from=_before(settled, number),
        listeners=settled.listeners,
        device=settled.device,
    )
    wall, cpu = time.monotonic() - clocks[0], time.process_time() - clocks[1]
    recent = _panel(settled, settled.data.without_gaps(known, cutoff), number)
    raw = forecast(
        run, recent, folder / "raw.parquet", first=cutoff, last=cutoff, silence=FOREVER, device=settled.device
    )
    cpu_of_all = total(cpu)
    if is_first():
        frame = with_zeros(settled.data, pl.read_parquet(raw), known)
        _write(folder / "forecasts.parquet", frame)
        raw.unlink()
        facts = {"cutoff": str(cutoff)} | training_facts(run, wall, cpu_of_all)
        write_file(folder / "done.json", json.dumps(facts))
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    agreed(1)


def with_zeros(data: TaskData, forecasts: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """The declared rule: 0 where the plan says that there is nothing to sell."""
    if (rule := data.task.zero_when) is None:
        return forecasts
    keys = [data.id, data.time]
    planned = known.select(*keys, rule.holds().alias(" zero"))
    forecasts = forecasts.join(planned, on=keys, how="left", maintain_order="left")
    names = data.task.quantile_names
    zeros = [pl.when(pl.col(" zero").fill_null(False)).then(0.0).otherwise(name).alias(name) for name in names]
    return forecasts.with_columns(zeros).drop(" zero")


def _steps(settled: Settled, panel: Panel, budget: Budget) -> tuple[int, int]:
    """Steps of the first window and of the others; settled once, so that an interrupted run goes on as it began."""
    config, share = settled.config(), settled.task.refit.share
    most = config.train.max_steps
    if most is None and not budget.first:
        raise ConfigError("say train.max_steps, from which the learning rate falls to zero; or --first-minutes")

    def find() -> dict[str, Any]:
        a_minute = 0.0
        if budget.first or budget.refit:
            a_minute = steps_within(1.0, panel, config, settled.folder, settled.device)
        first = max(1, int(a_minute * budget.first)) if budget.first else most or 1
        later = a_minute * budget.refit if budget.refit else share * first
        return {"first": first, "later": max(1, int(later))}

    said = {"first-minutes": budget.first, "refit-minutes": budget.refit, "max_steps": most, "refit share": share}
    found = once(settled.folder / "steps.json", said, find)
    return found["first"], found["later"]


def _write(path: Path, frame: pl.DataFrame) -> None:
    packed = io.BytesIO()
    frame.write_parquet(packed)
    write_file(path, packed.getvalue())


# -- scores ------------------------------------------------------------------------------------------------------------


def score_windows(grid: Grid, frames: Sequence[pl.DataFrame]) -> list[dict[str, float]]:
    """Scores of each window's forecasts; which window, their cutoff says."""
    return [grid.scores(frame, frame["cutoff"][0]) for frame in frames]


def member_of(path: Path) -> dict[str, Any]:
    """Whose forecasts these are and what they cost, as far as it is known: that of a folder that `run_windows` made."""
    done = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(path.glob("window-*/done.json"))]
    run = path / "window-01" / "run"
    config = {"config": Run.open(run).config.model_dump(mode="json")} if exists(run) else {}
    cost = {name: sum(facts.get(name, 0.0) for facts in done) for name in ("wall_seconds", "cpu_seconds")}
    return {"forecasts": str(path), **cost, **config}


def record_of(settled: Settled, grid: Grid, paths: Sequence[Path]) -> Record:
    """What one model scored, with what it cost."""
    scores = score_windows(grid, [pl.read_parquet(path) for path in paths])
    done = [json.loads((path.parent / "done.json").read_text(encoding="utf-8")) for path in paths]
    config = settled.config(max_steps=done[0]["steps"])
    return Record(
        task=task_name(settled.task, len(scores)),
        model=settled.model,
        seed=settled.seed,
        metrics=mean_scores(scores),
        config={"task": settled.task.model_dump(mode="json", exclude={"published", "network"})}
        | config.model_dump(mode="json"),
        wall_seconds=sum(facts["wall_seconds"] for facts in done),
        cpu_seconds=sum(facts["cpu_seconds"] for facts in done),
        details={"windows": [facts | found for facts, found in zip(done, scores, strict=True)]},
    )


def naive_record(data: TaskData, grid: Grid, num_windows: int | None = None) -> Record:
    started = time.monotonic(), time.process_time()
    cutoffs = data.cutoffs[:num_windows]
    scores = [grid.scores(grid.seasonal_naive(cutoff), cutoff) for cutoff in cutoffs]
    windows = [{"cutoff": str(cutoff)} | found for cutoff, found in zip(cutoffs, scores, strict=True)]
    return Record(
        task=task_name(data.task, len(scores)),
        model=SEASONAL_NAIVE,
        seed=0,
        metrics=mean_scores(scores),
        config={"season": data.task.season},
        wall_seconds=time.monotonic() - started[0],
        cpu_seconds=time.process_time() - started[1],
        details={"windows": windows},
    )


def task_name(task: Task, num_windows: int) -> str:
    """Scores of some of the windows are not the task's."""
    return task.name if num_windows == task.windows else f"{task.name}-first-{num_windows}"


def table_of(task: Task, records: Sequence[Record]) -> pl.DataFrame:
    """Our scores among the published ones, best SQL first."""
    rows = [{"model": name, "by": "published"} | scores for name, scores in task.published.items()]
    for record in records:
        part = record.task.removeprefix(f"{task.name}-").replace("-", " ") if record.task != task.name else "mqcast"
        rows.append({"model": f"{record.model}, seed {record.seed}", "by": part} | record.metrics)
    return pl.DataFrame(rows).sort("SQL")
