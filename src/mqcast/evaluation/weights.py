"""How much each target counts: all alike, by demand known before, by demand realised, or as the user says."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from narwhals.typing import IntoDataFrame

from mqcast.errors import ConfigError, DataError, DuplicateRowsError, SeriesLeftOutWarning, warn
from mqcast.evaluation.columns import columns_of, ids_of, numbers_of
from mqcast.evaluation.tables import ActualsTable, ForecastTable
from mqcast.evaluation.trajectories import Trajectories

Weights: TypeAlias = Literal["demand", "realised"] | Mapping[Any, float] | IntoDataFrame | None


def weights_of(
    weights: Weights, forecasts: ForecastTable, paths: Trajectories, actuals: ActualsTable
) -> np.ndarray | None:
    """One weight a target; None: all alike."""
    if weights is None:
        return None
    if isinstance(weights, str):
        if weights not in ("demand", "realised"):
            raise ConfigError(f"weights is {weights!r}; give None, 'demand', 'realised', or a weight for each id")
        if weights == "realised":
            return _checked(paths.actual, forecasts, paths)
        return _checked(_known_demand(forecasts, actuals)[paths.item], forecasts, paths)
    if isinstance(weights, Mapping):
        try:
            of_id = {str(key): float(value) for key, value in weights.items()}
        except (TypeError, ValueError):
            raise ConfigError("weights holds what is no number; give {id: weight}") from None
    else:
        columns = columns_of(weights, [forecasts.names.id, "weight"], "the weights")
        ids, item = ids_of(columns[forecasts.names.id], forecasts.names.id, "the weights")
        if len(item) > len(ids):
            twice = ids[int(np.bincount(item).argmax())]
            raise DuplicateRowsError("two weights of one item", "keep one row an item", series=twice)
        of_id = dict(zip((ids[i] for i in item), numbers_of(columns["weight"], "weight", "the weights"), strict=True))
    of_item = np.array([of_id.get(name, np.nan) for name in forecasts.ids])
    return _checked(of_item[paths.item], forecasts, paths)


def _checked(weight: np.ndarray, forecasts: ForecastTable, paths: Trajectories) -> np.ndarray:
    bad = np.flatnonzero(~(weight >= 0) | np.isinf(weight))
    if bad.size:
        series = forecasts.ids[paths.item[bad[0]]]
        raise DataError(f"its weight is {weight[bad[0]]:g}", "give each item a weight of 0 or more", series=series)
    if not weight.any():
        raise DataError("all weights are 0", "give some item a weight")
    return weight


def _known_demand(forecasts: ForecastTable, actuals: ActualsTable) -> np.ndarray:
    """Each item's mean demand up to its first cutoff; 0, with a warning, where it had none."""
    of_item = actuals.known_mean(forecasts.ids, forecasts.first_cutoffs())
    without = np.isnan(of_item)
    if without.all():
        raise DataError(
            "weights='demand' is the mean demand up to an item's first cutoff, and no item has any",
            "give actuals that reach back before the first cutoff, or weights of your own",
        )
    if without.any():
        warn(
            f"{without.sum()} of {without.size} items have no demand up to their first cutoff and weigh nothing: "
            f"{', '.join(repr(forecasts.ids[i]) for i in np.flatnonzero(without)[:3])} …",
            SeriesLeftOutWarning,
        )
    return np.nan_to_num(of_item)
