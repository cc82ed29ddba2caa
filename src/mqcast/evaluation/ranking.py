"""Which forecasts moved most without cause: a ranked list for a planner."""

from collections import Counter
from typing import Any, Literal

import numpy as np
import polars as pl

from mqcast.data.schema import Schema
from mqcast.errors import ConfigError
from mqcast.evaluation.martingale import martingale, revision_sizes
from mqcast.evaluation.tables import Names, actuals_of, native, read_actuals, read_forecasts
from mqcast.evaluation.trajectories import Cdf, Chances, Leads, has_negatives, trajectories_of

RANKINGS = {"excess": "excess", "units": "back_and_forth"}


def exceptions(
    revisions: Any,
    actuals: Any = None,
    level: float = 0.5,
    top: int | None = 50,
    *,
    rank: Literal["excess", "units"] = "excess",
    per: Literal["target", "item"] = "target",
    cdf: Cdf = "gamma",
    leads: Leads = "available",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Any:
    """Items and target dates by how much their forecasts moved and came back, the most first.

    Without actuals, or for dates still to come, a target is judged by its forecasts so far.

    excess            V at the outcome, or at the last forecast so far: movement that led nowhere, in chances
    back_and_forth    moved less |last - first|: the same in units of demand
    moved, turns      sum of all revisions; changes of direction
    first, last, lowest, highest, actual
    largest, revised_at   the largest revision, and the cutoff of the forecast that made it

    rank="units" goes by back_and_forth, where high sellers come first. per="item" adds up an item's targets (excess:
    their mean).
    """
    if rank not in RANKINGS or per not in ("target", "item"):
        raise ConfigError(f"rank is {rank!r} and per {per!r}; give 'excess' or 'units', and 'target' or 'item'")
    names = Names.of(schema, id=id, time=time, target=target)
    rows = read_forecasts(revisions, names)
    actual = np.full(len(rows.begins), np.nan)
    if actuals is not None:
        actual = actuals_of(rows, read_actuals(actuals, names), "drop")
    paths = trajectories_of(rows, actual, leads, unrealised=True)
    negative = has_negatives(rows.quantiles) if np.isnan(actual).all() else has_negatives(actual)
    p, quantiles, _ = Chances(rows, (level,), cdf, negative, revisions).process(paths, Counter())
    p[..., -1] = np.where(np.isnan(p[..., -1]), p[..., -2], p[..., -1])
    q, change = quantiles[0], np.diff(quantiles[0], axis=1)
    largest = np.abs(change).argmax(axis=1)
    at = np.arange(len(q))
    sizes = revision_sizes(quantiles, paths.has_begun[:, :-1])
    table = pl.DataFrame(
        {
            names.id: pl.Series(rows.ids, dtype=pl.String).gather(paths.item),
            names.time: pl.Series(paths.time).cast(pl.Datetime("us")),
            "excess": martingale(p)[0][0, :, -1],
            "back_and_forth": sizes["mqc"][0] - np.abs(q[:, -1] - q[:, 0]),
            "moved": sizes["mqc"][0],
            "turns": sizes["turns"][0].astype(np.int64),
            "first": q[:, 0],
            "last": q[:, -1],
            "lowest": q.min(axis=1),
            "highest": q.max(axis=1),
            "actual": pl.Series(paths.actual).fill_nan(None),
            "largest": change[at, largest],
            "revised_at": pl.Series(rows.cutoff[paths.row[at, largest + 1]]).cast(pl.Datetime("us")),
            "forecasts": paths.is_new.sum(axis=1),
        }
    )
    if per == "item":
        table = table.group_by(names.id).agg(
            pl.len().alias("targets"), pl.mean("excess"), pl.sum("back_and_forth", "moved", "turns"), pl.mean("actual")
        )
    ties = [names.id] if per == "item" else [names.id, names.time]
    order = table.sort(RANKINGS[rank], *ties, descending=[True] + [False] * len(ties))
    return native(order if top is None else order.head(top), revisions)
