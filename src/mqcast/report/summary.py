"""Frames → what a report says, in numbers: typed, and free of figures and pages."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from mqcast.data.frequency import show_time
from mqcast.data.summary import Summary, summarise
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation.columns import distinct
from mqcast.evaluation.comparison import losses_by_lead
from mqcast.evaluation.implausible_forecasts import Implausible, implausible
from mqcast.evaluation.martingale import Settings, volatility_of
from mqcast.evaluation.metrics import LossSums, Scored, accuracy, scored_models
from mqcast.evaluation.plausibility import OFF, Level, levels_off
from mqcast.evaluation.ranking import rank_revisions
from mqcast.evaluation.slices import OVERALL, demand_deciles
from mqcast.levels import quantile_column
from mqcast.report.sources import Sources

MOST_ROWS = 1_200_000  # of a model, beyond which all but the headline is of a sample of items
RESAMPLES = 1000
LISTED = 20
AS_ORACLE = "no more than the oracle's"


@dataclass(frozen=True)
class Score:
    """One forecaster, by level: risk 2 Σ loss / Σ |demand|, that over the baseline's, and the share at or below."""

    model: str
    risk: dict[float, float]
    relative: dict[float, float]
    coverage: dict[float, float]


@dataclass(frozen=True)
class Excess:
    """Excess volatility of one forecaster at one level, with its 95 % interval and what it means.

    V is exact for exact distributions only, and a gamma fitted to two quantiles is none. Where there is an oracle, what
    lies within its interval is therefore no finding.
    """

    model: str
    level: float
    excess: float | None
    lo: float | None
    hi: float | None
    reading: str
    direction_changes: float | None
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
    off               by model: levels whose coverage is wrong; those of `implausible` are the worst of them
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
    unstable: tuple[Listed, ...]
    data: Summary | None
    implausible: Implausible
    off: dict[str, tuple[Level, ...]]

    @property
    def suspicious(self) -> list[str]:
        """Models with forecasts that are too large for any figure."""
        return [one.model for one in self.implausible.verdicts if one.num_large]


def findings_of(sources: Sources, seed: int = 0) -> Findings:
    """Judge the forecasts. Beyond MOST_ROWS of a model all but the headline is of a random sample of items.

    Implausible forecasts are looked for in all items. They are part of the findings; there is no warning.
    """
    sums = _sums_by_item(scored_models(sources.rows, sources.observed, "drop"))
    ids = sums["unique_id"].unique(maintain_order=True)
    most = max(1, int(MOST_ROWS / (sources.first.num_rows / len(ids))))
    part = sources if len(ids) <= most else sources.of_items(ids.sample(most, seed=seed))
    scored = scored_models(part.rows, part.observed, "drop")
    scores, slices = _scores(sources, sums), accuracy(scored, part.observed, slices=part.slices)
    excess, process = _volatility(part, seed)
    verdicts = implausible(sources.rows, sources.observed)
    return Findings(
        models=sources.models,
        baseline=sources.baseline,
        oracle=sources.oracle,
        levels=sources.levels,
        counts=_counts(sources, sums, len(ids), min(len(ids), most)),
        scores=scores,
        excess=excess,
        slices=slices.filter(pl.col("rows") > 0),
        deciles=_deciles(scored, part),
        horizons=accuracy(scored, part.observed, ["horizon"], leading=["model"]),
        leads=_leads(scored, part),
        process=process,
        calibration=_calibration(sources, scores),
        widths=_widths(slices.filter(slice=OVERALL)),
        worst=_worst(sources, sums),
        unstable=_unstable(part),
        data=None if sources.calendar is None else summarise(sources.calendar.panel),
        implausible=verdicts,
        off=_off(scored, verdicts),
    )


def _sums_by_item(scored: dict[str, Scored]) -> pl.DataFrame:
    """Sums by model and item over all rows that have an actual: rows, |y|, losses and coverage counts by level."""
    tables = []
    for model, each in scored.items():
        sums = LossSums.of(each, each.losses(), each.rows.item, len(each.rows.ids))
        columns = {"unique_id": pl.Series(each.rows.ids, dtype=pl.String), "rows": sums.rows, "size": sums.size}
        for i, name in enumerate(map(quantile_column, each.rows.levels)):
            columns |= {f"loss_{name}": sums.loss[i], f"covered_{name}": sums.covered[i]}
        tables.append(pl.DataFrame(columns).with_columns(model=pl.lit(model)).filter(pl.col("rows") > 0))
    return pl.concat(tables)


