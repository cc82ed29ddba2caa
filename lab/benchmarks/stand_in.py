"""A small network similar to MQ-CNN, to measure the data side beside real training work."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mqcast import Panel
from mqcast.data.batch import Batch

LEVELS = (0.5, 0.9)


class StandIn(nn.Module):
    """Six causal convolutions over demand and covariates, then one decoder for every creation time and horizon."""

    def __init__(self, panel: Panel, horizon: int, width: int = 32):
        super().__init__()
        arrays = panel.arrays
        inputs = 2 + arrays["past_number"].shape[1] + arrays["known_number"].shape[1]
        self.horizon, self.levels = horizon, torch.tensor(LEVELS)
        sizes = [inputs, *[width] * 6]
        self.convolutions = nn.ModuleList(nn.Conv1d(a, b, 2, dilation=2**i) for i, (a, b) in enumerate(pairwise(sizes)))
        self.contexts = nn.Linear(width, horizon * width)
        self.known = nn.Linear(arrays["known_number"].shape[1], width)
        self.output = nn.Linear(width, len(LEVELS))

    def forward(self, batch: Batch) -> Tensor:
        """(batch, horizon, time, quantile)."""
        steps = batch.loc.shape[1]
        parts = [batch.inputs()[..., None], batch.observed[:, :steps, None].float(), batch.past_number]
        x = torch.cat([*parts, batch.known_number[:, :steps]], dim=-1).transpose(1, 2)
        for convolution in self.convolutions:
            x = F.relu(convolution(F.pad(x, (convolution.dilation[0], 0))))
        contexts = self.contexts(x.transpose(1, 2)).unflatten(-1, (self.horizon, -1)).transpose(1, 2)
        ahead = self.known(batch.known_number)[:, 1:].unfold(1, steps, 1).transpose(2, 3)
        return self.output(F.relu(contexts + ahead))

    def loss(self, batch: Batch) -> Tensor:
        error = batch.targets()[..., None] - self(batch)
        pinball = torch.maximum(self.levels * error, (self.levels - 1) * error)
        return pinball[batch.is_scored()].mean()
