"""Batches against plain loops; nothing in them depends on what was not known."""

import datetime as dt
import itertools
import threading
import warnings

import numpy as np
import polars as pl
import pytest
import torch

from mqcast import Panel, Schema
from mqcast.data.batch import Assembler, Batch
from mqcast.data.parallel import ahead
from mqcast.data.windows import Span, WindowPlan, as_time
from mqcast.errors import ConfigError, EventReachWarning
from mqcast.settings import ScalingConfig, WindowConfig

FIRST = dt.datetime(2024, 1, 1)
NUM_DAYS, HORIZON = 40, 5
CONFIG = WindowConfig(horizon=HORIZON, history=6, num_fcts=8, batch_size=4, reach=3)


def frames(seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Five ragged series with gaps and missing values, static values and an event table."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(5):
        for day in range(3 * i, NUM_DAYS + HORIZON):
            if rng.random() < 0.1 and day < NUM_DAYS:
                continue
            known_y = (day < NUM_DAYS and rng.random() > 0.1) or day == 3 * i
            rows.append(
                {
                    "unique_id": f"s{i}",
                    "ds": FIRST + dt.timedelta(days=day),
                    "y": float(rng.poisson(20)) if known_y else None,
                    "visits": float(rng.poisson(50)) if rng.random() > 0.2 else None,
                    "weather": str(rng.choice(["sun", "rain"])),
                    "promo": bool(rng.random() < 0.3),
                    "price": float(rng.normal(10, 2)),
                    "kind": str(rng.choice(["x", "y", "z"])),
                }
            )
    static = pl.DataFrame(
        {"unique_id": [f"s{i}" for i in range(5)], "city": ["Ulm", "Bonn", "Ulm", None, "Kiel"], "area": range(5)}
    )
    days = [FIRST + dt.timedelta(days=i) for i in range(-5, NUM_DAYS + HORIZON + 10)]
    events = pl.DataFrame(
        {
            "ds": days,
            "fair": [i % 9 == 0 for i in range(len(days))],
            "show": ["a" if i % 5 else None for i in range(len(days))],
        }
    )
    return pl.DataFrame(rows), static, events


SCHEMA = Schema(
    freq="D",
    static=("city", "area"),
    past=("visits", "weather"),
    known=("promo", "price", "kind"),
    events=("fair", "show"),
    holidays=("US",),
)


def build(seed: int = 0, schema: Schema = SCHEMA) -> Panel:
    frame, static, events = frames(seed)
    return Panel.from_frame(frame, schema, static, events)


def batches(panel: Panel, config: WindowConfig = CONFIG, scaling: ScalingConfig | None = None) -> list[Batch]:
    plan = WindowPlan(panel, config)
    assemble = Assembler.fit(panel, config, scaling or ScalingConfig())
    return [assemble(plan.batch(0, step)) for step in range(plan.num_batches(0))]


def row_at(panel: Panel, series: int, step: int) -> int | None:
    for row in range(panel.offsets[series], panel.offsets[series + 1]):
        if panel.place_of(row)[1] == step:
            return row
    return None


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("num_missing", [0, 1])
def test_a_lack_of_events_is_told_if_and_only_if_a_scored_creation_time_reads_them(aligned, num_missing):
    frame, static, events = frames()
    config = CONFIG.replace(aligned=aligned)
    plan = WindowPlan(build(), config)
    last_read = (
        max(int(windows.last_fct.max()) for windows in (plan.batch(0, step) for step in range(plan.num_batches(0))))
        + HORIZON
        + CONFIG.reach
    )
    panel = build()
    last_day = panel.axis.dates(panel.times_at(np.array([0]), np.array([last_read - num_missing]), 1)[0])[0]
    panel = Panel.from_frame(frame, SCHEMA, static, events.filter(pl.col("ds") <= last_day))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", EventReachWarning)
        batches(panel, config)
    assert len(told) == bool(num_missing)


@pytest.mark.parametrize("aligned", [True, False])
def test_a_batch_is_what_plain_loops_give(aligned):
    panel = build()
    config = CONFIG.replace(aligned=aligned)
    assemble = Assembler.fit(panel, config, ScalingConfig())
    for batch in batches(panel, config)[:3]:
        assert batch.global_number.shape[0] == (1 if aligned else len(batch.series))
        for b in range(len(batch.series)):
            series, start = int(batch.series[b]), int(batch.start[b])
            for i in range(config.num_steps + HORIZON):
                row = row_at(panel, series, start + i)
                seen = row is not None and not np.isnan(panel.target[row])
                assert bool(batch.observed[b, i]) == seen
                assert float(batch.values[b, i]) == (panel.target[row] if seen else 0)
                assert bool(batch.begun[b, i]) == (start + i >= panel.first_step[series])
                number = np.full(2, np.nan) if row is None else panel.arrays["known_number"][row]
                np.testing.assert_array_equal(batch.known_number[b, i], assemble.number.forward("known", number))
                assert int(batch.known_category[b, i, 0]) == (
                    0 if row is None else panel.arrays["known_category"][row, 0]
                )
                if i < config.num_steps:
                    hidden = row is None or start + i > panel.last_observed[series]
                    past = np.full(1, np.nan) if hidden else panel.arrays["past_number"][row]
                    np.testing.assert_array_equal(batch.past_number[b, i], assemble.number.forward("past", past))
                    assert bool(batch.past_observed[b, i, 0]) == (not np.isnan(past[0]))


def test_targets_are_the_steps_ahead_on_the_creation_times_scale():
    for batch in batches(build()):
        targets, scored = batch.targets(), batch.is_scored()
        num_windows, horizon, num_steps = targets.shape
        assert (horizon, num_steps) == (HORIZON, CONFIG.num_steps)
        for b in range(num_windows):
            for t in range(num_steps):
                for h in range(1, horizon + 1):
                    expected = (batch.values[b, t + h] - batch.loc[b, t]) / batch.scale[b, t]
                    assert targets[b, h - 1, t] == expected
                    assert scored[b, h - 1, t] == (batch.observed[b, t + h] & batch.is_fct[b, t])
        unseen = ~batch.observed[:, :num_steps]
        assert (batch.inputs()[unseen] == 0).all()


def test_scored_pairs_are_all_observed_pairs():
    """Every (creation time, horizon) with an observed target is in the loss exactly once."""
    panel = build()
    expected = sum(
        row_at(panel, i, t + h) is not None and not np.isnan(panel.target[row_at(panel, i, t + h)])
        for i in range(panel.num_series)
        for t in range(int(panel.first_step[i]), int(panel.last_observed[i]))
        for h in range(1, HORIZON + 1)
    )
    assert sum(int(batch.is_scored().sum()) for batch in batches(panel)) == expected


def test_calendars_carry_real_values_on_both_sides_of_every_window():
    panel = build()
    for batch in batches(panel):
        first = int(batch.start[0]) - CONFIG.reach
        for i in range(batch.global_category.shape[1]):
            day = dt.date(1970, 1, 1) + dt.timedelta(days=first + i)
            assert batch.global_category[0, i, 0] == day.weekday()
            angle = 2 * np.pi * (day - dt.date(day.year, 1, 1)).days / 365.25
            at = len(panel.holidays)
            wave = [np.cos(angle), np.cos(2 * angle), np.sin(angle), np.sin(2 * angle)]
            np.testing.assert_allclose(batch.global_number[0, i, at : at + 4], wave, atol=1e-6)
            names = [name for _, name in panel.holidays]
            assert bool(batch.global_number[0, i, names.index("New Year's Day")]) == ((day.month, day.day) == (1, 1))


def test_a_raw_calendar_gives_week_and_month_as_codes_and_no_waves():
    panel = build()
    assemble = Assembler.fit(panel, CONFIG, ScalingConfig(raw_calendar=True))
    batch, usual = assemble(WindowPlan(panel, CONFIG).batch(0, 0)), batches(panel)[0]
    start, num_steps = int(batch.start[0]) - CONFIG.reach, batch.global_category.shape[1]
    times = panel.times_at(batch.series.numpy()[:1], np.array([start]), num_steps)[0]
    for u, date in enumerate(panel.axis.dates(times)):
        codes = [date.weekday(), date.isocalendar().week - 1, date.month - 1]
        assert batch.global_category[0, u, :3].tolist() == codes
    assert assemble.inputs.calendar == (7, 53, 12)
    assert batch.global_number.shape[-1] == assemble.inputs.global_numbers == usual.global_number.shape[-1] - 4


def test_where_a_window_starts_changes_nothing_in_it():
    panel = build()
    assemble = Assembler.fit(panel, CONFIG, ScalingConfig())
    plan = WindowPlan(panel, CONFIG, shuffle=False)
    one = plan.batch(0, 1)
    moved = one.take(np.arange(len(one)))
    moved.start[:] = one.start + 2
    early, late = assemble(one), assemble(moved)
    for name in ("values", "observed", "begun", "known_number", "known_category"):
        assert torch.equal(getattr(early, name)[:, 2:], getattr(late, name)[:, :-2]), name
    for name in ("global_number", "global_category"):
        assert torch.equal(getattr(early, name)[:, 2:], getattr(late, name)[:, :-2]), name


@pytest.mark.parametrize(
    "scaling", [ScalingConfig(), ScalingConfig(by="past_mean", log1p=True), ScalingConfig(by="global")]
)
def test_training_batches_do_not_depend_on_anything_after_the_split(scaling):
    """Change every value after the training part: not one bit of a training batch moves."""
    frame, static, events = frames()
    split = FIRST + dt.timedelta(days=25)
    later = pl.col("ds") > split
    changed = frame.with_columns(
        y=pl.when(later & pl.col("y").is_not_null()).then(pl.col("y") * 100 + 7).otherwise("y"),
        visits=pl.when(later).then(1e6).otherwise("visits"),
        weather=pl.when(later & (pl.col("weather") == "sun")).then(pl.lit("rain")).otherwise("weather"),
    )
    found = []
    for data in (frame, changed):
        panel = Panel.from_frame(data, SCHEMA, static, events)
        until = as_time(split, panel.axis)
        plan = WindowPlan(panel, CONFIG, Span(None, until, until))
        assemble = Assembler.fit(panel, CONFIG, scaling, until=until)
        found.append([assemble(plan.batch(0, step)) for step in range(plan.num_batches(0))])
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        assert one.num_fcts == other.num_fcts
        for name, tensor in one.tensors().items():
            assert torch.equal(tensor, getattr(other, name)), name


def test_beyond_the_event_table_no_event_is_assumed_and_that_is_said_once():
    frame, static, events = frames()
    panel = Panel.from_frame(frame, SCHEMA, static, events.filter(pl.col("ds") <= frame["ds"].max()))
    config = CONFIG.replace(reach=30)
    plan, assemble = WindowPlan(panel, config), Assembler.fit(panel, config, ScalingConfig())
    with pytest.warns(EventReachWarning, match=r"ends at 2024-02-14; no events are assumed up to") as caught:
        _ = [assemble(plan.batch(0, step)) for step in range(plan.num_batches(0))]
    assert len(caught) == 1


def test_rows_as_steps_carry_each_series_own_calendar():
    days = [d for d in (FIRST + dt.timedelta(days=i) for i in range(60)) if d.weekday() < 5 and d.day != 15]
    frame = pl.concat(
        pl.DataFrame({"unique_id": name, "ds": days[skip:], "y": [float(i) for i in range(len(days) - skip)]})
        for name, skip in (("a", 0), ("b", 3))
    )
    panel = Panel.from_frame(frame, Schema(time_grid="rows", calendar=("day_of_week", "day_of_month")))
    assert str(panel.axis.frequency) == "B"
    config = WindowConfig(horizon=4, history=5, num_fcts=10, batch_size=2, reach=3)
    plan, assemble = WindowPlan(panel, config, shuffle=False), Assembler.fit(panel, config, ScalingConfig())
    batch = assemble(plan.batch(0, 0))
    assert batch.global_category.shape == (2, 3 + 15 + 4 + 3, 2)
    for b in range(2):
        own = days[3 * b :]
        for i in range(batch.global_category.shape[1]):
            step = int(batch.start[b]) - 3 + i
            if step >= 0:
                assert batch.global_category[b, i].tolist() == [own[step].weekday(), own[step].day - 1]
    assert (batch.global_category[:, :, 0] < 5).all(), "before the first row and after the last, business days go on"


def test_items_made_ahead_come_in_order():
    assert list(ahead(iter(range(100)), 2)) == list(range(100))


def test_leaving_an_iterator_that_works_ahead_stops_its_thread():
    for _ in ahead(itertools.count(), 2):
        break
    assert not [thread for thread in threading.enumerate() if thread.name == "mqcast-ahead"]


def test_an_error_made_ahead_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        list(ahead((1 // number for number in (1, 0)), 2))


def test_annotations_are_executed_in_the_test_run():
    batch = batches(build())[0]
    with pytest.raises(Exception, match=r"(?i)type"):
        Batch(**{name: getattr(batch, name) for name in batch.__dataclass_fields__} | {"loc": batch.loc[:, :-1]})


def test_windows_longer_than_the_assembler_expects_are_refused():
    panel = build()
    assemble = Assembler.fit(panel, CONFIG.replace(num_fcts=4), ScalingConfig())
    with pytest.raises(ConfigError, match="windows have more than 4 creation times"):
        assemble(WindowPlan(panel, CONFIG, shuffle=False).batch(0, 1))


def test_scales_may_be_fitted_until_a_date():
    panel = build()
    one = Assembler.fit(panel, CONFIG, ScalingConfig(), until="2024-01-20")
    other = Assembler.fit(panel, CONFIG, ScalingConfig(), until=as_time("2024-01-20", panel.axis))
    np.testing.assert_array_equal(one.target.scaler.loc, other.target.scaler.loc)


def test_numbers_are_also_given_relative_to_their_own_level():
    """Prices are positive and visits too: their logarithms less the mean of those of the last four steps."""
    panel, width = build(), 4
    assemble = Assembler.fit(panel, CONFIG, ScalingConfig(level_steps=width))
    plain = Assembler.fit(panel, CONFIG, ScalingConfig())
    assert (assemble.inputs.known_numbers, assemble.inputs.past_numbers) == (3, 2)  # promo is a flag
    windows = WindowPlan(panel, CONFIG).batch(0, 0)
    batch, before = assemble(windows), plain(windows)
    torch.testing.assert_close(batch.known_number[..., :2], before.known_number, rtol=0, atol=0)
    torch.testing.assert_close(batch.past_number[..., :1], before.past_number, rtol=0, atol=0)
    for block, given, column, last in (("known", batch.known_number, 1, None), ("past", batch.past_number, 0, "y")):
        scale = assemble.number.own[block].scale[0]
        for b in range(len(batch.series)):
            series, start = int(batch.series[b]), int(batch.start[b])
            for i in range(given.shape[1]):
                rows = [row_at(panel, series, start + i - back) for back in range(width)]
                if last is not None:
                    rows = [row if start + i - k <= panel.last_observed[series] else None for k, row in enumerate(rows)]
                values = [np.nan if row is None else panel.arrays[f"{block}_number"][row, column] for row in rows]
                logs = np.log(np.array(values, np.float64))
                expected = 0.0 if np.isnan(logs[0]) else (logs[0] - np.nanmean(logs)) / scale
                assert abs(float(given[b, i, -1]) - expected) < 1e-5


@pytest.mark.parametrize("log1p", [False, True])
def test_a_precedent_says_how_demand_went_on_from_as_many_steps_before(log1p: bool):
    """The target k steps before t + h against the level k steps before t, on the scale of t; 0 where unknown."""
    panel, echoes = build(), (5, 9)
    scaling = ScalingConfig(by="recent", zeros="told_apart", log1p=log1p, echoes=echoes)
    assemble = Assembler.fit(panel, CONFIG, scaling)
    assert assemble.inputs.precedents == 2
    windows = WindowPlan(panel, CONFIG).batch(0, 0)
    batch = assemble(windows)
    start, found = batch.start.numpy(), batch.precedents().numpy()
    num_seen = 0
    for (place, echo), b, t in itertools.product(enumerate(echoes), range(len(batch.series)), range(CONFIG.num_steps)):
        then = assemble.target.at(windows.series[[b]], start[[b]] + t - echo, 1)
        loc, unit = float(then.loc[0, 0]), float(then.unit[0, 0])
        first = int(panel.first_step[batch.series[b]])
        for h in range(HORIZON):
            row = row_at(panel, int(batch.series[b]), int(start[b]) + t + h + 1 - echo)
            expected = 0.0
            if row is not None and not np.isnan(panel.target[row]) and start[b] + t - echo >= first:
                y = panel.target[row]
                change = np.log(y + unit) - np.log(unit) - loc if log1p else y - loc
                expected = change / float(batch.scale[b, t])
                num_seen += 1
            if abs(expected) < 8 and not log1p:
                assert found[b, t, h, place] == pytest.approx(expected, abs=1e-3)
            if expected == 0.0:
                assert found[b, t, h, place] == 0.0
    assert num_seen > 50


@pytest.mark.parametrize("by", ["series", "recent"])
def test_the_echo_is_the_scaled_target_of_as_many_steps_before(by):
    panel, echoes = build(), (5, 9)
    assemble = Assembler.fit(panel, CONFIG, ScalingConfig(by=by, echoes=echoes))
    assert assemble.inputs.known_numbers == 2 + 4
    for step, (place, echo) in itertools.product(range(2), enumerate(echoes)):
        batch = assemble(windows := WindowPlan(panel, CONFIG).batch(0, step))
        earlier = assemble.target.at(windows.series, batch.start.numpy() - echo, CONFIG.num_steps + HORIZON)
        for b, i in itertools.product(range(len(batch.series)), range(CONFIG.num_steps + HORIZON)):
            row = row_at(panel, int(batch.series[b]), int(batch.start[b]) + i - echo)
            seen = row is not None and not np.isnan(panel.target[row])
            value = (panel.target[row] - earlier.loc[b, i]) / earlier.scale[b, i] if seen else 0.0
            given, is_known = batch.known_number[b, i, 2 + 2 * place : 4 + 2 * place].tolist()
            assert is_known == seen
            assert abs(given - value) < 1e-4 or abs(value) > 8


def test_an_echo_shorter_than_the_horizon_is_refused():
    with pytest.raises(ConfigError, match=r"scaling.echoes has 4, less than the horizon; give at least 5"):
        Assembler.fit(build(), CONFIG, ScalingConfig(echoes=(7, 4)))
