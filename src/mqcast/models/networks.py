"""The networks of the family as models: trained into a run, forecast from it."""

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

import polars as pl

from mqcast import process
from mqcast.calibration import Calibrator
from mqcast.data.panel import Panel
from mqcast.data.views import can_be_read_as
from mqcast.errors import ArtifactError, ConfigError, Interrupted
from mqcast.joint.dependence import FILE, Dependence
from mqcast.launch import is_first
from mqcast.models.holdout import (
    Holdout,
    calibrated,
    calibrator_of,
    hold_out,
    learnt_dependence,
    span_calibrators_of,
)
from mqcast.models.protocol import Progress, TrainOptions
from mqcast.models.recipe import settings_for
from mqcast.models.rehearsal import after_rehearsal, rehearsal_of
from mqcast.settings import FAMILY, RunConfig
from mqcast.settings.merge import Layer, Merged, Origin, assigned_values, preset_layers

if TYPE_CHECKING:
    from mqcast.report.sources import Trained
    from mqcast.run import Run

KEPT = {"model", "window", "scaling"}  # tables that a network takes over from the one it starts from


@dataclass(frozen=True)
class FittedNetwork:
    """A trained run; `merged` has the origins of its settings, if it was trained in this process."""

    run: "Run"
    device: str = "auto"
    merged: Merged | None = None

    @property
    def config(self) -> RunConfig:
        return self.run.config

    @property
    def context(self) -> int:
        from mqcast.forecast.predict import context_of

        return context_of(self.config.model, self.config.window.horizon)

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        with process.importing():
            from mqcast.forecast.predict import forecast_frame

        return forecast_frame(self.run, panel, first=first, last=last, device=self.device)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        return self.config.model.spans

    def forecast_spans(
        self, panel: Panel, spans: tuple[tuple[int, int], ...], first: Any = None, last: Any = None
    ) -> pl.DataFrame:
        with process.importing():
            from mqcast.forecast.predict import forecast_frame

        return forecast_frame(self.run, panel, first=first, last=last, spans=spans, device=self.device)

    def write(self, panel: Panel, path: Path, first: Any, last: Any, on_progress: Progress | None) -> Path:
        from mqcast.forecast.predict import forecast

        return forecast(self.run, panel, path, first=first, last=last, device=self.device, on_progress=on_progress)

    def explain(self, panel: Panel, ids: Sequence[Any], cutoff: Any, above: float) -> pl.DataFrame:
        if not self.config.model.variant.has_attention:
            with_attention = ", ".join(name for name, variant in FAMILY.items() if variant.has_attention)
            raise ConfigError(f"{self.config.model.model} has no attention to explain; fit one of {with_attention}")
        with process.importing():
            from mqcast.run_diagnostics import attention

        return attention(self.run, panel, ids, cutoff, cutoff, above)

    def describe(self, panel: Panel, first: Any, last: Any) -> "Trained":
        with process.importing():
            from mqcast.run_diagnostics import trained

        return trained(self.run, panel, first, last)

    def files(self) -> dict[str, bytes]:
        return self.run.final_files()

    @property
    def dependence(self) -> Dependence | None:
        files = self.run.files
        known = FILE in files.manifest().files
        return Dependence.from_json(files.read_verified(FILE)) if known else None


class NetworkModel:
    """A network by its name in the family."""

    def __init__(self, name: str):
        self.name = name

    def check(self, options: TrainOptions) -> None:
        with process.importing():
            from mqcast.train.distributed import pick_device

        pick_device(options.device)

    def settings(self, panel: Panel, options: TrainOptions) -> Merged:
        before = options.start_from
        kept = _kept(before.config) if isinstance(before, FittedNetwork) else ()
        arguments = {
            "train.seed": options.seed,
            "train.max_steps": options.max_steps,
            "train.max_minutes": options.max_minutes,
            "model.members": options.members,
        }
        from_user = {name: value for layer in options.layers for name, value in layer.items()}
        given = {name: value for name, value in arguments.items() if value is not None and from_user.get(name) != value}
        layers = (*preset_layers(options.preset), *kept, *options.layers, assigned_values(given))
        layers = sorted(layers, key=lambda layer: layer.origin)
        return settings_for(panel, self.name, options.horizon, options.quantiles, *layers, until=options.until)

    def fit(self, panel: Panel, options: TrainOptions) -> FittedNetwork:
        """Train in the folder of the options, or in a temporary one that is deleted with the run."""
        merged = self.settings(panel, options)
        with own_folder(options) as folder:
            run = _fit(panel, merged, folder, options)
        if options.folder is None:
            process.keep_as_long_as(run, folder.parent)
        return FittedNetwork(run, options.device, replace(merged, config=run.config))

    def rehearse(self, panel: Panel, options: TrainOptions) -> pl.DataFrame | None:
        """What the rehearsal of a fit forecasts from the held-out dates, calibrated; `fit` then goes on from there.

        None if the settings leave the rehearsal out.
        """
        config = self.settings(panel, options).config
        if not config.train.refit or options.folder is None:
            return None
        rehearsed = Rehearsed.of(panel, config, options.folder, options)
        return calibrated(rehearsed.revisions, rehearsed.calibrator)

    def load(self, folder: Path, options: TrainOptions) -> FittedNetwork:
        with process.importing():
            from mqcast.run import Run

        run = Run.open(folder)
        _ = run.kept_network  # raises if a file is damaged
        return FittedNetwork(run, options.device)


