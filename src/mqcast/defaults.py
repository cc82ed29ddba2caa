"""Settings that fit a panel: look-back, windows and reach by its frequency, its length and its size.

They are what did well in the measurements of docs/measured.md, not the paper's: those are the defaults of each table.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mqcast.arguments import levels_of, number, path_of, truth, whole_number
from mqcast.data.frequency import DAY, season_of
from mqcast.data.panel import Panel
from mqcast.data.schema import Schema
from mqcast.data.views import known_at
from mqcast.data.windows import as_time
from mqcast.errors import ConfigError, quoted
from mqcast.settings import LARGEST_SEED, MOST_PERIODS, RunConfig, Settings, nearest

SEASONAL_NAIVE = "seasonal-naive"
MODELS = ("mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn")
LEAST_STEPS, MOST_STEPS, EPOCHS = 300, 2000, 30
TRAJECTORIES_A_STEP = 1024
SAMPLE, NUM_BLOCKS = 1_000_000, 16  # values looked at, where there are more: so many blocks of neighbours
CLOSINGS, FAR_FROM_NONE = 0.02, 20  # share of zeros that follow a sale; the least of other days


def check_params(
    model: Any,
    horizon: Any,
    quantiles: Any,
    schema: Any,
    config: Any,
    seed: Any,
    max_steps: Any,
    max_minutes: Any,
    folder: Any,
    device: Any,
    verbose: Any,
) -> None:
    """Raise unless a Forecaster can be made of these."""
    models = (*MODELS, SEASONAL_NAIVE)
    if not isinstance(model, str) or model not in models:
        raise ConfigError(f"model is {quoted(model)}{nearest(model, models)}; there are {', '.join(models)}")
    whole_number("horizon", horizon, 1, MOST_PERIODS)
    levels_of("quantiles", quantiles)
    Schema.of(schema)
    tables_of(config)
    whole_number("seed", seed, 0, LARGEST_SEED)
    truth("verbose", verbose)
    if max_steps is not None:
        whole_number("max_steps", max_steps)
    if max_minutes is not None:
        number("max_minutes", max_minutes, 0)
    if folder is not None:
        path_of("folder", folder)
    if not isinstance(device, str):
        raise ConfigError(f"device is {quoted(device)}; give 'auto', 'cpu', 'cuda' …")


def settings_for(
    panel: Panel, model: str, horizon: int, quantiles: tuple[float, ...], changes: Mapping[str, Any] | None = None
) -> RunConfig:
    """All settings of a run on this panel; `changes` are tables of some settings, as in TOML, that go before them.

    They fit the panel as it was known at `split.train_until`, if that is said.
    """
    changes = changes or {}
    for table, said in changes.items():
        if not isinstance(said, Mapping):
            raise ConfigError(f"config: {table} is {said!r}; give tables of settings: {{'train': {{'seed': 1}}}}")
    if (until := changes.get("split", {}).get("train_until")) is not None:
        panel = known_at(panel, as_time(until, panel.axis))
    length = int(np.median(np.diff(panel.offsets)))
    if length < 3:
        raise ConfigError(f"most series have {length} rows, from which nothing can be learnt; give more history")
    if horizon >= (longest := int(np.diff(panel.offsets).max())):
        raise ConfigError(f"horizon is {horizon}, but no series has more than {longest} rows; forecast fewer steps")
    lookback, num_fcts = _reach(panel, horizon, length)
    season = season_of(panel.axis.frequency)
    batch = max(1, min(panel.num_series, TRAJECTORIES_A_STEP // num_fcts))
    trajectories = int(np.maximum(np.diff(panel.offsets) - 1, 0).sum())
    steps = int(np.clip(EPOCHS * trajectories / (batch * num_fcts), LEAST_STEPS, MOST_STEPS))
    tables: dict[str, Any] = {
        "window": {"horizon": horizon, "history": lookback, "num_fcts": num_fcts, "batch_size": batch},
        "scaling": _scaling(panel),
        "model": {
            "model": model,
            "quantiles": quantiles,
            "lookback": lookback,
            "encoder_dilations": _doubling(min(max(season, 8), length)),
            "position_dilations": _doubling(min(horizon - 1, 3 if season > 7 else 7)) if horizon > 1 else None,
            "dropout": 0.1,
            "scale_inputs": False,
        },
        "train": {
            "learning_rate": 3e-3,
            "schedule": "cosine",
            "patience": None,
            "max_steps": steps,
            "max_epochs": 1_000_000,
        },
    }
    for table, said in changes.items():
        for name, value in said.items():
            asked = tables.get(table, {}).get(name, value)
            same = tuple(asked) == tuple(value) if isinstance(value, list | tuple) else asked == value
            if name in ("horizon", "quantiles", "model") and not same:
                raise ConfigError(
                    f"config says {table}.{name} = {value!r}, but {asked!r} is asked for; take it out of the config, "
                    f"or ask for the same: Forecaster({name}={value!r}), on the command line --{name.removesuffix('s')}"
                )
        tables[table] = tables.get(table, {}) | dict(said)
    if "warmup_steps" not in changes.get("train", {}) and (most := tables["train"]["max_steps"]):
        tables["train"]["warmup_steps"] = min(100, most // 10)
    config = RunConfig(**tables)
    return config if "history" in changes.get("window", {}) else config.with_whole_context()


def tables_of(config: RunConfig | Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    """What a user's settings say, in whatever form they come."""
    if config is None:
        return {}
    if isinstance(config, str | Path):
        said = Settings.read_toml(config)
        return {table: values for table, values in said.items() if table not in ("schema", "search")}
    if isinstance(config, RunConfig):
        return config.model_dump(exclude_unset=True)
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"config is a {type(config).__name__}; give a TOML file, a RunConfig or a dictionary of tables"
        )
    for table, said in config.items():
        if not isinstance(said, Mapping) or not all(isinstance(name, str) for name in (table, *said)):
            example = "{'train': {'seed': 1}}"
            raise ConfigError(f"config: {table} is {quoted(said)}; give tables of settings: {example}")
    return dict(config)


