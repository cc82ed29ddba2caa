"""A first forecast from an ordinary sales history in one call: roles guessed, every decision told, a folder made."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mqcast.arguments import names_of, number, path_of, whole_number
from mqcast.coming import recorded
from mqcast.data.excel_files import MOST_ROWS, excel_of, has_openpyxl
from mqcast.data.joined import PLUS, id_columns
from mqcast.data.panel import Panel
from mqcast.data.source import open_source
from mqcast.data.written import as_days, csv_of
from mqcast.durable import write_file
from mqcast.errors import ArtifactError, FutureMissingWarning, KnownValuesError, MqcastError, MqcastWarning, warn
from mqcast.forecast.frames import are_planned
from mqcast.forecaster import Forecaster
from mqcast.models import BASELINE, DEFAULT
from mqcast.report.coming import step_of
from mqcast.settings import MOST_PERIODS
from mqcast.starter import HAS_GAPS, PLANNED, Look, look_at, starter_toml, with_plan_looked_at, words_in

QUANTILES, MINUTES = (0.1, 0.5, 0.9), 4.0
FORECAST, EXCEL, PAGE, REPORT, SETTINGS, SAVED, DECISIONS = (
    *("forecast.csv", "forecast.xlsx", "page.html", "report.html", "mqcast.toml", "forecaster", "decisions.txt"),
)
ONE, SEVERAL = ("is", "has", "its", "it"), ("are", "have", "their", "them")
NO_PLAN = "its coming values are not in the data"
LEAST_PLANNED = 0.5  # of the series: with fewer plans, known columns are used as past ones, and all series are forecast
FEWEST_HORIZONS = 3  # of history for a backtest: one is held out


@dataclass(frozen=True, eq=False)
class FirstForecast:
    """What `quick` made.

    roles       column, role, why
    decisions   what was decided, in whole sentences
    forecast    as in forecast.csv
    backtest    forecasts of the held-out dates; None if the history is too short
    """

    folder: Path
    roles: pl.DataFrame
    decisions: tuple[str, ...]
    forecast: pl.DataFrame
    backtest: pl.DataFrame | None
    forecaster: Forecaster[Any]


def quick(
    frame: Any,
    horizon: int = 13,
    *,
    folder: str | Path = "first_forecast",
    id: str | Sequence[str] | None = None,
    time: str | None = None,
    target: str | None = None,
    known: str | Sequence[str] = (),
    past: str | Sequence[str] = (),
    static: str | Sequence[str] = (),
    holidays: str | Sequence[str] = (),
    minutes: float = MINUTES,
    model: str = DEFAULT,
    quantiles: Sequence[float] = QUANTILES,
    future: Any = None,
    seed: int = 0,
    verbose: bool = True,
    tell: Callable[[str], None] | None = None,
) -> FirstForecast:
    """A forecast of a frame or a file, a backtest and pages of both, in a new folder; the roles of columns are guessed.

    id, time, target, known, past, static   say what was guessed wrongly; several id columns are joined
    holidays    countries or regions, such as "US"
    future      a frame or a file of what is planned after the last sale, such as promotions: id, date, known columns
    minutes     for training, half of them for the backtest
    tell        called with each table and sentence as it comes; default: printed if `verbose`

    >>> from mqcast.simulate import lognormal_world
    >>> import mqcast
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> first = mqcast.quick(world.frame, horizon=4, model="seasonal-naive", verbose=False)
    >>> first.roles["role"].to_list()
    ['id', 'time', 'target', 'known', 'known']
    >>> first.forecast.height
    80
    """
    whole_number("horizon", horizon, 1, MOST_PERIODS)
    number("minutes", minutes, 0)
    place = path_of("folder", folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ArtifactError(f"{place} already exists; choose another folder, or delete it")
    said = {"known": names_of("known", known), "past": names_of("past", past), "static": names_of("static", static)}
    joined = None if id is None else PLUS.join(names_of("id", id))
    look = look_at(open_source(frame), joined, time, target, said)
    if future is not None:
        look = with_plan_looked_at(look, future, said)
    look = replace(look, schema=look.schema.replace(holidays=names_of("holidays", holidays)))
    say = tell or (_print if verbose else _ignore)
    options = {"model": model, "quantiles": quantiles, "seed": seed, "verbose": verbose}
    what = str(frame) if isinstance(frame, str | Path) else "your frame"
    return _Work(look, horizon, place, minutes, options, what, say).done()


class _Work:
    """One call of `quick`: the data, then the backtest, then the forecast, and what was decided on the way."""

    def __init__(
        self,
        look: Look,
        horizon: int,
        folder: Path,
        minutes: float,
        options: dict[str, Any],
        what: str,
        say: Callable[[str], None],
    ):
        self.horizon, self.folder, self.minutes, self.options, self.what = horizon, folder, minutes, options, what
        self.say, self.decisions = say, list[str]()
        self.look, self.panel = self._usable(look)
        self.step = step_of(self.panel.axis.frequency)

    def done(self) -> FirstForecast:
        roles = roles_table(self.look)
        self.say(_in_columns(roles))
        self._tell_data()
        backtest = self._backtest()
        self.say(f"Fitting {self.options['model']} on all data …")
        forecaster = self._forecaster(self.minutes / 2 if backtest is not None else self.minutes)
        forecast = self._with_parts(self._heard(lambda: forecaster.fit(self.panel).predict()))
        self._write(FORECAST, csv_of(forecast))
        if has_openpyxl() and forecast.height <= MOST_ROWS:
            self._write(EXCEL, excel_of(as_days(forecast)))
            self._decide(f"{EXCEL} holds the same as {FORECAST}.")
        self._heard(lambda: forecaster.page(self.folder / PAGE))
        forecaster.save(self.folder / SAVED)
        self._write(SETTINGS, starter_toml(self.look, self.horizon, self.what, self.options["quantiles"])[0])
        self._decide(
            f"{FORECAST} holds the forecast, {PAGE} shows it, {SAVED} is the fitted forecaster "
            f"(mqcast.Forecaster.load), and {SETTINGS} the settings to go on from."
        )
        self._write(DECISIONS, f"{_in_columns(roles)}\n\n" + "\n".join(self.decisions) + "\n")
        return FirstForecast(self.folder, roles, tuple(self.decisions), forecast, backtest, forecaster)

    def _usable(self, look: Look) -> tuple[Look, Panel]:
        """The panel; known columns that do not reach the coming steps of most series are taken as past ones."""
        with suppress(KnownValuesError):  # no row of the plan is complete
            panel = Panel.from_frame(look.source, look.schema)
            if not look.schema.known or are_planned(panel, self.horizon).mean() >= LEAST_PLANNED:
                return look, panel
        names = look.schema.known
        schema = look.schema.replace(known=(), past=(*look.schema.past, *names))
        look = replace(look, schema=schema, why=look.why | dict.fromkeys(names, NO_PLAN))
        return look, Panel.from_frame(look.source, schema)

    def _tell_data(self) -> None:
        panel, schema = self.panel, self.look.schema
        self._decide(
            f"There are {panel.num_series:,} series ({schema.id}), one row a {self.step} ({panel.axis.frequency}), the "
            f"last at {_day(panel.last_observed_date)}; {schema.target} is forecast {self.horizon} {self.step}s ahead."
        )
        if parts := id_columns(schema.id, [name for name in self.look.source.names if name != schema.id]):
            self._decide(f"A series is told by {' and '.join(parts)} together, joined as {panel.ids[0].as_py()!r}.")
        planned = [name for name in schema.past if self._is_planned(name)]
        with_gaps = [name for name in planned if self.look.why[name] == HAS_GAPS]
        self._tell_no_plan([name for name in planned if name not in with_gaps], with_gaps=False)
        self._tell_no_plan(with_gaps, with_gaps=True)
        for name, why in self.look.left_out.items():
            self._decide(f"{name} is left out ({why}).")
        if not schema.holidays:
            self._decide("No holidays are used; name the country to use them, for example holidays US.")

    def _tell_no_plan(self, names: list[str], with_gaps: bool) -> None:
        if not names:
            return
        be, have, their, them = ONE if len(names) == 1 else SEVERAL
        coming = f"the coming {self.horizon} {self.step}s"
        why, remedy = f"{have} missing values", f"fill {their} gaps, also in rows for {coming}"
        if not with_gaps:
            why = f"{be} not in the data for {coming}"
            remedy = f"add rows for the coming dates, with {them} and without {self.look.schema.target}"
        self._decide(
            f"{', '.join(names)} {why}, so the forecast learns from {their} past, and knows no plan. To forecast with "
            f"a plan, {remedy}."
        )

    def _is_planned(self, name: str) -> bool:
        """Whether someone may know a past column ahead: it was to be known, or is called so."""
        return self.look.why[name] == NO_PLAN or bool(PLANNED & set(words_in(name)))

    def _backtest(self) -> pl.DataFrame | None:
        """Forecasts of the last horizon by a model that was trained without it, and the report on them."""
        series = self.panel.last_observed_series
        length = int(self.panel.last_observed[series] - self.panel.first_step[series]) + 1
        if length < FEWEST_HORIZONS * self.horizon:
            self._decide(
                f"There is no backtest: {length} {self.step}s of history are fewer than {FEWEST_HORIZONS} horizons, "
                "and the last one would be held out. How good the forecast is remains unknown."
            )
            return None
        start = self.panel.axis.dates(np.array([self.panel.last_observed_time(self.horizon)]))[0]
        self.say(f"Backtest: training on data up to {_day(start)} …")
        forecaster = self._forecaster(self.minutes / 2)
        try:
            found = self._heard(lambda: forecaster.backtest(self.panel, start))
            self._heard(lambda: forecaster.report(self.folder / REPORT))
        except MqcastError as error:
            self._decide(f"There is no backtest: {error}")
            return None
        self._decide(
            f"The last {self.horizon} {self.step}s, after {_day(start)}, were held out: {REPORT} shows how a model "
            f"that never saw them would have forecast them. {self._verdict(forecaster)}"
        )
        return found

    def _verdict(self, forecaster: Forecaster[Any]) -> str:
        """The loss beside that of seasonal naive, in words."""
        scores = {score.model: score for score in forecaster.plot.findings.scores}
        own = scores[self.options["model"]]
        level = min(own.relative, key=lambda each: abs(each - 0.5))
        ratio = own.relative[level]
        if own.risk[level] != own.risk[level]:
            return "Nothing was sold in them, so there is nothing to compare its loss with."
        if self.options["model"] == BASELINE or ratio != ratio:
            return f"Its quantile risk at the median is {own.risk[level]:.3f}."
        better = "lower" if ratio < 1 else "higher"
        advice = "" if ratio < 1 else " Give it more minutes, or forecast with the model seasonal-naive."
        return f"Its loss at the median is {abs(1 - ratio):.0%} {better} than that of {BASELINE}.{advice}"

    def _forecaster(self, minutes: float) -> Forecaster[Any]:
        options = {**self.options, "max_minutes": minutes}
        return Forecaster(horizon=self.horizon, schema=self.look.schema, **options)

    def _with_parts(self, forecast: pl.DataFrame) -> pl.DataFrame:
        """The forecast, with the columns that the id was joined from."""
        source, id = self.look.source, self.look.schema.id
        parts = id_columns(id, [name for name in source.names if name != id])
        if not parts:
            return forecast
        columns = {name: pl.Series(source.column(name)) for name in (id, *parts)}
        free = [name for name in parts if name not in forecast.columns]
        told = pl.DataFrame(columns).select(id, *free).unique(id)
        return forecast.join(told, on=id, how="left", maintain_order="left").select(*free, *forecast.columns)

    def _heard(self, make: Callable[[], Any]) -> Any:
        """What a call gives; what mqcast warns of meanwhile is told, once."""
        result, caught = recorded(make)
        for one in caught:
            text = f"Note: {str(one.message).rstrip('.')}."
            if not issubclass(one.category, MqcastWarning):
                warn(str(one.message), one.category)
            elif text not in self.decisions and one.category is not FutureMissingWarning:  # of what predict tells
                self._decide(text)
        return result

    def _decide(self, text: str) -> None:
        self.decisions.append(text)
        self.say(text)

    def _write(self, name: str, content: str | bytes) -> None:
        write_file(self.folder / name, content, make_parents=True)


def roles_table(look: Look) -> pl.DataFrame:
    """column, role, why."""
    rows = [
        (name, role, "; ".join(part for part in (look.why.get(name, ""), look.words_of(name)) if part))
        for role, name in look.schema.roles()
    ]
    rows += [(name, "left out", why) for name, why in look.left_out.items()]
    return pl.DataFrame(rows, schema=["column", "role", "why"], orient="row")


def _in_columns(roles: pl.DataFrame) -> str:
    rows = [tuple(roles.columns), *roles.iter_rows()]
    widths = [max(len(str(row[i])) for row in rows) for i in range(2)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}".rstrip() for row in rows]
    return "\n".join([*lines, "If a role is wrong, say it: id, time, target, known, past or static."])


def _day(date: Any) -> str:
    return f"{date:%Y-%m-%d %H:%M}".removesuffix(" 00:00")


def _print(text: str) -> None:
    print(text)  # noqa: T201


def _ignore(text: str) -> None:
    """Say nothing."""
