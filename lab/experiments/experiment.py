"""What all experiments share: a data set, systems, and a folder for each run.

An experiment is a TOML file that names data, dates, a horizon and levels, and no setting of a network: a system is
trained by the recipe, or by a preset (`mqt@paper`). Its protocol says how the data are split and what is scored:

    cutoffs    one training, forecasts from every cutoff of the test span                  lab/studies, lab/paper
    parts      the public tasks of the paper: spans of dates that are panels of their own  lab/paper

In a task of the paper, what the paper gives for it (batches, epochs, sizes) belongs to the preset `paper`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from lab import datasets
from lab.datasets import Dataset
from lab.experiments.records import Record
from lab.experiments.systems import System
from mqcast.errors import ConfigError
from mqcast.models import DEFAULT
from mqcast.settings import Settings
from mqcast.settings.merge import Layer, Merged, Origin, merge, preset_layers

LAB = Path(__file__).parents[1]
FOLDERS = ("paper", "studies")
CHECKED = {"history": 1, "num_fcts": 1}  # stand in for what fits the data, where settings are only checked


@dataclass(frozen=True)
class TrainOptions:
    """How every system of one call is trained; `tables` are the user's settings, which overrule all others."""

    tables: Mapping[str, Any] = field(default_factory=dict)
    minutes: float | None = None
    search: bool = False
    revisions: bool = False
    device: str = "auto"
    listeners: tuple[Any, ...] = ()


class Experiment(Settings):
    """The fields and steps that every protocol has."""

    default_models: ClassVar[tuple[str, ...]] = (DEFAULT,)
    metrics: ClassVar[Sequence[str]] = ()

    name: str
    dataset: str = Field(description="the name of a data set")
    options: dict[str, Any] = Field(default={}, description="of the data set's loader")
    horizon: int = Field(ge=1)
    levels: tuple[float, ...] = (0.5, 0.9)
    paper: dict[str, dict[str, Any]] = Field(
        default={}, description="what the paper gives for this task, as settings by table; part of the preset `paper`"
    )
    published: dict[str, dict[str, float]] = Field(default={}, description="published scores, to show beside ours")

    @property
    def split(self) -> dict[str, Any]:
        return {}

    def load_dataset(self, folder: Path | None) -> Dataset:
        return datasets.load(self.dataset, folder, **self.options)

    def merged(self, system: System, seed: int, tables: Mapping[str, Any], *fitting: Layer) -> Merged:
        """The settings of a network: what fits the data, the preset's with those of this task, and the user's.

        Nobody may contradict the horizon, the quantiles and the dates, which make results comparable.
        """
        required = {"window.horizon": self.horizon, "model.model": system.model, "model.quantiles": self.levels}
        required |= {f"split.{name}": date for name, date in self.split.items()}
        of_task = [Layer(Origin.PRESET, self.paper)] if system.preset == "paper" else []
        user = [Layer(Origin.ARGUMENTS, tables), Layer(Origin.ARGUMENTS, {"train": {"seed": seed}})]
        return merge(*fitting, *preset_layers(system.preset), *of_task, *user, required=required)

    def check_models(self, models: Sequence[str], tables: Mapping[str, Any]) -> None:
        """Raise if a name or a setting is wrong, before anything is read or trained."""
        for system in map(System.parse, models):
            if system.is_network:
                self.merged(system, 0, tables, Layer(Origin.FITS_THE_DATA, {"window": CHECKED}))

    def models_of(self, chosen: Sequence[str] | None) -> list[str]:
        """The models to run when the user has chosen some, or none."""
        return list(dict.fromkeys(chosen or self.default_models))

    # what a protocol defines

    @abstractmethod
    def load(self, folder: Path | None, out: Path, on_progress: Any = None) -> Any:
        """The data, ready for this protocol."""

    @abstractmethod
    def train(self, data: Any, spec: "RunSpec") -> None:
        """Train one system and keep its forecasts, unless that was done before. Every process calls this."""

    @abstractmethod
    def judge(self, data: Any, specs: Sequence["RunSpec"], others: Mapping[str, Path], label: str | None) -> "Outcome":
        """Score the kept forecasts, with those of other systems. Only the first process calls this."""

    def notes(self, records: Sequence[Record]) -> list[str]:
        """How to read the table."""
        return []


@dataclass(frozen=True)
class RunSpec:
    """One system of an experiment, one seed, and where its files are."""

    experiment: Any
    model: str
    seed: int
    out: Path
    options: TrainOptions = field(default_factory=TrainOptions)

    @property
    def system(self) -> System:
        return System.parse(self.model)

    @property
    def folder(self) -> Path:
        return self.out / self.experiment.name / f"{self.model}-{self.seed}"

    def replace(self, **changes: Any) -> Self:
        return replace(self, **changes)


@dataclass(frozen=True)
class Outcome:
    """The scores: a record per system, tables by name, and HTML pages."""

    records: list[Record]
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    pages: list[Path] = field(default_factory=list)


def open_experiment(name: str | Path) -> Any:
    """An experiment of the lab by its name, or any other by its TOML file."""
    from lab.experiments.paper_task import PaperTask
    from lab.experiments.study import Study

    protocols = {"cutoffs": Study, "parts": PaperTask}
    paths = [LAB / folder / f"{name}.toml" for folder in FOLDERS]
    path = next((path for path in paths if path.is_file()), Path(name))
    if not path.is_file():
        raise ConfigError(f"no experiment {str(name)!r}; give a TOML file, or one of {', '.join(experiment_names())}")
    values = Settings.read_toml(path)
    if (protocol := values.get("protocol")) not in protocols:
        raise ConfigError(f"{path}: protocol is {protocol!r}; write one of {', '.join(protocols)}")
    return protocols[protocol](**values)


def experiment_names() -> list[str]:
    return sorted(path.stem for folder in FOLDERS for path in (LAB / folder).glob("*.toml"))
