"""The exception tree. Every message says where, what, and the remedy.

    MqcastError
    ├── SchemaError              the roles do not fit the frame
    │   ├── MissingColumnError
    │   └── ColumnTypeError
    ├── DataError                a value does not fit its role
    │   ├── SourceError              no such file, or not one that can be read
    │   ├── EmptyFrameError
    │   ├── MissingKeyError          an id or a date is missing
    │   ├── DuplicateRowsError
    │   ├── OffGridError
    │   ├── TimeZoneError
    │   ├── NonFiniteError
    │   ├── FlagValuesError          a flag that is neither 0 nor 1
    │   ├── AllMissingError          a series without one observed target
    │   ├── KnownValuesError         a value that must be known ahead is not
    │   ├── StaticValuesError
    │   ├── EventTableError
    │   └── TooFewRevisionsError     too few dates or cutoffs to calibrate with
    ├── ConfigError              a setting is impossible
    ├── NotFittedError           a forecaster that has not been fitted is asked to forecast
    ├── ArtifactError            a folder on disk is not what it should be
    ├── TrainingError            a loss or gradient that is not finite
    ├── KernelError              arguments that the compiled kernels cannot take: a bug of mqcast's
    ├── CheckError               a forecaster does not keep what mqcast.checks promises
    ├── PeerLostError            a process that worked with this one is gone
    └── ForkedProcessError       a process was forked from one that had used mqcast

    Interrupted                  a KeyboardInterrupt: training was asked to stop by a signal; it is saved

Warnings, all `MqcastWarning`: `UnseenCategoryWarning`, `EventReachWarning`, `SeriesLeftOutWarning`,
`IncompletePlanWarning` (one of these: series without known columns for all coming steps),
`TargetsLeftOutWarning` (dates without a row or an actual), `FutureMissingWarning` (what `predict` will need is not
there yet), `LaggingSeriesWarning` (series that end before others), `MixedColumnWarning` (a text among numbers),
`GuessedEncodingWarning` (a CSV file that is not UTF-8),
`ForecastLimitedWarning` (forecasts beyond what the past can justify), `MemberLeftOutWarning` (members of a blend that
failed), `NotCalibratedWarning` (too few dates to calibrate with), and
`ImplausibleForecastWarning` (forecasts far beyond anything ever sold, negative, all 0, or quantiles that are none).

No message is longer than LONGEST, whatever ids, columns and paths it quotes, and none has a line break, a control
character or a sign that turns the direction of writing: these are shown as codes, such as \\n and \\u202e.
"""

import re
import sys
import warnings
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent

LONGEST, LONGEST_QUOTED, LONGEST_PART = 1000, 120, 400
_QUOTED = re.compile(rf"(?<!\w)'[^']{{{LONGEST_QUOTED},}}'|\"[^\"]{{{LONGEST_QUOTED},}}\"")


def shortened(text: str, longest: int) -> str:
    """Head and tail of a long text: what stands at its end, the remedy, is kept."""
    tail = longest * 2 // 5
    return text if len(text) <= longest else f"{text[: longest - tail - 1]}…{text[-tail:]}"


def quoted(value: Any, longest: int = LONGEST_QUOTED) -> str:
    """A value as it would be written in Python, shortened."""
    try:
        text = repr(shortened(value, longest) if isinstance(value, str) else value)
    except Exception:  # of the value's own making, or a number of more digits than Python writes
        text = f"a {type(value).__name__}"
    return shortened(text, longest + 2)


def readable(text: str, longest: int = LONGEST) -> str:
    """A text on one line, with long quotations and then the whole shortened in their middle."""
    if len(text) > 100 * longest:
        text = shortened(text, 100 * longest)
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    if len(text) > longest:
        text = _QUOTED.sub(lambda match: shortened(match[0], LONGEST_QUOTED), text)
    return shortened(text, longest)


def warn(text: str, category: type[Warning]) -> None:
    """Warn at the line outside of this package that led here."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, category, stacklevel=depth)


class MqcastError(Exception):
    """Everything that mqcast raises on purpose.

    >>> from mqcast import MqcastError, Policy
    >>> try:
    ...     Policy()
    ... except MqcastError as error:
    ...     print(error)
    ...
    nothing says how much to order; give holding_cost and shortage_cost, or service_level
    """

    def __init__(self, message: str = ""):
        super().__init__(readable(str(message)))

    def __reduce__(self) -> Any:
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[BaseException], args: tuple[Any, ...], facts: dict[str, Any]) -> BaseException:
    """An error of another process."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class SchemaError(MqcastError, ValueError):
    """The roles do not fit the frame.

    >>> from mqcast import Schema, SchemaError
    >>> try:
    ...     Schema(known=["price"], past=["price"])
    ... except SchemaError as error:
    ...     print(str(error).splitlines()[-1])
    ...
    column 'price' is both past and known; give it one role, or copy it under another name
    """


class MissingColumnError(SchemaError):
    """A named column is not there."""


class ColumnTypeError(SchemaError):
    """A column's type does not fit its role or kind."""


