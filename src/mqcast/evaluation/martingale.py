"""Are revisions justified? Martingale diagnostics (Foster and others, 2021) of any forecaster's frame.

For one target (a series and a date) let τ be the quantile that was announced first, at step 0. p_j is the chance that
the forecast of step j gives to demand of at most τ; at the last step p_H is 1 if demand was at most τ, else 0. For one
who knows all that can be known p is a martingale: the best forecast of the next forecast is this one. Then

    Q_j = Σ_{m≤j} (p_m - p_{m-1})²     how much p has moved
    V_j = Q_j - (p_j - p_0)²           how much of that led nowhere

and V has mean 0 at each step. V > 0: revisions revert, the forecaster over-reacts (excess volatility). V < 0: revisions
go on in their direction, it under-reacts. Closer to zero is better, not lower.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrameT

from mqcast.arguments import whole_number
from mqcast.data.frame_types import FrameTypes
from mqcast.data.parallel import ordered_map
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation.columns import one_of
from mqcast.evaluation.implausible_forecasts import warn_of
from mqcast.evaluation.martingale_sums import OF_REVISIONS, OF_TARGETS, MartingaleSums, sums_of
from mqcast.evaluation.plausibility import Sold, judge
from mqcast.evaluation.reading import (
    Actuals,
    Forecasts,
    actuals_table,
    forecast_table,
    names_in,
    read_actuals,
    read_forecasts,
)
from mqcast.evaluation.slices import OVERALL, Slice, Slices, flattened
from mqcast.evaluation.spans import all_have_spans, revisions_of_totals
from mqcast.evaluation.tables import ActualsTable, ForecastTable, Missing, actuals_of
from mqcast.evaluation.trajectories import (
    CASES,
    Cdf,
    Chances,
    Leads,
    Trajectories,
    levels_of,
    negative_share,
    trajectories_of,
)
from mqcast.evaluation.weights import Weights, weights_of

TARGETS_AT_A_TIME = 2**12
MOST_RESAMPLES = 1_000_000
INTERVAL = (2.5, 97.5)
MEANS = ("mqc", "sqpc", "direction_changes")
MANY_ZEROS = 0.1  # announced quantiles of 0, a share of the targets beyond which V says little
NEGLIGIBLE = 0.0005  # excess volatility that is 0 to three digits, however sure
SAME = "judge both on the same rows, with the same settings"
Zeros = Literal["keep", "drop"]


def volatility(
    revisions: Forecasts[IntoDataFrameT],
    actuals: Actuals,
    levels: float | Sequence[float] = (0.5, 0.9),
    cdf: Cdf = "gamma",
    weights: Weights = None,
    resamples: int = 1000,
    seed: int = 0,
    *,
    slices: Slices | None = None,
    leads: Leads = "auto",
    zeros: Zeros = "keep",
    missing: Missing = "warn",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> "Volatility[IntoDataFrameT]":
    """The process V of each level, averaged over targets, with 95 % intervals.

    revisions: a forecast frame with several cutoffs for each target date. actuals: a frame of ids, dates and demand.

    cdf: "gamma", through two quantiles (the paper's); "quantiles", straight lines through all of them; or a function
    (revisions, values) → chances of demand up to the values, one a row, for a forecaster who knows its distribution.

    zeros: "drop" leaves out, level by level, targets whose announced quantile is 0: of the chance of demand of 0 a few
    quantiles know little (see docs).

    weights: None, all targets alike; "demand", by an item's mean demand up to its first cutoff; "realised", by the
    target's own demand, which biases V (see docs); or a frame of ids and `weight`, or a mapping.

    Of totals over spans, the target is the demand from one date to another, as successive cutoffs forecast it: spans
    (1, 4), (2, 5) … All totals have as many steps; those of which some demand is missing are left out.

    Intervals are from 1,000 resamples (`resamples`) of items and of target dates. Warns once of implausible forecasts:
    see `implausible`.

    >>> from mqcast import volatility
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> volatility(forecasts, world.actuals).summary["level"].to_list()
    [0.5, 0.9]
    """
    names, levels = names_in(revisions, schema, id=id, time=time, target=target), levels_of(levels)
    settings = Settings(levels, cdf, weights, resamples, seed, leads, zeros, missing)
    observed = actuals_table(actuals, names)
    if all_have_spans([revisions]):
        totals, types = revisions_of_totals(revisions, observed, names), FrameTypes.of(revisions, names.id, names.time)
        table, sums = (read_forecasts(totals.forecasts, names), read_actuals(totals.actuals, names))
        if isinstance(weights, str) and weights == "demand":
            means = observed.known_mean(table.ids, table.first_cutoffs())
            settings = replace(settings, weights=dict(zip(table.ids, np.nan_to_num(means), strict=True)))
        table, observed = replace(table, frame_types=types), sums
    else:
        table = forecast_table(revisions, names)
    judged = volatility_of(table, observed, settings, flattened(slices))
    warn_of([judge("", table, Sold(observed), actuals_of(table, observed, "drop")[table.trajectory])])
    return judged


@dataclass(frozen=True)
class Settings:
    """How volatility is judged: the arguments of `volatility`."""

    levels: tuple[float, ...]
    cdf: Cdf = "gamma"
    weights: Weights = None
    resamples: int = 1000
    seed: int = 0
    leads: Leads = "auto"
    zeros: Zeros = "keep"
    missing: Missing = "warn"

    def __post_init__(self):
        whole_number("resamples", self.resamples, 1, MOST_RESAMPLES)
        whole_number("seed", self.seed, 0)
        one_of("zeros", self.zeros, Zeros)

    def must_agree(self) -> dict[str, Any]:
        """What two forecasters must have in common to be compared."""
        weights = self.weights if self.weights is None or isinstance(self.weights, str) else "own"
        cdf = "function" if callable(self.cdf) else self.cdf
        return {"zeros": self.zeros, "cdf": cdf, "leads": self.leads, "seed": self.seed, "weights": weights}


def volatility_of(
    table: ForecastTable, observed: ActualsTable, settings: Settings, slices: Sequence[Slice] = ()
) -> "Volatility[Any]":
    """`volatility` of tables, without its warning."""
    results = []
    for name, part in [(OVERALL, table), *((one.name, table.where(one.of(table))) for one in slices)]:
        paths = None
        if part.num_rows:
            actual = actuals_of(part, observed, settings.missing, may_be_none=part is not table)
            paths = trajectories_of(part, actual, settings.leads, may_be_none=part is not table)
        if paths is None:
            results.append(_Result.of_nothing(name, settings.levels))
            continue
        chances = Chances(part, settings.levels, settings.cdf, negative_share(paths.actual))
        weight = weights_of(settings.weights, part, paths, observed)
        results.append(_judge(name, chances, paths, weight, settings))
    return Volatility(results, settings.must_agree(), has_slices=bool(slices), frame_types=table.frame_types)


@dataclass(frozen=True, eq=False)
class _Result:
    """One slice judged: means, and the means of resampled items and dates."""

    slice: str
    levels: tuple[float, ...]
    ids: tuple[str, ...]
    times: np.ndarray  # (targets,): their dates, item by item
    targets_of_item: np.ndarray  # (items,)
    resampled: np.ndarray  # (resamples, levels, steps + 1): V
    process: dict[str, np.ndarray]  # V, Q, U: (levels, steps + 1)
    targets: np.ndarray  # (levels, steps + 1): how many stand behind each step
    means: dict[str, np.ndarray]  # (levels,)
    cases: Counter[str]

    @classmethod
    def of_nothing(cls, name: str, levels: tuple[float, ...]) -> "_Result":
        """A slice without a target."""
        nothing = np.full((len(levels), 1), np.nan)
        means = {str(name): nothing[:, 0] for name in (*OF_TARGETS, *OF_REVISIONS)}
        process = {name: nothing for name in ("V", "Q", "U")}  # noqa: C420
        none = np.zeros(0, np.int64)
        return cls(
            name, levels, (), none, none, nothing[None], process, np.zeros(nothing.shape, np.int64), means, Counter()
        )

    @property
    def has_interval(self) -> bool:
        return len(self.ids) > 1

    def interval(self, values: np.ndarray) -> np.ndarray:
        """2.5 % and 97.5 % over resamples, the first axis; NaN for a single item, which has no spread to show."""
        if not self.has_interval:
            return np.full((2, *values.shape[1:]), np.nan)
        return np.nanpercentile(values, INTERVAL, axis=0)

    @property
    def excess(self) -> np.ndarray:
        return self.process["V"][:, -1]


class Volatility(Generic[IntoDataFrameT]):
    """What `volatility` returns.

    process   level, step, lead, V, lo, hi, Q, U, targets: by step, from the first forecast (0) to the outcome (lead 0).
              U = V + (1 - 2 p_0)(p_j - p_0); V and U differ by the error of calibration.
    summary   level, excess (V at the outcome), lo, hi, reading, coverage (how often demand was at most τ), announced
              (the chance given to that at first), mqc and sqpc (mean size of a revision, in units and as a share of the
              mean of both), direction_changes (per target), items, targets, announced_0 (share of targets whose
              announced quantile is 0), and the cases of CASES.
    """

    def __init__(self, results: list[_Result], settings: dict[str, Any], *, has_slices: bool, frame_types: FrameTypes):
        self._results, self._settings, self._has_slices, self._frame_types = results, settings, has_slices, frame_types

    @property
    def process(self) -> IntoDataFrameT:
        return self._frame_types.to_native(self.polars_process)

    @property
    def summary(self) -> IntoDataFrameT:
        return self._frame_types.to_native(self.polars_summary)

    @property
    def polars_process(self) -> pl.DataFrame:
        return self._table([row for result in self._results for row in _process_rows(result)])

    @property
    def polars_summary(self) -> pl.DataFrame:
        return self._table([row for result in self._results for row in _summary_rows(result)])

    def reduction(self, baseline: "Volatility[Any]") -> IntoDataFrameT:
        """How much nearer to 0 than the baseline: 1 - |excess| / |baseline's|, with a paired 95 % interval.

        It is null where the baseline's own interval covers 0: there is nothing to reduce. `difference`, of the absolute
        values, is always there. `mean_reduction` is the same for the mean of |V| over the steps.
        """
        if not isinstance(baseline, Volatility):
            raise ConfigError(f"the baseline is a {type(baseline).__name__}; give what volatility(…) returned for it")
        unlike = [name for name, value in self._settings.items() if baseline._settings[name] != value]
        if unlike or len(self._results) != len(baseline._results):
            raise ConfigError(f"the baseline was judged with other {', '.join(unlike) or 'slices'}; {SAME}")
        pairs = zip(self._results, baseline._results, strict=True)
        rows = [row for mine, theirs in pairs for row in _reduction_rows(mine, theirs)]
        return self._frame_types.to_native(self._table(rows))

    def __repr__(self) -> str:
        shown = ["slice"] if self._has_slices else []
        shown += ["level", "excess", "lo", "hi", "reading", "coverage", "targets"]
        with pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, tbl_rows=-1, fmt_str_lengths=60):
            return f"Volatility (V at the outcome, 95 % interval)\n{self.polars_summary.select(shown)}"

    def _table(self, rows: list[dict[str, Any]]) -> pl.DataFrame:
        table = pl.DataFrame(rows, infer_schema_length=None)
        table = table.with_columns(pl.col(pl.Null).cast(pl.Float64)).with_columns(pl.col(pl.Float64).fill_nan(None))
        return table if self._has_slices else table.drop("slice")


def _judge(name: str, chances: Chances, paths: Trajectories, weight: np.ndarray | None, settings: Settings) -> _Result:
    """Sums over targets; then means, over all of them and over resampled items and dates."""
    present, place = np.unique(paths.item, return_inverse=True)
    dates, date = np.unique(paths.time, return_inverse=True)
    levels, steps, drop = chances.levels, paths.horizon + 1, settings.zeros == "drop"
    sums = MartingaleSums(len(present), len(dates), len(levels), steps)
    size = len(paths) if callable(chances.cdf) else TARGETS_AT_A_TIME
    bounds = [(begin, min(begin + size, len(paths))) for begin in range(0, len(paths), size)]

    def work(bound: tuple[int, int]) -> MartingaleSums:
        begin, end = bound
        weigh = np.ones(end - begin) if weight is None else weight[begin:end]
        return sums_of(chances, paths.part(begin, end), weigh, place[begin:end], date[begin:end], len(dates), drop)

    for more in ordered_map(work, bounds):
        sums.add(more)
    process, means = sums.means()
    ids = tuple(chances.forecasts.ids[i] for i in present)
    by_item, resampled = np.bincount(place), sums.resampled(settings.resamples, settings.seed)
    return _Result(name, levels, ids, paths.time, by_item, resampled, process, sums.targets, means, sums.cases)


def _process_rows(result: _Result) -> list[dict[str, Any]]:
    lo, hi = result.interval(result.resampled)
    last = result.targets.shape[1] - 1
    return [
        {"slice": result.slice, "level": level, "step": step, "lead": last - step}
        | {"V": result.process["V"][i, step], "lo": lo[i, step], "hi": hi[i, step]}
        | {name: result.process[name][i, step] for name in ("Q", "U")}
        | {"targets": int(result.targets[i, step])}
        for i, level in enumerate(result.levels)
        for step in range(last + 1)
        if result.targets[i, step]
    ]


def _summary_rows(result: _Result) -> list[dict[str, Any]]:
    lo, hi = result.interval(result.resampled[..., -1])
    return [
        {"slice": result.slice, "level": level, "excess": result.excess[i], "lo": lo[i], "hi": hi[i]}
        | {"reading": _reading(result, i, lo[i], hi[i])}
        | {name: result.means[name][i] for name in ("coverage", "announced", *MEANS)}
        | {"items": len(result.ids), "targets": int(result.targets[i, -1])}
        | {"announced_0": result.means["announced_0"][i]}
        | {name: result.cases[name] for name in CASES}
        for i, level in enumerate(result.levels)
    ]


def _reading(result: _Result, i: int, lo: float, hi: float) -> str:
    if not result.targets[i, -1]:
        return "no target"
    if result.means["announced_0"][i] > MANY_ZEROS:
        return f"says little: {result.means['announced_0'][i]:.0%} announced 0"
    if not result.has_interval:
        return "one item: no interval"
    if abs(result.excess[i]) < NEGLIGIBLE or lo <= 0 <= hi:
        return "not significant"
    return "over-reaction" if lo > 0 else "under-reaction"


def _reduction_rows(mine: _Result, theirs: _Result) -> list[dict[str, Any]]:
    _check_pair(mine, theirs)
    if not mine.ids:
        return []
    both = (np.abs(mine.resampled), np.abs(theirs.resampled))
    with np.errstate(invalid="ignore", divide="ignore"):
        lo, hi = mine.interval(1 - both[0][..., -1] / both[1][..., -1])
        difference = mine.interval(both[0][..., -1] - both[1][..., -1])
        mean = 1 - _mean_size(mine.process["V"]) / _mean_size(theirs.process["V"])
        mean_lo, mean_hi = mine.interval(1 - _mean_size(mine.resampled) / _mean_size(theirs.resampled))
        reduction = 1 - np.abs(mine.excess) / np.abs(theirs.excess)
    their_lo, their_hi = theirs.interval(theirs.resampled[..., -1])
    rows = []
    for i, level in enumerate(mine.levels):
        is_significant = bool(their_lo[i] > 0 or their_hi[i] < 0)
        size = float(np.abs(mine.excess[i]) - np.abs(theirs.excess[i]))
        rows.append(
            {"slice": mine.slice, "level": level, "excess": mine.excess[i], "baseline_excess": theirs.excess[i]}
            | {
                name: value if is_significant else None
                for name, value in (("reduction", reduction[i]), ("lo", lo[i]), ("hi", hi[i]))
            }
            | {"difference": size, "difference_lo": difference[0, i], "difference_hi": difference[1, i]}
            | {"mean_reduction": mean[i], "mean_lo": mean_lo[i], "mean_hi": mean_hi[i]}
        )
    return rows


def _mean_size(v: np.ndarray) -> np.ndarray:
    """Of |V| over the steps."""
    return np.nanmean(np.abs(v), axis=-1)


def _check_pair(mine: _Result, theirs: _Result) -> None:
    if (mine.slice, mine.levels, len(mine.resampled)) != (theirs.slice, theirs.levels, len(theirs.resampled)):
        raise ConfigError(f"the baseline was judged with other levels, slices or resamples; {SAME}")
    if mine.ids != theirs.ids:
        other = sorted(set(mine.ids) ^ set(theirs.ids))[0]
        raise DataError("only one of the two forecasters has it", SAME, series=other)
    unlike = np.flatnonzero(mine.targets_of_item != theirs.targets_of_item)
    if unlike.size:
        counts = (mine.targets_of_item[unlike[0]], theirs.targets_of_item[unlike[0]])
        raise DataError(f"{counts[0]} targets here, {counts[1]} in the baseline", SAME, series=mine.ids[unlike[0]])
    if not np.array_equal(mine.times, theirs.times):
        raise DataError("the two forecast other dates", SAME)