def _scores(sources: Sources, items: pl.DataFrame) -> tuple[Score, ...]:
    totals = items.group_by("model").agg(pl.exclude("unique_id").sum()).rows_by_key("model", named=True, unique=True)
    base, scores = totals[sources.baseline], []
    for model in sources.models:
        row = totals[model]
        losses = {level: row[f"loss_{quantile_column(level)}"] for level in sources.levels}
        risk = {level: 2 * loss / row["size"] if row["size"] else np.nan for level, loss in losses.items()}
        over = {level: base[f"loss_{quantile_column(level)}"] for level in sources.levels}
        relative = {level: losses[level] / over[level] if over[level] else np.nan for level in losses}
        coverage = {level: row[f"covered_{quantile_column(level)}"] / row["rows"] for level in sources.levels}
        scores.append(Score(model, risk, relative, coverage))
    return tuple(scores)


def _counts(sources: Sources, items: pl.DataFrame, number: int, sampled: int) -> Counts:
    rows = sources.first
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


def _deciles(scored: dict[str, Scored], part: Sources) -> pl.DataFrame | None:
    """Accuracy by decile of demand, where ten items or more have demand before their first cutoff."""
    if len(part.ids) < 10:
        return None
    try:
        deciles = accuracy(scored, part.observed, slices=demand_deciles(part.observed))
    except DataError:  # no demand before the first cutoff
        return None
    return deciles.filter(pl.col("slice") != OVERALL)


def _leads(scored: dict[str, Scored], part: Sources) -> pl.DataFrame | None:
    try:
        return losses_by_lead(scored, part.observed, part.judged_levels)
    except DataError:  # no target has two forecasts
        return None


def _volatility(part: Sources, seed: int) -> tuple[tuple[Excess, ...], pl.DataFrame | None]:
    """Nothing where there is nothing to judge: one level, or one forecast a target."""
    if len(part.levels) < 2:
        return (), None
    settings = Settings(part.judged_levels, resamples=RESAMPLES, seed=seed, missing="drop")
    excess, processes = [], []
    for model, table in part.rows.items():
        try:
            judged = volatility_of(table, part.observed, settings)
        except (DataError, ConfigError):  # one forecast a target, or demand that no gamma fits
            return (), None
        processes.append(judged.polars_process.with_columns(model=pl.lit(model)))
        columns = ("level", "excess", "lo", "hi", "reading", "direction_changes", "targets")
        excess += [Excess(model, **row) for row in judged.polars_summary.select(columns).iter_rows(named=True)]
    return tuple(_beside_oracle(one, excess, part.oracle) for one in excess), pl.concat(
        processes, how="diagonal_relaxed"
    )


def _beside_oracle(one: Excess, excess: list[Excess], oracle: str | None) -> Excess:
    bound = next((other for other in excess if other.model == oracle and other.level == one.level), None)
    if bound is None or one.reading not in ("over-reaction", "under-reaction"):
        return one
    if bound.lo is None or bound.hi is None or one.lo is None or one.hi is None:
        return one
    is_inside = one.lo <= max(bound.hi, 0) and one.hi >= min(bound.lo, 0)
    return replace(one, reading=AS_ORACLE) if is_inside else one


def _calibration(sources: Sources, scores: tuple[Score, ...]) -> pl.DataFrame:
    rows = [(score.model, level, score.coverage[level]) for score in scores for level in sources.levels]
    return pl.DataFrame(rows, schema=["model", "level", "observed"], orient="row")


def _off(scored: dict[str, Scored], verdicts: Implausible) -> dict[str, tuple[Level, ...]]:
    found = {}
    for one in verdicts.verdicts:
        judged = scored[one.model]
        levels = {each.level: each for each in (*levels_off(judged.rows, judged.actual, OFF), *one.levels)}
        found[one.model] = tuple(levels[level] for level in sorted(levels))
    return {model: levels for model, levels in found.items() if levels}


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


def _unstable(part: Sources) -> tuple[Listed, ...]:
    """The items with the most unexplained revisions: mean excess volatility; and back and forth, in units."""
    level = 0.5 if 0.5 in part.levels else part.levels[-1]
    try:
        ranked = rank_revisions(part.first, part.observed, level, LISTED, per="item")
    except (DataError, ConfigError):  # one forecast a target, or one level
        return ()
    moved = ranked.filter(pl.col("excess") > 0).select(part.first.names.id, "excess", "back_and_forth")
    return tuple(Listed(*row) for row in moved.iter_rows())
