"""A series' forecasts are its own: the same alone and in company, padded and not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from model_samples import (
    HORIZON,
    NUM_STEPS,
    VARIANTS,
    WINDOW,
    assembler,
    distance,
    sample_batch,
    sample_network,
    sample_panel,
    sample_windows,
)

from mqcast.data.windows import WindowPlan, Windows


def starting_at(windows: Windows, first_step: np.ndarray) -> Windows:
    """The same windows, with their first input at these steps."""
    return replace(windows, start=first_step + WINDOW.history)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_a_series_alone_has_the_forecasts_it_has_in_a_batch(variant):
    network, windows, assemble = sample_network(VARIANTS[variant]), sample_windows(), assembler()
    together = network(sample_batch())
    for b in range(0, len(windows), 9):
        alone = network(assemble(windows.take(np.array([b]))))
        assert distance(alone, together[b : b + 1]) <= 1e-5


@pytest.mark.parametrize("by", ["series", "past_mean"])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_padding_before_the_first_row_changes_no_forecast(variant, by):
    """One window starts before a series' first row, the other exactly at it: same steps, same forecasts."""
    network, windows, assemble = sample_network(VARIANTS[variant]), sample_windows(), assembler(by=by)
    first = sample_panel().first_step[windows.series]
    padding = first - (windows.start - WINDOW.history)
    begins_inside = np.flatnonzero(padding > 0)
    windows, first, padding = (each.take(begins_inside) for each in (windows, first, padding))
    padded, unpadded = (assemble(each) for each in (windows, starting_at(windows, first)))
    assert set(padding) >= {1, 2, 5, 9}
    assert unpadded.begun.all()
    assert len(unpadded.global_number) == len(windows), "not on shared dates any more"
    one, other = network(padded), network(unpadded)
    for b, num_padded in enumerate(padding):
        assert distance(one[b, :, num_padded:], other[b, :, : NUM_STEPS - num_padded]) <= 1e-5


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("mqt")])
@torch.no_grad()
def test_where_a_long_enough_window_starts_changes_no_forecast(variant):
    """Beyond what convolutions, look-back and earlier forecasts reach, nothing counts."""
    config = VARIANTS[variant].replace(encoder_dilations=(1, 2), lookback=2)
    reached = 3 + 2 + max(HORIZON - 1, 2) + (2 if config.research.encoder_attention else 0)
    network, windows, assemble = sample_network(config), sample_windows(), assembler()
    moved_by = NUM_STEPS - reached - 2
    early, late = (network(assemble(replace(windows, start=windows.start + by))) for by in (0, moved_by))
    assert distance(late[:, :, reached : NUM_STEPS - moved_by], early[:, :, reached + moved_by :]) <= 1e-5
    assert distance(late[:, :, :1], early[:, :, moved_by : moved_by + 1]) > 1e-3, "the first ones lack their history"


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_what_stands_in_the_padding_is_never_read(variant):
    batch, network = sample_batch(), sample_network(VARIANTS[variant])
    unborn = ~batch.begun[:, :NUM_STEPS]
    junk = {name: getattr(batch, name).clone() for name in ("values", "loc", "scale", "past_number", "observed")}
    for name, x in junk.items():
        part = x[:, :NUM_STEPS]
        part[unborn] = True if name == "observed" else 77.0
    before, after = network(batch), network(replace(batch, **junk))
    begun = batch.begun[:, None, :NUM_STEPS, None]
    assert torch.equal(before.where(begun, 0), after.where(begun, 0))


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_a_calendar_that_all_share_is_the_same_as_one_for_each(variant):
    batch, network = sample_batch(), sample_network(VARIANTS[variant])
    assert len(batch.global_number) == len(batch.global_category) == 1
    expanded = replace(
        batch,
        global_number=batch.global_number.expand(len(batch.series), -1, -1).clone(),
        global_category=batch.global_category.expand(len(batch.series), -1, -1).clone(),
    )
    assert distance(network(expanded), network(batch)) <= 1e-5


@torch.no_grad()
def test_series_with_calendars_of_their_own_each_see_their_own():
    """Windows of one batch on different dates, against each of them alone."""
    config = WINDOW.replace(aligned=False, batch_size=6)
    windows, assemble = WindowPlan(sample_panel(), config).batch(0, 0), assembler(config)
    assert len(set(windows.start)) > 1
    for variant, settings in VARIANTS.items():
        network = sample_network(settings)
        together = network(assemble(windows))
        for b in range(len(windows)):
            assert distance(network(assemble(windows.take(np.array([b])))), together[b : b + 1]) <= 1e-5, variant
