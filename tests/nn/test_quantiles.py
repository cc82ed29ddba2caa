"""Published quantiles: in order, of any levels, and honest about what had to be put in order."""

from itertools import pairwise

import pytest
import torch
from model_samples import MODELS, NUM_STEPS, SMALL, sample_batch, sample_network

from mqcast.errors import ConfigError
from mqcast.nn.networks import Quantiles
from mqcast.settings import ModelConfig

FIVE = (0.05, 0.25, 0.5, 0.75, 0.95)


@pytest.mark.parametrize("head", ["free", "monotone"])
@pytest.mark.parametrize("levels", [(0.5,), (0.5, 0.9), FIVE])
@pytest.mark.parametrize("model", MODELS)
def test_published_quantiles_never_cross_whatever_the_weights(model, levels, head):
    batch = sample_batch(12)
    network = sample_network(SMALL.replace(model=model, quantiles=levels, head=head))
    published = network.quantiles(batch)
    assert published.values.shape == (12, batch.horizon, NUM_STEPS, len(levels))
    assert (published.values.diff(dim=-1) >= 0).all()
    assert published.crossed.shape == published.values.shape[:3]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_crossing_rate_is_that_of_the_raw_quantiles(seed):
    batch = sample_batch(12)
    network = sample_network(SMALL.replace(quantiles=FIVE), seed)
    with torch.no_grad():
        raw = network(batch)
    crossed = [any(lower > upper for lower, upper in pairwise(forecast)) for forecast in raw.flatten(0, 2).tolist()]
    published = network.quantiles(batch)
    assert 0 < sum(crossed) / len(crossed) == pytest.approx(published.crossing_rate())
    assert torch.equal(published.values, torch.tensor([sorted(f) for f in raw.flatten(0, 2).tolist()]).view_as(raw))
    assert torch.equal(published.crossed.flatten(), torch.tensor(crossed))


def test_a_monotone_head_never_has_anything_to_put_in_order():
    for seed in range(3):
        network = sample_network(SMALL.replace(quantiles=FIVE, head="monotone"), seed)
        with torch.no_grad():
            raw = network(sample_batch(12))
        published = network.quantiles(sample_batch(12))
        assert published.crossing_rate() == 0
        assert torch.equal(published.values, raw)
        assert published.values.diff(dim=-1).min() > 0, "softplus leaves room between levels"


def test_the_crossing_rate_can_be_that_of_some_forecasts_only():
    crossed = torch.tensor([[[True, True, False, False]]])
    quantiles = Quantiles(torch.zeros(1, 1, 4, 2), crossed)
    assert quantiles.crossing_rate() == 0.5
    assert quantiles.crossing_rate(where=crossed) == 1
    assert quantiles.crossing_rate(where=torch.tensor([[[True, False, True, True]]])) == pytest.approx(1 / 3)
    assert quantiles.crossing_rate(where=torch.zeros(1, 1, 4, dtype=torch.bool)) == 0


def test_equal_quantiles_do_not_cross():
    network = sample_network(SMALL.replace(quantiles=FIVE))
    with torch.no_grad():
        network.local.out.weight.zero_()
        network.local.out.bias.zero_()
    assert network.quantiles(sample_batch(4)).crossing_rate() == 0


@pytest.mark.parametrize(
    "levels", [(), (0.0, 0.5), (0.5, 1.0), (-0.1,), (0.9, 0.5), (0.5, 0.5), (float("nan"),), (50.0, 90.0)]
)
def test_impossible_levels_are_refused(levels):
    with pytest.raises(
        ConfigError, match=r"ModelConfig\.quantiles.*(between 0 and 1.*in strictly increasing order|a finite number)"
    ):
        ModelConfig(quantiles=levels)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("verb", ["quantiles", "explain"])
def test_publishing_and_explaining_leave_the_networks_mode_as_it_was(verb, is_training):
    network = sample_network(SMALL.replace(dropout=0.5)).train(is_training)
    getattr(network, verb)(sample_batch(4))
    assert {module.training for module in network.modules()} == {is_training}
    with pytest.raises(ConfigError):
        getattr(network, verb)(sample_batch(4), num_fcts=0)
    assert {module.training for module in network.modules()} == {is_training}, "also after an error"


def test_publishing_is_without_dropout_and_without_gradients():
    network = sample_network(SMALL.replace(dropout=0.5))
    batch = sample_batch(4)
    calm = network.quantiles(batch).values
    published = network.train().quantiles(batch).values
    assert torch.equal(published, calm)
    assert not published.requires_grad
    assert not torch.equal(network(batch).sort(dim=-1).values, calm), "training has dropout"


def test_dropout_is_the_same_for_all_horizons_of_a_creation_time():
    """Noise of its own in every horizon would be noise in revisions."""
    network = sample_network(SMALL.replace(dropout=0.5)).train()
    kept = []
    network.contexts.block.dropout.register_forward_hook(
        lambda _, given, out: kept.append(given[1].forecasts(out) != 0)
    )
    network(sample_batch(4))
    assert torch.equal(kept[0], kept[0][:, :1].expand_as(kept[0]))
    assert 0.3 < kept[0].float().mean() < 0.7
