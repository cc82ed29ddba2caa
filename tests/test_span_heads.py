"""Totals that a network forecasts itself: asked for, saved, resumed, blind to what is later."""

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from mqcast import ConfigError, Forecaster, evaluate, pack
from mqcast.cli import app
from mqcast.nn.kernels import COMPILED, status
from mqcast.nn.networks import Network
from mqcast.settings import ModelConfig, RunConfig
from mqcast.simulate import lognormal_world

HORIZON, SPANS = 4, [[1, 4], [2, 3]]
WORLD = lognormal_world(num_items=8, num_weeks=60, horizon=HORIZON)
DATES = WORLD.frame["ds"].unique().sort()
SMALL = {"hidden_dim": 8, "encoder_dilations": [1, 2], "lookback": 8}


def new(model: str = "mqt", spans=SPANS, max_steps: int = 6, **options) -> Forecaster:
    train = {"refit": False, "max_epochs": 1, **options.pop("train", {})}
    config = {"model": {**SMALL, "spans": spans}, "train": train}
    chosen = {"quantiles": (0.1, 0.5, 0.9), "schema": WORLD.schema, "verbose": False, "max_steps": max_steps}
    return Forecaster(model, HORIZON, config=config, **(chosen | options))


def fit(forecaster: Forecaster, frame: pl.DataFrame = WORLD.frame, **options) -> Forecaster:
    return forecaster.fit(frame, static=WORLD.static, events=WORLD.events, **options)


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    return fit(new(members=2))


def test_totals_come_from_paths_unless_heads_are_asked_for_and_the_frame_says_which(fitted):
    spans = [(1, 4), (2, 3)]
    found = {by: fitted.predict(spans=spans, spans_by=by) for by in ("heads", "paths")}
    assert fitted.predict(spans=spans).equals(found["paths"])
    for by, totals in found.items():
        expected = [(1, 4, 4, by), (2, 3, None, by)]
        assert totals.select("first", "last", "span", "spans_by").rows()[:2] == expected
        steps = fitted.predict().filter(pl.col("horizon").is_in([1, 4]))
        assert totals.select("start", "ds").row(0) == tuple(steps["ds"][:2])
        values = totals.select("^q.*$").to_numpy()
        assert (np.diff(values) >= 0).all()
        assert (values >= 0).all()
    assert not found["heads"]["q0.5"].equals(found["paths"]["q0.5"])
    assert found["heads"].filter(pl.col("last") == 3).equals(fitted.predict(spans=[(2, 3)], spans_by="heads"))
    assert fitted.predict(spans=spans, spans_by="heads", cutoff="each").equals(found["heads"])


def test_a_head_learns_the_total_of_steps_that_do_not_rise_together():
    """Weeks are independent: P90 of their mean is far below the mean of their P90s, where the head starts."""
    rng, ids = np.random.default_rng(0), pl.DataFrame({"unique_id": [f"s{i}" for i in range(20)]})
    frame = ids.join(DATES[:60].to_frame(), how="cross").with_columns(y=rng.gamma(2, 5, 1200))
    model = {**SMALL, "spans": SPANS, "dropout": 0.0}
    config = {"model": model, "train": {"refit": False, "learning_rate": 0.01}}
    forecaster = Forecaster("mqcnn", HORIZON, (0.5, 0.9), verbose=False, max_steps=150, members=1, config=config)
    forecaster.fit(frame)
    seen = {"start": DATES[20], "end": DATES[55]}
    found, summed = forecaster.revisions(spans=[(1, 4)], spans_by="heads", **seen), forecaster.revisions(**seen)
    by_cutoff = summed.group_by("unique_id", "cutoff").agg(pl.col("^q.*$").sum())
    widths = [(one["q0.9"] - one["q0.5"]).mean() for one in (found, by_cutoff)]
    assert widths[0] < 0.75 * widths[1]
    assert abs(evaluate(found, frame)["coverage_q0.9"][0] - 0.9) < 0.05


def test_a_network_without_spans_is_not_changed_and_has_no_parameters_for_them():
    plain, with_spans = fit(new(spans=[], members=1)), fit(new(members=1))
    weights = [one.run_.kept_network.state_dict() for one in (plain, with_spans)]
    own = {f"span.{name}" for name in ("hidden.weight", "code", "read", "out", "out_shift")}
    assert weights[1].keys() - weights[0].keys() == own
    assert weights[0].keys() < weights[1].keys()


@pytest.mark.parametrize("model", ["mqt", "mqcnn"])
def test_rows_after_the_cutoff_change_no_bit_of_totals(model):
    cutoff = DATES[-10]
    changed = WORLD.frame.with_columns(y=pl.when(pl.col("ds") > cutoff).then(pl.col("y") * 7 + 100).otherwise("y"))
    forecaster = fit(new(model))
    one, other = (
        forecaster.predict(frame, cutoff=cutoff, spans=SPANS, spans_by="heads") for frame in (WORLD.frame, changed)
    )
    assert one.equals(other)
    backtests = [fit(new(model)) for _ in range(2)]
    for each, frame in zip(backtests, (WORLD.frame, changed), strict=True):
        each.backtest(frame, cutoff, cutoff, static=WORLD.static, events=WORLD.events)
    one, other = (
        each._backtest_.fitted.forecast_spans(each._backtest_.panel, ((1, 4),), cutoff, cutoff) for each in backtests
    )
    assert one.equals(other)


