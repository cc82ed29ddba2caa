# pyright: strict, reportUnnecessaryIsInstance=false
"""The Forecaster, with an interface like scikit-learn's: fit, predict, revisions, backtest, evaluate, save, load."""

import datetime as dt
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

import polars as pl
from narwhals.typing import IntoDataFrame, IntoDataFrameT

from mqcast import models, process
from mqcast.arguments import levels_of, number, path_of, truth, whole_number
from mqcast.backtests import run_backtest
from mqcast.data.export import Frames, frames_of
from mqcast.data.frame_types import FrameTypes
from mqcast.data.layout import Layout
from mqcast.data.panel import Panel
from mqcast.data.plan import gathered, with_future
from mqcast.data.schema import Schema, refuse_taken
from mqcast.data.source import open_source
from mqcast.durable import make_parent
from mqcast.errors import ConfigError, NotFittedError, quoted
from mqcast.evaluation.metrics import evaluate
from mqcast.evaluation.slices import Slices
from mqcast.forecast.ends import by_end, ids_of, only, warn_of_lag
from mqcast.forecast.frames import first_and_last_cutoff, require_plans, warn_of_future
from mqcast.joint.dependence import Dependence
from mqcast.joint.paths import Paths
from mqcast.joint.spans import Spans
from mqcast.joint_forecasts import Asked, Made, SpansBy, dependence_for
from mqcast.models.protocol import CanExplain, HasLeaderboard, TrainOptions
from mqcast.models.registry import check
from mqcast.scenarios import side_by_side
from mqcast.settings import LARGEST_SEED, MOST_MEMBERS, MOST_PERIODS, RunConfig, nearest
from mqcast.settings.merge import user_layers

if TYPE_CHECKING:
    from mqcast.report.plots import Plots
    from mqcast.report.sources import Sources
    from mqcast.run import Run


Source = IntoDataFrame | Panel | str | Path | Sequence[str | Path]  # a frame, a panel, or Parquet or CSV files
Ids = str | int | Iterable[str | int]
Date = dt.date | dt.datetime | str


