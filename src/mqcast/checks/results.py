"""What a check found: one result a check, and all of them as a table."""
# pyright: strict

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal, overload

from mqcast.errors import CheckError

Outcome = Literal["passed", "failed", "not applicable"]
SIGNS: dict[Outcome, str] = {"passed": "✓", "failed": "✗", "not applicable": "–"}


@dataclass(frozen=True)
class CheckResult:
    """One check of one forecaster: what it promises, whether that holds, what was seen, and how long it took.

    >>> from mqcast import Forecaster
    >>> from mqcast.checks import quantiles_do_not_cross
    >>> quantiles_do_not_cross(Forecaster("seasonal-naive", horizon=3)).sign
    '✓'
    """

    name: str
    promise: str
    outcome: Outcome
    seen: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    @property
    def failed(self) -> bool:
        return self.outcome == "failed"

    @property
    def sign(self) -> str:
        return SIGNS[self.outcome]

    def __str__(self) -> str:
        return f"{self.sign} {self.name}: {self.seen}"

    def raise_if_failed(self) -> "CheckResult":
        if self.failed:
            raise CheckError(f"{self.name}: {self.seen}; promised: {self.promise}")
        return self


class CheckResults(Sequence[CheckResult]):
    """The results of a battery, in its order; a table where it is printed.

    >>> from mqcast import Forecaster
    >>> from mqcast.checks import check_forecaster
    >>> naive = Forecaster("seasonal-naive", horizon=3)
    >>> results = check_forecaster(naive, checks=["forecasts_are_finite", "quantiles_do_not_cross"])
    >>> print(len(results), results.passed)
    2 True
    """

    def __init__(self, subject: str, results: Iterable[CheckResult]):
        self.subject, self._results = subject, tuple(results)

    @overload
    def __getitem__(self, index: int) -> CheckResult: ...
    @overload
    def __getitem__(self, index: slice) -> "CheckResults": ...
    def __getitem__(self, index: int | slice) -> "CheckResult | CheckResults":
        if isinstance(index, slice):
            return CheckResults(self.subject, self._results[index])
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self._results)

    def named(self, name: str) -> CheckResult:
        """The result of one check."""
        return next(result for result in self if result.name == name)

    @property
    def failures(self) -> "CheckResults":
        return CheckResults(self.subject, (result for result in self if result.failed))

    @property
    def passed(self) -> bool:
        """Did nothing fail?"""
        return not self.failures

    def raise_if_failed(self) -> "CheckResults":
        if not self.passed:
            failures = "; ".join(f"{result.name}: {result.seen}" for result in self.failures)
            raise CheckError(f"{self.subject} fails {len(self.failures)} of {len(self)} checks: {failures}")
        return self

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain values, for JSON or a frame of any library."""
        return [asdict(result) for result in self]

    @property
    def counts(self) -> str:
        """How many passed, failed and did not apply, in words."""
        numbers = {outcome: sum(result.outcome == outcome for result in self) for outcome in SIGNS}
        return ", ".join(f"{count} {outcome}" for outcome, count in numbers.items())

    def __repr__(self) -> str:
        width = max((len(result.name) for result in self), default=0)
        lines = [f"{r.sign} {r.name:<{width}}  {r.seen} ({r.seconds:.2f} s)" for r in self]
        return "\n".join([f"{self.subject}: {self.counts}", *lines])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{title}</th>" for title in ("", "check", "what was seen", "seconds"))
        rows = "".join(
            f"<tr><td>{r.sign}</td><td title='{escape(r.promise, quote=True)}'>{escape(r.name)}</td>"
            f"<td>{escape(r.seen)}</td><td>{r.seconds:.2f}</td></tr>"
            for r in self
        )
        title = escape(f"{self.subject}: {self.counts}")
        return f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