def test_a_run_keeps_its_heads_when_it_is_saved_and_loaded(tmp_path, fitted):
    fitted.save(tmp_path / "saved")
    asked = {"spans": [(1, 4)], "spans_by": "heads"}
    assert Forecaster.load(tmp_path / "saved").predict(**asked).equals(fitted.predict(**asked))


def test_the_command_line_writes_totals_of_heads_and_of_paths(tmp_path):
    forecaster = fit(new(folder=tmp_path / "run"))
    pack(WORLD.frame, tmp_path / "panel", WORLD.schema, static=WORLD.static, events=WORLD.events)
    for spans, by in (([(1, 4), (1, 3)], None), ([(1, 4), (2, 3)], "heads"), ([(1, 4)], "paths")):
        chosen = [part for first, last in spans for part in ("--span", f"{first}-{last}")]
        chosen += [] if by is None else ["--spans-by", by]
        arguments = ["forecast", *map(str, (tmp_path / "run", tmp_path / "panel", tmp_path / "out.parquet")), *chosen]
        arguments += [] if by == "heads" else ["--processes", "1"]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        expected = forecaster.predict(spans=spans, spans_by=by)
        assert pl.read_parquet(tmp_path / "out.parquet").equals(expected)


@pytest.mark.parametrize(
    ("spans", "model", "message"),
    [
        ([[1, 5]], "mqt", r"span \(1, 5\) of model.spans goes beyond the horizon of 4; end it at 4"),
        ([[3, 2]], "mqt", r"spans: span \(3, 2\) ends before it begins; give \(2, 3\)"),
        ([[0, 2]], "mqt", "spans.0.0: Input should be greater than or equal to 1"),
        ([[1, 2], [1, 2]], "mqcnn", r"span \(1, 2\) is given twice"),
        ([[1, 2]], "seasonal-naive", "seasonal-naive has no totals of its own, those of model.spans; leave these out"),
        ([[1, 2]], "mean_of(mqt, 2)", r"mean_of\(mqt, 2\) has no totals of its own"),
        ([[1, 2]], "auto(mqt, mqcnn)", "has no totals of its own"),
        ([[1, 2]], "calibrated(mqt)", "has no totals of its own"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(spans, model, message):
    with pytest.raises(ConfigError, match=message) as caught:
        fit(new(model, spans))
    assert "\n" not in str(caught.value)


def test_heads_that_are_not_there_are_refused_in_one_line(fitted):
    with pytest.raises(ConfigError, match=r"the total over span \(1, 3\) itself, of spans: \(1, 4\), "):
        fitted.predict(spans=[(1, 3)], spans_by="heads")
    with pytest.raises(ConfigError, match="spans_by is 'head'; give 'heads' or 'paths'"):
        fitted.predict(spans=[(1, 4)], spans_by="head")
    with pytest.raises(ConfigError, match="spans_by says how totals over spans are forecast; give spans with it"):
        fitted.predict(paths=5, spans_by="heads")


def test_totals_are_refused_where_some_days_are_known_to_be_closed():
    closed = {"scaling": {"zero_when": [["promo_coupon", 1]]}}
    with pytest.raises(ConfigError, match=r"model.spans cannot go with scaling.zero_when; leave spans out"):
        RunConfig(window={"horizon": 4, "history": 8, "num_fcts": 4}, model={"spans": SPANS}, **closed)


def test_a_network_with_heads_says_why_it_is_not_compiled(fitted):
    wide = {"hidden_dim": 16, "static_dim": 32, "head_dim": 8, "context_dim": 8}
    network = fitted.run_.kept_network.members[0]
    for spans, expected in (((), None), (((1, 4),), "model.spans has no compiled form")):
        found = Network(ModelConfig(**wide, spans=spans), network.inputs, HORIZON)
        if status() == COMPILED:
            assert found.why_not_compiled() == expected


def test_heads_are_calibrated_by_the_rehearsal_and_stay_so_when_saved(tmp_path):
    forecaster = fit(new(max_steps=6, members=1, train={"refit": True, "max_epochs": 1000}))
    assert set(forecaster.run_.span_calibrators) == {(1, 4), (2, 3)}
    spans = {"spans": [(1, 4), (2, 3)], "spans_by": "heads"}
    found = forecaster.predict(**spans)
    loaded = Forecaster.load(forecaster.save(tmp_path / "saved"))
    assert loaded.predict(**spans).equals(found)
    columns = ["q0.1", "q0.5", "q0.9"]
    assert (np.diff(found.select(columns).to_numpy()) >= 0).all()
    kept = forecaster.run_.span_calibrators
    forecaster.run_.add_span_calibrators({})
    own = forecaster.predict(**spans)
    assert not own.equals(found)
    for place, (span, calibrator) in enumerate(kept.items()):
        rows = own[place::2].select(columns).to_numpy()
        moved = calibrator.moved(rows, np.full(len(rows), span[1]))
        assert found[place::2].select(columns).to_numpy() == pytest.approx(moved, rel=1e-5)
    assert forecaster.predict().equals(loaded.predict())
