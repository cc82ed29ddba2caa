"""The battery: what a check is, and one forecaster put through all of them."""
# pyright: strict

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mqcast.checks.candidate import Candidate, FailedError, NotApplicableError, described
from mqcast.checks.results import CheckResult, CheckResults, Outcome
from mqcast.data.schema import Schema
from mqcast.data.source import FrameLike
from mqcast.errors import ConfigError

_ALL: dict[str, "Check"] = {}


@dataclass(frozen=True)
class Check:
    """One promise. Called with a forecaster (or a `Candidate`), it raises `CheckError` if the promise does not hold.

    >>> from mqcast import Forecaster
    >>> from mqcast.checks import forecasts_are_finite
    >>> forecasts_are_finite(Forecaster("seasonal-naive", horizon=3)).outcome
    'passed'
    """

    name: str
    promise: str
    look: Callable[[Candidate], str]  # what was seen; raises FailedError or NotApplicableError

    def __call__(
        self, thing: Any, frame: FrameLike | None = None, schema: Schema | None = None, **options: Any
    ) -> CheckResult:
        return self.result(thing, frame, schema, **options).raise_if_failed()

    def result(
        self, thing: Any, frame: FrameLike | None = None, schema: Schema | None = None, **options: Any
    ) -> CheckResult:
        """The same, as a result that is never raised; the options are those of `check_forecaster`."""
        candidate = thing if isinstance(thing, Candidate) else Candidate(thing, frame, **options)
        began = time.perf_counter()
        outcome: Outcome = "passed"
        try:
            seen = self.look(candidate)
        except NotApplicableError as reason:
            outcome, seen = "not applicable", str(reason)
        except FailedError as reason:
            outcome, seen = "failed", str(reason)
        except Exception as error:  # a forecaster's own code may raise anything
            outcome, seen = "failed", f"it raised {described(error)}"
        return CheckResult(self.name, self.promise, outcome, seen, time.perf_counter() - began)

    def __repr__(self) -> str:
        return f"<check {self.name}>"


def check(look: Callable[[Candidate], str]) -> Check:
    """Make a function a check, with its name; the first line of its docstring is the promise."""
    made = Check(look.__name__, (look.__doc__ or "").strip().splitlines()[0].rstrip("."), look)
    _ALL[made.name] = made
    return made


def all_checks() -> list[Check]:
    """Every check, in the order of the battery; for `pytest.mark.parametrize("check", all_checks(), ids=repr)`.

    >>> from mqcast.checks import all_checks
    >>> all_checks()[0]
    <check output_has_the_right_shape>
    """
    return list(_ALL.values())


def check_forecaster(
    thing: Any,
    frame: FrameLike | None = None,
    schema: Schema | None = None,
    horizon: int | None = None,
    *,
    static: FrameLike | None = None,
    events: FrameLike | None = None,
    tolerance: float = 0.0,
    checks: Sequence[Check | str] | None = None,
) -> CheckResults:
    """Put a forecaster through the battery, and say which promises it keeps.

    thing       a Forecaster, any object with fit(frame) and predict(frame), or a function f(frame, horizon); what comes
                back is a frame of id, cutoff, date, horizon and quantiles. A forecaster that says it is fitted is not
                trained again; of any other, copies are trained.
    frame       your own data; left out: what a Forecaster was fitted on, or a small simulated panel
    schema      what its columns mean; left out: the forecaster's own, or unique_id, ds and y
    horizon     steps ahead; left out: the forecaster's own, or 4
    static, events   tables that stand apart from the frame, for forecasters that take them
    tolerance   how far, relative to its size, a forecast that should be equal may be off; 0: equal bits
    checks      some of them, by name or as imported; left out: all

    >>> from mqcast import Forecaster
    >>> from mqcast.checks import check_forecaster
    >>> results = check_forecaster(Forecaster("seasonal-naive", horizon=3))
    >>> results.passed
    True
    """
    candidate = Candidate(thing, frame, schema, horizon, static=static, events=events, tolerance=tolerance)
    wanted = all_checks() if checks is None else [_named(one) for one in checks]
    return CheckResults(candidate.name, [one.result(candidate) for one in wanted])


def _named(given: Check | str) -> Check:
    if isinstance(given, Check):
        return given
    if given not in _ALL:
        raise ConfigError(f"there is no check {given!r}; there are {', '.join(_ALL)}")
    return _ALL[given]
