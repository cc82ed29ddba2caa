"""The paper's equations spelled out: the plain form of every block, for reading and for tests.

One series at a time, in loops over creation times t = 0 … T−1 and horizons, with whole weight matrices and the
concatenated vectors of the paper. Nothing here calls a network; its parameters are read. In the order of the paper:
`position`, `encoder`, `attention`, `decoder`, then `forecast` below for the whole network. The axis h of an array is
0 … H−1, so the paper's horizon is h + 1 and the target is u = t + h + 1. What an equation does not define is NaN.

Terms that cancel in a softmax have no weights in the networks. Here they are put in with random weights, so that the
tests prove that they cancel.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mqcast.data.batch import Batch
from mqcast.nn import attention as fast_attention
from mqcast.nn import decoder as fast_decoder
from mqcast.nn.networks import Network
from mqcast.nn.reference.attention import all_contexts_attention, block, feedback_attention, horizon_attention
from mqcast.nn.reference.decoder import agnostic_context, dense_contexts, local_mlp, span_mlp
from mqcast.nn.reference.encoder import encode
from mqcast.nn.reference.position import positions
from mqcast.nn.reference.series import Series
from mqcast.nn.reference.vectors import Random

FEEDBACK = {
    fast_attention.FeedbackAttention: feedback_attention,
    fast_attention.AllContextsAttention: all_contexts_attention,
}


@dataclass(frozen=True)
class Forecasts:
    """The quantiles of one series, and the attention weights behind them; None for a block that is not there."""

    quantiles: Float[np.ndarray, "horizon time quantile"]
    history: Float[np.ndarray, "horizon time source"] | None = None
    feedback: Float[np.ndarray, "horizon time source"] | None = None
    spans: Float[np.ndarray, "span time quantile"] | None = None


def forecast(network: Network, batch: Batch, b: int, random: Random) -> Forecasts:
    """ŷ_{t+h} of series b at every creation time from its first row on: the paper's tab:mqt."""
    config, series = network.config, Series(batch, b)
    r, raw_r = positions(network, series)
    x = encode(network, series, r, raw_r, random)
    history = feedback = None
    if isinstance(network.contexts, fast_decoder.DenseContexts):
        c, c_agnostic = dense_contexts(network.contexts, x)
    else:
        attended, history = horizon_attention(network.contexts.cell, config, x, random)
        c = block(network.contexts.block, x, attended)
        c_agnostic = agnostic_context(network.contexts, config, x)
    own = [c]
    if network.feedback is not None and network.feedback_block is not None:
        attended, feedback = FEEDBACK[type(network.feedback)](network.feedback, config, x, c, random)
        own.append(block(network.feedback_block, x, attended, c))  # c̃
    quantiles, span = local_mlp(network.local, config, x, c_agnostic, *own), network.span
    spans = None if span is None else span_mlp(span, config, x, c_agnostic, quantiles, *own)
    return Forecasts(quantiles, history, feedback, spans)
