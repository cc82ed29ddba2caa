"""fev-bench's kind of task: the last windows of a data set, one after the other, scored as it scores them.

The tasks are those of the battery (lab/battery/tasks.py), which also runs models on them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from lab import datasets
from lab.datasets import Dataset
from lab.experiments.fev_scores import mean_scores
from lab.experiments.records import Record
from mqcast.levels import quantile_column
from mqcast.settings import Settings

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Leaderboard(Settings):
    """The last `windows` × `horizon` steps of a data set."""

    name: str
    dataset: str
    options: dict[str, Any] = Field(default={}, description="of the data set's loader")
    horizon: int = Field(ge=1)
    windows: int = Field(ge=1)
    season: int = Field(ge=1, description="steps; errors are scaled by those of this season's naive forecast")
    levels: tuple[float, ...] = LEVELS

    @property
    def quantile_names(self) -> list[str]:
        return [quantile_column(level) for level in self.levels]

    def load_dataset(self, folder: Path | None) -> Dataset:
        return datasets.load(self.dataset, folder, **self.options)

    def record(
        self, model: str, seed: int, windows: Sequence[Mapping[str, Any]], config: dict[str, Any], **rest: Any
    ) -> Record:
        """A record of the scores of some windows, with what each cost; that of fewer windows has a name of its own."""
        name = self.name if len(windows) == self.windows else f"{self.name}-first-{len(windows)}"
        cost = {key: sum(window.get(key, 0.0) for window in windows) for key in ("wall_seconds", "cpu_seconds")}
        details = {"windows": [dict(window) for window in windows]}
        return Record(name, model, seed, mean_scores(windows), config, **cost, details=details, **rest)
