"""mqcast: `Panel.from_frame`, from the path of the Parquet file or from a pandas frame.

The time includes all input checks (types, duplicates, grid, missing and infinite values), the categories' vocabularies
and the target's scaling. The first batch has BATCH windows of HISTORY creation times each, 168 times the trajectories
of a peer's batch.
"""

import argparse

import pandas as pd
import pyarrow.parquet  # noqa: F401
from clock import BATCH, HISTORY, HORIZON, IDS, Clock

from mqcast import Panel, Schema
from mqcast.data.batch import Assembler, Batch
from mqcast.data.windows import WindowPlan
from mqcast.settings import ScalingConfig, WindowConfig


def draw(panel: Panel) -> Batch:
    """One training batch: BATCH windows of HISTORY steps before as many creation times, each with its HORIZON."""
    config = WindowConfig(horizon=HORIZON, history=HISTORY, num_fcts=HISTORY, batch_size=BATCH)
    assemble = Assembler.fit(panel, config, ScalingConfig())
    return assemble(WindowPlan(panel, config).batch(epoch=0, step=0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--route", choices=("parquet", "pandas"), default="parquet")
    args = parser.parse_args()
    kinds = {"hour": "category", "weekday": "category"}
    schema = Schema(freq="h", static=("unique_id",), known=("hour", "weekday"), kinds=kinds)

    clock = Clock()
    frame = pd.read_parquet(args.path, read_dictionary=IDS) if args.route == "pandas" else args.path
    clock.mark("read")
    panel = Panel.from_frame(frame, schema)
    clock.mark("build")
    batch = draw(panel)
    clock.mark("first_batch")

    assert tuple(batch.known_category.shape) == (BATCH, 2 * HISTORY + HORIZON, 2), batch.known_category.shape

    clock.report(("mqcast", "torch", "numpy", "pandas", "polars", "pyarrow"))


main()
