"""Small retailers, and everything that may happen to their data after a date without changing a forecast made at it."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from typer.testing import CliRunner

from mqcast import Forecaster, Schema
from mqcast.cli import app
from mqcast.data.panel import Panel, pack

HORIZON, REACH = 3, 8  # no position encoding here looks further than REACH steps beyond the horizon
NUM_STEPS, CUTOFF = 60, 40
MODELS = ("mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn", "seasonal-naive")
SMALL = {
    "model": {"hidden_dim": 4, "encoder_dilations": [1, 2], "position_dilations": [1]},
    "train": {"num_threads": 1, "micro_batch": 4},
}
COLUMNS = {"known": ("price", "promo", "kind"), "past": ("stock", "state"), "static": ("shop", "size")}


@dataclass(frozen=True)
class Sales:
    """Frames of one retailer, and the date after which they may change."""

    rows: pl.DataFrame
    static: pl.DataFrame | None
    events: pl.DataFrame | None
    schema: Schema
    dates: tuple[dt.datetime, ...]

    @property
    def cutoff(self) -> dt.datetime:
        return self.dates[CUTOFF]

    def after(self, steps: int = 0) -> pl.Expr:
        """Rows more than so many steps after the cutoff."""
        return pl.col("ds") > self.dates[CUTOFF + steps]

    def panel(self) -> Panel:
        return Panel.from_frame(self.rows, self.schema, self.static, self.events)


def sales(rng: np.random.Generator, is_rich: bool = True) -> Sales:
    """Shops with or without covariates; some begin late, some have gaps, one is silent before the cutoff."""
    days, begin = int(rng.choice([1, 7])), dt.datetime(2022, 1, 2) + dt.timedelta(days=7 * int(rng.integers(30)))
    dates = tuple(begin + dt.timedelta(days=days * i) for i in range(NUM_STEPS + 20))
    parts = []
    for number in range(int(rng.integers(4, 8))):
        first = int(rng.choice([0, 0, 5, CUTOFF - 3, CUTOFF + 2])) if number > 3 else 0
        part = _rows(rng, f"s{number}", dates[first:NUM_STEPS])
        if number == 2:
            silent = pl.col("ds").is_between(dates[CUTOFF - 6], dates[CUTOFF + 2])
            part = part.with_columns(y=pl.when(silent).then(None).otherwise("y"))
        parts.append(part)
    rows = pl.concat(parts)
    if not is_rich:
        return Sales(rows.select("unique_id", "ds", "y"), None, None, Schema(freq=_freq(days)), dates)
    schema = Schema(**COLUMNS, events=("fair", "weather"), holidays=("US",), freq=_freq(days))
    return Sales(rows, _static(rng, rows), _events(rng, dates), schema, dates)


def _freq(days: int) -> str:
    return "D" if days == 1 else "W-SUN"


def _rows(rng: np.random.Generator, name: str, dates: tuple[dt.datetime, ...]) -> pl.DataFrame:
    n, level = len(dates), 10 ** rng.uniform(0.5, 2)
    return pl.DataFrame(
        {
            "unique_id": [name] * n,
            "ds": dates,
            "y": rng.poisson(level, n).astype(float),
            "price": rng.normal(10, 1, n),
            "promo": rng.random(n) < 0.2,
            "kind": rng.choice(["b", "c"], n),
            "stock": rng.normal(50, 9, n),
            "state": rng.choice(["m", "n"], n),
        }
    )


def _static(rng: np.random.Generator, rows: pl.DataFrame) -> pl.DataFrame:
    names = rows["unique_id"].unique().sort()
    shops, sizes = rng.choice(["p", "q"], len(names)), rng.normal(3, 1, len(names))
    return pl.DataFrame({"unique_id": names, "shop": shops, "size": sizes})


def _events(rng: np.random.Generator, dates: tuple[dt.datetime, ...]) -> pl.DataFrame:
    n = len(dates)
    return pl.DataFrame({"ds": dates, "fair": rng.random(n) < 0.1, "weather": rng.choice(["dry", "wet"], n)})


# -- what may happen later ---------------------------------------------------------------------------------------------


def _set(sales: Sales, steps: int = 0, **values: pl.Expr) -> Sales:
    """Other values in the rows more than so many steps after the cutoff, of the columns that there are."""
    late = sales.after(steps)
    changed = [pl.when(late).then(value).otherwise(name).alias(name) for name, value in values.items()]
    names = set(sales.rows.columns)
    return replace(sales, rows=sales.rows.with_columns(c for c in changed if c.meta.output_name() in names))


def _targets_grow(rng, sales):
    return _set(sales, y=pl.col("y") * 10.0 ** float(rng.uniform(0.3, 1.5)))


def _targets_are_negative(rng, sales):
    return _set(sales, y=pl.lit(-float(rng.uniform(0.5, 50))))


def _one_target_is_negative(rng, sales):
    is_one = (pl.col("unique_id") == "s0") & (pl.col("ds") == sales.dates[CUTOFF + int(rng.integers(1, 19))])
    rows = sales.rows.with_columns(y=pl.when(is_one).then(-1.0).otherwise("y"))
    return replace(sales, rows=rows)


def _shops_close(rng, sales):
    is_closed = pl.col("ds").dt.ordinal_day() % int(rng.integers(2, 9)) == 0
    return _set(_set(sales, y=pl.when(is_closed).then(0.0).otherwise(pl.col("y") + 500)), HORIZON, promo=is_closed)


def _targets_are_missing(rng, sales):
    observed = sales.rows.filter(~sales.after()).filter(pl.col("y").is_not_null())["unique_id"].unique()
    gone = pl.col("unique_id").is_in(observed.implode())
    return _set(sales, y=pl.when(gone).then(None).otherwise("y"))


def _targets_are_fractions(rng, sales):
    return _set(sales, y=pl.col("y") / float(rng.uniform(3, 900)))


def _new_known_categories(rng, sales):
    return _set(sales, HORIZON, kind=pl.lit(str(rng.choice(["a", "z", "bb"]))))


def _new_past_categories(rng, sales):
    return _set(sales, state=pl.lit(str(rng.choice(["a", "z", "mm"]))))


def _other_known_numbers(rng, sales):
    return _set(sales, HORIZON, price=pl.lit(float(rng.normal(10, 30))), promo=~pl.col("promo"))


def _other_past_numbers(rng, sales):
    value = pl.lit(None) if rng.random() < 0.3 else pl.lit(float(rng.normal(10, 30)))
    return _set(sales, stock=value)


def _other_events(rng, sales):
    if sales.events is None:
        return _targets_grow(rng, sales)
    late = sales.after(HORIZON + REACH)
    events = sales.events.with_columns(
        fair=pl.when(late).then(~pl.col("fair")).otherwise("fair"),
        weather=pl.when(late).then(pl.lit("awful")).otherwise("weather"),
    )
    return replace(sales, events=events)


def _an_earlier_end(rng, sales):
    """Not so early that plans are missing where there are any."""
    last = sales.dates[NUM_STEPS - 1 - int(rng.integers(1, 6 if sales.schema.known else 19))]
    return replace(sales, rows=sales.rows.filter(pl.col("ds") <= last))


def _a_later_end(rng, sales):
    dates = sales.dates[NUM_STEPS : NUM_STEPS + int(rng.integers(1, 20))]
    more = [_rows(rng, name, dates) for name in sales.rows["unique_id"].unique().sort()]
    return replace(sales, rows=pl.concat([sales.rows, *(part.select(sales.rows.columns) for part in more)]))


def _new_series(rng, sales):
    """Before or after the others by name, with a category of its own."""
    name, first = str(rng.choice(["a0", "s00", "z9"])), CUTOFF + int(rng.integers(1, 6))
    part = _rows(rng, name, sales.dates[first:NUM_STEPS]).select(sales.rows.columns)
    static = sales.static
    if static is not None:
        static = pl.concat([static, pl.DataFrame({"unique_id": [name], "shop": ["aaa"], "size": [99.0]})])
    return replace(sales, rows=pl.concat([sales.rows, part]), static=static)


def _late_series_never_come(rng, sales):
    known = sales.rows.filter(~sales.after())["unique_id"].unique().implode()
    return replace(sales, rows=sales.rows.filter(pl.col("unique_id").is_in(known)))


def _a_silent_series_stays_silent(rng, sales):
    return _set(sales, y=pl.when(pl.col("unique_id") == "s2").then(None).otherwise("y"))


def _rows_are_missing(rng, sales):
    """Gaps, after all that a cutoff here may look at."""
    late, number = sales.after(HORIZON + 9), int(rng.integers(2, 5))
    return replace(sales, rows=sales.rows.filter(~(late & (pl.col("ds").dt.ordinal_day() % number == 0))))


CHANGES: dict[str, Callable[[np.random.Generator, Sales], Sales]] = {
    change.__name__.strip("_").replace("_", " "): change
    for change in (
        *(_targets_grow, _targets_are_negative, _one_target_is_negative, _shops_close, _targets_are_missing),
        *(_targets_are_fractions, _new_known_categories, _new_past_categories, _other_known_numbers),
        *(_other_past_numbers, _other_events, _an_earlier_end, _a_later_end, _new_series, _late_series_never_come),
        *(_a_silent_series_stays_silent, _rows_are_missing),
    )
}


# -- ways to a forecast ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backtest:
    """Cutoffs around the date of change, by one interface."""

    model: str
    interface: str  # frame, panel or command
    refit: int | None = None
    before: int = 1
    beyond: int = 2

    def __call__(self, sales: Sales, folder: Path) -> pl.DataFrame:
        """The forecasts of the cutoffs up to the date of change."""
        start, end = sales.dates[CUTOFF - self.before], sales.dates[CUTOFF + self.beyond]
        if self.interface == "command":
            found = self._command(sales, folder, start, end)
        else:
            found = _forecaster(self.model, sales).backtest(
                *((sales.panel(),) if self.interface == "panel" else (sales.rows,)),
                start=start,
                end=end,
                refit=self.refit,
                **({} if self.interface == "panel" else {"static": sales.static, "events": sales.events}),
            )
        return found.filter(pl.col("cutoff") <= sales.cutoff)

    def _command(self, sales: Sales, folder: Path, start: dt.datetime, end: dt.datetime) -> pl.DataFrame:
        pack(sales.rows, folder / "panel", sales.schema, sales.static, sales.events)
        said = ["backtest", str(folder / "panel"), str(folder / "out.parquet"), "--horizon", str(HORIZON), "--json"]
        said += ["--model", self.model, "--start", str(start), "--end", str(end)]
        said += [] if self.refit is None else ["--refit", str(self.refit)]
        if self.model != "seasonal-naive":
            tables = {**SMALL, "train": {**SMALL["train"], "max_steps": 2}}
            said += [f"--set={table}.{name}={value}" for table, of in tables.items() for name, value in of.items()]
        done = CliRunner().invoke(app, said)
        assert done.exit_code == 0, done.output
        return pl.read_parquet(folder / "out.parquet")


def _forecaster(model: str, sales: Sales) -> Forecaster:
    config = None if model == "seasonal-naive" else SMALL
    return Forecaster(model, HORIZON, schema=sales.schema, config=config, max_steps=2, verbose=False)


def fitted(model: str, sales: Sales) -> Callable[[Sales, int, int], pl.DataFrame]:
    """Revisions by one network, from so many steps before the date of change to so many after it."""
    made = _forecaster(model, sales).fit(sales.rows, sales.static, sales.events)

    def revise(other: Sales, before: int, beyond: int) -> pl.DataFrame:
        start, end = sales.dates[CUTOFF - before], sales.dates[CUTOFF + beyond]
        found = made.revisions(other.rows, start, end, static=other.static, events=other.events)
        return found.filter(pl.col("cutoff") <= sales.cutoff)

    return revise
