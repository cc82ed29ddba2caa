"""Whatever a series did and whatever a network weighs: forecasts are finite, in order and within their limits."""

import datetime as dt
import warnings

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

from mqcast import Forecaster, Panel, Schema
from mqcast.errors import ForecastLimitedWarning
from mqcast.forecast.limits import KEY, LARGEST_MULTIPLE, Limited, largest_published, within_limits
from mqcast.forecast.predict import forecast, forecast_frame
from mqcast.run import Run

WEEKS = pl.datetime_range(pl.datetime(2022, 1, 2), pl.datetime(2023, 9, 24), "1w", eager=True)
LEVELS = ("q0.1", "q0.5", "q0.9")


def adversarial(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Series as unlike each other as demand can be."""
    n = len(WEEKS)
    return {
        "alternating": np.where(np.arange(n) % 2, 9000.0, 0.0),
        "intermittent": rng.poisson(0.05, n).astype(float),
        "lumpy": np.where(rng.random(n) < 0.1, rng.gamma(2, 400, n), 0.0),
        "step": np.where(np.arange(n) < 60, 1.0, 1e6),
        "fall": np.where(np.arange(n) < 60, 1e6, 1.0),
        "gap": np.where((np.arange(n) > 20) & (np.arange(n) < 70), np.nan, rng.normal(300, 9, n)),
        "out of the range": np.where((np.arange(n) > 20) & (np.arange(n) < 70), 0.0, rng.normal(300, 9, n).round()),
        "spike": np.where(np.arange(n) == 50, 1e7, 5.0),
        "trend": np.exp(np.arange(n) / 8),
        "constant": np.full(n, 12.0),
        "nothing": np.zeros(n),
        "one sale": np.where(np.arange(n) == n - 1, 3.0, 0.0),
        "late": np.where(np.arange(n) < 85, 0.0, 4000.0 + np.arange(n)),
        "tiny": np.full(n, 1e-6) * (1 + np.arange(n) % 3),
        "huge": np.full(n, 1e15) * (1 + np.arange(n) % 3),
    }


def frame_of(series: dict[str, np.ndarray]) -> pl.DataFrame:
    parts = [pl.DataFrame({"unique_id": name, "ds": WEEKS, "y": y}) for name, y in series.items()]
    return pl.concat(parts).with_columns(pl.col("y").fill_nan(None))


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    frame = frame_of(adversarial(np.random.default_rng(0)))
    schema = Schema(freq="W")
    return Forecaster(
        horizon=6,
        quantiles=(0.1, 0.5, 0.9),
        schema=schema,
        max_steps=3,
        verbose=False,
        config={"model": {"hidden_dim": 8}},
    ).fit(frame)


def wild(run: Run, seed: int, size: float) -> Run:
    """The run with weights that no training would find."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(w.shape, generator=generator) * size for name, w in run.network().state_dict().items()}
    run.save_network(weights)
    return Run.open(run.folder)


@pytest.mark.parametrize("size", [0.3, 3.0, 30.0])
def test_no_weights_and_no_history_make_an_absurd_forecast(fitted, size):
    run, panel = wild(fitted.run_, int(size), size), fitted.panel_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForecastLimitedWarning)
        frame = forecast_frame(run, panel, first="2022-02-06")
    values = frame.select(LEVELS).to_numpy()
    assert np.isfinite(values).all()
    assert (np.diff(values, axis=1) >= 0).all()
    assert (values >= 0).all()
    typical = run.assembler(panel).target.scaler.typical_largest
    sold = fitted_largest(panel)
    for name, rows in frame.group_by("unique_id"):
        most = rows.select(LEVELS).to_numpy().max()
        assert most <= LARGEST_MULTIPLE * max(sold[str(name[0])], typical)


def fitted_largest(panel: Panel) -> dict[str, float]:
    rows = zip(panel.ids.to_pylist(), panel.offsets[:-1], panel.offsets[1:], strict=True)
    return {name: float(np.nanmax(panel.target[a:b])) for name, a, b in rows}


def test_the_limit_is_ten_times_the_largest_value_so_far():
    series = {"a": np.r_[1.0, 5.0, 2.0, 80.0, np.full(len(WEEKS) - 4, 3.0)], "new": np.zeros(len(WEEKS))}
    panel = Panel.from_frame(frame_of(series), Schema(freq="W"))
    steps = panel.first_step[0] + np.arange(6)
    found = largest_published(panel, np.repeat([0, 1], 6), np.tile(steps, 2), typical_largest=7.0)
    assert found.tolist() == [70, 70, 50, 800, 800, 800, *[70] * 6]  # with fewer than three sales that of others too


