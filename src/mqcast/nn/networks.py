"""MQTransformer, its ablations MQT-NoDS and MQT-All, and its baselines MQ-CNN and MQ-RNN: one family, different parts.

| model    | position | encoder     | contexts (m_G)             | over earlier forecasts   |
|----------|----------|-------------|----------------------------|--------------------------|
| mqt      | learned  | convolution | horizon-specific attention | those of the same target |
| mqt-nods | learned  | convolution | horizon-specific attention | none                     |
| mqt-all  | learned  | convolution | horizon-specific attention | all                      |
| mqcnn    | raw      | convolution | dense layers               | none                     |
| mqrnn    | raw      | LSTM        | dense layers               | none                     |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mqcast.data.batch import Batch
from mqcast.errors import ConfigError
from mqcast.nn.attention import AllContextsAttention, Block, Codes, FeedbackAttention, Maps
from mqcast.nn.decoder import AttentionContexts, LocalMLP
from mqcast.nn.draws import drawing_from
from mqcast.nn.encoder import Encoder
from mqcast.nn.explanation import Explanation
from mqcast.nn.fused import cells, is_served
from mqcast.nn.grid import Grid
from mqcast.nn.inputs import Inputs
from mqcast.nn.kernels import Cells
from mqcast.nn.layers import Dropout
from mqcast.nn.loss import num_terms, quantile_loss
from mqcast.settings import ModelConfig


class Network(nn.Module):
    """Quantiles of every horizon from every creation time of a batch, in one pass (forking sequences)."""

    levels: Tensor

    def __init__(self, config: ModelConfig, inputs: Inputs, horizon: int):
        super().__init__()
        if horizon < 1:
            raise ConfigError(f"horizon is {horizon}; give the number of steps ahead, at least 1")
        self.config, self.inputs, self.horizon = config, inputs, horizon
        variant = config.variant
        self.position = variant.part("position")(config, inputs, horizon)
        r = self.position.dims
        self.encoder = Encoder(config, inputs, r)
        h = self.encoder.dims
        self.contexts = variant.part("contexts")(config, h, r, horizon)
        context, agnostic = self.contexts.dims
        cell = variant.part("feedback")
        self.feedback = cell(config, h, r, context, horizon) if cell else None
        self.feedback_block = Block(config, config.head_dim, (*h, *r), r, (context,)) if cell else None
        own = (context,) if self.feedback_block is None else (context, self.feedback_block.dim)
        self.local = LocalMLP(config, agnostic, r, own, horizon, h)
        if self.feedback_block is not None:
            self.local.ignore_at_first(self.feedback_block.dim)
        self.register_buffer("levels", torch.tensor(config.quantiles), persistent=False)

    @classmethod
    def seeded(cls, config: ModelConfig, inputs: Inputs, horizon: int, seed: int) -> "Network":
        """The same weights for the same seed; no random numbers but the network's own are drawn."""
        with drawing_from(torch.Generator().manual_seed(seed)):
            return cls(config, inputs, horizon)

    def drop_by(self, generator: torch.Generator | None) -> None:
        """Tell dropout by the bits of a generator; None: of torch's global one."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.generator = generator

    @property
    def reach(self) -> int:
        """R: steps of calendar that a batch must have beyond both ends of its windows."""
        return self.position.reach

    def alignment(self) -> list[nn.Parameter]:
        """Queries and keys of the decoder's attention: what is learnt of where to look."""
        cells = (self.contexts.cell if isinstance(self.contexts, AttentionContexts) else None, self.feedback)
        named = [pair for cell in cells if cell is not None for pair in cell.named_parameters()]
        return [parameter for name, parameter in named if "query" in name or "key" in name]

    def forward(
        self, batch: Batch, num_fcts: int | None = None, maps: Maps | None = None
    ) -> Float[Tensor, "batch horizon fct quantile"]:
        """Scaled quantiles, as the network gives them, at the last `num_fcts` creation times (left out: at all).

        Only what these need is decoded: the contexts of the H − 1 creation times before them, or of L for MQT-All.
        """
        n = self._num_decoded(batch, num_fcts)
        grid, context_grid = self._grids(n, batch.loc.shape[1])
        codes = self._codes(batch)  # h_t and r_u
        if maps is None and self._is_served(batch):  # all that follows, by compiled kernels
            return self.local.quantiles(self._cells(codes, grid).quantiles())
        c, c_agnostic = self.contexts(codes, context_grid, maps)  # c_{t,h}, c^a_t
        own = (c if grid == context_grid else c[:, :, -n:],)
        if self.feedback is not None and self.feedback_block is not None:
            attended = self.feedback(c, codes, grid, maps, self.feedback_block.map)
            own = (*own, self.feedback_block(attended, codes, own, grid))  # c_{t,h}, c̃_{t,h}
        return grid.forecasts(self.local(c_agnostic[:, -grid.num_made :], own, codes, grid))  # ŷ_{t+h}

    def loss(self, batch: Batch, num_fcts: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """`quantile_loss` of the forecasts, and how many terms it has; the kernels find its gradients on the way."""
        given = batch.targets(num_fcts), batch.is_scored(num_fcts), self.levels
        if self.local.monotone or not self._is_served(batch):
            return quantile_loss(self(batch, num_fcts).float(), *given)
        grid, _ = self._grids(self._num_decoded(batch, num_fcts), batch.loc.shape[1])
        return self._cells(self._codes(batch), grid).loss(*given), num_terms(*given[1:])

    def _codes(self, batch: Batch) -> Codes:
        plain = self.position(batch)  # r_u = [r^g_u; r^l_u], u = 0 … T+H−1
        r = self.position.normed(plain)
        h = self.encoder(batch, r)  # h_t = [h¹_t; h²], t = 0 … T−1
        return Codes(h, r, plain, batch.begun[:, : batch.loc.shape[1]], self.horizon)

    def _is_served(self, batch: Batch) -> bool:
        return is_served(self.config, self.local.out.weight, batch.loc)

    def _cells(self, codes: Codes, grid: Grid) -> Cells:
        return cells(self.contexts, self.feedback, self.feedback_block, self.local, codes, grid)

    def _grids(self, num_fcts: int, num_steps: int) -> tuple[Grid, Grid]:
        """Cells that get forecasts, and cells that get contexts; MQT-All needs contexts of the look-back as well."""
        grid = Grid(self.horizon, num_fcts, by_target=isinstance(self.feedback, FeedbackAttention))
        if not isinstance(self.feedback, AllContextsAttention):
            return grid, grid
        return grid, Grid(self.horizon, min(num_fcts + self.config.lookback, num_steps))

    def _num_decoded(self, batch: Batch, num_fcts: int | None) -> int:
        """How many creation times get forecasts."""
        num_steps = batch.loc.shape[1]
        if batch.horizon != self.horizon:
            raise ConfigError(
                f"the network forecasts {self.horizon} steps, the batch has {batch.horizon}; plan the windows with "
                f"WindowConfig(horizon={self.horizon})"
            )
        for name, width in self.inputs.widths().items():
            if (found := getattr(batch, name).shape[-1]) != width:
                raise ConfigError(
                    f"the batch has {found} columns in {name}, the network was made for {width}; build its panel with "
                    "like= the panel of the network"
                )
        n = num_steps if num_fcts is None else num_fcts
        if not 1 <= n <= num_steps:
            raise ConfigError(f"num_fcts is {n}; give one from 1 to the batch's {num_steps} steps")
        return n

    @torch.no_grad()
    def quantiles(self, batch: Batch, num_fcts: int | None = None) -> "Quantiles":
        """What is published: quantiles that never cross."""
        with evaluating(self):
            raw = self(batch, num_fcts)
        return Quantiles(raw.sort(dim=-1).values, (raw.diff(dim=-1) < 0).any(dim=-1))

    @torch.no_grad()
    def explain(self, batch: Batch, num_fcts: int | None = None) -> Explanation:
        """The attention weights behind the forecasts of `quantiles`, by step of the window."""
        if not self.config.variant.has_attention:
            raise ConfigError(f"{self.config.model} has no attention to explain; fit mqt, mqt-nods or mqt-all")
        maps = Maps()
        with evaluating(self):
            n = self(batch, num_fcts, maps).shape[2]
        assert maps.history is not None
        return Explanation(maps.history[:, :, -n:], maps.feedback, batch.series, batch.start)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Without dropout; the network's mode is as it was afterwards."""
    if not network.training:
        yield
        return
    network.eval()
    try:
        yield
    finally:
        network.train()


@dataclass(frozen=True)
class Quantiles:
    """Scaled quantiles in rising order, and where the network's own had crossed."""

    values: Float[Tensor, "batch horizon fct quantile"]
    crossed: Bool[Tensor, "batch horizon fct"]

    def crossing_rate(self, where: Bool[Tensor, "batch horizon fct"] | None = None) -> float:
        """The share of forecasts that crossed before they were rearranged."""
        crossed = self.crossed if where is None else self.crossed[where]
        return crossed.cpu().double().mean().item() if crossed.numel() else 0.0
