"""Forecasts of a trained run: in units, dated, in shards that any number of processes may share."""

import datetime as dt
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from train_samples import CONFIG, HORIZON, MODEL, config, sample_panel, sample_world

from mqcast import ConfigError, DataError, Panel
from mqcast.data.batch import Assembler
from mqcast.data.windows import Span, WindowPlan
from mqcast.durable import claimed
from mqcast.errors import (
    ArtifactError,
    EventReachWarning,
    KnownValuesError,
    SeriesLeftOutWarning,
    TargetsLeftOutWarning,
)
from mqcast.forecast import predict
from mqcast.forecast.predict import context_of, forecast
from mqcast.run import Run
from mqcast.settings import ModelConfig
from mqcast.train.distributed import use_threads
from mqcast.train.loop import fit

pytestmark = pytest.mark.filterwarnings("ignore::mqcast.errors.EventReachWarning")
NUM_ITEMS, NUM_WEEKS = 12, 40
SUNDAY = dt.datetime(2019, 1, 6)


def week(number: int) -> dt.datetime:
    return SUNDAY + dt.timedelta(weeks=number)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EventReachWarning)
        return fit(sample_panel(), config(max_steps=3), tmp_path_factory.mktemp("runs") / "run")


def test_the_last_cutoff_is_the_panels_last_observation(run, tmp_path):
    frame = pl.read_parquet(forecast(run, sample_panel(), tmp_path / "f.parquet"))
    assert frame.columns == ["unique_id", "cutoff", "ds", "horizon", "q0.5", "q0.9"]
    assert frame.height == NUM_ITEMS * HORIZON
    assert frame["cutoff"].unique().to_list() == [week(NUM_WEEKS - 1)]
    assert frame["ds"][:HORIZON].to_list() == [week(NUM_WEEKS - 1 + h) for h in range(1, HORIZON + 1)]
    assert (frame["q0.5"] <= frame["q0.9"]).all()
    assert (frame["q0.5"] >= 0).all(), "as no demand ever was"
    assert frame["unique_id"].to_list() == sorted(frame["unique_id"].to_list())


def test_forecasts_are_the_networks_brought_back_to_units(run, tmp_path):
    panel = sample_panel()
    frame = pl.read_parquet(forecast(run, panel, tmp_path / "f.parquet", first=week(30), last=week(30)))
    plan = predict.cutoff_plan(run, panel, week(30), week(30))
    assemble = run.assembler(panel).on_windows(plan.config.replace(num_fcts=1))
    at = int(panel.axis.frequency.times(panel.first_step[:1] + 30)[0])
    batch = assemble(WindowPlan(panel, assemble.config, Span(at, at), shuffle=False).batch(0, 0))
    scaled = run.network().quantiles(batch, 1).values[..., 0, :].numpy()
    z = batch.loc[:, -1].numpy()[:, None, None] + batch.scale[:, -1].numpy()[:, None, None] * scaled
    expected = np.expm1(z).reshape(-1, 2)
    assert len(expected) == panel.num_series * HORIZON, "one batch has all items"
    np.testing.assert_allclose(frame.select("q0.5", "q0.9").to_numpy()[: len(expected)], expected, rtol=1e-5)


@pytest.mark.parametrize("model", ["mqt", "mqt-nods", "mqt-all", "mqcnn"])
def test_a_cutoffs_forecast_does_not_depend_on_which_others_are_asked_for(tmp_path, model):
    settings = config(max_steps=2).replace(model=ModelConfig(**MODEL.model_dump(exclude_unset=True) | {"model": model}))
    run = fit(sample_panel(), settings, tmp_path / "run")
    many = pl.read_parquet(forecast(run, sample_panel(), tmp_path / "many", first=week(20)))
    some = pl.read_parquet(forecast(run, sample_panel(), tmp_path / "some", first=week(25), last=week(27)))
    last = pl.read_parquet(forecast(run, sample_panel(), tmp_path / "last"))
    assert many.height == NUM_ITEMS * 20 * HORIZON
    keys = ["unique_id", "cutoff", "ds", "horizon"]
    for few in (some, last):
        both = few.join(many, on=keys, how="inner")
        assert both.height == few.height > 0
        np.testing.assert_allclose(both["q0.9"], both["q0.9_right"], rtol=1e-5)


def test_the_context_covers_all_that_a_forecast_depends_on():
    base = {"hidden_dim": 8, "encoder_dilations": (1, 2, 4), "lookback": 8}
    assert context_of(ModelConfig(model="mqcnn", **base), 5) == 7 + 4
    assert context_of(ModelConfig(model="mqt-nods", **base), 5) == 7 + 8
    assert context_of(ModelConfig(model="mqt", **base), 5) == 7 + 8 + 4
    assert context_of(ModelConfig(model="mqt-all", **base), 5) == 7 + 8 + 8
    assert context_of(ModelConfig(model="mqt", encoder_attention=True, **base), 5) == 7 + 8 + 8 + 4