class DataError(MqcastError, ValueError):
    """A value does not fit its role.

    `column`, `series` and `time` say where, as far as they are known; they are part of the message too, shortened where
    they are long.

    >>> import polars as pl
    >>> from mqcast import DataError, Panel
    >>> twice = pl.DataFrame({"unique_id": ["soap"] * 2, "ds": ["2024-01-07"] * 2, "y": [1, 2]})
    >>> try:
    ...     Panel.from_frame(twice.with_columns(pl.col("ds").str.to_date()), {"freq": "W"})
    ... except DataError as error:
    ...     print(error)
    ...
    series 'soap', column 'ds', at 2024-01-07: 2 rows (rows 0 and 1 of the frame); aggregate them before fitting
    """

    def __init__(
        self,
        problem: str,
        remedy: str,
        *,
        column: str | None = None,
        series: str | None = None,
        time: str | None = None,
    ):
        self.problem, self.remedy = problem, remedy
        self.column, self.series, self.time = column, series, time
        where = [f"series {quoted(series)}"] if series is not None else []
        where += [f"column {quoted(column)}"] if column is not None else []
        where += [f"at {time}"] if time is not None else []
        what = f"{readable(problem, LONGEST_PART)}; {readable(remedy, LONGEST_PART)}"
        super().__init__(f"{', '.join(where)}: {what}" if where else what)


class SourceError(DataError):
    """There is no such file, or it cannot be read."""


class EmptyFrameError(DataError):
    """There is no row."""


class MissingKeyError(DataError):
    """An id or a date is missing."""


class DuplicateRowsError(DataError):
    """A series has two rows for one date."""


class OffGridError(DataError):
    """A date is not a whole number of steps from the others."""


class TimeZoneError(DataError):
    """Dates of several time zones, or with and without one."""


class NonFiniteError(DataError):
    """A value is infinite, or too large for float32."""


class FlagValuesError(DataError):
    """A flag is neither 0 nor 1."""


class AllMissingError(DataError):
    """A series has no observed target."""


class KnownValuesError(DataError):
    """A value that has to be known ahead is missing."""


class StaticValuesError(DataError):
    """A static value is missing, doubled or changes in time."""


class EventTableError(DataError):
    """The event table is doubled, contradicts itself or ends too early."""


class TooFewRevisionsError(DataError):
    """There are too few target dates or cutoffs to calibrate with."""


class ConfigError(MqcastError, ValueError):
    """A setting is impossible.

    >>> from mqcast import ConfigError, Policy
    >>> try:
    ...     Policy(service_level=0.95, pack_size=0)
    ... except ConfigError as error:
    ...     print(error)
    ...
    pack_size is 0; give a number above 0
    """


class NotFittedError(MqcastError, ValueError, AttributeError):
    """A forecaster that has not been fitted is asked to forecast."""


class ArtifactError(MqcastError):
    """A folder on disk is not what it should be.

    >>> from mqcast import ArtifactError, Panel
    >>> try:
    ...     Panel.open("nowhere")
    ... except ArtifactError as error:
    ...     print("nowhere" in str(error))
    ...
    True
    """


class TrainingError(MqcastError):
    """A loss or a gradient is not finite. `step` and `series` say where; they are part of the message too."""

    def __init__(self, message: str, step: int, series: tuple[str, ...]):
        self.step, self.series = step, series
        super().__init__(message)


class KernelError(MqcastError, ValueError):
    """The compiled kernels were called with what they cannot take; they have not run."""

    def __init__(self, problem: str):
        super().__init__(f"{problem}; MQCAST_KERNELS=off goes without the kernels; please report this")


class CheckError(MqcastError, AssertionError):
    """A forecaster fails a check of `mqcast.checks`."""


class PeerLostError(MqcastError):
    """A process that worked with this one is gone."""


class ForkedProcessError(MqcastError):
    """A process that was forked from one that had used mqcast uses it too."""


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop by a signal, SIGINT or SIGTERM. No error: `except Exception` lets it pass."""

    def __init__(self, message: str, signal: int):
        self.signal = signal
        super().__init__(readable(message))

    def __reduce__(self) -> Any:
        return _again, (type(self), self.args, self.__dict__)


class MqcastWarning(UserWarning):
    """Everything that mqcast warns of."""

    def __init__(self, message: str = ""):
        super().__init__(readable(str(message)))


class UnseenCategoryWarning(MqcastWarning):
    """Values that training never saw; they are read as the reserved unknown."""


class MixedColumnWarning(MqcastWarning):
    """A column of a CSV file that is text because of some of its values only."""


class GuessedEncodingWarning(MqcastWarning):
    """A CSV file that is not UTF-8, and is read as Excel in Western Europe would have written it."""


class EventReachWarning(MqcastWarning):
    """Dates beyond the event table; no event is assumed there."""


class SeriesLeftOutWarning(MqcastWarning):
    """Series that cannot be forecast from the cutoffs that were asked for."""


class IncompletePlanWarning(SeriesLeftOutWarning):
    """Series whose plan, the known columns of the coming steps, lacks rows."""


class TargetsLeftOutWarning(MqcastWarning):
    """Dates without a row, and so without the columns that a forecast of them needs; or without an actual."""


class FutureMissingWarning(MqcastWarning):
    """Known columns or events end before the dates that `predict` will forecast."""


class LaggingSeriesWarning(MqcastWarning):
    """Series that were last observed before the date that all are forecast from."""


class ImplausibleForecastWarning(MqcastWarning):
    """Forecasts that cannot be meant: far beyond anything ever sold, negative, all 0, or quantiles that are none."""


class ForecastLimitedWarning(MqcastWarning):
    """Forecasts beyond what the past can justify; they are published at the limit."""


class MemberLeftOutWarning(MqcastWarning):
    """A member of a blend that could not be fitted or forecast; the others go on without it."""


class NotCalibratedWarning(MqcastWarning):
    """There are too few dates to calibrate with; quantiles are published as the model gives them."""
