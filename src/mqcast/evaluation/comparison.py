"""Models beside a baseline: relative losses as in the paper's tables, and losses as the target date approaches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from mqcast.arguments import whole_number
from mqcast.data.frame_types import FrameTypes
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation.columns import one_of
from mqcast.evaluation.implausible_forecasts import warn_of
from mqcast.evaluation.metrics import Scored, pinball, ratio, scored_rows
from mqcast.evaluation.plausibility import Sold, judge
from mqcast.evaluation.slices import OVERALL, Slices, flattened
from mqcast.evaluation.tables import Forecasts, Missing, Names, actuals_of, read_actuals
from mqcast.evaluation.trajectories import Leads, levels_of, trajectories_of
from mqcast.levels import percentile
from mqcast.settings import nearest

Rows = Literal["same", "common"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Models beside a baseline.

    losses   dimension, model, level, loss, relative (1 is the baseline), best
    table    one row a dimension, one column a model and level, as in the paper's tables
    """

    baseline: str
    _losses: pl.DataFrame
    _frame_types: FrameTypes

    @property
    def losses(self) -> Any:
        return self._frame_types.to_native(self._losses)

    @property
    def table(self) -> Any:
        return self._frame_types.to_native(self._wide(pl.col("relative")))

    def to_markdown(self) -> str:
        """The table with the best of each level in bold."""
        text = pl.col("relative").map_elements(lambda x: f"{x:.3f}", pl.String).fill_null("-")
        wide = self._wide(pl.when("best").then(pl.format("**{}**", text)).otherwise(text))
        lines = [list(wide.columns), ["---"] + ["---:"] * (wide.width - 1), *map(list, wide.rows())]
        return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)

    def __str__(self) -> str:
        return self.to_markdown()

    def _wide(self, value: pl.Expr) -> pl.DataFrame:
        named = self._losses.select(
            pl.col("dimension"),
            pl.format("{} {}", "model", pl.col("level").map_elements(percentile, pl.String)),
            value.alias("value"),
        )
        return named.pivot(on=named.columns[1], index="dimension", values="value")


