"""A small panel for any schema: every role and kind of column, and series that are unlike each other."""

from collections.abc import Callable

import numpy as np
import polars as pl

from mqcast.data.frequency import DAY, Frequency
from mqcast.data.schema import Schema
from mqcast.simulate import lognormal_world

FIRST_DATE = np.datetime64("2021-01-03", "us")
LEVELS = (1.0, 1000.0, 0.05, 30.0, 8.0, 200.0)  # of the series, relative to what the simulated world sells
COUNTS, LATE = 4, 5  # which series sells a few whole pieces, and which one begins late
CATEGORIES = ("red", "green", "blue")


def sample_frame(schema: Schema | None = None, horizon: int = 4, num_steps: int | None = None) -> pl.DataFrame:
    """Six series of simulated demand, with all columns that the schema names.

    They sell on very unlike levels, one sells a few pieces now and then, and one begins late. Where the schema has
    columns that are known ahead, the rows reach two horizons beyond the last sale: position encodings look around
    each target.

    >>> from mqcast import Schema
    >>> from mqcast.checks import sample_frame
    >>> sample_frame(Schema(freq="D", known=["promo"])).columns
    ['unique_id', 'ds', 'y', 'promo']
    """
    schema = schema or Schema()
    length = num_steps or max(40, 8 * horizon)
    ahead = 2 * horizon if schema.known or schema.events else 0
    demand = lognormal_world(len(LEVELS), length, 1, seed=0).demand[:, :length]
    dates = _dates(schema.freq or "W", length + ahead)
    parts = []
    for i, level in enumerate(LEVELS):
        y = demand[i] * level
        y = np.where(y > np.quantile(y, 0.7), np.ceil(y / y.max() * 4), 0.0) if i == COUNTS else y
        rows = {schema.id: [f"series {i + 1}"] * len(dates), schema.time: dates}
        rows |= {schema.target: [*y.tolist(), *[None] * ahead]}
        rows |= {name: _column(schema, role, name, i, len(dates)) for role, name in schema.roles()[3:]}
        begins = length // 2 if i == LATE else 0
        parts.append(pl.DataFrame(rows, strict=False)[begins:])
    return pl.concat(parts)


def _dates(freq: str, count: int) -> np.ndarray:
    frequency = Frequency.parse(freq)
    first = np.array([FIRST_DATE.astype(np.int64)])
    if frequency.unit == "business":
        first = first + DAY  # a Monday
    frequency = frequency.anchored(first)
    step = frequency.floor(first)[0]
    return frequency.times(step + np.arange(count)).astype("M8[us]")


def _column(schema: Schema, role: str, name: str, series: int, count: int) -> list:
    """Values of one covariate of one series: of static ones one, of events the same for all series."""
    if name == schema.id:
        return [f"series {series + 1}"] * count
    if role == "observed":
        return [True] * count
    makers: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
        "flag": lambda rng, size: rng.random(size) < 0.3,
        "category": lambda rng, size: rng.choice(CATEGORIES, size),
        "number": lambda rng, size: rng.normal(10, 3, size),
    }
    default = "number" if role == "past" else "category" if role == "static" else "flag"
    rng = np.random.default_rng([sum(name.encode()), 0 if role == "events" else series])
    values = makers[schema.kinds.get(name, default)](rng, 1 if role == "static" else count)
    return values.tolist() * (count if role == "static" else 1)
