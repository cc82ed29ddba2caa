"""Quantiles of total demand over 4, 8 and 13 weeks from one network: its own heads, joint paths, summed quantiles.

    python -m lab benchmark span_heads [--model mqt] [--steps 600] [--members 3] [--items 100] [--cutoffs 10]

Networks are trained by the recipe, for up to so many steps, on 130 weeks of a simulated retailer, with P10, P50, P90
and `model.spans`, and forecast later cutoffs, 4 weeks apart. heads: the totals that they learnt themselves, as they
are published, and not calibrated; paths: their weekly quantiles, joined by the dependence that the fit learnt; summed:
the same added up; oracle: 1,000 paths of the exact joint distribution. Networks without spans are trained with the
same steps, for what heads cost the weekly forecasts. Coverage and loss are those of `python -m lab benchmark spans`;
differences are relative to the loss of paths, or of heads that are not calibrated, with the standard error over items.
Writes lab/results/benchmarks/<record>.json.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import polars as pl

from lab.benchmarks.harness import lock, write_record
from lab.benchmarks.spans import HORIZON, SPANS, WANTED, WORLDS, judged, totals_of
from mqcast import Forecaster
from mqcast.errors import MqcastWarning
from mqcast.joint import Dependence, span_quantiles
from mqcast.levels import pinball, quantile_column
from mqcast.simulate import World

KNOWN, APART, NUM_DRAWS = 130, 4, 1000
LEVELS, COLUMNS = (0.1, 0.5, 0.9), [quantile_column(level) for level in WANTED]


def trained(world: World, options: argparse.Namespace, spans: bool) -> tuple[Forecaster, float]:
    """A network that knows the first weeks, and how long it took."""
    weeks = world.frame["ds"].unique().sort()
    config = {"train": {"refit": True}, "model": {"spans": SPANS if spans else ()}}
    chosen = {"schema": world.schema, "config": config, "max_steps": options.steps, "members": options.members}
    start = time.time()
    forecaster = Forecaster(options.model, HORIZON, LEVELS, seed=options.seed, verbose=False, **chosen)
    known = world.frame.filter(pl.col("ds") < weeks[KNOWN])
    forecaster.fit(known, static=world.static, events=world.events)
    return forecaster, time.time() - start


def weekly_loss(steps: pl.DataFrame, demand: pl.DataFrame) -> dict[str, float]:
    """Mean pinball loss of single weeks, by level."""
    both = steps.join(demand, on=["unique_id", "ds"])
    each = {level: pinball(both["y"].to_numpy(), both[quantile_column(level)].to_numpy(), level) for level in WANTED}
    return {f"P{level * 100:.0f}": float(loss.mean()) for level, loss in each.items()}


def measured(name: str, options: argparse.Namespace) -> dict:
    last = KNOWN - 1 + APART * (options.cutoffs - 1)
    cutoffs = list(range(KNOWN - 1, last + 1, APART))
    world = WORLDS[name](options.items, last + HORIZON + 1, HORIZON, options.world_seed)
    weeks, size = world.frame["ds"].unique().sort(), (options.items, len(cutoffs), len(SPANS), len(WANTED))
    wanted, totals = weeks.gather(cutoffs), totals_of(world.demand, cutoffs)

    def revised(forecaster: Forecaster, **of_spans) -> pl.DataFrame:
        found = forecaster.revisions(world.frame, weeks[cutoffs[0]], weeks[last], events=world.events, **of_spans)
        return found.filter(pl.col("cutoff").is_in(wanted.implode()))

    def table(frame: pl.DataFrame) -> np.ndarray:
        return frame.sort("unique_id", "cutoff", "last").select(COLUMNS).to_numpy().reshape(size)

    forecaster, seconds = trained(world, options, spans=True)
    steps = revised(forecaster)
    together = Dependence.constant(HORIZON, 0.999999)
    drawn = [world.oracle.paths(t, NUM_DRAWS, seed=t) for t in cutoffs]
    exact = np.array([[np.quantile(p[:, a - 1 : b].sum(axis=1), WANTED, axis=1) for a, b in SPANS] for p in drawn])
    ways = {
        "oracle": exact.transpose(3, 0, 1, 2),
        "heads": table(revised(forecaster, spans=SPANS, spans_by="heads")),
        "paths": table(revised(forecaster, spans=SPANS, spans_by="paths")),
        "summed quantiles": table(span_quantiles(steps, SPANS, together)),
    }
    assert forecaster.run_ is not None
    forecaster.run_.add_span_calibrators({})
    ways["heads, not calibrated"] = table(revised(forecaster, spans=SPANS, spans_by="heads"))
    plain, plain_seconds = trained(world, options, spans=False)
    ways["paths of a network without spans"] = table(revised(plain, spans=SPANS))
    assert forecaster.config_ is not None
    return {
        "networks": forecaster.config_.model.members,
        "steps": forecaster.config_.train.max_steps,
        "seconds": {"with spans": seconds, "without": plain_seconds},
        "spans": {way: judged(values, totals) for way, values in ways.items()},
        "heads against paths": differences(ways["heads"], ways["paths"], totals),
        "heads against those not calibrated": differences(ways["heads"], ways["heads, not calibrated"], totals),
        "weekly loss": {
            "with spans": weekly_loss(steps, world.actuals),
            "without": weekly_loss(revised(plain), world.actuals),
            "oracle": weekly_loss(pl.concat([world.oracle_forecasts(LEVELS, t, t) for t in cutoffs]), world.actuals),
        },
    }


def differences(one: np.ndarray, other: np.ndarray, totals: np.ndarray) -> dict[str, dict[str, float]]:
    """The loss of one over that of the other, less 1, and its standard error over items."""
    found = {}
    for s, (_, weeks) in enumerate(SPANS):
        for i, level in enumerate(WANTED):
            loss, base = (pinball(totals[:, :, s], way[:, :, s, i], level).mean(axis=1) for way in (one, other))
            gap = loss - base
            error = gap.std(ddof=1) / np.sqrt(len(gap)) / base.mean()
            found[f"{weeks} weeks, P{level * 100:.0f}"] = {"loss": gap.mean() / base.mean(), "error": error}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mqt")
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--record", default="span_heads")
    for name, default in {"steps": 600, "members": 3, "items": 100, "cutoffs": 10, "world-seed": 0, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options, start, results = parser.parse_args(), time.time(), {}
    warnings.simplefilter("ignore", MqcastWarning)
    with lock(shared=True):
        for name in options.worlds:
            results[name] = measured(name, options)
            for how, rows in results[name]["spans"].items():
                shown = [f"{row['coverage']:.3f} {row['pinball']:.3f}" for row in rows.values()]
                print(name, how, " | ".join(shown), flush=True)
            shown = [
                f"{one['loss']:+.3f} ± {one['error']:.3f}" for one in results[name]["heads against paths"].values()
            ]
            print(name, "heads against paths", " | ".join(shown), results[name]["weekly loss"], flush=True)
    print(write_record(options.record, {"results": results, "seconds": time.time() - start}))


if __name__ == "__main__":
    main()
