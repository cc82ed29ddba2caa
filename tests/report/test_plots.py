"""The figures one by one show the numbers of the frames."""

import numpy as np
import polars as pl
import pytest
from report_samples import HORIZON, forecasts, sources, trained, world

from mqcast.errors import ConfigError
from mqcast.report.plots import Plots
from mqcast.report.sources import Sources


@pytest.fixture(scope="module")
def plots() -> Plots:
    return Plots(sources(trained={"good": trained()}))


def line(figure, name: str) -> list[tuple]:
    trace = next(trace for trace in figure.data if trace.name == name)
    return list(zip(trace.x, trace.y, strict=True))


def test_the_evolution_of_a_date_is_its_forecasts_by_cutoff(plots):
    ds = forecasts()["good"]["ds"].unique().sort()[6]
    found = plots.evolution("item_000002", ds)
    part = forecasts()["good"].filter((pl.col("unique_id") == "item_000002") & (pl.col("ds") == ds)).sort("cutoff")
    assert line(found, "good, P50") == list(part.select("cutoff", "q0.5").iter_rows())
    assert len(part) == HORIZON
    actual = world().actuals.filter((pl.col("unique_id") == "item_000002") & (pl.col("ds") == ds))["y"][0]
    assert found.layout.shapes[0].y0 == pytest.approx(actual)
    assert plots.evolution("item_000002", str(ds.date())) == found


def test_a_fan_has_history_quantiles_and_marked_dates(plots):
    frame = forecasts()["good"]
    cutoff = frame["cutoff"].unique().sort()[3]
    found = plots.fan("item_000001", cutoff)
    part = frame.filter((pl.col("unique_id") == "item_000001") & (pl.col("cutoff") == cutoff)).sort("ds")
    assert line(found, "P90") == list(part.select("ds", "q0.9").iter_rows())
    names = {trace.name for trace in found.data}
    assert {"actual", "P10 to P90"} <= names
    assert any(name.startswith("promo_") for name in names)
    assert any(name.startswith("holiday_") for name in names)
    assert max(x for x, _ in line(found, "actual")) == part["ds"].max()


def test_attention_is_a_grid_of_dates_and_horizons(plots):
    heat = plots.attention("item_000001").data[0]
    last = forecasts()["good"]["cutoff"].max()
    assert heat.x[-1] == last
    assert heat.y == tuple(range(1, HORIZON + 1))
    np.testing.assert_allclose(heat.z, [[0.4, 0.6]] * HORIZON)


def test_a_revision_shows_new_weeks_and_earlier_forecasts(plots):
    frame = forecasts()["good"]
    ds = frame["ds"].unique().sort()[6]
    before, after = plots.revision("item_000001", ds).data
    week = str(frame.filter(ds=ds)["cutoff"].max().date())
    assert dict(zip(after.x, after.y, strict=True))[week] == pytest.approx(0.6)
    assert dict(zip(before.x, before.y, strict=True))[week] == 0
    assert sum("forecast" in label for label in after.x) == 2
    with pytest.raises(ConfigError, match="not forecast both"):
        plots.revision("item_000001", ds, frame.filter(ds=ds)["cutoff"].min())


def test_the_other_figures_have_a_line_for_each_model(plots):
    for figure in (plots.by_horizon(), plots.by_lead(), plots.calibration(), plots.width(), plots.volatility()):
        assert {"good", "high"} <= {trace.name for trace in figure.data}
        assert figure.layout.title.text
    assert len(plots.by_demand().data) == 4
    assert len(plots.encodings().data[0].z) == 2  # the channel that never varies is left out
    assert len(plots.learning_curve().data) == 1
    assert plots.findings.counts.items == 12


def test_mistakes_say_what_there_is(plots):
    with pytest.raises(ConfigError, match=r"no item 'item_00001'.*was forecast"):
        plots.fan("item_00001")
    with pytest.raises(ConfigError, match="is no cutoff; they go from"):
        plots.fan("item_000001", "1999-01-03")
    with pytest.raises(ConfigError, match="no model 'goo'"):
        plots.fan("item_000001", model="goo")
    with pytest.raises(ConfigError, match="high is not a trained network"):
        plots.attention("item_000001", model="high")
    bare = Plots(Sources.of({"good": forecasts()["good"].drop("q0.1", "q0.9")}, world().actuals))
    for draw in (bare.width, bare.volatility):
        with pytest.raises(ConfigError, match="two"):
            draw()
