"""The learning objective: the quantile loss summed over creation times, horizons and quantiles."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mqcast.errors import ConfigError


def quantile_loss(
    forecasts: Float[Tensor, "batch horizon fct quantile"],
    targets: Float[Tensor, "batch horizon fct"],
    is_scored: Bool[Tensor, "batch horizon fct"],
    levels: Float[Tensor, " quantile"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Σ_t Σ_q Σ_k L_q(y_{t+k}, ŷ_{t+k}^{(q)}) where scored, and how many terms it has.

    L_q(y, ŷ) = q·(y−ŷ)₊ + (1−q)·(ŷ−y)₊. Plain form: `reference.decoder.quantile_loss`.
    """
    if forecasts.shape[:-1] != targets.shape or targets.shape != is_scored.shape:
        shapes = " and ".join(str(tuple(x.shape)) for x in (forecasts, targets, is_scored))
        raise ConfigError(
            f"forecasts, targets and is_scored have shapes {shapes}; take all for the same creation times: "
            "network(batch, n), batch.targets(n), batch.is_scored(n)"
        )
    error = torch.where(is_scored, targets, 0.0)[..., None] - torch.where(is_scored[..., None], forecasts, 0.0)
    total = torch.maximum(levels * error, (levels - 1) * error).sum()
    return total, num_terms(is_scored, levels)


def num_terms(is_scored: Bool[Tensor, "batch horizon fct"], levels: Float[Tensor, " quantile"]) -> Float[Tensor, ""]:
    return (is_scored.sum() * len(levels)).to(levels.dtype)
