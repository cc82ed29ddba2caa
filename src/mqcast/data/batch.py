"""Windows of a panel as tensors: B windows, T steps of input (the creation times among them), H horizons, R reach."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mqcast.data.covariates import CategoryFilter, NumberScaler
from mqcast.data.inputs import Inputs
from mqcast.data.panel import Panel
from mqcast.data.scaling import BoundScaler, Scales, TargetScaler
from mqcast.data.values import UNKNOWN
from mqcast.data.windows import Windows, as_time
from mqcast.errors import ConfigError
from mqcast.settings import ScalingConfig, WindowConfig

MOST_LEARNT = 100.0  # of the largest value so far: targets are limited to this multiple in training
Spans = tuple[tuple[int, int], ...]  # first and last steps ahead
FAR_INPUT = 8.0  # the scaled target is compressed beyond this as an input


@dataclass(frozen=True)
class Batch:
    """The inputs and targets of B windows. `span` is T + H, `reach_span` is R + T + H + R, `shared` is 1 or B.

    A creation time t may use `values`, `observed` and the past columns up to t, the known columns up to t + H, and the
    global columns up to t + H + R. `values` is the target, and 0 where it is not observed; on the scale of a creation
    time it is (f(values / unit) − loc) / scale, with f the logarithm of 1 + x or, unless `log1p`, x itself.
    """

    values: Float[Tensor, "batch span"]
    observed: Bool[Tensor, "batch span"]
    begun: Bool[Tensor, "batch span"]  # the series has started by this step
    loc: Float[Tensor, "batch time"]
    scale: Float[Tensor, "batch time"]
    unit: Float[Tensor, "batch time"]
    knee: Float[Tensor, "batch time"]  # above it f continues as a straight line
    is_fct: Bool[Tensor, "batch time"]  # this creation time is scored
    past_number: Float[Tensor, "batch time past_numbers"]
    past_observed: Bool[Tensor, "batch time past_numbers"]
    past_category: Int[Tensor, "batch time past_categories"]
    known_number: Float[Tensor, "batch span known_numbers"]
    known_category: Int[Tensor, "batch span known_categories"]
    precedent: Float[Tensor, "batch span precedents"]  # f of the target some steps earlier; NaN where unknown
    precedent_level: Float[Tensor, "batch time precedents"]  # the level as many steps before each creation time
    global_number: Float[Tensor, "shared reach_span global_numbers"]  # holidays, waves of the year, events
    global_category: Int[Tensor, "shared reach_span global_categories"]  # calendar, then events
    static_number: Float[Tensor, "batch static_numbers"]
    static_category: Int[Tensor, "batch static_categories"]
    series: Int[Tensor, " batch"]  # indices in the panel
    start: Int[Tensor, " batch"]  # step of the first input
    num_fcts: int  # creation times of the windows: the last steps of T
    log1p: bool = False

    @property
    def horizon(self) -> int:
        return self.values.shape[1] - self.loc.shape[1]

    def inputs(self) -> Float[Tensor, "batch time"]:
        """The scaled target up to each creation time; 0 where it is not observed."""
        return self._inputs

    @cached_property
    def _inputs(self) -> Float[Tensor, "batch time"]:
        num_steps = self.loc.shape[1]
        scales = (self.loc, self.scale, self.unit, self.knee)
        scaled = scaled_inputs(self.values[:, :num_steps], *scales, log1p=self.log1p)
        return torch.where(self.observed[:, :num_steps], scaled, 0.0)

    def targets(self, num_fcts: int | None = None, spans: Spans = ()) -> Float[Tensor, "batch row fct"]:
        """The scaled target of every creation time and horizon: [b, h−1, t] is that of step t+h on t's scale.

        With `num_fcts`, only of the last creation times. After the horizons, a row for each span: the mean over it.
        """
        knee, values = self.knee[:, None], self._ahead(self.values)
        values = with_spans(values, spans, lambda steps: steps.mean(dim=1)).minimum(MOST_LEARNT * knee)
        ahead = transformed(values, self.unit[:, None], knee, self.log1p)
        scaled = (ahead - self.loc[:, None]) / self.scale[:, None]
        return scaled if num_fcts is None else scaled[:, :, -num_fcts:]

    def precedents(self, num_fcts: int | None = None) -> Float[Tensor, "batch fct horizon precedents"]:
        """How far the target k steps before t + h was from the level k steps before t, on the scale of t.

        It says how demand went on from here a year ago. 0 where it is unknown. With `num_fcts`, only of the last ones.
        """
        num_fcts = self.loc.shape[1] if num_fcts is None else num_fcts
        values = self.precedent[:, 1 - num_fcts - self.horizon :].unfold(1, self.horizon, 1).transpose(2, 3)
        level, scale = self.precedent_level[:, -num_fcts:], self.scale[:, -num_fcts:]
        scaled = (values - level[:, :, None]) / scale[:, :, None, None]
        return compressed(scaled).nan_to_num(0.0)

    def is_scored(self, num_fcts: int | None = None, spans: Spans = ()) -> Bool[Tensor, "batch row fct"]:
        """Which targets count in the loss; of a span, all must be observed."""
        observed = with_spans(self._ahead(self.observed), spans, lambda steps: steps.all(dim=1))
        scored = observed & self.is_fct[:, None]
        return scored if num_fcts is None else scored[:, :, -num_fcts:]

    def unscaled(self, outputs: Float[Tensor, "batch row fct quantile"]) -> np.ndarray:
        """The outputs of a network for the last creation times, in units of demand, in float64."""
        loc, scale, unit, knee = (
            x[:, None, -outputs.shape[2] :, None].cpu().double() for x in (self.loc, self.scale, self.unit, self.knee)
        )
        z = loc + scale * outputs.cpu().double()
        if not self.log1p:
            return z.numpy()
        at_knee = torch.log1p(knee / unit)
        return (unit * torch.expm1(z.minimum(at_knee)) + (knee + unit) * (z - at_knee).relu()).numpy()

    def _ahead(self, steps: Tensor) -> Tensor:
        return steps[:, 1:].unfold(1, self.loc.shape[1], 1)

    def tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("num_fcts", "log1p")}

    def to(self, device: torch.device | str) -> "Batch":
        return replace(self, **{name: x.to(device, non_blocking=True) for name, x in self.tensors().items()})


def with_spans(ahead: Tensor, spans: Spans, over: Callable[[Tensor], Tensor]) -> Tensor:
    """(B, H, …) with rows of spans after those of the horizons; `over` joins the steps of a span."""
    if not spans:
        return ahead
    return torch.cat([ahead, *(over(ahead[:, first - 1 : last])[:, None] for first, last in spans)], dim=1)


def transformed(values: Tensor, unit: Tensor, knee: Tensor, log1p: bool) -> Tensor:
    """f(values / unit)."""
    if not log1p:
        return values
    return torch.log1p(values.minimum(knee) / unit) + (values - knee).relu() / (knee + unit)


def scaled_inputs(values: Tensor, loc: Tensor, scale: Tensor, unit: Tensor, knee: Tensor, *, log1p: bool) -> Tensor:
    """Values on their own scale, compressed beyond FAR_INPUT."""
    return compressed((transformed(values, unit, knee, log1p) - loc) / scale)


def compressed(scaled: Tensor) -> Tensor:
    """Logarithmic beyond FAR_INPUT."""
    size = scaled.abs()
    return torch.where(size > FAR_INPUT, scaled.sign() * (FAR_INPUT + (size - FAR_INPUT).relu().log1p()), scaled)


class Assembler:
    """Turns windows of one panel into batches."""

    def __init__(
        self,
        panel: Panel,
        config: WindowConfig,
        target: TargetScaler,
        number: NumberScaler,
        category: CategoryFilter,
    ):
        self.panel, self.config = panel, config
        self.target: BoundScaler = target.on(panel)
        self.number, self.category = number, category
        self.echoes, self.level_steps = target.config.echoes, target.config.level_steps
        self.calendar = panel.calendar.as_indicators() if target.config.raw_calendar else panel.calendar
        if short := [echo for echo in self.echoes if echo < config.horizon]:
            raise ConfigError(f"scaling.echoes has {short[0]}, less than the horizon; give at least {config.horizon}")

    @classmethod
    def fit(cls, panel: Panel, config: WindowConfig, scaling: ScalingConfig, until: Any = None) -> "Assembler":
        """An assembler with scales and categories fitted to data up to `until`: a date, or a time of the axis."""
        until = until if until is None or isinstance(until, int) else as_time(until, panel.axis)
        target, number = TargetScaler.fit(panel, scaling, until), NumberScaler.fit(panel, until, scaling.level_steps)
        return cls(panel, config, target, number, CategoryFilter.fit(panel, until))

    @property
    def inputs(self) -> Inputs:
        """The widths of its batches."""
        inputs = Inputs.of(self.panel, self.calendar)
        return inputs.replace(
            past_numbers=inputs.past_numbers + self.number.num_relative("past"),
            known_numbers=inputs.known_numbers + self.number.num_relative("known") + 2 * len(self.echoes),
            echo_numbers=2 * len(self.echoes),
            precedents=len(self.echoes),
        )

    def on_windows(self, config: WindowConfig) -> "Assembler":
        """The same transforms for windows of another shape."""
        return Assembler(self.panel, config, self.target.scaler, self.number, self.category)

    def on_panel(self, panel: Panel) -> "Assembler":
        """The same transforms for another panel of the same layout."""
        return Assembler(panel, self.config, self.target.scaler, self.number, self.category)

    def begun_steps(self, windows: Windows) -> int:
        """How many steps before their creation times one of the windows' series has; at most the history."""
        before = windows.start - self.panel.first_step[windows.series]
        return int(np.clip(before.max(initial=1), 1, self.config.history))

    def __call__(self, windows: Windows, history: int | None = None) -> Batch:
        """`history`: fewer steps than the windows were planned with."""
        config, panel = self.config, self.panel
        history = config.history if history is None else history
        panel.require_whole_files()
        if windows.num_fcts > config.num_fcts:
            raise ConfigError(
                f"the windows have more than {config.num_fcts} creation times; plan them with the same config"
            )
        num_steps = history + windows.num_fcts
        span = num_steps + config.horizon
        start = windows.start - history
        steps = start[:, None] + np.arange(span)
        rows, exists = panel.rows_at(windows.series, start, span)
        begun = steps >= panel.first_step[windows.series][:, None]
        visible = exists & (steps <= windows.last_target[:, None])
        y = np.where(visible, self.target.target.rows(rows, windows.series[:, None]), np.nan)
        observed = ~np.isnan(y)
        back = max(self.echoes, default=0)
        earlier = self.target.at(windows.series, start - back, back + num_steps, windows.last_target)
        scales = earlier.between(back, back + num_steps)
        fct = steps[:, :num_steps]
        is_fct = (fct >= windows.first_fct[:, None]) & (fct <= windows.last_fct[:, None])
        is_fct &= self.target.target.is_selling(windows.series, fct)
        past = rows[:, :num_steps], visible[:, :num_steps, None]
        past_number = np.where(past[1], panel.arrays["past_number"][past[0]], np.nan)
        known_number = np.where(exists[..., None], panel.arrays["known_number"][rows], np.nan)
        past_relative, past_seen = self._relative("past", windows, start, num_steps)
        known_relative, _ = self._relative("known", windows, start, span)
        then = {echo: earlier.between(back - echo, back - echo + span) for echo in self.echoes}
        echoes = [self._echo(windows, start - echo, scales) for echo, scales in then.items()]
        levels = [self._level(windows, start - echo, scales.between(0, num_steps)) for echo, scales in then.items()]
        global_number, global_category = self._global(windows.series, start, span, windows.last_fct)
        return Batch(
            values=_float(np.where(observed, y, 0)),
            observed=torch.from_numpy(observed),
            begun=torch.from_numpy(begun),
            loc=_float(scales.loc),
            scale=_float(scales.scale),
            unit=_float(scales.unit),
            knee=_float(scales.knee),
            is_fct=torch.from_numpy(is_fct & _any_ahead(observed, config.horizon)),
            past_number=_float(np.concatenate((self.number.forward("past", past_number), past_relative), axis=-1)),
            past_observed=torch.from_numpy(np.concatenate((~np.isnan(past_number), past_seen), axis=-1)),
            past_category=self._codes("past", past[0], past[1]),
            known_number=_float(
                np.concatenate(
                    (self.number.forward("known", known_number), known_relative, *(echo for echo, _ in echoes)), axis=-1
                )
            ),
            known_category=self._codes("known", rows, exists[..., None]),
            precedent=_stacked([precedent for _, precedent in echoes], (len(windows), span)),
            precedent_level=_stacked(levels, (len(windows), num_steps)),
            global_number=_float(global_number),
            global_category=_int(global_category),
            static_number=_float(self.number.forward("static", panel.arrays["static_number"][windows.series])),
            static_category=self._codes("static", windows.series),
            series=_int(windows.series),
            start=_int(start),
            num_fcts=windows.num_fcts,
            log1p=self.target.scaler.config.log1p,
        )

    def _relative(self, block: str, windows: Windows, start: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """(B, width, columns): numbers relative to their own level, and whether they are known."""
        if not self.number.num_relative(block):
            return np.zeros((len(windows), width, 0)), np.zeros((len(windows), width, 0), bool)
        first = start - self.level_steps + 1
        rows, exists = self.panel.rows_at(windows.series, first, self.level_steps - 1 + width)
        if block == "past":
            exists &= first[:, None] + np.arange(exists.shape[1]) <= windows.last_target[:, None]
        values = np.where(exists[..., None], self.panel.arrays[f"{block}_number"][rows], np.nan)
        own = self.number.own[block]
        return own(values, self.level_steps), ~np.isnan(values[:, self.level_steps - 1 :, own.columns])

    def _echo(self, windows: Windows, start: np.ndarray, scales: Scales) -> tuple[np.ndarray, np.ndarray]:
        """(B, span, 2): the target from `start` on, scaled as at that time, and whether it is known.

        (B, span): the same as f of the target, whatever the unit; NaN where it is unknown.
        """
        rows, exists = self.panel.rows_at(windows.series, start, scales.loc.shape[1])
        y = np.where(exists, self.target.target.rows(rows, windows.series[:, None]), np.nan)
        observed = ~np.isnan(y)
        log1p = self.target.scaler.config.log1p
        values, loc, scale, unit, knee = (_float(part) for part in (np.where(observed, y, 0), *scales.parts()))
        scaled = scaled_inputs(values, loc, scale, unit, knee, log1p=log1p).where(torch.from_numpy(observed), 0.0)
        whole = transformed(values, unit, knee, log1p) + (unit.log() if log1p else 0.0)
        return np.stack((scaled.numpy(), observed), axis=-1), np.where(observed, whole.numpy(), np.nan)

    def _level(self, windows: Windows, start: np.ndarray, scales: Scales) -> np.ndarray:
        """(B, T): f of the level from `start` on, whatever the unit; NaN before a series' first sale."""
        steps = start[:, None] + np.arange(scales.loc.shape[1])
        begun = steps >= self.panel.first_step[windows.series][:, None]
        begun &= self.target.target.is_selling(windows.series, steps)
        return np.where(begun, scales.loc + (np.log(scales.unit) if self.target.scaler.config.log1p else 0.0), np.nan)

    def _codes(self, block: str, rows: np.ndarray, exists: np.ndarray | bool = True) -> Tensor:
        codes = self.category.forward(block, self.panel.arrays[f"{block}_category"][rows])
        return _int(np.where(exists, codes, UNKNOWN))

    def _global(
        self, series: np.ndarray, start: np.ndarray, span: int, last_fct: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Holidays, events and calendar, with R steps beyond both ends; stored once if all windows share their dates.

        Creation times up to `last_fct` are scored.
        """
        panel, calendar, reach = self.panel, self.calendar, self.config.reach
        if panel.schema.time_grid == "calendar" and (start == start[:1]).all():
            series, start, last_fct = series[:1], start[:1], last_fct.max(keepdims=True, initial=0)[: len(start)]
        times = panel.times_at(series, start - reach, span + 2 * reach)
        if times.size:  # the share of a rank may be empty in a small batch
            last_seen = last_fct - start + self.config.horizon + 2 * reach
            panel.warn_of_event_reach(int(np.take_along_axis(times, last_seen[:, None], axis=1).max()))
        number, category = panel.events_at(times)
        flags, waves, codes = (of(times) for of in (calendar.flags, calendar.waves, calendar.categories))
        number, category = self.number.forward("event", number), self.category.forward("event", category)
        return np.concatenate((flags, waves, number), axis=-1), np.concatenate((codes, category), axis=-1)


def _stacked(columns: list[np.ndarray], shape: tuple[int, int]) -> Tensor:
    return _float(np.stack(columns, axis=-1) if columns else np.zeros((*shape, 0)))


def _any_ahead(observed: np.ndarray, horizon: int) -> np.ndarray:
    """(B, T): whether any of the next `horizon` steps is observed."""
    counts = np.cumsum(observed, axis=1)
    return counts[:, horizon:] > counts[:, :-horizon]


def _float(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def _int(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
