"""Quantiles of total demand over 4, 8 and 13 weeks on simulated retailers, from the oracle's weekly quantiles.

    python -m lab benchmark spans [--items 200] [--cutoffs 10] [--world-seed 0]

The forecaster is the oracle itself, with 13 levels a week. Its weekly quantiles are joined by the dependence that is
learnt from its forecasts of 26 earlier cutoffs (gaussian: what mqcast does; schaake: the ranks of whole past outcomes
in its place), as if weeks were independent, and by adding up the quantiles. oracle: 1,000 paths of the exact joint
distribution. The same again with the levels that a Forecaster has by default, P50 and P90, and with P10 beside them.
Coverage is that of all items and cutoffs after the last target that was learnt from; its error is that of means of
cutoffs, which are 4 weeks apart. Energy scores are of 200 paths of 13 weeks, in units of the mean.
Writes lab/results/benchmarks/spans.json.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import polars as pl

from lab.benchmarks.harness import lock, write_record
from mqcast.evaluation.reading import read_forecasts
from mqcast.joint import Dependence, fit_dependence, paths_of, span_quantiles
from mqcast.levels import pinball, quantile_column
from mqcast.simulate import count_world, lognormal_world

LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
KNOWN = {"13 levels": LEVELS, "P10, P50, P90": (0.1, 0.5, 0.9), "P50, P90": (0.5, 0.9)}
HORIZON, SPANS, WANTED = 13, ((1, 4), (1, 8), (1, 13)), (0.5, 0.9)
LEARN_FROM, NUM_LEARNT, APART = 78, 26, 4
WORLDS = {"lognormal": lognormal_world, "counts": count_world}
PATHS, NUM_DRAWS = 200, 1000


class Schaake(Dependence):
    """The ranks of past outcomes, drawn with their forecasts, in place of those of a Gaussian copula."""

    past: np.ndarray  # (forecasts, horizon)

    def template(self, seed: int, num_draws: int = 2048) -> np.ndarray:
        chosen = np.random.default_rng(seed).choice(len(self.past), num_draws)
        return self.past[chosen].argsort(axis=0).argsort(axis=0).T

    def ranks(self, keys, horizon, num_paths, seed, groups=(), share=0.0) -> np.ndarray:
        return np.stack([self.template(seed + i, num_paths)[:horizon] for i in range(len(keys))])


def schaake(forecasts: pl.DataFrame, actuals: pl.DataFrame, like: Dependence) -> Schaake:
    from mqcast.evaluation.reading import read_actuals
    from mqcast.evaluation.tables import actuals_of
    from mqcast.joint.learning import _grid, _scores

    rows = read_forecasts(forecasts)
    actual = actuals_of(rows, read_actuals(actuals), "raise")[rows.trajectory]
    found = Schaake(like.correlation, like.not_negative, like.num_forecasts, like.num_cutoffs)
    found.__dict__["past"] = _grid(rows, _scores(rows, actual, like.not_negative, 0), HORIZON)[0]
    return found


def world_of(name: str, options: argparse.Namespace):
    last = LEARN_FROM + NUM_LEARNT - 1 + HORIZON + APART * (options.cutoffs - 1)
    return WORLDS[name](options.items, last + 1, HORIZON, options.world_seed), last


def totals_of(demand: np.ndarray, cutoffs: list[int]) -> np.ndarray:
    """(items, cutoffs, spans)"""
    sums = [[demand[:, t + first : t + last + 1].sum(axis=1) for first, last in SPANS] for t in cutoffs]
    return np.array(sums).transpose(2, 0, 1)


def judged(quantiles: np.ndarray, totals: np.ndarray) -> dict:
    """By span and level: coverage with its standard error, and pinball loss, for (items, cutoffs, spans, levels)."""
    found = {}
    for s, (_, weeks) in enumerate(SPANS):
        for i, level in enumerate(WANTED):
            one, actual = quantiles[:, :, s, i], totals[:, :, s]
            by_cutoff = (actual <= one).mean(axis=0)
            error = by_cutoff.std(ddof=1) / np.sqrt(len(by_cutoff))
            ties = float((actual == one).mean())
            loss = float(pinball(actual, one, level).mean())
            found[f"{weeks} weeks, P{level * 100:.0f}"] = {
                "coverage": float(by_cutoff.mean()),
                "error": float(error),
                "ties": ties,
                "pinball": loss,
            }
    return found


def energy_score(paths: np.ndarray, actual: np.ndarray) -> float:
    """Mean of |X - y| less half of |X - X'|, of (forecasts, horizon, paths), each over its size."""
    size = np.maximum(paths.mean(axis=(1, 2)), 1e-9)
    to_actual = np.linalg.norm(paths - actual[..., None], axis=1).mean(axis=1)
    half = paths.shape[2] // 2
    apart = np.mean([np.linalg.norm(paths - np.roll(paths, k, axis=2), axis=1).mean(axis=1) for k in (1, 7, half)], 0)
    return float(((to_actual - apart / 2) / size).mean())