def _scaling(panel: Panel) -> dict[str, Any]:
    """Changes from a recent level, in logarithms unless demand may be negative; zeros told apart, see `data.scaling`.

    Where closed days follow days of large sales, again and again, they are learnt best without logarithms, on the scale
    of the whole series.
    """
    if np.nanmin(panel.target) < 0:
        return {"by": "recent", "log1p": False}
    size = min(len(panel.target), SAMPLE // NUM_BLOCKS)
    starts = np.linspace(0, len(panel.target) - size, NUM_BLOCKS if len(panel.target) > SAMPLE else 1).astype(int)
    size = size if len(panel.target) > SAMPLE else len(panel.target)
    y = np.concatenate([panel.target[start : start + size] for start in starts])
    num_closings, sold = int(((y[1:] == 0) & (y[:-1] > 0)).sum()), y[y > 0]
    if num_closings > CLOSINGS * len(y) and np.quantile(sold, 0.05) > FAR_FROM_NONE:
        return {"by": "series", "log1p": False, "zeros": "told_apart"}
    return {"by": "recent", "log1p": True, "zeros": "told_apart"}


def _reach(panel: Panel, horizon: int, length: int) -> tuple[int, int]:
    """Steps that the attention looks back, and creation times in a window.

    Three years of weeks or months, eight weeks of days, a week of hours: so far that like events are inside; but no
    more than there is.
    """
    frequency = panel.axis.frequency
    season = season_of(frequency)
    if frequency.sub_daily:
        wanted, num_fcts = 7 * season, 2 * season
    elif frequency.size == DAY:  # of days or of business days
        wanted, num_fcts = max(8 * season, 2 * horizon), 8 * season
    else:
        wanted, num_fcts = 3 * max(season, 4), max(season, 12)
    lookback = max(1, min(wanted, length - horizon - 1))
    return lookback, max(1, min(num_fcts, length - 1))


def _doubling(total: int) -> tuple[int, ...]:
    """1, 2, 4 … as long as they sum to no more than `total`; at least one."""
    found = [1]
    while sum(found) + 2 * found[-1] <= total:
        found.append(2 * found[-1])
    return tuple(found)
