# pyright: strict
"""Fits of several models in one folder, stage by stage, so that an interrupted one goes on after the last finished one.

auto.json        what was asked for
progress/        what the stages found; it may be deleted once the fit is done
member-1/ …      the members, fitted on all dates
"""

import io
import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from mqcast import process
from mqcast.artifact import ArtifactFolder, entry_of, seal
from mqcast.data.panel import Panel
from mqcast.durable import claimed, write_file
from mqcast.errors import ArtifactError, ConfigError
from mqcast.launch import is_worker
from mqcast.models.ensemble import SEEDS_APART, files_of, folder_of
from mqcast.models.holdout import Holdout
from mqcast.models.networks import FittedNetwork, own_folder
from mqcast.models.protocol import CanLoad, CanRehearse, FittedModel, Model, TrainOptions
from mqcast.settings.merge import Layer, tables_of
from mqcast.version import __version__

FORMAT, FORMAT_VERSION = "mqcast-auto", 1
ASKED, PROGRESS = "auto.json", "progress"
VALIDATION_SHARE = 0.4  # of max_minutes
REMEDY = "fit again in a new folder"
OWN_ARGUMENTS = ("model.model", "split.train_until", "split.valid_until")  # settings that are not for the members


@dataclass
class Stages:
    """Members by name, and the minutes that each has used so far."""

    members: Mapping[str, Model]
    panel: Panel
    options: TrainOptions
    folder: Path
    minutes: dict[str, float] = field(default_factory=dict[str, float])

    def begin(self) -> None:
        """Note what was asked for; a folder with something else is refused."""
        options, file = self.options, self.folder / ASKED
        asked: dict[str, Any] = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "mqcast": __version__,
            "panel": self.panel.fingerprint,
            "members": list(self.members),
            "horizon": options.horizon,
            "quantiles": list(options.quantiles),
            "seed": options.seed,
            "max_steps": options.max_steps,
            "until": None if options.until is None else str(options.until),
            "preset": options.preset,
            "settings": json.loads(json.dumps(tables_of(options.layers), default=str)),
        }
        if not file.exists():
            if self.folder.is_dir() and any(not path.name.endswith(".part") for path in self.folder.iterdir()):
                raise ArtifactError(f"{self.folder} is neither empty nor a fit of auto; give an empty or a new folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(file, seal(asked))
            return
        if not options.resume:
            raise ArtifactError(f"{self.folder} already contains a fit; resume it, or give another folder")
        before = ArtifactFolder(self.folder, REMEDY).read_sealed(ASKED)
        changed = [name for name, value in asked.items() if before.get(name) != value and name != "mqcast"]
        if changed:
            what = "data" if changed == ["panel"] else f"options ({', '.join(changed)})"
            raise ConfigError(f"{self.folder} was started with other {what}; keep those, or give another folder")

    def revisions(self, name: str, holdout: Holdout, num_left: int) -> pl.DataFrame:
        """The forecasts of a member from the held-out cutoffs, fitted before them."""
        key = self._validation(name)
        file = f"{key}.parquet"
        if (facts := self.read(f"{key}.json")) is not None:
            packed = self._files.read(file)
            if entry_of(packed) != facts["file"]:
                raise self._files.damaged(file, "its bytes are not those that were written")
            self.minutes[name] = facts["minutes"]
            return pl.read_parquet(io.BytesIO(packed))
        self.say(f"{name}: fitting up to {holdout.first}, to be judged on later dates")
        began, buffer = time.monotonic(), io.BytesIO()
        frame, allowed = self._rehearsed(name)
        if frame is None:
            options = self._options(name, self._share(VALIDATION_SHARE, num_left), self.folder / PROGRESS / key)
            frame = holdout.revisions(self.members[name].fit(self.panel, replace(options, until=holdout.first)))
        frame.write_parquet(buffer)
        self.minutes[name] = (time.monotonic() - began) / 60
        write_file(self.folder / PROGRESS / file, buffer.getvalue(), make_parents=True)
        facts = {"minutes": self.minutes[name], "file": entry_of(buffer.getvalue()), "allowed": allowed}
        self.write(f"{key}.json", facts)
        return frame

    def _rehearsed(self, name: str) -> tuple[pl.DataFrame | None, float | None]:
        """The forecasts of a member whose fit begins with a rehearsal, and the minutes of that fit.

        The others, which are fitted twice, will take as long again.
        """
        member, total = self.members[name], self.options.max_minutes
        if not isinstance(member, CanRehearse):
            return None, None
        rehearsing = [one for one in self.members if isinstance(self.members[one], CanRehearse)]
        of_others = sum(minutes for one, minutes in self.minutes.items() if one not in rehearsing)
        allowed = None if total is None else max(total - 2 * of_others, 0.01 * total) / len(rehearsing)
        frame = member.rehearse(self.panel, self._options(name, allowed, self._own_folder(name)))
        return frame, None if frame is None else allowed

    def final(self, name: str, num_left: int) -> FittedModel:
        """A member that was fitted on all dates, as it would be alone."""
        record, folder = f"final-{self._number(name) + 1}.json", self._own_folder(name)
        allowed = (self.read(f"{self._validation(name)}.json") or {}).get("allowed")
        options = self._options(name, self._share(1.0, num_left) if allowed is None else allowed, folder)
        if (facts := self.read(record)) is not None:
            self.minutes[name] = facts["minutes"]
            return load_member(name, self.members, folder, options)
        self.say(f"{name}: fitting on all dates")
        began = time.monotonic()
        fitted = self.members[name].fit(self.panel, options)
        self.minutes[name] = self.minutes.get(name, 0.0) + (time.monotonic() - began) / 60
        if _keep(fitted, folder):
            self.write(record, {"minutes": self.minutes[name]})
        return fitted

    def read(self, name: str) -> dict[str, Any] | None:
        """What a finished stage wrote; None if it is not finished."""
        return self._files.read_sealed(name) if (self.folder / PROGRESS / name).exists() else None

    def write(self, name: str, facts: Mapping[str, Any]) -> None:
        write_file(self.folder / PROGRESS / name, seal(dict(facts)), make_parents=True)

    def say(self, text: str) -> None:
        with process.importing():
            from mqcast.train.records import Message

        for listener in self.options.listeners or ():
            listener(Message(text))

    def folders(self, names: Sequence[str]) -> dict[str, str]:
        return {name: folder_of(self._number(name)) for name in names}

    def _options(self, name: str, minutes: float | None, folder: Path) -> TrainOptions:
        seed = self.options.seed + SEEDS_APART * self._number(name)
        return replace(self.options, seed=seed, max_minutes=minutes, folder=folder, resume=folder.exists())

    def _own_folder(self, name: str) -> Path:
        return self.folder / folder_of(self._number(name))

    def _validation(self, name: str) -> str:
        return f"validation-{self._number(name) + 1}"

    def _share(self, part: float, num_left: int) -> float | None:
        """The minutes of the next of so many members, up to a part of all minutes; what others left over is shared."""
        total = self.options.max_minutes
        return None if total is None else max(part * total - sum(self.minutes.values()), 0.01 * total) / num_left

    def _number(self, name: str) -> int:
        return list(self.members).index(name)

    @property
    def _files(self) -> ArtifactFolder:
        return ArtifactFolder(self.folder / PROGRESS, REMEDY)


def load_member(name: str, members: Mapping[str, Model], folder: Path, options: TrainOptions) -> FittedModel:
    if name not in members:
        raise ConfigError(f"{name!r} is a member of what was saved, but not there; register or install it first")
    member = members[name]
    if not isinstance(member, CanLoad):
        raise ConfigError(f"member {name!r} cannot be loaded; give its class load()")
    return member.load(folder, options)


def _keep(fitted: FittedModel, folder: Path) -> bool:
    """Write the files of a member to its folder; a network has trained there. False if it cannot be saved."""
    if isinstance(fitted, FittedNetwork):
        return True
    try:
        contents = files_of(fitted, folder.name)
    except ConfigError:
        return False
    for name, content in contents.items():
        (folder.parent / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder.parent / name, content)
    return True


def refuse_start(options: TrainOptions) -> None:
    """Raise for options that only a single model can have."""
    if options.start_from is not None:
        raise ConfigError("a blend or a calibrated model cannot start from another forecaster; leave start_from out")
    if is_worker():
        raise ConfigError("a blend or a calibrated model is fitted by one process; start it without torchrun")


@contextmanager
def workplace(options: TrainOptions) -> Generator[Path]:
    """The folder of the options, for one process at a time, or a temporary one that is removed if the fit fails."""
    with ExitStack() as stack:
        if options.folder is not None:
            stack.enter_context(claimed(options.folder, "training in", make_parents=True))
        yield stack.enter_context(own_folder(options))


@contextmanager
def listening(options: TrainOptions) -> Generator[tuple[Any, ...]]:
    """The listeners of the options, or one bar or log for all members."""
    with process.importing():
        from mqcast.train.records import progress

    with progress(quiet=not options.verbose) if options.listeners is None else nullcontext(options.listeners) as found:
        yield found


def with_own_arguments(options: TrainOptions) -> TrainOptions:
    """The time and the end of training that settings name become options; settings then hold what members may read."""
    given = {name: value for layer in options.layers for name, value in layer.items()}
    return replace(
        options,
        layers=tuple(_for_members(layer) for layer in options.layers),
        max_minutes=given.get("train.max_minutes") if options.max_minutes is None else options.max_minutes,
        until=given.get("split.train_until") if options.until is None else options.until,
    )


def _for_members(layer: Layer) -> Layer:
    tables = {
        table: {name: value for name, value in values.items() if f"{table}.{name}" not in OWN_ARGUMENTS}
        for table, values in layer.tables.items()
    }
    return Layer(layer.origin, tables)
