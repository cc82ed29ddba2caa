"""ConvTrans (Li and others, 2019), small: a decoder-only Transformer whose queries and keys are causal convolutions.

    python convtrans.py FOLDER

FOLDER is as `lightgbm_lags.py` has it. One step ahead, Gaussian, on values brought to scale by the window's past; many
steps ahead by drawing paths. Attention is full, not log-sparse. Prints a line of JSON.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM, HEADS, LAYERS, KERNEL, EMBEDDING = 48, 4, 2, 6, 16
BATCH, RATE, PATHS, SERIES_AT_A_TIME = 32, 1e-3, 100, 16


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = (nn.Conv1d(DIM, DIM, KERNEL) for _ in range(2))
        self.value, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.dense = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.ReLU(), nn.Linear(4 * DIM, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x.mT, (KERNEL - 1, 0))
        parts = (self.query(padded).mT, self.key(padded).mT, self.value(x))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(attended))
        return self.norms[1](x + self.dense(x))


class ConvTrans(nn.Module):
    """Mean and standard deviation of each step, from the steps before and the plan."""

    def __init__(self, num_known: int, num_series: int, length: int):
        super().__init__()
        self.embed = nn.Embedding(num_series, EMBEDDING)
        self.into = nn.Linear(2 + num_known + EMBEDDING, DIM)
        self.place = nn.Parameter(0.02 * torch.randn(length, DIM))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.out = nn.Linear(DIM, 2)

    def forward(self, before: Tensor, seen: Tensor, known: Tensor, series: Tensor) -> tuple[Tensor, Tensor]:
        code = self.embed(series)[:, None].expand(-1, before.shape[1], -1)
        x = self.into(torch.cat((before[..., None], seen[..., None], known, code), dim=-1))
        mean, spread = self.out(self.layers(x + self.place[: x.shape[1]])).unbind(-1)
        return mean, F.softplus(spread) + 1e-3


class Panel:
    def __init__(self, folder: Path):
        self.spec = spec = json.loads((folder / "spec.json").read_text())
        rows = pq.read_table(folder / "rows.parquet")
        series, step = (rows[name].to_numpy() for name in ("series", "step"))
        shape = (int(series.max()) + 1, int(step.max()) + 1)
        self.y = np.full(shape, np.nan, np.float32)
        self.y[series, step] = rows["y"].to_numpy()
        self.y = np.log1p(self.y) if spec["log"] else self.y
        self.known = np.zeros((*shape, len(spec["known"])), np.float32)
        for i, name in enumerate(spec["known"]):
            values = rows[name].to_numpy()
            self.known[series, step, i] = (values - values.mean()) / max(values.std(), 1e-6)

    def windows(self, series: np.ndarray, cutoff: np.ndarray) -> tuple[Tensor, ...]:
        """Values on the past's scale, which are seen, the plan, series, location and scale."""
        spec = self.spec
        steps = cutoff[:, None] + np.arange(-spec["history"] + 1, spec["horizon"] + 1)
        inside = (steps >= 0) & (steps < self.y.shape[1])
        place = np.clip(steps, 0, self.y.shape[1] - 1)
        y = np.where(inside, self.y[series[:, None], place], np.nan)
        past = y[:, : spec["history"]]
        count = np.maximum((~np.isnan(past)).sum(axis=1), 1)
        loc = np.nansum(past, axis=1) / count
        scale = np.sqrt(np.nansum((past - loc[:, None]) ** 2, axis=1) / count) + 1e-2
        z = (y - loc[:, None]) / scale[:, None]
        known = self.known[series[:, None], place]
        arrays = (np.nan_to_num(z), ~np.isnan(z), known, series, loc, scale)
        return tuple(torch.as_tensor(np.asarray(a, np.int64 if a is series else np.float32)) for a in arrays)


def train(panel: Panel, model: ConvTrans, rng: np.random.Generator) -> int:
    """Adam on the Gaussian likelihood of every observed step, for the time allowed; the rate falls with it."""
    spec, optimiser = panel.spec, torch.optim.Adam(model.parameters(), RATE)
    started, steps = time.process_time(), 0
    first, last = spec["season"], spec["train_until"] - spec["horizon"]
    while (share := (time.process_time() - started) / (60 * spec["minutes"])) < 1:
        optimiser.param_groups[0]["lr"] = RATE * (1 - share)
        series, cutoff = rng.integers(len(panel.y), size=BATCH), rng.integers(first, last + 1, size=BATCH)
        z, seen, known, ids, _, _ = panel.windows(series, cutoff)
        mean, spread = model(z[:, :-1], seen[:, :-1], known[:, 1:], ids)
        loss = -(torch.distributions.Normal(mean, spread).log_prob(z[:, 1:]) * seen[:, 1:]).sum() / seen.sum().clamp(1)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        steps += 1
    return steps


@torch.no_grad()
def forecast(panel: Panel, model: ConvTrans, series: np.ndarray, cutoff: int) -> np.ndarray:
    """(series, horizon, levels): quantiles of drawn paths."""
    spec, history = panel.spec, panel.spec["history"]
    z, seen, known, ids, loc, scale = panel.windows(series, np.full(len(series), cutoff))
    z[:, history:], seen[:, history:] = 0, 1
    z, seen, known, ids = (x.repeat_interleave(PATHS, dim=0) for x in (z, seen, known, ids))
    for h in range(spec["horizon"]):
        end = history + h
        mean, spread = model(z[:, :end], seen[:, :end], known[:, 1 : end + 1], ids)
        z[:, end] = mean[:, -1] + spread[:, -1] * torch.randn(len(z))
    paths = z[:, history:].unflatten(0, (-1, PATHS))
    values = torch.quantile(paths, torch.tensor(spec["levels"]), dim=1).permute(1, 2, 0)
    values = (values * scale[:, None, None] + loc[:, None, None]).double().numpy()
    return np.maximum(np.expm1(values), 0) if spec["log"] else values


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    panel = Panel(folder)
    spec = panel.spec
    torch.manual_seed(spec["seed"])
    model = ConvTrans(len(spec["known"]), len(panel.y), spec["history"] + spec["horizon"])
    started = time.perf_counter(), time.process_time()
    steps = train(panel, model, np.random.default_rng(spec["seed"]))
    facts = {"wall_seconds": time.perf_counter() - started[0], "cpu_seconds": time.process_time() - started[1]}
    out = np.full((len(spec["cutoffs"]), len(panel.y), spec["horizon"], len(spec["levels"])), np.nan, np.float32)
    for k, cutoff in enumerate(spec["cutoffs"]):
        begun = np.flatnonzero(~np.isnan(panel.y[:, : cutoff + 1]).all(axis=1))
        for part in range(0, len(begun), SERIES_AT_A_TIME):
            series = begun[part : part + SERIES_AT_A_TIME]
            out[k, series] = forecast(panel, model.eval(), series, cutoff)
    np.save(folder / "forecasts.npy", out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps(facts | {"steps": steps, "parameters": parameters}))


main()