def test_shards_give_the_same_frame_and_finished_ones_are_not_done_again(run, tmp_path, monkeypatch):
    panel = sample_panel()
    whole = pl.read_parquet(forecast(run, panel, tmp_path / "whole", first=week(30)))
    monkeypatch.setattr(predict, "ROWS_A_SHARD", 2 * 10 * HORIZON)
    shard_frame, done = predict.shard_frame, []

    def fails_at_the_third(*arguments):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(arguments[4])
        return shard_frame(*arguments)

    monkeypatch.setattr(predict, "shard_frame", fails_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        forecast(run, panel, tmp_path / "parts", first=week(30))
    assert not (tmp_path / "parts").exists()
    again = []
    monkeypatch.setattr(predict, "shard_frame", lambda *a: again.append(a[4]) or shard_frame(*a))
    path = forecast(run, panel, tmp_path / "parts", first=week(30))
    parts, keys = pl.read_parquet(path), ["unique_id", "cutoff", "ds", "horizon"]
    assert parts.select(keys).equals(whole.select(keys))
    np.testing.assert_allclose(parts["q0.9"], whole["q0.9"], rtol=1e-5)
    assert done == [range(2), range(2, 4)]
    assert again == [range(i, i + 2) for i in range(4, 12, 2)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["parts", "whole"], "no shards are left"


def test_batches_on_several_cores_have_the_bits_of_one_core(run, monkeypatch):
    monkeypatch.setattr(predict, "WINDOWS_AT_A_TIME", 2)
    monkeypatch.setattr(predict, "num_cores", lambda: 1)
    alone = predict.forecast_frame(run, sample_panel(), first=week(30), last=week(33))
    threads: set[str] = set()
    rows = predict._rows
    monkeypatch.setattr(predict, "_rows", lambda *given: threads.add(threading.current_thread().name) or rows(*given))
    monkeypatch.setattr(predict, "num_cores", lambda: 3)
    assert predict.forecast_frame(run, sample_panel(), first=week(30), last=week(33)).equals(alone)
    assert threads
    assert all(name.startswith("mqcast-forecast") for name in threads)


@pytest.mark.parametrize("num_cores", [1, 3])
def test_a_forecast_leaves_the_callers_number_of_threads_alone(run, monkeypatch, num_cores: int):
    monkeypatch.setattr(predict, "num_cores", lambda: num_cores)
    before = torch.get_num_threads()
    use_threads(2)
    try:
        predict.forecast_frame(run, sample_panel(), first=week(30))
        with ThreadPoolExecutor(1) as new_thread:
            assert (torch.get_num_threads(), new_thread.submit(torch.get_num_threads).result()) == (2, before)
    finally:
        use_threads(before)


def test_windows_that_begin_with_their_series_give_the_same_forecasts(run, monkeypatch):
    panel = sample_panel()
    young = predict.forecast_frame(run, panel, first=week(30))
    monkeypatch.setattr(Assembler, "begun_steps", lambda self, windows: self.config.history)
    whole = predict.forecast_frame(run, panel, first=week(30))
    assert young.select("unique_id", "cutoff", "ds").equals(whole.select("unique_id", "cutoff", "ds"))
    np.testing.assert_allclose(young["q0.9"], whole["q0.9"], rtol=1e-5)


@pytest.mark.parametrize(
    "harm", [lambda c: b"", lambda c: c[:100], lambda c: c[:-1], lambda c: c[:-90] + b"x" + c[-89:]]
)
def test_shards_that_a_crash_cut_short_or_a_disk_changed_are_made_again(tmp_path, harm):
    file, frame = tmp_path / "shard.arrow", pl.DataFrame({"unique_id": ["a"] * 50, "q0.5": [1.0] * 50})
    assert predict._shard(file) is None
    predict._write_shard(file, frame, predict.Limited())
    found = predict._shard(file)
    assert found is not None
    assert frame.equals(pl.DataFrame(found))
    file.write_bytes(harm(file.read_bytes()))
    assert predict._shard(file) is None


def test_shards_are_merged_as_they_appear_in_their_order(run, tmp_path, monkeypatch):
    panel = sample_panel()
    monkeypatch.setattr(predict, "ROWS_A_SHARD", 2 * 10 * HORIZON)
    plan = predict.cutoff_plan(run, panel, week(30))
    shards = predict.series_shards(panel, plan)
    assert [i for series in shards for i in series] == list(range(panel.num_series))
    whole = pl.read_parquet(forecast(run, panel, tmp_path / "whole", first=week(30)))
    parts = [whole.filter(pl.col("unique_id").is_in(panel.ids.to_pylist()[s.start : s.stop])) for s in shards]
    files = [tmp_path / f"{i}.arrow" for i in range(len(shards))]
    path = tmp_path / "merged"
    with claimed(path) as draft, predict.Merger(files, path, draft) as merger:
        for i in (1, 0, *range(3, len(files))):
            predict._write_shard(files[i], parts[i], predict.Limited())
            merger.take()
        assert merger.num_taken == 2, "the third is not there yet"
        with pytest.raises(ArtifactError, match=r"2\.arrow is missing; make all processes write to the same file"):
            merger.finish()
        predict._write_shard(files[2], parts[2], predict.Limited())
        merger.finish()
    assert pl.read_parquet(tmp_path / "merged").equals(whole)
    path = tmp_path / "other"
    with claimed(path) as draft, predict.Merger(files, path, draft) as merger:
        merger.take()
    assert not (tmp_path / "other").exists()
    assert not list(tmp_path.glob(".*.part")), "what was interrupted leaves nothing behind"


def test_shards_of_another_model_or_span_are_not_taken_for_these(run, tmp_path, monkeypatch):
    panel = sample_panel()
    other = fit(panel, config(max_steps=4), tmp_path / "other")
    keys = {
        predict._key(which, panel, predict.cutoff_plan(which, panel, first))
        for which in (run, other)
        for first in (None, week(30), week(31))
    }
    assert len(keys) == 6


def shortened(last: int, *, rows: int | None = None) -> Panel:
    """The panel, but item 3 is observed up to week `last` only, and has rows up to week `rows` (None: as before)."""
    world = sample_world()
    item = pl.col("unique_id") == "item_000003"
    frame = world.frame.filter(~item | (pl.col("ds") <= week(NUM_WEEKS + HORIZON if rows is None else rows)))
    frame = frame.with_columns(y=pl.when(item & (pl.col("ds") > week(last))).then(None).otherwise(pl.col("y")))
    return Panel.from_frame(frame, None, world.static, world.events, like=sample_panel())


def test_a_series_that_was_not_observed_of_late_is_forecast_from_the_common_cutoff(run, tmp_path):
    found = pl.read_parquet(forecast(run, shortened(NUM_WEEKS - 3), tmp_path / "f"))
    assert found.height == NUM_ITEMS * HORIZON
    assert found["cutoff"].unique().to_list() == [week(NUM_WEEKS - 1)]
    assert found.null_count().sum_horizontal().item() == 0


def test_a_series_that_has_ended_is_left_out_with_a_warning_and_stops_nobody(run, tmp_path):
    """Its known values end too; that matters only to cutoffs at which it is forecast."""
    panel = shortened(20, rows=20)
    with pytest.warns(SeriesLeftOutWarning, match=r"1 of 12 series are not forecast: .*'item_000003'"):
        found = pl.read_parquet(forecast(run, panel, tmp_path / "f", first=week(30), last=week(33)))
    assert "item_000003" not in found["unique_id"]
    assert found.height == (NUM_ITEMS - 1) * 4 * HORIZON
    with pytest.warns(TargetsLeftOutWarning, match=r"\d targets of 1 series are left out: .*'item_000003'"):
        found = pl.read_parquet(forecast(run, panel, tmp_path / "g", first=week(18), last=week(33)))
    assert found.filter(unique_id="item_000003")["ds"].max() == week(20)


def test_cutoffs_between_steps_are_those_inside_the_dates(run, tmp_path):
    day = dt.timedelta(days=1)
    found = pl.read_parquet(forecast(run, sample_panel(), tmp_path / "f", first=week(30) + day, last=week(33) - day))
    assert sorted(found["cutoff"].unique().to_list()) == [week(31), week(32)]


def test_what_cannot_be_forecast_says_why(run, tmp_path):
    world = sample_world()
    frame = world.frame.filter(pl.col("y").is_not_null())
    without_future = Panel.from_frame(frame, None, world.static, world.events, like=sample_panel())
    with pytest.raises(KnownValuesError, match="add rows with promo"):
        forecast(run, without_future, tmp_path / "f")
    forecast(run, without_future, tmp_path / "f", first=week(30), last=week(NUM_WEEKS - 1 - HORIZON))
    with pytest.raises(ConfigError, match="give earlier ones"):
        forecast(run, sample_panel(), tmp_path / "f", first="2019-05-05", last="2019-03-03")
    with pytest.raises(ConfigError, match="2031-05-04, is after the last, 2019-10-06"):
        forecast(run, sample_panel(), tmp_path / "f", first="2031-05-04")
    with pytest.raises(DataError, match="give another cutoff"):
        forecast(run, sample_panel(), tmp_path / "f", first="2031-05-04", last="2031-05-04")
    with pytest.raises(ConfigError, match="is not a date"):
        forecast(run, sample_panel(), tmp_path / "f", first="soon")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write"):
        forecast(run, sample_panel(), tmp_path / "file" / "f")
    assert CONFIG.window.horizon == HORIZON


@pytest.mark.parametrize(
    ("cutoff", "problem"),
    [
        (week(500), "no series can be forecast from 2028-08-06: the data go from 2019-01-06 to .*up to 4 steps after"),
        (week(-9), "no series can be forecast from 2018-11-04: the data go from 2019-01-06"),
        (week(20) + dt.timedelta(days=2), "the cutoff 2019-05-28 is no date of W-SUN; give 2019-05-26"),
    ],
)
def test_a_cutoff_that_no_series_has_is_told_with_those_that_there_are(run, cutoff, problem):
    with pytest.raises(DataError, match=problem):
        predict.forecast_frame(run, sample_panel(), first=cutoff, last=cutoff)
