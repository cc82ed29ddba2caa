"""Forecaster: fit, predict, revisions, backtest, evaluate, explain, save, load; the sklearn-like face of it all."""

import inspect
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np
import polars as pl

from mqcast import process
from mqcast.arguments import levels_of, number, path_of, truth, whole_number
from mqcast.artifact import ArtifactFolder, Manifest, entry_of
from mqcast.data.export import Frames, frames_of
from mqcast.data.frame_types import FrameTypes
from mqcast.data.layout import Layout
from mqcast.data.panel import Panel, pack
from mqcast.data.plan import gathered, with_future
from mqcast.data.schema import Schema, refuse_taken
from mqcast.data.views import can_be_read_as
from mqcast.data.windows import as_time
from mqcast.defaults import SEASONAL_NAIVE, check_params, settings_for, tables_of
from mqcast.durable import claimed, make_parent, put_in_place, write_file
from mqcast.errors import ArtifactError, ConfigError, DataError, Interrupted, NotFittedError, quoted
from mqcast.evaluation.metrics import evaluate
from mqcast.evaluation.slices import Slices
from mqcast.levels import quantile_column
from mqcast.settings import RunConfig, nearest
from mqcast.version import __version__

if TYPE_CHECKING:
    from mqcast.report.plots import Plots
    from mqcast.report.sources import Sources

FORMAT, FORMAT_VERSION = "mqcast-forecaster", 2
FACTS, PANEL = "forecaster.json", "panel"


@dataclass(frozen=True)
class Asked:
    """What a fit or a backtest was asked for; what `set_params` says afterwards is for the next one."""

    model: str
    horizon: int
    levels: tuple[float, ...]
    settings: dict[str, Any]


