"""A rehearsal of training on all but the last dates: how long to train, and how far to trust the quantiles.

A network is trained up to the held-out dates and validated on them as it goes. How many steps were best is how long the
network is then trained on all dates, and what the rehearsed forecasts of the held-out dates missed calibrates it.
"""

from typing import TYPE_CHECKING

from mqcast.models.holdout import Holdout
from mqcast.settings import RunConfig

if TYPE_CHECKING:
    from mqcast.run import Run

SHARE = 0.4  # of max_minutes
VALIDATIONS, PATIENCE = 30, 6  # while it trains, and without improvement before it stops
MOST_WINDOWS = 512  # that a validation looks at
AVERAGE = 0.97  # decay of the weights' average: as if the learning rate had fallen already
LEAST_STEPS = 50


def rehearsal_of(config: RunConfig, holdout: Holdout) -> RunConfig:
    """The settings of the rehearsal."""
    steps, minutes, until = config.train.max_steps, config.train.max_minutes, config.split.train_until
    train = config.train.replace(
        refit=False,
        average=AVERAGE,
        patience=PATIENCE,
        validate_every=max(1, (steps or VALIDATIONS) // VALIDATIONS),
        max_validation_windows=MOST_WINDOWS,
        max_minutes=None if minutes is None else SHARE * minutes,
    )
    return config.replace(train=train, split={"train_until": holdout.first, "valid_until": until})


def after_rehearsal(config: RunConfig, steps: int, minutes: float) -> RunConfig:
    """The settings of the training on all dates, once the length is found and so many minutes have passed."""
    steps, most = max(steps, LEAST_STEPS), config.train.max_minutes
    train = config.train.replace(
        max_steps=steps,
        warmup_steps=min(config.train.warmup_steps, steps // 10),
        max_minutes=None if most is None else max(most - minutes, 0.01 * most),
    )
    return config.replace(train=train)


def best_step(run: "Run") -> tuple[int, float]:
    """The step with the lowest validation loss, and the minutes that the rehearsal has taken."""
    from mqcast.train.records import kept_line, read_metrics

    lines = read_metrics(run.metrics)
    return kept_line(lines, run.config.train.patience)["step"], lines[-1]["seconds"] / 60
