"""Implausible forecasts as tables, in words, and as one warning."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrameT

from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import show_time
from mqcast.data.schema import Schema
from mqcast.errors import LONGEST_QUOTED, ConfigError, ImplausibleForecastWarning, quoted, shortened, warn
from mqcast.evaluation.plausibility import MULTIPLE, Sold, Verdict, judge
from mqcast.evaluation.reading import Actuals, Forecasts, Models, actuals_table, forecast_tables, names_in
from mqcast.evaluation.tables import ForecastTable, actuals_of
from mqcast.levels import percentile

TOO_LARGE, NEGATIVE = "too large", "negative"
REMEDY = "List them with mqcast.implausible(forecasts, actuals)."
REMEDY_OF_LARGE = (
    "Such values dominate every mean: check how the forecaster scales its target, and until that is fixed compare the "
    "median over the series (evaluate by the id)."
)
REMEDY_OF_LEVELS = "Recalibrate these levels before you order by them."


def implausible(
    forecasts: Forecasts[IntoDataFrameT] | Models[IntoDataFrameT],
    actuals: Actuals,
    multiple: float = MULTIPLE,
    *,
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> "Implausible[IntoDataFrameT]":
    """Find implausible forecasts in a frame, or in {model: frame}. See `Implausible`.

    actuals: all known demand. Forecasts of future dates are checked too.

    >>> from mqcast import implausible
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> wrong = forecasts.with_columns(forecasts["q0.9"] * 1e6)
    >>> bool(implausible(forecasts, world.actuals)), bool(implausible(wrong, world.actuals))
    (False, True)
    """
    if isinstance(multiple, bool) or not isinstance(multiple, int | float | np.number) or not 1 <= multiple < np.inf:
        raise ConfigError(f"multiple is {multiple!r}; give a number of 1 or more, such as {MULTIPLE:g}")
    names = names_in(forecasts, schema, id=id, time=time, target=target)
    tables, observed = forecast_tables(forecasts, names), actuals_table(actuals, names)
    return Implausible(
        [_verdict(str(model), table, Sold(observed), float(multiple)) for model, table in tables.items()]
    )


def _verdict(model: str, table: ForecastTable, sold: Sold, multiple: float) -> Verdict:
    actual = actuals_of(table, sold.actuals, "drop", may_be_none=True)[table.trajectory]
    return judge(model, table, sold, actual, multiple)


@dataclass(frozen=True, eq=False)
class Implausible(Generic[IntoDataFrameT]):
    """The result of `implausible`; true if any forecast is implausible. `print` gives a summary in words.

    rows       one row per implausible forecast, worst first: id, cutoff, date, horizon, quantile (the worst level),
               forecast (its value), largest (the largest value ever sold), multiple (of that), reason
    counts     one row per model: the number of forecasts and series; too_large, negative (forecasts), series_affected,
               all_zero (series that always sell and are forecast to sell nothing)
    all_zero   those series
    coverage   badly calibrated levels: quantile, coverage (share of actuals at or below it), forecasts

    For several models, each table has a column `model`.
    """

    verdicts: list[Verdict]

    def __bool__(self) -> bool:
        return any(self.verdicts)

    def __str__(self) -> str:
        return in_words(self.verdicts) or "No forecast is implausible."

    @property
    def rows(self) -> IntoDataFrameT:
        table = pl.concat([self._named(one, worst_rows(one)) for one in self.verdicts])
        return self._frame_types.to_native(
            table.sort("multiple", descending=True, nulls_last=True, maintain_order=True), self._id
        )

    @property
    def counts(self) -> IntoDataFrameT:
        return self._frame_types.to_native(pl.concat([self._named(one, _counts(one)) for one in self.verdicts]))

    @property
    def all_zero(self) -> IntoDataFrameT:
        tables = []
        for one in self.verdicts:
            ids = pl.Series(one.forecasts.ids, dtype=pl.String).gather(one.zeros)
            tables.append(self._named(one, pl.DataFrame({self._id: ids})))
        return self._frame_types.to_native(pl.concat(tables), self._id)

    @property
    def coverage(self) -> IntoDataFrameT:
        tables = []
        for one in self.verdicts:
            levels = [(each.level, each.coverage, each.rows) for each in one.levels]
            kinds = {"quantile": pl.Float64, "coverage": pl.Float64, "forecasts": pl.Int64}
            tables.append(self._named(one, pl.DataFrame(levels, schema=kinds, orient="row")))
        return self._frame_types.to_native(pl.concat(tables))

    @property
    def _frame_types(self) -> FrameTypes:
        return self.verdicts[-1].forecasts.frame_types

    @property
    def _id(self) -> str:
        return self.verdicts[-1].forecasts.names.id

    def _named(self, one: Verdict, table: pl.DataFrame) -> pl.DataFrame:
        return table.select(pl.lit(one.model).alias("model"), pl.all()) if one.model else table


def worst_rows(one: Verdict, most: int | None = None) -> pl.DataFrame:
    """The worst rows: the first `most`, or all."""
    rows, names = one.rows[:most], one.forecasts.names
    reason = pl.Series(np.where(one.is_negative[:most].astype(bool), NEGATIVE, TOO_LARGE), dtype=pl.String)
    return pl.DataFrame(
        {
            names.id: pl.Series(one.forecasts.ids, dtype=pl.String).gather(one.forecasts.item[rows]),
            names.cutoff: one.forecasts.clock.dates(one.forecasts.cutoff[rows]),
            names.time: one.forecasts.clock.dates(one.forecasts.time[rows]),
            names.horizon: pl.Series(one.forecasts.lead[rows], dtype=pl.Int32),
            "quantile": np.array(one.forecasts.levels)[one.place[:most].astype(int)],
            "forecast": one.value[:most],
            "largest": pl.Series(one.measure[:most], dtype=pl.Float64).fill_nan(None),
            "multiple": pl.Series(one.times[:most], dtype=pl.Float64).fill_nan(None),
            "reason": reason,
        }
    )


def _counts(one: Verdict) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "forecasts": one.forecasts.num_rows,
            "series": len(np.unique(one.forecasts.item)),
            "too_large": one.num_large,
            "negative": len(one.rows) - one.num_large,
            "series_affected": one.num_series(),
            "all_zero": len(one.zeros),
        }
    )


def warn_of(verdicts: Iterable[Verdict]) -> None:
    """Give one warning about all implausible forecasts, if there are any."""
    if text := in_words(verdicts):
        warn(text, ImplausibleForecastWarning)


def in_words(verdicts: Iterable[Verdict]) -> str:
    """What is implausible and what to do about it; empty if nothing is."""
    bad = [one for one in verdicts if one]
    return " ".join([*map(sentences, bad), *remedies(bad)])


def remedies(verdicts: Iterable[Verdict]) -> list[str]:
    verdicts = list(verdicts)
    texts = [REMEDY] if any(len(one.rows) or len(one.zeros) for one in verdicts) else []
    texts += [REMEDY_OF_LARGE] if any(one.num_large for one in verdicts) else []
    return texts + ([REMEDY_OF_LEVELS] if any(one.levels for one in verdicts) else [])


def sentences(one: Verdict) -> str:
    """What is implausible in the forecasts of one model."""
    large, rows, texts = one.num_large, f"{one.forecasts.num_rows:,} forecasts", []
    if large:
        texts.append(
            f"{large:,} of {rows}, of {one.num_series(slice(large)):,} series, are more than {one.multiple:g} times "
            f"the largest value of their series. {_worst(one, 0)}"
        )
    if large < len(one.rows):
        texts.append(
            f"{len(one.rows) - large:,} of {rows}, of {one.num_series(slice(large, None)):,} series, are negative, "
            f"although no actual is. {_worst(one, large)}"
        )
    if len(one.zeros):
        shown = ", ".join(quoted(one.forecasts.ids[i]) for i in one.zeros[:3])
        texts.append(
            f"{len(one.zeros):,} series that sold on every date are forecast to sell nothing: {shown}"
            f"{' …' if len(one.zeros) > 3 else '.'}"
        )
    texts += [
        f"{each.coverage:.1%} of {each.rows:,} actuals are at or below {percentile(each.level)}." for each in one.levels
    ]
    return (f"{shortened(one.model, LONGEST_QUOTED)}: " if one.model else "") + " ".join(texts)


def _worst(one: Verdict, place: int) -> str:
    row, forecasts = one.rows[place], one.forecasts
    where = (
        f"The worst: series {quoted(forecasts.ids[forecasts.item[row]])}, cutoff "
        f"{show_time(int(forecasts.cutoff[row]))}, date {show_time(int(forecasts.time[row]))}, "
        f"{forecasts.columns[one.place[place]]} is {one.value[place]:.4g}"
    )
    if one.is_negative[place]:
        return f"{where}."
    return f"{where}, {one.times[place]:.3g} times the largest value, {one.measure[place]:.4g}."
