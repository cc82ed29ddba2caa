"""The initial weights: with a plain start they are random throughout, and nothing is arranged by hand."""

import pytest
import torch
from model_samples import HORIZON, MODELS, SMALL, sample_panel

from mqcast.data.inputs import Inputs
from mqcast.nn.layers import CategoryLinear, Embeddings
from mqcast.nn.networks import Network

BARE = SMALL.replace(hidden_dim=16, horizon_code=False, position_norm=False)


def network(model: str, block: str, plain_start: bool) -> Network:
    config = BARE.replace(model=model, block=block, plain_start=plain_start)
    return Network.seeded(config, Inputs.of(sample_panel()), HORIZON, seed=0)


def matrices(network: Network) -> dict[str, torch.Tensor]:
    """All weights except those of unknown categories, which start at zero so that what was never seen adds nothing."""
    modules = dict(network.named_modules())
    return {
        name: weight.detach()
        for name, weight in network.named_parameters()
        if name.endswith(("weight", "key_HAK"))
        and weight.dim() > 1
        and not isinstance(modules[name.rpartition(".")[0]], CategoryLinear | Embeddings)
    }


@pytest.mark.parametrize("block", ["bare", "residual"])
@pytest.mark.parametrize("model", MODELS)
def test_a_plain_start_draws_every_weight_from_one_distribution_per_layer(model, block):
    for name, weight in matrices(network(model, block, plain_start=True)).items():
        assert weight.count_nonzero() == weight.numel(), name
        parts = weight.flatten(0, -2).chunk(3)
        spread = torch.tensor([part.std() / weight.std() for part in parts if part.numel() > 100])
        assert ((spread > 0.8) & (spread < 1.2)).all(), name


@pytest.mark.parametrize("model", MODELS)
def test_without_it_the_network_starts_as_arranged_by_hand(model):
    plain, arranged = (matrices(network(model, "residual", start)) for start in (True, False))
    changed = {name.split(".weight")[0] for name in plain if not torch.equal(plain[name], arranged[name])}
    by_hand = set() if model == "mqrnn" else {f"encoder.temporal.layers.{i}.linear" for i in range(3)}
    if model.startswith("mqt"):
        by_hand |= {f"position.convolutions.{i}.linear" for i in range(2)}
        by_hand |= {f"contexts.cell.{part}" for part in ("query.now", "query.ahead", "key", "value")}
        by_hand |= {"contexts.block.out"}
    if model in ("mqt", "mqt-all"):
        by_hand |= {"feedback_block.out", "local.hidden.own"}
    assert changed == by_hand


@pytest.mark.parametrize("model", ["mqt", "mqcnn"])
def test_flags_are_scaled_up_unless_the_start_is_plain(model):
    for plain_start, gain in ((True, 1.0), (False, 5.0)):
        position = network(model, "bare", plain_start).position
        inputs = Inputs.of(sample_panel())
        for part, flags in ((position.events, inputs.global_flags), (position.known, inputs.known_flags)):
            assert flags
            assert part.gain.tolist() == [gain if i in flags else 1.0 for i in range(len(part.gain))]
