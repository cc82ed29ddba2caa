# pyright: strict
"""The mean of the quantiles of several models. Each member has its own seed and an equal share of max_minutes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from mqcast.artifact import MANIFEST, Manifest, entry_of
from mqcast.data.panel import Panel
from mqcast.errors import ConfigError
from mqcast.levels import quantile_column
from mqcast.models.protocol import CanLoad, CanSave, ChecksOptions, FittedModel, Model, TrainOptions

SEEDS_APART = 1000  # distance between the seeds of two members


@dataclass(frozen=True)
class FittedMean:
    members: tuple[FittedModel, ...]
    quantiles: tuple[float, ...]

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        return mean_of_frames([member.forecast(panel, first, last) for member in self.members], self.quantiles)

    def files(self) -> dict[str, bytes]:
        """The files of each member in a folder of its own, with a manifest."""
        files: dict[str, bytes] = {}
        for number, member in enumerate(self.members):
            files |= files_of(member, folder_of(number))
        return files


def files_of(member: FittedModel, folder: str) -> dict[str, bytes]:
    """The files of a member in a folder of its own, with a manifest."""
    if not isinstance(member, CanSave):
        raise ConfigError(f"{folder} cannot be saved; give the class of this member files() and load()")
    own = member.files()
    manifest = Manifest({name: entry_of(content) for name, content in own.items()}, {})
    return {f"{folder}/{name}": content for name, content in (own | {MANIFEST: manifest.packed()}).items()}


class MeanOf:
    def __init__(self, members: Sequence[Model]):
        self.members = tuple(members)

    def check(self, options: TrainOptions) -> None:
        for member in self.members:
            if isinstance(member, ChecksOptions):
                member.check(options)

    def fit(self, panel: Panel, options: TrainOptions) -> FittedMean:
        if options.start_from is not None:
            raise ConfigError(
                "a mean of several models cannot start from another forecaster; train it without start_from"
            )
        each = [self._options(options, number) for number in range(len(self.members))]
        fitted = [member.fit(panel, own) for member, own in zip(self.members, each, strict=True)]
        return FittedMean(tuple(fitted), options.quantiles)

    def load(self, folder: Path, options: TrainOptions) -> FittedMean:
        loaded: list[FittedModel] = []
        for number, member in enumerate(self.members):
            if not isinstance(member, CanLoad):
                raise ConfigError(f"member {number + 1} of the mean cannot be loaded; give its class load()")
            loaded.append(member.load(folder / folder_of(number), self._options(options, number)))
        return FittedMean(tuple(loaded), options.quantiles)

    def _options(self, options: TrainOptions, number: int) -> TrainOptions:
        return replace(
            options,
            seed=options.seed + SEEDS_APART * number,
            max_minutes=None if options.max_minutes is None else options.max_minutes / len(self.members),
            folder=None if options.folder is None else options.folder / folder_of(number),
        )


def folder_of(number: int) -> str:
    return f"member-{number + 1}"


def mean_of_frames(frames: Sequence[pl.DataFrame], quantiles: Sequence[float]) -> pl.DataFrame:
    """The mean of each quantile over frames with the same series, cutoffs and dates."""
    levels = [quantile_column(level) for level in quantiles]
    keys = [name for name in frames[0].columns if name not in levels]
    stacked = pl.concat([frame.select(*keys, *levels) for frame in frames])
    mean = stacked.group_by(keys, maintain_order=True).agg(pl.col(levels).mean())
    if {frame.height for frame in frames} != {mean.height}:
        raise ConfigError(
            "the forecasts to average do not have the same series and dates; make them from the same panel and cutoffs"
        )
    return mean
