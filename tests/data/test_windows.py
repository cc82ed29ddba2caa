"""Creation times: each exactly once an epoch, in an order that is a pure function, split without leaks."""

import datetime as dt
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqcast import Panel, Schema
from mqcast.data.axis import TimeAxis
from mqcast.data.cutoffs import CutoffPlan
from mqcast.data.frequency import Frequency
from mqcast.data.windows import Span, WindowPlan, as_time
from mqcast.errors import ConfigError, DataError
from mqcast.settings import WindowConfig


def ragged_panel(lengths, starts, **schema) -> Panel:
    first = dt.datetime(2024, 1, 1)
    frames = []
    for i, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        days = [first + dt.timedelta(days=start + k) for k in range(length)]
        frames.append(pl.DataFrame({"unique_id": f"{i:03}", "ds": days, "y": [float(k) for k in range(length)]}))
    return Panel.from_frame(pl.concat(frames), Schema(freq="D", **schema))


def trajectories(plan: WindowPlan, epoch: int, micro_batch: int = 64) -> Counter:
    found = Counter()
    for step in range(plan.num_batches(epoch)):
        batch = plan.batch(epoch, step)
        assert len(batch) <= plan.config.batch_size
        for part in batch.split(micro_batch):
            assert len(part) <= micro_batch
            assert (part.first_fct == part.start).any()
            assert (part.last_fct == part.start + part.num_fcts - 1).any()
            assert (part.start <= part.first_fct).all()
            assert (part.last_fct < part.start + part.num_fcts).all()
            for series, first, last in zip(part.series, part.first_fct, part.last_fct, strict=True):
                found.update((int(series), t) for t in range(first, last + 1))
    return found


@st.composite
def plans(draw):
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    starts = draw(st.lists(st.integers(0, 30), min_size=len(lengths), max_size=len(lengths)))
    config = WindowConfig(
        horizon=draw(st.integers(1, 8)),
        history=draw(st.integers(1, 10)),
        num_fcts=draw(st.integers(1, 12)),
        batch_size=draw(st.integers(1, 5)),
        min_history=draw(st.integers(0, 5)),
        aligned=draw(st.booleans()),
        partial_horizon=draw(st.booleans()),
    )
    grid = draw(st.sampled_from(["calendar", "rows"]))
    return lengths, starts, config, grid, draw(st.integers(0, 3)), draw(st.booleans())


@settings(max_examples=150)
@given(plans(), st.integers(1, 3))
def test_every_trajectory_is_seen_exactly_once_an_epoch(drawn, micro_batch):
    lengths, starts, config, grid, epoch, shuffle = drawn
    panel = ragged_panel(lengths, starts, time_grid=grid)
    expected = Counter(
        (i, int(panel.first_step[i]) + t)
        for i, length in enumerate(lengths)
        for t in range(max(config.min_history, 1) - 1, length - (1 if config.partial_horizon else config.horizon))
    )
    if not expected:
        with pytest.raises(DataError, match="use a shorter min_history"):
            WindowPlan(panel, config)
        return
    plan = WindowPlan(panel, config, seed=7, shuffle=shuffle)
    assert trajectories(plan, epoch, micro_batch) == expected
    assert plan.num_trajectories == expected.total()


def test_the_order_is_a_pure_function_of_seed_epoch_and_step():
    panel = ragged_panel([30] * 9, range(9))
    config = WindowConfig(horizon=3, history=5, num_fcts=6, batch_size=4)

    def order(seed, epoch):
        plan = WindowPlan(panel, config, seed=seed)
        steps = reversed(range(plan.num_batches(epoch)))  # asked in any order
        return {step: plan.batch(epoch, step).series.tolist() for step in steps}

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    with pytest.raises(IndexError, match="steps"):
        WindowPlan(panel, config).batch(0, 10**6)


def test_windows_of_a_batch_share_their_dates():
    panel = ragged_panel([30] * 9, range(9))
    plan = WindowPlan(panel, WindowConfig(horizon=3, history=5, num_fcts=6, batch_size=4))
    for step in range(plan.num_batches(0)):
        assert len(set(plan.batch(0, step).start.tolist())) == 1


def test_the_lattice_shifts_from_epoch_to_epoch():
    panel = ragged_panel([60] * 3, [0] * 3)
    plan = WindowPlan(panel, WindowConfig(horizon=3, history=5, num_fcts=10, batch_size=8))
    phases = {int(plan.batch(epoch, 0).start[0]) % 10 for epoch in range(20)}
    assert len(phases) > 3


