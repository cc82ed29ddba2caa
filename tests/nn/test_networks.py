"""Networks as a whole: what they are built from, what they refuse, and the loss they learn by."""

import copy
import datetime as dt
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from model_samples import (
    FIRST,
    HORIZON,
    MODELS,
    NUM_DAYS,
    NUM_STEPS,
    SMALL,
    VARIANTS,
    WINDOW,
    as_double,
    assembler,
    cut,
    distance,
    frames,
    sample_batch,
    sample_network,
    sample_panel,
    sample_windows,
)

from mqcast import Panel, Schema
from mqcast.data.batch import Assembler
from mqcast.data.inputs import Inputs
from mqcast.data.windows import WindowPlan
from mqcast.errors import ConfigError, UnseenCategoryWarning
from mqcast.nn import reference
from mqcast.nn.attention import Maps
from mqcast.nn.layers import CategoryLinear, Embeddings
from mqcast.nn.loss import quantile_loss
from mqcast.nn.networks import Network
from mqcast.nn.position import doubling_dilations, nearness
from mqcast.settings import ScalingConfig, WindowConfig


def test_inputs_are_as_wide_as_a_panels_batches():
    panel, batch = sample_panel(), sample_batch(4)
    num_holidays = len(panel.holidays)
    assert num_holidays >= 2
    assert Inputs.of(panel) == Inputs(
        past_numbers=1,  # visits
        past_categories=(4,),  # sun, rain, snow, unknown
        known_numbers=2,  # price, promo
        known_flags=(1,),
        known_categories=(4,),
        global_numbers=num_holidays + 4 + 2,  # holidays, waves of the year, heat, fair
        global_flags=(*range(num_holidays), num_holidays + 5),
        calendar=(7,),
        event_categories=(3,),
        static_numbers=1,
        static_categories=(4,),
    )
    inputs = Inputs.of(panel)
    assert batch.past_number.shape[-1] == inputs.past_numbers
    assert batch.past_category.shape[-1] == len(inputs.past_categories)
    assert batch.known_number.shape[-1] == inputs.known_numbers
    assert batch.known_category.shape[-1] == len(inputs.known_categories)
    assert batch.global_number.shape[-1] == inputs.global_numbers
    assert batch.global_category.shape[-1] == len(inputs.calendar + inputs.event_categories)
    assert batch.static_number.shape[-1] == inputs.static_numbers
    assert batch.static_category.shape[-1] == len(inputs.static_categories)
    flags = batch.global_number[..., list(inputs.global_flags)]
    assert ((flags == 0) | (flags == 1)).all()


@pytest.mark.parametrize("model", MODELS)
def test_a_batch_of_another_horizon_is_refused(model):
    network = sample_network(SMALL.replace(model=model), horizon=HORIZON + 1)
    with pytest.raises(ConfigError, match="the network forecasts 5 steps, the batch has 4"):
        network(sample_batch(4))


@pytest.mark.parametrize("model", MODELS)
def test_too_little_calendar_is_refused_with_the_reach_that_is_needed(model):
    short = WINDOW.replace(reach=HORIZON - 2)
    batch = assembler(short)(sample_windows(short))
    network = sample_network(SMALL.replace(model=model))
    with pytest.raises(ConfigError, match=r"3 steps beyond both ends of a window, the batch has 2; .*\(reach=3\)"):
        network(batch)
    enough = short.replace(reach=network.reach)
    network(assembler(enough)(sample_windows(enough)))


def test_the_reach_is_that_of_the_convolutions():
    network = sample_network(SMALL.replace(position_dilations=(1, 2, 5)))
    assert network.reach == 8
    with pytest.raises(ConfigError, match=r"reach=8"):
        network(sample_batch(4))
    config = WINDOW.replace(reach=8)
    assert network(assembler(config)(sample_windows(config))).isfinite().all()
    assert sample_network(SMALL, horizon=52).reach == 51
    near = SMALL.replace(model="mqcnn", position_dilations=(1, 2))
    assert sample_network(near, horizon=52).reach == 3, "distances to events reach as far as learned positions would"
    assert sample_network(SMALL.replace(model="mqcnn"), horizon=52).reach == 51


@pytest.mark.parametrize("total", [0, 1, 2, 3, 4, 23, 29, 51])
def test_dilations_left_out_double_and_reach_the_horizon(total):
    dilations = doubling_dilations(total)
    assert sum(dilations) == total
    assert list(dilations) == sorted(dilations)
    assert all(later <= 2 * sooner for sooner, later in pairwise(dilations))


