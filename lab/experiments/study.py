"""A study: one data set, one split, systems that are trained alike and judged on the same windows; written in TOML."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import polars as pl
from pydantic import Field

from lab import datasets
from lab.datasets import Dataset
from mqcast.errors import ConfigError
from mqcast.evaluation.slices import Slice, peaks, promotions, ramp_down, short_horizons
from mqcast.settings import RunConfig, Settings

BUNDLED = Path(__file__).parent / "studies"
NETWORKS = ("mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn")
UNFORKED = "-unforked"  # the same network, of as many trajectories drawn one by one
DRAWN_AT_A_TIME = 64
MEAN_OF = "-mean-of-"  # the mean of several of a network, of other seeds, that share the time
BASELINE = "mqcnn"


class Study(Settings):
    """Trained on targets up to `train_until`; judged from every cutoff from there to `last_cutoff`."""

    name: str
    loader: str
    options: dict[str, Any] = Field(default={}, description="of the loader")
    horizon: int = Field(ge=1)
    train_until: dt.datetime
    last_cutoff: dt.datetime
    levels: tuple[float, ...] = (0.5, 0.9)
    observed: str | None = Field(default=None, description="a known flag: where it is 0 there is nothing to judge")
    short: int = Field(default=1, ge=1, description="leads that count as short")
    peak_share: float | None = Field(default=None, description="dates by total demand that are peaks")
    ramp: int = Field(default=1, ge=1, description="steps after a peak")
    network: dict[str, Any] = Field(default={}, description="settings of the networks, a table each")
    models: dict[str, dict[str, Any]] = Field(default={}, description="by model, settings that suit it better")

    @classmethod
    def open(cls, name: str | Path) -> Self:
        """A study of mqcast's own by its name, or any by its TOML file."""
        path = BUNDLED / f"{name}.toml"
        return cls.from_toml(path if path.is_file() else name)

    def load(self, folder: str | Path) -> Dataset:
        loaded = datasets.load(self.loader, folder, **self.options)
        schema, rows = loaded.schema, loaded.frame
        if self.observed is not None:
            sells = pl.col(self.observed) == 1
            rows = rows.with_columns(pl.when(sells).then(schema.target).alias(schema.target))
        return Dataset(_reaching(rows, loaded, self).lazy(), schema, loaded.static, loaded.events, loaded.promotions)

    def config(self, model: str, seed: int, tables: Mapping[str, Any], steps: int | None = None) -> RunConfig:
        """The study's settings, those of the model, and the user's own, which count most."""
        one, _ = members_of(model)
        name, is_forked = one.removesuffix(UNFORKED), not one.endswith(UNFORKED)
        if name not in NETWORKS:
            raise ConfigError(
                f"no model {model!r}; there are {', '.join(NETWORKS)}, each also with {UNFORKED} or {MEAN_OF}3"
            )
        layers = (self.network, self.models.get(name, {}), tables)
        said: dict[str, Any] = {}
        for table in {table for layer in layers for table in layer}:
            said[table] = {key: value for layer in layers for key, value in layer.get(table, {}).items()}
        said["window"] = {**said.get("window", {}), "horizon": self.horizon}
        said["model"] = {**said.get("model", {}), "model": name, "quantiles": self.levels}
        said["split"] = {"train_until": self.train_until, "valid_until": self.train_until}
        train = {"max_epochs": 1_000_000, "num_threads": 1, **said.get("train", {}), "seed": seed, "patience": None}
        if steps is not None:
            train |= {"max_steps": steps, "warmup_steps": min(train.get("warmup_steps", 0), steps // 10)}
        said["train"] = train
        config = RunConfig(**said)
        if "history" not in tables.get("window", {}):
            config = config.with_whole_context()
        if is_forked:
            return config
        window = config.window.without_forking()
        window = window.replace(batch_size=config.window.batch_size * config.window.num_fcts)
        return config.replace(window=window, train=config.train.replace(micro_batch=DRAWN_AT_A_TIME))

    def actuals(self, loaded: Dataset) -> pl.DataFrame:
        """What is judged: observed demand."""
        schema = loaded.schema
        rows = loaded.frame.filter(pl.col(schema.observed)) if schema.observed else loaded.frame
        return rows.select(schema.id, schema.time, pl.col(schema.target).cast(pl.Float64)).drop_nulls()

    def slices(self, loaded: Dataset) -> list[Slice]:
        """Peaks, the steps after them, promotions by kind, short leads."""
        schema, found = loaded.schema, []
        if self.peak_share is not None:
            tested = self.actuals(loaded).filter(pl.col(schema.time) > self.train_until)
            by_date = tested.group_by(schema.time).agg(pl.sum(schema.target)).sort(schema.target, descending=True)
            dates = by_date[schema.time].head(max(1, round(self.peak_share * by_date.height))).to_list()
            found += [*peaks({"Peaks": dates}), ramp_down({"Peaks": dates}, periods=self.ramp)]
        if loaded.promotions:
            rows = loaded.frame.filter(pl.col(schema.time) > self.train_until)
            found += promotions(rows, loaded.promotions, id=schema.id, time=schema.time)
        return [*found, short_horizons(self.short)]


def members_of(model: str) -> tuple[str, int]:
    """The network behind a name, and of how many of it the mean is taken."""
    name, _, count = model.partition(MEAN_OF)
    if count and (not count.isdecimal() or int(count) < 2):
        raise ConfigError(f"no model {model!r}; write the mean of several as {name}{MEAN_OF}3")
    return name, int(count or 1)


def _reaching(rows: pl.DataFrame, loaded: Dataset, study: Study) -> pl.DataFrame:
    """Series that end before the last target get rows without one: what is known stays, and no flag is up.

    They are forecast like the others as long as nobody knows that they have ended; only what has an actual is judged.
    """
    schema = loaded.schema
    if not schema.known:
        return rows
    dates = rows.select(pl.col(schema.time).unique().sort())
    until = dates.filter(pl.col(schema.time) > study.last_cutoff).head(study.horizon)[schema.time].max()
    ends = rows.group_by(schema.id, maintain_order=True).agg(pl.max(schema.time).alias(" end"))
    wanted = ends.filter(pl.col(" end") < until).join(dates.filter(pl.col(schema.time) <= until), how="cross")
    wanted = wanted.filter(pl.col(schema.time) > pl.col(" end")).drop(" end")
    if wanted.is_empty():
        return rows
    both = pl.concat([rows, wanted], how="diagonal").sort(schema.id, schema.time)
    flags = [name for name in schema.known if schema.kinds.get(name) == "flag"]
    others = [name for name in schema.known if name not in flags]
    down = [pl.col(name).fill_null(False if rows.schema[name] == pl.Boolean else 0) for name in flags]
    return both.with_columns(*down, pl.col(others).forward_fill().over(schema.id))
