"""The demonstration: a simulated retailer, two networks trained on it, every creation time judged beside the oracle."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mqcast.data.panel import Panel, pack
from mqcast.data.summary import Summary, summarise
from mqcast.datasets import World, lognormal_world
from mqcast.defaults import settings_for
from mqcast.evaluation import Volatility, evaluate, loss_by_lead, volatility
from mqcast.evaluation.slices import peaks, promotions
from mqcast.report.evolution import loss_by_lead_figure, volatility_figure
from mqcast.report.page import PageTable, write_page

NUM_WEEKS, HORIZON, LEVELS = 156, 13, (0.5, 0.9)
NETWORKS = {"MQTransformer": "mqt", "MQ-CNN": "mqcnn"}
ORACLE, NAIVE = "best possible", "same week last year"
FIRST_TEST, LAST_TEST = NUM_WEEKS - 3 * HORIZON, NUM_WEEKS - 1


@dataclass(frozen=True)
class DemoResult:
    panel_folder: str
    report: str
    summary: Summary
    scored: str
    table: list[dict[str, float | str]]
    seconds: float


def run_demo(
    folder: Path, num_items: int, seed: int, steps: int, tell: Callable[[str], None] = lambda text: None
) -> DemoResult:
    """Build, train, forecast, judge and write; `tell` hears what is being done."""
    started = time.perf_counter()
    tell(f"simulating {num_items:,} items over {NUM_WEEKS} weeks, with promotions and holidays that move")
    world = lognormal_world(num_items, NUM_WEEKS, HORIZON, seed)
    panel = pack(world.frame, folder / "panel", world.schema, world.static, world.events)
    forecasts = {ORACLE: world.oracle_forecasts(LEVELS, FIRST_TEST, LAST_TEST)}
    for name, model in NETWORKS.items():
        tell(f"training {name} on the weeks before {_date(world, FIRST_TEST)}")
        forecasts[name] = _forecast(panel, world, model, folder / "runs" / model, steps, seed)
    forecasts[NAIVE] = _naive(panel, world)
    tell("judging every creation time")
    table, judged = _judge(world, forecasts)
    scored = f"{num_items:,} items × {LAST_TEST - FIRST_TEST + 1} creation times × {HORIZON} weeks ahead"
    report = _write(folder / "report.html", table, judged, world, forecasts, scored)
    seconds = time.perf_counter() - started
    return DemoResult(str(folder / "panel"), str(report), summarise(panel), scored, table, seconds)


def _date(world: World, week: int) -> str:
    return str(world.frame["ds"].unique().sort()[week].date())


def _forecast(panel: Panel, world: World, model: str, folder: Path, steps: int, seed: int) -> pl.DataFrame:
    """By a network that has seen no target after the first test week."""
    from mqcast.forecast.predict import forecast_frame
    from mqcast.run import exists
    from mqcast.train.loop import fit
    from mqcast.train.records import progress

    until = _date(world, FIRST_TEST)
    changes = {"split": {"train_until": until, "valid_until": until}, "train": {"max_steps": steps, "seed": seed}}
    settings = settings_for(panel, model, HORIZON, LEVELS, changes)
    with progress(quiet=False) as listeners:
        run = fit(panel, settings, folder, resume=exists(folder), listeners=listeners)
    return forecast_frame(run, panel, first=until, last=_date(world, LAST_TEST))


def _naive(panel: Panel, world: World) -> pl.DataFrame:
    from mqcast.forecast.baselines import seasonal_naive

    first, last = _date(world, FIRST_TEST), _date(world, LAST_TEST)
    return seasonal_naive(panel, HORIZON, LEVELS, first=first, last=last)


def _judge(
    world: World, forecasts: Mapping[str, pl.DataFrame]
) -> tuple[list[dict[str, float | str]], dict[str, Volatility]]:
    """One row a forecaster: quantile risk, overall and by slice, regret to the oracle, excess volatility."""
    actuals, flags = world.actuals, ["promo_display", "promo_coupon"]
    promoted = world.frame.select("unique_id", "ds", promotions=pl.any_horizontal(flags))
    events = world.events.select("ds", peaks=pl.any_horizontal(pl.exclude("ds")))
    slices = [promotions(promoted, ["promotions"]), peaks(events, ["peaks"])]
    accuracy = evaluate(forecasts, actuals, slices=slices)
    judged = {name: volatility(frame, actuals, LEVELS, resamples=500) for name, frame in forecasts.items()}
    risk = {(row["model"], row["slice"]): row for row in accuracy.iter_rows(named=True)}
    rows = []
    for name in forecasts:
        best, mine = risk[ORACLE, "Overall"], risk[name, "Overall"]
        row: dict[str, float | str] = {"forecaster": name}
        row |= {f"P{level * 100:.0f}": mine[f"qrisk_pooled_q{level:g}"] for level in LEVELS}
        row |= {f"P50 {part}": risk[name, part]["qrisk_pooled_q0.5"] for part in ("promotions", "peaks")}
        row["regret P50"] = mine["qrisk_pooled_q0.5"] / best["qrisk_pooled_q0.5"] - 1
        for level, excess in zip(LEVELS, judged[name].summary.iter_rows(named=True), strict=True):
            row |= {f"V P{level * 100:.0f}": excess["excess"], f"V P{level * 100:.0f} lo": excess["lo"]}
            row[f"V P{level * 100:.0f} hi"] = excess["hi"]
        rows.append(row)
    return rows, judged


def accuracy_rows(table: list[dict[str, float | str]]) -> list[list[str]]:
    """Cells as a person reads them."""
    risks = ("P50", "P90", "P50 promotions", "P50 peaks")
    return [
        [str(row["forecaster"]), *(f"{row[name]:.3f}" for name in risks), f"{row['regret P50']:.1%}"] for row in table
    ]


def volatility_rows(table: list[dict[str, float | str]]) -> list[list[str]]:
    return [
        [str(row["forecaster"])]
        + [f"{row[f'V {p}']:.3f} ({row[f'V {p} lo']:.3f} to {row[f'V {p} hi']:.3f})" for p in ("P50", "P90")]
        for row in table
    ]


ACCURACY = ("forecaster", "P50", "P90", "P50, promotions", "P50, peaks", "regret, P50")
VOLATILITY = ("forecaster", "P50 (95 %)", "P90 (95 %)")


def _write(
    path: Path,
    table: list[dict[str, float | str]],
    judged: Mapping[str, Volatility],
    world: World,
    forecasts: Mapping[str, pl.DataFrame],
    scored: str,
) -> Path:
    rows = accuracy_rows(table)
    best = {i: [min((row[i] for row in rows[1:]), key=float)] for i in range(1, 5)}
    risk = "Quantile risk 2 Σ loss / Σ demand: lower is better, and in the long run none is below the oracle's."
    excess = "V at the outcome, with 95 % intervals: 0 is best; above it revisions revert, below it they go on."
    pages = [
        PageTable("Who forecasts best", risk, ACCURACY, rows, best),
        PageTable("Whose forecasts jump without cause", excess, VOLATILITY, volatility_rows(table), {}),
    ]
    losses = loss_by_lead({name: frame for name, frame in forecasts.items() if name != NAIVE}, world.actuals, LEVELS)
    figures = {
        "Martingale volatility by steps to go": volatility_figure({name: v.process for name, v in judged.items()}),
        "Quantile loss by steps to go": loss_by_lead_figure(losses),
    }
    intro = [f"A simulated retailer whose best possible forecast is known: {scored}, all after the weeks trained on."]
    return write_page(path, "mqcast: the demonstration", intro, pages, figures)
