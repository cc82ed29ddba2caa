"""A small ConvTrans (Li and others, 2019): a decoder-only Transformer with causal convolutions as queries and keys.

    python convtrans.py FOLDER

FOLDER is as in `lightgbm_lags.py`. One step ahead, Gaussian, on values scaled by the window's past; many steps ahead by
sampling paths. Attention is full, not log-sparse. Prints a line of JSON.
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
LEAST_SCALE, FARTHEST = 0.1, 8.0  # otherwise the paths of very short series diverge


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = (nn.Conv1d(DIM, DIM, KERNEL) for _ in range(2))
        self.value, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.dense = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.ReLU(), nn.Linear(4 * DIM, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """All steps at once; and what later ones need: the last inputs, the keys, the values (N, HEADS, T, D)."""
        padded = F.pad(x.mT, (KERNEL - 1, 0))
        parts = (self.query(padded).mT, self.key(padded).mT, self.value(x))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.mixed(x, attended), (x[:, 1 - KERNEL :], k, v)

    def mixed(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.norms[0](x + self.out(attended))
        return self.norms[1](x + self.dense(x))

    def step(self, x: Tensor, past: tuple[Tensor, Tensor], own: list[Tensor], h: int) -> Tensor:
        """Step h of every path: x (N, P, DIM). The past is shared by a series' paths; `own` (the last inputs
        (N, P, KERNEL - 1, DIM), keys and values (N, HEADS, P, horizon, D)) is each path's, and is filled."""
        recent, keys, values = own
        recent = torch.cat((recent, x[:, :, None]), dim=2)
        own[0], felt = recent[:, :, 1:], recent.mT.flatten(2)
        q, k = (F.linear(felt, conv.weight.flatten(1), conv.bias) for conv in (self.query, self.key))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, self.value(x)))
        keys[..., h, :], values[..., h, :] = k, v
        keys, values = keys[..., : h + 1, :], values[..., : h + 1, :]
        scores = torch.cat((q @ past[0].mT, (q[..., None, :] @ keys.mT)[..., 0, :]), dim=-1) / q.shape[-1] ** 0.5
        of_past, of_own = scores.softmax(dim=-1).split((past[0].shape[2], h + 1), dim=-1)
        attended = of_past @ past[1] + (of_own[..., None, :] @ values)[..., 0, :]
        return self.mixed(x, attended.transpose(1, 2).flatten(2))


