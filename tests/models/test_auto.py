"""The calibrated blend of several models: judged on held-out dates, resumed at any stage, blind to what comes later."""

import datetime as dt
import json
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from look_ahead_samples import CHANGES, sales
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from mqcast import Forecaster, Panel, models, pack
from mqcast.cli import app
from mqcast.errors import (
    ArtifactError,
    ConfigError,
    Interrupted,
    MemberLeftOutWarning,
    NotCalibratedWarning,
)
from mqcast.models import auto
from mqcast.models.blend import fit_blend
from mqcast.models.holdout import hold_out
from mqcast.models.networks import NetworkModel
from mqcast.models.protocol import TrainOptions
from mqcast.models.registry import AUTO_MEMBERS
from mqcast.models.stages import Stages, with_own_arguments
from mqcast.settings.merge import user_layers

HORIZON, LEVELS = 3, (0.1, 0.5, 0.9)
SMALL = {
    "train": {"num_threads": 1},
    "model": {"hidden_dim": 4, "encoder_dilations": (1, 2), "lookback": 6},
    "window": {"history": 6, "num_fcts": 8},
}


class Recent:
    """Quantiles of the last `window` values, moved by `bias`; it notes each fit."""

    window, bias = 26, 0.0
    fits: list[str] = []  # noqa: RUF012

    def fit(self, panel, options):
        self.options = options
        self.fits.append(f"{type(self).__name__} {options.until} {options.max_minutes}")

    def forecast(self, panel, first=None, last=None):
        def of_history(y):
            y = y[~np.isnan(y)][-self.window :]
            return np.tile(np.quantile(y, self.options.quantiles) + self.bias * y.mean(), (self.options.horizon, 1))

        return models.forecast_each(panel, self.options, of_history, first, last)

    def files(self):
        return {"window.json": json.dumps(self.window).encode()}

    @classmethod
    def load(cls, folder, options):
        model = cls()
        assert json.loads((folder / "window.json").read_text()) == cls.window
        model.options = options
        return model


class Short(Recent):
    window = 8


class Absurd(Recent):
    bias = 50.0


class Failing(Recent):
    def fit(self, panel, options):
        raise ValueError("no luck today")


@pytest.fixture(autouse=True)
def registered():
    Recent.fits.clear()
    kinds = {"recent": Recent, "short": Short, "absurd": Absurd, "failing": Failing}
    for name, kind in kinds.items():
        models.register(name)(kind)
    yield
    for name in kinds:
        models.unregister(name)


@cache
def rows(num_items: int = 10, num_weeks: int = 80) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    weeks = pl.datetime_range(pl.datetime(2022, 1, 2), pl.datetime(2030, 1, 2), "1w", eager=True)[:num_weeks]
    parts = [
        pl.DataFrame({"unique_id": f"s{i}", "ds": weeks, "y": rng.gamma(3, 10.0 ** (i % 3), num_weeks)})
        for i in range(num_items)
    ]
    return pl.concat(parts)


def new(model: str = "auto(recent, short, seasonal-naive)", **arguments) -> Forecaster:
    return Forecaster(model, HORIZON, LEVELS, **{"verbose": False} | arguments)


def fitted(model: str = "auto(recent, short, seasonal-naive)", **arguments) -> Forecaster:
    return new(model, **arguments).fit(rows())


# -- what is forecast --------------------------------------------------------------------------------------------------


def test_a_forecast_is_the_calibrated_blend_of_members_fitted_on_all_dates():
    made = fitted()
    auto = made.fitted_
    members = {name: fitted(name).predict() for name in auto.blend.members}
    assert_frame_equal(made.predict(), auto.calibrator.apply(auto.blend.apply(members)), check_exact=True)
    assert auto.blend.weights.keys() <= {"recent", "short", "seasonal-naive"}


