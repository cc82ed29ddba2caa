"""A forecaster with the data and the horizon of its checks, and what several checks ask of it."""

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from mqcast.checks.adapters import Subject, is_fitted, subject_of
from mqcast.checks.data import Data
from mqcast.checks.sample import sample_frame
from mqcast.data.schema import Schema
from mqcast.data.source import FrameLike
from mqcast.errors import ConfigError, MqcastError

DEFAULT_HORIZON = 4


class FailedError(Exception):
    """A promise does not hold; the message says what was seen."""


class NotApplicableError(Exception):
    """A promise that this forecaster does not make, or that cannot be looked at; the message says why."""


class Unreadable(Exception):
    """What came back is no frame of forecasts."""


class Candidate:
    """A forecaster to be checked. Checks share it: it is trained once, and forecasts the data as they are once.

    >>> from mqcast import Forecaster
    >>> from mqcast.checks import Candidate, forecasts_are_finite
    >>> candidate = Candidate(Forecaster("seasonal-naive", horizon=3))  # its data and forecasts serve several checks
    >>> forecasts_are_finite(candidate).outcome
    'passed'
    """

    def __init__(
        self,
        thing: Any,
        frame: FrameLike | None = None,
        schema: Schema | None = None,
        horizon: int | None = None,
        *,
        static: FrameLike | None = None,
        events: FrameLike | None = None,
        tolerance: float = 0.0,
    ):
        if not tolerance >= 0:
            raise ConfigError(f"tolerance is {tolerance!r}; give 0 for equal bits, or a share such as 1e-6")
        own = getattr(thing, "horizon", None)
        self.horizon = int(horizon or (own if isinstance(own, int) else DEFAULT_HORIZON))
        self.tolerance = tolerance
        self._has_own_frame, self._is_explained = frame is not None, False
        self.subject: Subject = subject_of(thing, self.horizon)
        self.data = _data(thing, frame, schema, self.horizon, static, events).with_plan(self.horizon)

    @property
    def name(self) -> str:
        return self.subject.name

    @cached_property
    def fitted(self) -> Subject:
        return self.quietly(lambda: self.subject.fit(self.data))

    @cached_property
    def _first(self) -> pl.DataFrame | Exception:
        """The forecasts of the data as they are, or what is wrong with them."""
        try:
            return self.forecast(self.data)
        except Exception as error:
            return error

    @property
    def forecasts(self) -> pl.DataFrame:
        """The forecasts of the data as they are; why there are none is said once."""
        if not isinstance(self._first, Exception):
            return self._first
        reason = "for the reason given above" if self._is_explained else described(self._first)
        if isinstance(self._first, AttributeError) and not (self._is_explained or self._has_own_frame):
            reason += "; frames come as polars: for another library, give frame= such as sample_frame().to_pandas()"
        self._is_explained = True
        raise NotApplicableError(f"there is no forecast to look at ({reason})")

    @cached_property
    def repeated(self) -> dict[str, pl.DataFrame]:
        """The same once more: the same call, and where there is training, the same training."""
        again = {"called twice": self.forecast(self.data)}
        if self.subject.has_training:
            retrained = self.quietly(lambda: self.subject.fit(self.data))
            again["trained twice"] = self.forecast(self.data, by=retrained)
        return again

    def repeatable(self) -> pl.DataFrame:
        """The forecasts of the data, if the same input gives them again; without that nothing can be compared."""
        first = self.forecasts
        if any(difference(first, other, self.tolerance) for other in self.repeated.values()):
            raise NotApplicableError("its forecasts differ from one call to the next, so that nothing can be compared")
        return first

    def forecast(self, data: Data, cutoff: Any = None, by: Subject | None = None) -> pl.DataFrame:
        """What it forecasts, in one form: id as text, cutoff, date, horizon, levels; of one cutoff if one is given."""
        subject = by or self.fitted
        if cutoff is None:
            return self.read(self.quietly(lambda: subject.forecast(data)))
        if subject.takes_cutoff:
            return self.read(self.quietly(lambda: subject.forecast(data, cutoff)))
        return self.read(self.quietly(lambda: subject.forecast(data))).filter(pl.col("cutoff") == cutoff)

    def read(self, output: Any) -> pl.DataFrame:
        schema = self.data.schema
        try:
            table = nw.from_native(output, eager_only=True).to_polars()
        except TypeError:
            raise Unreadable(f"what came back is a {type(output).__name__}, not a frame") from None
        keys = [schema.id, "cutoff", schema.time, "horizon"]
        levels = sorted((name for name in table.columns if _level(name) is not None), key=lambda n: _level(n) or 0)
        if missing := [name for name in keys if name not in table.columns]:
            raise Unreadable(f"the forecasts have no column {', '.join(missing)}; there are {', '.join(table.columns)}")
        if not levels:
            raise Unreadable("the forecasts have no column of a quantile, such as q0.5")
        try:
            dates = [_dated(table[name]).alias(name) for name in ("cutoff", schema.time)]
            table = table.with_columns(pl.col(schema.id).cast(pl.String), *dates, pl.col("horizon").cast(pl.Int64))
            table = table.with_columns(pl.col(name).cast(pl.Float64) for name in levels)
        except pl.exceptions.PolarsError as error:
            raise Unreadable(f"the forecasts have values of other types ({str(error).splitlines()[0]})") from None
        return table.select(*keys, *levels).sort(keys)

    def levels(self, forecasts: pl.DataFrame) -> np.ndarray:
        """(rows, levels) quantiles, by rising level."""
        return forecasts.select(pl.col(pl.Float64)).to_numpy()

    def sound(self) -> pl.DataFrame:
        """The forecasts of the data, if they are complete and finite; otherwise other data would show nothing new."""
        forecasts = self.forecasts
        if len(forecasts) == 0 or not np.isfinite(self.levels(forecasts)).all():
            raise NotApplicableError("its forecasts are not finite to begin with")
        return forecasts

    def quietly(self, call: Callable[[], Any]) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()


