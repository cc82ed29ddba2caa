"""Which creation times are trained on, and which are validated on."""

from mqcast.data.frequency import show_time
from mqcast.data.layout import Layout
from mqcast.data.panel import Panel
from mqcast.data.views import known_at, read_as
from mqcast.data.windows import Span, as_time
from mqcast.errors import ConfigError
from mqcast.settings import RunConfig


def training_spans(panel: Panel, config: RunConfig) -> tuple[Span, Span | None]:
    """The spans of training and, if there is one, of validation; by default they end with the panel."""
    split, horizon = config.split, config.window.horizon
    last = panel.last_observed_series
    valid = panel.last_observed_time() if split.valid_until is None else as_time(split.valid_until, panel.axis)
    if split.train_until is not None:
        train = as_time(split.train_until, panel.axis)
    elif config.train.patience is None:
        train = valid
    else:
        before = panel.last_observed[last] - panel.steps_until(valid)[last]
        train = panel.last_observed_time(horizon + max(int(before), 0))
    if not panel.span[0] <= train <= valid:
        raise ConfigError(
            f"training would end at {show_time(train)} and validation at {show_time(valid)}; both must be inside the "
            'panel, in this order. Set split.train_until and split.valid_until, or patience = "none" to train on all '
            "dates"
        )
    if config.train.patience is not None and train == valid:
        raise ConfigError('early stopping needs a validation span; set split.train_until earlier, or patience = "none"')
    return Span(None, train, train), Span(train, valid, valid) if train < valid else None


def known_to_training(panel: Panel, config: RunConfig, layout: Layout | None = None, until: int | None = None) -> Panel:
    """What training may use: with `train_until`, the panel as known at that time (or at `until`), otherwise all of it.

    If a layout is given, categories and holidays are taken from it.
    """
    if config.split.train_until is not None:
        until = as_time(config.split.train_until, panel.axis) if until is None else until
        return known_at(panel, until, layout)
    return panel if layout is None else read_as(panel, layout)