def test_the_leaderboard_has_every_member_with_loss_weight_and_minutes():
    board = fitted("auto(recent, short, absurd, seasonal-naive)").leaderboard_
    assert set(board["member"]) == {"(calibrated blend)", "recent", "short", "absurd", "seasonal-naive"}
    naive, absurd = (
        board.row(by_predicate=pl.col("member") == name, named=True) for name in ("seasonal-naive", "absurd")
    )
    assert [naive[name] for name in ("loss", "q0.1", "q0.5", "q0.9")] == pytest.approx([1.0] * 4)
    assert absurd["weight"] == 0
    assert "times that of seasonal naive" in absurd["note"]
    assert board["weight"].sum() == pytest.approx(1)
    assert (board["minutes"].drop_nulls() >= 0).all()
    assert board["member"][0] == "(calibrated blend)"
    assert board["loss"][0] < 1


def test_blended_forecasts_are_better_than_seasonal_naive_in_a_backtest():
    forecaster = new()
    start, end = rows()["ds"].unique().sort()[60], rows()["ds"].unique().sort()[75]
    forecaster.backtest(rows(), start, end)
    naive = new("seasonal-naive")
    naive.backtest(rows(), start, end)
    for level in LEVELS:
        ours, theirs = (one.evaluate()[f"qrisk_pooled_q{level:g}"][0] for one in (forecaster, naive))
        assert ours < theirs


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("auto", [name for name in AUTO_MEMBERS if name in models.names()]),
        ("auto(recent)", ["recent"]),
        ("auto(recent, 2, short)", ["recent", "recent 2", "short"]),
    ],
)
def test_members_are_named_or_the_default_ones(name, members):
    assert [one for one in models.get(name).members if one != "lightgbm"] == [
        one for one in members if one != "lightgbm"
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("auto()", "has 0 members"),
        ("auto(nobody)", "model is 'nobody'"),
        ("mean_of(auto, recent)", "has members of its own"),
        ("calibrated(recent, short)", "name one, such as"),
    ],
)
def test_members_that_cannot_be_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        models.get(name)


def test_a_member_far_behind_the_best_is_left_out(monkeypatch):
    monkeypatch.setattr(Absurd, "bias", 0.7)
    monkeypatch.setattr("mqcast.models.auto.FAR_BEHIND_NAIVE", 100)
    board = fitted("auto(recent, absurd)").leaderboard_
    assert "times that of the best" in board.filter(pl.col("member") == "absurd")["note"][0]


def test_seasonal_naive_takes_part_only_if_it_is_nearly_as_good_as_the_best():
    assert "seasonal-naive" not in fitted("auto(recent, seasonal-naive)").fitted_.blend.members
    assert fitted("auto(absurd, seasonal-naive)").fitted_.blend.members == ("seasonal-naive",)


@pytest.mark.parametrize(("num_weeks", "counts_as_one"), [(40, False), (60, True), (80, False)])
def test_held_out_dates_count_as_one_if_only_the_end_knows_a_year(num_weeks: int, counts_as_one: bool, monkeypatch):
    seen: list[float] = []
    monkeypatch.setattr(auto, "fit_blend", lambda found, prior: (seen.append(found.num_dates), fit_blend(found))[1])
    new().fit(rows().group_by("unique_id", maintain_order=True).head(num_weeks))
    assert (seen == [1.0]) == counts_as_one


def test_a_member_that_fails_is_left_out_with_a_warning_unless_all_do():
    with pytest.warns(MemberLeftOutWarning, match="without failing, which failed on the held-out dates: no luck"):
        made = fitted("auto(recent, failing)")
    assert made.leaderboard_.filter(pl.col("member") == "failing")["note"][0].endswith("no luck today")
    assert made.fitted_.blend.members == ("recent",)
    with pytest.warns(MemberLeftOutWarning), pytest.raises(ValueError, match="no luck today"):
        fitted("auto(failing)")


def test_a_member_that_fails_on_all_dates_leaves_its_weight_to_the_others(monkeypatch):
    right = Short.fit
    monkeypatch.setattr(Short, "fit", lambda self, p, o: right(self, p, o) if o.until else Failing.fit(self, p, o))
    with pytest.warns(MemberLeftOutWarning, match="failed on all dates"):
        made = fitted("auto(recent, short)")
    assert made.fitted_.blend.members == ("recent",)
    assert np.allclose(made.fitted_.blend.weight, 1)
    assert made.predict().height == 10 * HORIZON


