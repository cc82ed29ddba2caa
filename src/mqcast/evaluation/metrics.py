"""How good forecasts are: quantile losses, coverage, width, bias and scaled errors, by any grouping and slice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrameT

from mqcast.arguments import names_of, whole_number
from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import season_of
from mqcast.data.schema import Schema
from mqcast.data.source import open_source
from mqcast.errors import ConfigError, MissingColumnError
from mqcast.evaluation.columns import columns_of, distinct, places
from mqcast.evaluation.implausible_forecasts import warn_of
from mqcast.evaluation.plausibility import Sold, judge
from mqcast.evaluation.reading import Actuals, Crossing, Forecasts, Models, actuals_table, forecast_tables, names_in
from mqcast.evaluation.slices import OVERALL, Slice, Slices, attribute, flattened
from mqcast.evaluation.spans import all_have_spans, by_span
from mqcast.evaluation.tables import FIRST, LAST, ActualsTable, ForecastTable, Missing, Names, actuals_of, crossings
from mqcast.levels import pinball, quantile_column
from mqcast.settings import nearest

LEFT_OUT = "left_out"
OF_SPANS = (FIRST, LAST, LEFT_OUT)
OF_SINGLE_STEPS = ("mase", "sql")  # their scale is the change of one step's demand


def evaluate(
    forecasts: Forecasts[IntoDataFrameT] | Models[IntoDataFrameT],
    actuals: Actuals,
    by: str | Sequence[str] = (),
    *,
    slices: Slices | None = None,
    static: Any = None,
    season: int | None = None,
    missing: Missing = "warn",
    crossing: Crossing = "allow",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> IntoDataFrameT:
    """One row a group, one column a metric, in the library of the forecasts' own frame.

    forecasts: a forecast frame or {model: frame}; tables of `read_forecasts` and `read_actuals` save reading again.
    by: "horizon" (or "lead"), "cutoff", the time or the id column, a column of `static`, or any other column of the
    forecasts. slices: one row each, beside one for all.

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

    Of totals over spans (`predict(spans=…)`), each is scored against the sum of its demand: a row a span, with its
    `first` and `last` step, and in `left_out` the number of totals of which some demand is missing. Scaled errors are
    those of single steps and are not there.

    Warns once of implausible forecasts: see `implausible`.

    >>> from mqcast import evaluate
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> evaluate(forecasts, world.actuals, by="horizon").columns[:3]
    ['horizon', 'rows', 'quantile_loss_q0.5']
    """
    by, chosen = names_of("by", by), flattened(slices)
    if season is not None:
        whole_number("season", season)
    names = names_in(forecasts, schema, id=id, time=time, target=target)
    observed = actuals_table(actuals, names)
    models = forecasts if isinstance(forecasts, Mapping) else {"": forecasts}
    if all_have_spans([*models.values()]):
        if clash := [name for name in by if name in OF_SPANS]:
            raise ConfigError(f"by={clash[0]!r} is a column of the answer already; leave it out")
        options = {"by": by, "slices": chosen, "static": static, "season": season, "crossing": crossing}
        found = _of_spans(models, observed, names, options)
        found = found if isinstance(forecasts, Mapping) else found.drop("model")
        types = FrameTypes.of([*models.values()][-1], names.id, names.time)
        return types.to_native(found, names.id if names.id in by else None)
    tables = forecast_tables(forecasts, names, crossing)
    leading = [*(["model"] if isinstance(forecasts, Mapping) else []), *(["slice"] if chosen else [])]
    if clash := [name for name in by if name in leading]:
        raise ConfigError(f"by={clash[0]!r} is a column of the answer already; rename yours")
    scored = scored_models(tables, observed, missing)
    metrics = accuracy(scored, observed, by, chosen, static=static, season=season, leading=leading)
    warn_of_implausible(scored, observed)
    last = [*tables.values()][-1]
    return last.frame_types.to_native(metrics, last.names.id if last.names.id in by else None)


def _of_spans(models: Mapping[str, Any], observed: ActualsTable, names: Names, options: dict[str, Any]) -> pl.DataFrame:
    """The metrics of totals, by model and span."""
    called: dict[str, Any] = {"id": names.id, "time": names.time, "target": names.target}
    tables: list[pl.DataFrame] = []
    for model, frame in models.items():
        for one in by_span(frame, observed, names):
            found = evaluate(one.forecasts, one.actuals, **options, **called)
            steps = (pl.lit(step, pl.Int32).alias(name) for name, step in ((FIRST, one.first), (LAST, one.last)))
            left_out = pl.lit(one.left_out).alias(LEFT_OUT)
            leading = found.columns[: found.columns.index("rows") + 1]
            keys = [pl.lit(str(model)).alias("model"), *steps, *leading, left_out]
            tables.append(found.select(*keys, pl.exclude(*leading, *OF_SINGLE_STEPS)))
    return pl.concat(tables, how="diagonal_relaxed")


def accuracy(
    scored: Mapping[str, "Scored"],
    observed: ActualsTable,
    by: Sequence[str] = (),
    slices: Sequence[Slice] = (),
    *,
    static: Any = None,
    season: int | None = None,
    leading: Sequence[str] = ("model", "slice"),
) -> pl.DataFrame:
    """The metrics of `evaluate`, after the leading columns and the groups."""
    scales, tables = _Scales(observed, season), []
    for model, each in scored.items():
        groups = [group_of(name, each.rows, static) for name in by]
        for name, rows in [(OVERALL, None), *((one.name, one.of(each.rows)) for one in slices)]:
            keys = {"model": model, "slice": name}
            table = _metrics(each, groups, rows, scales)
            tables.append(table.select(*(pl.lit(keys[key]).alias(key) for key in leading), pl.all()))
    return pl.concat(tables, how="diagonal_relaxed")


@dataclass(frozen=True, eq=False)
class Scored:
    """Forecasts that have an actual, and the actuals."""

    rows: ForecastTable
    actual: np.ndarray  # (rows,)

    @classmethod
    def of(cls, table: ForecastTable, actuals: ActualsTable, missing: Missing) -> "Scored":
        actual = actuals_of(table, actuals, missing)[table.trajectory]
        known = ~np.isnan(actual)
        return cls(table, actual) if known.all() else cls(table, actual).where(known)

    def where(self, rows: np.ndarray) -> "Scored":
        return Scored(self.rows.where(rows), self.actual[rows])

    def losses(self) -> list[np.ndarray]:
        """The quantile losses of each level."""
        return [pinball(self.actual, self.rows.quantiles[:, i], level) for i, level in enumerate(self.rows.levels)]


def scored_models(tables: Mapping[str, ForecastTable], actuals: ActualsTable, missing: Missing) -> dict[str, Scored]:
    return {model: Scored.of(table, actuals, missing) for model, table in tables.items()}


def warn_of_implausible(scored: Mapping[str, Scored], actuals: ActualsTable) -> None:
    sold = Sold(actuals)
    warn_of([judge(str(model), each.rows, sold, each.actual) for model, each in scored.items()])


@dataclass(frozen=True, eq=False)
class LossSums:
    """Sums over the forecasts of each group."""

    rows: np.ndarray  # (groups,)
    size: np.ndarray  # (groups,): of |y|
    loss: np.ndarray  # (levels, groups)
    covered: np.ndarray  # (levels, groups): actuals at or below the quantile

    @classmethod
    def of(cls, scored: Scored, losses: Sequence[np.ndarray], code: np.ndarray, num_groups: int) -> "LossSums":
        def total(values: np.ndarray) -> np.ndarray:
            return np.bincount(code, values, minlength=num_groups)

        actual, quantiles = scored.actual, scored.rows.quantiles
        return cls(
            rows=total(np.ones_like(actual)),
            size=total(np.abs(actual)),
            loss=np.stack([total(loss) for loss in losses]),
            covered=np.stack([total(actual <= quantiles[:, i]) for i in range(len(losses))]),
        )


@dataclass(frozen=True, eq=False)
class Group:
    """A column to group by: the code of each row, and what the codes stand for."""

    name: str
    codes: np.ndarray
    labels: pl.Series


def group_of(name: str, rows: ForecastTable, static: Any) -> Group:
    called = rows.names
    if name in ("horizon", "lead", called.horizon):
        return Group(name, rows.lead, pl.Series(np.arange(rows.lead.max() + 1, dtype=np.int32)))
    if name in (called.cutoff, called.time):
        times = rows.cutoff if name == called.cutoff else rows.time
        dates = distinct(times)
        return Group(name, places(times, dates), rows.clock.dates(dates))
    if name == called.id:
        return Group(name, rows.item, pl.Series(rows.ids))
    source = open_source(rows.frame, "the forecasts")
    if static is not None and name in open_source(static, "the static table").names:
        value_of = attribute(static, name, called)
        texts = pl.Series([value_of.get(series, "(missing)") for series in rows.ids])
        labels = texts.unique().sort()
        return Group(name, np.asarray(labels.search_sorted(texts))[rows.item], labels)
    if name in source.names:
        values = pl.Series(columns_of(source, [name], "the forecasts")[name])
        values = values.cast(pl.String) if values.dtype == pl.Categorical else values
        labels = values.unique().sort()
        place = values.rank("dense").cast(pl.Int64) - 1 + labels.null_count()
        return Group(name, rows.from_frame(place.fill_null(0).to_numpy()), labels)
    known = [] if static is None else open_source(static, "the static table").names
    options = list(dict.fromkeys(map(str, ["horizon", called.cutoff, called.time, called.id, *known, *source.names])))
    raise MissingColumnError(
        f"there is nothing to group by called {name!r}{nearest(name, options)}; there are {', '.join(options)}; give "
        "static=, a table with a row for each item, or slices=, such as those of promotions"
    )


def _metrics(scored: Scored, groups: list[Group], where: np.ndarray | None, scales: "_Scales") -> pl.DataFrame:
    """Sums by group, then their ratios."""
    if where is not None:
        scored = scored.where(where)
        groups = [Group(group.name, group.codes[where], group.labels) for group in groups]
    rows, actual, losses = scored.rows, scored.actual, scored.losses()
    code, labels, num_groups = _joint(groups, rows.num_rows)
    num_leads = int(rows.lead.max(initial=0)) + 1
    sums = LossSums.of(scored, losses, code, num_groups)
    by_lead = LossSums.of(scored, losses, code * num_leads + rows.lead, num_groups * num_leads)
    is_lead = by_lead.rows.reshape(num_groups, num_leads) > 0

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(code, values, minlength=num_groups)

    scale, scaled = scales.at(rows), np.zeros_like(actual)
    metrics: dict[str, np.ndarray] = {"rows": sums.rows.astype(np.int64)}
    for i, name in enumerate(map(quantile_column, rows.levels)):
        scaled += 2 / len(rows.levels) * losses[i]
        metrics[f"quantile_loss_{name}"] = ratio(sums.loss[i], sums.rows)
        metrics[f"qrisk_pooled_{name}"] = ratio(2 * sums.loss[i], sums.size)
        risk_of_lead = np.where(is_lead, ratio(2 * by_lead.loss[i], by_lead.size).reshape(is_lead.shape), 0)
        metrics[f"qrisk_tft_code_{name}"] = ratio(risk_of_lead.sum(axis=1), is_lead.sum(axis=1))
        metrics[f"coverage_{name}"] = ratio(sums.covered[i], sums.rows)
    metrics["wql"] = np.mean([metrics[f"qrisk_pooled_{quantile_column(level)}"] for level in rows.levels], axis=0)
    for low, high in _pairs(rows.levels):
        name, lower, upper = f"{quantile_column(low)}_{quantile_column(high)}", rows.level(low), rows.level(high)
        metrics[f"width_{name}"] = ratio(total(upper - lower), sums.rows)
        metrics[f"inside_{name}"] = ratio(total((actual >= lower) & (actual <= upper)), sums.rows)
    metrics["crossing"] = ratio(total(crossings(rows.quantiles)), sums.rows)
    if 0.5 in rows.levels:
        error = rows.level(0.5) - actual
        metrics["wape"] = ratio(total(np.abs(error)), sums.size)
        metrics["bias"] = ratio(total(error), sums.rows)
        metrics["mase"] = ratio(total(np.nan_to_num(np.abs(error) / scale)), total(~np.isnan(scale)))
    metrics["sql"] = ratio(total(np.nan_to_num(scaled / scale)), total(~np.isnan(scale)))
    if clash := [name for name in labels if name in metrics]:
        raise ConfigError(f"by={clash[0]!r} is a column of the answer already; rename yours")
    table = pl.DataFrame(labels | {name: pl.Series(values) for name, values in metrics.items()})
    return table.with_columns(pl.col(pl.Float64).fill_nan(None))


def _joint(keys: list[Group], num_rows: int) -> tuple[np.ndarray, dict[str, pl.Series], int]:
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


def ratio(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """NaN where there is nothing to divide by."""
    return np.divide(values, sizes, where=sizes > 0, out=np.full(np.shape(values), np.nan))


def _pairs(levels: tuple[float, ...]) -> list[tuple[float, float]]:
    """Levels that enclose an interval in the middle; if there are none, the outermost two."""
    mirrored = {low: high for low in levels for high in levels if low < high and abs(low + high - 1) < 1e-9}
    return list(mirrored.items()) or ([(levels[0], levels[-1])] if len(levels) > 1 else [])


class _Scales:
    """The mean seasonal difference |y_t - y_{t-m}| of each series up to a cutoff."""

    def __init__(self, actuals: ActualsTable, season: int | None):
        steps = season or (season_of(actuals.frequency) if actuals.frequency else 1)
        self.actuals = actuals
        row = actuals.find(actuals.ids, actuals.item, actuals.before(actuals.time, steps))
        difference = np.where(row >= 0, np.abs(actuals.value - actuals.value[row]), np.nan)
        self.sums = np.concatenate([[0.0], np.nancumsum(difference)])
        self.counts = np.concatenate([[0], np.cumsum(~np.isnan(difference))])

    def at(self, rows: ForecastTable) -> np.ndarray:
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
