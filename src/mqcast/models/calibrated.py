# pyright: strict
"""A single model with recalibrated quantiles: it is fitted before the last dates to calibrate it, and on all dates."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from mqcast import process
from mqcast.artifact import ArtifactFolder
from mqcast.calibration import Calibrator
from mqcast.data.panel import Panel
from mqcast.errors import TooFewRevisionsError
from mqcast.joint.dependence import FILE as DEPENDENCE
from mqcast.joint.dependence import Dependence
from mqcast.models.ensemble import files_of, folder_of
from mqcast.models.holdout import calibrated, calibrator_of, hold_out, learnt_dependence, tell_not_calibrated
from mqcast.models.protocol import ChecksOptions, FittedModel, Model, TrainOptions
from mqcast.models.stages import (
    REMEDY,
    Stages,
    listening,
    load_member,
    refuse_start,
    with_own_arguments,
    workplace,
)

FILE, FOLDER = "calibrator.json", folder_of(0)


@dataclass(frozen=True, eq=False)
class FittedCalibrated:
    member: FittedModel
    calibrator: Calibrator | None
    dependence: Dependence | None = None

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        return calibrated(self.member.forecast(panel, first, last), self.calibrator)

    def files(self) -> dict[str, bytes]:
        """The files of the model in a folder of its own, and what was learnt on the held-out dates."""
        learnt = {FILE: self.calibrator, DEPENDENCE: self.dependence}
        own = {name: one.to_json().encode() for name, one in learnt.items() if one is not None}
        return files_of(self.member, FOLDER) | own


class CalibratedModel:
    """A model by its name, recalibrated."""

    def __init__(self, name: str, model: Model):
        self.name, self.members = name, {name: model}

    def check(self, options: TrainOptions) -> None:
        if isinstance(model := self.members[self.name], ChecksOptions):
            model.check(options)

    def fit(self, panel: Panel, options: TrainOptions) -> FittedCalibrated:
        refuse_start(options)
        with workplace(options) as folder, listening(options) as listeners:
            own = with_own_arguments(replace(options, folder=folder, listeners=listeners))
            stages = Stages(self.members, panel, own, folder)
            stages.begin()
            learnt = self._learnt(stages)
            fitted = FittedCalibrated(stages.final(self.name, 1), *learnt)
        if options.folder is None:
            process.keep_as_long_as(fitted, folder.parent)
        return fitted

    def _learnt(self, stages: Stages) -> tuple[Calibrator | None, Dependence | None]:
        try:
            holdout = hold_out(stages.panel, stages.options)
        except TooFewRevisionsError as error:
            tell_not_calibrated(error)
            return None, None
        revisions = stages.revisions(self.name, holdout, 1)
        return calibrator_of(revisions, holdout, stages.options), learnt_dependence(revisions, holdout)

    def load(self, folder: Path, options: TrainOptions) -> FittedCalibrated:
        files = ArtifactFolder(folder, REMEDY)
        calibrator = Calibrator.from_json(files.read(FILE)) if (folder / FILE).exists() else None
        dependence = Dependence.from_json(files.read(DEPENDENCE)) if (folder / DEPENDENCE).exists() else None
        return FittedCalibrated(load_member(self.name, self.members, folder / FOLDER, options), calibrator, dependence)
