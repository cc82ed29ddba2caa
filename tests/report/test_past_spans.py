"""The report's section on totals: what evaluate says of them, of the cutoffs that the last fit had not seen."""

import numpy as np
import polars as pl
import pytest
from report_samples import inside, world

from mqcast import Forecaster, evaluate
from mqcast.joint import Dependence, span_quantiles
from mqcast.report.write import write_report

SPANS = [(1, 2), (1, 4)]


def oracle() -> pl.DataFrame:
    return world().oracle_forecasts((0.1, 0.5, 0.9), first=40, last=50)


def test_a_report_shows_how_good_totals_are_by_span_and_forecaster(tmp_path):
    ways = {"joined": 0.3, "summed": 1 - 1e-6}
    totals = {name: span_quantiles(oracle(), SPANS, Dependence.constant(4, share)) for name, share in ways.items()}
    page = write_report(tmp_path / "report.html", {"oracle": oracle()}, world().actuals, totals=totals).read_text()
    judged = evaluate(totals, world().actuals)
    drawn = next(one for one in inside(page, "figures") if {trace["name"] for trace in one["data"]} == set(ways))
    for trace in drawn["data"]:
        expected = judged.filter(model=trace["name"]).sort("last")["coverage_q0.9"]
        np.testing.assert_allclose(trace["y"], expected)
        assert trace["x"] == ["steps 1 to 2", "steps 1 to 4"]
    assert "Totals over several steps" in page
    plain = write_report(tmp_path / "plain.html", {"oracle": oracle()}, world().actuals).read_text()
    assert "Totals over several steps" not in plain


@pytest.mark.parametrize(("config", "has_totals"), [({"refit": True}, True), ({"refit": False}, False)])
def test_a_backtest_reports_totals_if_its_network_has_learnt_how_weeks_go_together(config, has_totals, tmp_path):
    config = {"model": {"hidden_dim": 4, "spans": [[1, 2]] if has_totals else []}, "train": config}
    chosen = {"config": config, "max_steps": 3, "members": 1, "verbose": False}
    forecaster = Forecaster("mqcnn", 4, (0.1, 0.5, 0.9), world().schema, **chosen)
    weeks = world().frame["ds"].unique().sort()
    forecaster.backtest(world().frame, weeks[44], weeks[49], refit=3, static=world().static, events=world().events)
    page = forecaster.report(tmp_path / "report.html").read_text()
    assert ('id="spans"' in page) == has_totals
    totals = forecaster.plot.sources.totals
    names = ["mqcnn, by paths", "mqcnn, by heads", "mqcnn, summed quantiles"]
    assert list(totals) == (names if has_totals else [])
    for frame in totals.values():
        assert frame["cutoff"].unique().sort().to_list() == weeks[47:50].to_list()
