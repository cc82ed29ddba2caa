"""The decoder of MQTransformer and MQT-NoDS, compiled: the equations of `Network.forward` by the kernels.

Every linear map of a concatenation is split into the terms of creation times, of targets and of cells. torch computes
the first two here; the kernels compute the last.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mqcast.nn.attention import Block, DecoderInputs, FeedbackAttention, SharedHeads
from mqcast.nn.decoder import AttentionContexts, LocalMLP
from mqcast.nn.grid import Grid
from mqcast.nn.kernels import DecoderCall, aligned_contexts
from mqcast.nn.layers import Parts


def kernel_supports(*parts: nn.Module | None) -> bool:
    """Do all these parts of a decoder have a compiled form? A part says so by `has_kernel`."""
    return all(getattr(part, "has_kernel", False) for part in parts if part is not None)


def decoder_call(
    contexts: nn.Module,
    feedback: nn.Module | None,
    feedback_block: Block | None,
    local: LocalMLP,
    inputs: DecoderInputs,
    grid: Grid,
) -> DecoderCall:
    """The kernels' arguments, for parts that they support."""
    assert isinstance(contexts, AttentionContexts)
    m, block = min(grid.num_made, inputs.num_steps), contexts.block
    now, ahead = inputs.now(m), inputs.ahead(grid.num_fcts)
    logits, value = contexts.cell.logits_and_values(inputs, m, block.map)
    attended = aligned_contexts(
        logits.now_BTA, logits.ahead_BUA, logits.key_BSA, value, inputs.begun, logits.lookback, grid.num_fcts
    )
    kept, kept_feedback = _kept(block, attended, grid), None
    num_read = m if torch.is_grad_enabled() else min(grid.num_fcts, m)  # m_L reads no more
    agnostic = contexts.agnostic_context(inputs, num_read)
    of_context, of_local = [], local.hidden.own_weights()
    parts = {"attended": attended, **_block_terms("block", grid, block, now, ahead)}
    parts |= _terms("local", grid, *local.hidden.terms((agnostic,), inputs.raw_position_ahead(grid.num_fcts)))
    if feedback_block is not None:
        assert isinstance(feedback, FeedbackAttention)
        heads = feedback.heads
        assert isinstance(heads, SharedHeads)
        residual = feedback_block.residual
        kept_feedback = _kept(feedback_block, attended, grid)
        of_query, of_key, (of_value, parts["value_shift"]) = heads.maps(feedback_block.map)
        of_context = [of_query, of_key, of_value, *(() if residual is None else residual.own_weights())]
        parts |= _block_terms("feedback_block", grid, feedback_block, now, ahead)
        parts |= _terms("query", grid, *heads.query_terms(now, ahead))
        parts |= {"key_now": heads.key_now(inputs, m).expand_as(parts["query_now"]), "of_feedback": of_local[1]}
    num_calendars = max(len(part) for name, part in parts.items() if name.endswith("_ahead"))
    parts |= {
        name: part.expand(num_calendars, -1, -1).contiguous() for name, part in parts.items() if name.endswith("_ahead")
    }
    if local.horizon_code is not None and local.horizon_read is not None:
        read = F.linear(inputs.hidden_now(m)[0], local.horizon_read.flatten(0, 1))
        parts |= {"read": read, "code": local.horizon_code[:, 0]}
    if local.of_precedents is not None:
        parts |= {"precedent": inputs.precedents_from(m), "of_precedent": local.of_precedents.T}
    if num_read < m:
        parts["local_now"] = F.pad(parts["local_now"], (0, 0, m - num_read, 0))
    parts |= {"of_context": torch.cat((*of_context, of_local[0])), "out": local.out.weight, "out_shift": local.out.bias}
    return DecoderCall(inputs.begun[:, -m:], kept, kept_feedback, local.fading, grid.num_fcts, parts)


def _terms(name: str, grid: Grid, now: Tensor, ahead: Tensor | None) -> dict[str, Tensor]:
    """The terms of creation times and those of targets; zeros if there are none of targets."""
    if ahead is None:
        ahead = now.new_zeros(1, grid.num_fcts + grid.horizon - 1, now.shape[-1])
    return {f"{name}_now": now, f"{name}_ahead": ahead}


def _block_terms(name: str, grid: Grid, block: Block, now: Parts, ahead: Parts) -> dict[str, Tensor]:
    """The terms of the residual connection, without those of cells, and the layer norm; none of a bare cell."""
    if block.residual is None or block.norm is None:
        return {}
    norm = {f"{name}_gain": block.norm.weight, f"{name}_shift": block.norm.bias}
    return _terms(name, grid, *block.residual.terms(now, ahead)) | norm


def _kept(block: Block, attended: Tensor, grid: Grid) -> Tensor:
    """The block's dropout as factors, by creation time."""
    num_known, dropout = attended.shape[1], block.dropout
    if not dropout.training or not dropout.rate:
        return attended.new_ones(len(attended), num_known, attended.shape[-1])
    return dropout.kept(attended, len(attended), grid.num_made, attended.shape[-1])[:, -num_known:]
