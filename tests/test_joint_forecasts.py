"""`predict(paths=…)` and `predict(spans=…)`: learnt from the rehearsal, saved, blind to what comes later, streamed."""

import json
from functools import cache

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from mqcast import ConfigError, Forecaster, Panel, evaluate, pack
from mqcast.cli import app
from mqcast.errors import ArtifactError
from mqcast.joint import Paths, fit_dependence
from mqcast.models.holdout import hold_out
from mqcast.models.networks import FittedNetwork
from mqcast.run import Run
from mqcast.simulate import lognormal_world

HORIZON, LEVELS = 4, (0.1, 0.5, 0.9)
SMALL = {
    "model": {"hidden_dim": 6, "encoder_dilations": (1, 2), "members": 1},
    "train": {"refit": True, "max_steps": 6, "num_threads": 1},
}
WORLD = lognormal_world(num_items=12, num_weeks=90, horizon=HORIZON)
DATES = WORLD.frame.drop_nulls("y")["ds"].unique().sort()


def new(model: str = "seasonal-naive", **options) -> Forecaster:
    config = None if model in ("seasonal-naive", "calibrated(seasonal-naive)") else SMALL
    return Forecaster(model, HORIZON, LEVELS, WORLD.schema, config=config, verbose=False, **options)


@cache
def fitted(model: str = "seasonal-naive") -> Forecaster:
    return new(model).fit(WORLD.frame, static=WORLD.static, events=WORLD.events)


def bits(paths: Paths) -> bytes:
    return paths.values.tobytes()


@pytest.mark.parametrize("model", ["seasonal-naive", "mqcnn", "calibrated(seasonal-naive)", "auto(seasonal-naive)"])
def test_a_saved_forecaster_draws_the_same_paths_to_the_bit(tmp_path, model):
    forecaster = fitted(model)
    before = forecaster.predict(paths=20)
    assert (type(before), before.values.shape) == (Paths, (12, HORIZON, 20))
    forecaster.save(tmp_path / "saved")
    again = Forecaster.load(tmp_path / "saved")
    assert bits(again.predict(paths=20)) == bits(before)
    assert again.predict(spans=[(1, 4), (2, 3)]).equals(forecaster.predict(spans=[(1, 4), (2, 3)]))


def test_a_network_learns_the_dependence_from_its_rehearsal_and_keeps_it_with_the_run(tmp_path):
    forecaster = new("mqcnn", folder=tmp_path / "run").fit(WORLD.frame, static=WORLD.static, events=WORLD.events)
    options = forecaster._options()
    holdout = hold_out(forecaster.panel_, options)
    revisions = holdout.revisions(FittedNetwork(Run.open(tmp_path / "run" / "rehearsal")))
    static, groups = WORLD.static, ["category", "brand", "price_band"]
    exact = fit_dependence(revisions, holdout.actuals, static=static, groups=groups)
    assert forecaster.fitted_.dependence.to_json() == exact.to_json()
    loaded = Forecaster.load(tmp_path / "run", forecaster.panel_)
    assert bits(loaded.predict(paths=5)) == bits(forecaster.predict(paths=5))
    file = tmp_path / "run" / "dependence.json"
    file.write_text(file.read_text().replace("0.", "1.", 1))
    with pytest.raises(ArtifactError, match="missing or damaged"):
        Forecaster.load(tmp_path / "run", forecaster.panel_).predict(paths=5)


def test_rows_after_the_cutoff_change_no_bit_of_paths_and_totals():
    cutoff = DATES[-10]
    later = pl.col("ds") > cutoff
    changed = WORLD.frame.with_columns(y=pl.when(later).then(pl.col("y") * 7 + 100).otherwise("y"))
    one, other = (new().fit(rows, static=WORLD.static, events=WORLD.events) for rows in (WORLD.frame, changed))
    assert bits(one.predict(paths=20, cutoff=cutoff)) == bits(other.predict(paths=20, cutoff=cutoff))
    spans = [(1, 3), (2, 4)]
    assert one.predict(spans=spans, cutoff=cutoff).equals(other.predict(spans=spans, cutoff=cutoff))
    assert bits(one.predict(changed, paths=9, cutoff=cutoff)) == bits(one.predict(paths=9, cutoff=cutoff))


def test_a_path_does_not_depend_on_which_series_are_forecast():
    whole = fitted().predict(paths=30, group="category")
    some = fitted().predict(paths=30, group="category", ids=["item_000002", "item_000007"])
    assert bits(some) == whole.values[[2, 7]].tobytes()
    assert bits(whole) != bits(fitted().predict(paths=30))
    assert bits(whole) != bits(fitted().predict(paths=30, group="category", seed=1))


