"""Slices: each is the rows that a filter would keep."""

from datetime import timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest
from judged import random_frames, week, weeks

from mqcast.errors import ConfigError, DataError, MissingColumnError
from mqcast.evaluation import Names, read_forecasts
from mqcast.evaluation.slices import (
    Slice,
    by_attribute,
    demand_deciles,
    flattened,
    new_items,
    peaks,
    promotions,
    ramp_down,
    short_horizons,
    top_periods,
)

FRAME, ACTUALS = random_frames(num_items=6, num_cutoffs=9, horizon=4)
ROWS = read_forecasts(FRAME, Names())
SORTED = FRAME.sort("unique_id", "ds", "cutoff")


def kept(one) -> pl.DataFrame:
    return SORTED.filter(pl.Series(one.rows(ROWS)))


def test_peaks_are_the_dates_of_named_events_or_of_flags():
    table = pl.DataFrame({"ds": weeks(np.arange(30)), "fair": np.arange(30) == 14, "feast": np.arange(30) % 12 == 0})
    fair, feast = peaks(table, ["fair", "feast"])
    assert kept(fair).equals(SORTED.filter(pl.col("ds") == week(14)))
    assert kept(feast).equals(SORTED.filter(pl.col("ds").is_in([week(12), week(24)])))
    for dates in ([week(14)], week(14), str(week(14).date()), pd.DatetimeIndex([week(14)])):
        (named,) = peaks({"The fair": dates})
        assert named.name == "The fair"
        assert kept(named).equals(kept(fair))


def test_a_day_belongs_to_the_week_that_ends_after_it_and_to_all_hours_of_it():
    (friday,) = peaks({"Black Friday": str((week(14) - timedelta(days=2)).date())})
    assert kept(friday).equals(SORTED.filter(pl.col("ds") == week(14)))
    hours = pl.datetime_range(week(0), week(1), "1h", eager=True)
    frame = pl.DataFrame({"unique_id": "a", "cutoff": hours[0], "ds": hours[1:], "q0.5": 1.0})
    rows = read_forecasts(frame, Names())
    (day,) = peaks({"day": week(0) + timedelta(days=2)})
    assert day.of(rows).sum() == 24
    assert not ramp_down({}).of(rows).any()


def test_ramp_down_is_the_periods_after_a_peak_that_are_none_themselves():
    one = ramp_down({"a": [week(13)], "b": [week(14)]}, periods=2)
    assert kept(one)["ds"].unique().sort().to_list() == [week(15), week(16)]


def test_top_periods_are_the_forecast_dates_with_most_demand():
    one = top_periods(ACTUALS, share=0.2)
    dates = SORTED["ds"].unique()
    totals = (
        ACTUALS.filter(pl.col("ds").is_in(dates.implode())).group_by("ds").agg(pl.sum("y")).sort("y", descending=True)
    )
    assert set(kept(one)["ds"].unique()) == set(totals["ds"][: round(0.2 * len(dates))])


def test_promotions_are_by_series_and_date_one_slice_a_type():
    flags = ACTUALS.select(
        "unique_id", "ds", display=pl.col("y") > 30, coupon=(pl.col("y") < 10).cast(pl.Int8), never=pl.lit(False)
    ).sample(fraction=1, shuffle=True, seed=1)
    display, coupon, never = promotions(flags, ["display", "coupon", "never"])
    for one, name in ((display, "display"), (coupon, "coupon")):
        on = flags.filter(pl.col(name) == 1)
        assert kept(one).equals(SORTED.join(on, on=["unique_id", "ds"], how="semi", maintain_order="left"))
    assert not never.rows(ROWS).any()


def test_new_items_are_those_seen_for_fewer_dates_at_the_cutoff():
    late = ACTUALS.filter((pl.col("unique_id") != "item 2") | (pl.col("ds") >= week(8)))
    one = new_items(late, periods=6)
    assert kept(one).equals(SORTED.filter((pl.col("unique_id") == "item 2") & (pl.col("cutoff") < week(13))))


def test_short_horizons_are_the_first_leads():
    assert kept(short_horizons(2)).equals(SORTED.filter(pl.col("horizon") <= 2))
    with pytest.raises(ConfigError, match="leads is 0"):
        short_horizons(0)


def test_demand_groups_are_by_what_was_known_at_the_first_cutoff():
    groups = demand_deciles(ACTUALS, groups=3)
    early = ACTUALS.filter(pl.col("ds") <= week(10)).group_by("unique_id").agg(pl.mean("y")).sort("y")
    for i, one in enumerate(groups):
        assert set(kept(one)["unique_id"]) == set(early["unique_id"][2 * i : 2 * i + 2])
    later = ACTUALS.with_columns(pl.when(pl.col("ds") > week(10)).then(pl.col("y") * 99).otherwise(pl.col("y")))
    for one, other in zip(groups, demand_deciles(later, groups=3), strict=True):
        assert kept(one).equals(kept(other))
    assert [one.name for one in demand_deciles(ACTUALS)][9] == "Demand decile 10"


def test_attributes_are_one_slice_a_value():
    static = pl.DataFrame({"unique_id": [f"item {i}" for i in range(6)], "brand": ["b", "a", None, "a", "b", "b"]})
    slices = by_attribute(static, "brand")
    assert [one.name for one in slices] == ["brand: (missing)", "brand: a", "brand: b"]
    assert set(kept(slices[1])["unique_id"]) == {"item 1", "item 3"}
    twice = pl.concat([static, pl.DataFrame({"unique_id": ["item 0"], "brand": ["a"]})])
    with pytest.raises(DataError, match="series 'item 0', column 'brand': two values"):
        by_attribute(twice, "brand")


def test_lists_of_lists_are_one_list_and_each_name_stands_once():
    slices = [short_horizons(2), [peaks({"a": week(3)}), [short_horizons(3)]]]
    assert [one.name for one in flattened(slices)] == ["Leads 1-2", "a", "Leads 1-3"]
    assert flattened(None) == []
    with pytest.raises(ConfigError, match="two slices are named 'Leads 1-2'"):
        flattened([short_horizons(2), short_horizons(2)])
    with pytest.raises(ConfigError, match="slices has 'peaks'"):
        flattened("peaks")


def test_bad_declarations_are_told():
    with pytest.raises(ConfigError, match="are no dates"):
        peaks({"a": ["someday"]})
    with pytest.raises(ConfigError, match=r"no event 'fare' \(did you mean 'fair'\?\)"):
        peaks({"fair": week(1)}, ["fare"])
    with pytest.raises(ConfigError, match="needs columns="):
        peaks(ACTUALS)
    with pytest.raises(MissingColumnError, match="no column 'promo'"):
        promotions(ACTUALS, ["promo"])
    with pytest.raises(ConfigError, match="are no dates"):
        peaks({"a": [pd.NaT]})
    with pytest.raises(ConfigError, match=r"slice 'odd' gave int64 \(3,\)"):
        Slice("odd", lambda rows: np.arange(3)).of(ROWS)
    with pytest.raises(ConfigError, match="groups is 0"):
        demand_deciles(ACTUALS, groups=0)
    with pytest.raises(ConfigError, match="share is 2"):
        top_periods(ACTUALS, share=2)
