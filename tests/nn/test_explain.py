"""Attention weights, and the dates they belong to."""

import datetime as dt

import numpy as np
import polars as pl
import pytest
import torch
from model_samples import (
    EPOCH,
    HORIZON,
    LOOKBACK,
    NUM_STEPS,
    SMALL,
    VARIANTS,
    assembler,
    distance,
    sample_batch,
    sample_network,
    sample_panel,
    sample_windows,
)
from torch import Tensor

from mqcast import Panel, Schema
from mqcast.data.batch import Assembler
from mqcast.data.inputs import Inputs
from mqcast.data.windows import WindowPlan
from mqcast.errors import ConfigError
from mqcast.nn.attention import Maps
from mqcast.nn.networks import Network
from mqcast.settings import ScalingConfig, WindowConfig

WITH_ATTENTION = [variant for variant in VARIANTS if variant.startswith("mqt")]


def looks_at(first_source: int, t: int, begun: Tensor) -> Tensor:
    """(B, S): steps from first_source to t once the series has begun; and t."""
    s = torch.arange(NUM_STEPS)
    return ((s >= first_source) & (s <= t) & begun) | (s == t)


@pytest.mark.parametrize("variant", WITH_ATTENTION)
def test_weights_over_the_past_are_shares_of_the_look_back_since_a_series_began(variant):
    batch = sample_batch()
    weights = sample_network(VARIANTS[variant]).explain(batch).history
    assert weights.shape == (len(batch.series), HORIZON, NUM_STEPS, NUM_STEPS)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:3]))
    for t in range(NUM_STEPS):
        expected = looks_at(t - LOOKBACK, t, batch.begun[:, :NUM_STEPS])
        assert torch.equal(weights[:, :, t] > 0, expected[:, None].expand(-1, HORIZON, -1)), t
    assert (weights >= 0).all()


@pytest.mark.parametrize("variant", WITH_ATTENTION)
def test_weights_over_earlier_forecasts_lie_where_those_have_the_same_target(variant):
    batch = sample_batch()
    network = sample_network(VARIANTS[variant])
    weights = network.explain(batch).feedback
    if network.config.model == "mqt-nods":
        assert weights is None
        return
    assert weights.shape == (len(batch.series), HORIZON, NUM_STEPS, NUM_STEPS)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:3]))
    assert (weights >= 0).all()
    for t in range(NUM_STEPS):
        for h in range(1, HORIZON + 1):
            first = t - LOOKBACK if network.config.model == "mqt-all" else t + h - HORIZON
            assert torch.equal(weights[:, h - 1, t] > 0, looks_at(first, t, batch.begun[:, :NUM_STEPS])), (t, h)
    if network.config.model == "mqt":
        only_itself = torch.eye(NUM_STEPS).expand(len(batch.series), -1, -1)
        assert torch.equal(weights[:, HORIZON - 1], only_itself)


@pytest.mark.parametrize("num_fcts", [None, 3])
@pytest.mark.parametrize("variant", WITH_ATTENTION)
@torch.no_grad()
def test_asking_for_weights_changes_no_forecast(variant, num_fcts):
    network, batch = sample_network(VARIANTS[variant]), sample_batch(24)
    maps = Maps()
    rounding = 1e-5 if variant.endswith("kernels") else 0  # weights are told by plain PyTorch
    assert distance(network(batch, num_fcts, maps).detach(), network(batch, num_fcts).detach()) <= rounding
    assert maps.history is not None


@pytest.mark.parametrize("variant", WITH_ATTENTION)
def test_the_last_creation_times_are_explained_as_in_the_whole_window(variant):
    network, batch = sample_network(VARIANTS[variant]), sample_batch(24)
    everything = network.explain(batch)
    for num_fcts in (1, 3, NUM_STEPS):
        last = network.explain(batch, num_fcts)
        assert distance(last.history, everything.history[:, :, -num_fcts:]) <= 1e-5
        assert (last.feedback is None) == (everything.feedback is None)
        if last.feedback is not None:
            assert distance(last.feedback, everything.feedback[:, :, -num_fcts:]) <= 1e-5


@torch.no_grad()
def test_the_weights_are_those_that_the_forecasts_were_made_with():
    """Weighted sums with the weights of `explain` are what the cells gave."""
    network, batch = sample_network(SMALL), sample_batch(6)
    calls = {}
    network.contexts.cell.register_forward_hook(lambda _, given, out: calls.update(history=(given, out)))
    network.feedback.register_forward_hook(lambda _, given, out: calls.update(feedback=(given, out)))
    found = network.explain(batch)
    (codes, grid, *_), attended = calls["history"]
    value = network.contexts.cell.value(codes.hidden) @ network.contexts.block.map.T
    assert distance(torch.einsum("bhts,bsa->bhta", found.history, value), grid.forecasts(attended)) <= 1e-5
    (context, *_), attended = calls["feedback"]
    attended = grid.forecasts(attended)
    value = network.feedback.heads.value((context,)) @ network.feedback_block.map.T
    value = grid.forecasts(value)  # of the forecast made at s, r steps ahead
    for t in range(NUM_STEPS):
        for h in range(HORIZON):
            earlier = range(max(0, t + h - HORIZON + 1), t + 1)
            total = sum(found.feedback[:, h, t, s, None] * value[:, t + h - s, s] for s in earlier)
            assert distance(total, attended[:, h, t]) <= 1e-5