def difference(one: pl.DataFrame, other: pl.DataFrame, tolerance: float) -> str | None:
    """How two frames of forecasts differ, in words; None if they do not, to the bit or to a share of a series' size."""
    if one.columns != other.columns:
        return f"other columns: {', '.join(one.columns)} and {', '.join(other.columns)}"
    keys, names = one.columns[:4], one.columns[4:]
    if not one.select(keys).equals(other.select(keys)):
        return f"{len(one)} and {len(other)} rows, of other series or dates"
    a, b = one.select(names).to_numpy(), other.select(names).to_numpy()
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if tolerance:
        size = one.select(pl.max_horizontal(pl.col(names).abs()).max().over(keys[0])).to_numpy()
        same |= np.abs(a - b) <= tolerance * size
    if same.all():
        return None
    with np.errstate(invalid="ignore"):
        apart = np.where(same, -1, np.nan_to_num(np.abs(a - b), nan=np.inf))
    row, level = divmod(int(apart.argmax()), apart.shape[1])
    where = f"series {one[row, 0]!r} at {one[row, 1]}, {one[row, 3]} ahead, {names[level]}"
    return f"{a[row, level]:.9g} became {b[row, level]:.9g} ({where}; {int((~same).sum())} of {same.size} values)"


def described(error: BaseException, length: int = 200) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= length else f"{text[:length]}…"
    return text if isinstance(error, Unreadable) else f"{type(error).__name__}: {text}"


def refuses_clearly(error: Exception, name: Any) -> bool:
    """Is this one of mqcast's typed errors, or one that names the series?"""
    return isinstance(error, MqcastError) or str(name) in str(error)


def _data(
    thing: Any,
    frame: FrameLike | None,
    schema: Schema | None,
    horizon: int,
    static: FrameLike | None,
    events: FrameLike | None,
) -> Data:
    """The user's data; left out: what a Forecaster was fitted on, or a sample with the columns of its schema."""
    own = schema or getattr(thing, "schema", None)
    schema = own if isinstance(own, Schema) else Schema()
    if frame is not None:
        return Data.of_frame(frame, schema, static, events)
    if is_fitted(thing) and hasattr(thing, "panel_"):
        return Data.of_panel(thing.panel_, getattr(thing, "frame_types_", None))
    return Data.of_frame(sample_frame(schema, horizon), schema)


def _level(name: str) -> float | None:
    try:
        return float(name[1:]) if name[:1] == "q" and 0 < float(name[1:]) < 1 else None
    except ValueError:
        return None


def _dated(dates: pl.Series) -> pl.Series:
    if dates.dtype == pl.String:
        return dates.str.to_datetime(time_unit="us")
    zone = getattr(dates.dtype, "time_zone", None)
    return dates.cast(pl.Datetime("us", zone))
