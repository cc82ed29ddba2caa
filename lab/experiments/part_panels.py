"""The panels of a paper's task: a data set cut into parts, scaled by what training knows, and packed."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from lab.datasets import Dataset
from lab.datasets.source_files import file_stamps
from mqcast.data.panel import Panel, pack
from mqcast.durable import cannot_write, write_file
from mqcast.errors import DataError
from mqcast.version import __version__

VALID = "valid "  # before the names of series of the validation part, which is packed with the training part
RECORDED = "as-recorded"  # the folder of the recipe's panels
VALID_NAME = pl.concat_str(pl.lit(VALID), "unique_id").alias("unique_id")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Panels:
    """A prepared PaperTask: `training` holds the parts train and valid, for presets, which validate on the second.

    The parts that are forecast are panels of their own. The recipe has panels of the data as recorded, without what
    published code made from the date.
    """

    task: Any
    folder: Path

    @cached_property
    def training(self) -> Panel:
        return Panel.open(self.folder / "training")

    def part(self, name: str) -> Panel:
        """The rows of a part, as published code has them."""
        return Panel.open(self.folder / name)

    def recorded(self, name: str) -> Panel:
        """The rows of a part as recorded; the recipe learns from those of `train`."""
        return Panel.open(self.folder / RECORDED / name)

    def actuals(self, part: str) -> pl.DataFrame:
        """Targets in their own units, as they are scored: unique_id, ds, y."""
        rows = pl.scan_parquet(self.folder / "rows" / f"{part}.parquet")
        return rows.select("unique_id", "ds", y="actual").collect()

    def in_units(self, forecasts: pl.LazyFrame) -> pl.LazyFrame:
        """Scaled quantiles in the target's own units."""
        scales = pl.scan_parquet(self.folder / "scales.parquet").select("unique_id", "y_loc", "y_scale")
        levels = pl.selectors.matches(r"^q0\.")
        joined = forecasts.join(scales, on="unique_id", how="left", maintain_order="left")
        return joined.with_columns(levels * pl.col("y_scale") + pl.col("y_loc")).drop("y_loc", "y_scale")


