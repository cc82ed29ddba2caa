"""Commands that forecast: forecast, revisions, backtest, what-if, page."""

import io
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from mqcast.cli.app import (
    AsJson,
    Changes,
    Config,
    Device,
    Horizon,
    Model,
    Packed,
    Preset,
    Processes,
    Quantile,
    app,
    in_processes,
    progress,
    said_layers,
    setting_of,
    train_options,
)
from mqcast.cli.output import facts_of_forecasts, tell
from mqcast.data.panel import Panel
from mqcast.data.written import csv_of
from mqcast.durable import write_file
from mqcast.errors import ConfigError
from mqcast.forecast.ends import only
from mqcast.joint.paths import Paths
from mqcast.joint.spans import span_of
from mqcast.joint_forecasts import Asked, dependence_for
from mqcast.launch import is_first
from mqcast.models import DEFAULT
from mqcast.models.files import horizon_of, open_model
from mqcast.models.protocol import CanWrite, FittedModel
from mqcast.settings.merge import tables_of

Trained = Annotated[Path, typer.Argument(help="A trained run.")]
Out = Annotated[Path, typer.Argument(help="The file to write, .parquet or .csv.")]


@app.command("forecast")
def forecast_command(
    run: Trained,
    panel: Packed,
    out: Out,
    first: Annotated[str | None, typer.Option(help="First cutoff; left out: the last cutoff only.")] = None,
    last: Annotated[str | None, typer.Option(help="Last cutoff; left out: the last observation.")] = None,
    cutoff: Annotated[
        str | None, typer.Option(help="The only cutoff; 'each': each series from its own last observation.")
    ] = None,
    id: Annotated[
        list[str] | None, typer.Option("--id", help="Forecast only this series; repeat the option for more.")
    ] = None,
    paths: Annotated[
        int | None, typer.Option(help="Write so many joint paths of all steps in place of quantiles.")
    ] = None,
    span: Annotated[
        list[str] | None, typer.Option(help="Write quantiles of totals: first and last step, 1-4; repeatable.")
    ] = None,
    spans_by: Annotated[
        str | None, typer.Option(help="Totals by 'heads', those that the network has learnt, or by 'paths'.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="A static column; paths of series of one group go together.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of paths and totals.")] = 0,
    processes: Processes = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Forecast from the panel's last observation, or from every cutoff between two dates.

    After an interruption, the same command continues where it stopped.

    Examples: [bold]mqcast forecast runs/first panel forecasts.parquet --first 2024-01-07 --last 2024-06-30[/bold],
    [bold]mqcast forecast runs/first panel two.parquet --cutoff each --id A12 --id A17[/bold],
    [bold]mqcast forecast runs/first panel totals.parquet --span 1-4 --span 1-8[/bold]
    """
    table_file(out)
    if (cutoff or id) and (first or last):
        raise ConfigError("--cutoff and --id forecast from one cutoff; leave out --first and --last")
    joint: dict[str, Any] = {}
    if paths is not None or span or spans_by is not None or group is not None:
        spans = [span_of(text) for text in span] if span else None
        joint = {"paths": paths, "spans": spans, "group": group, "seed": seed, "spans_by": spans_by}
    if id or cutoff == "each":
        _forecast_some(run, panel, out, cutoff, id, as_json, joint)
    else:
        _forecast(run, panel, out, cutoff or first, cutoff or last, processes, device, as_json, joint)


@app.command("revisions")
def revisions_command(
    run: Trained,
    panel: Packed,
    out: Out,
    start: Annotated[str, typer.Option(help="First cutoff.")],
    end: Annotated[str | None, typer.Option(help="Last cutoff; left out: the last observation.")] = None,
    processes: Processes = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Forecast from every cutoff between two dates in one pass, to show how the forecast of each date was revised.

    Example: [bold]mqcast revisions runs/first panel revisions.parquet --start 2024-01-07[/bold]
    """
    _forecast(run, panel, table_file(out), start, end, processes, device, as_json)


@app.command("backtest")
def backtest_command(
    panel: Packed,
    out: Out,
    horizon: Horizon = None,
    model: Model = None,
    quantile: Quantile = None,
    start: Annotated[str | None, typer.Option(help="First cutoff; left out: three horizons before the last.")] = None,
    end: Annotated[
        str | None, typer.Option(help="Last cutoff; left out: the last one with an observed target.")
    ] = None,
    refit: Annotated[int | None, typer.Option(min=1, help="Train again after this many cutoffs.")] = None,
    preset: Preset = None,
    config: Config = None,
    set: Changes = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train on what was known at the first cutoff, then forecast from every cutoff.

    Example: [bold]mqcast backtest panel backtest.parquet --horizon 13 --start 2024-01-07 --refit 13[/bold]
    """
    from mqcast.forecaster import Forecaster

    table_file(out)
    layers = said_layers(config, set, horizon=horizon, model=model, quantiles=quantile)
    options = train_options(layers, horizon, quantile)
    forecaster = Forecaster(
        model or setting_of(layers, "model.model", DEFAULT),
        options.horizon,
        options.quantiles,
        preset=preset,
        config=tables_of(layers),
        seed=options.seed,
        device=device,
        verbose=not as_json,
    )
    data = Panel.open(panel)
    frame = forecaster.backtest(data, start, end, refit=refit)
    write_table(frame, out)
    facts = {"forecasts": str(out), **facts_of_forecasts(frame.lazy(), data)}
    tell(as_json, facts, f"forecasts from {facts['cutoffs']} cutoffs are in {out}")


@app.command("what-if")
def what_if_command(
    run: Trained,
    panel: Packed,
    future: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FUTURE...",
            help="Parquet or CSV of the rows that change: id, date and known columns; several scenarios have names: "
            "more=more.csv none=none.csv.",
        ),
    ],
    out: Out,
    baseline: Annotated[
        Path | None, typer.Option(help="The plan to compare with; left out: the one in the panel.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast a changed plan and the plan itself, side by side: q0.5, q0.5_baseline, q0.5_change …

    Only the items that change are forecast. Several scenarios are set beside the plan: q0.5_baseline, q0.5_more …

    Examples: [bold]mqcast what-if runs/first panel more_promotions.parquet change.parquet[/bold],
    [bold]mqcast what-if runs/first panel more=more.csv none=none.csv change.csv[/bold]
    """
    from mqcast.forecaster import Forecaster

    table_file(out)
    data = Panel.open(panel)
    both = Forecaster.load(run, data).what_if(_scenarios(future), baseline)
    write_table(both, out)
    changes = {name: float(both[name].sum()) for name in both.columns if name.endswith("_change")}
    text = ", ".join(f"{name.removesuffix('_change')} {value:+,.1f}" for name, value in changes.items())
    facts = {**facts_of_forecasts(both.lazy(), data, of_some=True), "total_change": changes}
    tell(as_json, {"forecasts": str(out), **facts}, f"total change: {text}; by item and date in {out}")


@app.command("page")
def page_command(
    run: Annotated[Path, typer.Argument(help="A trained run, or a folder that Forecaster.save wrote.")],
    panel: Annotated[
        Path | None, typer.Option(help="A packed panel to forecast; left out: the one in the saved folder.")
    ] = None,
    previous: Annotated[
        Path | None, typer.Option(help="The forecast of the last run, Parquet or CSV, to show what changed.")
    ] = None,
    cutoff: Annotated[
        str | None, typer.Option(help="The date to forecast from; 'each': each series from its own end.")
    ] = None,
    span: Annotated[
        list[str] | None, typer.Option(help="Show quantiles of totals: first and last step, 1-4; repeatable.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("page.html"),
    as_json: AsJson = False,
) -> None:
    """Write a page on the coming steps of all items: history, forecast, promotions, holidays; it works offline.

    Examples: [bold]mqcast page runs/first --panel panel[/bold],
    [bold]mqcast page saved --previous last_week.parquet --out page.html[/bold]
    """
    from mqcast.forecaster import Forecaster
    from mqcast.forecaster_page import write_page

    if panel is None and not (run / "panel").exists():
        raise ConfigError(f"{run} holds no data to forecast; give --panel, a packed panel")
    data = Panel.open(run / "panel" if panel is None else panel)
    forecaster = Forecaster.load(run, data)
    spans = [span_of(text) for text in span] if span else None
    shown = pl.DataFrame(write_page(forecaster, out, data, cutoff=cutoff, previous=previous, spans=spans, title=title))
    facts = {"page": str(out), "bytes": out.stat().st_size, **facts_of_forecasts(shown.lazy(), data)}
    tell(as_json, facts | {"last_observed": str(data.last_observed_date)}, f"the page is {out}")


def _scenarios(given: list[str]) -> Any:
    """One file of changes, or {name: file}."""
    if len(given) == 1 and ("=" not in given[0] or Path(given[0]).exists()):
        return given[0]
    scenarios: dict[str, str] = {}
    for text in given:
        name, sign, file = text.partition("=")
        if not sign or not name or not file or name in scenarios:
            raise ConfigError(f"{text!r} is no scenario with a name of its own; write name=file, such as more=more.csv")
        scenarios[name] = file
    return scenarios


def _forecast_some(
    run: Path, panel: Path, out: Path, cutoff: str | None, ids: list[str] | None, as_json: bool, joint: dict[str, Any]
) -> None:
    from mqcast.forecaster import Forecaster

    data = Panel.open(panel)
    found: Any = Forecaster.load(run, data).predict(ids=ids, cutoff=cutoff, **joint)
    table = found.to_polars() if isinstance(found, Paths) else found
    write_table(table, out)
    facts = facts_of_forecasts(table.lazy(), only(data, ids) if ids else data)
    tell(as_json, {"forecasts": str(out), **facts}, f"forecasts are in {out}")


def _forecast(
    run: Path,
    panel: Path,
    out: Path,
    first: str | None,
    last: str | None,
    processes: int | None,
    device: str,
    as_json: bool,
    joint: dict[str, Any] | None = None,
) -> None:
    data = Panel.open(panel)
    trained, horizon = _opened(run, data, device)
    asked = Asked(horizon, **joint) if joint else None
    by_heads = None if asked is None else asked.by_heads(trained)
    if by_heads is not None:
        totals = by_heads(data, first, last)
        facts = facts_of_forecasts(totals.lazy(), data) if as_json else {}
        if is_first():
            write_table(totals, out)
    else:
        if isinstance(trained, CanWrite):
            in_processes(processes, device, data.num_series)
        facts = _write(trained, data, out, first, last, as_json, asked)
    if is_first():
        tell(as_json, {"forecasts": str(out), **facts}, f"forecasts are in {out}")


def _opened(run: Path, data: Panel, device: str) -> tuple[FittedModel, int]:
    """The model of a run, or of a folder that Forecaster.save wrote, and its horizon."""
    from mqcast.forecaster import Forecaster
    from mqcast.forecaster_files import FACTS

    if (run / FACTS).exists():
        saved = Forecaster.load(run, data)
        return saved.fitted_, saved.horizon
    fitted = open_model(run, device)
    return fitted, horizon_of(fitted, run)


def _write(
    trained: FittedModel, data: Panel, out: Path, first: Any, last: Any, as_json: bool, asked: Asked | None
) -> dict[str, Any]:
    """Write quantiles of steps, or, from these, the paths or totals that were asked for; returns what --json tells."""
    dependence = None if asked is None else dependence_for(trained, data, asked.horizon, first or last)

    def draft(name: str) -> Path:
        return out.with_name(f".{out.name}.{name}.parquet")

    made = table_file(out) if out.suffix == ".parquet" else draft("table")
    quantiles = made if asked is None else draft("quantiles")
    if isinstance(trained, CanWrite):
        with progress("forecasting", quiet=as_json or not is_first()) as on_progress:
            trained.write(data, quantiles, first, last, on_progress)
    else:
        write_table(trained.forecast(data, first, last), quantiles)
    if not is_first():
        return {}
    try:
        if asked is not None and dependence is not None:
            asked.write(quantiles, dependence, data, made)
        facts = facts_of_forecasts(made, data) if as_json else {}
        if made != out:
            write_table(pl.read_parquet(made), out)
    finally:
        for path in {quantiles, made} - {out}:
            path.unlink(missing_ok=True)
    return facts


def write_table(table: pl.DataFrame, out: Path) -> None:
    """The table as a file of its name's kind."""
    table_file(out)
    packed = io.BytesIO()
    if out.suffix == ".parquet":
        table.write_parquet(packed)
    write_file(out, packed.getvalue() if out.suffix == ".parquet" else csv_of(table))


def table_file(out: Path) -> Path:
    """A path that says whether its file is Parquet or CSV; to be asked before long work, not after it."""
    if out.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"out is {str(out)!r}; name a .parquet or a .csv file")
    return out