def test_the_medians_of_paths_are_the_forecast():
    forecast = fitted().predict()
    paths = fitted().predict(paths=101)
    found = np.median(paths.values, axis=2).ravel()
    np.testing.assert_allclose(found, forecast["q0.5"], rtol=1e-5)
    assert paths.to_frame().select("unique_id", "ds").unique().height == forecast.height


def test_paths_come_in_the_library_of_the_frame():
    forecaster = new().fit(WORLD.frame.to_pandas(), static=WORLD.static.to_pandas(), events=WORLD.events.to_pandas())
    assert type(forecaster.predict(paths=3).to_frame()).__module__.startswith("pandas")
    assert type(forecaster.predict(spans=[(1, 2)])).__module__.startswith("pandas")


def test_totals_of_several_cutoffs_are_evaluated():
    parts = [fitted().predict(spans=[(1, 4)], cutoff=DATES[-i]) for i in (10, 8, 6)]
    table = evaluate(pl.concat(parts), WORLD.actuals)
    assert table.select("first", "last", "rows", "left_out").rows() == [(1, 4, 36, 0)]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"spans": [(1, 5)]}, "beyond the horizon of 4"),
        ({"spans": [(3, 2)]}, "ends before it begins"),
        ({"spans": [(0, 2)]}, "a step of a span is 0"),
        ({"paths": 0}, "paths is 0"),
        ({"paths": 5, "spans": [(1, 2)]}, "give either paths or spans"),
        ({"spans": [(1, 2)], "group": "category"}, "give paths with it"),
        ({"paths": 5, "group": "catgory"}, "did you mean 'category'"),
        ({"paths": 5, "seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(asked, message):
    with pytest.raises(ConfigError, match=message):
        fitted().predict(**asked)


def test_with_too_little_history_the_error_says_how_much_is_needed():
    short = WORLD.frame.filter(pl.col("ds") > DATES[-8])
    forecaster = new().fit(short, static=WORLD.static, events=WORLD.events)
    assert len(forecaster.predict()) == 12 * HORIZON
    with pytest.raises(ConfigError, match="have 6 target dates with demand, and 8 are needed; give more history"):
        forecaster.predict(paths=5)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joint")
    forecaster = new("mqcnn", folder=folder / "run").fit(WORLD.frame, static=WORLD.static, events=WORLD.events)
    panel = pack(WORLD.frame, folder / "panel", WORLD.schema, static=WORLD.static, events=WORLD.events)
    assert isinstance(panel, Panel)
    return folder, Forecaster.load(folder / "run", panel), forecaster


def run(*arguments) -> str:
    found = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=True)
    assert found.exit_code == 0, found.output
    return found.output


def test_the_command_writes_the_paths_and_totals_that_predict_returns(place):
    folder, loaded, _ = place
    asked = ("forecast", folder / "run", folder / "panel", folder / "out.parquet", "--processes", 1, "--json")
    assert json.loads(run(*asked, "--paths", 20, "--group", "category", "--seed", 3))
    exact = loaded.predict(paths=20, group="category", seed=3).to_frame()
    assert pl.read_parquet(folder / "out.parquet").equals(exact)
    run(*asked, "--span", "1-4", "--span", "2-3")
    assert pl.read_parquet(folder / "out.parquet").equals(loaded.predict(spans=[(1, 4), (2, 3)]))
    item = loaded.panel_.ids[0].as_py()
    run(*asked, "--span", "1-4", "--id", item, "--cutoff", "each")
    totals = loaded.predict(spans=[(1, 4)], ids=item, cutoff="each")
    assert totals["unique_id"].to_list() == [item]
    assert pl.read_parquet(folder / "out.parquet").equals(totals)
    assert sorted(path.name for path in folder.iterdir()) == ["out.parquet", "panel", "run"]


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--span", "1-9"), "beyond the horizon of 4"), (("--span", "4"), "span is '4'"), (("--paths", 0), "paths is 0")],
)
def test_the_command_refuses_what_cannot_be(place, options, message):
    folder, *_ = place
    asked = ("forecast", folder / "run", folder / "panel", folder / "other.parquet", *options)
    found = CliRunner().invoke(app, [str(one) for one in asked])
    assert message in str(found.exception)
    assert not (folder / "other.parquet").exists()
