"""The decoder of MQTransformer and MQT-NoDS by the compiled kernels: the sums of `Network.forward`, cell after cell.

Every linear map of a concatenation is taken apart into what belongs to creation times, to targets, and to cells; the
first two are computed here, by torch, the last by the kernels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mqcast.nn.attention import Block, Codes, FeedbackAttention, SharedHeads
from mqcast.nn.decoder import AttentionContexts, LocalMLP
from mqcast.nn.grid import Grid
from mqcast.nn.kernels import COMPILED, LANES, Cells, aligned_contexts, can_take, status
from mqcast.nn.layers import Parts
from mqcast.settings import ModelConfig


def is_served(config: ModelConfig, *parts: Tensor) -> bool:
    """Do the kernels decode such a network, of such weights and data?"""
    return _is_of_their_kind(config) and can_take(parts)


def why_not_served(config: ModelConfig) -> str | None:
    """What keeps the kernels from a network of their kind on this machine's processor, if anything does."""
    return status() if _is_of_their_kind(config) and status() != COMPILED else None


def _is_of_their_kind(config: ModelConfig) -> bool:
    parts = config.research
    return (
        config.variant.has_attention
        and config.variant.feedback_reach == "horizon"
        and (parts.block, parts.feedback_heads, parts.horizon_code) == ("residual", "shared", True)
        and config.head_dim % LANES == config.context_dim % LANES == 0
    )


def cells(
    contexts: nn.Module,
    feedback: nn.Module | None,
    feedback_block: Block | None,
    local: LocalMLP,
    codes: Codes,
    grid: Grid,
) -> Cells:
    """What the kernels need, once h_t and r_u are known."""
    assert isinstance(contexts, AttentionContexts)
    assert local.horizon_read is not None
    assert local.horizon_code is not None
    m, block = min(grid.num_made, codes.num_steps), contexts.block
    now, ahead = codes.now(m), codes.ahead(grid.num_fcts)
    logits, value = contexts.cell.logits_and_values(codes, m, block.map)
    attended = aligned_contexts(
        logits.now_BTA, logits.ahead_BUA, logits.key_BSA, value, codes.begun, logits.lookback, grid.num_fcts
    )
    kept, kept_feedback = _kept(block, attended, grid), None
    agnostic = contexts.agnostic_context(codes, m)
    of_context, of_local = [], local.hidden.own_weights()
    parts = {"attended": attended, **_of_block("block", grid, block, now, ahead)}
    parts |= _of_steps("local", grid, *local.hidden.terms((agnostic,), codes.plain_ahead(grid.num_fcts)))
    if feedback_block is not None:
        assert isinstance(feedback, FeedbackAttention)
        heads = feedback.heads
        assert isinstance(heads, SharedHeads)
        assert feedback_block.residual is not None
        kept_feedback = _kept(feedback_block, attended, grid)
        of_query, of_key, (of_value, parts["value_shift"]) = heads.maps(feedback_block.map)
        of_context = [of_query, of_key, of_value, *feedback_block.residual.own_weights()]
        parts |= _of_block("again", grid, feedback_block, now, ahead)
        parts |= _of_steps("query", grid, *heads.query_terms(now, ahead))
        parts |= {"key_now": heads.key_now(codes, m).expand_as(parts["query_now"]), "of_feedback": of_local[1]}
    parts["read"] = F.linear(codes.hidden_now(m)[0], local.horizon_read.flatten(0, 1))
    parts |= {"code": local.horizon_code[:, 0], "of_context": torch.cat((*of_context, of_local[0]))}
    parts |= {"out": local.out.weight, "out_shift": local.out.bias}
    return Cells(codes.begun[:, -m:], kept, kept_feedback, local.fading, grid.num_fcts, parts)


def _of_steps(name: str, grid: Grid, now: Tensor, ahead: Tensor | None) -> dict[str, Tensor]:
    """What belongs to creation times, and what belongs to targets; zeros if nothing does."""
    if ahead is None:
        ahead = now.new_zeros(1, grid.num_fcts + grid.horizon - 1, now.shape[-1])
    return {f"{name}_now": now, f"{name}_ahead": ahead}


def _of_block(name: str, grid: Grid, block: Block, now: Parts, ahead: Parts) -> dict[str, Tensor]:
    """The residual connection, but for what it has of cells, and the layer norm."""
    assert block.residual is not None
    assert block.norm is not None
    norm = {f"{name}_gain": block.norm.weight, f"{name}_shift": block.norm.bias}
    return _of_steps(name, grid, *block.residual.terms(now, ahead)) | norm


def _kept(block: Block, attended: Tensor, grid: Grid) -> Tensor:
    """The block's dropout, by creation time; ones where nothing is dropped."""
    num_known, dropout = attended.shape[1], block.dropout
    if not dropout.training or not dropout.rate:
        return attended.new_ones(len(attended), num_known, attended.shape[-1])
    return dropout.kept(attended, len(attended), grid.num_made, attended.shape[-1])[:, -num_known:]
