"""What comes later changes no earlier forecast: not one bit of it."""

import datetime as dt
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from model_samples import (
    FIRST,
    HORIZON,
    NUM_SERIES,
    NUM_STEPS,
    SCHEMA,
    VARIANTS,
    WINDOW,
    assembler,
    frames,
    sample_batch,
    sample_network,
    sample_panel,
    sample_windows,
)
from torch import Tensor

from mqcast import Panel
from mqcast.data.batch import Assembler, Batch
from mqcast.nn.networks import Network
from mqcast.settings import ScalingConfig

NUM_PAIRS = 3000  # (series, t) tried for every kind of column, over all networks


def changed(x: Tensor, where: slice, num_values: tuple[int, ...] = ()) -> Tensor:
    """Another number, flag or category at each of these steps."""
    x = x.clone()
    part = x[:, where]
    if x.dtype == torch.bool:
        x[:, where] = ~part
    elif x.is_floating_point():
        x[:, where] = part + 3 * torch.randn_like(part)
    else:
        x[:, where] = (part + 1) % torch.tensor(num_values)
    return x


def with_other_targets(batch: Batch, network: Network, where: slice) -> Batch:
    return replace(batch, values=changed(batch.values, where), observed=changed(batch.observed, where))


def with_other_past(batch: Batch, network: Network, where: slice) -> Batch:
    return replace(
        batch,
        past_number=changed(batch.past_number, where),
        past_observed=changed(batch.past_observed, where),
        past_category=changed(batch.past_category, where, network.inputs.past_categories),
    )


def with_other_scales(batch: Batch, network: Network, where: slice) -> Batch:
    scale = batch.scale.clone()
    scale[:, where] *= torch.randn_like(scale[:, where]).exp()
    level = changed(batch.precedent_level, where)
    return replace(batch, loc=changed(batch.loc, where), scale=scale, precedent_level=level)


def with_other_known(batch: Batch, network: Network, where: slice) -> Batch:
    """`where` counts creation times: t stands for the last of its targets."""
    where = moved(where, HORIZON)
    return replace(
        batch,
        known_number=changed(batch.known_number, where),
        known_category=changed(batch.known_category, where, network.inputs.known_categories),
        precedent=changed(batch.precedent, where),
    )


def with_other_events(batch: Batch, network: Network, where: slice) -> Batch:
    """`where` counts creation times: t stands for R steps after the last of its targets."""
    batch_reach = (batch.global_number.shape[1] - batch.values.shape[1]) // 2
    where = moved(where, batch_reach + HORIZON + network.reach)  # a batch's calendar starts that much before step 0
    sizes = (*network.inputs.calendar, *network.inputs.event_categories)
    return replace(
        batch,
        global_number=changed(batch.global_number, where),
        global_category=changed(batch.global_category, where, sizes),
    )


def moved(where: slice, by: int) -> slice:
    return slice(where.start + by, None if where.stop is None else where.stop + by)


Change = Callable[[Batch, Network, slice], Batch]
CHANGES: dict[str, Change] = {
    "target": with_other_targets,
    "past": with_other_past,
    "scale": with_other_scales,
    "known": with_other_known,
    "events": with_other_events,
}


def differing(one: Tensor, other: Tensor, where: slice) -> Tensor:
    """Which series have another forecast at one of these creation times."""
    return (one != other)[:, :, where].flatten(1).any(dim=1)


def same_bits(one: Tensor, other: Tensor, where: Tensor) -> bool:
    """Are the forecasts of these (series, creation time) equal, bit for bit?"""
    one, other = (x[:, :, : where.shape[1]].where(where[:, None, :, None], 0) for x in (one, other))
    return torch.equal(one, other)


@pytest.mark.parametrize("kind", CHANGES)
@torch.no_grad()
def test_what_a_creation_time_may_not_see_never_changes_its_forecasts(kind):
    batch = sample_batch()
    num_pairs = 0
    for variant, config in VARIANTS.items():
        network = sample_network(config)
        before = network(batch)
        for t in range(0, NUM_STEPS, 3):
            after = network(CHANGES[kind](batch, network, slice(t + 1, None)))
            begun = batch.begun[:, : t + 1]
            assert same_bits(after, before, begun), (variant, t)
            num_pairs += len(batch.series)
            # distances say nothing new where another event is nearer, but R steps later the event itself does
            surely = t + 1 + (network.reach if kind == "events" and not config.variant.has_attention else 0)
            if surely < NUM_STEPS:
                share = differing(before, after, slice(surely, None)).float().mean()
                assert share > 0.5, f"{variant}: too few see what follows {t}"
    assert num_pairs >= NUM_PAIRS


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_what_a_creation_time_may_not_see_changes_no_bit_of_its_totals(variant):
    batch, network = sample_batch(), sample_network(VARIANTS[variant].replace(spans=((1, HORIZON), (2, 3), (3, 3))))
    before = network(batch, spans=True)[:, HORIZON:]
    for change in CHANGES.values():
        for t in range(0, NUM_STEPS, 5):
            after = network(change(batch, network, slice(t + 1, None)), spans=True)[:, HORIZON:]
            assert same_bits(after, before, batch.begun[:, : t + 1]), t
            assert not torch.equal(network(change(batch, network, slice(t, t + 1)), spans=True)[:, HORIZON:], before)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_creation_times_before_a_series_begins_do_not_see_its_first_steps_either(variant):
    """They are never scored, but `forward` and `quantiles` give their forecasts."""
    batch, network = sample_batch(), sample_network(VARIANTS[variant])
    before = network(batch)
    for kind, change in CHANGES.items():
        for t in (0, 3, 6):
            after = network(change(batch, network, slice(t + 1, None)))
            unborn = ~batch.begun[:, : t + 1]
            assert unborn.any()
            assert same_bits(after, before, unborn), (kind, t)