def test_after_too_short_a_history_to_judge_the_members_their_mean_is_forecast():
    short = rows().group_by("unique_id", maintain_order=True).head(8)
    with pytest.warns(NotCalibratedWarning, match="forecasts their mean: .* only 8 steps, and 9 are needed"):
        made = new("auto(recent, short, seasonal-naive)").fit(short)
    assert made.fitted_.blend.weights == {"recent": 0.5, "short": 0.5}
    apart = [new(name).fit(short).predict()["q0.5"].to_numpy() for name in ("recent", "short")]
    np.testing.assert_allclose(made.predict()["q0.5"].to_numpy(), np.mean(apart, axis=0))
    assert made.leaderboard_["loss"].null_count() == made.leaderboard_.height


def test_a_single_model_with_too_short_a_history_is_not_calibrated():
    short = rows().group_by("unique_id", maintain_order=True).head(8)
    with pytest.warns(NotCalibratedWarning, match="only 8 steps, and 9 are needed"):
        made = new("calibrated(recent)").fit(short)
    assert made.predict().equals(new("recent").fit(short).predict())


def test_too_few_dates_to_calibrate_with_are_told():
    short = rows().group_by("unique_id", maintain_order=True).head(20)
    with pytest.warns(NotCalibratedWarning, match="5 target dates with demand, and 8 are needed"):
        made = new().fit(short)
    assert made.fitted_.calibrator is None
    assert made.predict().height == 10 * HORIZON


def test_start_from_is_refused():
    with pytest.raises(ConfigError, match="leave start_from out"):
        new().fit(rows(), start_from=fitted("recent"))


# -- the held-out dates ------------------------------------------------------------------------------------------------


def test_the_last_dates_are_held_out_with_whole_horizons():
    panel = Panel.from_frame(rows())
    found = hold_out(panel, TrainOptions(horizon=HORIZON, quantiles=LEVELS))
    dates = rows()["ds"].unique().sort()
    assert (found.first, found.last) == (dates[79 - 20], dates[79 - HORIZON])
    assert found.actuals["ds"].unique().sort().equals(dates[60:])
    expected = rows().filter(pl.col("ds") > found.first).sort("unique_id", "ds")
    assert np.allclose(found.actuals.sort("unique_id", "ds")["y"], expected["y"])
    until = hold_out(panel, TrainOptions(horizon=HORIZON, quantiles=LEVELS, until=dates[59]))
    assert until.actuals["ds"].max() == dates[59]
    assert until.panel.last_observed_time() == dates.cast(pl.Int64)[59]


def test_of_a_long_history_a_sixteenth_is_held_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mqcast.models.holdout.FEWEST_STEPS", 10)
    found = hold_out(Panel.from_frame(rows(2, 400)), TrainOptions(horizon=HORIZON, quantiles=LEVELS))
    dates = rows(2, 400)["ds"].unique().sort()
    assert (found.first, found.last) == (dates[399 - 25], dates[399 - HORIZON])
    assert found.knows_a_year


def test_of_very_many_series_some_are_judged(monkeypatch):
    monkeypatch.setattr("mqcast.models.holdout.MOST_ROWS", 3 * HORIZON * 18)
    found = hold_out(Panel.from_frame(rows()), TrainOptions(horizon=HORIZON, quantiles=LEVELS))
    assert found.panel.num_series == 3
    assert fitted().predict()["unique_id"].n_unique() == 10


@pytest.mark.filterwarnings("ignore::mqcast.errors.MqcastWarning")
@pytest.mark.parametrize("model", ["auto(recent, short, seasonal-naive)", "auto(mqcnn, seasonal-naive)"])
def test_nothing_that_happens_later_changes_weights_or_forecasts(model):
    rng = np.random.default_rng(5)
    data = sales(rng, is_rich="mqcnn" in model)
    layers = user_layers(SMALL if "mqcnn" in model else None)
    options = TrainOptions(
        horizon=HORIZON, quantiles=(0.5, 0.9), until=data.cutoff, layers=layers, max_steps=2, verbose=False
    )

    def fit(data):
        panel = data.panel()
        made = models.get(model).fit(panel, options)
        frame = made.forecast(panel, data.cutoff, data.cutoff)
        return made.blend.to_json(), made.calibrator and made.calibrator.to_json(), frame

    before = fit(data)
    for name in list(CHANGES)[:: 8 if "mqcnn" in model else 1]:
        now = fit(CHANGES[name](rng, data))
        assert now[:2] == before[:2], name
        assert now[2].equals(before[2]), name