@pytest.mark.parametrize("num_fcts", [0, -1, NUM_STEPS + 1])
@pytest.mark.parametrize("verb", ["forward", "quantiles", "explain"])
def test_an_impossible_number_of_creation_times_is_refused(verb, num_fcts):
    with pytest.raises(ConfigError, match=rf"num_fcts is {num_fcts}; give one from 1 to the batch's 16 steps"):
        getattr(sample_network(SMALL), verb)(sample_batch(4), num_fcts)


@pytest.mark.parametrize("static_encoding", ["embedding", "one_hot"])
@pytest.mark.parametrize("model", ["mqt", "mqcnn"])
def test_unknown_categories_start_at_zero_and_calendar_categories_do_not(model, static_encoding):
    torch.manual_seed(0)
    network = Network(SMALL.replace(model=model, static_encoding=static_encoding), Inputs.of(sample_panel()), HORIZON)
    events, static = network.position.events.dense, network.encoder.static
    first_event = sum(network.inputs.calendar)
    zero = {events: [first_event]} | {
        table: [0] for table in (network.position.known.dense, network.encoder.past, static.embeddings, static.one_hot)
    }
    tables = [module for module in network.modules() if isinstance(module, CategoryLinear | Embeddings)]
    assert len(tables) == 4
    for table in tables:
        is_zero = ~table.weight.any(dim=1)
        assert is_zero.nonzero().flatten().tolist() == zero[table]


@torch.no_grad()
def test_an_item_of_a_city_never_seen_has_the_forecast_of_no_city_at_all():
    """A panel for a forecast, read like that of training: what is new adds nothing to what the others get."""
    frame, static, events = frames(num_series=8)
    moved = static.with_columns(city=pl.when(pl.col("city") == "Ulm").then(pl.lit("Atlantis")).otherwise("city"))
    with pytest.warns(UnseenCategoryWarning, match="city"):
        other = Panel.from_frame(frame, static=moved, events=events, like=sample_panel())
    fitted = assembler()
    assemble = Assembler(other, WINDOW, fitted.target.scaler, fitted.number, fitted.category)
    batch = assemble(sample_windows(panel=other))
    is_new = torch.tensor([city == "Atlantis" for city in moved["city"]])[batch.series]
    assert is_new.any()
    assert torch.equal(batch.static_category[:, 0] == 0, is_new | torch.tensor(moved["city"].is_null())[batch.series])
    for static_encoding in ("embedding", "one_hot"):
        torch.manual_seed(0)
        network = Network(SMALL.replace(static_encoding=static_encoding), Inputs.of(sample_panel()), HORIZON).eval()
        static_code = network.encoder.static(batch)[is_new]
        bare = copy.deepcopy(network.encoder.static)
        table = bare.embeddings or bare.one_hot
        table.weight.zero_()
        assert torch.equal(static_code, bare(batch)[is_new])
        assert not torch.equal(network.encoder.static(batch), bare(batch))


