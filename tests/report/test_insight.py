"""What a trained run tells: attention of many cutoffs, learned positions, and cutoffs that it has not seen."""

from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from report_samples import world

from mqcast import Forecaster, Panel
from mqcast.errors import DataError, NotFittedError
from mqcast.run_diagnostics import attention, encodings, judged_runs, trained

HORIZON = 4
SMALL = {
    "train": {"num_threads": 1},
    "model": {"hidden_dim": 6, "encoder_dilations": (1, 2), "lookback": 8},
    "window": {"history": 8, "num_fcts": 12},
}


@cache
def panel() -> Panel:
    return Panel.from_frame(world().frame, world().schema, world().static, world().events)


def weeks() -> list:
    return world().frame["ds"].unique().sort().to_list()


@pytest.fixture(scope="module")
def made() -> Forecaster:
    found = Forecaster("mqt", HORIZON, schema=world().schema, max_steps=3, config=SMALL, verbose=False)
    return found.fit(world().frame, static=world().static, events=world().events)


def test_attention_of_many_cutoffs_is_that_of_each(made):
    ids = ["item_000001", "item_000004"]
    found = attention(made.run_, panel(), ids, weeks()[40], weeks()[47])
    keys = ["unique_id", "cutoff", "horizon", "block", "looked_at"]
    assert found.select(keys).is_duplicated().sum() == 0
    assert sorted(set(found["cutoff"])) == weeks()[40:48]
    sums = found.group_by("unique_id", "cutoff", "horizon", "block").agg(pl.sum("weight"))
    assert (sums["weight"] - 1).abs().max() < 1e-5
    alone = made.explain(ids, cutoff=weeks()[43], above=0.0)
    both = found.join(alone, on=keys, suffix="_alone")
    assert both.height == alone.height
    assert (both["weight"] - both["weight_alone"]).abs().max() < 1e-5


def test_learned_positions_are_of_the_dates_around_the_cutoffs(made):
    found = encodings(made.run_, panel(), weeks()[40], weeks()[47])
    assert found is not None
    assert set(found["channel"]) == set(range(6))
    assert {*weeks()[40:48], weeks()[47 + HORIZON]} <= set(found["ds"])
    assert found.select("ds", "channel").is_duplicated().sum() == 0
    cnn = Forecaster("mqcnn", HORIZON, schema=world().schema, max_steps=1, config=SMALL, verbose=False)
    run = cnn.fit(world().frame, static=world().static, events=world().events).run_
    assert encodings(run, panel()) is None
    told = trained(run, panel(), weeks()[40], weeks()[41])
    assert told.explain is None
    assert told.facts["model"] == "mqcnn"
    assert "[model]" in told.config


def test_a_run_is_judged_on_what_it_has_not_seen_and_else_it_is_said(made, tmp_path: Path):
    split = {"split": {"train_until": str(weeks()[43]), "valid_until": str(weeks()[43])}}
    settings = {"schema": world().schema, "max_steps": 1, "config": SMALL | split, "verbose": False}
    honest = Forecaster("mqcnn", HORIZON, folder=tmp_path / "run", **settings)
    honest.fit(world().frame, static=world().static, events=world().events)
    frames, told, notes = judged_runs({"honest": tmp_path / "run"}, panel())
    assert notes == ()
    assert list(frames) == ["honest", "seasonal-naive"]
    assert sorted(set(frames["honest"]["cutoff"])) == weeks()[43:51]
    assert list(told) == ["honest"]
    frames, _, notes = judged_runs({"all": made.run_.folder}, panel())
    assert "all was trained on dates that are evaluated here" in notes[0]
    assert frames["all"]["cutoff"].n_unique() == 3 * HORIZON - 1


def test_figures_never_train(made, monkeypatch):
    monkeypatch.setattr("mqcast.models.networks.NetworkModel.fit", lambda *_: pytest.fail("it has trained"))
    bare = Forecaster("mqt", HORIZON, schema=world().schema)
    for one in (made, bare):
        assert {"fan", "evolution", "volatility"} <= set(dir(one.plot))
        assert not hasattr(one.plot, "findings")
        with pytest.raises(NotFittedError, match=r"figures of the past need a backtest; call forecaster.backtest\(\)"):
            one.plot.calibration()
        with pytest.raises(NotFittedError, match="need a backtest"):
            one.plot.fan("item_000001", weeks()[44])
    with pytest.raises(NotFittedError, match="call fit"):
        bare.plot.fan("item_000001")


def test_a_fan_is_what_predict_says(made):
    figure = made.plot.fan("item_000001")
    wanted = made.predict().filter(unique_id="item_000001")
    lines = {trace.name: trace for trace in figure.data}
    assert list(lines["P90"].x) == wanted["ds"].to_list()
    np.testing.assert_allclose(lines["P90"].y, wanted["q0.9"], rtol=1e-5)
    assert max(lines["actual"].x) == wanted["cutoff"][0]
    assert figure.layout.title.text == "Forecast of item_000001"
    with pytest.raises(DataError, match="series 'nobody': no such series"):
        made.plot.fan("nobody")


def test_a_forecaster_keeps_the_network_of_its_backtest_to_be_looked_at(made, tmp_path: Path):
    made.backtest(start=weeks()[44], end=weeks()[50])
    item, date = "item_000002", weeks()[48]
    assert made.plot.evolution(item, date).data[-1].name == "seasonal-naive, P50"
    assert made.plot.attention(item).data[0].type == "heatmap"
    assert len(made.plot.revision(item, date).data) == 2
    text = made.report(tmp_path / "report.html").read_text()
    assert "Why this forecast" in text
    assert "Position encodings of mqt" in text
    assert "Learning curve" in text
    first = made._backtest_.fitted.run.folder
    made.backtest(start=weeks()[46], end=weeks()[49], refit=2)
    assert not first.exists()
    assert len(set(made.plot.sources.first.cutoff.tolist())) == 4