@pytest.mark.parametrize("grid", ["calendar", "rows"])
def test_blocks_lie_wholly_inside_their_series_observed_or_not(grid):
    frame = pl.DataFrame({"unique_id": ["a"] * 12 + ["b"] * 6 + ["c"] * 7, "y": 1.0})
    days = [dt.datetime(2024, 1, 1) + dt.timedelta(days=k) for n in (12, 6, 7) for k in range(n)]
    unseen = pl.int_range(pl.len()).over("unique_id") >= 5  # nobody is observed after the fifth day
    frame = frame.with_columns(ds=pl.Series(days), y=pl.when(~unseen).then("y"))
    panel = Panel.from_frame(frame, Schema(freq="D", time_grid=grid))
    plan = CutoffPlan.of_blocks(panel, WindowConfig(horizon=3, history=3, num_fcts=1, min_history=4))
    first = panel.first_step.tolist()
    blocks = [(0, first[0] + t) for t in range(3, 9)] + [(2, first[2] + 3)]
    found = [pair for w in plan.batches() for pair in zip(w.series.tolist(), w.start.tolist(), strict=True)]
    assert sorted(found) == sorted(blocks)
    with pytest.raises(DataError, match="no series has 10"):
        CutoffPlan.of_blocks(panel, WindowConfig(horizon=3, history=3, num_fcts=1, min_history=10))


def test_spans_that_follow_each_other_share_no_target_date_and_leave_none_out():
    panel = ragged_panel([50, 30], [0, 15])
    train, valid, test = (as_time(date, panel.axis) for date in ("2024-01-31", "2024-02-09", "2024-02-15"))
    spans = {"train": Span(None, train, train), "valid": Span(train, valid, valid), "test": Span(valid, test, test)}
    config = WindowConfig(horizon=4, history=6, num_fcts=5)
    dates = {}
    for name, span in spans.items():
        plan = WindowPlan(panel, config, span)
        targets = set()
        for step in range(plan.num_batches(0)):
            batch = plan.batch(0, step)
            for i in range(len(batch)):
                for t in range(batch.first_fct[i], batch.last_fct[i] + 1):
                    targets |= {t + h for h in range(1, 5) if t + h <= batch.last_target[i]}
        dates[name] = {str(np.datetime64(step, "D")) for step in targets}
    assert max(dates["train"]) == "2024-01-31"
    assert (min(dates["valid"]), max(dates["valid"])) == ("2024-02-01", "2024-02-09")
    assert (min(dates["test"]), max(dates["test"])) == ("2024-02-10", "2024-02-15")


def test_a_span_without_creation_times_is_refused():
    panel = ragged_panel([50], [0])
    after = as_time("2025-01-01", panel.axis)
    with pytest.raises(DataError, match="another span"):
        WindowPlan(panel, WindowConfig(horizon=4, history=6, num_fcts=5), Span(first=after))


@pytest.mark.parametrize(
    "date",
    [
        "2024-07-01",
        dt.date(2024, 7, 1),
        dt.datetime(2024, 7, 1),
        np.datetime64("2024-07-01"),
        pd.Timestamp("2024-07-01"),
    ],
)
def test_dates_come_in_many_types(date):
    assert as_time(date, TimeAxis(Frequency.parse("D"))) == np.datetime64("2024-07-01", "us").astype(int)
    utc = as_time(date, TimeAxis(Frequency.parse("h"), "Europe/Berlin"))
    assert utc == np.datetime64("2024-06-30T22:00", "us").astype(int), "the zone's midnight"


def test_what_is_no_date_is_refused():
    for value in ("yesterday", None, "NaT", object(), 20240107, np.datetime64("NaT"), pd.NaT):
        with pytest.raises(ConfigError, match="is not a date"):
            as_time(value, TimeAxis(Frequency.parse("D")))
    with pytest.raises(ConfigError, match="leave out the time zone"):
        as_time(pd.Timestamp("2024-07-01", tz="UTC"), TimeAxis(Frequency.parse("D")))
    with pytest.raises(ConfigError, match="leave out the time zone"):
        as_time("2024-07-01T00:00:00+02:00", TimeAxis(Frequency.parse("D")))


def test_dates_with_an_offset_are_moments():
    hourly = TimeAxis(Frequency.parse("h"), "Europe/Berlin")
    assert as_time("2024-07-01T00:00:00+02:00", hourly) == np.datetime64("2024-06-30T22:00", "us").astype(int)
    skipped = as_time("2024-03-31 02:30", hourly)
    assert skipped == np.datetime64("2024-03-31T01:00", "us").astype(int), "the moment clocks went forward"


@pytest.mark.parametrize("bad", [{"horizon": 0}, {"history": 0}, {"num_fcts": -1}, {"batch_size": 0}, {"horizn": 3}])
def test_impossible_settings_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        WindowConfig(**({"horizon": 1, "history": 1, "num_fcts": 1} | bad))


def test_a_series_may_be_silent_for_a_horizon_or_for_as_long_as_is_said():
    panel = ragged_panel([10, 20], [0, 0])
    last = int(panel.times_at(np.array([1]), panel.last_observed[1:], 1)[0, 0])
    plans = [
        CutoffPlan.between(panel, WindowConfig(horizon=3, history=2, num_fcts=1), last, last, silence)
        for silence in (None, 9, 10)
    ]
    assert [plan.series.tolist() for plan in plans] == [[1], [1], [0, 1]]