def test_the_loss_is_the_quantile_loss_of_the_scored_forecasts():
    rng = np.random.default_rng(0)
    levels = (0.1, 0.5, 0.9)
    forecasts, targets = rng.normal(size=(3, 4, 5, 3)), rng.normal(size=(3, 4, 5))
    is_scored = rng.random((3, 4, 5)) < 0.6
    total, count = 0.0, 0
    for b, h, t in zip(*np.nonzero(is_scored), strict=True):
        for q, level in enumerate(levels):
            over, under = forecasts[b, h, t, q] - targets[b, h, t], targets[b, h, t] - forecasts[b, h, t, q]
            total += level * max(under, 0) + (1 - level) * max(over, 0)
            count += 1
    arguments = (torch.from_numpy(x) for x in (forecasts, targets, is_scored, np.array(levels)))
    found, found_count = quantile_loss(*arguments)
    assert found.item() == pytest.approx(total, rel=1e-12)
    assert found_count.item() == count == 3 * is_scored.sum()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_scored_never_reaches_the_loss_or_its_gradient(bad):
    torch.manual_seed(0)
    levels = torch.tensor([0.5, 0.9])
    forecasts, targets, is_scored = torch.randn(2, 3, 4, 2), torch.randn(2, 3, 4), torch.rand(2, 3, 4) < 0.5
    expected, _ = quantile_loss(forecasts, targets, is_scored, levels)
    forecasts[~is_scored], targets[~is_scored] = bad, bad
    forecasts.requires_grad_()
    found, count = quantile_loss(forecasts, targets, is_scored, levels)
    assert found.item() == expected.item()
    assert count == 2 * is_scored.sum()
    found.backward()
    assert forecasts.grad is not None
    assert not forecasts.grad[~is_scored].any()
    assert forecasts.grad[is_scored].all()
    nothing, none = quantile_loss(forecasts, targets, torch.zeros_like(is_scored), levels)
    assert (nothing.item(), none.item()) == (0, 0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_seed_gives_the_same_weights_and_another_seed_others(variant):
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return Network(VARIANTS[variant], Inputs.of(sample_panel()), HORIZON).state_dict()

    one, again, other = weights(0), weights(0), weights(1)
    assert one.keys() == again.keys()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if one[name].any() and "norm" not in name)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_saved_weights_make_the_same_network(variant, tmp_path):
    network, other = (sample_network(VARIANTS[variant], seed) for seed in (0, 1))
    batch = sample_batch(4)
    assert not torch.equal(network(batch), other(batch))
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    assert network.state_dict().keys() == dict(network.named_parameters()).keys()
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(network(batch), other(batch))


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_double_precision_gives_the_same_forecasts_more_precisely(variant):
    network, batch = sample_network(VARIANTS[variant]), sample_batch(8)
    single = network(batch)
    double = network.double()(as_double(batch))
    assert double.dtype == torch.float64
    assert 0 < distance(single.double(), double) <= 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_a_window_of_one_step_of_one_series_is_enough(variant):
    network, batch = sample_network(VARIANTS[variant]), sample_batch(1)
    assert network(batch).shape == (1, HORIZON, NUM_STEPS, 2)
    assert batch.begun.all()
    first = cut(batch, 0, 1)
    assert network(first).shape == (1, HORIZON, 1, 2)
    assert distance(network(first), network(batch)[:, :, :1]) <= 1e-5
    assert network.quantiles(cut(sample_batch(), 0, 1)).values.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_one_step_ahead_is_a_horizon_too(variant):
    config = WINDOW.replace(horizon=1, reach=0)
    batch = assembler(config)(sample_windows(config))
    network = sample_network(VARIANTS[variant], horizon=1)
    assert network.reach == 0
    forecasts = network(batch)
    assert forecasts.shape == (len(batch.series), 1, NUM_STEPS, 2)
    assert forecasts.isfinite().all()
    for num_fcts in (1, 3):
        assert distance(network(batch, num_fcts), forecasts[:, :, -num_fcts:]) <= 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_network_needs_no_covariates_at_all(variant):
    frame, _, _ = frames(num_series=8)
    panel = Panel.from_frame(frame.select("unique_id", "ds", "y"), Schema(freq="D", calendar=()))
    inputs = Inputs.of(panel)
    assert inputs == Inputs()
    batch = assembler(panel=panel)(sample_windows(panel=panel))
    network = sample_network(VARIANTS[variant], inputs=inputs)
    forecasts = network(batch)
    assert forecasts.isfinite().all()
    total, _ = quantile_loss(forecasts, batch.targets(), batch.is_scored(), network.levels)
    total.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    with torch.no_grad():
        assert distance(network(batch, 2), forecasts[:, :, -2:]) <= 1e-5
    if network.config.variant.has_attention:
        network.explain(batch)


KINDS = {
    "static number": {"static": ("area",)},
    "static category": {"static": ("city",)},
    "past number": {"past": ("visits",)},
    "past category": {"past": ("weather",)},
    "known number": {"known": ("price",)},
    "known flag": {"known": ("promo",)},
    "known category": {"known": ("kind",)},
    "event flag": {"events": ("fair",)},
    "event category": {"events": ("show",)},
    "holidays": {"holidays": ("US",)},
    "calendar": {"calendar": ("day_of_week",)},
}


