"""Models beside a baseline: relative losses as in the paper's tables, and losses as the target date approaches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrameT

from mqcast.arguments import whole_number
from mqcast.data.frame_types import FrameTypes
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError, DataError
from mqcast.evaluation.columns import one_of
from mqcast.evaluation.metrics import Scored, ratio, scored_models, warn_of_implausible
from mqcast.evaluation.reading import Actuals, Forecasts, Models, actuals_table, forecast_tables, names_in
from mqcast.evaluation.slices import OVERALL, Slices, flattened
from mqcast.evaluation.tables import ActualsTable, Missing, actuals_of, common_rows
from mqcast.evaluation.trajectories import Leads, levels_of, trajectories_of
from mqcast.levels import percentile, pinball
from mqcast.settings import nearest

Rows = Literal["same", "common"]


@dataclass(frozen=True, eq=False)
class Comparison(Generic[IntoDataFrameT]):
    """Models beside a baseline.

    losses   dimension, model, level, loss, relative (1 is the baseline), best
    table    one row a dimension, one column a model and level, as in the paper's tables
    """

    baseline: str
    _losses: pl.DataFrame
    _frame_types: FrameTypes

    @property
    def losses(self) -> IntoDataFrameT:
        return self._frame_types.to_native(self._losses)

    @property
    def table(self) -> IntoDataFrameT:
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
    forecasts: Models[IntoDataFrameT],
    actuals: Actuals,
    baseline: str,
    levels: float | Sequence[float] = (0.5, 0.9),
    *,
    slices: Slices | None = None,
    horizons: int | None = None,
    rows: Rows = "same",
    missing: Missing = "warn",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Comparison[IntoDataFrameT]:
    """Each model's quantile loss over the baseline's, overall and by slice; `horizons`: the first leads only.

    All models are judged on the same forecasts. Where they do not have the same, rows="common" takes those that all
    have. Warns once of implausible forecasts: see `implausible`.

    >>> from mqcast import compare
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> higher = forecasts.with_columns(forecasts["q0.5"] * 1.2)
    >>> table = compare({"best": forecasts, "higher": higher}, world.actuals, baseline="best")
    >>> print(table.to_markdown().splitlines()[0])
    | dimension | best P50 | best P90 | higher P50 | higher P90 |
    """
    names, levels = names_in(forecasts, schema, id=id, time=time, target=target), levels_of(levels)
    one_of("rows", rows, Rows)
    if horizons is not None:
        whole_number("horizons", horizons)
    if not isinstance(forecasts, Mapping):
        raise ConfigError("forecasts is one frame; give {name: forecasts}")
    if not isinstance(baseline, str) or baseline not in forecasts:
        raise ConfigError(f"there is no model {baseline!r}{nearest(baseline, list(forecasts))} to be the baseline")
    observed, tables = actuals_table(actuals, names), forecast_tables(forecasts, names)
    scored = on_common_rows(scored_models(tables, observed, missing), rows)
    warn_of_implausible(scored, observed)
    dimensions = [(OVERALL, None), *((one.name, one) for one in flattened(slices))]
    losses = []
    for dimension, one in dimensions:
        of_model = {}
        for model, each in scored.items():
            where = np.ones(each.rows.num_rows, bool) if one is None else one.of(each.rows)
            if horizons is not None:
                where &= each.rows.lead <= horizons
            of_model[model] = _mean_losses(each, where, levels)
        best = np.min(list(of_model.values()), axis=0)
        for i, level in enumerate(levels):
            for model, mean in of_model.items():
                base = of_model[baseline][i]
                relative = mean[i] / base if base > 0 else np.nan
                row = {"dimension": dimension, "model": model, "level": level, "loss": mean[i]}
                losses.append(row | {"relative": relative, "best": bool(mean[i] <= best[i])})
    order = {model: i for i, model in enumerate([baseline, *(m for m in forecasts if m != baseline)])}
    table = pl.DataFrame(losses).with_columns(pl.col(pl.Float64).fill_nan(None))
    place = pl.col("model").replace_strict(order, return_dtype=pl.Int32)
    dimension = pl.col("dimension").replace_strict({name: i for i, (name, _) in enumerate(dimensions)})
    return Comparison(baseline, table.sort(dimension, place, "level"), scored[baseline].rows.frame_types)


def _mean_losses(scored: Scored, where: np.ndarray, levels: Sequence[float]) -> list[float]:
    losses = [pinball(scored.actual[where], scored.rows.level(level)[where], level) for level in levels]
    with np.errstate(over="ignore"):
        return [float(loss.mean()) if loss.size else np.nan for loss in losses]


def on_common_rows(scored: dict[str, Scored], rows: Rows = "same") -> dict[str, Scored]:
    """The scored rows that all models have; an error if they differ and rows is "same"."""
    masks = common_rows({model: each.rows for model, each in scored.items()})
    if masks is None:
        return scored
    if rows == "common" and all(mask.any() for mask in masks.values()):
        return {model: each.where(masks[model]) for model, each in scored.items()}
    first, *others = scored
    pairs = ((other, common_rows({first: scored[first].rows, other: scored[other].rows})) for other in others)
    other, shared = next((other, shared) for other, shared in pairs if shared is not None)
    alone = {model: np.flatnonzero(~mask) for model, mask in shared.items()}
    model, places = next((model, places) for model, places in alone.items() if places.size)
    number = sum(places.size for places in alone.values())
    raise DataError(
        f"{first!r} and {other!r} do not forecast the same: {number} rows are in one alone",
        "give the same series, cutoffs and dates, or rows='common'",
        **scored[model].rows.at(places[0]),
    )


def loss_by_lead(
    forecasts: Forecasts[IntoDataFrameT] | Models[IntoDataFrameT],
    actuals: Actuals,
    levels: float | Sequence[float] = (0.5, 0.9),
    *,
    leads: Leads = "auto",
    missing: Missing = "warn",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> IntoDataFrameT:
    """The mean quantile loss at each lead as the target date approaches, and `centred`: less its mean over the leads.

    Every lead is averaged over the same targets where that is possible (see `leads` of `volatility`).
    """
    names, levels = names_in(forecasts, schema, id=id, time=time, target=target), levels_of(levels)
    observed, tables = actuals_table(actuals, names), forecast_tables(forecasts, names)
    losses = losses_by_lead(scored_models(tables, observed, missing), observed, levels, leads)
    losses = losses if isinstance(forecasts, Mapping) else losses.drop("model")
    return [*tables.values()][-1].frame_types.to_native(losses)


def losses_by_lead(
    scored: dict[str, Scored], observed: ActualsTable, levels: Sequence[float], leads: Leads = "auto"
) -> pl.DataFrame:
    """`loss_by_lead` of scored forecasts, after `model`."""
    losses = []
    for model, each in on_common_rows(scored).items():
        rows = each.rows
        paths = trajectories_of(rows, actuals_of(rows, observed, "raise"), leads)
        assert paths is not None
        targets = paths.is_new.sum(axis=0)
        for level in levels:
            loss = pinball(paths.actual[:, None], rows.level(level)[paths.row], level)
            mean = ratio(np.where(paths.is_new, loss, 0).sum(axis=0), targets)
            losses += [
                {"model": model, "level": level, "lead": paths.horizon - step, "loss": mean[step]}
                | {"centred": mean[step] - np.nanmean(mean), "targets": int(targets[step])}
                for step in range(paths.horizon)
                if targets[step]
            ]
    return pl.DataFrame(losses)
