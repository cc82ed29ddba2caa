"""What a report is made from: forecasters' frames and actuals, and what a panel and a trained network add to them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.export import UNSEEN, Frames, frames_of
from mqcast.data.frame_types import FrameTypes
from mqcast.data.panel import Panel
from mqcast.data.schema import Role, Schema
from mqcast.data.windows import as_time
from mqcast.errors import ConfigError
from mqcast.evaluation.columns import distinct
from mqcast.evaluation.reading import actuals_table, forecast_table, names_in
from mqcast.evaluation.slices import Slice, Slices, flattened, peaks, promotions, ramp_down, short_horizons, top_periods
from mqcast.evaluation.tables import ActualsTable, ForecastTable, common_rows
from mqcast.settings import nearest

KEYS = ("unique_id", "cutoff", "ds", "horizon")
MOST_EVENTS = 8  # that have a slice of their own
WITHOUT = "without "
MOST_NUMBERS, MOST_ABOUT = 2, 6  # that are drawn; static columns that are told of an item
PRICES = re.compile(r"(?:^|[^a-z])(?:prices?|discounts?|markdowns?|preise?|rabatte?)(?:[^a-z]|$)")
ALL_EVENTS, RAMP_DOWN = "Peaks: all events", "Ramp-down: 2 steps after"


@dataclass(frozen=True, eq=False)
class Trained:
    """Details of a trained network, in plain frames.

    explain     ids → attention weights by date, as of `Forecaster.explain`; None: it has no attention
    encodings   ds, channel, value: the learned position of each date; None: it has none
    """

    metrics: Sequence[dict[str, Any]] = ()
    config: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    explain: Callable[[Sequence[str]], pl.DataFrame] | None = None
    encodings: pl.DataFrame | None = None


@dataclass(frozen=True, eq=False)
class Calendar:
    """Dates that are special, as a panel knows them."""

    panel: Panel

    @cached_property
    def frames(self) -> Frames:
        return frames_of(self.panel)

    @cached_property
    def promotions(self) -> pl.DataFrame | None:
        """unique_id, ds, and a column for each known flag; None without flags."""
        flags = self.flags(("known",))
        return flags if flags.width > 2 else None

    def flags(self, roles: Sequence[Role]) -> pl.DataFrame:
        """unique_id, ds, and a column for each flag of these roles, for every row of the panel.

        Of a flag that most rows have, such as `open`, the rows that lack it are the special ones: `without open`.
        """
        schema, rows = self.panel.schema, self.frames.rows
        flags = [name for role in roles for name in self._numbers_of(role) if name in self._is_flag]
        usual = {name for name in flags if (rows[name].mean() or 0) > 0.5}  # type: ignore[operator]
        shown = {name: f"{name} (flag)" if name in KEYS else name for name in flags}
        marked = [
            (pl.col(name) == (name not in usual)).alias(f"{WITHOUT}{shown[name]}" if name in usual else shown[name])
            for name in flags
        ]
        keys = pl.col(schema.id).alias("unique_id"), pl.col(schema.time).alias("ds")
        return rows.select(*keys, *marked)

    def _numbers_of(self, role: Role) -> list[str]:
        """Columns of numbers; not what fill adds."""
        return [name for name in self.panel.schema.numbers(role) if name in self.frames.rows.columns]

    @cached_property
    def _is_flag(self) -> set[str]:
        names = [*self._numbers_of("known"), *self._numbers_of("past")]
        return {name for name in names if self.frames.rows[name].is_in([0.0, 1.0]).all()}

    @cached_property
    def numbers(self) -> list[str]:
        """Columns that are drawn below the sales: prices, known and past; then other known numbers."""
        known = [name for name in self._numbers_of("known") if name not in self._is_flag]
        past = [name for name in self._numbers_of("past") if name not in self._is_flag]
        prices = [name for name in (*known, *past) if PRICES.search(name.lower())]
        return list(dict.fromkeys([*prices, *known]))[:MOST_NUMBERS]

    @cached_property
    def about(self) -> dict[str, dict[str, str]]:
        """Id → what its static columns of text say."""
        schema, static = self.panel.schema, self.frames.static
        if static is None:
            return {}
        names = [name for name in schema.categories("static") if name != schema.id][:MOST_ABOUT]
        rows = static.select(schema.id, *names).iter_rows(named=True)
        return {str(row.pop(schema.id)): {name: text for name, text in row.items() if text} for row in rows}

    @cached_property
    def events(self) -> dict[str, list[Any]]:
        """Holidays and events that all series share → their dates among those of the rows."""
        return self.events_on(self.frames.rows[self.panel.schema.time].unique().sort().to_list())

    def events_on(self, dates: list[Any]) -> dict[str, list[Any]]:
        """The events of the event table, and those of these dates that are holidays.

        A text that is empty, or that most dates have, such as `none`, is no event.
        """
        schema, table, events = self.panel.schema, self.frames.events, {}
        most = self.frames.rows[schema.time].n_unique() / 2
        if table is not None:
            for name in schema.numbers("events"):
                events[name] = table.filter(pl.col(name) == 1)[schema.time].to_list()
            for name in schema.categories("events"):
                for (value,), part in table.filter(pl.col(name) != UNSEEN).group_by(name, maintain_order=True):
                    if str(value).strip() and part.height <= most:
                        events[f"{name}: {value}"] = part[schema.time].sort().to_list()
        if self.panel.calendar.holidays:
            flags = self.panel.calendar.flags(np.array([as_time(date, self.panel.axis) for date in dates]))
            for i, (region, name) in enumerate(self.panel.calendar.holidays):
                events[f"{name} ({region})"] = [date for date, flag in zip(dates, flags[:, i], strict=True) if flag]
        return {name: dates for name, dates in events.items() if dates}


@dataclass(frozen=True, eq=False)
class Sources:
    """Forecasts and actuals, checked and sorted; all models have the same rows and levels.

    baseline    the model that the others are measured against
    oracle      a model that no forecaster can beat: shown, but never called the best
    totals      by forecaster: a frame of totals over spans of steps
    left_out    rows that not all models have
    """

    rows: dict[str, ForecastTable]
    observed: ActualsTable
    baseline: str
    oracle: str | None = None
    calendar: Calendar | None = None
    trained: Mapping[str, Trained] = field(default_factory=dict)
    own_slices: tuple[Slice, ...] = ()
    totals: Mapping[str, Any] = field(default_factory=dict)
    left_out: int = 0

    @classmethod
    def of(
        cls,
        forecasts: Mapping[str, Any],
        actuals: Any = None,
        *,
        schema: Schema | None = None,
        panel: Panel | None = None,
        baseline: str | None = None,
        oracle: str | None = None,
        trained: Mapping[str, Trained] | None = None,
        slices: Slices | None = None,
        totals: Mapping[str, Any] | None = None,
    ) -> "Sources":
        """Frames of any library. Left out, the actuals are the panel's, and the baseline is the last model."""
        if not forecasts:
            raise ConfigError("there is nothing to report; give {name: forecasts}")
        for name in (baseline, oracle):
            if name is not None and name not in forecasts:
                raise ConfigError(f"there is no model {name!r}{nearest(name, list(forecasts))}")
        calendar = None if panel is None else Calendar(panel)
        if actuals is None:
            if calendar is None:
                raise ConfigError("there is nothing to judge by; give actuals, or a panel")
            actuals = calendar.frames.rows
        names = names_in(forecasts, schema if schema is not None or panel is None else panel.schema)
        tables = {str(model): forecast_table(frame, names) for model, frame in forecasts.items()}
        rows, left_out = _in_common(
            {model: replace(table, frame_types=FrameTypes()) for model, table in tables.items()}
        )
        chosen = baseline or [model for model in rows if model != oracle or len(rows) == 1][-1]
        extra = tuple(flattened(slices))
        known = actuals_table(actuals, names)
        return cls(rows, known, chosen, oracle, calendar, trained or {}, extra, totals or {}, left_out)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.rows)

    @property
    def first_model(self) -> str:
        """Whose items are looked at: the first that is no oracle."""
        return next((model for model in self.models if model != self.oracle), self.models[0])

    @property
    def first(self) -> ForecastTable:
        return self.rows[self.first_model]

    @property
    def levels(self) -> tuple[float, ...]:
        """Those that all models have."""
        return self.first.levels

    @property
    def judged_levels(self) -> tuple[float, ...]:
        return headline_levels(self.levels)

    @cached_property
    def ids(self) -> list[str]:
        """Items that are forecast."""
        return [self.first.ids[i] for i in np.flatnonzero(np.bincount(self.first.item))]

    @property
    def horizon(self) -> int:
        return int(self.first.lead.max())

    def of_items(self, ids: Iterable[str]) -> "Sources":
        """The same of some items."""
        wanted = set(ids)

        def is_wanted(table: ForecastTable | ActualsTable) -> np.ndarray:
            return np.array([name in wanted for name in table.ids], bool)[table.item]

        rows = {model: table.where(is_wanted(table)) for model, table in self.rows.items()}
        return replace(self, rows=rows, observed=self.observed.where(is_wanted(self.observed)))

    @cached_property
    def promotions(self) -> pl.DataFrame | None:
        """Those of the calendar, of these items."""
        if self.calendar is None or self.calendar.promotions is None:
            return None
        wanted = pl.Series(self.ids, dtype=pl.String).implode()
        return self.calendar.promotions.filter(pl.col("unique_id").is_in(wanted))

    @property
    def events(self) -> dict[str, list[Any]]:
        return {} if self.calendar is None else self.calendar.events

    @cached_property
    def slices(self) -> list[Slice]:
        """Peaks, ramp-down, promotions by type and short horizons, as far as they are known; and the caller's own."""
        slices: list[Slices] = []
        if self.events:
            everything = {ALL_EVENTS: [date for dates in self.events.values() for date in dates]}
            slices += [peaks(everything), ramp_down(everything, name=RAMP_DOWN)]
            if len(self.events) <= MOST_EVENTS:
                slices.append(peaks({f"Peak: {name}": dates for name, dates in self.events.items()}))
        elif len(distinct(self.first.time)) > 4:
            slices.append(top_periods(self.observed, 0.05, name="Peaks: the 5 % of dates that sold most"))
        if self.promotions is not None:
            flags = [name for name in self.promotions.columns if name not in KEYS]
            named = {name: f"Promotion: {name}".replace(f"Promotion: {WITHOUT}", "Without: ") for name in flags}
            slices.append(promotions(self.promotions.rename(named), list(named.values())))
        if self.horizon > 2:
            short = math.ceil(self.horizon / 4)
            slices.append(short_horizons(short, name=f"Short horizons: 1 to {short}"))
        return flattened([*slices, list(self.own_slices)])


def headline_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """P50 and P90 if they are there, else the outermost two."""
    return (0.5, 0.9) if {0.5, 0.9} <= set(levels) else tuple(dict.fromkeys((levels[0], levels[-1])))


def _in_common(tables: dict[str, ForecastTable]) -> tuple[dict[str, ForecastTable], int]:
    """The rows and levels that all have, and how many rows are left out."""
    first, *others = tables.values()
    levels = [level for level in first.levels if all(level in table.levels for table in others)]
    if not levels:
        raise ConfigError("the forecasters share no quantile level; give frames that have one in common")
    tables = {model: table.at_levels(levels) for model, table in tables.items()}
    masks = common_rows(tables)
    if masks is None:
        return tables, 0
    if not any(mask.any() for mask in masks.values()):
        raise ConfigError(f"the forecasters {', '.join(tables)} have no row in common; give the same items and cutoffs")
    kept = {model: table.where(masks[model]) for model, table in tables.items()}
    return kept, max(table.num_rows for table in tables.values()) - next(iter(kept.values())).num_rows