@pytest.mark.parametrize("static_encoding", ["embedding", "one_hot"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_any_one_kind_of_column_is_enough(kind, static_encoding):
    frame, static, events = frames(num_series=8)
    schema = Schema(**{"freq": "D", "calendar": ()} | KINDS[kind])
    panel = Panel.from_frame(frame, schema, static if schema.static else None, events if schema.events else None)
    batch = assembler(panel=panel)(sample_windows(panel=panel))
    for config in VARIANTS.values():
        network = sample_network(config.replace(static_encoding=static_encoding), inputs=Inputs.of(panel))
        assert network(batch).isfinite().all()


@torch.no_grad()
def test_distances_to_events_fall_linearly_and_end_at_the_reach():
    happens = torch.tensor([0, 1, 0, 0, 0, 0, 1, 1, 0], dtype=torch.bool)[None, :, None]
    expected = [0, 1, 2 / 3, 1 / 3, 0, 0, 1, 1, 2 / 3]
    torch.testing.assert_close(nearness(happens, reach=2, dtype=torch.float32).flatten(), torch.tensor(expected))


def test_the_last_cutoff_of_a_panel_can_be_forecast():
    """No target follows it, but the known columns, the events and the calendar do."""
    panel = sample_panel()
    config = WindowConfig(horizon=HORIZON, history=6, num_fcts=1)
    windows = WindowPlan(panel, config, shuffle=False).batch(0, 0)
    last = np.full(len(windows), (FIRST - dt.datetime(1970, 1, 1)).days + NUM_DAYS - 1)
    windows = replace(windows, start=last, first_fct=last, last_fct=last, last_target=last)
    batch = Assembler.fit(panel, config, ScalingConfig())(windows)
    assert not batch.observed[:, -HORIZON:].any()
    for variant, settings in VARIANTS.items():
        values = sample_network(settings).quantiles(batch, num_fcts=1).values
        assert values.shape == (len(windows), HORIZON, 1, 2), variant
        assert values.isfinite().all(), variant


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_empty_batch_gives_no_forecasts_and_gradients_of_zero(variant):
    windows = sample_windows().take(np.arange(0))
    assert len(windows) == 0
    batch, network = assembler()(windows), sample_network(VARIANTS[variant])
    forecasts = network(batch)
    assert forecasts.shape == (0, HORIZON, NUM_STEPS, 2)
    total, count = quantile_loss(forecasts, batch.targets(), batch.is_scored(), network.levels)
    assert (total.item(), count.item()) == (0, 0)
    total.backward()
    assert all(not parameter.grad.any() for parameter in network.parameters())


@pytest.mark.parametrize("name", VARIANTS)
def test_a_share_without_windows_gets_no_forecasts(name):
    batch = sample_batch(0)
    assert sample_network(VARIANTS[name])(batch).shape == (0, HORIZON, NUM_STEPS, 2)


def test_a_batch_with_other_columns_is_refused_by_name():
    inputs = Inputs.of(sample_panel())
    network = Network(SMALL, inputs.replace(known_numbers=inputs.known_numbers + 1), HORIZON)
    with pytest.raises(ConfigError, match="2 columns in known_number, the network was made for 3; build its panel"):
        network(sample_batch(2))


def test_a_horizon_below_one_is_refused():
    with pytest.raises(ConfigError, match="horizon is 0"):
        Network(SMALL, Inputs(), 0)


def test_targets_of_the_last_creation_times_are_those_of_all_cut():
    batch = sample_batch(3)
    assert torch.equal(batch.targets(2), batch.targets()[:, :, -2:])
    assert torch.equal(batch.is_scored(2), batch.is_scored()[:, :, -2:])


@pytest.mark.parametrize("model", ["mqt", "mqt-nods", "mqt-all", "mqcnn"])
def test_echoes_and_relative_numbers_go_where_the_plain_form_has_them(model):
    """Echoes reach the quantiles, but change neither positions nor where attention looks."""
    scaling = ScalingConfig(level_steps=5, echoes=(HORIZON, 7))
    assemble = Assembler.fit(sample_panel(), WINDOW, scaling)
    batch = assemble(sample_windows().take(np.arange(3)))
    network = sample_network(SMALL.replace(model=model), inputs=assemble.inputs)
    forecasts = network(batch)
    first = int((~batch.begun[1]).sum())
    plain = reference.forecast(network, batch, 1, np.random.default_rng(0)).quantiles
    np.testing.assert_allclose(forecasts[1, :, first:].detach().numpy(), plain[:, first:], rtol=1e-3, atol=1e-4)
    changed = replace(batch, known_number=batch.known_number.clone())
    changed.known_number[..., -4:] += 1.0
    assert not torch.equal(network(changed), forecasts)
    if model != "mqcnn":
        assert torch.equal(network.explain(changed).history, network.explain(batch).history)


def test_echoes_beside_a_calendar_that_all_series_share():
    """Without known columns only the echoes differ between series; the kernels agree with PyTorch."""
    rows = frames()[0].select("unique_id", "ds", "y")
    panel = Panel.from_frame(rows, Schema(freq="D"))
    assemble = Assembler.fit(panel, WINDOW, ScalingConfig(echoes=(HORIZON,)))
    batch = assemble(sample_windows(panel=panel).take(np.arange(4)))
    network = sample_network(SMALL.replace(hidden_dim=16, head_dim=8, context_dim=8), inputs=assemble.inputs)
    assert len(batch.global_number) == 1
    loss, _ = network.loss(batch, batch.num_fcts)
    parameters = list(network.parameters())
    gradient = torch.autograd.grad(loss, parameters, allow_unused=True)
    scores = batch.targets(batch.num_fcts), batch.is_scored(batch.num_fcts), network.levels
    plain, _ = quantile_loss(network(batch, batch.num_fcts, Maps()), *scores)
    torch.testing.assert_close(loss, plain, rtol=1e-4, atol=1e-4)
    for mine, other in zip(gradient, torch.autograd.grad(plain, parameters, allow_unused=True), strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
