"""The demonstration: a simulated retailer, two networks trained on it, every creation time judged beside the oracle."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mqcast.data.panel import Panel, pack
from mqcast.data.summary import Summary, summarise
from mqcast.evaluation.slices import promotions
from mqcast.forecaster import Forecaster
from mqcast.models import BASELINE, TrainOptions, get
from mqcast.models.protocol import CanDescribe
from mqcast.report.sources import ALL_EVENTS, Sources, Trained
from mqcast.report.summary import Findings
from mqcast.report.write import write_sources
from mqcast.simulate import World, lognormal_world

NUM_WEEKS, HORIZON, LEVELS = 156, 13, (0.5, 0.9)
MINUTES = 3.5  # of training for each network, unless a number of steps is said
NETWORKS = {"MQTransformer": "mqt", "MQ-CNN": "mqcnn"}
ORACLE, NAIVE, PROMOTED = "best possible", "same week last year", "Promotions: all"
FIRST_TEST, LAST_TEST = NUM_WEEKS - 3 * HORIZON, NUM_WEEKS - 1


@dataclass(frozen=True)
class DemoResult:
    panel_folder: str
    report: str
    page: str
    summary: Summary
    scored: str
    table: list[dict[str, float | str]]
    seconds: float


def run_demo(
    folder: Path, num_items: int, seed: int, steps: int | None = None, tell: Callable[[str], None] = lambda text: None
) -> DemoResult:
    """Build, train, forecast, judge and write; `tell` hears what is being done. Without `steps`, training is limited by
    time."""
    started = time.perf_counter()
    tell(f"simulating {num_items:,} items over {NUM_WEEKS} weeks, with promotions and holidays that move")
    world = lognormal_world(num_items, NUM_WEEKS, HORIZON, seed)
    panel = pack(world.frame, folder / "panel", world.schema, world.static, world.events)
    forecasts, trained = {ORACLE: world.oracle_forecasts(LEVELS, FIRST_TEST, LAST_TEST)}, {}
    for name, model in NETWORKS.items():
        tell(f"training {name} on the weeks before {_date(world, FIRST_TEST)}")
        forecasts[name], trained[name] = _forecast(panel, world, model, folder / "runs" / model, steps, seed)
    forecasts[NAIVE] = _naive(panel, world)
    tell("judging every creation time")
    report, page = folder / "report.html", folder / "page.html"
    findings = _write(report, world, panel, forecasts, trained)
    tell("forecasting the coming weeks")
    Forecaster.load(folder / "runs" / NETWORKS["MQTransformer"], panel).page(page, cutoff=_date(world, LAST_TEST))
    scored = f"{num_items:,} items × {LAST_TEST - FIRST_TEST + 1} creation times × {HORIZON} weeks ahead"
    seconds = time.perf_counter() - started
    return DemoResult(
        str(folder / "panel"), str(report), str(page), summarise(panel), scored, _table(findings), seconds
    )


def _date(world: World, week: int) -> str:
    return str(world.frame["ds"].unique().sort()[week].date())


def _forecast(
    panel: Panel, world: World, model: str, folder: Path, steps: int | None, seed: int
) -> tuple[pl.DataFrame, Trained]:
    """By a network that has seen no target after the first test week; and what it tells of itself."""
    until, last = _date(world, FIRST_TEST), _date(world, LAST_TEST)
    options = TrainOptions(
        horizon=HORIZON,
        quantiles=LEVELS,
        seed=seed,
        max_steps=steps,
        max_minutes=MINUTES if steps is None else None,
        until=until,
        folder=folder,
        resume=True,
    )
    fitted = get(model).fit(panel, options)
    assert isinstance(fitted, CanDescribe)
    return fitted.forecast(panel, until, last), fitted.describe(panel, until, last)


def _naive(panel: Panel, world: World) -> pl.DataFrame:
    naive = get(BASELINE).fit(panel, TrainOptions(horizon=HORIZON, quantiles=LEVELS))
    return naive.forecast(panel, _date(world, FIRST_TEST), _date(world, LAST_TEST))


def _write(
    path: Path, world: World, panel: Panel, forecasts: Mapping[str, pl.DataFrame], trained: Mapping[str, Trained]
) -> Findings:
    flags = ["promo_display", "promo_coupon"]
    promoted = world.frame.select("unique_id", "ds", pl.any_horizontal(flags).alias(PROMOTED))
    sources = Sources.of(
        forecasts,
        world.actuals,
        panel=panel,
        baseline="MQ-CNN",
        oracle=ORACLE,
        trained=trained,
        slices=promotions(promoted, [PROMOTED]),
    )
    note = "A simulated retailer, whose best possible forecast is known; all of it after the weeks trained on."
    return write_sources(path, sources, "mqcast: the demonstration", (note,))


def _table(findings: Findings) -> list[dict[str, float | str]]:
    """One row a forecaster: quantile risk, overall and by slice, regret to the oracle, excess volatility."""
    parts = {(row["model"], row["slice"]): row["qrisk_pooled_q0.5"] for row in findings.slices.iter_rows(named=True)}
    scores = {score.model: score for score in findings.scores}
    rows = []
    for name, score in scores.items():
        row: dict[str, float | str] = {"forecaster": name}
        row |= {f"P{level * 100:.0f}": score.risk[level] for level in LEVELS}
        row |= {"P50 promotions": parts[name, PROMOTED], "P50 peaks": parts[name, ALL_EVENTS]}
        row["regret P50"] = score.risk[0.5] / scores[ORACLE].risk[0.5] - 1
        for one in findings.excess:
            if one.model == name:
                values = {"": one.excess, " lo": one.lo, " hi": one.hi}
                row |= {f"V P{one.level * 100:.0f}{end}": value for end, value in values.items() if value is not None}
        rows.append(row)
    return rows


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
