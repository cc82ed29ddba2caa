"""What the simulated worlds share: the calendar, the assortment of items, and the tables for a forecaster.

Axes everywhere: items, horizon, time, level. `time` is the creation time: at time t the weeks 0..t are known, and with
them every holiday and the promotions of weeks 0..t+horizon. Lead h = 1..horizon is at horizon index h-1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Protocol, runtime_checkable

import numpy as np
import polars as pl

from mqcast.data.schema import Schema
from mqcast.errors import ConfigError
from mqcast.levels import quantile_column

FIRST_WEEK = date(2019, 1, 6)  # weeks are labelled by their last day, a Sunday
WEEKS_A_YEAR = 52
HOLIDAYS = {"holiday_spring": (4, 10), "holiday_summer": (6, 24), "holiday_harvest": (10, 3), "holiday_winter": (12, 8)}
HOLIDAY_SHAPE = {-2: 0.25, -1: 0.6, 0: 1.0, 1: -0.35, 2: -0.15}  # weeks after the holiday: share of its lift
PROMOTIONS = ("promo_display", "promo_coupon")
PRICE_BANDS = ("low", "middle", "high")
NUM_BRANDS = 20


@runtime_checkable
class Oracle(Protocol):
    """The exact distribution of future demand, given what is known at each creation time."""

    def quantiles(self, levels: Sequence[float], first: int, last: int) -> np.ndarray:
        """(items, horizon, creation times first..last, levels): the level-quantile of demand in week t+h given
        everything known at the end of week t. Both `first` and `last` are included."""
        ...

    def cdf(self, values: np.ndarray, first: int, last: int) -> np.ndarray:
        """P(demand in week t+h <= values | known at t); values broadcasts to (items, horizon, creation times)."""
        ...


@dataclass(frozen=True, eq=False)
class World:
    """Simulated demand, the tables that a forecaster may use, and the oracle, which no forecaster can beat.

    `frame` reaches `horizon` weeks beyond the last sale, where `y` is null and the promotions are known. `events` has
    the raw holiday indicators of weeks 0..num_weeks + 3 * horizon; their effects before and after have to be learnt.

    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> world.schema.known
    ('promo_display', 'promo_coupon')
    >>> world.oracle.quantiles((0.5, 0.9), first=50, last=55).shape  # items, horizon, creation times, levels
    (20, 4, 6, 2)
    """

    name: str
    frame: pl.DataFrame
    static: pl.DataFrame
    events: pl.DataFrame
    horizon: int
    num_weeks: int
    demand: np.ndarray  # (items, num_weeks + horizon), including the weeks hidden in the frame
    promotions: np.ndarray  # (items, num_weeks + horizon, promotion types) bool
    holidays: np.ndarray  # (num_weeks + 3 * horizon + 1, holidays) bool
    oracle: Oracle

    @property
    def schema(self) -> Schema:
        return Schema(
            freq="W",
            target="y",
            id="unique_id",
            time="ds",
            static=tuple(self.static.columns[1:]),
            known=PROMOTIONS,
            events=tuple(HOLIDAYS),
        )

    @property
    def actuals(self) -> pl.DataFrame:
        """Demand of all weeks, including those that are hidden in the frame."""
        return self.frame.select("unique_id", "ds").with_columns(y=pl.Series(self.demand.ravel()))

    def oracle_forecasts(self, levels: Sequence[float], first: int, last: int) -> pl.DataFrame:
        """The forecasts of the oracle at the creation times first..last, as a forecast frame."""
        quantiles = self.oracle.quantiles(levels, first, last).transpose(0, 2, 1, 3)
        num_items, num_times, horizon, _ = quantiles.shape
        weeks, leads = _dates(self.num_weeks + horizon), np.arange(1, horizon + 1)
        times = np.repeat(np.arange(first, last + 1), horizon)
        ids = self.static["unique_id"].gather(np.repeat(np.arange(num_items), num_times * horizon))
        keys = {
            "unique_id": ids,
            "cutoff": np.tile(weeks[times], num_items),
            "ds": np.tile(weeks[times + np.tile(leads, num_times)], num_items),
            "horizon": np.tile(leads.astype(np.int32), num_items * num_times),
        }
        return pl.DataFrame(
            keys | {quantile_column(level): quantiles[..., i].ravel() for i, level in enumerate(levels)}
        )

    def oracle_chances(self, forecasts: pl.DataFrame, values: np.ndarray) -> np.ndarray:
        """The oracle's P(demand <= value) for each row of a forecast frame of this world."""
        item = forecasts["unique_id"].str.tail(6).cast(pl.Int64).to_numpy()
        week = (forecasts["cutoff"].to_numpy() - np.datetime64(FIRST_WEEK, "us")) // np.timedelta64(7, "D")
        place = (item, forecasts["horizon"].to_numpy() - 1, week - week.min())
        grid = np.zeros((len(self.demand), self.horizon, int(week.max() - week.min()) + 1))
        grid[place] = np.nan_to_num(values)
        return self.oracle.cdf(grid, int(week.min()), int(week.max()))[place]


