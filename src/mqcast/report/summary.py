"""Frames → what a report says, in numbers: typed, and free of figures and pages."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from mqcast.data.frequency import show_time
from mqcast.data.summary import Summary, summarise
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation import evaluate, exceptions, loss_by_lead, volatility
from mqcast.evaluation.columns import distinct
from mqcast.evaluation.implausible_forecasts import Implausible, told_elsewhere
from mqcast.evaluation.metrics import pinball
from mqcast.evaluation.plausibility import Sold, judge
from mqcast.evaluation.slices import OVERALL, demand_deciles
from mqcast.evaluation.tables import actuals_of
from mqcast.levels import quantile_column
from mqcast.report.sources import Sources

MOST_ROWS = 1_200_000  # of a model, beyond which all but the headline is of a sample of items
ROWS_AT_A_TIME = 2**20
RESAMPLES = 1000
LISTED = 20


@dataclass(frozen=True)
class Score:
    """One forecaster, by level: risk 2 Σ loss / Σ |demand|, that over the baseline's, and the share at or below."""

    model: str
    risk: dict[float, float]
    relative: dict[float, float]
    coverage: dict[float, float]


@dataclass(frozen=True)
class Excess:
    """Excess volatility of one forecaster at one level, with its 95 % interval and what it means."""

    model: str
    level: float
    excess: float | None
    lo: float | None
    hi: float | None
    reading: str
    turns: float | None
    targets: int


@dataclass(frozen=True)
class Counts:
    """What was judged. `sampled`: items behind all parts but the headline and the worst losses."""

    items: int
    rows: int
    cutoffs: int
    horizon: int
    sampled: int
    left_out: int
    without_actual: int
    first_cutoff: str
    last_cutoff: str

    @property
    def is_sampled(self) -> bool:
        return self.sampled < self.items


@dataclass(frozen=True)
class Listed:
    """An item that a planner should look at: what it is ranked by, and the same measured another way."""

    id: str
    value: float
    beside: float | None


@dataclass(frozen=True, eq=False)
class Findings:
    """All that a report says.

    slices, deciles   model, slice, rows, and `evaluate`'s metrics
    horizons          model, horizon, and the same
    leads             of `loss_by_lead`; None where no target has two forecasts
    process           model, level, step, lead, V, lo, hi; None likewise
    calibration       model, level, observed; widths: model, interval, width, inside
    implausible       of `implausible`, of all items
    """

    models: tuple[str, ...]
    baseline: str
    oracle: str | None
    levels: tuple[float, ...]
    counts: Counts
    scores: tuple[Score, ...]
    excess: tuple[Excess, ...]
    slices: pl.DataFrame
    deciles: pl.DataFrame | None
    horizons: pl.DataFrame
    leads: pl.DataFrame | None
    process: pl.DataFrame | None
    calibration: pl.DataFrame
    widths: pl.DataFrame
    worst: tuple[Listed, ...]
    restless: tuple[Listed, ...]
    data: Summary | None
    implausible: Implausible

    @property
    def suspicious(self) -> list[str]:
        """Models with forecasts that are too large for any figure."""
        return [one.model for one in self.implausible.verdicts if one.num_large]


def findings_of(sources: Sources, seed: int = 0) -> Findings:
    """Judge the forecasts. Beyond MOST_ROWS of a model all but the headline is of a random sample of items.

    What is implausible is of all items; nothing is warned of, it is among the findings.
    """
    with told_elsewhere():
        return _findings_of(sources, seed)


