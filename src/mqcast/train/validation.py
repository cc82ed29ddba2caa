"""The validation loss on the scale of training, and in units of demand."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from mqcast.data.batch import Assembler, Batch
from mqcast.data.windows import WindowPlan
from mqcast.levels import percentile, pinball
from mqcast.nn.loss import quantile_loss
from mqcast.nn.members import AnyNetwork
from mqcast.nn.networks import evaluating
from mqcast.train.distributed import Ranks


@torch.no_grad()
def validate(
    network: AnyNetwork,
    weights: Mapping[str, Tensor],
    plan: WindowPlan,
    assemble: Assembler,
    micro_batch: int,
    ranks: Ranks,
) -> tuple[float, dict[str, float]]:
    """The mean loss on the validation span, and 2·Σ loss / Σ |demand| by level, in units of demand."""
    levels, num_steps = network.levels, plan.num_batches(0)
    table = torch.zeros(num_steps, 3 + len(levels), dtype=torch.float64)  # loss, terms, |demand|, loss by level
    with evaluating(network):
        for step in ranks.share(num_steps):
            for leaf in plan.batch(0, step).split(micro_batch):
                batch = assemble(leaf).to(ranks.device)
                n, spans = batch.num_fcts, network.config.spans
                forecasts = torch.func.functional_call(network, dict(weights), (batch, n), {"spans": True})
                loss = quantile_loss(forecasts, batch.targets(n, spans), batch.is_scored(n, spans), levels)
                of_horizons = forecasts[:, : network.horizon]
                in_units = _in_units(batch, of_horizons, np.array(network.config.quantiles))
                table[step] += torch.cat((torch.stack(loss).cpu().double(), in_units))
    loss, count, demand, *by_level = ranks.add(table).cpu().sum(dim=0).tolist()
    names = [percentile(level) for level in network.config.quantiles] if demand else []
    return loss / max(count, 1), {name: 2 * x / demand for name, x in zip(names, by_level, strict=False)}


def _in_units(batch: Batch, forecasts: Tensor, levels: np.ndarray) -> Tensor:
    """Σ |demand| and the summed loss of each level, in units of demand."""
    n = batch.num_fcts
    scored = batch.is_scored(n).cpu().numpy()
    both = batch.unscaled(torch.cat((batch.targets(n)[..., None], forecasts), dim=-1))
    values = np.where(scored[..., None], both, 0)
    losses = pinball(values[..., :1], values[..., 1:], levels).sum(axis=(0, 1, 2))
    return torch.from_numpy(np.append(np.abs(values[..., 0]).sum(), losses))
