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
from mqcast.data.inputs import Inputs
from mqcast.errors import ConfigError
from mqcast.nn.attention import Block, DecoderInputs, Maps
from mqcast.nn.decoder import LocalMLP, SpanMLP
from mqcast.nn.draws import drawing_from
from mqcast.nn.encoder import Encoder
from mqcast.nn.explanation import Explanation
from mqcast.nn.fused import decoder_call, kernel_supports
from mqcast.nn.grid import Grid
from mqcast.nn.kernels import COMPILED, status, use_kernels
from mqcast.nn.layers import Dropout
from mqcast.nn.loss import num_terms, quantile_loss
from mqcast.settings import ModelConfig
from mqcast.settings.family import FAMILY


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
        self.local = LocalMLP(config, agnostic, self.position.raw_dims, own, horizon, h, inputs.precedents)
        if self.feedback_block is not None and not config.research.plain_start:
            self.local.ignore_at_first(self.feedback_block.dim)
        raw = self.position.raw_dims
        self.span = SpanMLP(config, agnostic, raw, own, h) if config.spans else None
        self.register_buffer("levels", torch.tensor(config.quantiles), persistent=False)

    @classmethod
    def seeded(cls, config: ModelConfig, inputs: Inputs, horizon: int, seed: int) -> "Network":
        """The same weights for the same seed; torch's global generator is left alone."""
        with drawing_from(torch.Generator().manual_seed(seed)):
            return cls(config, inputs, horizon)

    def drop_by(self, generator: torch.Generator | None) -> None:
        """Draw dropout from this generator; None: from torch's global one."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.generator = generator

    @property
    def members(self) -> "tuple[Network, ...]":
        """This network alone; see `Members`."""
        return (self,)

    @property
    def reach(self) -> int:
        """R: steps of calendar that a batch must have beyond both ends of its windows."""
        return self.position.reach

    def alignment(self) -> list[nn.Parameter]:
        """Queries and keys of the decoder's attention: the parameters that decide where it looks."""
        parts = [part for part in (self.contexts, self.feedback) if part is not None]
        named = [pair for part in parts for pair in part.named_parameters()]
        return [parameter for name, parameter in named if "query" in name or "key" in name]

    def forward(
        self, batch: Batch, num_fcts: int | None = None, maps: Maps | None = None, spans: bool = False
    ) -> Float[Tensor, "batch row fct quantile"]:
        """Scaled quantiles, unsorted, at the last `num_fcts` creation times (default: all). The paper's tab:mqt.

        Rows are the horizons and, with `spans`, after them the means over the spans of the settings.

        Only what these need is decoded: the contexts of the H − 1 creation times before them, or of L for MQT-All.
        Cells are pairs (t, h), laid out as (H, n) or by target: see grid.py. Plain form: `reference.forecast`.
        """
        n = self._num_decoded(batch, num_fcts)
        grid, context_grid = self._grids(n, batch)
        x = self._encode(batch, grid)  # h_t: (B, T, ·);  r_u: (1 or B, T+H, ·)
        if maps is None and self._is_compiled(batch):  # the equations below, by the kernels
            return self.local.quantiles(decoder_call(*self._decoder(), x, grid).quantiles())
        c, c_agnostic = self.contexts(x, context_grid, maps)  # c_{t,h}: (B, *cells, D);  c^a_t: (B, T, A)
        own = (c if grid == context_grid else c[:, :, -n:],)
        if self.feedback is not None and self.feedback_block is not None:
            attended = self.feedback(c, x, grid, maps, self.feedback_block.map)
            own = (*own, self.feedback_block(attended, x, own, grid))  # c_{t,h}, c̃_{t,h}: (B, *cells, D)
        quantiles = grid.forecasts(self.local(c_agnostic[:, -grid.num_made :], own, x, grid))  # ŷ_{t+h}: (B, H, n, Q)
        if self.span is None or not spans:
            return quantiles
        return torch.cat((quantiles, self.span(c_agnostic, own, x, grid, quantiles)), dim=1)

    def _encode(self, batch: Batch, grid: Grid) -> DecoderInputs:
        raw = self.position(batch)  # r_u = [r^g_u; r^l_u], u = 0 … T+H−1
        r = self.position.normed(raw)
        h = self.encoder(batch, r)  # h_t = [h¹_t; h²], t = 0 … T−1
        num_steps = batch.loc.shape[1]
        precedents = batch.precedents(min(grid.num_made, num_steps)) if self.inputs.precedents else None
        return DecoderInputs(h, r, raw, batch.begun[:, :num_steps], self.horizon, precedents)

    def loss(self, batch: Batch, num_fcts: int) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """`quantile_loss` of the forecasts and the number of its terms; the kernels compute its gradients as well."""
        spans = self.config.spans
        scores = batch.targets(num_fcts, spans), batch.is_scored(num_fcts, spans), self.levels
        if self.local.monotone or not self._is_compiled(batch):
            return quantile_loss(self(batch, num_fcts, spans=True).float(), *scores)
        grid, _ = self._grids(self._num_decoded(batch, num_fcts), batch)
        return decoder_call(*self._decoder(), self._encode(batch, grid), grid).loss(*scores), num_terms(*scores[1:])

    def _decoder(self) -> tuple[nn.Module, nn.Module | None, Block | None, LocalMLP]:
        return self.contexts, self.feedback, self.feedback_block, self.local

    def _is_compiled(self, batch: Batch) -> bool:
        return self.span is None and kernel_supports(*self._decoder()) and use_kernels(self.local.out.weight, batch.loc)

    def why_not_compiled(self) -> str | None:
        """Why this network is decoded by PyTorch although it has a compiled form; None otherwise."""
        has_compiled_form = self.levels.is_cpu and kernel_supports(*self._decoder())
        if has_compiled_form and self.span is not None:
            return "model.spans has no compiled form"
        return status() if has_compiled_form and status() != COMPILED else None

    def _grids(self, num_fcts: int, batch: Batch) -> tuple[Grid, Grid]:
        """The cells that get forecasts, and the cells whose contexts these need."""
        if self.feedback is not None:
            return self.feedback.grids(num_fcts, batch.loc.shape[1])
        grid = Grid(self.horizon, num_fcts)
        return grid, grid

    def _num_decoded(self, batch: Batch, num_fcts: int | None) -> int:
        """The number of creation times that get forecasts, once the batch is known to fit."""
        num_steps = batch.loc.shape[1]
        if batch.horizon != self.horizon:
            raise ConfigError(
                f"the network forecasts {self.horizon} steps, the batch has {batch.horizon}; plan the windows with "
                f"WindowConfig(horizon={self.horizon})"
            )
        for name, expected in self.inputs.widths().items():
            if (width := getattr(batch, name).shape[-1]) != expected:
                raise ConfigError(
                    f"the batch has {width} columns in {name}, the network was made for {expected}; build its panel "
                    "with like= the panel of the network"
                )
        n = num_steps if num_fcts is None else num_fcts
        if not 1 <= n <= num_steps:
            raise ConfigError(f"num_fcts is {n}; give one from 1 to the batch's {num_steps} steps")
        return n

    @torch.no_grad()
    def quantiles(self, batch: Batch, num_fcts: int | None = None, spans: bool = False) -> "Quantiles":
        """Quantiles as they are published: sorted, so they never cross."""
        with evaluating(self):
            raw = self(batch, num_fcts, spans=spans)
        return Quantiles(raw.sort(dim=-1).values, (raw.diff(dim=-1) < 0).any(dim=-1))

    @torch.no_grad()
    def explain(self, batch: Batch, num_fcts: int | None = None) -> Explanation:
        """The attention weights behind the forecasts of `quantiles`, by step of the window."""
        if not self.config.variant.has_attention:
            names = ", ".join(name for name, variant in FAMILY.items() if variant.has_attention)
            raise ConfigError(f"{self.config.model} has no attention to explain; fit one of {names}")
        maps = Maps()
        with evaluating(self):
            n = self(batch, num_fcts, maps).shape[2]
        assert maps.history is not None
        return Explanation(maps.history[:, :, -n:], maps.feedback, batch.series, batch.start)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """In evaluation mode, and afterwards in the mode it was in."""
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
    """Scaled quantiles in rising order, and where the network's own crossed."""

    values: Float[Tensor, "batch row fct quantile"]
    crossed: Bool[Tensor, "batch row fct"]

    def crossing_rate(self, where: Bool[Tensor, "batch row fct"] | None = None) -> float:
        """The share of forecasts that crossed before they were sorted."""
        crossed = self.crossed if where is None else self.crossed[where]
        return crossed.cpu().double().mean().item() if crossed.numel() else 0.0
