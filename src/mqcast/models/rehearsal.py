"""A rehearsal of training on all but the last dates: how long to train, and how far to trust the quantiles.

A network is trained up to the held-out dates and validated on them as it goes. The network is then trained on all
dates: for as many steps as were best, if they were clearly better than more; for a number in between, if they were not
clearly better, or if the rehearsal had less than a year to learn from; and for `max_steps`, if it was still learning at
its end. How the rehearsed forecasts missed calibrates its quantiles.
"""

import math
from typing import TYPE_CHECKING

from mqcast.models.holdout import Holdout
from mqcast.settings import RunConfig

if TYPE_CHECKING:
    from mqcast.run import Run

SHARE = 0.25  # of max_minutes: one member, before three
VALIDATIONS = 20
STILL_LEARNING = 0.8  # of all steps: if the best ones are later, more may be better
MOST_BEYOND = 2.0  # times as long as a rehearsal that was cut off by the clock
CLEARLY = 0.97  # a shorter training is better if its loss is below this share of the last one
SHORTEST = 0.2  # of the rehearsal's steps
MOST_WINDOWS = 512  # that a validation looks at
AVERAGE = 0.97  # decay of the weights' average: as if the learning rate had fallen already


def rehearsal_of(config: RunConfig, holdout: Holdout) -> RunConfig:
    """The settings of the rehearsal, by one member alone."""
    steps, minutes, until = config.train.max_steps, config.train.max_minutes, config.split.train_until
    train = config.train.replace(
        refit=False,
        average=AVERAGE,
        patience=10 * VALIDATIONS,  # to the end, and keep the best weights
        validate_every=max(1, (steps or VALIDATIONS) // VALIDATIONS),
        max_validation_windows=MOST_WINDOWS,
        max_minutes=None if minutes is None else SHARE * minutes,
    )
    split = {"train_until": holdout.first, "valid_until": until}
    return config.replace(train=train, split=split, model=config.model.replace(members=1))


def after_rehearsal(config: RunConfig, holdout: Holdout, rehearsal: "Run", may_have_fewer: bool = False) -> RunConfig:
    """The settings of the training on all dates: its length, and the minutes that are left for it.

    Where time is short, one member that has learnt enough is better than several that have not: with `may_have_fewer`
    there are only as many members as can be trained for all steps.
    """
    from mqcast.train.records import read_metrics

    lines = [line for line in read_metrics(rehearsal.metrics) if line["record"] == "epoch"]
    best, last, minutes = min(lines, key=lambda line: line["valid_loss"]), lines[-1], config.train.max_minutes
    if best["step"] >= STILL_LEARNING * last["step"]:
        steps = min(config.train.max_steps or last["step"], int(MOST_BEYOND * last["step"]))
    else:
        is_clear = best["valid_loss"] < CLEARLY * last["valid_loss"]
        steps = best["step"] if is_clear else int(math.sqrt(best["step"] * last["step"]))
    if config.scaling.echoes and not holdout.knows_a_year:
        steps = max(steps, int(math.sqrt(steps * last["step"])))
    steps, members = max(steps, int(SHORTEST * last["step"])), config.model.members
    if minutes is not None:
        minutes = max(minutes - last["seconds"] / 60, 0.01 * minutes)
        num_affordable = int(60 * minutes / (steps * last["seconds"] / last["step"]))
        members = max(1, min(members, num_affordable)) if may_have_fewer else members
    train = config.train.replace(
        max_steps=steps, warmup_steps=min(config.train.warmup_steps, steps // 10), max_minutes=minutes
    )
    return config.replace(train=train, model=config.model.replace(members=members))
