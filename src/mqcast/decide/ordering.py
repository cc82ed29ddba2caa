"""Order quantities from forecasts of total demand and from stock."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from mqcast.data.joined import with_joined_id
from mqcast.data.schema import Schema
from mqcast.data.source import open_source
from mqcast.decide.demand import Totals, require_one_cutoff, totals_of
from mqcast.decide.policy import Policy
from mqcast.errors import DataError
from mqcast.evaluation.columns import columns_of, ids_of, numbers_of
from mqcast.evaluation.reading import names_in
from mqcast.evaluation.tables import ForecastTable, Names

OF_ITEMS = ("holding_cost", "shortage_cost", "unit_cost", "pack_size", "min_order")
POSITIVE = ("holding_cost", "shortage_cost", "pack_size")


@dataclass(frozen=True, eq=False)
class Terms:
    """The policy's numbers for each item; NaN where there is none."""

    holding_cost: np.ndarray
    shortage_cost: np.ndarray
    unit_cost: np.ndarray
    pack_size: np.ndarray
    min_order: np.ndarray

    @classmethod
    def of(cls, policy: Policy, size: int, own: dict[str, np.ndarray] | None = None) -> "Terms":
        """`own`: numbers of the items, which replace the policy's where they are not missing."""
        values = {}
        for name in OF_ITEMS:
            said = getattr(policy, name)
            common = np.full(size, np.nan if said is None else float(said))
            mine = (own or {}).get(name, common)
            values[name] = np.where(np.isnan(mine), common, mine)
        return cls(**values)


def orders(
    forecast: Any,
    stock: Any,
    policy: Policy,
    *,
    correlation: float = 0.5,
    seed: int = 0,
    id: str | None = None,
    schema: Schema | None = None,
) -> Any:
    """What to order of each item, with the cost and the service that are expected of it.

    forecast   Paths, a frame of quantiles of totals (with a column `span`, in steps), or a forecast frame, whose steps
               are taken to be dependent with this `correlation`
    stock      a frame of the id, `on_hand` and, if there are any, `on_order`, and an item's own holding_cost,
               shortage_cost, unit_cost, pack_size or min_order

    >>> import polars as pl
    >>> from mqcast import Policy, orders
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.5, 0.9), first=50, last=55)
    >>> latest = forecasts.filter(cutoff=forecasts["cutoff"].max())
    >>> stock = world.static.select("unique_id", on_hand=pl.lit(20.0))
    >>> orders(latest, stock, Policy(lead_time=1, service_level=0.9)).columns[4:6]
    ['base_stock', 'order']
    """
    names = Names.of(schema, id=id) if hasattr(forecast, "cutoffs") else _names(forecast, schema, id)
    totals = totals_of(forecast, policy, names=names, correlation=correlation, seed=seed)
    require_one_cutoff(totals)
    held = _read_stock(stock, names.id, totals.ids)
    totals = totals.rows(np.array([{i: row for row, i in enumerate(totals.item)}[i] for i in held.item], int))
    terms = Terms.of(policy, len(held.item), held.own)
    level = base_stock(totals, terms)
    position = held.on_hand + held.on_order
    order = quantity(level - position, terms)
    after = position + order
    short, left = totals.shortage(after), totals.left(after)
    cost = terms.holding_cost * policy.review_period * left + terms.shortage_cost * short
    table = pl.DataFrame(
        {
            names.id: pl.Series(totals.ids, dtype=pl.String).gather(totals.item),
            "cutoff": pl.Series(totals.cutoff).cast(pl.Datetime("us")),
            "on_hand": held.on_hand,
            "on_order": held.on_order,
            "base_stock": level,
            "order": order,
            "order_value": order * terms.unit_cost,
            "expected_demand": totals.draws.mean(axis=1),
            "expected_shortage": short,
            "expected_fill_rate": totals.fill_rate(after),
            "expected_cost": pl.Series(cost).fill_nan(None),
        }
    )
    return totals.frame_types.to_native(table, names.id)


def _names(forecast: Any, schema: Schema | None, id: str | None) -> Names:
    return forecast.names if isinstance(forecast, ForecastTable) else names_in(forecast, schema, id=id)


def base_stock(totals: Totals, terms: Terms) -> np.ndarray:
    """The level to order up to, for each row of the totals."""
    policy = totals.policy
    if policy.service_level is None:
        # a unit too many is held for a review period, a unit too few is short once
        return totals.cheapest(terms.holding_cost * policy.review_period, terms.shortage_cost)
    if policy.service == "cycle":
        return totals.quantile(np.full(len(totals.item), policy.service_level))
    low, high = np.zeros(len(totals.item)), totals.draws.max(axis=1)
    for _ in range(60):
        middle = (low + high) / 2
        enough = totals.fill_rate(middle) >= policy.service_level
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def quantity(missing: np.ndarray, terms: Terms) -> np.ndarray:
    """What is missing, if anything is, at least the smallest order, and in whole packs, rounded up."""
    wanted = np.where(missing > 1e-9, np.maximum(missing, terms.min_order), 0.0)
    packs = np.abs(np.ceil(wanted / terms.pack_size - 1e-9))  # of nothing: 0, and not -0
    return np.where(np.isnan(terms.pack_size), wanted, packs * terms.pack_size)


@dataclass(frozen=True, eq=False)
class _Stock:
    item: np.ndarray
    on_hand: np.ndarray
    on_order: np.ndarray
    own: dict[str, np.ndarray]


def _read_stock(frame: Any, id: str, ids: list[str]) -> _Stock:
    what = "the stock"
    source = with_joined_id(open_source(frame, what), id)
    columns = columns_of(source, [id, "on_hand"], what, "on_order", *OF_ITEMS, text=id)
    names, code = ids_of(columns[id], id, what)
    known = {name: i for i, name in enumerate(ids)}
    for name in names:
        if name not in known:
            raise DataError("is in stock, but there is no forecast of it", "forecast it, or leave it out", series=name)
    if len(code) > len(names):
        twice = names[int(np.flatnonzero(np.bincount(code) > 1)[0])]
        raise DataError("has two rows in the stock", "add them up", series=twice)
    if len(names) < len(ids):
        lost = next(name for name in ids if name not in set(names))
        raise DataError(
            "has a forecast, but no row in the stock", "add one, with on_hand 0 if there is none", series=lost
        )
    values = {name: numbers_of(columns[name], name, what) for name in columns if name != id}
    for name, value in values.items():
        may_be_missing = name in OF_ITEMS
        bad = (
            ~np.isfinite(value) & ~(may_be_missing & np.isnan(value))
            | (value < 0)
            | ((value == 0) & (name in POSITIVE))
        )
        if bad.any():
            row = int(bad.argmax())
            remedy = "give a number above 0" if name in POSITIVE else "give a number, 0 or more"
            raise DataError(f"{name} is {value[row]:g}", remedy, column=name, series=names[code[row]])
    own = {name: values[name] for name in OF_ITEMS if name in values}
    item = np.array([known[names[one]] for one in code])
    return _Stock(item, values["on_hand"], values.get("on_order", np.zeros(len(item))), own)