def test_what_is_limited_is_counted_and_stays_in_order():
    panel = Panel.from_frame(frame_of({"a": np.full(len(WEEKS), 10.0)}), Schema(freq="W"))
    values = np.array([[[-5.0, 50.0, 100.0], [1.0, 200.0, np.inf]]])
    found, told = within_limits(panel, np.array([0]), panel.last_step, values, 1.0, 0.0)
    assert found.tolist() == [[[0, 50, 100], [1, 100, 100]]]
    assert (told.num_forecasts, told.num_series, told.worst_series) == (1, 1, "a")


def test_what_is_left_out_for_its_plan_is_not_counted():
    rows = frame_of({name: np.full(len(WEEKS), 10.0) for name in "ab"}).with_columns(promo=False)
    later = [WEEKS[-1] + dt.timedelta(weeks=i) for i in (1, 2)]
    plan = [("a", later[0]), ("a", later[1]), ("b", later[0])]
    planned = pl.DataFrame(plan, {"unique_id": pl.String, "ds": rows.schema["ds"]}, orient="row")
    rows = pl.concat([rows, planned.with_columns(promo=pl.lit(True))], how="diagonal")
    panel = Panel.from_frame(rows, Schema(known=["promo"], freq="W"))
    wild, spans = np.full((2, 2, 1), 1e3), ((1, 1), (1, 2))
    for found, told in (
        within_limits(panel, np.array([0, 1]), panel.last_observed, wild, 1.0, 0.0),
        within_limits(panel, np.array([0, 1]), panel.last_observed, wild, 1.0, 0.0, spans),
    ):
        assert (found == 100).all()
        assert (told.num_forecasts, told.num_series, told.worst_series) == (2, 1, "a")


def test_where_nothing_was_ever_sold_the_limit_may_be_none():
    panel = Panel.from_frame(frame_of({"a": np.zeros(len(WEEKS))}), Schema(freq="W"))
    found, told = within_limits(panel, np.array([0]), panel.last_step, np.array([[[0.0, 2.0]]]), 0.0, 0.0)
    assert found.tolist() == [[[0, 0]]]
    assert told.num_forecasts == 1


def test_limited_forecasts_are_told_by_a_warning_and_in_the_file(fitted, tmp_path):
    run = wild(fitted.run_, 1, 30.0)
    with pytest.warns(ForecastLimitedWarning, match="published at that limit") as told:
        frame = forecast_frame(run, fitted.panel_)
    with pytest.warns(ForecastLimitedWarning):
        forecast(run, fitted.panel_, tmp_path / "f.parquet")
    noted = Limited.from_metadata(pq.read_metadata(tmp_path / "f.parquet").metadata)
    assert KEY.encode() in pq.read_metadata(tmp_path / "f.parquet").metadata
    assert f"{noted.num_forecasts:,} forecasts of {noted.num_series:,} series" in str(told[0].message)
    at_limit = frame.filter(pl.col("q0.9") > 0).height
    assert 0 < noted.num_forecasts <= at_limit


def test_alternating_months_no_longer_explode_by_default():
    rng = np.random.default_rng(1)
    months = pl.datetime_range(pl.datetime(2019, 1, 1), pl.datetime(2022, 12, 1), "1mo", eager=True)
    parts = []
    for i in range(40):
        sold = rng.lognormal(rng.uniform(5, 9), 0.4, len(months)).round() * (rng.random(len(months)) > 0.4)
        parts.append(pl.DataFrame({"unique_id": f"i{i}", "ds": months, "y": sold}))
    frame = pl.concat(parts)
    schema = Schema(freq="MS")
    found = Forecaster(horizon=6, schema=schema, max_steps=60, verbose=False).fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ForecastLimitedWarning)  # not even a limit is needed
        forecasts = found.predict()
    largest = dict(frame.group_by("unique_id").agg(pl.max("y")).iter_rows())
    multiple = forecasts["q0.9"].to_numpy() / np.array([largest[name] for name in forecasts["unique_id"]])
    assert multiple.max() < 3