def test_a_frame_of_weights_has_the_right_ids_dates_and_weights():
    panel, batch = sample_panel(), assembler()(sample_windows().take(np.array([40, 3, 17, 64])))
    found = sample_network(SMALL).explain(batch, num_fcts=5)
    frame = found.frame(panel)
    assert frame.columns == ["unique_id", "cutoff", "ds", "horizon", "block", "looked_at", "weight"]
    expected = []
    for block, weights in (("history", found.history), ("feedback", found.feedback)):
        for b, h, i, s in weights.nonzero().tolist():
            first = EPOCH + dt.timedelta(days=int(batch.start[b]))
            cutoff = first + dt.timedelta(days=NUM_STEPS - 5 + i)
            name = panel.ids[int(batch.series[b])].as_py()
            target, looked_at = cutoff + dt.timedelta(days=h + 1), first + dt.timedelta(days=s)
            expected.append((name, cutoff, target, h + 1, block, looked_at, float(weights[b, h, i, s])))
    assert frame.rows() == expected


def test_a_bound_leaves_small_weights_out():
    panel, batch = sample_panel(), sample_batch(4)
    found = sample_network(SMALL).explain(batch)
    everything = found.frame(panel)
    some = found.frame(panel, above=0.2)
    assert some.equals(everything.filter(pl.col("weight") > np.float32(0.2)))
    assert 0 < some.height < everything.height
    none = found.frame(panel, above=1.0)
    assert none.height == 0
    assert none.schema == everything.schema


HOUR, DAY, WEEK = dt.timedelta(hours=1), dt.timedelta(days=1), dt.timedelta(weeks=1)


def zoned(freq: str, zone: str | None, first: dt.datetime, length: dt.timedelta) -> Panel:
    """Two series without covariates; the second begins 20 steps later. Hours are counted in UTC, days on the wall."""
    dates = pl.Series([first + i * length for i in range(60)])
    if zone is not None:
        dates = dates.dt.replace_time_zone("UTC" if freq == "h" else zone).dt.convert_time_zone(zone)
    tables = [
        pl.DataFrame({"unique_id": name, "ds": dates[skip:], "y": [float(i % 5) for i in range(60 - skip)]})
        for name, skip in (("late", 20), ("early", 0))
    ]
    return Panel.from_frame(pl.concat(tables), Schema(freq=freq))


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize(("freq", "length"), [("h", HOUR), ("D", DAY), ("W-SUN", WEEK)])
def test_dates_are_right_in_every_zone_also_when_clocks_change(freq, length, zone):
    first = dt.datetime(2024, 3, 10) if zone == "America/New_York" else dt.datetime(2024, 3, 31)
    first -= 10 * length
    panel = zoned(freq, zone, first, length)
    config = WindowConfig(horizon=3, history=4, num_fcts=30, batch_size=2)
    batch = Assembler.fit(panel, config, ScalingConfig())(WindowPlan(panel, config, shuffle=False).batch(0, 0))
    torch.manual_seed(0)
    frame = Network(SMALL, Inputs.of(panel), 3).explain(batch).frame(panel)
    assert {frame[name].dtype for name in ("cutoff", "ds", "looked_at")} == {pl.Datetime("us", zone)}
    if zone not in (None, "UTC"):
        assert frame["ds"].dt.dst_offset().n_unique() == 2, "clocks change inside the window"
        counted = pl.col("cutoff", "ds", "looked_at").dt.convert_time_zone("UTC" if freq == "h" else zone)
        frame = frame.with_columns(counted)
    if zone is not None:
        frame = frame.with_columns(pl.col("cutoff", "ds", "looked_at").dt.replace_time_zone(None))
    assert (frame["ds"] - frame["cutoff"] == frame["horizon"] * length).all()
    back = (frame["cutoff"] - frame["looked_at"]) / length
    assert sorted(set(back)) == list(range(LOOKBACK + 1))
    assert frame["cutoff"].min() == first - config.history * length
    assert frame["cutoff"].max() == first + (config.num_fcts - 1) * length
    begins = {"early": first, "late": first + 20 * length}
    for name, begin in begins.items():
        since = frame.filter(pl.col("unique_id") == name, pl.col("cutoff") >= begin)
        assert since["looked_at"].min() == begin
    sums = frame.group_by("unique_id", "cutoff", "horizon", "block").agg(pl.col("weight").sum())
    np.testing.assert_allclose(sums["weight"], 1, rtol=1e-5)


def test_rows_as_steps_are_explained_by_their_own_dates():
    days = [d for d in (EPOCH + dt.timedelta(days=i) for i in range(90)) if d.weekday() < 5 and d.day != 15]
    frame = pl.concat(
        pl.DataFrame({"unique_id": name, "ds": days[skip:], "y": [float(i % 7) for i in range(len(days) - skip)]})
        for name, skip in (("a", 0), ("b", 3))
    )
    panel = Panel.from_frame(frame, Schema(time_grid="rows"))
    config = WindowConfig(horizon=3, history=4, num_fcts=30, batch_size=2)
    batch = Assembler.fit(panel, config, ScalingConfig())(WindowPlan(panel, config, shuffle=False).batch(0, 0))
    torch.manual_seed(0)
    found = Network(SMALL, Inputs.of(panel), 3).explain(batch, num_fcts=20).frame(panel)
    place = {date: i for i, date in enumerate(days)}
    for cutoff, ds, horizon, looked_at in found.select("cutoff", "ds", "horizon", "looked_at").iter_rows():
        assert place[ds] - place[cutoff] == horizon
        assert 0 <= place[cutoff] - place[looked_at] <= LOOKBACK
    assert set(found["unique_id"]) == {"a", "b"}


@pytest.mark.parametrize("model", ["mqcnn", "mqrnn"])
def test_without_attention_there_is_nothing_to_explain(model):
    with pytest.raises(ConfigError, match=f"{model} has no attention to explain; fit one of mqt, mqt-nods, mqt-all"):
        sample_network(SMALL.replace(model=model)).explain(sample_batch(4))
