"""Ranked revisions: what moved and came back stands first."""

import polars as pl
import pytest
from judged import random_frames, revisions_of, week

from mqcast import rank_revisions, volatility
from mqcast.errors import ConfigError

PATHS = [[50, 50, 50, 50], [50, 90, 50, 90], [50, 60, 70, 80], [500, 520, 500, 520]]


def test_forecasts_that_come_back_stand_above_those_that_go_on_or_stay():
    frame, actuals = revisions_of(PATHS, [50, 70, 85, 510])
    found = rank_revisions(frame, actuals)
    assert found["unique_id"][0] == "item 1"
    row = found.row(0, named=True)
    assert (row["first"], row["last"], row["lowest"], row["highest"], row["actual"]) == (50, 90, 50, 90, 70)
    assert (row["moved"], row["back_and_forth"], row["direction_changes"], row["forecasts"]) == (120, 80, 2, 4)
    assert (row["largest"], row["revised_at"]) == (40, week(1))
    still = found.filter(unique_id="item 0").row(0, named=True)
    assert (still["excess"], still["moved"]) == (0, 0)
    steady = found.filter(unique_id="item 2").row(0, named=True)
    assert steady["back_and_forth"] == 0
    assert steady["excess"] < 0


def test_the_excess_of_targets_averages_to_that_of_volatility():
    frame, actuals = random_frames(num_cutoffs=8)
    found = rank_revisions(frame, actuals, level=0.9, leads="complete", top=None)
    summary = volatility(frame, actuals, levels=0.9, leads="complete", resamples=2).summary
    assert found["excess"].mean() == pytest.approx(summary["excess"][0])
    items = rank_revisions(frame, actuals, level=0.9, leads="complete", per="item", top=None)
    assert items["excess"].is_sorted(descending=True)
    assert items["targets"].sum() == len(found)
    assert items.filter(unique_id="item 1")["moved"][0] == pytest.approx(
        found.filter(unique_id="item 1")["moved"].sum()
    )


def test_units_rank_high_sellers_first():
    frame, actuals = revisions_of([*PATHS, [5000, 5100, 5000, 5100]], [50, 70, 85, 510, 5000])
    assert rank_revisions(frame, actuals, rank="units")["unique_id"][0] == "item 4"


def test_targets_still_to_come_are_judged_by_their_forecasts_so_far():
    frame, actuals = revisions_of(PATHS, [50, 70, 85, 510])
    for known in (None, actuals.head(1), actuals.head(1).with_columns(ds=week(0))):
        found = rank_revisions(frame, known, top=1)
        assert found["unique_id"][0] == "item 1"
        assert found["actual"][0] is None
    assert rank_revisions(frame)["excess"].to_list() == sorted(rank_revisions(frame)["excess"], reverse=True)


def test_the_list_is_as_long_as_asked_and_comes_in_the_callers_library():
    frame, actuals = random_frames()
    assert len(rank_revisions(frame, actuals, top=3)) == 3
    assert list(rank_revisions(frame.to_pandas(), actuals.to_pandas(), top=3)["excess"]) == list(
        rank_revisions(frame, actuals, top=3)["excess"]
    )
    with pytest.raises(ConfigError, match="rank is 'size'"):
        rank_revisions(frame, actuals, rank="size")
    assert isinstance(rank_revisions(frame, actuals, top=2), pl.DataFrame)


def test_medians_alone_are_ranked_by_units():
    frame, actuals = random_frames(levels=(0.5,))
    found = rank_revisions(frame, actuals, rank="units", top=3)
    assert found["excess"].null_count() == 3
    assert found["back_and_forth"].is_sorted(descending=True)
    with pytest.raises(ConfigError, match="or rank='units'"):
        rank_revisions(frame, actuals)


def test_live_forecasts_go_with_history_up_to_now():
    frame, actuals = random_frames()
    history = actuals.filter(pl.col("ds") <= frame["cutoff"].min())
    assert rank_revisions(frame, history, top=3)["excess"].to_list() == rank_revisions(frame, top=3)["excess"].to_list()