@pytest.mark.parametrize("kind", CHANGES)
@torch.no_grad()
def test_the_last_step_that_a_creation_time_may_see_does_change_its_forecasts(kind):
    """So the test above looks exactly beside the edge, and would see a leak of one step."""
    for variant, config in VARIANTS.items():
        batch, network = sample_batch(), sample_network(config)
        if kind == "events" and not config.variant.has_attention:  # an event counts from afar if no other is nearer
            number, category = batch.global_number.clone(), batch.global_category.clone()
            number[..., list(network.inputs.global_flags)] = 0
            category[..., len(network.inputs.calendar) :] = 0
            batch = replace(batch, global_number=number, global_category=category)
        before = network(batch)
        seen = []
        for t in (0, 5, 10, NUM_STEPS - 1):
            after = network(CHANGES[kind](batch, network, slice(t, t + 1)))
            seen.append(differing(before, after, slice(t, t + 1))[batch.begun[:, t]])
        assert torch.cat(seen).float().mean() > 0.5, variant


@pytest.mark.parametrize("variant", ["mqt", "mqcnn"])
@torch.no_grad()
def test_more_calendar_than_the_network_reads_changes_nothing(variant):
    config = WINDOW.replace(reach=HORIZON + 4)
    wide, network = assembler(config)(sample_windows(config)), sample_network(VARIANTS[variant])
    surplus = config.reach - network.reach
    before = network(sample_batch())
    assert torch.equal(network(wide), before)
    for where in (slice(0, surplus), slice(-surplus, None)):
        sizes = (*network.inputs.calendar, *network.inputs.event_categories)
        category = changed(wide.global_category, where, sizes)
        other = replace(wide, global_number=changed(wide.global_number, where), global_category=category)
        assert torch.equal(network(other), before)
    inner = slice(-surplus - 1, -surplus)
    other = replace(wide, global_number=changed(wide.global_number, inner))
    assert network.config.model != "mqt" or not torch.equal(network(other), before)


@pytest.mark.parametrize("by", ["series", "past_mean"])
@torch.no_grad()
def test_later_rows_of_a_users_frame_never_change_earlier_forecasts(by):
    """From the frame to the forecast, for three cutoffs: 3 × all series."""
    frame, static, events = frames()
    panel, windows = sample_panel(), sample_windows()
    networks = {variant: sample_network(config) for variant, config in VARIANTS.items()}
    first = int(windows.start[0]) - WINDOW.history
    for day in (20, 24, 28):
        t = (FIRST - dt.datetime(1970, 1, 1)).days + day - first
        later, beyond = (pl.col("ds") > FIRST + dt.timedelta(days=day + ahead) for ahead in (0, HORIZON))
        other_frame = frame.with_columns(
            y=pl.when(later).then(pl.col("y") * 7 + 3).otherwise("y"),
            visits=pl.when(later).then(pl.lit(9.0)).otherwise("visits"),
            weather=pl.when(later & (pl.col("weather") == "sun")).then(pl.lit("rain")).otherwise("weather"),
            price=pl.when(beyond).then(pl.col("price") + 5).otherwise("price"),
            promo=pl.when(beyond).then(~pl.col("promo")).otherwise("promo"),
        )
        unseen = pl.col("ds") > FIRST + dt.timedelta(days=day + HORIZON + HORIZON - 1)
        other_events = events.with_columns(
            heat=pl.when(unseen).then(pl.col("heat") + 5).otherwise("heat"),
            fair=pl.when(unseen).then(~pl.col("fair")).otherwise("fair"),
        )
        batches = []
        for data in (panel, Panel.from_frame(other_frame, SCHEMA, static, other_events)):
            until = FIRST + dt.timedelta(days=day)
            assemble = Assembler.fit(data, WINDOW, ScalingConfig(by=by), until=until)
            batches.append(assemble(windows))
        for variant, network in networks.items():
            before, after = (network(batch) for batch in batches)
            begun = batches[0].begun[:, : t + 1]
            assert same_bits(after, before, begun), variant
            assert differing(before, after, slice(t + 1, None)).float().mean() > 0.5, variant


def test_the_sample_has_series_that_begin_inside_its_window():
    batch = sample_batch()
    begun = batch.begun[:, :NUM_STEPS]
    assert begun[:, -1].all()
    assert 10 < int((~begun[:, 0]).sum()) < NUM_SERIES - 10
    assert len(batch.series) == NUM_SERIES == len(np.unique(batch.series))
