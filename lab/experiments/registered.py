"""Systems of the registry: seasonal naive, means of unlike models, and classes of your own (docs/models.md)."""

import datetime as dt
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from lab.experiments.experiment import RunSpec
from lab.experiments.training import once, total, write_frame
from mqcast import models
from mqcast.data.panel import Panel
from mqcast.launch import is_first
from mqcast.settings.merge import Layer, Origin


def run_registered(
    spec: RunSpec,
    folder: Path,
    known: Panel,
    panel: Panel,
    first: dt.datetime,
    last: dt.datetime,
    finish: Callable[[pl.DataFrame], pl.DataFrame] = lambda forecasts: forecasts,
    minutes: float | None = None,
) -> Path:
    """Fit a model on what is known at the first cutoff, forecast a panel from every cutoff, and keep the forecasts.

    Forecasts that were kept before are not made again; other options or data than theirs are refused.
    """
    path, options = folder / "forecasts.parquet", registered_options(spec, folder, first, minutes)

    def fit_and_forecast() -> dict[str, Any]:
        wall, cpu = time.monotonic(), time.process_time()
        forecasts = finish(models.get(spec.model).fit(known, options).forecast(panel, first, last))
        facts = {"wall_seconds": time.monotonic() - wall, "cpu_seconds": total(time.process_time() - cpu)}
        if is_first():
            folder.mkdir(parents=True, exist_ok=True)
            write_frame(path, forecasts)
        return {"cutoff": str(first)} | facts

    given = {
        "model": {"model": spec.model, "quantiles": options.quantiles},
        "window": {"horizon": options.horizon},
        "settings": spec.options.tables,
        "minutes": options.max_minutes,
        "cutoffs": (first, last),
        "data": known.fingerprint,
    }
    once(folder / "done.json", json.loads(json.dumps(given, default=str)), fit_and_forecast)
    return path


def registered_options(
    spec: RunSpec, folder: Path, until: dt.datetime, minutes: float | None = None
) -> models.TrainOptions:
    """The options of a fit; its settings are for networks: by the recipe, or as members of a mean."""
    experiment, tables = spec.experiment, spec.options.tables
    return models.TrainOptions(
        horizon=experiment.horizon,
        quantiles=experiment.levels,
        seed=spec.seed,
        max_steps=tables.get("train", {}).get("max_steps"),
        max_minutes=spec.options.minutes if minutes is None else minutes,
        until=until,
        layers=(*experiment.task_layers(spec.model), Layer(Origin.ARGUMENTS, tables)),
        folder=folder / "model",
        resume=True,
        device=spec.options.device,
        listeners=spec.options.listeners,
    )
