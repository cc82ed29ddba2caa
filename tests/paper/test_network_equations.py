"""Whole networks against the paper's sums."""

import numpy as np
import pytest
import torch
from strategies import Setting, assert_same, for_all_settings

from mqcast.data.batch import Batch
from mqcast.nn import alignment, attention, reference
from mqcast.nn.networks import Network
from mqcast.nn.reference import Forecasts


def by_reference(setting: Setting, network: Network, batch: Batch) -> tuple[list[Forecasts], np.ndarray, np.ndarray]:
    """Every series' forecasts, their quantiles as a table (B, H, T, Q), and where there are any."""
    random = setting.random()
    each = [reference.forecast(network, batch, b, random) for b in range(len(setting.starts))]
    (table,) = setting.at_fcts([(forecasts.quantiles,) for forecasts in each])
    begun = np.broadcast_to(setting.begun[:, None, setting.fcts], table.shape[:3])
    return each, table, begun


def check(setting: Setting) -> None:
    network = setting.network()
    batch = setting.batch(network.reach)
    _, table, begun = by_reference(setting, network, batch)
    with torch.no_grad():
        fast = network(batch, len(setting.fcts))
    assert_same(fast, table, begun)


@pytest.mark.parametrize("encoder_attention", [False, True])
@pytest.mark.parametrize("block", ["bare", "residual"])
@pytest.mark.parametrize("feedback_heads", ["shared", "per_horizon"])
@for_all_settings(max_examples=8)
def test_mqtransformer_is_the_sums_of_the_paper(setting, feedback_heads, block, encoder_attention):
    check(setting.but(model="mqt", feedback_heads=feedback_heads, block=block, encoder_attention=encoder_attention))


@pytest.mark.parametrize("model", ["mqt-nods", "mqt-all", "mqcnn", "mqrnn"])
@for_all_settings(max_examples=25)
def test_ablations_and_baselines_are_their_sums_too(setting, model):
    check(setting.but(model=model))


@pytest.mark.parametrize("model", ["mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn"])
@for_all_settings(max_examples=8)
def test_quantiles_of_spans_are_the_plain_sums_too(setting, model):
    horizon = setting.horizon
    spans = tuple(dict.fromkeys(((1, horizon), (horizon, horizon), (1, 1), (min(2, horizon), horizon))))
    setting = setting.but(model=model, spans=spans, quantiles=(0.1, 0.5, 0.9))
    network = setting.network()
    batch = setting.batch(network.reach)
    each, table, begun = by_reference(setting, network, batch)
    (of_spans,) = setting.at_fcts([(forecasts.spans,) for forecasts in each])
    with torch.no_grad():
        fast = network(batch, len(setting.fcts), spans=True)
    assert_same(fast[:, :horizon], table, begun)
    assert_same(fast[:, horizon:], of_spans, np.broadcast_to(begun[:, :1], of_spans.shape[:3]))
    assert (fast[:, horizon:].diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("model", ["mqt", "mqt-nods", "mqt-all"])
@for_all_settings(max_examples=5)
def test_an_explanation_shows_the_weights_of_the_paper(setting, model):
    setting = setting.but(model=model)
    network = setting.network()
    batch = setting.batch(network.reach)
    explanation = network.explain(batch, len(setting.fcts))
    each, _, begun = by_reference(setting, network, batch)

    def weights_of(block: str) -> np.ndarray:
        return setting.at_fcts([(getattr(forecasts, block),) for forecasts in each])[0]

    assert_same(explanation.history, weights_of("history"), begun)
    if model == "mqt-nods":
        assert explanation.feedback is None
    else:
        assert_same(explanation.feedback, weights_of("feedback"), begun)


@pytest.mark.parametrize(("chunk", "recompute"), [(1, False), (40, True)])
@pytest.mark.parametrize("model", ["mqt", "mqt-all"])
@for_all_settings(max_examples=3)
def test_chunks_and_recomputed_weights_are_the_same_sums(setting, model, chunk, recompute):
    setting = setting.but(model=model, encoder_attention=True)
    network = setting.network()
    batch = setting.batch(network.reach)
    _, table, begun = by_reference(setting, network, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "CHUNK_WEIGHTS", chunk)
        patch.setattr(alignment, "CHUNK", chunk)
        if recompute:
            patch.setattr(attention, "KEPT_WEIGHTS", 0)
        assert_same(network(batch, len(setting.fcts)), table, begun)
