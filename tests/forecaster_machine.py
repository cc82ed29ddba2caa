"""A Forecaster led through any order of its verbs, with what must hold after each of them.

Forecasts are a pure function of what was fitted: nothing but another fit changes them, and a saved forecaster has them
to the bit. What cannot be done is refused by a typed error and leaves all as it was. No folder is left behind.
"""

import gc
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqcast import Forecaster, Schema
from mqcast.checks import sample_frame
from mqcast.errors import ArtifactError, ConfigError, MqcastError, NotFittedError

SCHEMA = Schema(freq="W", static=["brand"], known=["promo"])
SMALL = {
    "train": {"num_threads": 1},
    "model": {"hidden_dim": 4, "encoder_dilations": (1, 2), "lookback": 5},
    "window": {"history": 5, "num_fcts": 8},
}
NAIVE = "seasonal-naive"
MODELS = (NAIVE, "mqcnn", "mqt", "mqrnn")
NUM_WEEKS, LONGEST = 26, 5  # of history; the longest horizon
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(MODELS),
        "horizon": st.sampled_from([2, 3]),
        "quantiles": st.sampled_from([(0.5,), (0.5, 0.9), (0.1, 0.5, 0.9)]),
        "seed": st.integers(0, 1),
        "max_steps": st.integers(1, 2),
    },
)
IMPOSSIBLE = st.sampled_from(
    [{"model": "arima"}, {"horizon": 0}, {"horizon": 1.5}, {"quantiles": (0.9, 0.5)}, {"quantiles": ()}, {"seed": -1}]
)


@cache
def history(num_weeks: int) -> pl.DataFrame:
    """Sales of so many weeks, and the plan of the weeks after."""
    frame = sample_frame(SCHEMA, LONGEST, NUM_WEEKS)
    weeks = frame["ds"].unique().sort()
    frame = frame.filter(pl.col("ds") <= weeks[num_weeks - 1 + LONGEST])
    return frame.with_columns(pl.when(pl.col("ds") <= weeks[num_weeks - 1]).then("y").alias("y"))


