# pyright: strict
"""The calibrated blend of several models.

The last dates are held out. Each member is fitted before them and forecasts them; these forecasts give the weights of
the members and the calibration of their blend. The members that count are then fitted again, on all dates.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from mqcast import process
from mqcast.artifact import ArtifactFolder
from mqcast.calibration import Calibrator
from mqcast.data.panel import Panel
from mqcast.errors import (
    ArtifactError,
    ConfigError,
    MemberLeftOutWarning,
    NotCalibratedWarning,
    TooFewRevisionsError,
    warn,
)
from mqcast.evaluation.reading import forecast_table
from mqcast.evaluation.tables import Names
from mqcast.joint.dependence import Dependence
from mqcast.levels import quantile_column
from mqcast.models.blend import Blend, Judged, fit_blend, judged
from mqcast.models.ensemble import files_of
from mqcast.models.holdout import Holdout, calibrated, calibrator_of, hold_out, learnt_dependence
from mqcast.models.networks import NetworkModel
from mqcast.models.protocol import ChecksOptions, FittedModel, Model, TrainOptions
from mqcast.models.seasonal_naive import SeasonalNaive
from mqcast.models.stages import (
    REMEDY,
    Stages,
    listening,
    load_member,
    refuse_start,
    with_own_arguments,
    workplace,
)

BLEND = "blend.json"
BASELINE, YARDSTICK, PUBLISHED = "seasonal-naive", "(yardstick)", "(calibrated blend)"
FAR_BEHIND_NAIVE, FAR_BEHIND_BEST = 1.3, 1.5  # times the loss of seasonal naive or of the best: members are left out
NAIVE_BEHIND_BEST = 1.1  # seasonal naive itself has to be nearly as good as the best
LEAST_SHARE = 0.5  # of the rows that seasonal naive forecasts
PRIOR = {"smoothing": 0.5, BASELINE: 0.25}  # times the weight of others, before any evidence: they learn little
Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class FittedAuto:
    """Members with their folders, the blend of them and its calibration.

    leaderboard  the members by their loss on the held-out dates relative to seasonal naive, on average and by level;
                 weight, minutes, and why a member was left out
    """

    members: Mapping[str, FittedModel]
    folders: Mapping[str, str]
    blend: Blend
    calibrator: Calibrator | None
    leaderboard: pl.DataFrame
    dependence: Dependence | None = None

    def forecast(self, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame:
        frames = {name: member.forecast(panel, first, last) for name, member in self.members.items()}
        return calibrated(self.blend.apply(frames), self.calibrator)

    def files(self) -> dict[str, bytes]:
        """The files of each member in a folder of its own, with the weights, the calibration and the leaderboard."""
        facts = _facts(self.blend, self.calibrator, self.dependence) | {
            "leaderboard": self.leaderboard.to_dicts(),
            "folders": dict(self.folders),
        }
        files = {BLEND: json.dumps(facts, indent=1).encode()}
        for name, member in self.members.items():
            files |= files_of(member, self.folders[name])
        return files


class Auto:
    def __init__(self, members: Mapping[str, Model]):
        self.members = dict(members)

    def check(self, options: TrainOptions) -> None:
        for member in self.members.values():
            if isinstance(member, ChecksOptions):
                member.check(options)

    def fit(self, panel: Panel, options: TrainOptions) -> FittedAuto:
        refuse_start(options)
        with workplace(options) as folder, listening(options) as listeners:
            own = with_own_arguments(replace(options, folder=folder, listeners=listeners))
            fitted = _Fit(Stages(self.members, panel, own, folder)).run()
        if options.folder is None:
            process.keep_as_long_as(fitted, folder.parent)
        return fitted

    def load(self, folder: Path, options: TrainOptions) -> FittedAuto:
        files = ArtifactFolder(folder, REMEDY)
        facts = files.read_json(BLEND)
        try:
            blend, calibrator, dependence = _of_facts(facts)
            leaderboard = _leaderboard(facts["leaderboard"], blend.levels)
            folders = {name: str(facts["folders"][name]) for name in blend.members}
        except (KeyError, TypeError, ValueError, ArtifactError) as error:
            raise files.damaged(BLEND, error) from None
        loaded = {name: load_member(name, self.members, folder / folders[name], options) for name in blend.members}
        return FittedAuto(loaded, folders, blend, calibrator, leaderboard, dependence)


@dataclass
class _Fit:
    """One fit: the members, and why some of them are left out."""

    stages: Stages
    left_out: dict[str, str] = field(default_factory=dict[str, str])

    def run(self) -> FittedAuto:
        stages = self.stages
        stages.begin()
        if (facts := stages.read(BLEND)) is None:
            facts = self._facts()
            stages.write(BLEND, facts)
        blend, calibrator, dependence = _of_facts(facts)
        stages.minutes, self.left_out = dict(facts["minutes"]), dict(facts["left_out"])
        fitted = self._each(blend.members, stages.final, "on all dates")
        blend = blend.only([name for name in blend.members if name in fitted])
        rows = self._rows(facts["losses"], blend)
        leaderboard = _leaderboard(rows, blend.levels)
        return FittedAuto(fitted, stages.folders(blend.members), blend, calibrator, leaderboard, dependence)

    def _each(
        self, names: Mapping[str, Any] | tuple[str, ...], work: Callable[[str, int], Found], where: str
    ) -> dict[str, Found]:
        """What each member gives; those that fail are left out. Networks come last: they use what time is left."""
        members = self.stages.members
        order = sorted(names, key=lambda name: isinstance(members[name], NetworkModel))
        found: dict[str, Found] = {}
        first_error: Exception | None = None
        for i, name in enumerate(order):
            try:
                found[name] = work(name, len(order) - i)
            except Exception as error:
                first_error = first_error or error
                self._leave_out(name, f"failed {where}: {error}")
        if first_error is not None and not found:
            raise first_error
        return {name: found[name] for name in names if name in found}

    def _facts(self) -> dict[str, Any]:
        """The weights and the calibration; equal weights without a calibration if nothing can be held out."""
        stages = self.stages
        try:
            holdout = hold_out(stages.panel, stages.options)
        except TooFewRevisionsError as error:
            warn(f"auto cannot judge its members, and forecasts their mean: {error.problem}", NotCalibratedWarning)
            names = [name for name in stages.members if name != BASELINE] or [BASELINE]
            blend = Blend.equal(stages.options.quantiles, names)
            return _facts(blend, None, None) | {"losses": {}, "minutes": {}, "left_out": {}}
        return self._weighed(holdout)

    def _weighed(self, holdout: Holdout) -> dict[str, Any]:
        """The weights, the calibration, and the losses on the held-out dates."""
        stages = self.stages
        schema, options = stages.panel.schema, stages.options
        frames = self._each(
            stages.members, lambda name, left: stages.revisions(name, holdout, left), "on the held-out dates"
        )
        naive = frames.get(BASELINE)
        if naive is None:
            naive = holdout.revisions(SeasonalNaive().fit(stages.panel, options))
        for name in [name for name, frame in frames.items() if frame.height < LEAST_SHARE * naive.height]:
            self._leave_out(name, f"has only {frames.pop(name).height} of {naive.height} forecasts to judge it by")
        if not frames:
            raise ConfigError("no member forecasts most series on the held-out dates; name others")
        names = Names.of(schema)
        tables = {name: forecast_table(frame, names) for name, frame in ({YARDSTICK: naive} | frames).items()}
        found = judged(tables, holdout.actuals, options.quantiles, schema=schema)
        if holdout.year_is_new:
            found = replace(found, num_dates=1.0)  # what members make of the same weeks last year is not seen
        losses = _relative(found)
        blend = fit_blend(found.only(self._good_enough(losses)), PRIOR)
        blended = blend.apply(frames)
        calibrator = calibrator_of(blended, holdout, options)
        published = calibrated(blended, calibrator)
        both = {YARDSTICK: tables[YARDSTICK], PUBLISHED: forecast_table(published, names)}
        losses |= _relative(judged(both, holdout.actuals, options.quantiles, schema=schema))
        facts = {"losses": losses, "minutes": stages.minutes, "left_out": self.left_out}
        return _facts(blend, calibrator, learnt_dependence(published, holdout)) | facts

    def _good_enough(self, losses: Mapping[str, list[float]]) -> list[str]:
        """The members that are not far behind seasonal naive or the best of them."""
        means = {name: _mean(of_levels) for name, of_levels in losses.items()}
        best = min(means.values())
        for name, mean in means.items():
            if mean > FAR_BEHIND_NAIVE and mean > best:
                self.left_out[name] = f"its loss is {mean:.2f} times that of seasonal naive"
            elif mean > (NAIVE_BEHIND_BEST if name == BASELINE else FAR_BEHIND_BEST) * best:
                self.left_out[name] = f"its loss is {mean / best:.2f} times that of the best"
        return [name for name in means if name not in self.left_out]

    def _rows(self, losses: Mapping[str, list[float]], blend: Blend) -> Iterator[dict[str, Any]]:
        """The leaderboard: what is published, then the members, best first."""
        minutes = self.stages.minutes
        otherwise = "its weight would be below 3 %" if losses else "nothing could be judged"
        where = "on the dates that it was fitted to" if losses else otherwise
        judged_first = sorted(self.stages.members, key=lambda name: _mean(losses[name]) if name in losses else 1e300)
        for name in (PUBLISHED, *judged_first):
            own, is_member = losses.get(name), name != PUBLISHED
            by_level = {quantile_column(level): own and own[i] for i, level in enumerate(blend.levels)}
            why = "" if name in blend.members else self.left_out.get(name, otherwise)
            yield {
                "member": name,
                "loss": own and _mean(own),
                **by_level,
                "weight": blend.weights.get(name, 0.0) if is_member else None,
                "minutes": minutes.get(name) if is_member else sum(minutes.values()),
                "note": (why and f"left out: {why}") if is_member else where,
            }

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        warn(f"auto goes on without {name}, which {why}", MemberLeftOutWarning)


def _relative(found: Judged) -> dict[str, list[float]]:
    """The losses of the other members by level, relative to those of the first."""
    losses = found.losses().tolist()
    usual = [loss or 1.0 for loss in losses[0]]
    pairs = zip(found.members[1:], losses[1:], strict=True)
    return {name: [loss / of_first for loss, of_first in zip(own, usual, strict=True)] for name, own in pairs}


def _mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def _facts(blend: Blend, calibrator: Calibrator | None, dependence: Dependence | None) -> dict[str, Any]:
    learnt = {"calibrator": calibrator, "dependence": dependence}
    given = {name: None if one is None else json.loads(one.to_json()) for name, one in learnt.items()}
    return {"blend": json.loads(blend.to_json())} | given


def _of_facts(facts: Mapping[str, Any]) -> tuple[Blend, Calibrator | None, Dependence | None]:
    given, learnt = facts["calibrator"], facts.get("dependence")  # which older files do not have
    calibrator = None if given is None else Calibrator.from_json(json.dumps(given))
    dependence = None if learnt is None else Dependence.from_json(json.dumps(learnt))
    return Blend.from_json(json.dumps(facts["blend"])), calibrator, dependence


def _leaderboard(rows: Any, levels: tuple[float, ...]) -> pl.DataFrame:
    numbers = ("loss", *(quantile_column(level) for level in levels), "weight", "minutes")
    return pl.DataFrame(
        list(rows), schema={"member": pl.String, **dict.fromkeys(numbers, pl.Float64), "note": pl.String}
    )
