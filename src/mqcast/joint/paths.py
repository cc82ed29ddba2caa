"""Paths of demand over all steps ahead, from the quantiles of single steps and the dependence between them.

At every step, the paths of a series are its forecast's distribution at as many levels as there are paths; the
dependence says which of them go together. A path depends on the seed, the id of its series and its own forecast, so
that neither other series nor the size of blocks change it. Every cutoff of a series takes the same draws.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from narwhals.typing import IntoDataFrame

from mqcast.arguments import whole_number
from mqcast.data.axis import TimeAxis
from mqcast.data.frame_types import FrameTypes
from mqcast.data.frequency import DAY, Frequency
from mqcast.data.schema import Schema
from mqcast.durable import cannot_write, claimed, put_in_place
from mqcast.errors import ArtifactError, ConfigError
from mqcast.evaluation.columns import distinct, places
from mqcast.evaluation.reading import Forecasts, forecast_table, names_in
from mqcast.evaluation.tables import NEVER, ForecastTable, Names
from mqcast.joint.dependence import Dependence
from mqcast.joint.marginals import Marginals

VALUES_AT_A_TIME = 2**22
PLAIN = TimeAxis(Frequency("fixed", DAY, 0), None)


@dataclass(frozen=True, eq=False)
class Paths:
    """Draws of demand: `values[series, horizon, path]`, NaN where a step has no forecast.

    A series that is forecast from several cutoffs is there once for each.

    >>> from mqcast.joint import Dependence, paths_of
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=3, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.1, 0.5, 0.9), first=56, last=56)
    >>> paths_of(forecasts, Dependence.constant(4, 0.5), num=50).values.sum(axis=1).shape
    (3, 50)
    """

    ids: list[str]
    cutoffs: np.ndarray  # (series,) datetime64
    dates: np.ndarray  # (series, horizon)
    values: np.ndarray  # float32
    names: Names = field(default_factory=Names)
    clock: TimeAxis = PLAIN
    frame_types: FrameTypes = field(default_factory=FrameTypes)

    def __repr__(self) -> str:
        series, horizon, num = self.values.shape
        return f"Paths({series} series, {horizon} steps, {num} paths)"

    def to_frame(self) -> Any:
        """id, cutoff, date, horizon, path, value, in the library of the forecasts."""
        return self.frame_types.to_native(self.to_polars(), self.names.id)

    def to_polars(self) -> pl.DataFrame:
        _, horizon, num = self.values.shape
        is_there = ~np.isnan(self.values).any(axis=2).reshape(-1)
        row = np.flatnonzero(is_there).repeat(num)
        dates = self.dates.astype("datetime64[us]").astype(np.int64).reshape(-1)
        cutoffs = self.cutoffs.astype("datetime64[us]").astype(np.int64)
        return pl.DataFrame(
            {
                self.names.id: pl.Series(self.ids, dtype=pl.String).gather(row // horizon),
                self.names.cutoff: self.clock.dates(cutoffs[row // horizon]),
                self.names.time: self.clock.dates(dates[row]),
                self.names.horizon: (row % horizon + 1).astype(np.int32),
                "path": np.tile(np.arange(1, num + 1, dtype=np.int32), int(is_there.sum())),
                "value": self.values.reshape(-1, num)[is_there].reshape(-1),
            }
        )


@dataclass(frozen=True, eq=False)
class StepGrid:
    """Quantiles of each series and cutoff by step: (rows, horizon, levels), NaN where a step has no forecast."""

    table: ForecastTable
    item: np.ndarray
    cutoff: np.ndarray
    dates: np.ndarray  # (rows, horizon)
    quantiles: np.ndarray

    @classmethod
    def of(cls, table: ForecastTable, dependence: Dependence, horizon: int | None = None) -> "StepGrid":
        """Up to the horizon, or as far as the forecasts reach."""
        horizon, cutoffs = horizon or int(table.lead.max()), distinct(table.cutoff)
        if horizon > dependence.horizon:
            raise ConfigError(
                f"the forecasts reach {horizon} steps ahead, and the dependence was learnt for {dependence.horizon}; "
                "learn it from forecasts that reach as far"
            )
        keys, row = np.unique(table.item * np.int64(len(cutoffs)) + places(table.cutoff, cutoffs), return_inverse=True)
        quantiles = np.full((len(keys), horizon, len(table.levels)), np.nan)
        dates = np.full((len(keys), horizon), NEVER)
        near = table.lead <= horizon
        place = row[near], table.lead[near] - 1
        quantiles[place], dates[place] = table.quantiles[near], table.time[near]
        return cls(table, keys // len(cutoffs), cutoffs[keys % len(cutoffs)], dates, quantiles)

    def __len__(self) -> int:
        return len(self.item)

    def blocks(self, values_a_row: int) -> Iterator[slice]:
        size = max(1, VALUES_AT_A_TIME // values_a_row)
        yield from (slice(start, start + size) for start in range(0, len(self), size))

    def sorted_draws(self, rows: slice, num: int, not_negative: bool) -> np.ndarray:
        """(rows, horizon, num): each step's distribution at the levels 1/2, 3/2, 5/2 … of `num`."""
        quantiles = self.quantiles[rows]
        flat = quantiles.reshape(-1, quantiles.shape[-1])
        draws = Marginals.of(self.table.levels, flat, not_negative).at((np.arange(num) + 0.5) / num)
        draws[np.isnan(flat).any(axis=1)] = np.nan
        return draws.reshape(*quantiles.shape[:2], num)