class ForecasterMachine(RuleBasedStateMachine):
    """`forecasts` are those that the fitted forecaster must give; None while nothing is fitted."""

    def __init__(self):
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp(prefix="mqcast-machine-"))
        self.temporary, tempfile.tempdir = tempfile.tempdir, str(self.scratch)
        self.place = Path(tempfile.mkdtemp(prefix="saved-"))
        self.forecaster = Forecaster()
        self.forecasts: pl.DataFrame | None = None
        self.num_weeks = 0
        self.learnt: dict[tuple, pl.DataFrame] = {}
        self.saved: dict[Path, tuple[pl.DataFrame, int, int]] = {}
        self.judged = False
        self.done("begin")

    def done(self, what: str) -> None:
        """A campaign counts these."""

    @initialize(model=st.sampled_from(MODELS), quantiles=st.sampled_from([(0.5, 0.9), (0.1, 0.5, 0.9)]))
    def begin(self, model: str, quantiles: tuple[float, ...]) -> None:
        self.forecaster = Forecaster(model, 3, quantiles, SCHEMA, config=self.config(model), max_steps=1, verbose=False)

    @staticmethod
    def config(model: str) -> dict[str, Any] | None:
        return None if model == NAIVE else SMALL

    # -- verbs that change what is forecast ----------------------------------------------------------------------------

    @rule(num_weeks=st.sampled_from([NUM_WEEKS - 2, NUM_WEEKS]))
    def fit(self, num_weeks: int) -> None:
        made = _quiet(self.forecaster.fit, history(num_weeks))
        assert made is self.forecaster
        self.forecasts, self.num_weeks, self.judged = _quiet(made.predict), num_weeks, False
        key = (num_weeks, *map(repr, made.get_params().values()))
        assert self.learnt.setdefault(key, self.forecasts).equals(self.forecasts), "the same training learnt another"
        self.done("fit")

    @precondition(lambda self: self.forecasts is not None)
    @rule()
    def start_from(self) -> None:
        before, now = self.forecaster, Forecaster(**self.forecaster.get_params())
        try:
            _quiet(now.fit, history(NUM_WEEKS), start_from=before)
        except ConfigError:
            self.done("start_from refused")
        else:
            self.forecaster, self.num_weeks, self.judged = now, NUM_WEEKS, False
            assert before is not now
            assert _quiet(before.predict).equals(self.forecasts), "the one that was started from has changed"
            self.forecasts = _quiet(now.predict)
            self.done("start_from")

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.saved)))
        self.forecasts, self.num_weeks, _ = self.saved[path]
        self.forecaster, self.judged = Forecaster.load(path), False
        self.forecaster.set_params(verbose=False)
        self.done("load")

    # -- verbs that do not ---------------------------------------------------------------------------------------------

    @rule(params=PARAMS)
    def set_params(self, params: dict[str, Any]) -> None:
        config = self.config(params.get("model", self.forecaster.model))
        self.forecaster.set_params(**params, config=config)
        self.done("set_params")

    @precondition(lambda self: self.forecasts is not None)
    @rule()
    def save(self) -> None:
        path = self.place / f"forecaster-{len(self.saved)}"
        self.forecaster.save(path)
        assert self.forecasts is not None
        self.saved[path] = (self.forecasts, self.num_weeks, len(self.saved))
        again = Forecaster.load(path)
        assert again.predict().equals(self.forecasts), "what was loaded is not what was saved"
        self.done("save")

    @precondition(lambda self: self.forecasts is not None)
    @rule()
    def what_if(self) -> None:
        fitted = history(self.num_weeks)
        plan = fitted.filter(pl.col("y").is_null()).drop("y")
        found = _quiet(self.forecaster.what_if, plan)
        assert self.forecasts is not None
        levels = self.forecasts.columns[4:]
        assert found.select(self.forecasts.columns).equals(self.forecasts), "the same plan is forecast otherwise"
        assert all((found[f"{name}_change"] == 0).all() for name in levels)
        assert _quiet(self.forecaster.predict, future=plan).equals(self.forecasts)
        self.done("what_if")

    @precondition(lambda self: self.forecasts is not None)
    @rule(num_weeks=st.integers(NUM_WEEKS - 3, NUM_WEEKS))
    def predict_new_history(self, num_weeks: int) -> None:
        found = _quiet(self.forecaster.predict, history(num_weeks))
        assert found.equals(_quiet(self.forecaster.predict, history(num_weeks)))
        if num_weeks == self.num_weeks:
            assert found.equals(self.forecasts), "the fitted frame, given again, is forecast otherwise"
        self.done("predict_new_history")

    @precondition(lambda self: self.forecasts is not None)
    @rule()
    def revisions(self) -> None:
        weeks = history(self.num_weeks).drop_nulls("y")["ds"].unique().sort()
        found = _quiet(self.forecaster.revisions, start=weeks[-3], end=weeks[-1])
        assert self.forecasts is not None
        last, columns = found.filter(cutoff=weeks[-1]), self.forecasts.columns
        assert last.columns == columns
        assert last.select(columns[:4]).equals(self.forecasts.select(columns[:4]))
        if self.fitted_model != "mqrnn":  # which remembers a little of where its window began
            one, other = (table.select(columns[4:]) for table in (last, self.forecasts))
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        self.done("revisions")

    @property
    def fitted_model(self) -> str:
        return NAIVE if self.forecaster.config_ is None else self.forecaster.config_.model.model

    @precondition(lambda self: self.forecasts is not None)
    @rule(refit=st.sampled_from([None, 2]))
    def backtest(self, refit: int | None) -> None:
        weeks = history(self.num_weeks).drop_nulls("y")["ds"].unique().sort()
        found = _quiet(self.forecaster.backtest, start=weeks[-6], end=weeks[-5], refit=refit)
        assert found["cutoff"].unique().sort().to_list() == weeks[-6:-4].to_list()
        assert self.forecaster.backtest_ is found
        self.judged = True
        self.done("backtest")

    @precondition(lambda self: self.judged)
    @rule(by=st.sampled_from([(), "horizon", "brand"]))
    def evaluate(self, by: Any) -> None:
        found, again = (_quiet(self.forecaster.evaluate, by) for _ in range(2))
        assert found.equals(again)
        assert found["rows"].sum() == len(self.forecaster.backtest_)
        self.done("evaluate")

    # -- mistakes ------------------------------------------------------------------------------------------------------

    @rule(params=IMPOSSIBLE)
    def fit_the_impossible(self, params: dict[str, Any]) -> None:
        kept = self.forecaster.get_params()
        model = {"model": "mqcnn", "config": SMALL} if "seed" in params else {}
        self.forecaster.set_params(**model | params)
        self.refused(ConfigError, self.forecaster.fit, history(NUM_WEEKS))
        self.forecaster.set_params(**kept)

    @rule()
    def fit_a_bad_frame(self) -> None:
        self.refused(MqcastError, self.forecaster.fit, history(NUM_WEEKS).drop("promo"))
        self.refused(MqcastError, self.forecaster.fit, history(NUM_WEEKS).clear())

    @precondition(lambda self: self.saved)
    @rule()
    def save_where_something_is(self) -> None:
        if self.forecasts is not None:
            self.refused(ArtifactError, self.forecaster.save, next(iter(self.saved)))
        self.refused(ArtifactError, Forecaster.load, self.place / "nothing")

    @precondition(lambda self: self.forecasts is not None)
    @rule()
    def forecast_from_bad_frames(self) -> None:
        self.refused(MqcastError, self.forecaster.predict, history(NUM_WEEKS).drop("promo"))
        self.refused(MqcastError, self.forecaster.predict, cutoff="1999-01-03")
        self.refused(MqcastError, self.forecaster.revisions, start="2021-06-06", end="2021-05-02")

    def refused(self, kind: type[Exception], verb: Any, *given: Any, **said: Any) -> None:
        try:
            _quiet(verb, *given, **said)
        except kind:
            self.done(f"{verb.__name__} refused")
        else:
            raise AssertionError(f"{verb.__name__} was not refused")

    # -- what holds after every one ------------------------------------------------------------------------------------

    @invariant()
    def forecasts_are_as_they_were(self) -> None:
        if self.forecasts is not None:
            assert _quiet(self.forecaster.predict).equals(self.forecasts)
            return
        for verb in (
            self.forecaster.predict,
            self.forecaster.revisions,
            lambda: self.forecaster.save(self.place / "x"),
        ):
            try:
                verb()
            except NotFittedError:
                continue
            raise AssertionError("something is forecast or saved that was not fitted")

    @invariant()
    def no_draft_is_left(self) -> None:
        assert set(self.place.iterdir()) == set(self.saved)

    def teardown(self) -> None:
        del self.forecaster
        self.forecasts = None
        gc.collect()
        tempfile.tempdir = self.temporary
        left = sorted(path.name for path in self.scratch.glob("*mqcast*"))
        shutil.rmtree(self.scratch)
        assert not left, f"left behind: {left}"


def _quiet(verb: Any, *given: Any, **said: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return verb(*given, **said)
