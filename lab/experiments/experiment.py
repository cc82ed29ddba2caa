"""What all experiments share: a data set, systems with their settings, and a folder for each run.

An experiment is a TOML file. Its protocol says how the data are split, when networks are refitted and what is scored:

    cutoffs    one training, forecasts from every cutoff of the test span                  lab/studies, lab/paper
    windows    a leaderboard's windows, each forecast after a refit                        lab/leaderboards
    parts      the public tasks of the paper: spans of dates that are panels of their own  lab/paper
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
from mqcast.levels import quantile_column
from mqcast.models import DEFAULT
from mqcast.settings import RunConfig, Settings
from mqcast.settings.merge import Layer, Merged, Origin, merge, preset_layers

LAB = Path(__file__).parents[1]
FOLDERS = ("paper", "studies", "leaderboards")
RECIPE = "recipe"  # in place of a preset: settings that fit the data
DRAWN_AT_A_TIME = 64  # windows of a micro-batch, without forking


@dataclass(frozen=True)
class TrainOptions:
    """How every system of one call is trained; `tables` are the user's settings, which overrule all others."""

    tables: Mapping[str, Any] = field(default_factory=dict)
    minutes: float | None = None
    refit_minutes: float | None = None
    num_windows: int | None = None
    search: bool = False
    revisions: bool = False
    device: str = "auto"
    listeners: tuple[Any, ...] = ()


class Experiment(Settings):
    """The fields and steps that every protocol has."""

    train_defaults: ClassVar[Mapping[str, Any]] = {"max_epochs": 1_000_000, "num_threads": 1, "patience": None}
    default_models: ClassVar[tuple[str, ...]] = (DEFAULT,)
    metrics: ClassVar[Sequence[str]] = ()

    name: str
    dataset: str | None = Field(default=None, description="the name of a data set")
    options: dict[str, Any] = Field(default={}, description="of the data set's loader")
    horizon: int = Field(ge=1)
    levels: tuple[float, ...] = (0.5, 0.9)
    network: dict[str, Any] = Field(
        default={}, description="settings of the networks, by table; a preset overrules them"
    )
    models: dict[str, dict[str, Any]] = Field(default={}, description="settings of single models, which overrule those")
    fixed: dict[str, Any] = Field(default={}, description="settings of the protocol, which hold under every preset")
    refines: str | None = Field(default=None, description="a preset that the table network refines for this task")
    preset: str | None = Field(default=None, description="a preset, or the recipe; None: the settings of the task")
    published: dict[str, dict[str, float]] = Field(default={}, description="published scores, to show beside ours")

    @property
    def quantile_names(self) -> list[str]:
        return [quantile_column(level) for level in self.levels]

    @property
    def split(self) -> dict[str, Any]:
        return {}

    def load_dataset(self, folder: Path | None) -> Dataset:
        if self.dataset is None:
            raise ConfigError(f"experiment {self.name} names no data set; there are {', '.join(datasets.names())}")
        return datasets.load(self.dataset, folder, **self.options)

    def config(self, model: str, seed: int, tables: Mapping[str, Any], **train: Any) -> RunConfig:
        """Settings of a run: the experiment's, the model's, the preset's, the protocol's and the user's.

        Nobody may contradict the horizon, the quantiles and the dates, which make results comparable.
        """
        system = System.parse(model)
        if system.network is None:
            raise ConfigError(f"{model} is no network of the family and has no settings; leave them to its class")
        required = {"window.horizon": self.horizon, "model.model": system.network, "model.quantiles": self.levels}
        required |= {f"split.{name}": date for name, date in self.split.items()}
        layers = [
            Layer(Origin.BUILT_IN, {"train": self.train_defaults}),
            *self.task_layers(system.network),
            Layer(Origin.ARGUMENTS, tables),
            Layer(Origin.ARGUMENTS, {"train": {"seed": seed, **train}}),
        ]
        values = {name: value for layer in layers for name, value in layer.items()}
        if max_steps := values.get("train.max_steps"):
            warm_up = min(values.get("train.warmup_steps", 0), max_steps // 10)
            layers.append(Layer(Origin.FOLLOWS, {"train": {"warmup_steps": warm_up}}))
        return self.finish_config(merge(*layers, required=required), system)

    def task_layers(self, network: str) -> tuple[Layer, ...]:
        """The settings of the task, the preset and the protocol; none for the recipe, which finds its own."""
        if self.preset == RECIPE:
            return ()
        origin = Origin.PRESET if self.preset == self.refines else Origin.TASK
        layers = (
            *preset_layers(self.preset),
            Layer(origin, self.network),
            Layer(origin, self.models.get(network, {})),
            Layer(Origin.PROTOCOL, self.fixed),
        )
        return tuple(sorted(layers, key=lambda layer: layer.origin))

    def under(self, preset: str | None) -> Self:
        """This experiment with a preset or the recipe, which its files and records name."""
        if preset is None:
            return self
        if preset != RECIPE:
            preset_layers(preset)  # raises if there is no such preset
        return self.replace(name=f"{self.name}-{preset}", preset=preset)

    def finish_config(self, merged: Merged, system: System) -> RunConfig:
        """Windows with all the context that forecasts have; without forking, a step has as many trajectories."""
        config = merged.with_whole_context().config
        if system.is_forked:
            return config
        window = config.window.without_forking()
        window = window.replace(batch_size=config.window.batch_size * config.window.num_fcts)
        return config.replace(window=window, train=config.train.replace(micro_batch=DRAWN_AT_A_TIME))

    def check_models(self, models: Sequence[str], tables: Mapping[str, Any]) -> None:
        """Raise if a name or a setting is wrong, before anything is read or trained."""
        for system in map(System.parse, models):
            if self.preset != RECIPE:
                self.config(system.name if system.network else DEFAULT, 0, tables)
            elif system.network not in (None, system.name):
                raise ConfigError(f"the recipe decides how {system.network} is trained; run it, not {system.name}")

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
    def folder(self) -> Path:
        return self.out / self.experiment.name / f"{self.model}-{self.seed}"

    @property
    def name(self) -> str:
        return f"{self.experiment.name}, {self.model}, seed {self.seed}"

    @property
    def is_registered(self) -> bool:
        """A model of the registry that finds its own settings, as all do by the recipe."""
        return self.experiment.preset == RECIPE or System.parse(self.model).network is None

    def config(self, **train: Any) -> RunConfig:
        return self.experiment.config(self.model, self.seed, self.options.tables, **train)

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
    from lab.experiments.leaderboard import Leaderboard
    from lab.experiments.paper_task import PaperTask
    from lab.experiments.study import Study

    protocols = {"windows": Leaderboard, "cutoffs": Study, "parts": PaperTask}
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
