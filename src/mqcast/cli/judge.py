"""Commands that evaluate the forecasts of any forecaster: evaluate, volatility, rank-revisions, report."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import polars as pl
import typer
from rich.console import Console
from rich.table import Table

from mqcast.cli.app import AsJson, app
from mqcast.cli.output import MOST_NAMED, console, print_json, tell
from mqcast.data.export import frames_of
from mqcast.data.joined import joined_name
from mqcast.data.panel import Panel
from mqcast.data.schema import Schema
from mqcast.errors import ConfigError
from mqcast.levels import percentile

if TYPE_CHECKING:
    from mqcast.evaluation.tables import ActualsTable, ForecastTable

Forecasts = Annotated[Path, typer.Argument(help="Parquet or CSV with id, cutoff, date, q0.5, q0.9 …")]
Actuals = Annotated[Path, typer.Argument(help="Parquet or CSV with id, date and target, or a packed panel.")]
Id = Annotated[
    str | None, typer.Option("--id", help="The column of series ids, or several: store,item; default: unique_id.")
]
Time = Annotated[str | None, typer.Option("--time", help="The column of target dates; default: ds.")]
Target = Annotated[str | None, typer.Option("--target", help="The column of demand; default: y.")]
ANY_WIDTH = 10_000  # characters
Missing = Annotated[
    str,
    typer.Option(
        help="Forecasts of dates without an actual: 'warn' leaves them out and counts them, 'drop' says nothing, "
        "'raise' is an error."
    ),
]


@app.command("evaluate")
def evaluate_command(
    forecasts: Forecasts,
    actuals: Actuals,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Group by horizon, cutoff, date, id, another column, or a static column of the panel; repeatable."
        ),
    ] = None,
    season: Annotated[int | None, typer.Option(min=1, help="Steps per season, for MASE.")] = None,
    missing: Missing = "warn",
    id: Id = None,
    time: Time = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Measure the accuracy of any forecasts: quantile losses, coverage, width, WAPE, bias, MASE; of totals by span.

    Example: [bold]mqcast evaluate forecasts.parquet panel --by horizon[/bold]
    """
    from mqcast.evaluation import evaluate

    judged = Judged.read(forecasts, actuals, id, time, target)
    static = frames_of(Panel.open(actuals)).static if by and is_panel(actuals) else None
    options: dict[str, Any] = {"season": season, "missing": missing, "static": static}
    metrics = evaluate(judged.forecasts, judged.actuals, by or (), **options)
    if as_json:
        print_json({"metrics": metrics, **judged.facts()})
    elif by or "first" in metrics.columns:
        keys = [*(("first", "last") if "first" in metrics.columns else ()), *(by or ())]
        levels = [name.removeprefix("qrisk_pooled_q") for name in metrics.columns if name.startswith("qrisk_pooled_q")]
        short = {f"qrisk_pooled_q{level}": percentile(float(level)) for level in levels}
        short |= {f"coverage_q{level}": f"≤{percentile(float(level))}" for level in levels}
        kept = [name for name in (*keys, "rows", "left_out", *short, "wape", "bias", "mase") if name in metrics.columns]
        show(metrics.select(kept).rename(short), f"Accuracy by {', '.join(keys)}: quantile risk, coverage, …")
    else:
        show(metrics.transpose(include_header=True, header_name="metric", column_names=["value"]), "Accuracy")