@dataclass(frozen=True)
class Size:
    """The validated size of a world."""

    num_items: int
    num_weeks: int
    horizon: int
    num_categories: int

    def __post_init__(self):
        for name, lower_bound in {"num_items": 1, "num_weeks": 2, "horizon": 1, "num_categories": 1}.items():
            value = getattr(self, name)
            require(value >= lower_bound, f"{name} is {value}", f"give at least {lower_bound}")

    @property
    def total_weeks(self) -> int:
        return self.num_weeks + self.horizon


@dataclass(frozen=True, eq=False)
class Categories:
    """What the items of a category share; the first axis of each array is the category."""

    level: np.ndarray  # mean of an item's first log level
    amplitude: np.ndarray
    phase: np.ndarray
    holiday_lift: np.ndarray  # (categories, holidays)

    def season(self, num_weeks: int) -> np.ndarray:
        """(categories, weeks): a_g sin(2πt/52 + φ_g)."""
        angle = 2 * np.pi * np.arange(num_weeks) / WEEKS_A_YEAR
        return self.amplitude[:, None] * np.sin(angle + self.phase[:, None])


@dataclass(frozen=True, eq=False)
class Assortment:
    """The items: their attributes, their promotions, and the rest of the random stream of each."""

    streams: list[np.random.Generator]
    category: np.ndarray  # (items,)
    brand: np.ndarray
    price_band: np.ndarray
    promotions: np.ndarray  # (items, weeks, promotion types) bool


def require(condition: bool, problem: str, remedy: str) -> None:
    if not condition:
        raise ConfigError(f"simulated world: {problem}; {remedy}")


def check_promo_rates(rates: tuple[float, ...]) -> None:
    possible = len(rates) == len(PROMOTIONS) and all(0 <= rate <= 1 for rate in rates)
    require(possible, f"promo_rates is {rates}", f"give {len(PROMOTIONS)} probabilities, one for each promotion type")


def check_creation_times(first: int, last: int, num_weeks: int) -> None:
    remedy = f"give 0 <= first <= last <= {num_weeks - 1}"
    require(0 <= first <= last < num_weeks, f"creation times {first}..{last} do not exist", remedy)


def check_levels(levels: Sequence[float]) -> None:
    for level in levels:
        require(0 < level < 1, f"quantile level {level}", "give levels between 0 and 1, both excluded")


def random_streams(
    seed: int, num_items: int
) -> tuple[np.random.Generator, np.random.Generator, list[np.random.Generator]]:
    """Random streams of the calendar, the categories and each item, so that adding items does not change others."""
    require(seed >= 0, f"seed is {seed}", "give 0 or more")
    calendar, categories, items = np.random.SeedSequence(seed).spawn(3)
    item_streams = [np.random.default_rng(item) for item in items.spawn(num_items)]
    return np.random.default_rng(calendar), np.random.default_rng(categories), item_streams


