"""The decoder's cells, and sums over the past whose weights separate, against loops."""

import numpy as np
import pytest
import torch

from mqcast.nn.alignment import Logits, aligned_sums
from mqcast.nn.grid import Grid, slid, slid_sum

SHAPES = [(7, 3), (3, 7), (5, 5), (4, 1), (1, 4), (1, 1), (30, 24)]


@pytest.mark.parametrize(("p", "q"), SHAPES)
def test_sliding_sums_are_sums_over_diagonals(p, q):
    cells = torch.randn(2, p, q, 3, dtype=torch.float64)
    total = torch.zeros(2, p + q - 1, 3, dtype=torch.float64)
    for i, j in np.ndindex(p, q):
        total[:, i + j] += cells[:, i, j]
    assert torch.allclose(slid_sum(cells), total, atol=1e-12)
    assert torch.equal(slid(total, q)[:, p - 1, q - 1], total[:, -1])


def test_cells_by_target_are_the_forecasts_of_a_target_in_the_order_in_which_they_were_made():
    grid = Grid(horizon=4, num_fcts=6, by_target=True)
    cells = torch.randn(2, *grid.shape, 3)
    forecasts = grid.forecasts(cells)
    assert forecasts.shape == (2, 4, 6, 3)
    for t, h in np.ndindex(6, 4):  # the first three creation times are those before the wanted ones
        made, j = t + 3, 3 - h
        assert torch.equal(forecasts[:, h, t], cells[:, made - j, j])


@pytest.mark.parametrize("missing", [0, 2])
@pytest.mark.parametrize("by_target", [False, True])
def test_a_linear_map_on_a_grid_is_a_sum_of_its_parts_in_each_cell(by_target, missing):
    grid, d = Grid(horizon=3, num_fcts=5, by_target=by_target), 4
    num_made = grid.num_made - missing * by_target
    now, ahead = torch.randn(2, num_made, d), torch.randn(1, 7, d)
    own, weight = torch.randn(2, *grid.shape, 6), torch.randn(d, 6)
    found = grid.forecasts(grid.linear(now, ahead, (own,), (weight,)))
    at = grid.forecasts(own)
    for t, h in np.ndindex(5, 3):
        before = now[:, num_made - 5 + t]
        assert torch.allclose(found[:, h, t], before + ahead[:, t + h] + at[:, h, t] @ weight.T, atol=1e-5)


@pytest.mark.parametrize("size", [1.0, 30.0, 3000.0])
@pytest.mark.parametrize("by_target", [False, True])
def test_weights_that_separate_are_those_of_a_softmax_however_large_the_logits(size, by_target):
    torch.manual_seed(0)
    horizon, num_fcts, num_steps, lookback, a = 3, 6, 14, 4, 5
    grid = Grid(horizon, num_fcts, by_target)
    num_made = grid.num_made
    now = (size * torch.randn(2, num_made, a)).requires_grad_()
    ahead = (size * torch.randn(2, num_made + horizon - 1, a)).requires_grad_()
    key, value = torch.randn(2, num_steps, a, requires_grad=True), torch.randn(2, num_steps, 4, requires_grad=True)
    begun = torch.arange(num_steps) >= torch.tensor([[0], [9]])
    inputs = (now, ahead, key, value)
    found = grid.forecasts(aligned_sums(Logits(now, ahead, key, begun, lookback), value, grid))
    expected = torch.zeros_like(found)
    for b, t, h in np.ndindex(2, num_fcts, horizon):
        step, made = num_steps - num_fcts + t, num_made - num_fcts + t
        sources = [s for s in range(step - lookback, step + 1) if begun[b, s] or s == step]
        query = now[b, made] + ahead[b, made + h]
        weights = (key[b, sources] @ query).softmax(0)
        expected[b, h, t] = weights @ value[b, sources]
    assert torch.allclose(found, expected, atol=1e-4)
    direction = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, inputs, direction), torch.autograd.grad(expected, inputs, direction), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
