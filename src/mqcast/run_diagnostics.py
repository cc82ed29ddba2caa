"""Details of a trained run for a report, as plain frames: learning curve, settings, attention, learned positions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from mqcast.data.panel import Panel
from mqcast.data.windows import as_time
from mqcast.forecast.baselines import seasonal_naive
from mqcast.forecast.frames import last_cutoffs
from mqcast.forecast.predict import cutoff_plan, forecast_frame
from mqcast.nn.networks import evaluating
from mqcast.nn.position import LearnedPosition
from mqcast.report.explorer import LEAST_WEIGHT
from mqcast.report.sources import Trained
from mqcast.run import Run
from mqcast.train.records import read_metrics
from mqcast.train.spans import training_spans

NAIVE = "seasonal-naive"
SEEN = (
    "{} was trained on dates that are evaluated here: this shows how well it fits, not how well it forecasts. Train it "
    "up to an earlier date (split.valid_until), or use a backtest."
)


def attention(
    run: Run, panel: Panel, ids: Sequence[Any], first: Any = None, last: Any = None, above: float = 0.0
) -> pl.DataFrame:
    """Attention weights above a bound, for the cutoffs from `first` to `last` and the series forecast from them."""
    plan = cutoff_plan(run, panel, first, last)
    assemble, network = run.assembler(panel).on_windows(plan.config), run.network()
    tables = []
    for name in ids:
        series = panel.index_of(name)
        part = plan.of_series(range(series, series + 1))
        for windows in part.batches() if part else ():
            table = network.explain(assemble(windows), windows.num_fcts).frame(panel, above)
            times = (
                panel.times_at(windows.series, windows.first_fct, 1),
                panel.times_at(windows.series, windows.last_fct, 1),
            )
            begin, end = (panel.axis.dates(time.ravel()) for time in times)
            tables.append(table.filter(pl.col("cutoff").is_between(begin.min(), end.max())))
    return pl.concat(tables).unique(maintain_order=True) if tables else pl.DataFrame()


def encodings(run: Run, panel: Panel, first: Any = None, last: Any = None) -> pl.DataFrame | None:
    """ds, channel, value: learned position codes of the network, or of its first member; None if there are none."""
    network, plan = run.network().members[0], cutoff_plan(run, panel, first, last)
    if not isinstance(network.position, LearnedPosition) or not len(network.position.convolutions):
        return None
    series = int(plan.series[np.argmax(plan.last_fct - plan.first_fct)])
    part = plan.of_series(range(series, series + 1))
    assert part is not None
    batch = run.assembler(panel).on_windows(plan.config)(next(part.batches()))
    with torch.no_grad(), evaluating(network):
        code = network.position(batch)[0][0].numpy()  # (steps, channels)
    times = panel.times_at(batch.series.numpy()[:1], batch.start.numpy()[:1], len(code))[0]
    code, times = code[times >= panel.span[0]], times[times >= panel.span[0]]
    steps, channels = code.shape
    return pl.DataFrame(
        {
            "ds": panel.axis.dates(np.repeat(times, channels)),
            "channel": np.tile(np.arange(channels), steps),
            "value": code.ravel(),
        }
    )


def trained(run: Run, panel: Panel, first: Any, last: Any) -> Trained:
    """The details of a run for a report on its forecasts from these cutoffs."""
    config, network = run.config, run.network()
    facts = {
        "model": config.model.model,
        "members": str(config.model.members),
        "parameters": f"{sum(parameter.numel() for parameter in network.parameters()):,}",
        "seed": str(config.train.seed),
        "trained with": f"mqcast {run.facts['mqcast']}, torch {run.facts['torch']}",
        "data": f"fingerprint {run.facts['panel']}",
    }

    def explain(ids: Sequence[str]) -> pl.DataFrame:
        return attention(run, panel, ids, first, last, LEAST_WEIGHT)

    return Trained(
        metrics=read_metrics(run.metrics) if run.metrics.exists() else (),
        config=config.to_toml(),
        facts=facts,
        explain=explain if config.model.variant.has_attention else None,
        encodings=encodings(run, panel, first, last),
    )


def judged_runs(
    folders: Mapping[str, Path], panel: Panel
) -> tuple[dict[str, pl.DataFrame], dict[str, Trained], tuple[str, ...]]:
    """Forecasts of each run from the cutoffs after its training, next to a seasonal naive forecast; details of the
    runs; and notes of caution. A run that was trained on all dates is evaluated on the last three horizons.
    """
    runs = {name: Run.open(folder) for name, folder in folders.items()}
    frames, details, notes, spans = {}, {}, [], []
    for name, run in runs.items():
        first, last, seen = _cutoffs(run, panel)
        notes += [SEEN.format(name)] if seen else []
        frames[name] = forecast_frame(run, panel, first=first, last=last)
        details[name] = trained(run, panel, first, last)
        spans.append((first, last))
    config = next(iter(runs.values())).config
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    longest = max(run.config.window.horizon for run in runs.values())
    frames.setdefault(NAIVE, seasonal_naive(panel, longest, config.model.quantiles, first=first, last=last))
    return frames, details, tuple(notes)


def _cutoffs(run: Run, panel: Panel) -> tuple[Any, Any, bool]:
    """The first and last cutoff with an observed target, and whether training used targets after the first."""
    recent, last = last_cutoffs(panel, run.config.window.horizon)
    if run.facts["panel"] == panel.fingerprint:
        train, valid = training_spans(panel, run.config)
        until = (valid or train).until
    else:
        date = run.config.split.valid_until
        until = None if date is None else as_time(date, panel.axis)
    is_unseen = until is not None and until <= last
    first = until if until is not None and is_unseen else recent
    dates = panel.axis.dates(np.array([first, last])).to_list()
    return dates[0], dates[1], not is_unseen
