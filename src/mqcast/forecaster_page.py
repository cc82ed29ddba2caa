"""The page on the coming steps of a fitted forecaster."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from mqcast.coming import MOST_USUAL, basis_of, heard, learnt_in_words, totals_of_groups
from mqcast.data.panel import Panel
from mqcast.data.source import read_table
from mqcast.joint.dependence import Dependence
from mqcast.joint.spans import spans_of
from mqcast.joint_forecasts import Asked, usual_spans
from mqcast.report.coming_page import write_coming
from mqcast.report.coming_spans import Ahead

if TYPE_CHECKING:
    from mqcast.forecaster import Forecaster


def write_page(
    forecaster: "Forecaster[Any]",
    path: str | Path,
    panel: Panel,
    *,
    cutoff: Any = None,
    previous: Any = None,
    spans: Any = None,
    title: str | None = None,
) -> Any:
    """Write the page of a fitted forecaster for a panel, and return the forecasts that are on it."""
    model, options = forecaster._fitted_as_
    chosen = spans
    if spans is None:
        chosen = usual_spans(forecaster.fitted_, options.horizon) if panel.num_series <= MOST_USUAL else ()
    asked = Asked(options.horizon, spans=chosen) if chosen not in ((), []) else None
    forecasts, warned = heard(lambda: forecaster.predict(panel, cutoff=cutoff))
    steps = read_table(forecasts)
    is_new, last = panel is not forecaster.panel_, steps["cutoff"].max()
    basis = basis_of(model, options, forecaster.fitted_, panel, is_new, last, warned)
    ahead = None
    if asked is not None:
        ahead = _ahead(asked, steps, panel, forecaster._dependence(panel, None if cutoff == "each" else cutoff))
    write_coming(path, forecasts, panel, basis, previous=previous, ahead=ahead, title=title, seed=forecaster.seed)
    return forecasts


def _ahead(asked: Asked, steps: pl.DataFrame, panel: Panel, dependence: Dependence) -> Ahead:
    """Totals over spans of a forecast, of items and of groups."""
    items: Any = asked.of(steps, dependence, panel)
    spans = sorted(spans_of(asked.spans), key=lambda span: span[::-1])
    return Ahead(items, totals_of_groups(steps, spans, dependence, panel), learnt_in_words(dependence))
