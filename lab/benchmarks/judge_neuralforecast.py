"""Evaluate another library's frame: NeuralForecast's `cross_validation` of TFT and NHITS on a simulated retailer.

    python -m lab benchmark judge_neuralforecast [--items 200] [--steps 300] [--cutoffs 40]

The peer trains and forecasts in an environment of its own; its Parquet file is converted, and judged beside the oracle:
accuracy by slice, volatility with a paired reduction, and what the stabilisers do to it (the filter is fitted on the
first half of the cutoffs, everything is judged on the second). The peer sees only sales, no promotions and no holidays:
this shows that the evaluation works on its frame, not how good the peer can be.
Writes lab/results/benchmarks/judge_neuralforecast.json.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import polars as pl

from lab.benchmarks import harness, pack
from mqcast import compare, evaluate, rank_revisions, volatility
from mqcast.evaluation import MartingaleFilter, ensemble, from_neuralforecast, trade_off
from mqcast.evaluation.slices import demand_deciles, peaks, promotions, ramp_down, short_horizons
from mqcast.simulate import World, lognormal_world

HORIZON, NUM_WEEKS, LEVELS = 13, 156, (0.5, 0.9)


def forecast(world: World, model: str, options: argparse.Namespace) -> tuple[pl.DataFrame, dict]:
    """The peer's frame, as it wrote it."""
    python = harness.environment("neuralforecast", pack.PINS["neuralforecast"])
    if isinstance(python, str):
        raise SystemExit(python)
    script = harness.LAB / "peers" / "neuralforecast_cross_validation.py"
    with tempfile.TemporaryDirectory() as folder:
        sales, output = Path(folder) / "sales.parquet", Path(folder) / "forecasts.parquet"
        world.actuals.write_parquet(sales)
        command = [python, script, sales, output, "--freq", "W-SUN", "--model", model, "--horizon", HORIZON]
        command += ["--history", 52, "--windows", options.cutoffs, "--max-steps", options.steps]
        done = harness.run([*command, "--quantiles", *LEVELS])
        if "failed" in done:
            raise SystemExit(done["failed"])
        return pl.read_parquet(output), done


def judge(world: World, models: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    actuals, holidays = world.actuals, [name for name in world.events.columns if name != "ds"]
    slices = [
        peaks(world.events, holidays),
        ramp_down(world.events, holidays),
        promotions(world.frame, ["promo_display", "promo_coupon"]),
        short_horizons(4),
        demand_deciles(actuals, groups=4),
    ]
    judged = {name: volatility(frame, actuals) for name, frame in models.items()}
    tables = {f"volatility: {name}": one.summary for name, one in judged.items()}
    tables["reduction: NHITS over TFT"] = judged["NHITS"].reduction(judged["TFT"])
    tables["accuracy"] = evaluate(models, actuals)
    tables["relative to TFT"] = compare(models, actuals, baseline="TFT", slices=slices).table
    tables["ranked revisions: TFT"] = rank_revisions(models["TFT"], actuals, top=5)
    middle = models["TFT"]["cutoff"].unique().sort()
    middle = middle[len(middle) // 2]
    early, late = (models["TFT"].filter(part) for part in (pl.col("ds") <= middle, pl.col("cutoff") > middle))
    calmer = {f"mean of {over}": ensemble(late, over) for over in (2, 4)}
    calmer["filtered"] = MartingaleFilter.fit(early, actuals).apply(late)
    tables["trade-off: TFT, second half"] = trade_off({"as it is": late} | calmer, actuals)
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"items": 200, "steps": 300, "cutoffs": 40, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    world = lognormal_world(options.items, NUM_WEEKS, HORIZON, seed=options.seed)
    frames, made = {}, {}
    for model in ("tft", "nhits"):
        frame, made[model] = forecast(world, model, options)
        frames[model.upper()] = from_neuralforecast(frame, model.upper())
    weeks = world.actuals["ds"].unique().sort()
    first, last = (
        weeks.search_sorted(frames["TFT"]["cutoff"].min()),
        weeks.search_sorted(frames["TFT"]["cutoff"].max()),
    )
    frames["oracle"] = world.oracle_forecasts(LEVELS, int(first), int(last))
    with pl.Config(tbl_cols=30, tbl_rows=40, tbl_width_chars=200):
        tables = judge(world, frames)
        for name, table in tables.items():
            print(name, table, sep="\n")
    body = {"peer": made, "tables": {name: table.to_dicts() for name, table in tables.items()}}
    print(harness.write_record("judge_neuralforecast", body))


if __name__ == "__main__":
    main()
