"""The forecasts with the most unexplained revisions: a ranked list for a planner."""

from collections import Counter
from typing import Literal

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrameT

from mqcast.arguments import number, whole_number
from mqcast.data.schema import Schema, refuse_taken
from mqcast.errors import ConfigError
from mqcast.evaluation.columns import one_of
from mqcast.evaluation.martingale_sums import martingale, revision_sizes
from mqcast.evaluation.reading import Actuals, Forecasts, actuals_table, forecast_table, names_in
from mqcast.evaluation.tables import ForecastTable, actuals_of
from mqcast.evaluation.trajectories import Cdf, Chances, Leads, Trajectories, negative_share, trajectories_of

Rank = Literal["excess", "units"]
Per = Literal["target", "item"]
OUTPUTS = (
    *("excess", "back_and_forth", "moved", "direction_changes", "first", "last", "lowest", "highest", "actual"),
    *("largest", "revised_at", "forecasts", "targets"),
)
RANKINGS = {"excess": "excess", "units": "back_and_forth"}


def rank_revisions(
    revisions: Forecasts[IntoDataFrameT],
    actuals: Actuals | None = None,
    level: float = 0.5,
    top: int | None = 50,
    *,
    rank: Rank = "excess",
    per: Per = "target",
    cdf: Cdf = "gamma",
    leads: Leads = "available",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> IntoDataFrameT:
    """Items and target dates whose forecasts were revised most and came back to where they were, the worst first.

    Without actuals, or for future dates, a target is judged by the forecasts made so far.

    excess                V at the outcome, or at the latest forecast: revisions that were reversed, as a probability
    back_and_forth        moved - |last - first|: the same in units of demand
    moved                 sum of the sizes of all revisions
    direction_changes     how often a revision went against the one before
    first, last, lowest, highest, actual
    largest, revised_at   the largest revision, and the cutoff of the forecast that made it

    rank="units" ranks by back_and_forth, which puts high sellers first. per="item" sums over an item's targets (excess:
    their mean).

    >>> from mqcast import rank_revisions
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> rank_revisions(forecasts, world.actuals, top=3).height
    3
    """
    one_of("rank", rank, Rank)
    one_of("per", per, Per)
    if top is not None:
        whole_number("top", top)
    level = number("level", level, 0, 1)
    names = names_in(revisions, schema, id=id, time=time, target=target)
    refuse_taken({"id": names.id, "time": names.time}, OUTPUTS, "rank_revisions")
    rows = forecast_table(revisions, names)
    actual = np.full(len(rows.begins), np.nan)
    if actuals is not None:
        actual = actuals_of(rows, actuals_table(actuals, names), "drop", may_be_none=True)
    names = rows.names
    paths = trajectories_of(rows, actual, leads, unrealised=True)
    assert paths is not None
    if len(rows.levels) < 2 and not callable(cdf) and rank == "excess":
        raise ConfigError("one quantile a forecast does not tell a distribution; give two levels, or rank='units'")
    table = _movement(rows, paths, level, _excess(rows, paths, level, cdf))
    if per == "item":
        sums = pl.sum("back_and_forth", "moved", "direction_changes")
        table = table.group_by(names.id).agg(pl.len().alias("targets"), pl.mean("excess"), sums, pl.mean("actual"))
    ties = [names.id] if per == "item" else [names.id, names.time]
    order = table.sort(RANKINGS[rank], *ties, descending=[True] + [False] * len(ties))
    return rows.frame_types.to_native(order if top is None else order.head(top), names.id)


def _excess(rows: ForecastTable, paths: Trajectories, level: float, cdf: Cdf) -> np.ndarray:
    """V of each target at its outcome, or at its latest forecast; NaN where there is one quantile only."""
    if len(rows.levels) < 2 and not callable(cdf):
        return np.full(len(paths), np.nan)
    shown = rows.level(level) if np.isnan(paths.actual).all() else paths.actual
    chances = Chances(rows, (rows.levels[rows.place_of(level)],), cdf, negative_share(shown))
    p, _, _ = chances.process(paths, Counter())
    p[..., -1] = np.where(np.isnan(p[..., -1]), p[..., -2], p[..., -1])
    return martingale(p)[0][0, :, -1]


def _movement(rows: ForecastTable, paths: Trajectories, level: float, excess: np.ndarray) -> pl.DataFrame:
    """One row per target: how its forecasts moved."""
    q = rows.level(level)[paths.row]
    change, at = np.diff(q, axis=1), np.arange(len(q))
    largest = np.abs(change).argmax(axis=1)
    sizes = revision_sizes(q[None], paths.has_begun[:, :-1])
    return pl.DataFrame(
        {
            rows.names.id: pl.Series(rows.ids, dtype=pl.String).gather(paths.item),
            rows.names.time: rows.clock.dates(paths.time),
            "excess": pl.Series(excess).fill_nan(None),
            "back_and_forth": sizes["mqc"][0] - np.abs(q[:, -1] - q[:, 0]),
            "moved": sizes["mqc"][0],
            "direction_changes": sizes["direction_changes"][0].astype(np.int64),
            "first": q[:, 0],
            "last": q[:, -1],
            "lowest": q.min(axis=1),
            "highest": q.max(axis=1),
            "actual": pl.Series(paths.actual).fill_nan(None),
            "largest": change[at, largest],
            "revised_at": rows.clock.dates(rows.cutoff[paths.row[at, largest + 1]]),
            "forecasts": paths.is_new.sum(axis=1),
        }
    )