@dataclass(frozen=True)
class Grouping:
    """The group of each series, and how far those of a group go together."""

    share: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def of_series(self, ids: Sequence[str]) -> list[str]:
        return [self.labels[name] for name in ids] if self.share > 0 else []


def paths_of(
    forecasts: Forecasts[IntoDataFrame],
    dependence: Dependence,
    num: int = 100,
    *,
    seed: int = 0,
    grouping: Grouping | None = None,
    id: str | None = None,
    time: str | None = None,
    schema: Schema | None = None,
) -> Paths:
    """Paths of any forecaster's frame, of one cutoff or several.

    >>> from mqcast.joint import Dependence, paths_of
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=3, num_weeks=60, horizon=4)
    >>> forecasts = world.oracle_forecasts((0.1, 0.5, 0.9), first=56, last=56)
    >>> paths_of(forecasts, Dependence.constant(4, 0.5), num=50)
    Paths(3 series, 4 steps, 50 paths)
    """
    whole_number("paths", num, 1)
    whole_number("seed", seed, 0)
    table = forecast_table(forecasts, names_in(forecasts, schema, id=id, time=time))
    grid = StepGrid.of(table, dependence)
    horizon, grouping = grid.quantiles.shape[1], grouping or Grouping()
    values = np.empty((len(grid), horizon, num), np.float32)
    for rows in grid.blocks(horizon * num):
        names = [table.ids[i] for i in grid.item[rows]]
        ranks = dependence.ranks(names, horizon, num, seed, grouping.of_series(names), grouping.share)
        draws = grid.sorted_draws(rows, num, dependence.not_negative)
        values[rows] = np.take_along_axis(draws, ranks, axis=2)
    times = (grid.cutoff.astype("datetime64[us]"), grid.dates.astype("datetime64[us]"))
    ids = [table.ids[i] for i in grid.item]
    return Paths(ids, *times, values, table.names, table.clock, table.frame_types)


def write_in_blocks(
    frame: pl.DataFrame | Path, id: str, path: Path, made: Callable[[pl.DataFrame], pl.DataFrame], rows_a_block: int
) -> None:
    """Write what `made` makes of the forecasts, some series at a time, to one Parquet file.

    frame: forecasts, or a Parquet file of them, whose rows stand together by series.
    """
    import pyarrow.parquet as pq  # slow to import

    with claimed(path, "forecasting to", make_parents=True) as draft:
        writer = None
        try:
            for block in _blocks(frame, id, rows_a_block):
                table = made(block).to_arrow(compat_level=pl.CompatLevel.oldest())
                if writer is None:
                    writer = pq.ParquetWriter(draft, table.schema, use_dictionary=_repeated(table))  # type: ignore[arg-type]
                writer.write_table(table)
            if writer is None:
                raise ArtifactError(f"there is no forecast to write to {path}; forecast some series")
            writer.close()
            put_in_place(draft, path)
        except OSError as error:
            raise cannot_write(path, error) from error
        finally:
            if writer is not None and writer.is_open:
                writer.close()


def _repeated(table: pa.Table) -> list[str]:
    return [column.name for column in table.schema if not pa.types.is_floating(column.type)]


def _blocks(frame: pl.DataFrame | Path, id: str, rows_a_block: int) -> Iterator[pl.DataFrame]:
    """All rows of some series, in the order of the frame."""
    held: list[pl.DataFrame] = []
    for part in _parts(frame, rows_a_block):
        last = part[id] == part[id][-1]
        whole = part.filter(~last)
        if whole.height:
            yield pl.concat([*held, whole])
            held = []
        held.append(part.filter(last))
    if held:
        yield pl.concat(held)


def _parts(frame: pl.DataFrame | Path, rows_a_part: int) -> Iterator[pl.DataFrame]:
    if isinstance(frame, pl.DataFrame):
        yield from frame.iter_slices(rows_a_part)
        return
    import pyarrow.parquet as pq

    with pq.ParquetFile(frame) as file:
        for batch in file.iter_batches(rows_a_part):
            part = pl.from_arrow(batch)
            assert isinstance(part, pl.DataFrame)
            yield part
