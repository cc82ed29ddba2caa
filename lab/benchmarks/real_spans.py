"""Quantiles of total demand over spans on real data, from a network that is trained for a few minutes.

    python -m lab benchmark real_spans --data DATA [--minutes 3] [--model mqt] [--only frat rossmann m5_sample]

frat by week, rossmann and m5_sample by day, every so-manyth series. The network knows the dates up to the first cutoff,
with P10, P50 and P90; the cutoffs after it are unseen, and it is not trained again. paths: what `predict(spans=…)`
gives. summed quantiles, independent steps: the same steps, joined otherwise. totals calibrated: paths, with the totals
of each span moved as their errors on the dates of the rehearsal say. steps not calibrated, steps moved as by
`calibrate`: paths of the network's own quantiles, and of those that are calibrated without regard to its being trained
again after the rehearsal. single steps, and with these two names, are the steps themselves.

Coverage is that of all series and cutoffs, its error that of means of cutoffs. Where demand is counted, a total is
spread over the unit around it, since no whole number has exactly the chance of a level.
Writes lab/results/benchmarks/real_spans.json.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab import datasets
from lab.benchmarks.harness import lock, write_record
from lab.benchmarks.span_heads import COLUMNS, WANTED
from lab.datasets import Dataset
from mqcast import Forecaster, Schema, calibrate
from mqcast.errors import MqcastWarning, TooFewRevisionsError
from mqcast.evaluation.reading import actuals_table
from mqcast.evaluation.spans import by_span
from mqcast.evaluation.tables import Names
from mqcast.joint import Dependence, span_quantiles
from mqcast.levels import pinball
from mqcast.models.holdout import calibrated, hold_out
from mqcast.models.networks import FittedNetwork
from mqcast.run import Run

LEVELS = (0.1, 0.5, 0.9)
# every so-manyth series, horizon, lengths of spans, unseen cutoffs, and steps between them
REAL: dict[str, tuple[int, int, tuple[int, ...], int, int]] = {
    "frat": (12, 13, (4, 8, 13), 8, 4),
    "rossmann": (8, 28, (7, 14, 28), 10, 14),
    "m5_sample": (4, 28, (7, 14, 28), 10, 14),
}


def part_of(name: str, folder: Path) -> Dataset:
    dataset, schema = datasets.load(name, folder), datasets.load(name, folder).schema
    ids = dataset.rows.select(pl.col(schema.id).unique().sort()).collect()[schema.id].gather_every(REAL[name][0])
    rows = dataset.rows.filter(pl.col(schema.id).is_in(ids.implode()))
    static = None if dataset.static is None else dataset.static.filter(pl.col(schema.id).is_in(ids.implode()))
    return Dataset(rows, schema, static, dataset.events)


def forecasts_of(data: Dataset, dates: list, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """How the network was trained, and frames of steps and of totals by how they were made."""
    _, horizon, lengths, _, _ = REAL[name]
    schema, spans = data.schema, [(1, length) for length in lengths]
    chosen = {"schema": schema, "max_minutes": options.minutes, "seed": options.seed, "verbose": False}
    forecaster, start = Forecaster(options.model, horizon, LEVELS, **chosen), time.time()
    forecaster.fit(data.frame.filter(pl.col(schema.time) <= dates[0]), **data.tables)
    assert forecaster.config_ is not None
    trained = {"seconds": time.time() - start, "steps": forecaster.config_.train.max_steps}
    trained |= {"networks": forecaster.config_.model.members, "series": data.frame[schema.id].n_unique()}

    def revised() -> pl.DataFrame:
        return pl.concat([forecaster.revisions(data.frame, date, date, **data.tables) for date in dates])

    def totals(steps: pl.DataFrame, dependence: Dependence) -> pl.DataFrame:
        return span_quantiles(steps, spans, dependence, schema=schema)

    fitted: Any = forecaster.fitted_
    steps, together = revised(), fitted.dependence
    frames = {"single steps": steps, "paths": totals(steps, together)}
    for way, correlation in {"summed quantiles": 0.999999, "independent steps": 0.0}.items():
        frames[way] = totals(steps, Dependence.constant(horizon, correlation))
    holdout = hold_out(forecaster.panel_, forecaster._options())
    rehearsed = holdout.revisions(FittedNetwork(Run.open(fitted.run.folder / "rehearsal")))
    published = calibrated(rehearsed, fitted.run.calibrator)
    frames["totals calibrated"] = moved(frames["paths"], totals(published, together), holdout.actuals, schema)
    fitted.run.add_calibrator(replace(fitted.run.calibrator, shift=0 * fitted.run.calibrator.shift))
    own, as_given = revised(), calibrate(rehearsed, holdout.actuals, levels=LEVELS, schema=schema)
    for way, frame in {"not calibrated": own, "moved as by `calibrate`": calibrated(own, as_given)}.items():
        frames |= {f"single steps {way}": frame, f"steps {way}": totals(frame, together)}
    return {"trained": trained, "frames": frames}


def moved(totals: pl.DataFrame, past: pl.DataFrame, actuals: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """The totals, calibrated span by span by earlier ones; as they are where there were too few."""
    names, parts = Names.of(schema), []
    for span in by_span(past, actuals_table(actuals, names), names):
        frame = totals.filter(pl.col("last") == span.last)
        with contextlib.suppress(TooFewRevisionsError):
            calibrator = calibrate(span.forecasts, span.actuals, schema=schema, trained_again=True)
            frame = calibrated(frame.with_columns(horizon="last"), calibrator).drop("horizon")
        parts.append(frame)
    return pl.concat(parts)


def with_actuals(frame: pl.DataFrame, data: Dataset, lengths: tuple[int, ...]) -> pl.DataFrame:
    """The forecasts of spans and of steps (span 1), with the demand that followed; rows that lack some are left out."""
    id, time_, target = data.schema.id, data.schema.time, data.schema.target
    demand = data.frame.select(id, pl.col(time_).alias("date"), pl.col(target).cast(pl.Float64).alias("demand"))
    if "span" not in frame.columns:
        return frame.with_columns(span=pl.lit(1)).join(demand, left_on=[id, time_], right_on=[id, "date"]).drop_nulls()
    runs = [
        demand.sort(id, "date").select(
            id,
            "date",
            pl.lit(length, pl.Int32).alias("span"),
            pl.col("demand").rolling_sum(length).over(id),
            pl.col("date").shift(length - 1).over(id).alias("begin"),
        )
        for length in lengths
    ]
    both = frame.join(pl.concat(runs), left_on=[id, time_, "span"], right_on=[id, "date", "span"])
    return both.filter(pl.col("begin") == pl.col("start")).drop_nulls("demand")


def judged(rows: pl.DataFrame) -> dict[str, dict[str, float]]:
    """By span and level: coverage with its standard error over cutoffs, and pinball loss."""
    found, counted = {}, bool((rows["demand"] == rows["demand"].round()).all())
    for (span,), part in sorted(rows.group_by("span")):
        for level, column in zip(WANTED, COLUMNS, strict=True):
            actual, quantile = part["demand"].to_numpy(), part[column].to_numpy()
            within = np.clip(quantile - actual + 0.5, 0, 1) if counted else (actual <= quantile).astype(float)
            by_cutoff = part.select("cutoff", within=within).group_by("cutoff").mean()["within"].to_numpy()
            error = by_cutoff.std(ddof=1) / np.sqrt(len(by_cutoff))
            found[f"{span} steps, P{level * 100:.0f}"] = {
                "coverage": float(within.mean()),
                "error": float(error),
                "at or below": float((actual <= quantile).mean()),
                "pinball": float(pinball(actual, quantile, level).mean()),
                "totals": len(part),
            }
    return found


def measured(name: str, options: argparse.Namespace) -> dict:
    _, horizon, lengths, num, apart = REAL[name]
    data = part_of(name, options.data)
    every = data.frame[data.schema.time].unique().sort()
    last = len(every) - 1 - horizon - options.earlier
    dates = [every[last - apart * i] for i in range(num)][::-1]
    found = forecasts_of(data, dates, name, options)
    ways = {way: judged(with_actuals(frame, data, lengths)) for way, frame in found["frames"].items()}
    return {"cutoffs": [str(date) for date in dates], **found["trained"], "spans": ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--model", default="mqt")
    parser.add_argument("--only", nargs="+", default=list(REAL), choices=list(REAL))
    for option in ("seed", "earlier"):  # earlier: steps by which all cutoffs are moved back
        parser.add_argument(f"--{option}", type=int, default=0)
    options, start, results = parser.parse_args(), time.time(), {}
    warnings.simplefilter("ignore", MqcastWarning)
    with lock(shared=True):
        for name in options.only:
            results[name] = measured(name, options)
            for way, rows in results[name]["spans"].items():
                shown = [f"{row['coverage']:.3f} {row['pinball']:.3f}" for row in rows.values()]
                print(name, way, " | ".join(shown), flush=True)
    print(write_record("real_spans", {"results": results, "seconds": time.time() - start}))


if __name__ == "__main__":
    main()