def spans_of(frame: pl.DataFrame, dependence: Dependence, size: tuple[int, int]) -> np.ndarray:
    found = span_quantiles(frame, SPANS, dependence, WANTED).sort("unique_id", "cutoff", "last")
    return found.select(quantile_column(level) for level in WANTED).to_numpy().reshape(*size, len(SPANS), len(WANTED))


def measured(name: str, options: argparse.Namespace) -> dict:
    world, last = world_of(name, options)
    cutoffs = list(range(LEARN_FROM + NUM_LEARNT - 1 + HORIZON, last + 1, APART))
    actuals = world.actuals
    past = world.oracle_forecasts(LEVELS, LEARN_FROM, LEARN_FROM + NUM_LEARNT - 1)
    coming = pl.concat([world.oracle_forecasts(LEVELS, t, t) for t in cutoffs])
    totals, size = totals_of(world.demand, cutoffs), (len(world.demand), len(cutoffs))
    drawn = [world.oracle.paths(t, NUM_DRAWS, seed=t) for t in cutoffs]
    exact = np.array([[np.quantile(p[:, a - 1 : b].sum(axis=1), WANTED, axis=1) for a, b in SPANS] for p in drawn])
    found, correlation = {"oracle": judged(exact.transpose(3, 0, 1, 2), totals)}, None
    actual = np.concatenate([world.demand[:, t + 1 : t + 1 + HORIZON] for t in cutoffs])
    energy = {"oracle": energy_score(np.concatenate([one[..., :PATHS] for one in drawn]), actual)}
    for known, levels in KNOWN.items():
        columns = [*past.columns[:4], *(quantile_column(level) for level in levels)]
        learnt = fit_dependence(past[columns], actuals)
        joined = {"gaussian": learnt, "schaake": schaake(past[columns], actuals, learnt)}
        joined |= {"independent weeks": Dependence.constant(HORIZON, 0.0)}
        joined |= {"summed quantiles": Dependence.constant(HORIZON, 0.999999)}
        for how, dependence in joined.items():
            found[f"{how}, {known}"] = judged(spans_of(coming[columns], dependence, size), totals)
            if levels == LEVELS:
                energy[how] = energy_score(by_cutoff(paths_of(coming[columns], dependence, PATHS), cutoffs), actual)
        correlation = correlation or learnt.correlation[[0, 0, 5], [1, 12, 6]].round(3).tolist()
    return {"correlation of steps 1 and 2, 1 and 13, 6 and 7": correlation, "spans": found, "energy_score": energy}


def by_cutoff(paths, cutoffs: list[int]) -> np.ndarray:
    """The paths of all items from the first cutoff, then of all from the second …"""
    values = paths.values.reshape(-1, len(cutoffs), *paths.values.shape[1:])
    return values.transpose(1, 0, 2, 3).reshape(-1, *paths.values.shape[1:]).astype(float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"items": 200, "cutoffs": 10, "world-seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options, start, results = parser.parse_args(), time.time(), {}
    with lock(shared=True):
        for name in WORLDS:
            results[name] = measured(name, options)
            for how, rows in results[name]["spans"].items():
                shown = [f"{row['coverage']:.3f} {row['pinball']:.3f}" for row in rows.values()]
                print(name, how, " | ".join(shown), flush=True)
            print(name, results[name]["energy_score"], flush=True)
    print(write_record("spans", {"results": results, "seconds": time.time() - start}))


if __name__ == "__main__":
    main()