class Forecaster:
    """Quantile forecasts of many series, by MQTransformer, its ablations, its baselines, or the same season of before.

    model       "mqt", "mqt-nods", "mqt-all", "mqcnn", "mqrnn" or "seasonal-naive"
    horizon     steps ahead
    quantiles   levels, rising
    schema      what the columns mean, a Schema or a dictionary of its arguments; left out: unique_id, ds and y alone
    config      settings that go before those that fit the data: a TOML file, a RunConfig, or {"train": {…}}
    seed, max_steps, max_minutes   of training
    folder      where the run is written, to be resumed or looked at; left out: a temporary one
    """

    batch_tolerance = 1e-5  # of a series' size: sums in float32 depend on how many series are in a batch

    def __init__(
        self,
        model: str = "mqt",
        horizon: int = 13,
        quantiles: Sequence[float] = (0.5, 0.9),
        schema: Schema | Mapping[str, Any] | None = None,
        *,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        seed: int = 0,
        max_steps: int | None = None,
        max_minutes: float | None = None,
        folder: str | Path | None = None,
        device: str = "auto",
        verbose: bool = True,
    ):
        self.model = model
        self.horizon = horizon
        self.quantiles = quantiles
        self.schema = schema
        self.config = config
        self.seed = seed
        self.max_steps = max_steps
        self.max_minutes = max_minutes
        self.folder = folder
        self.device = device
        self.verbose = verbose

    # -- the manners of sklearn ----------------------------------------------------------------------------------------

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> "Forecaster":
        for name, value in params.items():
            if name not in self._names():
                raise ConfigError(f"a Forecaster has no parameter {name!r}{nearest(name, self._names())}")
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "panel_")

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        said = [f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name].default]
        return f"Forecaster({', '.join(said)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a Forecaster is not pickled: use save(path) and Forecaster.load(path)")

    # -- training ------------------------------------------------------------------------------------------------------

    def fit(
        self,
        frame: Any,
        static: Any = None,
        events: Any = None,
        *,
        resume: bool = False,
        start_from: "Forecaster | None" = None,
    ) -> "Forecaster":
        """Train on a frame (pandas, polars, Arrow), Parquet files, or a packed Panel.

        static: a table with a row a series; events: a table with a row a date. Rows after the last sale, with known
        columns but no target, are the plan that `predict` uses. `resume` goes on with the run in `folder`.
        `start_from` is a fitted forecaster whose weights this one begins with, and whose columns, categories and
        settings of the network it keeps: fewer steps then bring it up to date with a longer frame.
        """
        self._check()
        truth("resume", resume)
        if start_from is not None and not isinstance(start_from, Forecaster):
            raise ConfigError(f"start_from is {quoted(start_from)}; give a fitted Forecaster")
        panel, frame_types = self._read(frame, static, events, start_from)
        run, config = None, None
        if self.model != SEASONAL_NAIVE:
            config = self._settings(panel, before=start_from)
            before = start_from and start_from.run_
            if self.folder is None:
                run = self._train_apart(panel, config, before)
            else:
                run = self._train(panel, config, Path(self.folder), resume, before)
        self.panel_, self.frame_types_, self.run_, self.config_ = panel, frame_types, run, config
        for name in ("backtest_", "_plots_"):
            self.__dict__.pop(name, None)
        self._asked_ = self._asked()
        return self

    def _read(
        self, frame: Any, static: Any, events: Any, before: "Forecaster | None" = None
    ) -> tuple[Panel, FrameTypes]:
        """The data, with the columns and categories of a forecaster before, if there is one."""
        if before is not None:
            before._fitted()
        if isinstance(frame, Panel):
            return frame, FrameTypes()
        schema, like = (self.schema, None) if before is None else (None, before.panel_)
        panel = Panel.from_frame(frame, schema, static, events, like=like)
        return panel, FrameTypes.of(frame, panel.schema.id, panel.schema.time)

    def _check(self) -> None:
        """All arguments, before anything is read or trained."""
        check_params(**self.get_params())
        if self.model != SEASONAL_NAIVE:
            with process.importing():
                from mqcast.train.distributed import pick_device

            pick_device(self.device)

    @property
    def _levels(self) -> tuple[float, ...]:
        return levels_of("quantiles", self.quantiles)

    @property
    def _limits(self) -> dict[str, Any]:
        """Seed, steps and minutes of training as plain numbers."""
        most = {"max_steps": self.max_steps, "max_minutes": self.max_minutes}
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in most.items()}
        return {"seed": int(self.seed), **plain}

    def _settings(self, panel: Panel, until: Any = None, before: "Forecaster | None" = None) -> RunConfig:
        """Those that fit the panel, with the user's own; trained on targets up to a date if one is given.

        The network, its windows and its scaling are those of a forecaster before, where there is one and nothing else
        is said.
        """
        changes = tables_of(self.config)
        if before is not None and before.config_ is not None:
            kept = before.config_.model_dump(include={"model", "window", "scaling"})
            kept["model"].pop("model")
            changes = kept | {name: {**kept.get(name, {}), **said} for name, said in changes.items()}
        train = self._limits
        if isinstance(changes.setdefault("train", {}), Mapping):
            changes["train"] = {
                **changes["train"],
                **{name: value for name, value in train.items() if value is not None},
            }
        if until is not None:
            changes["split"] = {"train_until": until, "valid_until": until}
        return settings_for(panel, self.model, int(self.horizon), self._levels, changes)

    def _train(
        self, panel: Panel, config: RunConfig, folder: Path, resume: bool = False, start_from: Any = None
    ) -> Any:
        with process.importing():
            from mqcast.train.loop import fit
            from mqcast.train.records import progress

        with progress(quiet=not self.verbose) as listeners:
            return fit(
                panel, config, folder, resume=resume, start_from=start_from, listeners=listeners, device=self.device
            )

    def _train_apart(self, panel: Panel, config: RunConfig, start_from: Any = None) -> Any:
        """A run in a temporary folder that goes with it, or at once where training fails."""
        own = process.new_temporary_folder()
        try:
            run = self._train(panel, config, own / "run", start_from=start_from)
        except BaseException as error:
            shutil.rmtree(own, ignore_errors=True)
            if not isinstance(error, Interrupted):
                raise
            text = f"{Signals(error.signal).name}: training has stopped; to go on another time, give folder="
            raise Interrupted(text, error.signal) from None
        process.keep_as_long_as(run, own)
        return run

    # -- forecasts -----------------------------------------------------------------------------------------------------

    def predict(
        self, frame: Any = None, future: Any = None, *, static: Any = None, events: Any = None, cutoff: Any = None
    ) -> Any:
        """Quantiles of the next `horizon` steps: id, cutoff, date, horizon, q0.5 …

        frame: new history, without training again; None: what was fitted. future: rows of known columns after the last
        sale, in place of those that the history has. static, events: for new items and dates, beside what was fitted.
        cutoff: the date to forecast from; left out: the last one with a sale.
        """
        panel, frame_types = self._panel(frame, future, static, events)
        return frame_types.to_native(self._forecast(panel, cutoff, cutoff), panel.schema.id)

    def revisions(
        self,
        frame: Any = None,
        start: Any = None,
        end: Any = None,
        *,
        future: Any = None,
        static: Any = None,
        events: Any = None,
    ) -> Any:
        """Forecasts from every cutoff between two dates, in one pass; left out: the last 3 horizons.

        The network knows the fitted data: to judge it on what it has not seen, use `backtest`.
        """
        panel, frame_types = self._panel(frame, future, static, events)
        start, end = self._cutoffs(panel, start, end, self._asked_.horizon)
        return frame_types.to_native(self._forecast(panel, start, end), panel.schema.id)

    def what_if(
        self, future: Any, baseline: Any = None, *, frame: Any = None, static: Any = None, events: Any = None
    ) -> Any:
        """Forecasts of two plans from one cutoff, side by side: q0.5, q0.5_baseline, q0.5_change …

        baseline: the other plan; None: the one that the history has.
        """
        ours, frame_types = self._panel(frame, future, static, events)
        theirs, _ = self._panel(frame, baseline, static, events)
        schema, levels = ours.schema, [quantile_column(level) for level in self._asked_.levels]
        taken = [f"{name}_{what}" for name in levels for what in ("baseline", "change")]
        refuse_taken({"id": schema.id, "time": schema.time}, taken, "what_if")
        keys = [schema.id, "cutoff", schema.time, "horizon"]
        mine, baselines = self._forecast(ours), self._forecast(theirs)
        if strange := sorted(set(mine[schema.id]) - set(baselines[schema.id])):
            raise DataError(
                f"the plan has {len(strange)} series that the other plan has not",
                "check their ids; new items are forecast by predict(future=…)",
                series=str(strange[0]),
                column=schema.id,
            )
        both = mine.join(baselines, on=keys, suffix="_baseline", maintain_order="left")
        changes = [(pl.col(name) - pl.col(f"{name}_baseline")).alias(f"{name}_change") for name in levels]
        return frame_types.to_native(both.with_columns(changes), schema.id)

    def backtest(
        self,
        frame: Any = None,
        start: Any = None,
        end: Any = None,
        *,
        refit: int | None = None,
        static: Any = None,
        events: Any = None,
    ) -> Any:
        """Forecasts from every cutoff between two dates, by networks that were trained on what was known before.

        Trained once, on targets up to `start`; with `refit` anew after every so many cutoffs. Left out, the cutoffs are
        the last 3 horizons before the last sale. `evaluate` then judges what this found. A new frame needs no `fit`.
        """
        self._check()
        if refit is not None:
            whole_number("refit", refit)
        is_new = frame is not None and not hasattr(self, "panel_")
        panel, frame_types = self._read(frame, static, events) if is_new else self._panel(frame, None, static, events)
        start, end = self._cutoffs(panel, start, end, int(self.horizon))
        used: list[tuple[Any, Any, Any]] = []
        if self.model == SEASONAL_NAIVE:
            found = self._forecast(panel, start, end, asked=self._asked())
        else:
            found = pl.concat([self._forecast_anew(panel, *part, used) for part in _parts(panel, start, end, refit)])
        self.backtest_ = frame_types.to_native(
            found.sort(panel.schema.id, "cutoff", panel.schema.time), panel.schema.id
        )
        self._judged_, self.backtest_runs_ = panel, used
        self.__dict__.pop("_plots_", None)
        self._judged_as_ = self._asked()
        return self.backtest_

    def evaluate(self, by: str | Sequence[str] = (), *, slices: Slices | None = None, season: int | None = None) -> Any:
        """Accuracy of the last backtest (made now if there is none); see `mqcast.evaluate`."""
        if not hasattr(self, "backtest_"):
            self.backtest()
        frames, schema = frames_of(self._judged_), self._judged_.schema
        return evaluate(
            self.backtest_,
            frames.rows,
            by,
            slices=slices,
            static=frames.static,
            season=season,
            missing="drop",
            schema=schema,
        )

    def report(self, path: str | Path) -> Path:
        """Write a page on the last backtest (made now if there is none), beside the same season of before."""
        with process.importing():
            from mqcast.report.write import write_sources

        make_parent(path_of("path", path))  # before a backtest takes its time
        sources, asked = self.plot.sources, self._judged_as_
        write_sources(path, sources, f"{asked.model}, {asked.horizon} steps ahead", seed=self.seed)
        return Path(path)

    @property
    def plot(self) -> "Plots":
        """The report's figures one by one, of the last backtest (made now if there is none), as Plotly figures."""
        if not hasattr(self, "_plots_"):
            with process.importing():
                with suppress(ImportError):  # plotly imports it late, and it sets a warnings filter
                    import plotly.graph_objs._deprecations  # noqa: F401
                from mqcast.report.plots import Plots

            self._plots_ = Plots(self._sources())
        return self._plots_

    def _sources(self) -> "Sources":
        with process.importing():
            from mqcast.forecast.baselines import seasonal_naive
            from mqcast.report.sources import Sources
            from mqcast.run_diagnostics import trained

        if not hasattr(self, "backtest_"):
            self.backtest()
        asked = self._judged_as_
        panel, found, told = self._judged_, {asked.model: self.backtest_}, {}
        if asked.model != SEASONAL_NAIVE:
            cutoffs = nw.from_native(self.backtest_, eager_only=True)["cutoff"]
            ends = {"first": cutoffs.min(), "last": cutoffs.max()}
            found[SEASONAL_NAIVE] = seasonal_naive(panel, asked.horizon, asked.levels, **ends)
            run, start, end = self.backtest_runs_[0]
            told[asked.model] = trained(run, panel, start, end)
        return Sources.of(found, panel=panel, trained=told)

    def explain(self, ids: Any, cutoff: Any = None, *, above: float = 0.01) -> Any:
        """Which dates, and which earlier forecasts, the forecasts of some series rest on: attention weights by date."""
        self._fitted()
        if self.run_ is None:
            raise ConfigError(f"{self._asked_.model} has no attention to explain; fit mqt, mqt-nods or mqt-all")
        with process.importing():
            from mqcast.run_diagnostics import attention

        schema = self.panel_.schema
        refuse_taken({"id": schema.id, "time": schema.time}, ("block", "looked_at", "weight"), "explain")
        number("above", above, 0, 1, or_low=True)
        names = [ids] if isinstance(ids, str) or not isinstance(ids, Iterable) else list(ids)
        if not names:
            raise ConfigError("ids is empty; give the id of a series, or several")
        for name in names:
            self.panel_.index_of(name)
        found = []
        for name in names:
            found.append(attention(self.run_, self.panel_, [name], cutoff, cutoff, above))
            if found[-1].is_empty():
                raise ConfigError(f"series {str(name)!r} is not forecast from this cutoff; give another")
        return self.frame_types_.to_native(pl.concat(found), self.panel_.schema.id)

    @classmethod
    def of_run(cls, folder: str | Path, panel: Panel) -> "Forecaster":
        """A trained run, and the data to forecast from."""
        with process.importing():
            from mqcast.run import Run

        run = Run.open(folder)
        config = run.config
        made = cls(config.model.model, config.window.horizon, config.model.quantiles, panel.schema, folder=folder)
        made.run_, made.config_, made.panel_, made.frame_types_ = run, config, panel, FrameTypes()
        made._asked_ = made._asked()
        return made

    # -- on disk -------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write all that `load` needs to a new folder: settings, weights and the fitted data; nothing in it is code."""
        self._fitted()
        path = path_of("path", path)
        with claimed(path, "saving to", make_parents=True):
            self._save(path)
        return path

    def _save(self, path: Path) -> None:
        if path.exists():
            raise ArtifactError(f"{path} exists already; name a new folder")
        asked = self._asked_
        facts = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "mqcast": __version__,
            "params": {"model": asked.model, "horizon": asked.horizon, "quantiles": asked.levels, **asked.settings},
            "dress": self.frame_types_.facts(),
        }
        draft = path.with_name(f".{path.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        try:
            draft.mkdir()
            contents = {} if self.run_ is None else self.run_.final_files()
            contents[FACTS] = json.dumps(facts, indent=1, default=str).encode()
            for name, content in contents.items():
                write_file(draft / name, content)
            frames = frames_of(self.panel_)
            pack(frames.rows, draft / PANEL, static=frames.static, events=frames.events, like=self.panel_)
            contents[f"{PANEL}/{PANEL}.json"] = (draft / PANEL / f"{PANEL}.json").read_bytes()
            Manifest({name: entry_of(content) for name, content in contents.items()}, {}).write(draft)
            put_in_place(draft, path)
        except OSError as error:
            raise ArtifactError(f"cannot write to {path}: {error.strerror or error}; see to it and retry") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    @classmethod
    def load(cls, path: str | Path) -> "Forecaster":
        """The forecaster that `save` wrote."""
        with process.importing():
            from mqcast.run import Run

        path = path_of("path", path)
        if not (path / FACTS).exists():
            raise ArtifactError(f"no forecaster at {path}: there is no {FACTS}; write one with save")
        files = ArtifactFolder(path, "restore it, or save the forecaster again")
        facts = files.read_json(FACTS)
        if facts.get("format") != FORMAT:
            raise files.damaged(FACTS, "not a forecaster's facts")
        if facts.get("version") != FORMAT_VERSION:
            raise ArtifactError(
                f"{path / FACTS} has format {facts.get('version')!r}, this mqcast reads {FORMAT_VERSION}; fit it again"
            )
        for name in files.manifest().files:
            files.read_verified(name)
        try:
            params = facts["params"]
            made = cls(**params | {"quantiles": tuple(params["quantiles"])})
            frame_types = FrameTypes(**facts["dress"])
        except (ValueError, KeyError, TypeError) as error:
            raise files.damaged(FACTS, error) from None
        made._check()
        made.panel_, made.frame_types_ = Panel.open(path / PANEL), frame_types
        made.panel_.require_verified()
        made.schema = made.panel_.schema
        made.run_ = made.config_ = None
        if made.model != SEASONAL_NAIVE:
            made.run_ = Run.open(path)
            made.run_.network()  # whole, or an error now
            if not can_be_read_as(made.panel_, made.run_.layout):
                raise ArtifactError(f"the data in {path} is not of the run's columns and categories; save it again")
            made.config_ = made.run_.config
        made._asked_ = made._asked()
        return made

    # -- inside --------------------------------------------------------------------------------------------------------

    def _fitted(self) -> None:
        process.use()
        if not hasattr(self, "panel_"):
            raise NotFittedError("this Forecaster has not been fitted; call fit(frame) first, or Forecaster.load(path)")

    def _panel(self, frame: Any, future: Any, static: Any, events: Any) -> tuple[Panel, FrameTypes]:
        """What is to be forecast, read as the fitted frame was, and how the answer is to look."""
        self._fitted()
        if isinstance(frame, Panel):
            return frame, self.frame_types_
        layout: Layout = self.panel_.layout
        frame_types = self.frame_types_ if frame is None else FrameTypes.of(frame, layout.schema.id, layout.schema.time)
        if all(part is None for part in (frame, future, static, events)):
            return self.panel_, frame_types
        frames: Frames = gathered(self.panel_, frame, static, events)
        if future is not None:
            frames = with_future(frames, future, layout.schema)
        return Panel.from_frame(frames.rows, like=layout, static=frames.static, events=frames.events), frame_types

    def _asked(self) -> Asked:
        settings = {"config": tables_of(self.config) or None, **self._limits}
        return Asked(self.model, int(self.horizon), self._levels, settings)

    def _forecast(
        self, panel: Panel, first: Any = None, last: Any = None, run: Any = None, asked: Asked | None = None
    ) -> pl.DataFrame:
        """By a run as it was asked for; left out: by what was fitted."""
        asked = asked or self._asked_
        if asked.model == SEASONAL_NAIVE:
            with process.importing():
                from mqcast.forecast.baselines import seasonal_naive

            return seasonal_naive(panel, asked.horizon, asked.levels, first=first, last=last)
        with process.importing():
            from mqcast.forecast.predict import forecast_frame

        run = run or self.run_
        assert run is not None
        return forecast_frame(run, panel, first=first, last=last, device=self.device)

    def _forecast_anew(self, panel: Panel, start: Any, end: Any, used: list[tuple[Any, Any, Any]]) -> pl.DataFrame:
        """By a network that has seen no target after `start`; it takes the place of the one used before."""
        run = self._train_apart(panel, self._settings(panel, until=start))
        used[:] = [(run, start, end)]
        return self._forecast(panel, start, end, run, self._asked())

    def _cutoffs(self, panel: Panel, start: Any, end: Any, horizon: int) -> tuple[Any, Any]:
        """The dates asked for; left out: the last 3 horizons, up to the last cutoff with a target that was observed."""
        series = int(np.argmax(panel.times_at(np.arange(panel.num_series), panel.last_observed, 1)[:, 0]))
        steps = panel.last_observed[series] - np.array([3 * horizon - 1, 1])
        steps = np.maximum(steps, panel.first_step[series])
        dates = [_date(int(panel.times_at(np.array([series]), step[None], 1)[0, 0]), panel) for step in steps]
        start, end = (dates[0] if start is None else start), (dates[1] if end is None else end)
        if as_time(start, panel.axis) > as_time(end, panel.axis):
            raise ConfigError(f"the first cutoff, {start}, is after the last, {end}; give earlier ones")
        return start, end


def _date(time: int, panel: Panel) -> Any:
    return panel.axis.dates(np.array([time])).to_list()[0]


def _parts(panel: Panel, start: Any, end: Any, refit: int | None) -> Iterator[tuple[Any, Any]]:
    """Cutoffs from start to end, in parts of `refit`."""
    if refit is None:
        yield start, end
        return
    axis = panel.axis
    first, last = (as_time(date, axis) for date in (start, end))
    longest = int(np.argmax(panel.steps_until(first) - panel.first_step))
    steps = panel.steps_until(last)[longest], panel.steps_until(first)[longest]
    cutoffs = panel.times_at(np.array([longest]), np.array([steps[1]]), int(steps[0] - steps[1]) + 1)[0]
    for i in range(0, len(cutoffs), refit):
        yield _date(int(cutoffs[i]), panel), _date(int(cutoffs[min(i + refit, len(cutoffs)) - 1]), panel)
