"""What if: forecasts of a plan and of changes to it, side by side. Only the items that change are forecast."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from mqcast.data.export import frames_of
from mqcast.data.panel import Panel
from mqcast.data.plan import changes_of, with_changes
from mqcast.data.schema import refuse_taken
from mqcast.errors import ConfigError, DataError, quoted
from mqcast.forecast.ends import only
from mqcast.forecast.frames import require_plans
from mqcast.levels import quantile_column

BASELINE, CHANGE = "baseline", "change"


def named_scenarios(future: Any) -> dict[str, Any]:
    """{name: changes}; one frame alone has no name."""
    if not isinstance(future, Mapping):
        return {"": future}
    scenarios = dict[Any, Any](future)
    if wrong := [name for name in scenarios if not isinstance(name, str) or not name or name in (BASELINE, CHANGE)]:
        raise ConfigError(f"a scenario is called {quoted(wrong[0])}; give it a name of its own")
    if not scenarios:
        raise ConfigError("there is no scenario; give {name: changed rows}")
    return scenarios


def side_by_side(
    forecast: Callable[[Panel, Any], pl.DataFrame], base: Panel, future: Any, levels: Sequence[float], horizon: int
) -> pl.DataFrame:
    """Forecasts of the items that change, from the last sale: q0.5, q0.5_baseline, q0.5_change …

    Several scenarios have columns of their own: q0.5_baseline, then q0.5_<name> and q0.5_<name>_change of each.
    """
    schema, columns, scenarios = base.schema, [quantile_column(level) for level in levels], named_scenarios(future)
    endings = [f"_{name}" if name else "" for name in scenarios]
    added = [f"_{BASELINE}", *endings, *(f"{end}_{CHANGE}" for end in endings)]
    taken = [column + end for column in columns for end in added]
    refuse_taken({"id": schema.id, "time": schema.time}, taken, "what_if")
    changes = [changes_of(frame, schema) for frame in scenarios.values()]
    panel, cutoff = only(base, _touched(base, changes)), base.last_observed_date
    require_plans(panel, cutoff, horizon)
    frames, keys = frames_of(panel), [schema.id, "cutoff", schema.time, "horizon"]
    found = forecast(panel, cutoff).rename({column: f"{column}_{BASELINE}" for column in columns})
    for part, end in zip(changes, endings, strict=True):
        rows = with_changes(frames.rows, part, schema)
        changed = Panel.from_frame(rows, like=base.layout, static=frames.static, events=frames.events)
        theirs = forecast(changed, cutoff).rename({column: f"{column}{end}" for column in columns})
        difference = [(pl.col(f"{c}{end}") - pl.col(f"{c}_{BASELINE}")).alias(f"{c}{end}_{CHANGE}") for c in columns]
        found = found.join(theirs, on=keys, maintain_order="left").with_columns(difference)
    first = [column + endings[0] for column in columns] if endings == [""] else []
    return found.select(*keys, *first, pl.exclude(*keys, *first))


def _touched(base: Panel, changes: list[pl.DataFrame]) -> list[str]:
    """The series that change."""
    touched = {name for part in changes for name in part[base.schema.id]}
    if extra := sorted(touched - set(base.ids.to_pylist())):
        raise DataError(
            f"the plan has {len(extra)} series that the baseline plan does not have",
            "check their ids; forecast new items with predict(future=…)",
            series=extra[0],
            column=base.schema.id,
        )
    return sorted(touched)
