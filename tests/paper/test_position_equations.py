"""Position encodings against the paper's section on learning them from event indicators."""

import numpy as np
import pytest
import torch
from strategies import CONFIG, NO_EVENTS, NO_KNOWN, Setting, assert_same, for_all_settings, randomise

from mqcast.data.inputs import Inputs
from mqcast.nn.layers import CategoryLinear
from mqcast.nn.position import LearnedPosition, RawPosition, doubling_dilations
from mqcast.nn.reference import position as reference
from mqcast.nn.reference.series import Series
from mqcast.nn.reference.vectors import category_dense
from mqcast.settings import ModelConfig


@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 4), (2, 1, 3)])
def test_a_category_is_one_hot_and_goes_through_a_dense_layer(sizes):
    layer = CategoryLinear(sizes, 4)
    randomise(layer, 0)
    codes = torch.stack([torch.arange(6).remainder(size) for size in sizes], dim=-1).reshape(2, 3, len(sizes))
    fast = layer(codes)
    for b, u in np.ndindex(2, 3):
        assert_same(fast[b, u], category_dense(layer, sizes, codes[b, u].tolist()))


def encoded(setting: Setting, kind: type) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], list[Series]]:
    """A position encoding, what it gives, and the series that it was given."""
    encoding = kind(setting.config, setting.inputs, setting.horizon).eval()
    randomise(encoding, setting.seed)
    batch = setting.batch(encoding.reach)
    return encoding, encoding(batch), [Series(batch, b) for b in range(len(setting.starts))]


def check(setting: Setting, parts: tuple[torch.Tensor, ...], each: list[np.ndarray]) -> None:
    """The parts, put together, are every series' own r_u."""
    size, span = len(setting.starts), setting.num_steps + setting.horizon
    fast = torch.cat([torch.zeros(size, span, 0), *(part.expand(size, -1, -1) for part in parts)], dim=-1)
    assert_same(fast, np.stack(each))


@for_all_settings(max_examples=30)
def test_global_positions_are_convolutions_that_look_both_ways(setting):
    setting = setting.given(**NO_KNOWN)
    encoding, parts, each = encoded(setting, LearnedPosition)
    config, inputs, horizon = setting.config, setting.inputs, setting.horizon
    r = [reference.global_position(encoding, config, inputs, horizon, series) for series in each]
    check(setting, parts, r)
    check(setting, encoding.normed(parts), [reference.normed(config, part) for part in r])
    assert all(len(part) == (1 if setting.shared_calendar else len(each)) for part in parts)


@for_all_settings(max_examples=30)
def test_local_positions_are_a_dense_layer_at_each_step(setting):
    setting = setting.given(**NO_EVENTS)
    encoding, parts, each = encoded(setting, LearnedPosition)
    r = [reference.local_position(encoding, setting.inputs, setting.horizon, series) for series in each]
    check(setting, parts, r)
    check(setting, encoding.normed(parts), [reference.normed(setting.config, part) for part in r])


@for_all_settings(max_examples=40)
def test_raw_positions_are_covariates_and_linear_distances_to_events(setting):
    encoding, parts, each = encoded(setting, RawPosition)
    inputs, horizon = setting.inputs, setting.horizon
    check(setting, parts, [reference.raw_position(encoding, inputs, horizon, series) for series in each])


@pytest.mark.parametrize(
    ("horizon", "dilations"),
    [(1, ()), (2, (1,)), (24, (1, 2, 4, 8, 8)), (5, (1, 1, 2)), (30, (1, 2, 4, 8, 14)), (52, (1, 2, 4, 8, 16, 20))],
)
def test_dilations_left_out_are_those_that_the_paper_lists(horizon, dilations):
    assert doubling_dilations(horizon - 1) == dilations
    assert tuple(reference.position_dilations(CONFIG.replace(position_dilations=None), horizon)) == dilations


@pytest.mark.parametrize("dilations", [(), (1,), (1, 2)])
def test_a_learned_matrix_of_positions_is_a_special_case(dilations):
    """With x^g = [e_1, …, e_L], r^g_t is row t of M: its positive part, and its negative part beside it.

    ReLU lets both parts pass, and their difference, which any linear map of r^g can take, is M_t: to the last bit.
    """
    num_steps, horizon, width = 5, 3, 4
    length = num_steps + horizon
    M = torch.randn(length, width, generator=torch.Generator().manual_seed(0))
    setting = Setting(
        num_steps=num_steps,
        horizon=horizon,
        config=ModelConfig(hidden_dim=2 * width, position_dilations=dilations, position_norm=False),
        inputs=Inputs(global_numbers=length),
    )
    encoding, _, _ = encoded(setting, LearnedPosition)
    batch = setting.batch(encoding.reach)
    window = slice(encoding.reach, encoding.reach + length)
    batch.global_number[0, window] = torch.eye(length)  # what is before and after it stays random

    with torch.no_grad():
        for i, convolution in enumerate(encoding.convolutions):
            now = torch.cat((M, -M), dim=1).T if i == 0 else torch.eye(2 * width)
            nothing = torch.zeros_like(now)
            convolution.linear.weight.copy_(torch.cat((nothing, now, nothing) if dilations else (now,)))
            convolution.bias.zero_()
    (r_global,) = encoding(batch)
    positive, negative = r_global[0].split(width, dim=-1)
    assert torch.equal(positive - negative, M)
    assert torch.equal(positive, M.clamp(min=0))