class ConvTrans(nn.Module):
    """Mean and standard deviation of each step, from the steps before and the plan."""

    def __init__(self, num_known: int, num_series: int, length: int):
        super().__init__()
        self.embed = nn.Embedding(num_series, EMBEDDING)
        self.into = nn.Linear(2 + num_known + EMBEDDING, DIM)
        self.place = nn.Parameter(0.02 * torch.randn(length, DIM))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.out = nn.Linear(DIM, 2)

    def start(self, before: Tensor, seen: Tensor, known: Tensor, series: Tensor) -> Tensor:
        code = self.embed(series)[:, None].expand(-1, before.shape[1], -1)
        return self.into(torch.cat((before[..., None], seen[..., None], known, code), dim=-1))

    def end(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.out(x).unbind(-1)
        return mean, F.softplus(spread) + 1e-3

    def forward(self, before: Tensor, seen: Tensor, known: Tensor, series: Tensor) -> tuple[Tensor, Tensor]:
        x = self.start(before, seen, known, series) + self.place[: before.shape[1]]
        for layer in self.layers:
            x, _ = layer(x)
        return self.end(x)

    def paths(self, z: Tensor, seen: Tensor, known: Tensor, series: Tensor, sells: Tensor, num: int) -> Tensor:
        """(N, num, horizon): drawn step by step after z (N, history); known (N, history + horizon - 1, …) is of the
        step that is forecast. Where `sells` (N, horizon) is 0, nothing will be seen, as in training."""
        history, horizon = z.shape[1], sells.shape[1]
        x = self.start(z, seen, known[:, :history], series) + self.place[:history]
        pasts, owns = [], []
        for layer in self.layers:
            x, (recent, keys, values) = layer(x)
            pasts.append((keys, values))
            room = [keys.new_empty(*keys.shape[:2], num, horizon, keys.shape[3]) for _ in range(2)]
            owns.append([recent[:, None].expand(-1, num, -1, -1), *room])
        x, drawn = x[:, None, -1].expand(-1, num, -1), []
        for h in range(horizon):
            mean, spread = self.end(x)
            drawn.append((mean + spread * torch.randn_like(mean)).clamp(-FARTHEST, FARTHEST))
            if h == horizon - 1:
                break
            plan, sold = known[:, None, history + h].expand(-1, num, -1), sells[:, h, None].expand(-1, num)
            x = self.start(drawn[-1] * sold, sold, plan, series) + self.place[history + h]
            for layer, past, own in zip(self.layers, pasts, owns, strict=True):
                x = layer.step(x, past, own, h)
        return torch.stack(drawn, dim=2)


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
        self.sells = np.ones(shape, np.float32)
        if (flag := spec.get("observed")) in spec["known"]:
            self.sells[series, step] = rows[flag].to_numpy() > 0

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
        scale = np.maximum(np.sqrt(np.nansum((past - loc[:, None]) ** 2, axis=1) / count), LEAST_SCALE)
        z = np.clip((y - loc[:, None]) / scale[:, None], -FARTHEST, FARTHEST)
        known = self.known[series[:, None], place]
        arrays = (np.nan_to_num(z), ~np.isnan(z), known, series, loc, scale)
        return tuple(torch.as_tensor(np.asarray(a, np.int64 if a is series else np.float32)) for a in arrays)


def train(panel: Panel, model: ConvTrans, rng: np.random.Generator) -> int:
    """Adam on the Gaussian likelihood of every observed step, for the time allowed, with a decaying learning rate."""
    spec, optimiser = panel.spec, torch.optim.Adam(model.parameters(), RATE)
    started, steps = time.process_time(), 0
    first, last = spec["season"], spec["train_until"] - spec["horizon"]
    while (share := (time.process_time() - started) / (60 * spec["minutes"])) < 1:
        optimiser.param_groups[0]["lr"] = RATE * (1 - share)
        series, cutoff = rng.integers(len(panel.y), size=BATCH), rng.integers(first, last + 1, size=BATCH)
        z, seen, known, ids, _, _ = panel.windows(series, cutoff)
        mean, spread = model(z[:, :-1], seen[:, :-1], known[:, 1:], ids)
        judged = seen[:, 1:] * seen[:, : spec["history"]].any(dim=1, keepdim=True)  # without a past there is no scale
        loss = -(torch.distributions.Normal(mean, spread).log_prob(z[:, 1:]) * judged).sum() / judged.sum().clamp(1)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        steps += 1
    return steps


@torch.no_grad()
def forecast(panel: Panel, model: ConvTrans, series: np.ndarray, cutoff: int) -> np.ndarray:
    """(series, horizon, levels): quantiles of sampled paths."""
    spec, history = panel.spec, panel.spec["history"]
    z, seen, known, ids, loc, scale = panel.windows(series, np.full(len(series), cutoff))
    ahead = np.minimum(cutoff + np.arange(1, spec["horizon"] + 1), panel.y.shape[1] - 1)
    sells = torch.as_tensor(panel.sells[series[:, None], ahead])
    paths = model.paths(z[:, :history], seen[:, :history], known[:, 1:], ids, sells, PATHS)
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
        begun = begun[begun % spec["every"] == 0]
        for part in range(0, len(begun), SERIES_AT_A_TIME):
            series = begun[part : part + SERIES_AT_A_TIME]
            out[k, series] = forecast(panel, model.eval(), series, cutoff)
    np.save(folder / "forecasts.npy", out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps(facts | {"steps": steps, "parameters": parameters}))


main()
