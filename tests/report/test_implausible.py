"""Implausible forecasts are reported on the page and in a warning, and they flatten no figure."""

import math
import warnings

import numpy as np
import polars as pl
import pytest
from report_samples import forecasts, items_of, panel, world

from mqcast.errors import ImplausibleForecastWarning
from mqcast.report.bounds import bounded, bounded_at
from mqcast.report.plots import Plots
from mqcast.report.sources import Sources
from mqcast.report.summary import findings_of
from mqcast.report.write import write_report


def broken(times: float = 1e60) -> pl.DataFrame:
    """P90 of 16 of 576 forecasts so many times as high."""
    is_hit = pl.int_range(pl.len()) % 37 == 3
    return forecasts()["good"].with_columns(
        pl.when(is_hit).then(pl.col("q0.9") * times).otherwise("q0.9").alias("q0.9")
    )


def honest() -> dict[str, pl.DataFrame]:
    return {"good": forecasts()["good"]}


def drawn(figure) -> np.ndarray:
    return np.concatenate([np.array(trace.y, float) for trace in figure.data if trace.y is not None])


def test_the_page_and_a_warning_say_how_many_and_which(tmp_path):
    with pytest.warns(ImplausibleForecastWarning) as caught:
        path = write_report(tmp_path / "page.html", honest() | {"broken": broken()}, world().actuals)
    assert len(caught) == 1
    text = path.read_text()
    notice = text.index("broken: 16 of 576 forecasts, of 12 series, are more than 10 times")
    assert notice < text.index("<nav")
    assert text.index('<section id="implausible"') < text.index('<section id="answer"')


def test_an_honest_page_has_neither(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = write_report(tmp_path / "page.html", honest(), world().actuals, panel=panel())
    assert 'id="implausible"' not in path.read_text()
    assert 'class="warning"' not in path.read_text()


def test_a_level_that_is_far_off_is_noted(tmp_path):
    low = forecasts()["good"].with_columns(pl.col("q0.9") * 0.7)
    with pytest.warns(ImplausibleForecastWarning, match="at or below P90"):
        path = write_report(tmp_path / "page.html", {"low": low}, world().actuals)
    text = path.read_text()
    assert text.count("% of actuals are at or below P90, instead of 90%. Recalibrate these levels") == 1


def test_implausible_items_are_on_the_page_with_the_limit_of_their_axis(tmp_path):
    with pytest.warns(ImplausibleForecastWarning):
        path = write_report(tmp_path / "page.html", honest() | {"broken": broken()}, world().actuals)
    largest = dict(world().actuals.group_by("unique_id").agg(pl.col("y").max()).iter_rows())
    for item in items_of(path.read_text()):
        assert math.isclose(item["limit"], 10 * largest[item["id"]])


@pytest.mark.parametrize("times", [1e6, 1e60, 1e300])
def test_figures_of_all_items_are_measured_by_the_forecasters_who_are_right(times):
    plots = Plots(Sources.of(honest() | {"broken": broken(times)}, world().actuals))
    fair = Plots(Sources.of(honest(), world().actuals))
    for name in ("by_horizon", "by_demand", "width", "by_lead"):
        figure, alone = getattr(plots, name)(), getattr(fair, name)()
        assert np.abs(drawn(figure)).max() <= 1.2 * np.abs(drawn(alone)).max()
        assert any("beyond the axis" in note.text for note in figure.layout.annotations)
        told = [text for trace in figure.data for text in trace.text or ()]
        assert told
        assert all(text.startswith("broken: ") for text in told)


def test_a_fan_goes_by_what_was_sold_and_says_what_lies_beyond():
    found = findings_of(Sources.of({"broken": broken()}, world().actuals)).implausible.rows.row(0, named=True)
    plots = Plots(Sources.of({"broken": broken()}, world().actuals))
    for figure in (
        plots.fan(found["unique_id"], str(found["cutoff"])),
        plots.evolution(found["unique_id"], str(found["ds"])),
    ):
        assert drawn(figure).max() < 10 * found["largest"]
        assert figure.layout.yaxis.range[1] < 10 * found["largest"]
        assert any("beyond the axis" in note.text for note in figure.layout.annotations)


def test_figures_of_plausible_forecasts_are_left_alone():
    plots = Plots(Sources.of(honest(), world().actuals))
    figure = plots.by_horizon()
    before = figure.to_json()
    assert bounded(figure, ()).to_json() == before
    fan = plots.fan(plots.sources.ids[0])
    before = fan.to_json()
    assert bounded_at(fan, 1e9).to_json() == before
    assert bounded_at(fan, 0).to_json() == before