def compare(
    forecasts: Mapping[str, Any],
    actuals: Any,
    baseline: str,
    levels: float | Sequence[float] = (0.5, 0.9),
    *,
    slices: Slices | None = None,
    horizons: int | None = None,
    rows: Rows = "same",
    missing: Missing = "raise",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Comparison:
    """Each model's quantile loss over the baseline's, overall and by slice; `horizons`: the first leads only.

    All models are judged on the same forecasts. Where they do not have the same, rows="common" takes those that all
    have. Warns, once, of forecasts that cannot be meant: see `implausible`.
    """
    names, levels = Names.of(schema, id=id, time=time, target=target), levels_of(levels)
    one_of("rows", rows, Rows)
    if horizons is not None:
        whole_number("horizons", horizons)
    if not isinstance(forecasts, Mapping):
        raise ConfigError("forecasts is one frame; give {name: forecasts}")
    if not isinstance(baseline, str) or baseline not in forecasts:
        raise ConfigError(f"there is no model {baseline!r}{nearest(baseline, list(forecasts))} to be the baseline")
    observed = read_actuals(actuals, names)
    scored = {model: scored_rows(frame, observed, names, missing) for model, frame in forecasts.items()}
    scored, sold = on_common_rows(scored, rows), Sold(observed)
    warn_of([judge(str(model), each.rows, sold, each.actual) for model, each in scored.items()])
    dimensions = [(OVERALL, None), *((one.name, one) for one in flattened(slices))]
    found = []
    for dimension, one in dimensions:
        of_model = {}
        for model, each in scored.items():
            where = np.ones(each.rows.num_rows, bool) if one is None else one.of(each.rows)
            if horizons is not None:
                where &= each.rows.lead <= horizons
            losses = [pinball(each.actual[where], each.rows.level(level)[where], level) for level in levels]
            with np.errstate(over="ignore"):
                of_model[model] = [float(loss.mean()) if loss.size else np.nan for loss in losses]
        best = np.min(list(of_model.values()), axis=0)
        for i, level in enumerate(levels):
            for model, losses in of_model.items():
                base = of_model[baseline][i]
                relative = losses[i] / base if base > 0 else np.nan
                row = {"dimension": dimension, "model": model, "level": level, "loss": losses[i]}
                found.append(row | {"relative": relative, "best": bool(losses[i] <= best[i])})
    order = {model: i for i, model in enumerate([baseline, *(m for m in forecasts if m != baseline)])}
    table = pl.DataFrame(found).with_columns(pl.col(pl.Float64).fill_nan(None))
    place = pl.col("model").replace_strict(order, return_dtype=pl.Int32)
    dimension = pl.col("dimension").replace_strict({name: i for i, (name, _) in enumerate(dimensions)})
    return Comparison(baseline, table.sort(dimension, place, "level"), scored[baseline].rows.frame_types)


def on_common_rows(scored: dict[str, Scored], rows: Rows = "same") -> dict[str, Scored]:
    keys = {model: _keys(each.rows) for model, each in scored.items()}
    (first, of_first), *others = keys.items()
    unlike = [model for model, table in others if not table.equals(of_first)]
    if not unlike:
        return scored
    common, columns = of_first, of_first.columns
    for model in unlike:
        common = common.join(keys[model], on=columns, how="semi")
    if rows != "common" or not common.height:
        both = ((of_first, keys[unlike[0]]), (keys[unlike[0]], of_first))
        only = pl.concat([mine.join(theirs, on=columns, how="anti") for mine, theirs in both])
        raise DataError(
            f"{first!r} and {unlike[0]!r} do not forecast the same: {only.height} rows are in one alone",
            "give the same series, cutoffs and dates, or rows='common'",
            series=only[0, "id"],
            time=str(only[0, "time"].date()),
        )
    kept = {}
    for model, each in scored.items():
        where = np.zeros(each.rows.num_rows, bool)
        where[keys[model].with_row_index("row").join(common, on=columns, how="semi")["row"].to_numpy()] = True
        kept[model] = Scored(each.rows.where(where), each.actual[where])
    return kept


def _keys(rows: Forecasts) -> pl.DataFrame:
    times = {"cutoff": pl.Series(rows.cutoff), "time": pl.Series(rows.time)}
    ids = pl.Series(rows.ids, dtype=pl.String).gather(rows.item)
    return pl.DataFrame({"id": ids} | {name: series.cast(pl.Datetime("us")) for name, series in times.items()})


def loss_by_lead(
    forecasts: Any,
    actuals: Any,
    levels: float | Sequence[float] = (0.5, 0.9),
    *,
    leads: Leads = "auto",
    missing: Missing = "raise",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Any:
    """The mean quantile loss at each lead as the target date approaches, and `centred`: less its mean over the leads.

    Every lead is averaged over the same targets where that is possible (see `leads` of `volatility`).
    """
    names, levels = Names.of(schema, id=id, time=time, target=target), levels_of(levels)
    models = forecasts if isinstance(forecasts, Mapping) else {"": forecasts}
    if not models:
        raise ConfigError("there is no model; give {name: forecasts}")
    observed, found, frame_types = read_actuals(actuals, names), [], FrameTypes()
    scored = on_common_rows({name: scored_rows(frame, observed, names, missing) for name, frame in models.items()})
    for model, each in scored.items():
        rows, frame_types = each.rows, each.rows.frame_types
        paths = trajectories_of(rows, actuals_of(rows, observed, "raise"), leads)
        assert paths is not None
        targets = paths.is_new.sum(axis=0)
        for level in levels:
            loss = pinball(paths.actual[:, None], rows.level(level)[paths.row], level)
            mean = ratio(np.where(paths.is_new, loss, 0).sum(axis=0), targets)
            found += [
                ({"model": model} if model else {})
                | {"level": level, "lead": paths.horizon - step, "loss": mean[step]}
                | {"centred": mean[step] - np.nanmean(mean), "targets": int(targets[step])}
                for step in range(paths.horizon)
                if targets[step]
            ]
    return frame_types.to_native(pl.DataFrame(found))
