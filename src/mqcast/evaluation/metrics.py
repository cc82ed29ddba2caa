"""How good forecasts are: quantile losses, coverage, width, bias and scaled errors, by any grouping and slice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mqcast.arguments import names_of, whole_number
from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import season_of
from mqcast.data.schema import Schema
from mqcast.data.source import open_source
from mqcast.errors import ConfigError, MissingColumnError
from mqcast.evaluation.columns import columns_of, distinct, places
from mqcast.evaluation.implausible_forecasts import warn_of
from mqcast.evaluation.plausibility import Sold, judge
from mqcast.evaluation.slices import OVERALL, Slices, attribute, flattened
from mqcast.evaluation.tables import (
    Actuals,
    Crossing,
    Forecasts,
    Missing,
    Names,
    actuals_of,
    crossings,
    read_actuals,
    read_forecasts,
)
from mqcast.levels import quantile_column
from mqcast.settings import nearest


def evaluate(
    forecasts: Any,
    actuals: Any,
    by: str | Sequence[str] = (),
    *,
    slices: Slices | None = None,
    static: Any = None,
    season: int | None = None,
    missing: Missing = "raise",
    crossing: Crossing = "allow",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Any:
    """One row a group, one column a metric, in the library of the forecasts' own frame.

    forecasts: a forecast frame, or {model: frame}. by: "horizon" (or "lead"), "cutoff", the time or the id column, a
    column of `static`, or any other column of the forecasts. slices: one row each, beside one for all.

    rows                    forecasts scored
    quantile_loss_q0.5 …    mean pinball loss
    qrisk_pooled_q0.5 …     2 Σ pinball / Σ |y|, summed over all rows first: the paper's
    qrisk_tft_code_q0.5 …   the mean over horizons of that ratio at each: what TFT's published code computes
    wql                     mean of qrisk_pooled over the levels
    coverage_q0.5 …         share of actuals at or below the quantile
    width_q0.1_q0.9 …       mean width between two levels, and inside_…: the share of actuals between them
    crossing                share of forecasts in which a higher level has a lower value
    wape, bias, mase, sql   of the median: Σ |error| / Σ |y|; mean of forecast - actual; mean of |error|, and (sql) of
                            2 pinball over all levels, over the mean seasonal difference of the actuals up to the cutoff

    Warns, once, of forecasts that cannot be meant: see `implausible`.
    """
    names = Names.of(schema, id=id, time=time, target=target)
    by = names_of("by", by)
    if season is not None:
        whole_number("season", season)
    models = forecasts if isinstance(forecasts, Mapping) else {"": forecasts}
    if not models:
        raise ConfigError("there is no model; give {name: forecasts}")
    observed, chosen = read_actuals(actuals, names), flattened(slices)
    taken = {"model": isinstance(forecasts, Mapping), "slice": bool(chosen)}
    if clash := [name for name in by if taken.get(name)]:
        raise ConfigError(f"by={clash[0]!r} is a column of the answer already; rename yours")
    scales, sold = _Scales(observed, season), Sold(observed)
    found, verdicts, frame_types = [], [], FrameTypes()
    for model, frame in models.items():
        scored = scored_rows(frame, observed, names, missing, crossing)
        verdicts.append(judge(str(model), scored.rows, sold, scored.actual))
        keys, frame_types = [_group(name, scored.rows, frame, static) for name in by], scored.rows.frame_types
        for name, rows in [(OVERALL, None), *((one.name, one.of(scored.rows)) for one in chosen)]:
            table = _metrics(scored, keys, rows, scales)
            lead = ({"model": model} if taken["model"] else {}) | ({"slice": name} if chosen else {})
            found.append(table.select(*(pl.lit(value).alias(key) for key, value in lead.items()), pl.all()))
    warn_of(verdicts)
    return frame_types.to_native(pl.concat(found, how="diagonal_relaxed"), names.id if names.id in by else None)


@dataclass(frozen=True, eq=False)
class Scored:
    """Forecasts that have an actual, and the actuals."""

    rows: Forecasts
    actual: np.ndarray  # (rows,)


@dataclass(frozen=True, eq=False)
class _Group:
    """A column to group by: the code of each row, and what the codes stand for."""

    name: str
    codes: np.ndarray
    labels: pl.Series


def scored_rows(frame: Any, actuals: Actuals, names: Names, missing: Missing, crossing: Crossing = "allow") -> Scored:
    rows = read_forecasts(frame, names, crossing=crossing)
    actual = actuals_of(rows, actuals, missing)[rows.trajectory]
    known = ~np.isnan(actual)
    return Scored(rows, actual) if known.all() else Scored(rows.where(known), actual[known])


def _group(name: str, rows: Forecasts, frame: Any, static: Any) -> _Group:
    called = rows.names
    if name in ("horizon", "lead", called.horizon):
        return _Group(name, rows.lead, pl.Series(np.arange(rows.lead.max() + 1, dtype=np.int32)))
    if name in (called.cutoff, called.time):
        times = rows.cutoff if name == called.cutoff else rows.time
        dates = distinct(times)
        return _Group(name, places(times, dates), rows.clock.dates(dates))
    if name == called.id:
        return _Group(name, rows.item, pl.Series(rows.ids))
    names = open_source(frame, "the forecasts").names
    if static is not None and name in open_source(static, "the static table").names:
        value_of = attribute(static, name, called)
        texts = pl.Series([value_of.get(series, "(missing)") for series in rows.ids])
        labels = texts.unique().sort()
        return _Group(name, np.asarray(labels.search_sorted(texts))[rows.item], labels)
    if name in names:
        values = pl.Series(columns_of(frame, [name], "the forecasts")[name])
        values = values.cast(pl.String) if values.dtype == pl.Categorical else values
        labels = values.unique().sort()
        place = values.rank("dense").cast(pl.Int64) - 1 + labels.null_count()
        return _Group(name, rows.from_frame(place.fill_null(0).to_numpy()), labels)
    known = [] if static is None else open_source(static, "the static table").names
    options = list(dict.fromkeys(map(str, ["horizon", called.cutoff, called.time, called.id, *known, *names])))
    raise MissingColumnError(
        f"there is nothing to group by called {name!r}{nearest(name, options)}; there are {', '.join(options)}"
    )


def _metrics(scored: Scored, keys: list[_Group], where: np.ndarray | None, scales: "_Scales") -> pl.DataFrame:
    """Sums by group, then their ratios."""
    rows, actual = scored.rows, scored.actual
    if where is not None:
        rows, actual = rows.where(where), actual[where]
        keys = [_Group(key.name, key.codes[where], key.labels) for key in keys]
    code, labels, num_groups = _joint(keys, rows.num_rows)
    num_leads = int(rows.lead.max(initial=0)) + 1
    code_of_lead = code * num_leads + rows.lead

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(code, values, minlength=num_groups)

    def by_lead(values: np.ndarray) -> np.ndarray:
        return np.bincount(code_of_lead, values, minlength=num_groups * num_leads).reshape(num_groups, num_leads)

    number, size, size_of_lead = total(np.ones_like(actual)), total(np.abs(actual)), by_lead(np.abs(actual))
    is_lead = by_lead(np.ones_like(actual)) > 0
    scale, scaled = scales.at(rows), np.zeros_like(actual)
    metrics: dict[str, np.ndarray] = {"rows": number.astype(np.int64)}
    for i, level in enumerate(rows.levels):
        loss = pinball(actual, rows.quantiles[:, i], level)
        scaled += 2 / len(rows.levels) * loss
        metrics[f"quantile_loss_{quantile_column(level)}"] = ratio(total(loss), number)
        metrics[f"qrisk_pooled_{quantile_column(level)}"] = ratio(2 * total(loss), size)
        of_lead = np.where(is_lead, ratio(2 * by_lead(loss), size_of_lead), 0)
        metrics[f"qrisk_tft_code_{quantile_column(level)}"] = ratio(of_lead.sum(axis=1), is_lead.sum(axis=1))
        metrics[f"coverage_{quantile_column(level)}"] = ratio(total(actual <= rows.quantiles[:, i]), number)
    metrics["wql"] = np.mean([metrics[f"qrisk_pooled_{quantile_column(level)}"] for level in rows.levels], axis=0)
    for low, high in _pairs(rows.levels):
        name, lower, upper = f"{quantile_column(low)}_{quantile_column(high)}", rows.level(low), rows.level(high)
        metrics[f"width_{name}"] = ratio(total(upper - lower), number)
        metrics[f"inside_{name}"] = ratio(total((actual >= lower) & (actual <= upper)), number)
    metrics["crossing"] = ratio(total(crossings(rows.quantiles)), number)
    if 0.5 in rows.levels:
        error = rows.level(0.5) - actual
        metrics["wape"] = ratio(total(np.abs(error)), size)
        metrics["bias"] = ratio(total(error), number)
        metrics["mase"] = ratio(total(np.nan_to_num(np.abs(error) / scale)), total(~np.isnan(scale)))
    metrics["sql"] = ratio(total(np.nan_to_num(scaled / scale)), total(~np.isnan(scale)))
    if clash := [name for name in labels if name in metrics]:
        raise ConfigError(f"by={clash[0]!r} is a column of the answer already; rename yours")
    table = pl.DataFrame(labels | {name: pl.Series(values) for name, values in metrics.items()})
    return table.with_columns(pl.col(pl.Float64).fill_nan(None))


def _joint(keys: list[_Group], num_rows: int) -> tuple[np.ndarray, dict[str, pl.Series], int]:
    """One code a row for all keys together, the labels of the codes, sorted, and how many there are."""
    if not keys:
        return np.zeros(num_rows, np.int64), {}, 1
    code = np.zeros(num_rows, np.int64)
    for key in keys:
        code = code * len(key.labels) + key.codes
    present, code = np.unique(code, return_inverse=True)
    labels = {}
    rest = present
    for key in reversed(keys):
        rest, place = np.divmod(rest, len(key.labels))
        labels[key.name] = key.labels.gather(place)
    return code, dict(reversed(labels.items())), len(present)


def pinball(actual: np.ndarray, quantile: np.ndarray, level: float) -> np.ndarray:
    error = actual - quantile
    return np.maximum(level * error, (level - 1) * error)


def ratio(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """NaN where there is nothing to divide by."""
    return np.divide(values, sizes, where=sizes > 0, out=np.full(np.shape(values), np.nan))


def _pairs(levels: tuple[float, ...]) -> list[tuple[float, float]]:
    """Levels that enclose an interval in the middle; if there are none, the outermost two."""
    mirrored = {low: high for low in levels for high in levels if low < high and abs(low + high - 1) < 1e-9}
    return list(mirrored.items()) or ([(levels[0], levels[-1])] if len(levels) > 1 else [])


class _Scales:
    """The mean seasonal difference |y_t - y_{t-m}| of each series up to a cutoff."""

    def __init__(self, actuals: Actuals, season: int | None):
        steps = season or (season_of(actuals.frequency) if actuals.frequency else 1)
        self.actuals = actuals
        row = actuals.find(actuals.ids, actuals.item, actuals.before(actuals.time, steps))
        difference = np.where(row >= 0, np.abs(actuals.value - actuals.value[row]), np.nan)
        self.sums = np.concatenate([[0.0], np.nancumsum(difference)])
        self.counts = np.concatenate([[0], np.cumsum(~np.isnan(difference))])

    def at(self, rows: Forecasts) -> np.ndarray:
        """One scale a row; NaN where there is none, or it is 0."""
        cutoffs = distinct(rows.cutoff)
        pair = rows.item * np.int64(len(cutoffs)) + places(rows.cutoff, cutoffs)
        pairs, place = np.arange(len(rows.ids) * len(cutoffs)), pair
        if len(pairs) > rows.num_rows:
            pairs, place = np.unique(pair, return_inverse=True)
        own = self.actuals.items_of(rows.ids)[pairs // len(cutoffs)]
        dates = np.searchsorted(self.actuals.dates, cutoffs, side="right")[pairs % len(cutoffs)]
        first = self.actuals.offsets[np.maximum(own, 0)]
        last = np.searchsorted(self.actuals.keys, np.maximum(own, 0) * len(self.actuals.dates) + dates)
        mean = ratio(self.sums[last] - self.sums[first], self.counts[last] - self.counts[first])
        return np.where((own >= 0) & (mean > 0), mean, np.nan)[place]