# -- time --------------------------------------------------------------------------------------------------------------


def test_members_share_the_time_and_pass_on_what_is_left():
    fitted("auto(recent, short)", max_minutes=10.0)
    minutes = [float(text.rsplit(" ", 1)[1]) for text in Recent.fits]
    assert minutes == pytest.approx([2.0, 4.0, 5.0, 10.0], rel=0.02)


def test_time_and_the_end_of_training_may_come_from_settings():
    tables = {"train": {"max_minutes": 3, "max_steps": 5}, "split": {"train_until": "2023-01-01"}}
    layers = user_layers({**tables, "model": {"model": "auto"}})
    own = with_own_arguments(TrainOptions(horizon=3, quantiles=LEVELS, layers=layers))
    assert (own.max_minutes, own.until) == (3, "2023-01-01")
    assert dict(own.layers[0].items()) == {"train.max_minutes": 3, "train.max_steps": 5}


def test_messages_say_which_member_is_at_which_stage():
    said = []
    panel, options = Panel.from_frame(rows()), TrainOptions(horizon=HORIZON, quantiles=LEVELS)
    model = models.get("auto(recent, seasonal-naive)")
    model.fit(panel, TrainOptions(**vars(options) | {"listeners": (lambda record: said.append(record.text),)}))
    assert [text.split(":")[0] for text in said] == ["recent", "seasonal-naive", "recent"]  # the second is left out
    assert "to be judged" in said[0]
    assert "all dates" in said[-1]


# -- on disk -----------------------------------------------------------------------------------------------------------


