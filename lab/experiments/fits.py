"""Fits of systems as anyone would make them, by the recipe or a preset; after a search of two settings if wanted."""

import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

from lab.experiments.experiment import RunSpec
from lab.experiments.training import costs, once, total, write_frame
from mqcast import models
from mqcast.data.panel import Panel
from mqcast.errors import ConfigError
from mqcast.launch import is_first
from mqcast.models.holdout import hold_out
from mqcast.models.networks import FittedNetwork, NetworkModel
from mqcast.models.protocol import FittedModel
from mqcast.models.rehearsal import rehearsal_of
from mqcast.settings import SearchConfig
from mqcast.settings.merge import Layer, Origin, assigned_values
from mqcast.train.search import search

GRID = {"train.learning_rate": (1e-3, 3e-3), "model.dropout": (0.15, 0.3)}  # the same for every network and data set


def fitted_and_forecast(spec: RunSpec, panel: Panel, first: dt.datetime, last: dt.datetime) -> Path:
    """Fit a system on what is known at the first cutoff, forecast from every cutoff, and keep the forecasts.

    Forecasts that were kept before are not made again; other options or data than theirs are refused.
    """
    folder, options = spec.folder, spec.options

    def fit_and_forecast() -> dict[str, Any]:
        fitted, facts = fit(spec, panel, first, folder / "model")
        forecasts = fitted.forecast(panel, first, last)
        if is_first():
            folder.mkdir(parents=True, exist_ok=True)
            write_frame(folder / "forecasts.parquet", forecasts)
        return {"cutoff": str(first)} | facts

    given = {
        "model": {"model": spec.model, "quantiles": spec.experiment.levels},
        "window": {"horizon": spec.experiment.horizon},
        "settings": options.tables,
        "minutes": options.minutes,
        "search": options.search,
        "cutoffs": (first, last),
        "data": panel.fingerprint,
    }
    once(folder / "done.json", json.loads(json.dumps(given, default=str)), fit_and_forecast)
    return folder / "forecasts.parquet"


def fit(spec: RunSpec, panel: Panel, until: dt.datetime, folder: Path) -> tuple[FittedModel, dict[str, Any]]:
    """A fitted system, and what it took: seconds and, of a network, its settings and its steps."""
    found = best_of_grid(spec, panel, until) if spec.options.search and spec.system.is_network else {}
    wall, cpu = time.monotonic(), time.process_time()
    fitted = models.get(spec.system.model).fit(panel, fit_options(spec, until, folder, found.get("settings", {})))
    wall, cpu = time.monotonic() - wall, total(time.process_time() - cpu)
    if not isinstance(fitted, FittedNetwork):
        return fitted, {"wall_seconds": wall, "cpu_seconds": cpu}
    facts = costs(fitted.run, wall, cpu) | {"config": fitted.config.model_dump(mode="json")}
    return fitted, facts | ({"search": found} if found else {})


def fit_options(spec: RunSpec, until: dt.datetime, folder: Path, found: dict[str, Any]) -> models.TrainOptions:
    tables = spec.options.tables
    user = [Layer(Origin.ARGUMENTS, tables), assigned_values(found)]
    return models.TrainOptions(
        horizon=spec.experiment.horizon,
        quantiles=spec.experiment.levels,
        seed=spec.seed,
        max_steps=tables.get("train", {}).get("max_steps"),
        max_minutes=spec.options.minutes,
        until=until,
        preset=spec.system.preset,
        layers=tuple(user),
        folder=folder,
        resume=True,
        device=spec.options.device,
        listeners=spec.options.listeners,
    )


def best_of_grid(spec: RunSpec, panel: Panel, until: dt.datetime) -> dict[str, Any]:
    """The settings of the grid with the least loss on the last dates before the end of training, which a network of one
    member was not trained on; searched once, with seed 0, for all seeds."""
    folder = spec.folder.with_name(f"{spec.model}-grid")
    options, model = fit_options(spec.replace(seed=0), until, folder, {}), NetworkModel(spec.system.model)
    config = model.settings(panel, options).config
    if config.train.refit:
        config = rehearsal_of(config, hold_out(panel, options))
    elif config.train.patience is None:
        raise ConfigError(f"{spec.model} is not validated here; leave --search out, and train.max_steps as it is")
    space = SearchConfig(**{"space": GRID, **spec.options.tables.get("search", {})})
    best = search(panel, config, space, folder, listeners=options.listeners or (), device=options.device)
    trials = {trial.name: trial.valid_loss for trial in best.trials}
    (settings,) = (trial.settings for trial in best.trials if trial.name == best.name)
    return {"settings": settings, "losses": trials, "seconds": sum(trial.seconds for trial in best.trials)}
