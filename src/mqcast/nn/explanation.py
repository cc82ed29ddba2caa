"""Attention weights as a person reads them: which dates, and which earlier forecasts, a forecast rests on."""

from dataclasses import dataclass

import polars as pl
from jaxtyping import Float, Int
from torch import Tensor

from mqcast.data.panel import Panel


@dataclass(frozen=True)
class Explanation:
    """Attention weights of each forecast over the steps of its window; those of one forecast sum to 1.

    `history`: how much each past step counts in the context of a horizon. `feedback`: how much each earlier creation
    time's forecast counts (of the same target; for MQT-All its forecasts of all horizons); None without that block.
    Step s of window b is step `start[b] + s` of series `series[b]`; the creation times are the last ones.
    """

    history: Float[Tensor, "batch horizon fct source"]
    feedback: Float[Tensor, "batch horizon fct source"] | None
    series: Int[Tensor, " batch"]
    start: Int[Tensor, " batch"]

    def frame(self, panel: Panel, above: float = 0.0) -> pl.DataFrame:
        """A row for each weight above a bound: id, cutoff, target date, horizon, block, date looked at, weight."""
        tables = [self._table(panel, "history", self.history, above)]
        if self.feedback is not None:
            tables.append(self._table(panel, "feedback", self.feedback, above))
        return pl.concat(tables)

    def _table(self, panel: Panel, block: str, weights: Tensor, above: float) -> pl.DataFrame:
        _, horizon, num_fcts, num_steps = weights.shape
        series, start = self.series.cpu().numpy(), self.start.cpu().numpy()
        times = panel.times_at(series, start, num_steps + horizon)
        weights = weights.cpu()
        kept = (weights > above).nonzero(as_tuple=True)
        b, h, fct, source = (axis.numpy() for axis in kept)
        t = fct + num_steps - num_fcts
        columns = {
            panel.schema.id: pl.Series(panel.ids.take(series[b])),
            "cutoff": panel.axis.dates(times[b, t]),
            panel.schema.time: panel.axis.dates(times[b, t + h + 1]),
            "horizon": h + 1,
            "block": pl.repeat(block, len(b), eager=True),
            "looked_at": panel.axis.dates(times[b, source]),
            "weight": weights[kept].numpy(),
        }
        return pl.DataFrame(columns)
