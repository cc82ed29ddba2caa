"""How far each network is from the oracle on a simulated retailer: regret by model and seed.

    python -m lab benchmark regret [--variants mqt mqcnn …] [--seeds 3] [--record regret]

2,000 items, 208 weeks of sales, 26 weeks ahead. Training sees targets up to week 181; the creation times 182 … 207,
with their whole horizons, are scored. All models have the same windows, order, settings and number of steps; the final
weights are used. Regret is the pinball loss over the oracle's, minus one: in units of demand, where the few items that
sell most dominate, and of log(1 + demand), where all items count equally (quantiles are preserved by any increasing
transform, so the oracle is the best there too). One process per core; interrupted runs are resumed.
Writes lab/results/benchmarks/<record>.json.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import time
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from lab.benchmarks.harness import DATA, lock, write_record
from mqcast import Panel, volatility
from mqcast.errors import EventReachWarning
from mqcast.forecast.predict import forecast
from mqcast.levels import pinball
from mqcast.settings import ModelConfig, RunConfig, ScalingConfig, SplitConfig, TrainConfig, WindowConfig
from mqcast.simulate import World, lognormal_world
from mqcast.train.loop import fit
from mqcast.train.records import read_metrics

HORIZON, NUM_WEEKS, FIRST_TEST, LAST_TEST, LEVELS = 26, 208, 182, 207, (0.5, 0.9)
WINDOW = WindowConfig(horizon=HORIZON, history=156, num_fcts=52, batch_size=16)
SCALING = ScalingConfig(by="recent", log1p=True, half_life=3.0)
MODEL = ModelConfig(quantiles=LEVELS, lookback=156, position_dilations=(1, 2), dropout=0.0, scale_inputs=False)
TRAIN = TrainConfig(learning_rate=3e-3, schedule="cosine", warmup_steps=100, patience=None, micro_batch=16)
VARIANTS: dict[str, dict] = {
    "mqt": {},
    "mqt-nods": {"model": "mqt-nods"},
    "mqt-all": {"model": "mqt-all"},
    "mqcnn": {"model": "mqcnn"},
    "mqrnn": {"model": "mqrnn"},
    "mqt, bare block": {"block": "bare"},
    "mqt, heads per horizon": {"feedback_heads": "per_horizon"},
    "mqt, no horizon code": {"horizon_code": False},
    "mqt, scale inputs": {"scale_inputs": True},
    "mqt, dropout": {"dropout": 0.15},
    "mqt, position reach 25": {"position_dilations": None},
    "mqt, no position norm": {"position_norm": False},
    "mqt, context of r_t": {"agnostic_context": "current"},
    "mqt, encoder attention": {"encoder_attention": True},
    "mqt, matrix of weeks": {"positions": "matrix", "position_dilations": ()},
    "mqt, sinusoids": {"positions": "sinusoids", "position_dilations": ()},
    "mqt, no positions": {"positions": "none", "position_dilations": ()},
    "mqt, reach 0": {"position_dilations": ()},
    "mqt, reach 1": {"position_dilations": (1,)},
    "mqt, lookback 13": {"lookback": 13},
    "mqt, lookback 26": {"lookback": 26},
    "mqt, lookback 52": {"lookback": 52},
    "mqt, lookback 104": {"lookback": 104},
    "mqt, monotone head": {"head": "monotone"},
}
PAPERS = ("mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn")
NUM_WAVES, LONGEST_WAVE = 16, 10_000  # of sinusoidal positions, as in the vanilla transformer with a width of 32


@cache
def make_world(num_items: int, seed: int, positions: str = "learned") -> tuple[World, Panel]:
    """`positions`: what networks know of all items' weeks. Promotions are known in any case.

    learned: holidays and the time of year. matrix: a learned row for each week of the year. sinusoids: of the week's
    number. none: nothing.
    """
    world = lognormal_world(num_items, NUM_WEEKS, HORIZON, seed=seed)
    schema, events = world.schema, world.events
    if positions != "learned":
        schema, events = schema.replace(events=(), calendar=("week_of_year",) if positions == "matrix" else ()), None
    if positions == "sinusoids":
        events = sinusoids(world.events["ds"])
        names = tuple(events.columns[1:])
        schema = schema.replace(events=names, kinds=dict.fromkeys(names, "number"))
    return world, Panel.from_frame(world.frame, schema, world.static, events)


def sinusoids(dates: pl.Series) -> pl.DataFrame:
    """Sine and cosine of the date's number, of wavelengths from 2π to 2π · LONGEST_WAVE."""
    angles = np.arange(len(dates))[:, None] / LONGEST_WAVE ** (np.arange(NUM_WAVES) / NUM_WAVES)
    waves = np.concatenate((np.sin(angles), np.cos(angles)), axis=1)
    return pl.DataFrame({"ds": dates} | {f"wave_{i}": waves[:, i] for i in range(waves.shape[1])})


def date_of(panel: Panel, week: int) -> str:
    time_of = panel.axis.frequency.times(panel.first_step[:1] + week)
    return str(np.datetime64(int(time_of[0]), "us"))[:10]


def settings(panel: Panel, variant: str, seed: int, options: argparse.Namespace) -> RunConfig:
    until = date_of(panel, FIRST_TEST - 1)
    changes = {name: value for name, value in VARIANTS[variant].items() if name != "positions"}
    return RunConfig(
        window=WINDOW,
        split=SplitConfig(train_until=until, valid_until=until),
        scaling=SCALING,
        model=ModelConfig(**MODEL.model_dump(exclude_unset=True) | changes),
        train=TRAIN.replace(seed=seed, max_steps=options.steps),
    )