def draw_holidays(rng: np.random.Generator, num_weeks: int) -> np.ndarray:
    """(weeks, holidays) bool: each holiday occurs once a year, a week before, in or after the week of its date.

    The shift is never the same in two successive years, so the week of the year does not determine the holiday.
    """
    last_year = (FIRST_WEEK + timedelta(weeks=num_weeks)).year
    years = range(FIRST_WEEK.year, last_year + 2)
    shifts = np.cumsum(rng.integers(1, 3, size=(len(years), len(HOLIDAYS))), axis=0) % 3 - 1
    holidays = np.zeros((num_weeks, len(HOLIDAYS)), dtype=bool)
    for year, year_shifts in zip(years, shifts, strict=True):
        for k, (month, day) in enumerate(HOLIDAYS.values()):
            weeks_to_sunday = -((FIRST_WEEK - date(year, month, day)).days // 7)
            week = weeks_to_sunday + int(year_shifts[k])
            if 0 <= week < num_weeks:
                holidays[week, k] = True
    return holidays


def holiday_effects(holidays: np.ndarray) -> np.ndarray:
    """(weeks, holidays): f_k(t) = Σ_d w_d 1{week t-d is holiday k}, the share of its full lift in week t."""
    reach = max(HOLIDAY_SHAPE)
    padded = np.pad(holidays, ((reach, reach), (0, 0))).astype(float)
    num_weeks = len(holidays)
    return sum(
        (share * padded[reach - after : reach - after + num_weeks] for after, share in HOLIDAY_SHAPE.items()),
        start=np.zeros(holidays.shape),
    )


def draw_categories(
    rng: np.random.Generator, num_categories: int, mean_level: float, max_amplitude: float
) -> Categories:
    return Categories(
        level=rng.normal(mean_level, 0.5, num_categories),
        amplitude=rng.uniform(0.1, max_amplitude, num_categories),
        phase=rng.uniform(0, 2 * np.pi, num_categories),
        holiday_lift=rng.uniform(0.1, 0.9, (num_categories, len(HOLIDAYS))),
    )


def draw_assortment(
    streams: list[np.random.Generator], num_categories: int, num_weeks: int, promo_rates: tuple[float, ...]
) -> Assortment:
    """Brand and price band have no information beyond the category; promotions are independent of everything else."""
    check_promo_rates(promo_rates)
    kinds = np.array([rng.integers((num_categories, NUM_BRANDS, len(PRICE_BANDS))) for rng in streams])
    chances = np.stack([rng.random((num_weeks, len(PROMOTIONS)), dtype=np.float32) for rng in streams])
    category, brand, price_band = kinds.T
    return Assortment(streams, category, brand, price_band, chances < np.asarray(promo_rates))


def assemble_world(
    name: str, size: Size, assortment: Assortment, holidays: np.ndarray, demand: np.ndarray, oracle: Oracle
) -> World:
    ids = pl.Series("unique_id", [f"item_{i:06d}" for i in range(size.num_items)])
    return World(
        name=name,
        frame=_frame(ids, size, assortment.promotions, demand),
        static=_static(ids, assortment),
        events=pl.DataFrame({"ds": _dates(len(holidays))} | dict(zip(HOLIDAYS, holidays.T, strict=True))),
        horizon=size.horizon,
        num_weeks=size.num_weeks,
        demand=demand,
        promotions=assortment.promotions,
        holidays=holidays,
        oracle=oracle,
    )


def _frame(ids: pl.Series, size: Size, promotions: np.ndarray, demand: np.ndarray) -> pl.DataFrame:
    seen = np.where(np.arange(size.total_weeks) < size.num_weeks, demand, np.nan)
    keys = {
        "unique_id": ids.gather(np.repeat(np.arange(size.num_items), size.total_weeks)),
        "ds": np.tile(_dates(size.total_weeks), size.num_items),
        "y": pl.Series(seen.ravel()).fill_nan(None),
    }
    return pl.DataFrame(keys | {name: promotions[:, :, j].ravel() for j, name in enumerate(PROMOTIONS)})


def _static(ids: pl.Series, assortment: Assortment) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "unique_id": ids,
            "category": [f"category_{category:02d}" for category in assortment.category],
            "brand": [f"brand_{brand:02d}" for brand in assortment.brand],
            "price_band": [PRICE_BANDS[band] for band in assortment.price_band],
        }
    )


def _dates(num_weeks: int) -> np.ndarray:
    return np.datetime64(FIRST_WEEK, "us") + np.arange(num_weeks) * np.timedelta64(7, "D")
