"""The recipe: settings that follow from the frequency, the length and the values of a panel; see docs/recipe.md."""

from typing import Any

import numpy as np

from mqcast.data.closed import ClosedRows, closing_rules
from mqcast.data.frequency import DAY, Frequency, season_of, year_of
from mqcast.data.panel import Panel
from mqcast.data.views import known_at
from mqcast.data.windows import as_time
from mqcast.errors import ConfigError
from mqcast.models.holdout import history_length, least_to_hold_out
from mqcast.settings.merge import Layer, Merged, Origin, merge

LEAST_STEPS, MOST_STEPS, EPOCHS = 500, 4000, 30
MOST_WORK = 8e10  # of all steps, rehearsal included: by estimate about 20 minutes of one core
BESIDES_CELLS, BESIDES_LOOKBACK = 65_000, 800  # with so many, they take as long as the rest of a step, or of a cell
SAFE_STEPS = 200  # if there is too little history for a rehearsal, which would show that more are too many
LENGTH_IS_SAID = {"train.max_steps", "train.max_epochs", "train.patience", "split.valid_until"}
SPREAD_LASTS = 6  # times as long as the level: a spread needs more steps to be known
LEAST_REACH, DATES_A_STEP_OF_REACH = 3, 32
NUM_YEARS = 3  # whose sales of the same season are inputs
# Up to so many trajectories, and beyond:
DROPOUT = (1_000_000, 0.15, 0.1)
HIDDEN_DIM = (400_000, 32, 64)
MEMBERS = (100_000, 5, 3)
TRAJECTORIES_A_STEP, FORECASTS_A_STEP, LEAST_BATCH = 1024, 25_000, 2
SAMPLE, NUM_BLOCKS = 1_000_000, 16  # of a larger panel this many values are inspected, in blocks of neighbours
CLOSINGS, FAR_FROM_NONE = 0.02, 20  # minimal share of zeros after a sale; minimal size of sales on other days


def settings_for(
    panel: Panel, model: str, horizon: int, quantiles: tuple[float, ...], *layers: Layer, until: Any = None
) -> Merged:
    """All settings of a network on this panel; the layers override those that fit the panel.

    Settings fit the panel as it was known at `until`, the last date of targets that training may use, or at the
    `split.train_until` of a layer. With early stopping, the last horizon before `until` is for validation.
    """
    required: dict[str, Any] = {"window.horizon": horizon, "model.quantiles": quantiles, "model.model": model}
    from_layers = {name: value for layer in layers for name, value in layer.items()}
    if (date := until if until is not None else from_layers.get("split.train_until")) is not None:
        panel = known_at(panel, as_time(date, panel.axis))
    if until is not None:
        required |= {"split.train_until": until, "split.valid_until": until}
        if from_layers.get("train.patience") is not None:
            required["split.train_until"] = panel.axis.dates(np.array([panel.last_observed_time(horizon)]))[0]
    return merge(_fitting(panel, horizon, from_layers), *layers, required=required).with_whole_context()