def run(job: tuple[str, int, argparse.Namespace]) -> dict:
    """Train one variant with one seed, or resume its training, and score it."""
    variant, seed, options = job
    warnings.simplefilter("ignore", EventReachWarning)
    world, panel = make_world(options.items, options.world_seed, VARIANTS[variant].get("positions", "learned"))
    config = settings(panel, variant, seed, options)
    key = hashlib.sha256((config.to_toml() + panel.fingerprint).encode()).hexdigest()[:12]
    folder = DATA / "regret" / f"{variant.replace(', ', '_').replace(' ', '-')}-{seed}-{key}"
    done = fit(panel, config, folder, resume=True)
    path = folder / "forecasts.parquet"
    if not path.exists():
        forecast(done, panel, path, first=date_of(panel, FIRST_TEST))
    epochs = [line for line in read_metrics(done.metrics) if line["record"] == "epoch"]
    result = {"variant": variant, "seed": seed, **regrets(world, quantiles_of(path, options.items))}
    result |= {
        "steps": epochs[-1]["step"],
        "trajectories": epochs[-1]["trajectories"],
        "seconds": epochs[-1]["seconds"],
    }
    result["folder"] = folder.name
    result["parameters"] = sum(p.numel() for p in done.network().parameters())
    print({k: round(v, 4) if isinstance(v, float) else v for k, v in result.items()}, flush=True)
    return result


def quantiles_of(path: Path, num_items: int) -> np.ndarray:
    """(items, horizon, creation times, levels), from a frame in the order of item, cutoff and horizon."""
    frame = pl.read_parquet(path)
    values = frame.select("q0.5", "q0.9").to_numpy().reshape(num_items, -1, HORIZON, len(LEVELS))
    assert values.shape[1] == LAST_TEST - FIRST_TEST + 1
    return values.transpose(0, 2, 1, 3)


def regrets(world: World, quantiles: np.ndarray) -> dict[str, float]:
    """Loss over the oracle's loss, minus one: overall, in promotion and in holiday weeks."""
    weeks = np.arange(FIRST_TEST, LAST_TEST + 1) + np.arange(1, HORIZON + 1)[:, None]
    actual, best = world.demand[:, weeks], world.oracle.quantiles(LEVELS, FIRST_TEST, LAST_TEST)
    promoted = world.promotions[:, weeks].any(axis=-1)
    holiday = np.broadcast_to(world.holidays[weeks].any(axis=-1), actual.shape)
    slices = {"all": np.ones_like(promoted), "promotions": promoted, "holidays": holiday}
    shares = {}
    for unit, of in {"demand": lambda y: y, "log(1 + demand)": lambda y: np.log1p(np.maximum(y, 0))}.items():
        for i, level in enumerate(LEVELS):
            losses = [pinball(of(actual), of(q[..., i]), level) for q in (quantiles, best)]
            for name, where in slices.items():
                shares[f"{unit} P{level * 100:.0f} {name}"] = float(losses[0][where].sum() / losses[1][where].sum() - 1)
            shares[f"coverage P{level * 100:.0f}"] = float((actual <= quantiles[..., i]).mean())
    return shares


def summary(runs: list[dict]) -> dict[str, dict]:
    """Mean, minimum and maximum over seeds, by variant."""
    by_variant = {}
    for variant in dict.fromkeys(r["variant"] for r in runs):
        of_variant = [r for r in runs if r["variant"] == variant]
        numbers = [k for k, v in of_variant[0].items() if isinstance(v, float)]
        by_variant[variant] = {
            k: {
                name: float(of([r[k] for r in of_variant]))
                for name, of in (("mean", np.mean), ("least", min), ("most", max))
            }
            for k in numbers
        }
    return by_variant


def volatilities(runs: list[dict], options: argparse.Namespace) -> list[dict]:
    """Excess volatility of each run, the oracle's judged the same way, and the reduction against MQ-CNN's same seed."""
    world, _ = make_world(options.items, options.world_seed)
    judged = {"oracle": volatility(world.oracle_forecasts(LEVELS, FIRST_TEST, LAST_TEST), world.actuals)}
    for one in runs:
        frame = pl.read_parquet(DATA / "regret" / one["folder"] / "forecasts.parquet")
        judged[f"{one['variant']} {one['seed']}"] = volatility(frame, world.actuals)
    rows = []
    for name, one in judged.items():
        baseline = judged.get(f"mqcnn {name.split()[-1]}")
        against = one.reduction(baseline).to_dicts() if baseline else [{}, {}]
        for row, reduced in zip(one.summary.to_dicts(), against, strict=True):
            kept = {key: row[key] for key in ("level", "excess", "lo", "hi", "mqc", "direction_changes", "targets")}
            kept |= {f"reduction_{key}": reduced.get(key) for key in ("reduction", "lo", "hi")}
            rows.append({"run": name} | kept)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--world-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(PAPERS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", default="regret")
    options = parser.parse_args()
    started = time.time()
    jobs = [(variant, seed, options) for seed in range(options.seeds) for variant in options.variants]
    jobs.sort(key=lambda job: job[0] == "mqt-all")  # the slowest by far comes last
    with lock(shared=True), multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        runs = pool.map(run, jobs, chunksize=1)
    _, panel = make_world(options.items, options.world_seed)
    record = {
        "settings": settings(panel, "mqt", 0, options).model_dump(mode="json"),
        "summary": summary(runs),
        "volatility": volatilities(runs, options),
        "runs": runs,
        "hours": (time.time() - started) / 3600,
    }
    print(write_record(options.record, record))


if __name__ == "__main__":
    main()