@app.command("volatility")
def volatility_command(
    revisions: Forecasts,
    actuals: Actuals,
    compare: Annotated[
        Path | None,
        typer.Option(help="Forecasts of a baseline, to show by how much excess volatility is reduced."),
    ] = None,
    level: Annotated[
        list[float] | None, typer.Option(help="Quantile level; repeat the option for more. Default: 0.5 and 0.9.")
    ] = None,
    cdf: Annotated[
        str, typer.Option(help="'gamma': fitted to two quantiles; 'quantiles': linear between all quantiles.")
    ] = "gamma",
    weights: Annotated[
        str | None, typer.Option(help="'demand': weight items by their earlier sales; default: all items equal.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Bootstrap resamples for the 95 % intervals.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    missing: Missing = "warn",
    id: Id = None,
    time: Time = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Measure whether revisions of forecasts are justified: martingale volatility, with intervals.

    Example: [bold]mqcast volatility revisions.parquet panel --compare other.parquet[/bold]
    """
    from mqcast.evaluation import volatility

    judged = Judged.read(revisions, actuals, id, time, target)
    options: dict[str, Any] = {"cdf": cdf, "weights": weights, "resamples": resamples, "seed": seed, "missing": missing}
    levels = tuple(level or (0.5, 0.9))
    result = volatility(judged.forecasts, judged.actuals, levels, **options)
    other = None if compare is None else volatility(judged.also(compare), judged.actuals, levels, **options)
    reduction = None if other is None else result.reduction(other)
    if as_json:
        tables = {"summary": result.summary, "process": result.process, "reduction": reduction}
        print_json({name: table for name, table in tables.items() if table is not None} | judged.facts())
        return
    columns = ["level", "excess", "lo", "hi", "reading", "coverage", "targets"]
    show(result.summary.select(columns), "Excess volatility: V at the outcome, 95 % interval; 0 is best")
    if other is not None and reduction is not None:
        show(other.summary.select(columns), f"The same for {compare}")
        show(
            reduction.select("level", "reduction", "lo", "hi", "difference"),
            "Reduction of excess volatility compared with the baseline",
        )


@app.command("exceptions", hidden=True, deprecated=True, help="Renamed: use [bold]mqcast rank-revisions[/bold].")
@app.command("rank-revisions")
def rank_revisions_command(
    revisions: Forecasts,
    actuals: Actuals,
    top: Annotated[int, typer.Option(min=1, help="How many to show.")] = 20,
    level: Annotated[float, typer.Option(help="Quantile level.")] = 0.5,
    rank: Annotated[str, typer.Option(help="Rank by 'excess' volatility, or by 'units' of demand.")] = "excess",
    per: Annotated[str, typer.Option(help="One row per 'target' (item and date), or per 'item'.")] = "target",
    id: Id = None,
    time: Time = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Rank the items and dates with the most unexplained revisions of their forecasts.

    Example: [bold]mqcast rank-revisions revisions.parquet panel --rank units --top 50[/bold]
    """
    from mqcast.evaluation import rank_revisions

    judged = Judged.read(revisions, actuals, id, time, target)
    options: dict[str, Any] = {"rank": rank, "per": per}
    ranked = rank_revisions(judged.forecasts, judged.actuals, level, top, **options)
    if as_json:
        print_json({"ranked": ranked, **judged.facts()})
    else:
        hidden = ("moved", "lowest", "highest", "largest", "revised_at", "forecasts")
        shown = ranked.drop([name for name in hidden if name in ranked.columns]).rename(
            {"back_and_forth": "unexplained"}
        )
        show(shown, "Forecasts with the most unexplained revisions")


@app.command("report")
def report_command(
    given: Annotated[
        list[Path],
        typer.Argument(
            metavar="[NAME=]RUN|FORECASTS... [PANEL|ACTUALS]",
            help="Trained runs or files of forecasts (Parquet, CSV), each with a name of yours if you like: "
            "ours=backtest.parquet; last, a packed panel or a file of actuals.",
        ),
    ],
    panel: Annotated[
        Path | None, typer.Option(help="The panel or the actuals, if not given as the last argument.")
    ] = None,
    compare: Annotated[list[Path] | None, typer.Option(help="Another run or file; repeat the option for more.")] = None,
    baseline: Annotated[str | None, typer.Option(help="The forecaster to compare with; default: the last.")] = None,
    item: Annotated[
        list[str] | None, typer.Option(help="An item to look at, beside those that the report chooses; repeatable.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    id: Id = None,
    time: Time = None,
    target: Target = None,
    as_json: AsJson = False,
) -> None:
    """Write a report on one or several runs or files of forecasts, as one HTML page that works offline.

    A run is evaluated at the cutoffs after its training data, next to a seasonal naive forecast. If there are no such
    cutoffs, the report shows how well the run fits its training data. A folder written by [bold]Forecaster.save[/bold]
    contains its own panel.

    Examples: [bold]mqcast report runs/first --panel panel[/bold],
    [bold]mqcast report runs/mqt runs/mqcnn panel --out report.html[/bold],
    [bold]mqcast report ours=backtest.parquet theirs=other.parquet panel --item A12[/bold]
    """
    from mqcast.evaluation.reading import names_in
    from mqcast.report.write import write_report

    paths, data = _with_actuals(given, panel)
    packed = Panel.open(data) if is_panel(data) else None
    known, given_names = actuals_in(data, id, time, target)
    forecasts, trained, notes = _forecasts_of(_named([*paths, *(compare or [])]), packed, data)
    names = names_in(forecasts, **given_names)
    schema = Schema(id=names.id, time=names.time, target=names.target)
    shown = title or ", ".join(forecasts)
    options: dict[str, Any] = {"baseline": baseline, "trained": trained, "notes": notes, "title": shown}
    options["items"] = item or ()
    write_report(out, forecasts, known, schema=schema, panel=packed, **options)
    facts: dict[str, Any] = {"report": str(out), "notes": notes}
    if as_json:
        facts["forecasts"] = _facts_of(forecasts, known, schema)
    tell(as_json, facts, "\n".join([*notes, f"the report is {out}"]))


def _facts_of(forecasts: dict[str, Any], known: Any, schema: Schema) -> dict[str, Any]:
    """`Judged.facts` of each forecaster."""
    from mqcast.evaluation.reading import actuals_table, forecast_tables, names_in

    names = names_in(forecasts, schema)
    observed = actuals_table(known, names)
    return {name: Judged(table, observed).facts() for name, table in forecast_tables(forecasts, names).items()}


def _with_actuals(given: list[Path], panel: Path | None) -> tuple[list[Path], Path]:
    """Runs and forecasts, and the panel or actuals to evaluate them with."""
    if panel is not None:
        return given, panel
    name, last = _split(given[-1])
    if len(given) > 1 and name is None and not _is_run(last):
        return given[:-1], last
    first = _split(given[0])[1]
    if is_panel(first / "panel"):
        return given, first / "panel"
    raise ConfigError(
        f"there are no actuals to evaluate {first} with; give --panel, a packed panel or a file of actuals"
    )


def _split(given: Path) -> tuple[str | None, Path]:
    """The name of one's own, if there is one, and the path: `ours=backtest.parquet`."""
    own, sign, rest = str(given).partition("=")
    if not sign or given.exists():
        return None, given
    if not own or not rest:
        raise ConfigError(f"{str(given)!r} is no name and path; write name=path, such as ours=backtest.parquet")
    return own, Path(rest)


def _named(given: list[Path]) -> dict[str, Path]:
    """Runs and files by name: one's own, or that of the run or file."""
    named: dict[str, Path] = {}
    for own, path in map(_split, given):
        name = own or (path.name if _is_run(path) else path.stem)
        if name in named:
            raise ConfigError(f"two runs or files are called {name!r}; give one of them a name: other={path}")
        named[name] = path
    return named


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in ("run.json", "model.json", "forecaster.json"))


def _forecasts_of(paths: dict[str, Path], panel: Panel | None, data: Path) -> tuple[dict[str, Any], Any, Any]:
    """Frames by name, details of trained runs, and notes. A seasonal naive forecast is added to runs."""
    runs = {name: path for name, path in paths.items() if _is_run(path)}
    if not runs:
        return dict(paths), {}, ()
    if panel is None:
        raise ConfigError(
            f"{next(iter(runs.values()))} is a run and needs a packed panel to forecast from, but {data} is not a panel"
        )
    from mqcast.forecaster import Forecaster
    from mqcast.run_diagnostics import SEEN, judged_runs

    networks = {name: path for name, path in runs.items() if (path / "run.json").exists()}
    frames, trained, notes = judged_runs(networks, panel) if networks else ({}, {}, ())
    for name, path in runs.items():
        if name not in networks:
            frames[name] = Forecaster.load(path, panel).revisions(panel)
            notes = (*notes, SEEN.format(name))
    ordered = {name: frames.get(name, path) for name, path in paths.items()}
    return ordered | {name: frame for name, frame in frames.items() if name not in ordered}, trained, notes


@dataclass(frozen=True)
class Judged:
    """Forecasts and the actuals that they are judged by, read once."""

    forecasts: "ForecastTable"
    actuals: "ActualsTable"

    @classmethod
    def read(cls, forecasts: Path, actuals: Path, id: str | None, time: str | None, target: str | None) -> "Judged":
        from mqcast.evaluation.reading import actuals_table, forecast_table, names_in

        known, given = actuals_in(actuals, id, time, target)
        names = names_in(forecasts, **given)
        return cls(forecast_table(forecasts, names), actuals_table(known, names))

    def also(self, forecasts: Path) -> "ForecastTable":
        """Other forecasts with the same names of columns."""
        from mqcast.evaluation.reading import forecast_table

        return forecast_table(forecasts, self.forecasts.names)

    def facts(self) -> dict[str, Any]:
        """How many forecasts, of how many series, from which cutoffs, and those that no actual judges."""
        from mqcast.evaluation.tables import actuals_of

        table = self.forecasts
        has_none = np.isnan(actuals_of(table, self.actuals, "drop", may_be_none=True)[table.trajectory])
        left_out = np.setdiff1d(table.item, table.item[~has_none])
        cutoffs = table.clock.dates(np.unique(table.cutoff)).to_list()
        return {
            "rows": table.num_rows,
            "series": len(table.ids),
            "cutoffs": len(cutoffs),
            "first_cutoff": str(cutoffs[0]),
            "last_cutoff": str(cutoffs[-1]),
            "without_actual": int(has_none.sum()),
            "left_out": {"series": len(left_out), "first": [table.ids[i] for i in left_out[:MOST_NAMED]]},
        }


def actuals_in(
    path: Path, id: str | None, time: str | None, target: str | None
) -> tuple[pl.DataFrame | Path, dict[str, Any]]:
    """The actuals of a file or of a packed panel, and the names of its columns."""
    names = {"id": joined_name(id), "time": time, "target": target}
    if not is_panel(path):
        return path, names
    if any(names.values()):
        raise ConfigError("a panel knows the names of its columns; leave out --id, --time and --target")
    panel = Panel.open(path)
    schema = panel.schema
    return frames_of(panel).rows, {"id": schema.id, "time": schema.time, "target": schema.target}


def is_panel(path: Path) -> bool:
    return (path / "panel.json").exists()


def show(table: pl.DataFrame, title: str) -> None:
    shown = Table(title=title, title_justify="left")
    for name, kind in table.schema.items():
        shown.add_column(name, justify="right" if kind.is_numeric() else "left", no_wrap=True)
    for row in table.rows():
        shown.add_row(*(_cell(value) for value in row))
    (console if console.is_terminal else Console(width=ANY_WIDTH)).print(shown)  # no line breaks in files and pipes


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value).removesuffix(" 00:00:00")