class Forecaster(Generic[IntoDataFrameT]):
    """Quantile forecasts of many series by MQTransformer, its ablations, its baselines, or a blend of several models.

    model       one of `mqcast.models.names()`, or several of them: "mean_of(mqt, 3)", "auto(mqt, seasonal-naive)"
    horizon     steps ahead
    quantiles   levels in increasing order
    schema      the roles of the columns: a Schema or a dictionary of its arguments; default: unique_id, ds and y only
    preset      "paper": the network and the training of the paper; default: settings that fit the data
    config      settings that override these: a TOML file, a RunConfig, or {"train": {…}}
    seed, max_steps, max_minutes   for training
    members     networks that are trained together and forecast by their mean; default: as the settings say
    folder      where the run is written, so that it can be resumed or inspected; default: a temporary folder
    device      "cpu", "cuda" or "mps"; "auto" takes the first of CUDA, MPS and the CPU that is there
    verbose     whether training shows its progress

    >>> from mqcast import Forecaster
    >>> from mqcast.simulate import lognormal_world
    >>> world = lognormal_world(num_items=20, num_weeks=60, horizon=4)
    >>> forecaster = Forecaster(horizon=4, schema=world.schema, max_steps=5, members=1, verbose=False)
    >>> forecaster = forecaster.fit(world.frame, static=world.static, events=world.events)
    >>> forecaster.predict().columns
    ['unique_id', 'cutoff', 'ds', 'horizon', 'q0.5', 'q0.9']
    """

    batch_tolerance = 1e-5  # relative to a series: float32 sums depend on how many series are in a batch

    def __init__(
        self,
        model: str = models.DEFAULT,
        horizon: int = 13,
        quantiles: Sequence[float] = (0.5, 0.9),
        schema: Schema | Mapping[str, Any] | None = None,
        *,
        preset: str | None = None,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        seed: int = 0,
        max_steps: int | None = None,
        max_minutes: float | None = None,
        members: int | None = None,
        folder: str | Path | None = None,
        device: str = "auto",
        verbose: bool = True,
    ):
        self.model = model
        self.horizon = horizon
        self.quantiles = quantiles
        self.schema = schema
        self.preset = preset
        self.config = config
        self.seed = seed
        self.max_steps = max_steps
        self.max_minutes = max_minutes
        self.members = members
        self.folder = folder
        self.device = device
        self.verbose = verbose

    # -- conventions of scikit-learn -----------------------------------------------------------------------------------

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> "Forecaster[IntoDataFrameT]":
        for name, value in params.items():
            if name not in self._names():
                raise ConfigError(f"a Forecaster has no parameter {name!r}{nearest(name, self._names())}")
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fitted_")

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        given = [
            f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name].default
        ]
        return f"Forecaster({', '.join(given)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a Forecaster cannot be pickled; use save(path) and Forecaster.load(path)")

    # -- training ------------------------------------------------------------------------------------------------------

    def fit(
        self,
        frame: "IntoDataFrameT | Source",
        static: Source | None = None,
        events: Source | None = None,
        *,
        resume: bool = False,
        start_from: "Forecaster[Any] | None" = None,
    ) -> "Forecaster[IntoDataFrameT]":
        """Train on a frame (pandas, polars, Arrow), Parquet or CSV files, or a packed Panel.

        static: a table with one row per series. events: a table with one row per date. Rows after the last sale, with
        known columns but no target, are the plan that `predict` uses. `resume` continues the run in `folder`.
        `start_from` is a fitted forecaster: this one starts from its weights and keeps its columns, its categories and
        the settings of its network. It then takes fewer steps to learn from newer data.
        """
        model, options = self._model(), self._options()
        truth("resume", resume)
        if start_from is not None and not isinstance(start_from, Forecaster):
            raise ConfigError(f"start_from is {quoted(start_from)}; give a fitted Forecaster")
        panel, frame_types = self._read(frame, static, events, start_from)
        warn_of_future(panel, options.horizon)
        folder = None if self.folder is None else Path(self.folder)
        before = None if start_from is None else start_from.fitted_
        fitted = model.fit(panel, replace(options, folder=folder, resume=resume, start_from=before))
        self.panel_, self.frame_types_, self.fitted_ = panel, frame_types, fitted
        self._keep(options)
        return self

    def _read(
        self, frame: Any, static: Any, events: Any, before: "Forecaster[Any] | None" = None
    ) -> tuple[Panel, FrameTypes]:
        """The data, with the columns and categories of an earlier forecaster, if there is one."""
        if before is not None:
            before._fitted()
        if isinstance(frame, Panel):
            return frame, FrameTypes()
        schema, like = (self.schema, None) if before is None else (None, before._layout)
        source = open_source(frame)
        panel = Panel.from_frame(source, schema, static, events, like=like)
        return panel, FrameTypes.of(frame, panel.schema.id, panel.schema.time, source)

    def _model(self) -> models.Model:
        """The model; all arguments are checked before any data are read."""
        model, options = models.get(self.model), self._options()
        Schema.of(self.schema)
        if self.folder is not None:
            path_of("folder", self.folder)
        check(self.model, model, options)
        return model

    def _options(self) -> TrainOptions:
        """The arguments as plain, checked values."""
        if not isinstance(self.device, str):
            raise ConfigError(f"device is {quoted(self.device)}; give 'auto', 'cpu', 'cuda' …")
        most = self.max_steps, self.max_minutes
        return TrainOptions(
            horizon=whole_number("horizon", self.horizon, 1, MOST_PERIODS),
            quantiles=levels_of("quantiles", self.quantiles),
            seed=whole_number("seed", self.seed, 0, LARGEST_SEED),
            max_steps=None if most[0] is None else whole_number("max_steps", most[0]),
            max_minutes=None if most[1] is None else number("max_minutes", most[1], 0),
            members=None if self.members is None else whole_number("members", self.members, 1, MOST_MEMBERS),
            preset=self.preset,
            layers=user_layers(self.config),
            device=self.device,
            verbose=truth("verbose", self.verbose),
        )

    def _keep(self, options: TrainOptions) -> None:
        """Remember the arguments of this fit; later changes by `set_params` are for the next one."""
        for name in ("backtest_", "_backtest_", "_plots_", "_dependences_"):
            self.__dict__.pop(name, None)
        self._fitted_as_ = self.model, options

    @property
    def run_(self) -> "Run | None":
        """The run of a fitted network; None for other models."""
        return getattr(getattr(self, "fitted_", None), "run", None)

    @property
    def config_(self) -> RunConfig | None:
        """All settings of a fitted network; None for other models."""
        return getattr(getattr(self, "fitted_", None), "config", None)

    @property
    def settings_(self) -> IntoDataFrameT:
        """Every setting of a fitted network, with its value and its origin."""
        self._fitted()
        merged = getattr(self.fitted_, "merged", None)
        if merged is None:
            if self.config_ is not None:
                raise ConfigError("the origins of settings are not saved; config_ has the loaded values")
            raise ConfigError(f"{self._fitted_as_[0]} has no settings of its own")
        return self.frame_types_.to_native(merged.table())

    @property
    def leaderboard_(self) -> IntoDataFrameT:
        """The members of a fitted blend: loss on held-out dates relative to seasonal naive, weight and minutes."""
        self._fitted()
        if not isinstance(self.fitted_, HasLeaderboard):
            raise ConfigError(f"{self._fitted_as_[0]} has no members to compare; fit the model auto")
        return self.frame_types_.to_native(self.fitted_.leaderboard)

    # -- forecasts -----------------------------------------------------------------------------------------------------

    @overload
    def predict(
        self,
        frame: IntoDataFrameT | Source | None = None,
        future: Source | None = None,
        *,
        static: Source | None = None,
        events: Source | None = None,
        ids: Ids | None = None,
        cutoff: Date | None = None,
        spans: Spans | None = None,
        spans_by: SpansBy | None = None,
        seed: int = 0,
    ) -> IntoDataFrameT: ...

    @overload
    def predict(
        self,
        frame: IntoDataFrameT | Source | None = None,
        future: Source | None = None,
        *,
        static: Source | None = None,
        events: Source | None = None,
        ids: Ids | None = None,
        cutoff: Date | None = None,
        paths: int,
        group: str | None = None,
        seed: int = 0,
    ) -> Paths: ...

    def predict(
        self,
        frame: IntoDataFrameT | Source | None = None,
        future: Source | None = None,
        *,
        static: Source | None = None,
        events: Source | None = None,
        ids: Ids | None = None,
        cutoff: Date | None = None,
        paths: int | None = None,
        spans: Spans | None = None,
        spans_by: SpansBy | None = None,
        group: str | None = None,
        seed: int = 0,
    ) -> IntoDataFrameT | Paths:
        """Quantiles of the next `horizon` steps: id, cutoff, date, horizon, q0.5 …

        frame: new history, without training again; default: the fitted data. future: rows of known columns after the
        last sale, which replace those of the history. static, events: for new items and dates, in addition to the
        fitted ones. ids: the series to forecast; default: all whose known columns reach the horizon. cutoff: the date
        to forecast from; default: the last one with a sale; "each": for each series its own last one.

        paths: so many joint forecasts of all steps, as `Paths`; with `group`, a static column, series of one group go
        together. spans: pairs of first and last step, [(1, 4), (3, 8)], for quantiles of the totals over them, from
        paths; spans_by="heads": those of `model.spans`, which the network has learnt itself. The frame says which.
        """
        horizon = self._fitted_as_[1].horizon if hasattr(self, "fitted_") else MOST_PERIODS
        is_joint = any(one is not None for one in (paths, spans, spans_by, group))
        asked = Asked(horizon, paths, spans, group, seed, spans_by) if is_joint else None
        panel, frame_types = self._panel(frame, future, static, events)
        id, wanted = panel.schema.id, panel if ids is None else only(panel, ids)
        at = panel.last_observed_date if cutoff is None else cutoff

        def forecast(made: Made) -> pl.DataFrame:
            if cutoff == "each":
                parts = by_end(wanted, horizon, strictly=ids is not None)
                return pl.concat([made(part, end, end) for end, part in parts]).sort(id, maintain_order=True)
            if ids is not None and wanted.num_series > 1:  # of one alone, the forecast itself raises
                require_plans(wanted, at, horizon)
            return made(wanted, at, at)

        found = self._asked_for(asked, forecast, wanted, panel, None if cutoff == "each" else cutoff)
        is_paths = isinstance(found, Paths)
        if cutoff is None:
            warn_of_lag(panel, found.ids if is_paths else found[id])
        return replace(found, frame_types=frame_types) if is_paths else frame_types.to_native(found, id)

    def revisions(
        self,
        frame: IntoDataFrameT | Source | None = None,
        start: Date | None = None,
        end: Date | None = None,
        *,
        future: Source | None = None,
        static: Source | None = None,
        events: Source | None = None,
        spans: Spans | None = None,
        spans_by: SpansBy | None = None,
    ) -> IntoDataFrameT:
        """Forecasts from every cutoff between two dates, in one pass; default: the last 3 horizons.

        The network was trained on these data. To evaluate it on data that it has not seen, use `backtest`. spans:
        quantiles of totals instead, as of `predict`; the dependence of a model that did not learn it from held-out
        dates is that of `start`.
        """
        panel, frame_types = self._panel(frame, future, static, events)
        horizon = self._fitted_as_[1].horizon
        asked = None if spans is None and spans_by is None else Asked(horizon, None, spans, spans_by=spans_by)
        begin, stop = first_and_last_cutoff(panel, start, end, horizon)
        found: Any = self._asked_for(asked, lambda made: made(panel, begin, stop), panel, panel, begin)
        return frame_types.to_native(found, panel.schema.id)

    def _asked_for(
        self, asked: Asked | None, forecast: Callable[[Made], pl.DataFrame], wanted: Panel, panel: Panel, until: Any
    ) -> pl.DataFrame | Paths:
        """Quantiles of steps, or the paths or totals that were asked for, of the wanted series of a panel."""
        if asked is None:
            return forecast(self.fitted_.forecast)
        if (by_heads := asked.by_heads(self.fitted_)) is not None:
            return forecast(by_heads)
        return asked.of(forecast(self.fitted_.forecast), self._dependence(panel, until), wanted)

    def what_if(
        self,
        future: Source | Mapping[str, Source],
        baseline: Source | None = None,
        *,
        frame: IntoDataFrameT | Source | None = None,
        static: Source | None = None,
        events: Source | None = None,
    ) -> IntoDataFrameT:
        """Forecasts of a changed plan and of the plan itself, side by side: q0.5, q0.5_baseline, q0.5_change …

        future: the rows that change, with id, date and the known columns that change; only these items are forecast.
        {name: rows} gives several scenarios, each with columns of its own: q0.5_<name>, q0.5_<name>_change. baseline:
        the plan to compare with; default: the one in the history.
        """
        base, frame_types = self._panel(frame, baseline, static, events)
        options = self._fitted_as_[1]
        found = side_by_side(self._forecast, base, future, options.quantiles, options.horizon)
        return frame_types.to_native(found, base.schema.id)

    def backtest(
        self,
        frame: IntoDataFrameT | Source | None = None,
        start: Date | None = None,
        end: Date | None = None,
        *,
        refit: int | None = None,
        static: Source | None = None,
        events: Source | None = None,
    ) -> IntoDataFrameT:
        """Forecasts from every cutoff between two dates, by models trained only on what was known before.

        The model is trained once, on targets up to `start`, and with `refit` again after that many cutoffs. The default
        cutoffs are the last 3 horizons before the last sale. `evaluate` then scores these forecasts. No `fit` is needed
        before a backtest of a new frame.
        """
        model, options = self._model(), self._options()
        if refit is not None:
            whole_number("refit", refit)
        is_new = frame is not None and not hasattr(self, "panel_")
        panel, types = self._read(frame, static, events) if is_new else self._panel(frame, None, static, events)
        forecasts, self._backtest_ = run_backtest(self.model, model, options, panel, start, end, refit)
        self.backtest_ = types.to_native(forecasts, panel.schema.id)
        self.__dict__.pop("_plots_", None)
        return self.backtest_

    def evaluate(
        self, by: str | Sequence[str] = (), *, slices: Slices | None = None, season: int | None = None
    ) -> IntoDataFrameT:
        """Accuracy of the last backtest (made now if there is none); see `mqcast.evaluate`."""
        if not hasattr(self, "backtest_"):
            self.backtest()
        panel = self._backtest_.panel
        frames = frames_of(panel)
        return evaluate(
            self.backtest_,
            frames.rows,
            by,
            slices=slices,
            static=frames.static,
            season=season,
            missing="drop",
            schema=panel.schema,
        )

    def report(self, path: str | Path, *, items: Sequence[Any] = ()) -> Path:
        """Write a report on the last backtest (made now if there is none), next to a seasonal naive forecast.

        items: ids that one wants to look at, beside those that the report chooses.
        """
        with process.importing():
            from mqcast.report.write import write_sources

        make_parent(path_of("path", path))  # fail before a long backtest, not after it
        if not hasattr(self, "backtest_"):
            self.backtest()
        sources, backtest = self.plot.sources, self._backtest_
        title = f"{backtest.model}, {backtest.options.horizon} steps ahead"
        write_sources(path, sources, title, seed=self.seed, items=items)
        return Path(path)

    def page(
        self,
        path: str | Path,
        frame: IntoDataFrameT | Source | None = None,
        future: Source | None = None,
        *,
        static: Source | None = None,
        events: Source | None = None,
        cutoff: Date | None = None,
        previous: Source | None = None,
        spans: Spans | None = None,
        title: str | None = None,
    ) -> Path:
        """Write one page on the coming steps, as `predict` forecasts them with the same arguments; it works offline.

        previous: an earlier forecast, a frame or a file, to show what changed since then. spans: first and last steps
        of the totals to show, as of `predict`; default: 4 steps, all of them and those of `model.spans`, if the fit has
        learnt how steps go together and there are at most 20,000 series; () shows none.
        """
        with process.importing():
            from mqcast.forecaster_page import write_page

        self._fitted()
        make_parent(path_of("path", path))
        panel, _ = self._panel(frame, future, static, events)
        write_page(self, path, panel, cutoff=cutoff, previous=previous, spans=spans, title=title)
        return Path(path)

    @property
    def plot(self) -> "Plots":
        """Plotly figures: `fan` of what `predict` says, the others of the last backtest. They never train."""
        if not hasattr(self, "_plots_"):
            with process.importing():
                with suppress(ImportError):  # plotly would import it later, and it sets a warnings filter
                    import plotly.graph_objs._deprecations  # noqa: F401  # pyright: ignore
                from mqcast.report.plots import Plots

            self._plots_ = Plots(self._past, self._coming, self.what_if)
        return self._plots_

    def _past(self) -> "Sources":
        if not hasattr(self, "backtest_"):
            raise NotFittedError("figures of the past need a backtest; call forecaster.backtest() first, which trains")
        return self._backtest_.sources(self.backtest_)

    def _coming(self, id: str | int) -> "Sources":
        with process.importing():
            from mqcast.report.sources import Sources

        self._fitted()
        panel, cutoff = only(self._data, id), self._data.last_observed_date
        return Sources.of({self._fitted_as_[0]: self._forecast(panel, cutoff)}, panel=panel)

    def explain(self, ids: Ids, cutoff: Date | None = None, *, above: float = 0.01) -> IntoDataFrameT:
        """Attention weights: the dates and the earlier forecasts that the forecasts of some series depend on."""
        self._fitted()
        if not isinstance(self.fitted_, CanExplain):
            raise ConfigError(f"{self._fitted_as_[0]} has no attention to explain; fit {models.DEFAULT}")
        data = self._data
        schema = data.schema
        refuse_taken({"id": schema.id, "time": schema.time}, ("block", "looked_at", "weight"), "explain")
        number("above", above, 0, 1, or_low=True)
        names = ids_of(ids)
        at = data.last_observed_date if cutoff is None else cutoff
        require_plans(only(data, names), at, self._fitted_as_[1].horizon)
        weights: list[pl.DataFrame] = []
        for name in names:
            weights.append(self.fitted_.explain(data, [name], cutoff, above))
            if weights[-1].is_empty():
                raise ConfigError(f"series {str(name)!r} is not forecast from this cutoff; give another")
        return self.frame_types_.to_native(pl.concat(weights), schema.id)

    # -- on disk -------------------------------------------------------------------------------------------------------

    @classmethod
    def of_run(cls, folder: str | Path, panel: Panel) -> "Forecaster[pl.DataFrame]":
        """The same as `load(folder, panel)`."""
        return cls.load(folder, panel)

    def save(self, path: str | Path) -> Path:
        """Write settings, weights and the fitted data to a new folder, for `load`; it contains no code."""
        from mqcast.forecaster_files import save

        self._fitted()
        return save(self, path_of("path", path))

    @classmethod
    def load(cls, path: str | Path, panel: Panel | str | Path | None = None) -> "Forecaster[Any]":
        """Load a folder that `save` or `mqcast fit` wrote; its network is then kept in memory.

        A run of `mqcast fit` contains no data. Give the packed panel to forecast, or a frame with each `predict`.
        With `panel`, a forecaster that `save` wrote forecasts that one in place of its own.
        """
        from mqcast.forecaster_files import load

        data = panel if panel is None or isinstance(panel, Panel) else Panel.open(path_of("panel", panel))
        return load(cls, path_of("path", path), data)

    # -- internals -----------------------------------------------------------------------------------------------------

    def _fitted(self) -> None:
        process.use()
        if not hasattr(self, "fitted_"):
            raise NotFittedError("this Forecaster has not been fitted; call fit(frame) first, or Forecaster.load(path)")

    @property
    def _data(self) -> Panel:
        """The fitted data."""
        if not hasattr(self, "panel_"):
            raise ConfigError(
                "this forecaster was loaded from a run, which contains no data; give a frame, or load it with panel="
            )
        return self.panel_

    @property
    def _layout(self) -> Layout:
        """Roles, kinds and categories of the fitted columns."""
        if hasattr(self, "panel_"):
            return self.panel_.layout
        assert self.run_ is not None  # other models are not loaded without a panel
        return self.run_.layout

    def _panel(self, frame: Any, future: Any, static: Any, events: Any) -> tuple[Panel, FrameTypes]:
        """The data to forecast, read like the fitted frame, and the types of the result."""
        self._fitted()
        if isinstance(frame, Panel):
            return frame, self.frame_types_
        layout, fitted = self._layout, getattr(self, "panel_", None) if frame is not None else self._data
        if fitted is not None and all(part is None for part in (frame, future, static, events)):
            return fitted, self.frame_types_
        source, frame_types = None, self.frame_types_
        if frame is not None:
            source = open_source(frame)
            frame_types = FrameTypes.of(frame, layout.schema.id, layout.schema.time, source)
        frames: Frames = gathered(layout.schema, fitted, source, static, events)
        if future is not None:
            frames = with_future(frames, future, layout.schema, None if frame is None else fitted)
        rows = open_source(frames.rows, "the frame" if future is None else "the history with its plan")
        return Panel.from_frame(rows, like=layout, static=frames.static, events=frames.events), frame_types

    def _dependence(self, panel: Panel, cutoff: Date | None) -> Dependence:
        """How steps ahead go together: as the fit learnt it, or as the fitted data show it up to the cutoff."""
        kept = self.__dict__.setdefault("_dependences_", {})
        data = getattr(self, "panel_", panel)
        if (key := (str(cutoff), data.fingerprint)) not in kept:
            kept[key] = dependence_for(self.fitted_, data, self._fitted_as_[1].horizon, cutoff)
        return kept[key]

    def _forecast(self, panel: Panel, cutoff: Any) -> pl.DataFrame:
        """Forecasts of the fitted model from one cutoff."""
        return self.fitted_.forecast(panel, cutoff, cutoff)
