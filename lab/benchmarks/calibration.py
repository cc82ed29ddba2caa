"""What recalibration does on unseen cutoffs: to the oracle's quantiles, as they are and put wrong, and on real data.

    python -m lab benchmark calibration [--items 300] [--seeds 3] [--data DATA]

Worlds: 104 weeks, a calibrator from 27 weekly cutoffs 13 weeks ahead, judged by the oracle's own chances at 26 cutoffs
that begin once all targets of the fit are known. `miss`: the largest distance, of any lead, of coverage from the level.
Real data: frat by week, rossmann and m5_sample by day, every so-manyth series, without training: seasonal naive, and
the quantiles of the last 28 steps. Calibrators are from 10 and from 27 cutoffs, at two times, and judged at 13 later
ones.
Writes lab/results/benchmarks/calibration.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from lab import datasets
from lab.benchmarks.harness import lock, write_record
from mqcast import Panel, calibrate
from mqcast.forecast.baselines import seasonal_naive
from mqcast.levels import pinball
from mqcast.simulate import World, count_world, lognormal_world

LEVELS, NAMES = (0.1, 0.5, 0.9), ["q0.1", "q0.5", "q0.9"]
FIRST, FITTED, HORIZON, UNSEEN = 104, 27, 13, 26
WORLDS = {"lognormal": lognormal_world, "counts": count_world}
REAL = {"frat": ("1w", 13, 25), "rossmann": ("1d", 14, 10), "m5_sample": ("1d", 14, 10)}
LATER, RECENT = 13, 28


def scaled(frame: pl.DataFrame, width: pl.Expr | float, bias: float = 1.0) -> pl.DataFrame:
    moved = (bias * (pl.col("q0.5") + (pl.col(name) - pl.col("q0.5")) * width) for name in NAMES)
    return frame.with_columns(one.alias(name) for one, name in zip(moved, NAMES, strict=True))


def wrong_forecasts(frame: pl.DataFrame, static: pl.DataFrame) -> Iterator[tuple[str, tuple[str, ...], pl.DataFrame]]:
    """How they are wrong, the columns to calibrate by, and the forecasts."""
    yield "right", (), frame
    for name, width, bias in (
        ("narrow", 0.5, 1),
        ("wide", 2, 1),
        ("high", 1, 1.25),
        ("low", 1, 0.8),
        ("both", 0.6, 1.2),
    ):
        yield name, (), scaled(frame, width, bias)
    yield "narrower by lead", (), scaled(frame, 1.2 - 0.6 * pl.col("horizon") / HORIZON)
    first = static.filter(pl.col("category") == static["category"][0])["unique_id"]
    own = pl.when(pl.col("unique_id").is_in(first.implode())).then(0.5).otherwise(1.0)
    yield "narrow in a category", ("category",), scaled(frame, own)


def miss(world: World, frame: pl.DataFrame) -> dict[str, float]:
    """The largest distance of coverage from the level, of any lead."""
    found = {}
    for name, level in zip(NAMES, LEVELS, strict=True):
        chances = frame.select("horizon", chance=world.oracle_chances(frame, frame[name].to_numpy()))
        of_lead = chances.group_by("horizon").mean()["chance"]
        found[name] = float((of_lead - level).abs().max())
    return found


def of_world(name: str, num_items: int, seed: int) -> list[dict]:
    begin = FIRST + FITTED + HORIZON - 1
    world = WORLDS[name](num_items, begin + UNSEEN, HORIZON, seed)
    oracle = world.oracle_forecasts(LEVELS, FIRST, begin + UNSEEN - 1)
    weeks = world.events["ds"].to_numpy()
    is_early = pl.col("cutoff") <= weeks[FIRST + FITTED - 1]
    rows = []
    for how, by, frame in wrong_forecasts(oracle, world.static):
        early, late = frame.filter(is_early), frame.filter(pl.col("cutoff") >= weeks[begin])
        made = calibrate(early, world.actuals, by, static=world.static)
        after = made.apply(late, static=world.static)
        actual = late.join(world.actuals, on=["unique_id", "ds"], how="left", maintain_order="left")["y"].to_numpy()
        losses = {
            when: [
                float(pinball(actual, table[q].to_numpy(), level).mean())
                for q, level in zip(NAMES, LEVELS, strict=True)
            ]
            for when, table in (("before", late), ("after", after))
        }
        crossing = float((np.diff(after.select(NAMES).to_numpy(), axis=1) < 0).any(axis=1).mean())
        change = {q: a / b - 1 for q, b, a in zip(NAMES, losses["before"], losses["after"], strict=True)}
        row = {"world": name, "seed": seed, "forecasts": how, "by": by, "loss_change": change, "crossing": crossing}
        if name == "lognormal":  # of counts, no quantile has exactly the chance of its level
            row |= {"miss_before": miss(world, late), "miss_after": miss(world, after)}
        print(row, flush=True)
        rows.append(row)
    return rows


def recent(rows: pl.DataFrame, dates: list, horizon: int) -> pl.DataFrame:
    """The quantiles of the last steps, the same for all leads."""
    windows = [
        pl.col("y").rolling_quantile(level, "linear", window_size=RECENT, min_samples=8).over("unique_id").alias(name)
        for name, level in zip(NAMES, LEVELS, strict=True)
    ]
    place = pl.DataFrame({"ds": dates, "place": range(len(dates))})
    table = rows.sort("unique_id", "ds").with_columns(windows).join(place, on="ds").drop_nulls(NAMES)
    leads = pl.DataFrame({"horizon": np.arange(1, horizon + 1, dtype=np.int32)})
    table = table.rename({"ds": "cutoff"}).join(leads, how="cross").with_columns(pl.col("place") + pl.col("horizon"))
    return table.join(place, on="place").select("unique_id", "cutoff", "ds", "horizon", *NAMES)


def of_real(name: str, folder: Path) -> list[dict]:
    step, horizon, every = REAL[name]
    dataset, found = datasets.load(name, folder), []
    schema = dataset.schema
    rows = dataset.frame.select(unique_id=schema.id, ds=schema.time, y=pl.col(schema.target).cast(pl.Float64))
    ids = rows["unique_id"].unique().sort().gather_every(every)
    rows = rows.filter(pl.col("unique_id").is_in(ids.implode())).drop_nulls()
    last, length = rows["ds"].max(), FITTED + LATER + 2 * horizon + 40
    dates = pl.datetime_range(
        last - length * (rows["ds"].sort().unique().diff().mode()[0]), last, step, eager=True
    ).to_list()
    panel = Panel.from_frame(rows)
    frames = {
        "seasonal naive": seasonal_naive(panel, horizon, LEVELS, first=dates[0], last=dates[-horizon - 1]),
        "recent quantiles": recent(rows, dates, horizon),
    }
    for model, frame in frames.items():
        for number in (10, FITTED):
            for end in (len(dates) - horizon - 1, len(dates) - horizon - 21):  # the last unseen cutoff
                fitted = slice(end - LATER - horizon + 2 - number, end - LATER - horizon + 2)
                early = frame.filter(pl.col("cutoff").is_in(dates[fitted]))
                made = calibrate(early, rows)
                late = frame.filter(pl.col("cutoff").is_in(dates[end - LATER + 1 : end + 1]))
                for row in made.effect(late, rows).iter_rows(named=True):
                    found.append({"data": name, "model": model, "cutoffs": number, "end": str(dates[end].date())} | row)
                    print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    with lock(shared=True):
        worlds = [
            row for name in WORLDS for seed in range(options.seeds) for row in of_world(name, options.items, seed)
        ]
        real = [row for name in REAL for row in of_real(name, options.data)] if options.data else []
    print(write_record("calibration", {"worlds": worlds, "real": real}))


if __name__ == "__main__":
    main()