def _fitting(panel: Panel, horizon: int, from_layers: dict[str, Any]) -> Layer:
    """The settings that follow from the data; `from_layers` matters where one value follows from another."""
    length = int(np.median(np.diff(panel.offsets)))
    if length < 3:
        raise ConfigError(f"most series have only {length} rows, too few to learn from; give more history")
    if horizon >= (longest := int(np.diff(panel.offsets).max())):
        raise ConfigError(f"horizon is {horizon}, but no series has more than {longest} rows; forecast fewer steps")
    lookback, num_fcts = _reach(panel, horizon, length)
    season, year = season_of(panel.axis.frequency), year_of(panel.axis.frequency)
    slow, half_life = min(year, 8 * season) if season < year else year, _half_life(panel.axis.frequency)
    most_trajectories = min(TRAJECTORIES_A_STEP, FORECASTS_A_STEP // horizon)
    batch = min(panel.num_series, max(LEAST_BATCH, most_trajectories // num_fcts))
    trajectories = int(np.maximum(np.diff(panel.offsets) - 1, 0).sum())
    can_rehearse = history_length(panel) >= least_to_hold_out(horizon)
    hidden_dim, members = _by_size(HIDDEN_DIM, trajectories), _by_size(MEMBERS, trajectories)
    steps = SAFE_STEPS
    if can_rehearse:
        steps = int(np.clip(EPOCHS * trajectories / (batch * num_fcts), LEAST_STEPS, MOST_STEPS))
        if from_layers.get("train.max_minutes") is None:
            cells = batch * (num_fcts + horizon) * horizon * (1 + lookback / BESIDES_LOOKBACK)
            steps_of_all = int(MOST_WORK / (hidden_dim * (cells + BESIDES_CELLS)))
            members = max(1, min(members, steps_of_all // LEAST_STEPS - 1))
            steps = max(min(steps, steps_of_all // (members + 1)), LEAST_STEPS // 2)
    most = from_layers.get("train.max_steps", steps)
    warm_up = {"warmup_steps": min(100, most // 10)} if isinstance(most, int) and most else {}
    tables: dict[str, Any] = {
        "window": {"history": lookback, "num_fcts": num_fcts, "batch_size": batch, "aligned": False},
        "scaling": _scaling(panel)
        | {
            "half_life": half_life,
            "spread_half_life": SPREAD_LASTS * half_life,
            "level_steps": slow,
            "echoes": _echoes(year, season, horizon, length),
        },
        "model": {
            "lookback": lookback,
            "encoder_dilations": _doubling(min(max(season, 8), length)),
            "position_dilations": _position_dilations(horizon, length),
            "hidden_dim": hidden_dim,
            "dropout": _by_size(DROPOUT, trajectories),
            "members": members,
            "research": {"scale_inputs": False},
        },
        "train": {
            "learning_rate": 3e-3,
            "schedule": "cosine",
            "patience": None,
            "refit": can_rehearse and not LENGTH_IS_SAID & from_layers.keys(),
            "max_steps": steps,
            "max_epochs": 1_000_000,
            **warm_up,
        },
    }
    return Layer(Origin.FITS_THE_DATA, tables)


def _by_size(sizes: tuple[int, Any, Any], trajectories: int) -> Any:
    most, small, large = sizes
    return small if trajectories <= most else large


def _position_dilations(horizon: int, length: int) -> tuple[int, ...] | None:
    """A reach of horizon − 1, as in the paper; less if there are few dates, which could then be told apart by it."""
    reach = max(LEAST_REACH, length // DATES_A_STEP_OF_REACH)
    return None if horizon - 1 <= reach else _doubling(reach)


def _half_life(frequency: Frequency) -> float:
    """Steps after which a sale counts half in the level: half a week of hours, a month of days, two months of weeks."""
    season = season_of(frequency)
    if frequency.sub_daily:
        return 3.5 * season
    return 4.0 * season if frequency.size == DAY else max(season / 6.5, 2.0)


def _echoes(year: int, season: int, horizon: int, length: int) -> tuple[int, ...]:
    """Steps before a target whose sales are inputs: some years, and the last seasons known from every cutoff."""
    last = season * -(-horizon // season)
    seasons = (last, last + season, last + 2 * season) if season < year else ()
    more_years = (year * number for number in range(2, NUM_YEARS + 1) if length >= year * (number + 1) + horizon)
    wanted = sorted({*seasons, year, *more_years})
    return tuple(steps for steps in wanted if horizon <= steps and length >= steps + horizon)


def _scaling(panel: Panel) -> dict[str, Any]:
    """Changes from a recent level, in logarithms unless demand may be negative; for zeros see `data.scaling`.

    Where days with large sales are often followed by closed days that no column tells, networks learn best without
    logarithms, on the scale of the whole series.
    """
    if np.nanmin(panel.target) < 0:
        return {"by": "recent", "log1p": False}
    rules = closing_rules(panel)
    size = min(len(panel.target), SAMPLE // NUM_BLOCKS)
    starts = np.linspace(0, len(panel.target) - size, NUM_BLOCKS if len(panel.target) > SAMPLE else 1).astype(int)
    size = size if len(panel.target) > SAMPLE else len(panel.target)
    rows = np.concatenate([np.arange(start, start + size) for start in starts])
    y = np.where(ClosedRows(panel, rules)(rows), np.nan, panel.target[rows])
    num_closings, sold = int(((y[1:] == 0) & (y[:-1] > 0)).sum()), y[y > 0]
    if num_closings > CLOSINGS * len(y) and np.quantile(sold, 0.05) > FAR_FROM_NONE:
        return {"by": "series", "log1p": False, "zeros": "told_apart", "zero_when": rules}
    return {"by": "recent", "log1p": True, "zeros": "told_apart", "zero_when": rules}


def _reach(panel: Panel, horizon: int, length: int) -> tuple[int, int]:
    """Steps that the attention looks back, and creation times in a window.

    Three years of weeks or months, eight weeks of days, a week of hours: far enough to contain similar events, but
    never more than the panel has.
    """
    frequency = panel.axis.frequency
    season = season_of(frequency)
    if frequency.sub_daily:
        wanted, num_fcts = 7 * season, 2 * season
    elif frequency.size == DAY:  # days or business days
        wanted, num_fcts = max(8 * season, 2 * horizon), 8 * season
    else:
        wanted, num_fcts = 3 * max(season, 4), max(season, 12)
    lookback = max(1, min(wanted, length - horizon - 1))
    return lookback, max(1, min(max(num_fcts, horizon), length - 1))


def _doubling(total: int) -> tuple[int, ...]:
    """1, 2, 4 … with a sum of at most `total`; at least one."""
    dilations = [1]
    while sum(dilations) + 2 * dilations[-1] <= total:
        dilations.append(2 * dilations[-1])
    return tuple(dilations)