def test_a_saved_blend_forecasts_the_same(tmp_path: Path):
    made = fitted("auto(recent, short)")
    made.save(tmp_path / "saved")
    loaded = Forecaster.load(tmp_path / "saved")
    assert_frame_equal(loaded.predict(), made.predict(), check_exact=True)
    assert_frame_equal(loaded.leaderboard_, made.leaderboard_, check_exact=True)
    (tmp_path / "saved" / "blend.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"blend\.json"):
        Forecaster.load(tmp_path / "saved")


def test_a_member_that_is_not_there_is_told_when_loading(tmp_path: Path):
    made = fitted("auto(recent, short)")
    made.save(tmp_path / "saved")
    models.unregister("short")
    with pytest.raises(ConfigError, match="model is 'short'"):
        Forecaster.load(tmp_path / "saved")


def test_other_models_have_no_leaderboard():
    with pytest.raises(ConfigError, match="seasonal-naive has no members"):
        fitted("seasonal-naive").leaderboard_  # noqa: B018


class Killed(KeyboardInterrupt):
    """As if the process was gone."""


@pytest.mark.parametrize("number", range(12))
def test_a_fit_that_was_killed_goes_on_where_it_was(number, tmp_path: Path, monkeypatch):
    """Killed before or after the n-th stage was noted: no finished stage is repeated, and the result is the same."""
    whole = fitted(folder=tmp_path / "whole")
    Recent.fits.clear()
    calls, write = [], Stages.write

    def killed(self, name, facts):
        calls.append(name)
        if len(calls) == number // 2 + 1 and number % 2 == 0:
            raise Killed
        write(self, name, facts)
        if len(calls) == number // 2 + 1:
            raise Killed

    monkeypatch.setattr(Stages, "write", killed)
    folder = tmp_path / "killed"
    with pytest.raises(Killed):
        fitted(folder=folder)
    monkeypatch.setattr(Stages, "write", write)
    again = new(folder=folder).fit(rows(), resume=True)
    assert_frame_equal(again.predict(), whole.predict(), check_exact=True)
    assert again.fitted_.blend.to_json() == whole.fitted_.blend.to_json()
    repeated = len(Recent.fits) - 4  # two members, twice each
    is_own = calls[-1] in ("validation-1.json", "validation-2.json", "final-1.json", "final-2.json")
    assert repeated == int(number % 2 == 0 and is_own)
    Recent.fits.clear()
    assert new(folder=folder).fit(rows(), resume=True).predict().equals(whole.predict())
    assert not Recent.fits


def test_networks_go_on_after_an_interruption(tmp_path: Path, monkeypatch):
    arguments = {"config": SMALL, "max_steps": 4}
    whole = fitted("auto(mqcnn, recent)", **arguments)
    steps = []

    def listener(record):
        steps.append(type(record).__name__)
        if steps.count("Step") == 6:
            raise Interrupted("SIGINT: training has stopped", 2)

    panel = Panel.from_frame(rows())
    options = TrainOptions(
        horizon=HORIZON, quantiles=LEVELS, max_steps=4, layers=user_layers(SMALL), folder=tmp_path / "run"
    )
    model = models.get("auto(mqcnn, recent)")
    with pytest.raises(Interrupted):
        model.fit(panel, TrainOptions(**vars(options) | {"listeners": (listener,)}))
    assert (tmp_path / "run" / "progress" / "blend.json").exists()
    done = model.fit(panel, TrainOptions(**vars(options) | {"resume": True, "verbose": False}))
    assert_frame_equal(done.forecast(panel), whole.predict(), check_exact=True)
    assert done.leaderboard.height == 3


REHEARSED = SMALL | {
    "train": {"num_threads": 1, "refit": True, "max_steps": 20},
    "model": SMALL["model"] | {"members": 1},
}


@pytest.mark.parametrize("after", [10, 30])
def test_the_rehearsal_of_a_network_judges_it_and_begins_its_fit(after: int, tmp_path: Path):
    """Interrupted in the rehearsal or after it: nothing is trained twice, and the result is that of one go."""
    arguments = {"config": REHEARSED, "folder": tmp_path / "whole"}
    whole = fitted("auto(mqcnn, recent)", **arguments)
    assert (tmp_path / "whole" / "member-1" / "rehearsal").is_dir()
    assert not (tmp_path / "whole" / "progress" / "validation-1").exists()
    trained = []

    def listener(record):
        trained.extend([record.step] if type(record).__name__ == "Step" else [])
        if len(trained) == after:
            raise Interrupted("SIGINT: training has stopped", 2)

    folder, panel, model = tmp_path / "run", Panel.from_frame(rows()), models.get("auto(mqcnn, recent)")
    options = TrainOptions(horizon=HORIZON, quantiles=LEVELS, layers=user_layers(REHEARSED), folder=folder)
    with pytest.raises(Interrupted):
        model.fit(panel, TrainOptions(**vars(options) | {"listeners": (listener,)}))
    done = model.fit(panel, TrainOptions(**vars(options) | {"resume": True, "verbose": False}))
    assert_frame_equal(done.forecast(panel), whole.predict(), check_exact=True)


def test_networks_share_the_time_that_others_do_not_need(monkeypatch):
    seen = []

    def rehearse(self, panel, options):
        seen.append((self.name, options.max_minutes))
        return

    monkeypatch.setattr(NetworkModel, "rehearse", rehearse)
    monkeypatch.setattr(Recent, "fit", lambda self, panel, options: vars(self).update(options=options) or self)
    fitted("auto(mqcnn, mqrnn, recent)", config=SMALL, max_steps=2, max_minutes=10.0)
    assert [name for name, _ in seen] == ["mqcnn", "mqrnn"]
    assert [minutes for _, minutes in seen] == pytest.approx([5.0, 5.0], rel=0.02)


def test_a_folder_of_something_else_is_refused(tmp_path: Path):
    folder = tmp_path / "run"
    fitted("auto(recent)", folder=folder)
    with pytest.raises(ArtifactError, match="already contains a fit; resume it"):
        fitted("auto(recent)", folder=folder)
    with pytest.raises(ConfigError, match=r"other options \(seed\)"):
        new("auto(recent)", folder=folder, seed=1).fit(rows(), resume=True)
    with pytest.raises(ConfigError, match="other data"):
        new("auto(recent)", folder=folder).fit(rows().head(-1), resume=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("")
    with pytest.raises(ArtifactError, match="neither empty nor a fit"):
        fitted("auto(recent)", folder=other)


def test_a_damaged_stage_is_told(tmp_path: Path):
    folder = tmp_path / "run"
    fitted("auto(recent)", folder=folder)
    (folder / "progress" / "blend.json").unlink()
    with (folder / "progress" / "validation-1.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.warns(MemberLeftOutWarning), pytest.raises(ArtifactError, match=r"validation-1\.parquet is missing or"):
        new("auto(recent)", folder=folder).fit(rows(), resume=True)


def test_the_command_line_fits_forecasts_and_resumes(tmp_path: Path):
    pack(rows(), tmp_path / "panel")

    def run(*arguments) -> str:
        done = CliRunner().invoke(app, [str(one) for one in arguments])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    fit = ("fit", tmp_path / "panel", tmp_path / "run", "--model", "auto(recent, seasonal-naive)", "--horizon", HORIZON)
    text = run(*fit, "--set", "train.max_minutes=5")
    assert "(calibrated blend)" in text
    assert "relative to seasonal naive" in text
    told = json.loads(run(*fit, "--set", "train.max_minutes=5", "--resume", "--json").splitlines()[-1])
    assert {row["member"] for row in told["leaderboard"]} == {"(calibrated blend)", "recent", "seasonal-naive"}
    run("forecast", tmp_path / "run", tmp_path / "panel", tmp_path / "out.parquet")
    direct = Forecaster("auto(recent, seasonal-naive)", HORIZON, verbose=False).fit(rows()).predict()
    assert_frame_equal(pl.read_parquet(tmp_path / "out.parquet"), direct, check_exact=True)


def test_a_backtest_from_a_date_without_a_time_keeps_its_networks():
    made = new("auto(mqcnn, seasonal-naive)", config=SMALL, max_minutes=0.03)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MemberLeftOutWarning)
        found = made.backtest(rows(), rows()["ds"].max().date() - dt.timedelta(weeks=HORIZON))
    assert found["unique_id"].n_unique() == 10


# -- a table of forecasts ----------------------------------------------------------------------------------------------


@pytest.fixture
def table():
    """All that a planner said, from every cutoff: what the class `Short` says, in the words of the user's frame."""
    dates = rows()["ds"].unique().sort()
    frame = fitted("short").revisions(start=dates[40], end=dates[79])
    models.register_frame("planner", frame)
    yield frame
    models.unregister("planner")


def test_a_table_of_forecasts_is_a_model(table, tmp_path: Path):
    made = fitted("planner")
    assert_frame_equal(made.predict(), fitted("short").predict(), check_exact=True)
    made.save(tmp_path / "saved")
    assert_frame_equal(Forecaster.load(tmp_path / "saved").predict(), made.predict(), check_exact=True)
    one, two = fitted("auto(recent, planner)"), fitted("auto(recent, short)")
    assert_frame_equal(one.predict(), two.predict(), check_exact=True)


def test_a_table_may_be_pandas_or_a_file(table, tmp_path: Path):
    table.write_parquet(tmp_path / "planner.parquet")
    table.write_csv(tmp_path / "planner.csv")
    for name, source in (
        ("one", table.to_pandas()),
        ("two", tmp_path / "planner.parquet"),
        ("three", tmp_path / "planner.csv"),
    ):
        models.register_frame(name, source)
        try:
            assert_frame_equal(fitted(name).predict(), fitted("planner").predict(), check_exact=True)
        finally:
            models.unregister(name)
    (tmp_path / "bad.parquet").write_text("nothing")
    for bad in (3, tmp_path / "none.parquet", tmp_path / "bad.parquet"):
        with pytest.raises(ConfigError, match="no table of forecasts"):
            models.register_frame("three", bad)


def test_a_cutoff_that_a_table_does_not_have_is_told(table):
    with pytest.raises(ConfigError, match="has nothing from cutoff 2022-05-08"):
        fitted("planner").predict(cutoff="2022-05-08")
    models.register_frame("short-sighted", table.filter(pl.col("horizon") < HORIZON))
    try:
        with pytest.raises(ConfigError, match="has 2 of 3 steps from cutoff"):
            fitted("short-sighted").predict()
    finally:
        models.unregister("short-sighted")


def test_a_table_without_the_held_out_cutoffs_takes_no_part(table):
    models.register_frame("late", table.filter(pl.col("cutoff") > pl.col("cutoff").max() - pl.duration(weeks=5)))
    try:
        with pytest.warns(MemberLeftOutWarning, match="without late, which failed .* has nothing from cutoff"):
            assert fitted("auto(recent, late)").fitted_.blend.members == ("recent",)
    finally:
        models.unregister("late")


def test_a_table_of_few_series_takes_no_part(table):
    models.register_frame("few", table.filter(pl.col("unique_id").is_in(["s1", "s2"])))
    try:
        with pytest.warns(MemberLeftOutWarning, match="has only 108 of 540 forecasts"):
            assert fitted("auto(recent, few)").fitted_.blend.members == ("recent",)
    finally:
        models.unregister("few")


# -- one model, calibrated ---------------------------------------------------------------------------------------------


class Narrow(Recent):
    """Half as wide as it should be."""

    def forecast(self, panel, first=None, last=None):
        def of_history(y):
            quantiles = np.quantile(y[-26:], self.options.quantiles)
            return np.tile((quantiles + np.median(y[-26:])) / 2, (self.options.horizon, 1))

        return models.forecast_each(panel, self.options, of_history, first, last)


@pytest.fixture
def narrow():
    models.register("narrow")(Narrow)
    yield "narrow"
    models.unregister("narrow")


def coverage(frame: pl.DataFrame, actuals: pl.DataFrame) -> float:
    both = frame.join(actuals, on=["unique_id", "ds"])
    return ((both["y"] > both["q0.1"]) & (both["y"] <= both["q0.9"])).mean()


def test_a_single_model_is_calibrated(narrow, tmp_path: Path):
    many, dates = rows(40, 120), rows(40, 120)["ds"].unique().sort()
    known = many.filter(pl.col("ds") <= dates[99])
    plain, made = (new(name).fit(known) for name in (narrow, f"calibrated({narrow})"))
    later = {name: one.revisions(many, dates[99], dates[116]) for name, one in (("plain", plain), ("made", made))}
    assert coverage(later["plain"], many) < 0.62
    assert coverage(later["made"], many) == pytest.approx(0.8, abs=0.06)
    made.save(tmp_path / "saved")
    assert_frame_equal(Forecaster.load(tmp_path / "saved").predict(), made.predict(), check_exact=True)


def test_a_calibrated_model_resumes_and_opens_from_its_folder(narrow, tmp_path: Path):
    name = f"calibrated({narrow})"
    made = fitted(name, folder=tmp_path / "run")
    Recent.fits.clear()
    again = new(name, folder=tmp_path / "run").fit(rows(), resume=True)
    assert_frame_equal(again.predict(), made.predict(), check_exact=True)
    assert not Recent.fits


@pytest.mark.filterwarnings("ignore::mqcast.errors.MqcastWarning")
def test_a_calibrated_network_is_blind_to_what_comes_later():
    rng = np.random.default_rng(6)
    data = sales(rng)
    options = TrainOptions(
        horizon=HORIZON, quantiles=LEVELS, until=data.cutoff, layers=user_layers(SMALL), max_steps=2, verbose=False
    )

    def forecast(data):
        panel = data.panel()
        return models.get("calibrated(mqcnn)").fit(panel, options).forecast(panel, data.cutoff, data.cutoff)

    before = forecast(data)
    for name in list(CHANGES)[::8]:
        assert forecast(CHANGES[name](rng, data)).equals(before), name