@contextmanager
def own_folder(options: TrainOptions) -> Generator[Path]:
    """The folder of the options, or one inside a temporary folder, which is deleted if the fit fails."""
    if options.folder is not None:
        yield options.folder
        return
    own = process.new_temporary_folder()
    try:
        yield own / "run"
    except BaseException as error:
        shutil.rmtree(own, ignore_errors=True)
        if not isinstance(error, Interrupted):
            raise
        text = f"{Signals(error.signal).name}: training has stopped; to be able to resume it, give folder="
        raise Interrupted(text, error.signal) from None


@dataclass(frozen=True)
class Rehearsed:
    """A finished rehearsal, what it forecast from the held-out dates, and what is learnt from that."""

    run: "Run"
    holdout: Holdout
    revisions: pl.DataFrame
    calibrator: Calibrator | None
    span_calibrators: dict[tuple[int, int], Calibrator]

    @classmethod
    def of(cls, panel: Panel, config: RunConfig, folder: Path, options: TrainOptions) -> "Rehearsed":
        """Rehearse for a run in the folder, or take up what is left of its rehearsal."""
        with process.importing():
            from mqcast.run import exists, require_free

        if not (options.resume and exists(folder)):
            require_free(folder)
        holdout = hold_out(panel, replace(options, until=config.split.train_until))
        run = _train(panel, rehearsal_of(config, holdout), folder / "rehearsal", options)
        fitted = FittedNetwork(run, options.device)
        revisions, of_spans = holdout.revisions(fitted), dict[tuple[int, int], Calibrator]()
        if fitted.spans:
            totals = fitted.forecast_spans(holdout.panel, fitted.spans, holdout.first, holdout.last)
            of_spans = span_calibrators_of(totals, holdout)
        return cls(run, holdout, revisions, calibrator_of(revisions, holdout, options), of_spans)


def _fit(panel: Panel, merged: Merged, folder: Path, options: TrainOptions) -> "Run":
    """Train, with `train.refit` after a rehearsal that finds the number of steps and calibrates the quantiles."""
    config = merged.config
    if not config.train.refit:
        return _train(panel, config, folder, options)
    rehearsed = Rehearsed.of(panel, config, folder, options)
    dependence = learnt_dependence(rehearsed.revisions, rehearsed.holdout)
    may_have_fewer = merged.origins.get("model.members", Origin.BUILT_IN) <= Origin.FITS_THE_DATA
    final = after_rehearsal(config, rehearsed.holdout, rehearsed.run, may_have_fewer)
    run = _train(panel, final, folder, options)
    if rehearsed.calibrator is not None and is_first():
        run.add_calibrator(rehearsed.calibrator)
    if rehearsed.span_calibrators and is_first():
        run.add_span_calibrators(rehearsed.span_calibrators)
    if dependence is not None and is_first():
        run.add_dependence(dependence.to_json().encode())
    return run


def _train(panel: Panel, config: RunConfig, folder: Path, options: TrainOptions) -> "Run":
    with process.importing():
        from mqcast.train.loop import fit
        from mqcast.train.records import progress

    before = options.start_from
    start_from = before.run if isinstance(before, FittedNetwork) else None
    given = options.listeners
    with progress(quiet=not options.verbose) if given is None else nullcontext(given) as listeners:
        return fit(
            panel,
            config,
            folder,
            resume=options.resume,
            start_from=start_from,
            listeners=listeners,
            device=options.device,
        )


def _kept(config: RunConfig) -> tuple[Layer, ...]:
    kept = config.model_dump(include=KEPT)
    for argument in ("model", "quantiles"):
        kept["model"].pop(argument)
    kept["window"].pop("horizon")
    return (Layer(Origin.START_FROM, kept | {"train": {"refit": False}}),)


def check_layout(panel: Panel, run: "Run", folder: Path) -> None:
    """Raise unless the run can read the panel."""
    if not can_be_read_as(panel, run.layout):
        raise ArtifactError(f"the columns or categories of the data in {folder} do not match the run; save it again")
