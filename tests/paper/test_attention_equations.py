"""The attention blocks against the paper's tab:eqn and tab:naive-decoderself, from random inputs.

What the networks leave out of the keys because it cancels is in the reference, with random weights.
"""

import numpy as np
import pytest
import torch
from strategies import Setting, assert_same, for_all_settings

from mqcast.nn.attention import Maps
from mqcast.nn.grid import Grid
from mqcast.nn.reference import attention as reference
from mqcast.nn.reference.series import Encoded
from mqcast.nn.reference.vectors import looks_at


def by_target(grid: Grid, cells: np.ndarray) -> torch.Tensor:
    """(B, H, T, ·) as the cells of a grid by target: [u, j] is horizon H − 1 − j, made at t = u + j."""
    batch, horizon, num_made, width = cells.shape
    placed = np.zeros((batch, *grid.shape, width))
    for t, h in np.ndindex(num_made, horizon):
        made, j = grid.num_made - num_made + t, horizon - 1 - h
        if made >= j:
            placed[:, made - j, j] = cells[:, h, t]
    return torch.from_numpy(placed)


@pytest.mark.parametrize("by_target", [False, True])
@pytest.mark.parametrize("block", ["bare", "residual"])
@for_all_settings(max_examples=10)
def test_horizon_specific_attention_is_a_sum_over_the_lookback(setting, block, by_target):
    setting = setting.but(model="mqt-nods", block=block)
    network, config, maps = setting.network(), setting.config, Maps()
    inputs = setting.decoder_inputs(network)
    contexts, grid = network.contexts, Grid(setting.horizon, len(setting.fcts), by_target)
    fast = contexts.cell(inputs, grid, maps)
    mapped = contexts.cell(inputs, grid, None, contexts.block.map)
    fast_block = grid.forecasts(contexts.block(mapped, inputs, (), grid))
    each = []
    for b in range(len(setting.starts)):
        series = Encoded.of(inputs, b)
        c, weights = reference.horizon_attention(contexts.cell, config, series, setting.random())
        each.append((c, weights, reference.block(contexts.block, series, c)))
    attended, weights, block = setting.at_fcts(each)
    assert_same(grid.forecasts(fast), attended)
    assert_same(maps.history[:, :, -len(setting.fcts) :], weights)
    assert_same(fast_block, block)


def check_feedback(setting: Setting, plain) -> None:
    """An attention over earlier forecasts, from random contexts of all creation times that have to be there."""
    network, config, maps = setting.network(), setting.config, Maps()
    inputs = setting.decoder_inputs(network)
    before = setting.horizon - 1 if config.model == "mqt" else config.lookback
    num_contexts = min(len(setting.fcts) + before, setting.num_steps)
    first = setting.num_steps - num_contexts
    context = setting.normal(7, len(setting.starts), setting.horizon, num_contexts, network.contexts.dims[0])
    grid = Grid(setting.horizon, len(setting.fcts), by_target=config.model == "mqt")
    given = by_target(grid, context.numpy()) if grid.by_target else context
    fast = network.feedback(given, inputs, grid, maps)
    own = (given if grid.by_target else context[:, :, num_contexts - len(setting.fcts) :],)
    mapped = network.feedback(given, inputs, grid, None, network.feedback_block.map)
    fast_block = grid.forecasts(network.feedback_block(mapped, inputs, own, grid))
    each = []
    for b, known in enumerate(context.numpy()):
        series = Encoded.of(inputs, b)
        c = np.pad(known, ((0, 0), (first, 0), (0, 0)), constant_values=np.nan)
        attended, weights = plain(network.feedback, config, series, c, setting.random())
        each.append((attended, weights, reference.block(network.feedback_block, series, attended, c)))
    attended, weights, block = setting.at_fcts(each)
    assert_same(grid.forecasts(fast), attended)
    assert_same(maps.feedback, weights)
    assert_same(fast_block, block)


@pytest.mark.parametrize("block", ["bare", "residual"])
@pytest.mark.parametrize("feedback_heads", ["shared", "per_horizon"])
@for_all_settings(max_examples=20)
def test_decoder_self_attention_is_a_sum_over_forecasts_of_the_same_target(setting, feedback_heads, block):
    check_feedback(setting.but(model="mqt", feedback_heads=feedback_heads, block=block), reference.feedback_attention)


@pytest.mark.parametrize("block", ["bare", "residual"])
@for_all_settings(max_examples=20)
def test_mqt_all_is_a_sum_over_all_contexts_of_the_lookback(setting, block):
    check_feedback(setting.but(model="mqt-all", block=block), reference.all_contexts_attention)


def test_the_index_sets_are_the_papers():
    """H(t,h) of tab:eqn and s = t−L … t, counted by hand: T = 4, H = 3, L = 2."""
    begun, late = [True] * 4, [False, True, True, True]
    assert reference.forecasts_of(3 + 1, 3, 3, begun) == [(1, 3), (2, 2), (3, 1)]
    assert reference.forecasts_of(3 + 2, 3, 3, begun) == [(2, 3), (3, 2)]
    assert reference.forecasts_of(3 + 3, 3, 3, begun) == [(3, 3)]
    assert reference.forecasts_of(1 + 1, 1, 3, begun) == [(0, 2), (1, 1)]
    assert reference.forecasts_of(1 + 1, 1, 3, late) == [(1, 1)]
    assert looks_at(3, 2, begun) == [1, 2, 3]
    assert looks_at(1, 2, begun) == [0, 1]
    assert looks_at(1, 2, late) == [1]
    assert looks_at(0, 2, late) == [0]