def _findings_of(sources: Sources, seed: int) -> Findings:
    items, rows = _by_item(sources), sources.rows[sources.first_model]
    ids = items["unique_id"].unique(maintain_order=True)
    most = max(1, int(MOST_ROWS / (rows.num_rows / len(ids))))
    part = sources if len(ids) <= most else sources.of_items(ids.sample(most, seed=seed))
    sampled = min(len(ids), most)
    scores, counts = _scores(sources, items), _counts(sources, items, len(ids), sampled)
    slices, deciles = _slices(part)
    horizons = evaluate(part.forecasts, part.actuals, "horizon", missing="drop")
    excess, process = _volatility(part, seed)
    overall = slices.filter(slice=OVERALL)
    return Findings(
        models=sources.models,
        baseline=sources.baseline,
        oracle=sources.oracle,
        levels=sources.levels,
        counts=counts,
        scores=scores,
        excess=excess,
        slices=slices,
        deciles=deciles,
        horizons=horizons,
        leads=_leads(part),
        process=process,
        calibration=_calibration(sources, scores),
        widths=_widths(overall),
        worst=_worst(sources, items),
        restless=_restless(part),
        data=None if sources.calendar is None else summarise(sources.calendar.panel),
        implausible=_implausible(sources),
    )


def _implausible(sources: Sources) -> Implausible:
    sold, verdicts = Sold(sources.observed), []
    for model, rows in sources.rows.items():
        actual = actuals_of(rows, sources.observed, "drop")[rows.trajectory]
        verdicts.append(judge(model, rows, sold, actual))
    return Implausible(verdicts)


def _by_item(sources: Sources) -> pl.DataFrame:
    """Sums by model and item over all rows that have an actual: rows, |y|, losses and counts by level."""
    found = []
    for model, rows in sources.rows.items():
        of_target = actuals_of(rows, sources.observed, "drop")
        names = [f"{what}_{quantile_column(level)}" for level in rows.levels for what in ("loss", "below")]
        sums = {name: np.zeros(len(rows.ids)) for name in ("rows", "size", *names)}
        for begin in range(0, rows.num_rows, ROWS_AT_A_TIME):
            part = slice(begin, begin + ROWS_AT_A_TIME)
            actual = of_target[rows.trajectory[part]]
            known = ~np.isnan(actual)
            item, quantiles, actual = rows.item[part][known], rows.quantiles[part][known], actual[known]
            values = {"rows": np.ones_like(actual), "size": np.abs(actual)}
            for i, level in enumerate(rows.levels):
                values[f"loss_{quantile_column(level)}"] = pinball(actual, quantiles[:, i], level)
                values[f"below_{quantile_column(level)}"] = (actual <= quantiles[:, i]).astype(float)
            for name, value in values.items():
                sums[name] += np.bincount(item, value, minlength=len(rows.ids))
        table = pl.DataFrame({"unique_id": pl.Series(rows.ids, dtype=pl.String)} | sums)
        found.append(table.with_columns(model=pl.lit(model)).filter(pl.col("rows") > 0))
    return pl.concat(found)


def _scores(sources: Sources, items: pl.DataFrame) -> tuple[Score, ...]:
    sums = {
        row["model"]: row for row in items.group_by("model").agg(pl.exclude("unique_id").sum()).iter_rows(named=True)
    }
    base, found = sums[sources.baseline], []
    for model in sources.models:
        row = sums[model]
        losses = {level: row[f"loss_{quantile_column(level)}"] for level in sources.levels}
        risk = {level: 2 * loss / row["size"] if row["size"] else np.nan for level, loss in losses.items()}
        over = {level: base[f"loss_{quantile_column(level)}"] for level in sources.levels}
        relative = {level: losses[level] / over[level] if over[level] else np.nan for level in losses}
        coverage = {level: row[f"below_{quantile_column(level)}"] / row["rows"] for level in sources.levels}
        found.append(Score(model, risk, relative, coverage))
    return tuple(found)


def _counts(sources: Sources, items: pl.DataFrame, number: int, sampled: int) -> Counts:
    rows = sources.rows[sources.first_model]
    judged, cutoffs = int(items.filter(model=sources.first_model)["rows"].sum()), distinct(rows.cutoff)
    return Counts(
        items=number,
        rows=judged,
        cutoffs=len(cutoffs),
        horizon=sources.horizon,
        sampled=sampled,
        left_out=sources.left_out,
        without_actual=rows.num_rows - judged,
        first_cutoff=show_time(int(cutoffs[0])),
        last_cutoff=show_time(int(cutoffs[-1])),
    )


