"""Checks of manners: the frame and the random state are left alone, and what was saved is what is loaded."""

import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mqcast.checks.adapters import ObjectSubject
from mqcast.checks.battery import check
from mqcast.checks.candidate import Candidate, FailedError, NotApplicableError, difference
from mqcast.checks.data import Data
from mqcast.data.panel import Panel
from mqcast.data.source import open_source
from mqcast.errors import ConfigError, MqcastError


@check
def the_frame_is_left_as_it_was(candidate: Candidate) -> str:
    """Neither training nor forecasting changes a row or a column of the frame that it was given."""
    _ = candidate.forecasts
    verbs = ["predict", *(["fit"] if candidate.subject.has_training else [])]
    for verb in verbs:
        lent = _Lent.of(candidate.data)
        by = candidate.fitted if verb == "predict" else candidate.subject
        candidate.quietly(lambda by=by, verb=verb, lent=lent: by.forecast(lent) if verb == "predict" else by.fit(lent))
        if problem := lent.problem():
            raise FailedError(f"after {verb}, {problem}")
    return f"after {' and '.join(verbs)}"


@check
def the_random_state_is_left_as_it_was(candidate: Candidate) -> str:
    """Random numbers of the process are as if nothing had been trained and forecast."""
    _ = candidate.forecasts
    sources = _random_sources()
    kept, moved = [source.state() for source in sources], []
    try:
        for source in sources:
            source.draw()  # to a state that no earlier call has left
        before = [source.state() for source in sources]
        candidate.quietly(lambda: candidate.subject.fit(candidate.data))
        candidate.forecast(candidate.data)
        pairs = zip(sources, before, strict=True)
        moved = [source.name for source, state in pairs if repr(source.state()) != repr(state)]
    finally:
        for source, state in zip(sources, kept, strict=True):
            source.restore(state)
    if moved:
        raise FailedError(f"the state of {', '.join(moved)} has moved")
    return f"{', '.join(source.name for source in sources)} as before"


@check
def what_is_loaded_forecasts_as_what_was_saved(candidate: Candidate) -> str:
    """Saved to a folder and loaded again it forecasts the same, bit for bit."""
    subject = candidate.fitted
    if not (isinstance(subject, ObjectSubject) and hasattr(subject.thing, "save") and hasattr(subject.thing, "load")):
        raise NotApplicableError("it has no save and load")
    first = candidate.repeatable()
    with tempfile.TemporaryDirectory(prefix="mqcast-checks-") as folder:
        path = Path(folder) / "saved"
        try:
            subject.thing.save(path)
        except ConfigError as error:  # a model of one's own may have no files
            raise NotApplicableError(str(error)) from None
        loaded = ObjectSubject(type(subject.thing).load(path), candidate.horizon, is_fitted=True)
        if problem := difference(first, candidate.forecast(candidate.data, by=loaded), candidate.tolerance):
            raise FailedError(problem)
    return f"{len(first)} rows equal"


@check
def what_is_on_disk_is_whole(candidate: Candidate) -> str:
    """A run's files are those that were written: settings, columns, transforms, weights and data."""
    thing = candidate.fitted.thing
    run, panel = getattr(thing, "run_", None), getattr(thing, "panel_", None)
    if not isinstance(panel, Panel) or run is None:
        raise NotApplicableError("it has no run on disk")
    try:
        opened = type(run).open(run.folder)
        opened.network()
        opened.assembler(panel)
        panel.verify()
    except MqcastError as error:
        raise FailedError(str(error)) from None
    return "settings, columns, transforms, weights and data"


@dataclass(frozen=True)
class _Random:
    """Random numbers that a process shares."""

    name: str
    state: Callable[[], Any]
    restore: Callable[[Any], Any]
    draw: Callable[[], Any]


def _random_sources() -> list[_Random]:
    """Python's, numpy's old ones, and torch's if it is there."""
    old = np.random.mtrand._rand  # the generator behind np.random.random, np.random.seed …
    sources = [
        _Random("random", random.getstate, random.setstate, random.random),
        _Random("numpy.random", lambda: old.get_state(legacy=False), old.set_state, old.random_sample),
    ]
    if (torch := sys.modules.get("torch")) is not None:
        sources.append(
            _Random(
                "torch",
                lambda: torch.random.get_rng_state().numpy().tobytes(),
                lambda state: torch.random.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
                lambda: torch.rand(1),
            )
        )
    return sources


@dataclass(frozen=True, eq=False)
class _Lent(Data):
    """Data whose frames are remembered, to see afterwards whether they were changed."""

    given: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, data: Data) -> "_Lent":
        return cls(data.rows, data.schema, data.static, data.events, data.frame_types)

    def frame(self) -> Any:
        self.given.append(super().frame())
        return self.given[-1]

    def problem(self) -> str | None:
        for frame in self.given:
            source, untouched = open_source(frame), open_source(super().frame())
            if source.names != untouched.names:
                return f"the frame's columns are {', '.join(source.names)}, not {', '.join(untouched.names)}"
            for name in source.names:
                if not pl.Series(source.column(name)).equals(pl.Series(untouched.column(name)), null_equal=True):
                    return f"column {name!r} of the frame is another"
        return None