def panels_of(task: Any, data: Path, folder: Path, on_progress: Progress | None = None) -> Panels:
    """The task's panels in `folder`, made now unless they were made from the same files in `data`."""
    made_from = json.dumps({"files": file_stamps(data), "options": task.options, "mqcast": __version__}, indent=1)
    note = folder / "made-from.json"
    if note.exists() and note.read_text(encoding="utf-8") == made_from:
        return Panels(task, folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    dataset = task.load_dataset(data)
    shutil.rmtree(folder, ignore_errors=True)
    panels = prepare(task, dataset, folder, on_progress)
    write_file(note, made_from)
    return panels


def prepare(task: Any, dataset: Dataset, folder: Path, on_progress: Progress | None = None) -> Panels:
    """Cut, scale and pack; series that training has too few rows of are left out everywhere."""
    known = tuple(name for name in dataset.schema.known if name not in task.left_out)
    kinds = {name: kind for name, kind in dataset.schema.kinds.items() if name not in task.left_out}
    schema = dataset.schema.replace(known=known, kinds=kinds)
    parts = folder / "rows"
    parts.mkdir(parents=True, exist_ok=True)
    scales = _scales(task, dataset)
    scales.write_parquet(folder / "scales.parquet")
    for part in task.parts:
        _rows_of(task, dataset, scales, part).sink_parquet(parts / f"{part}.parquet")
    assert dataset.static is not None
    static = pl.concat([dataset.static, dataset.static.with_columns(VALID_NAME)])
    files = [parts / "train.parquet", parts / "valid.parquet"]
    training = pack(files, folder / "training", schema, static, dataset.events, on_progress=on_progress)
    recorded = replace(dataset, schema=schema).as_recorded()
    tables = recorded.static, recorded.events
    known = pack(parts / "train.parquet", folder / RECORDED / "train", recorded.schema, *tables)
    for part in task.parts.keys() - {"train", "valid"}:
        pack(parts / f"{part}.parquet", folder / part, None, dataset.static, dataset.events, like=training)
        pack(parts / f"{part}.parquet", folder / RECORDED / part, None, *tables, like=known)
    return Panels(task, folder)


def _inside(task: Any, rows: pl.LazyFrame, part: str, *, is_open: bool = False) -> pl.LazyFrame:
    """The rows of a part, of the series that have a block and some target there.

    With `is_open` a series that ends without a target goes on to its next one. A panel takes the last target for the
    end of a series; no window sees what is after its span.
    """
    first, last = task.parts[part]
    stamp, target = pl.col("ds").cast(pl.Datetime("us")), pl.col("y")
    inside = rows.filter(stamp.is_between(first, last))
    lengths = inside.group_by("unique_id").agg(pl.len(), observed=target.count(), final=target.sort_by("ds").last())
    whole = lengths.filter((pl.col("len") >= task.total_steps) & (pl.col("observed") > 0)).collect(engine="streaming")
    if whole.height == 0:
        raise DataError(
            f"{task.name}: no series has {task.total_steps} rows from {first} to {last}, its part {part!r}",
            "use the whole of the files",
        )
    inside = inside.filter(_is_one_of(whole["unique_id"]))
    endless = whole.filter(pl.col("final").is_null())["unique_id"]
    if not is_open or endless.is_empty():
        return inside
    later = rows.filter(_is_one_of(endless), stamp > last, target.is_not_null())
    ends = later.group_by("unique_id").agg(end=stamp.min()).collect(engine="streaming")
    longer = rows.filter(_is_one_of(whole["unique_id"]), stamp >= first)
    longer = longer.join(ends.lazy(), on="unique_id", how="left", maintain_order="left")
    return longer.filter(stamp <= pl.col("end").fill_null(last)).drop("end")


def _is_one_of(names: pl.Series) -> pl.Expr:
    return pl.col("unique_id").is_in(names.implode())


def _scaled_columns(task: Any, dataset: Dataset) -> list[str]:
    """The target; where each series has scales of its own, its known numbers too. (Others are scaled in batches.)"""
    return ["y", *(dataset.schema.known if task.scaled_by == "entity" else ())]


def _scales(task: Any, dataset: Dataset) -> pl.DataFrame:
    """Location and scale of the columns of each series that is trained on, by its training part or by all of them."""
    train = _inside(task, dataset.rows, "train")
    moments = []
    for name in _scaled_columns(task, dataset):
        spread = pl.col(name).std(task.deviation_ddof)
        moments += [pl.col(name).mean().alias(f"{name}_loc")]
        moments += [pl.when(spread > 0).then(spread).otherwise(1.0).alias(f"{name}_scale")]
    if task.scaled_by == "entity":
        return train.group_by("unique_id").agg(moments).sort("unique_id").collect(engine="streaming")
    names = train.select("unique_id").unique().collect(engine="streaming")
    return names.join(train.select(moments).collect(engine="streaming"), how="cross").sort("unique_id")


def _rows_of(task: Any, dataset: Dataset, scales: pl.DataFrame, part: str) -> pl.LazyFrame:
    """A part's rows with scaled columns, and the target in its own units as `actual`."""
    rows = _inside(task, dataset.rows, part, is_open=part in ("train", "valid") and not task.is_imputed)
    rows = rows.join(scales.lazy(), on="unique_id", how="inner", maintain_order="left")
    if task.is_imputed:
        rows = rows.with_columns(pl.col("y").fill_null(pl.col("y_loc")))
    names = _scaled_columns(task, dataset)
    scaled = [((pl.col(name) - pl.col(f"{name}_loc")) / pl.col(f"{name}_scale")).alias(name) for name in names]
    used = [f"{name}_{moment}" for name in names for moment in ("loc", "scale")]
    rows = rows.with_columns(pl.col("y").alias("actual"), *scaled).drop(*used, *task.left_out)
    return rows.with_columns(VALID_NAME) if part == "valid" else rows