def _slices(part: Sources) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Accuracy by slice, and by decile of demand where ten items or more have demand before their first cutoff."""
    slices = evaluate(part.forecasts, part.actuals, slices=part.slices, missing="drop")
    if "slice" not in slices.columns:
        slices = slices.with_columns(slice=pl.lit(OVERALL))
    deciles = None
    if part.first["unique_id"].n_unique() >= 10:
        try:
            found = evaluate(part.forecasts, part.actuals, slices=demand_deciles(part.actuals), missing="drop")
            deciles = found.filter(pl.col("slice") != OVERALL)
        except DataError:  # no demand before the first cutoff
            deciles = None
    return slices.filter(pl.col("rows") > 0), deciles


def _leads(part: Sources) -> pl.DataFrame | None:
    try:
        return loss_by_lead(part.forecasts, part.actuals, part.judged_levels, missing="drop")
    except DataError:  # no target has two forecasts
        return None


def _volatility(part: Sources, seed: int) -> tuple[tuple[Excess, ...], pl.DataFrame | None]:
    """Nothing where there is nothing to judge: one level, or one forecast a target."""
    if len(part.levels) < 2:
        return (), None
    excess, processes = [], []
    for model, frame in part.forecasts.items():
        try:
            found = volatility(frame, part.actuals, part.judged_levels, resamples=RESAMPLES, seed=seed, missing="drop")
        except (DataError, ConfigError):  # one forecast a target, or demand that no gamma fits
            return (), None
        processes.append(found.process.with_columns(model=pl.lit(model)))
        columns = ("level", "excess", "lo", "hi", "reading", "turns", "targets")
        excess += [Excess(model, **row) for row in found.summary.select(columns).iter_rows(named=True)]
    return tuple(excess), pl.concat(processes, how="diagonal_relaxed")


def _calibration(sources: Sources, scores: tuple[Score, ...]) -> pl.DataFrame:
    rows = [(score.model, level, score.coverage[level]) for score in scores for level in sources.levels]
    return pl.DataFrame(rows, schema=["model", "level", "observed"], orient="row")


def _widths(overall: pl.DataFrame) -> pl.DataFrame:
    intervals = [name.removeprefix("width_") for name in overall.columns if name.startswith("width_")]
    rows = [
        (row["model"], interval, row[f"width_{interval}"], row[f"inside_{interval}"])
        for row in overall.iter_rows(named=True)
        for interval in intervals
    ]
    return pl.DataFrame(
        rows,
        schema={"model": pl.String, "interval": pl.String, "width": pl.Float64, "inside": pl.Float64},
        orient="row",
    )


def _worst(sources: Sources, items: pl.DataFrame) -> tuple[Listed, ...]:
    """The items that cost most: the mean loss of a forecast over the levels, in units; and as a share of demand."""
    mine = items.filter(model=sources.first_model)
    loss = pl.sum_horizontal([f"loss_{quantile_column(level)}" for level in sources.levels]) / len(sources.levels)
    share = pl.when(pl.col("size") > 0).then(2 * loss / pl.col("size"))
    mine = mine.select("unique_id", value=loss / pl.col("rows"), beside=share)
    listed = mine.sort("value", "unique_id", descending=[True, False]).head(LISTED)
    return tuple(Listed(*row) for row in listed.iter_rows())


def _restless(part: Sources) -> tuple[Listed, ...]:
    """The items whose forecasts moved most without cause: mean excess volatility; and back and forth, in units."""
    level = 0.5 if 0.5 in part.levels else part.levels[-1]
    try:
        found = exceptions(part.first, part.actuals, level, LISTED, per="item")
    except (DataError, ConfigError):  # one forecast a target, or one level
        return ()
    moved = found.filter(pl.col("excess") > 0).select("unique_id", "excess", "back_and_forth")
    return tuple(Listed(*row) for row in moved.iter_rows())
