"""Which parts of the networks pay: each variant's regret to the oracle on a simulated retailer.

    python benchmarks/parts.py [--world lognormal|counts] [--seeds 3] [--epochs 30] [--variants mqt mqcnn …]

Same windows, order and number of steps for all; one process a core. Losses are on creation times and targets that
training did not see. Writes results/parts_<world>.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time

import numpy as np
import torch
from harness import write_record

from mqcast import Panel
from mqcast.config import ModelConfig, ScalingConfig, WindowConfig
from mqcast.data.batch import Assembler, load
from mqcast.data.windows import Span, WindowPlan
from mqcast.datasets import World, count_world, lognormal_world
from mqcast.model.inputs import Inputs
from mqcast.model.loss import quantile_loss
from mqcast.model.networks import Network

HORIZON, NUM_WEEKS, FIRST_TEST, LAST_TEST, LEVELS = 26, 260, 208, 233, (0.5, 0.9)
WINDOWS = WindowConfig(horizon=HORIZON, history=104, num_fcts=52, batch_size=16)
TEST_WINDOWS = WindowConfig(horizon=HORIZON, history=104, num_fcts=LAST_TEST - FIRST_TEST + 1, batch_size=64)
VARIANTS: dict[str, dict] = {
    "mqt": {},
    "mqt, residual block": {"block": "residual"},
    "mqt, bare block": {"block": "bare"},
    "mqt, heads per horizon": {"feedback_heads": "per_horizon"},
    "mqt, no horizon code": {"horizon_code": False},
    "mqt, no scale inputs": {"scale_inputs": False},
    "mqt, context of r_t": {"agnostic_context": "current"},
    "mqt, encoder attention": {"encoder_attention": True},
    "mqt, monotone head": {"head": "monotone"},
    "mqt-nods": {"model": "mqt-nods"},
    "mqt-nods, residual block": {"model": "mqt-nods", "block": "residual"},
    "mqt-nods, bare block": {"model": "mqt-nods", "block": "bare"},
    "mqt-all": {"model": "mqt-all"},
    "mqcnn": {"model": "mqcnn"},
    "mqrnn": {"model": "mqrnn"},
}
WORLDS = {"lognormal": lognormal_world, "counts": count_world}


def make_world(name: str, num_items: int) -> tuple[World, Panel]:
    world = WORLDS[name](num_items, NUM_WEEKS, HORIZON, seed=0)
    return world, Panel.from_frame(world.frame, world.schema, world.static, world.events)


def train(network: Network, plan: WindowPlan, assemble: Assembler, epochs: int, rate: float) -> None:
    """Adam with gradient clipping, the rate falling to zero as a cosine."""
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    total = sum(plan.num_batches(epoch) for epoch in range(epochs))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, total)
    network.train()
    for epoch in range(epochs):
        for batch in load(plan, assemble, epoch):
            n = plan.config.num_fcts
            loss, count = quantile_loss(network(batch, n), batch.targets(n), batch.is_scored(n), network.levels)
            optimiser.zero_grad()
            (loss / count).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()


def forecast(network: Network, panel: Panel, fitted: Assembler) -> tuple[np.ndarray, float]:
    """(items, horizon, creation times, levels) on the scale of demand, and the raw crossing rate."""
    scalers = fitted.target.scaler, fitted.number, fitted.category
    assemble = Assembler(panel, TEST_WINDOWS, *scalers)
    time_of = panel.axis.frequency.times(int(panel.first_step[0]) + np.array([FIRST_TEST, LAST_TEST]))
    plan = WindowPlan(panel, TEST_WINDOWS, Span(int(time_of[0]), int(time_of[1]), None), shuffle=False)
    parts, crossed = [], []
    for batch in load(plan, assemble, 0):
        found = network.quantiles(batch, TEST_WINDOWS.num_fcts)
        n = TEST_WINDOWS.num_fcts
        z = batch.loc[:, None, -n:, None] + batch.scale[:, None, -n:, None] * found.values
        parts.append(assemble.target.scaler.inverse(z.double().numpy()))
        crossed.append(found.crossing_rate())
    return np.concatenate(parts), float(np.mean(crossed))


def regrets(world: World, quantiles: np.ndarray) -> dict[str, float]:
    """Loss over the oracle's loss, less one, of log(1 + demand), where every item counts alike: overall and at events.

    Quantiles follow any rising transform, so the oracle's are the best there too.
    """
    weeks = np.arange(FIRST_TEST, LAST_TEST + 1) + np.arange(1, HORIZON + 1)[:, None]
    actual = world.demand[:, weeks]
    best = world.oracle.quantiles(LEVELS, FIRST_TEST, LAST_TEST)
    promoted = world.promotions[:, weeks].any(axis=-1)
    holiday = np.broadcast_to(world.holidays[weeks].any(axis=-1), actual.shape)
    slices = {"all": np.ones_like(promoted), "promotions": promoted, "holidays": holiday}
    found = {}
    for i, level in enumerate(LEVELS):
        for name, where in slices.items():
            losses = [
                pinball(np.log1p(actual[where]) - np.log1p(q[..., i][where].clip(0)), level) for q in (quantiles, best)
            ]
            found[f"P{level * 100:.0f} {name}"] = losses[0] / losses[1] - 1
    return found


def pinball(error: np.ndarray, level: float) -> float:
    return float(np.maximum(level * error, (level - 1) * error).mean())


def run(job: tuple[str, str, int, argparse.Namespace]) -> dict:
    world_name, variant, seed, options = job
    torch.set_num_threads(1)
    started = time.process_time()
    world, panel = make_world(world_name, options.items)
    time_of = panel.axis.frequency.times(int(panel.first_step[0]) + FIRST_TEST - 1)
    span = Span(None, int(time_of), int(time_of))
    plan = WindowPlan(panel, WINDOWS, span, seed=seed)
    assemble = Assembler.fit(panel, WINDOWS, ScalingConfig(by=options.scaling, log1p=options.log1p), until=int(time_of))
    torch.manual_seed(seed)
    config = ModelConfig(quantiles=LEVELS, lookback=104, dropout=options.dropout, **VARIANTS[variant])
    network = Network(config, Inputs.of(panel), HORIZON)
    train(network, plan, assemble, options.epochs, options.rate)
    quantiles, crossing = forecast(network, panel, assemble)
    found = {"variant": variant, "seed": seed, **regrets(world, quantiles), "crossing rate": crossing}
    found["CPU seconds"] = time.process_time() - started
    print({k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=WORLDS, default="lognormal")
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--scaling", default="past")
    parser.add_argument("--log1p", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", default=None, help="name of the record; left out: parts_<world>")
    options = parser.parse_args()
    jobs = [(options.world, variant, seed, options) for seed in range(options.seeds) for variant in options.variants]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        runs = pool.map(run, jobs, chunksize=1)
    summary = {}
    for variant in options.variants:
        of_variant = [r for r in runs if r["variant"] == variant]
        numbers = {k for k, v in of_variant[0].items() if isinstance(v, float)}
        summary[variant] = {
            k: {"mean": float(np.mean([r[k] for r in of_variant])), "sd": float(np.std([r[k] for r in of_variant]))}
            for k in sorted(numbers)
        }
    settings = {k: v for k, v in vars(options).items() if k not in ("variants", "record")}
    path = write_record(
        options.record or f"parts_{options.world}", {"settings": settings, "summary": summary, "runs": runs}
    )
    print(path)


if __name__ == "__main__":
    main()
